#include "kernel.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

namespace qsa {
namespace {

// Block keys this narrow need no memory but the stack.
constexpr std::size_t stack_scratch = 4096;

const char* at(const void* base, std::size_t bytes) {
    return base == nullptr ? nullptr : static_cast<const char*>(base) + bytes;
}
char* at(void* base, std::size_t bytes) { return base == nullptr ? nullptr : static_cast<char*>(base) + bytes; }

void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
}
void clear(void* to, std::size_t bytes) {
    if (bytes != 0) std::memset(to, 0, bytes);
}

// How far ahead of the arithmetic memory is asked for.
struct Prefetch {
    std::size_t key_bytes, rope_blocks;
};

// Measured on both kinds, keys and tables from memory. Intel's prefetcher stops at every page: asking for the keys 4 KiB
// ahead saves a third of the time. AMD's goes on by itself: asking it costs a third, and rows of cos and sin that are
// asked for early displace the keys.
Prefetch best_prefetch() {
#ifdef QSA_X86
    static const bool amd = __builtin_cpu_is("amd");
    if (amd) return {0, 4};
#endif
    return {4096, 16};
}

// The call cut into tiles. Every sequence has the same number, so that a tile's place follows from its index; for
// shorter sequences some of them have nothing to do.
class Plan {
public:
    Plan(const Problem& problem, BlocksFunction compute, const Options& options)
        : p_(problem), compute_(compute), element_(size_of(problem.element_type)), row_(problem.Di * element_),
          rope_row_(problem.Dr * element_) {
        std::size_t most_new = 0, all_new = 0;
        for (std::size_t n = 0; n < p_.N; ++n) {
            const Sequence s = sequence(p_, n);
            most_new = std::max(most_new, s.blocks_after - s.blocks_before);
            all_new += s.blocks_after - s.blocks_before;
        }
        stream_ = all_new * row_ > options.stream_bytes;
        rows_per_tile_ = std::max<std::size_t>(1, options.tile_bytes / std::max<std::size_t>(1, row_));
        blocks_per_tile_ = std::max<std::size_t>(1, rows_per_tile_ / p_.r);
        history_tiles_ = ceil_div(p_.B, rows_per_tile_);
        block_tiles_ = ceil_div(most_new, blocks_per_tile_);
        tiles_ = p_.N * (history_tiles_ + block_tiles_ + 1);
    }

    std::size_t tiles() const { return tiles_; }

    void run(std::size_t tile, float* scratch) const {
        const std::size_t per_sequence = history_tiles_ + block_tiles_ + 1;
        const std::size_t n = tile / per_sequence;
        std::size_t part = tile % per_sequence;
        const Sequence s = sequence(p_, n);
        if (part < block_tiles_) return new_blocks(n, s, part * blocks_per_tile_, scratch);
        part -= block_tiles_;
        if (part < history_tiles_) return history(n, s, part * rows_per_tile_);
        state(n, s);
    }

private:
    // OUT-1: rows before c are copied; OUT-3: rows from c' on are zeros.
    void history(std::size_t n, const Sequence& s, std::size_t first) const {
        const std::size_t last = std::min(first + rows_per_tile_, p_.B);
        const std::size_t copied = std::min(last, s.blocks_before);
        if (first < copied)
            copy(block_row(n, first), at(p_.past_block_index_keys, (n * p_.Bp + first) * row_),
                 (copied - first) * row_);
        const std::size_t empty = std::max(first, s.blocks_after);
        if (empty < last) clear(block_row(n, empty), (last - empty) * row_);
    }

    // OUT-2: blocks c .. c'-1, here those from c + first on.
    void new_blocks(std::size_t n, const Sequence& s, std::size_t first, float* scratch) const {
        const std::size_t finished = s.blocks_after - s.blocks_before;
        if (first >= finished) return;
        const std::size_t carried = first == 0 ? s.open_before : 0;
        // Past tokens and padding exclude each other, so that one of pad and open_before is zero.
        const std::size_t row = first == 0 ? s.pad : s.pad + first * p_.r - s.open_before;
        Blocks blocks;
        blocks.count = std::min(blocks_per_tile_, finished - first);
        blocks.r = p_.r;
        blocks.Di = p_.Di;
        blocks.Dr = p_.Dr;
        blocks.epsilon = p_.epsilon;
        blocks.carried = carried;
        blocks.carried_rows = at(p_.past_incomplete_raw_keys, n * (p_.r - 1) * row_);
        blocks.carried_cos = at(p_.past_incomplete_rope, 2 * n * rope_row_);
        blocks.carried_sin = at(p_.past_incomplete_rope, (2 * n + 1) * rope_row_);
        blocks.rows = at(p_.raw_index_keys, (n * p_.L + row) * row_);
        blocks.cos = at(p_.rope_cos, (n * p_.L + row) * rope_row_);
        blocks.sin = at(p_.rope_sin, (n * p_.L + row) * rope_row_);
        blocks.weight = p_.k_norm_weight;
        blocks.key_bytes_ahead = prefetch_.key_bytes;
        blocks.rope_blocks_ahead = prefetch_.rope_blocks;
        blocks.stream = stream_;
        blocks.keys = block_row(n, s.blocks_before + first);
        blocks.scratch = scratch;
        compute_(blocks, p_.element_type);
    }

    // STA-1 and STA-2: the open block's raw keys, left-aligned, and the rope of its first token.
    void state(std::size_t n, const Sequence& s) const {
        const bool same_block = s.blocks_after == s.blocks_before;
        const std::size_t kept = same_block ? s.open_before : 0;
        const std::size_t added = s.open_after - kept;
        const std::size_t first = p_.L - added;
        char* keys = at(p_.present_incomplete_raw_keys, n * (p_.r - 1) * row_);
        copy(keys, at(p_.past_incomplete_raw_keys, n * (p_.r - 1) * row_), kept * row_);
        copy(at(keys, kept * row_), at(p_.raw_index_keys, (n * p_.L + first) * row_), added * row_);
        clear(at(keys, s.open_after * row_), (p_.r - 1 - s.open_after) * row_);

        char* rope = at(p_.present_incomplete_rope, 2 * n * rope_row_);
        if (s.open_after == 0) return clear(rope, 2 * rope_row_);
        if (kept != 0) return copy(rope, at(p_.past_incomplete_rope, 2 * n * rope_row_), 2 * rope_row_);
        copy(rope, at(p_.rope_cos, (n * p_.L + first) * rope_row_), rope_row_);
        copy(at(rope, rope_row_), at(p_.rope_sin, (n * p_.L + first) * rope_row_), rope_row_);
    }

    char* block_row(std::size_t n, std::size_t b) const { return at(p_.block_index_keys, (n * p_.B + b) * row_); }

    const Problem& p_;
    BlocksFunction compute_;
    std::size_t element_, row_, rope_row_;
    std::size_t rows_per_tile_, blocks_per_tile_, history_tiles_, block_tiles_, tiles_;
    bool stream_;
    Prefetch prefetch_ = best_prefetch();
};

// Tiles are handed out one by one: a ragged batch or a busy core does not leave the other workers waiting.
struct Queue {
    const Plan& plan;
    std::size_t scratch_size;
    std::atomic<std::size_t> next{0};
};

void drain(void* state, std::size_t) {
    auto& queue = *static_cast<Queue*>(state);
    alignas(64) float on_stack[stack_scratch];
    std::vector<float> on_heap(queue.scratch_size > stack_scratch ? queue.scratch_size : 0);
    float* scratch = on_heap.empty() ? on_stack : on_heap.data();
    const std::size_t tiles = queue.plan.tiles();
    for (std::size_t tile; (tile = queue.next.fetch_add(1, std::memory_order_relaxed)) < tiles;)
        queue.plan.run(tile, scratch);
}

BlocksFunction function_of(Isa isa) {
    switch (isa) {
#ifdef QSA_X86
        case Isa::avx2: return blocks_avx2;
        case Isa::avx512:
        case Isa::avx512_bf16: return blocks_avx512;
#endif
        default: return blocks_portable;
    }
}

}  // namespace

Sequence sequence(const Problem& p, std::size_t n) {
    const auto S = static_cast<std::size_t>(key_length(p.key_length, p.length_type, p.length_count, n));
    const std::size_t past = S > p.L ? S - p.L : 0;
    return {S, p.L > S ? p.L - S : 0, past / p.r, past % p.r, S / p.r, S % p.r};
}

std::size_t bytes_to_move(const Problem& p) {
    const std::size_t element = size_of(p.element_type);
    std::size_t rows = 0, rope_rows = 0;
    for (std::size_t n = 0; n < p.N; ++n) {
        const Sequence s = sequence(p, n);
        const std::size_t finished = s.blocks_after - s.blocks_before;
        const std::size_t read = std::min(s.length, p.L) + s.open_before;
        rows += read + s.open_after + finished + 2 * s.blocks_before;
        rope_rows += 2 * finished + (s.open_after != 0 ? 4 : 0);
    }
    return (rows * p.Di + rope_rows * p.Dr) * element;
}

void prepare(const Problem& problem, const Workers& workers, const Options& options) {
    const Plan plan(problem, function_of(options.isa == Isa::automatic ? best_isa() : options.isa), options);
    if (plan.tiles() == 0) return;
    Queue queue{plan, scratch_size(problem.Di)};
    const std::size_t worth = bytes_to_move(problem) / options.worker_bytes;
    const std::size_t count = std::min({workers.limit(), plan.tiles(), worth});
    if (count <= 1) return drain(&queue, 0);
    workers.run(count, drain, &queue);
}

}  // namespace qsa
