// The arithmetic of SparseAttention on raw pointers, free of OpenVINO so that it can be tested and timed alone.
//
// Roofline. A call must read the attended rows of key and value once for every selection that differs, and little else.
// With the few query heads of a group that share them a decode step is bound by memory, or nearly so: 4*heads operations
// go with every pair of elements. Logits are kept for `chunk` tokens at a time, so memory does not grow with S.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/kernel.hpp"

namespace qsa {
namespace attention {

// One call. All arrays are dense and row-major; arrays without elements may be null.
struct Problem {
    ElementType element_type;
    LengthType length_type, index_type;
    std::size_t N, H, Hkv, Hs, L, S, E, Ev;
    std::size_t KB;  // entries of a selection
    std::size_t r;   // key_block_size, at least 1
    std::size_t qb;  // query_block_size, at least 1
    bool causal;

    const void* query;          // [N, H, L, E]
    const void* key;            // [N, Hkv, S, E]
    const void* value;          // [N, Hkv, S, Ev]
    const void* block_indices;  // [N, Hs, Lq, KB]
    const void* block_count;    // [N, Hs, Lq]
    const void* key_length;     // [length_count]; null: S for all
    std::size_t length_count;   // N, or 1 for all sequences
    const void* scale;          // one element; null: 1 / sqrt(E)
    const void* sinks;          // [H]; null: none

    void* output;  // [N, H, L, Ev]
};

struct Options {
    Isa isa = Isa::automatic;
    // A worker for every so many multiplications: waking one for less takes longer than the work.
    std::size_t worker_work = std::size_t{1} << 18;
    std::size_t chunk = 256;         // tokens whose logits are kept at a time
    std::size_t share_tokens = 512;  // a call with few query tokens is split over tokens, into shares of at least so many
};

// Computes the output. Rows of padding become zeros. The problem must have passed the operation's checks. The result may
// depend on the number of workers where a call is split over tokens, as NUM-3 allows, but not on timing.
void attend(const Problem& problem, const Workers& workers, const Options& options = {});

// Bytes that any implementation must read and write for this problem.
std::size_t bytes_to_move(const Problem& problem);

// What an instruction set computes: heads of one query token that share key-value head and selection, against tokens.
struct Tile {
    const Problem* problem;
    std::size_t n, l;
    std::size_t first_head, heads;
    const std::size_t* rows;  // [tokens]: rows of key and value
    std::size_t tokens;
    float scale;
    std::size_t chunk;        // a multiple of 2 * widest, at most `most_chunk`
    float* queries;           // [heads, E]
    float* panels;            // [2, E, width]
    float* logits;            // [heads, chunk]
    float* largest;           // [heads]: running maximum
    float* sum;               // [heads]: sum of exp(logit - largest)
    float* weighted;          // [heads, Ev rounded up to registers]: sum of exp(logit - largest) * value
};

constexpr std::size_t widest = 16;  // lanes of the widest register
constexpr std::size_t most_chunk = 1024;
constexpr std::size_t padded(std::size_t width) { return (width + 2 * widest - 1) / (2 * widest) * (2 * widest); }

// Fills `largest`, `sum` and `weighted` from nothing (no tokens: minus infinity and zeros).
using TileFunction = void (*)(const Tile&, ElementType);
void tile_portable(const Tile& tile, ElementType type);
void tile_avx2(const Tile& tile, ElementType type);
void tile_avx512(const Tile& tile, ElementType type);

}  // namespace attention
}  // namespace qsa
