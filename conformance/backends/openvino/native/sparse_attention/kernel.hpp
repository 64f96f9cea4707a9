// The arithmetic of SparseAttention on raw pointers, free of OpenVINO so that it can be tested and timed alone.
//
// Roofline. A call must read the attended rows of key and value once for every selection that differs, and little else.
// With the few query heads of a group that share them a decode step is bound by memory, or nearly so: 4*heads operations
// go with every pair of elements. So rows are read where they lie, by dot products and weighted sums over all heads; only
// what is of a query's own size is copied or converted. Logits are kept for `chunk` tokens at a time, so memory does not grow with S.
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

// Heads of one query token that share key-value head and selection, against tokens.
struct Tile {
    const Problem* problem;
    std::size_t n, l;
    std::size_t first_head, heads;
    const std::size_t* rows;  // [tokens]: rows of key and value
    std::size_t tokens;
    float scale;
    std::size_t chunk;  // a multiple of 2 * widest, at most `most_chunk`
    float* queries;     // [heads, padded(E)], or the same in less memory where bf16 is multiplied as it is
    float* logits;      // [heads, chunk]
    float* largest;     // [heads]: running maximum
    float* sum;         // [heads]: sum of exp(logit - largest)
    float* weighted;    // [heads, padded(Ev)]: sum of exp(logit - largest) * value
};

constexpr std::size_t widest = 16;  // f32 lanes of the widest register
constexpr std::size_t dot_rows = 4;  // rows of key whose products are taken together
constexpr std::size_t most_chunk = 1024;
// The width of a row rounded up to two registers.
constexpr std::size_t padded(std::size_t width) { return (width + 2 * widest - 1) / (2 * widest) * (2 * widest); }

// What an instruction set computes.
struct Code {
    // Fills `largest`, `sum` and `weighted` from nothing (no tokens: minus infinity and zeros).
    void (*compute)(const Tile& tile, ElementType type);
    // Writes the output of a head of the tile: the sum over `count` parts (each as `weighted` of one head) by their factors.
    void (*finish)(const Tile& tile, ElementType type, std::size_t head, const float* const* parts, const float* factors,
                   std::size_t count);
};
extern const Code code_portable, code_avx2, code_avx512, code_avx512_bf16;

}  // namespace attention
}  // namespace qsa
