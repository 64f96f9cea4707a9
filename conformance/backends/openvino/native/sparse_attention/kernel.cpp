#include "kernel.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <vector>

namespace qsa {
namespace attention {
namespace {

TileFunction function_of(Isa isa) {
    switch (isa) {
#ifdef QSA_X86
        case Isa::avx2: return tile_avx2;
        case Isa::avx512: return tile_avx512;
#endif
        default: return tile_portable;
    }
}

// One number of type T, wide. The few that are read this way are not worth a register.
float read(const void* from, ElementType type, std::size_t i);
void write(void* to, ElementType type, std::size_t i, float x);

std::int64_t index_at(const void* from, LengthType type, std::size_t i) {
    return type == LengthType::i32 ? static_cast<const std::int32_t*>(from)[i] : static_cast<const std::int64_t*>(from)[i];
}

std::int64_t length_of(const Problem& p, std::size_t n) {
    return p.key_length == nullptr ? static_cast<std::int64_t>(p.S) : key_length(p.key_length, p.length_type, p.length_count, n);
}

// The tokens that a query head attends to (BLK-1, SEL-1 to SEL-4, OPN-1 to OPN-3), as rows of key and value, each once.
// Entries that name no block of the sequence are passed over, and in the causal mode tokens after the query.
void attended(const Problem& p, std::size_t n, std::size_t l, std::size_t selection, std::vector<std::size_t>& rows) {
    rows.clear();
    const std::int64_t Sn = length_of(p, n), r = static_cast<std::int64_t>(p.r);
    const std::int64_t shift = static_cast<std::int64_t>(p.S) - Sn;
    const std::int64_t position = Sn - static_cast<std::int64_t>(p.L) + static_cast<std::int64_t>(l);
    if (p.causal && position < 0) return;
    const std::int64_t end = p.causal ? position + 1 : Sn;
    const std::int64_t open = p.causal ? end / r * r : end;  // the first token of the open block
    const std::size_t Lq = ceil_div(p.L, p.qb);
    const std::size_t row = (n * p.Hs + selection) * Lq + l / p.qb;
    const std::int64_t count = std::min<std::int64_t>(index_at(p.block_count, p.index_type, row), static_cast<std::int64_t>(p.KB));
    for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t block = index_at(p.block_indices, p.index_type, row * p.KB + static_cast<std::size_t>(k));
        if (block < 0 || block > (Sn - 1) / r) continue;
        for (std::int64_t t = block * r, last = std::min(block * r + r, open); t < last; ++t)
            rows.push_back(static_cast<std::size_t>(t + shift));
    }
    for (std::int64_t t = open; t < end; ++t) rows.push_back(static_cast<std::size_t>(t + shift));
}

constexpr std::size_t most_shares = 1024;

// Heads of one query token that share key-value head and selection; when there are too few such units for the workers,
// each is cut into shares of its tokens, and whoever finishes the last share puts them together, in order.
class Plan {
public:
    Plan(const Problem& problem, std::size_t workers, const Options& options)
        : p_(problem), compute_(function_of(options.isa == Isa::automatic ? best_isa() : options.isa)) {
        heads_ = std::gcd(p_.H / p_.Hkv, p_.H / p_.Hs);
        groups_ = p_.H / heads_;
        chunk_ = std::min<std::size_t>(most_chunk, std::max<std::size_t>(2 * widest, options.chunk));
        width_ = padded(p_.Ev);
        scale_ = p_.scale != nullptr ? read(p_.scale, p_.element_type, 0)
                                     : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p_.E)));
        const std::size_t tiles = p_.N * p_.L * groups_;
        const std::size_t most = std::min(p_.S, (p_.KB + 1) * p_.r);
        if (tiles != 0 && tiles < 2 * workers)
            shares_ = std::max<std::size_t>(1, std::min({ceil_div(2 * workers, tiles), most / options.share_tokens, most_shares}));
        units_ = tiles * shares_;
        partial_ = heads_ * (2 + width_);
        if (shares_ > 1) {
            partials_.reset(new float[units_ * partial_]);
            left_.reset(new std::atomic<std::size_t>[tiles]);
            for (std::size_t i = 0; i < tiles; ++i) left_[i] = shares_;
        }
    }

    std::size_t units() const { return units_; }

    struct Scratch {
        explicit Scratch(const Plan& plan)
            : floats(plan.heads_ * (plan.p_.E + plan.chunk_) + 2 * plan.p_.E * widest + plan.partial_ + 64) {}
        std::vector<float> floats;
        std::vector<std::size_t> rows;
    };

    void run(std::size_t unit, Scratch& scratch) {
        const std::size_t tile_index = unit / shares_, share = unit % shares_;
        const std::size_t group = tile_index % groups_, token = tile_index / groups_;
        Tile tile;
        tile.problem = &p_;
        tile.n = token / p_.L;
        tile.l = token % p_.L;
        tile.first_head = group * heads_;
        tile.heads = heads_;
        attended(p_, tile.n, tile.l, tile.first_head / (p_.H / p_.Hs), scratch.rows);
        const std::size_t each = ceil_div(scratch.rows.size(), shares_), first = std::min(share * each, scratch.rows.size());
        tile.rows = scratch.rows.data() + first;
        tile.tokens = std::min(each, scratch.rows.size() - first);
        tile.scale = scale_;
        tile.chunk = chunk_;
        float* at = scratch.floats.data();
        const auto take = [&](std::size_t count) { return (at += count) - count; };
        tile.panels = take(2 * p_.E * widest);
        tile.logits = take(heads_ * chunk_);
        tile.queries = take(heads_ * p_.E);
        float* partial = shares_ > 1 ? partials_.get() + unit * partial_ : take(partial_);
        tile.largest = partial;
        tile.sum = partial + heads_;
        tile.weighted = partial + 2 * heads_;
        compute_(tile, p_.element_type);
        if (shares_ > 1) {
            if (left_[tile_index].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
            partial = partials_.get() + tile_index * shares_ * partial_;
        }
        finish(tile, partial);
    }

private:
    // ATT-1, ATT-4, ATT-5: shares and sink put together, divided by the sum; zeros where nothing is attended.
    void finish(const Tile& tile, const float* partials) const {
        for (std::size_t h = 0; h < heads_; ++h) {
            const std::size_t head = tile.first_head + h;
            const double sink = p_.sinks == nullptr ? -std::numeric_limits<double>::infinity() : read(p_.sinks, p_.element_type, head);
            double most = sink;
            for (std::size_t share = 0; share < shares_; ++share) most = std::max<double>(most, partials[share * partial_ + h]);
            double sum = std::isinf(sink) ? 0.0 : std::exp(sink - most);
            double factors[most_shares];
            for (std::size_t share = 0; share < shares_; ++share) {
                const float largest = partials[share * partial_ + h];
                factors[share] = std::isinf(largest) && largest < 0 ? 0.0 : std::exp(largest - most);
                sum += factors[share] * partials[share * partial_ + heads_ + h];
            }
            const double by = sum > 0 || sum != sum ? 1.0 / sum : 0.0;
            const std::size_t out = ((tile.n * p_.H + head) * p_.L + tile.l) * p_.Ev;
            for (std::size_t j = 0; j < p_.Ev; ++j) {
                double total = 0;
                for (std::size_t share = 0; share < shares_; ++share)
                    total += factors[share] * partials[share * partial_ + 2 * heads_ + h * width_ + j];
                write(p_.output, p_.element_type, out + j, static_cast<float>(total * by));
            }
        }
    }

    const Problem& p_;
    TileFunction compute_;
    std::size_t heads_, groups_, chunk_, width_, shares_ = 1, units_, partial_;
    float scale_;
    std::unique_ptr<float[]> partials_;
    std::unique_ptr<std::atomic<std::size_t>[]> left_;
};

struct Queue {
    Plan& plan;
    std::atomic<std::size_t> next{0};
};

void drain(void* state, std::size_t) {
    auto& queue = *static_cast<Queue*>(state);
    Plan::Scratch scratch(queue.plan);
    for (std::size_t unit; (unit = queue.next.fetch_add(1, std::memory_order_relaxed)) < queue.plan.units();)
        queue.plan.run(unit, scratch);
}

float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

float read(const void* from, ElementType type, std::size_t i) {
    if (type == ElementType::f32) return static_cast<const float*>(from)[i];
    const std::uint32_t bits = static_cast<const std::uint16_t*>(from)[i];
    if (type == ElementType::bf16) return from_bits(bits << 16);
    const std::uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 0x1fu, fraction = bits & 0x3ffu;
    if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | fraction << 13);
    if (exponent != 0) return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
}

// To nearest even; a NaN stays a NaN.
void write(void* to, ElementType type, std::size_t i, float x) {
    if (type == ElementType::f32) {
        static_cast<float*>(to)[i] = x;
        return;
    }
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    auto& out = static_cast<std::uint16_t*>(to)[i];
    if (type == ElementType::bf16) {
        out = static_cast<std::uint16_t>(x != x ? bits >> 16 | 0x40u : (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        return;
    }
    const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    std::uint32_t half;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u;
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    } else {
        const float shifted = from_bits(magnitude) + 0.5f;
        std::memcpy(&half, &shifted, sizeof half);
        half -= 0x3f000000u;
    }
    out = static_cast<std::uint16_t>(sign | half);
}

std::size_t attended_rows(const Problem& p) {
    const std::size_t step = std::max<std::size_t>(1, p.L / 64);
    std::vector<std::size_t> rows;
    std::size_t total = 0;
    for (std::size_t n = 0; n < p.N; ++n)
        for (std::size_t l = 0; l < p.L; l += step)
            for (std::size_t g = 0; g < p.Hs; ++g) {
                attended(p, n, l, g, rows);
                total += rows.size() * std::min(step, p.L - l);
            }
    return total;
}

}  // namespace

std::size_t bytes_to_move(const Problem& p) {
    // Every selection reads its rows for the key-value heads that its heads use.
    const std::size_t heads = std::max<std::size_t>(1, p.Hkv / p.Hs);
    const std::size_t rows = attended_rows(p) * heads;
    return (rows * (p.E + p.Ev) + p.N * p.H * p.L * (p.E + p.Ev)) * size_of(p.element_type);
}

void attend(const Problem& problem, const Workers& workers, const Options& options) {
    const std::size_t limit = std::max<std::size_t>(1, workers.limit());
    const std::size_t tokens = std::min(problem.S, (problem.KB + 1) * problem.r);
    const std::size_t work = problem.N * problem.L * problem.H * tokens * (problem.E + problem.Ev);
    const std::size_t wanted = std::max<std::size_t>(1, std::min(limit, work / options.worker_work));
    Plan plan(problem, wanted, options);
    if (plan.units() == 0) return;
    Queue queue{plan};
    const std::size_t count = std::min(wanted, plan.units());
    if (count <= 1) return drain(&queue, 0);
    workers.run(count, drain, &queue);
}

}  // namespace attention
}  // namespace qsa
