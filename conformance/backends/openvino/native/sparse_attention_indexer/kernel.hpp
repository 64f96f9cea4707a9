// The arithmetic of SparseAttentionIndexer on raw pointers, free of OpenVINO so that it can be tested and timed alone.
//
// Roofline. A decode step reads the visible block keys once (v*Di elements a sequence) and little else: it is bound by
// memory. A prefill computes 2*Hi*Di operations for every pair of a query token and a visible block: it is bound by
// arithmetic. Scores are never kept: a row keeps the candidates for its K blocks, at most 2*K + one register of them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/kernel.hpp"

namespace qsa {
namespace indexer {

// One call. All arrays are dense and row-major; arrays without elements may be null.
struct Problem {
    ElementType element_type;
    LengthType length_type;
    std::size_t N, Hi, L, Di, B, Hs;
    std::size_t r;  // key_block_size, at least 1
    std::size_t K;  // token_budget / key_block_size

    const void* index_query;       // [N, Hi, L, Di]
    const void* block_index_keys;  // [N, B, Di]
    const void* key_length;        // [length_count]
    std::size_t length_count;      // N, or 1 for all sequences
    const void* index_weights;     // [N, L, Hi]; null: all weights are 1

    std::int32_t* block_indices;  // [N, Hs, L, K]
    std::int32_t* block_count;    // [N, Hs, L]
};

struct Options {
    Isa isa = Isa::automatic;
    // A worker for every so many multiplications: waking one for less takes longer than the work.
    std::size_t worker_work = std::size_t{1} << 18;
    std::size_t tile_rows = 192;     // rows of index queries that share the panels of keys
    std::size_t share_blocks = 2048; // a call with few query tokens is split over blocks, into shares of at least so many
};

// Blocks visible to query token l of sequence n (VIS-1, VIS-3).
std::size_t visible(const Problem& problem, std::size_t n, std::size_t l);

// Selects the blocks of every query token: valid entries by falling score, equal scores by rising index, then -1. The
// problem must have passed the operation's checks. The result does not depend on the number of workers.
void select(const Problem& problem, const Workers& workers, const Options& options = {});

// Bytes that any implementation must read and write for this problem.
std::size_t bytes_to_move(const Problem& problem);

// What an instruction set computes: a tile of query tokens against a range of blocks.
struct Tile {
    const Problem* problem;
    std::size_t n;                    // sequence
    std::size_t first_token, tokens;  // query tokens of the tile
    std::size_t first_block, blocks;  // range of blocks; a token sees those below its `visible`
    const std::size_t* visible;       // [tokens]
    float* queries;                   // [tokens * Hi, Di]: room for the index queries in f32
    float* weights;                   // [tokens, Hi]
    float* panels;                    // [2, Di, width]
    float* dots;                      // [tokens * Hi, 2 * width]
    std::uint64_t* candidates;        // [tokens * Hs, capacity]
    std::size_t* counts;              // [tokens * Hs]
    float* floors;                    // [tokens * Hs]
    bool ask_ahead;                   // for the keys of the next panels, where they come from memory
    std::size_t capacity;             // candidates of one selection, above K + 2 * width
};

constexpr std::size_t widest = 16;  // lanes of the widest register

// Leaves in `candidates` the best min(K, seen) of every selection, in no order; as keys that rise with the score and, for
// equal scores, fall with the index.
using TileFunction = void (*)(const Tile&, ElementType);
void tile_portable(const Tile& tile, ElementType type);
void tile_avx2(const Tile& tile, ElementType type);
void tile_avx512(const Tile& tile, ElementType type);

}  // namespace indexer
}  // namespace qsa
