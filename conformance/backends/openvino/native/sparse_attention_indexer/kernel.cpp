#include "kernel.hpp"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>

namespace qsa {
namespace indexer {
namespace {

TileFunction function_of(Isa isa) {
    switch (isa) {
#ifdef QSA_X86
        case Isa::avx2: return tile_avx2;
        case Isa::avx512:
        case Isa::avx512_bf16: return tile_avx512;
#endif
        default: return tile_portable;
    }
}

// A few query tokens of one sequence; when there are too few of these for the workers, each is cut into shares of the
// blocks, and whoever finishes the last share puts their candidates together.
class Plan {
public:
    Plan(const Problem& problem, std::size_t workers, const Options& options)
        : p_(problem), compute_(function_of(options.isa == Isa::automatic ? best_isa() : options.isa)) {
        tokens_per_tile_ = std::max<std::size_t>(1, options.tile_rows / p_.Hi);
        tokens_per_tile_ = std::min(tokens_per_tile_, std::max<std::size_t>(1, p_.L));
        tiles_per_sequence_ = ceil_div(p_.L, tokens_per_tile_);
        const std::size_t tiles = p_.N * tiles_per_sequence_;
        std::size_t most = 0;
        for (std::size_t n = 0; n < p_.N && p_.L != 0; ++n) most = std::max(most, visible(p_, n, p_.L - 1));
        if (tiles != 0 && tiles < 2 * workers)
            shares_ = std::max<std::size_t>(1, std::min(ceil_div(4 * workers, tiles), most / options.share_blocks));
        share_blocks_ = ceil_div(std::max<std::size_t>(1, most), shares_);
        capacity_ = 2 * p_.K + 4 * widest;
        // A prefill finds the keys of a tile in the caches, where its neighbours had them before.
        ask_ahead_ = tiles_per_sequence_ == 1;
        units_ = tiles * shares_;
        if (shares_ > 1) {
            const std::size_t selections = tokens_per_tile_ * p_.Hs;
            kept_.reset(new std::uint64_t[units_ * selections * capacity_]);
            kept_counts_.assign(units_ * selections, 0);
            left_.reset(new std::atomic<std::size_t>[tiles]);
            for (std::size_t i = 0; i < tiles; ++i) left_[i] = shares_;
        }
    }

    std::size_t units() const { return units_; }

    // Room that a worker needs: floats, candidates and counts.
    struct Scratch {
        explicit Scratch(const Plan& plan) {
            const Problem& p = plan.p_;
            const std::size_t rows = plan.tokens_per_tile_ * p.Hi, selections = plan.tokens_per_tile_ * p.Hs;
            floats.resize(rows * p.Di + rows + 2 * p.Di * widest + rows * 2 * widest + selections + 64);
            if (plan.shares_ == 1) candidates.reset(new std::uint64_t[selections * plan.capacity_]);
            counts.resize(selections);
            visible.resize(plan.tokens_per_tile_);
        }
        std::vector<float> floats;
        std::unique_ptr<std::uint64_t[]> candidates;
        std::vector<std::size_t> counts, visible;
    };

    void run(std::size_t unit, Scratch& scratch) {
        const std::size_t tile_index = unit / shares_, share = unit % shares_;
        Tile tile;
        tile.problem = &p_;
        tile.n = tile_index / tiles_per_sequence_;
        tile.first_token = tile_index % tiles_per_sequence_ * tokens_per_tile_;
        tile.tokens = std::min(tokens_per_tile_, p_.L - tile.first_token);
        std::size_t most = 0;
        for (std::size_t l = 0; l < tile.tokens; ++l)
            most = std::max(most, scratch.visible[l] = visible(p_, tile.n, tile.first_token + l));
        tile.visible = scratch.visible.data();
        tile.first_block = std::min(most, share * share_blocks_);
        tile.blocks = std::min(most, tile.first_block + (shares_ > 1 ? share_blocks_ : most)) - tile.first_block;
        const std::size_t rows = tile.tokens * p_.Hi, selections = tile.tokens * p_.Hs;
        float* at = scratch.floats.data();
        const auto take = [&](std::size_t count) { return (at += count) - count; };
        tile.panels = take(2 * p_.Di * widest);
        tile.dots = take(rows * 2 * widest);
        tile.queries = take(rows * p_.Di);
        tile.weights = take(rows);
        tile.floors = take(selections);
        tile.capacity = capacity_;
        tile.ask_ahead = ask_ahead_;
        const std::size_t kept = unit * tokens_per_tile_ * p_.Hs;
        tile.candidates = shares_ == 1 ? scratch.candidates.get() : kept_.get() + kept * capacity_;
        tile.counts = shares_ == 1 ? scratch.counts.data() : kept_counts_.data() + kept;
        compute_(tile, p_.element_type);
        if (shares_ == 1)
            for (std::size_t i = 0; i < selections; ++i)
                write(tile, i, tile.candidates + i * capacity_, tile.counts[i]);
        else if (left_[tile_index].fetch_sub(1, std::memory_order_acq_rel) == 1)
            put_together(tile, tile_index);
    }

private:
    void put_together(const Tile& tile, std::size_t tile_index) const {
        std::vector<std::uint64_t> all;
        for (std::size_t i = 0; i < tile.tokens * p_.Hs; ++i) {
            all.clear();
            for (std::size_t share = 0; share < shares_; ++share) {
                const std::size_t kept = (tile_index * shares_ + share) * tokens_per_tile_ * p_.Hs + i;
                const std::uint64_t* first = kept_.get() + kept * capacity_;
                all.insert(all.end(), first, first + kept_counts_[kept]);
            }
            if (all.size() > p_.K)
                std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(p_.K - 1), all.end(),
                                 std::greater<std::uint64_t>());
            write(tile, i, all.data(), std::min(all.size(), p_.K));
        }
    }

    // OUT-2, OUT-3, ORD-1, CNT-1.
    void write(const Tile& tile, std::size_t i, std::uint64_t* keys, std::size_t count) const {
        const std::size_t l = tile.first_token + i / p_.Hs, g = i % p_.Hs;
        std::sort(keys, keys + count, std::greater<std::uint64_t>());
        const std::size_t row = (tile.n * p_.Hs + g) * p_.L + l;
        std::int32_t* indices = p_.block_indices + row * p_.K;
        for (std::size_t k = 0; k < count; ++k)
            indices[k] = static_cast<std::int32_t>(0xffffffffu - static_cast<std::uint32_t>(keys[k]));
        std::fill(indices + count, indices + p_.K, -1);
        p_.block_count[row] = static_cast<std::int32_t>(count);
    }

    const Problem& p_;
    TileFunction compute_;
    std::size_t tokens_per_tile_, tiles_per_sequence_, shares_ = 1, share_blocks_, capacity_, units_;
    bool ask_ahead_;
    std::unique_ptr<std::uint64_t[]> kept_;
    std::vector<std::size_t> kept_counts_;
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

}  // namespace

std::size_t visible(const Problem& p, std::size_t n, std::size_t l) {
    const std::int64_t S = key_length(p.key_length, p.length_type, p.length_count, n);
    const std::int64_t end = S - static_cast<std::int64_t>(p.L) + static_cast<std::int64_t>(l) + 1;
    return end <= 0 ? 0 : std::min(static_cast<std::size_t>(end) / p.r, p.B);
}

std::size_t bytes_to_move(const Problem& p) {
    const std::size_t element = size_of(p.element_type);
    std::size_t rows = p.N * p.Hi * p.L;
    for (std::size_t n = 0; n < p.N && p.L != 0; ++n) rows += visible(p, n, p.L - 1);
    const std::size_t weights = p.index_weights != nullptr ? p.N * p.L * p.Hi : 0;
    return (rows * p.Di + weights) * element + p.N * p.Hs * p.L * (p.K + 1) * sizeof(std::int32_t);
}

void select(const Problem& problem, const Workers& workers, const Options& options) {
    const std::size_t limit = std::max<std::size_t>(1, workers.limit());
    std::size_t work = 0;
    for (std::size_t n = 0; n < problem.N && problem.L != 0; ++n)
        work += visible(problem, n, problem.L - 1) * problem.Di * (1 + problem.L * problem.Hi);
    const std::size_t wanted = std::max<std::size_t>(1, std::min(limit, work / options.worker_work));
    Plan plan(problem, wanted, options);
    if (plan.units() == 0) return;
    Queue queue{plan};
    const std::size_t count = std::min(wanted, plan.units());
    if (count <= 1) return drain(&queue, 0);
    workers.run(count, drain, &queue);
}

}  // namespace indexer
}  // namespace qsa
