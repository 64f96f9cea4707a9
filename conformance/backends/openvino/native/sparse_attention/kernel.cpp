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

const Code& code_of(Isa isa) {
    switch (isa) {
#ifdef QSA_X86
        case Isa::avx2: return code_avx2;
        case Isa::avx512: return code_avx512;
#endif
#ifdef QSA_AVX512_BF16
        case Isa::avx512_bf16: return code_avx512_bf16;
#endif
        default: return code_portable;
    }
}

// One number of type T, wide. The few that are read this way are not worth a register.
float read(const void* from, ElementType type, std::size_t i);

std::int64_t index_at(const void* from, LengthType type, std::size_t i) {
    return type == LengthType::i32 ? static_cast<const std::int32_t*>(from)[i] : static_cast<const std::int64_t*>(from)[i];
}

std::int64_t length_of(const Problem& p, std::size_t n) {
    return p.key_length == nullptr ? static_cast<std::int64_t>(p.S) : key_length(p.key_length, p.length_type, p.length_count, n);
}

// The tokens that a query head attends to (BLK-1, SEL-1 to SEL-4, OPN-1 to OPN-3), each once, as `visit(first, count)` for
// rows of key and value in one piece. Entries that name no block of the sequence are passed over, and in the causal mode
// tokens after the query.
template <class Visit>
void attended(const Problem& p, std::size_t n, std::size_t l, std::size_t selection, Visit visit) {
    const std::int64_t Sn = length_of(p, n), r = static_cast<std::int64_t>(p.r);
    const std::int64_t shift = static_cast<std::int64_t>(p.S) - Sn;
    const std::int64_t position = Sn - static_cast<std::int64_t>(p.L) + static_cast<std::int64_t>(l);
    if (p.causal && position < 0) return;
    const std::int64_t end = p.causal ? position + 1 : Sn;
    const std::int64_t open = p.causal ? end / r * r : end;  // the first token of the open block
    const std::int64_t blocks = Sn / r + (Sn % r != 0);
    const std::size_t Lq = ceil_div(p.L, p.qb);
    const std::size_t row = (n * p.Hs + selection) * Lq + l / p.qb;
    const std::int64_t count = std::min<std::int64_t>(index_at(p.block_count, p.index_type, row), static_cast<std::int64_t>(p.KB));
    const auto piece = [&](std::int64_t from, std::int64_t to) {
        if (from < to) visit(static_cast<std::size_t>(from + shift), static_cast<std::size_t>(to - from));
    };
    for (std::int64_t k = 0; k < count; ++k) {
        const std::int64_t block = index_at(p.block_indices, p.index_type, row * p.KB + static_cast<std::size_t>(k));
        if (block >= 0 && block < blocks) piece(block * r, std::min(block * r + r, open));
    }
    piece(open, end);
}

std::size_t count_attended(const Problem& p, std::size_t n, std::size_t l, std::size_t selection) {
    std::size_t total = 0;
    attended(p, n, l, selection, [&](std::size_t, std::size_t count) { total += count; });
    return total;
}

constexpr std::size_t most_shares = 1024, units_of_worker = 4;

// Heads of one query token that share key-value head and selection; when there are too few such units for the workers,
// each is cut into shares of its tokens, and whoever finishes the last share puts them together, in order.
class Plan {
public:
    Plan(const Problem& problem, std::size_t workers, const Options& options)
        : p_(problem), code_(code_of(options.isa == Isa::automatic ? best_isa() : options.isa)) {
        heads_ = std::gcd(p_.H / p_.Hkv, p_.H / p_.Hs);
        groups_ = p_.H / heads_;
        chunk_ = std::min<std::size_t>(most_chunk, std::max<std::size_t>(2 * widest, options.chunk));
        width_ = padded(p_.Ev);
        scale_ = p_.scale != nullptr ? read(p_.scale, p_.element_type, 0)
                                     : static_cast<float>(1.0 / std::sqrt(static_cast<double>(p_.E)));
        const std::size_t tiles = p_.N * p_.L * groups_;
        const std::size_t most = std::min(p_.S, (p_.KB + 1) * p_.r);
        // Several units for each worker: one that wakes up late leaves its share to the others.
        const std::size_t wanted = units_of_worker * workers;
        if (tiles != 0 && tiles < wanted)
            shares_ = std::max<std::size_t>(1, std::min({ceil_div(wanted, tiles), most / options.share_tokens, most_shares}));
        units_ = tiles * shares_;
        partial_ = heads_ * (2 + width_);
        if (shares_ > 1) {
            partials_.reset(new float[units_ * partial_]);
            left_.reset(new std::atomic<std::size_t>[tiles]);
            for (std::size_t i = 0; i < tiles; ++i) left_[i] = shares_;
        }
    }

    std::size_t units() const { return units_; }

    // What a thread works in, kept for its next call: memory that is given back and fetched again costs a short call
    // more than its arithmetic. All is written before it is read.
    struct Scratch {
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
        list_rows(tile, share, scratch.rows);
        tile.rows = scratch.rows.data();
        tile.tokens = scratch.rows.size();
        tile.scale = scale_;
        tile.chunk = chunk_;
        const std::size_t floats = heads_ * (padded(p_.E) + chunk_) + partial_;
        if (scratch.floats.size() < floats) scratch.floats.resize(floats);
        float* at = scratch.floats.data();
        const auto take = [&](std::size_t count) { return (at += count) - count; };
        tile.logits = take(heads_ * chunk_);
        tile.queries = take(heads_ * padded(p_.E));
        float* partial = shares_ > 1 ? partials_.get() + unit * partial_ : take(partial_);
        tile.largest = partial;
        tile.sum = partial + heads_;
        tile.weighted = partial + 2 * heads_;
        code_.compute(tile, p_.element_type);
        if (shares_ > 1) {
            if (left_[tile_index].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
            partial = partials_.get() + tile_index * shares_ * partial_;
        }
        finish(tile, partial);
    }

private:
    // The rows of a share: tokens of a tile, cut into pieces of the same length.
    void list_rows(const Tile& tile, std::size_t share, std::vector<std::size_t>& rows) const {
        const std::size_t selection = tile.first_head / (p_.H / p_.Hs), all = count_attended(p_, tile.n, tile.l, selection);
        const std::size_t each = ceil_div(all, shares_), begin = std::min(share * each, all), end = std::min(begin + each, all);
        rows.clear();
        std::size_t at = 0;
        attended(p_, tile.n, tile.l, selection, [&](std::size_t first, std::size_t count) {
            const std::size_t last = std::min(at + count, end);
            for (std::size_t i = std::max(at, begin); i < last; ++i) rows.push_back(first + (i - at));
            at += count;
        });
    }

    // ATT-1, ATT-4, ATT-5: shares and sink put together, divided by the sum; zeros where nothing is attended.
    void finish(const Tile& tile, const float* partials) const {
        float factors[most_shares];
        const float* parts[most_shares];
        for (std::size_t h = 0; h < heads_; ++h) {
            const double sink = p_.sinks == nullptr ? -std::numeric_limits<double>::infinity()
                                                    : read(p_.sinks, p_.element_type, tile.first_head + h);
            double most = sink;
            for (std::size_t share = 0; share < shares_; ++share) most = std::max<double>(most, partials[share * partial_ + h]);
            double sum = std::isinf(sink) ? 0.0 : std::exp(sink - most);
            double scaled[most_shares];
            for (std::size_t share = 0; share < shares_; ++share) {
                const float* partial = partials + share * partial_;
                scaled[share] = std::isinf(partial[h]) && partial[h] < 0 ? 0.0 : std::exp(partial[h] - most);
                sum += scaled[share] * partial[heads_ + h];
                parts[share] = partial + 2 * heads_ + h * width_;
            }
            const double by = sum > 0 || sum != sum ? 1.0 / sum : 0.0;
            for (std::size_t share = 0; share < shares_; ++share) factors[share] = static_cast<float>(scaled[share] * by);
            code_.finish(tile, p_.element_type, h, parts, factors, shares_);
        }
    }

    const Problem& p_;
    const Code& code_;
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
    static thread_local Plan::Scratch scratch;
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

std::size_t attended_rows(const Problem& p) {
    const std::size_t step = std::max<std::size_t>(1, p.L / 64);
    std::size_t total = 0;
    for (std::size_t n = 0; n < p.N; ++n)
        for (std::size_t l = 0; l < p.L; l += step)
            for (std::size_t g = 0; g < p.Hs; ++g) total += count_attended(p, n, l, g) * std::min(step, p.L - l);
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
