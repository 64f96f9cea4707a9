// The arithmetic of QSAPrepare on raw pointers, free of OpenVINO so that it can be tested and timed alone.
//
// Roofline. A call must move, with s = bytes of T: the new keys (N*L*Di*s, read once), the cos and sin rows of the
// first token of every finished block (2*Dr*s a block), the finished block keys (Di*s a block, written), the history
// (Di*s a row, read and written) and the carried state. About 2 operations go with every element read, so the call is
// bound by memory: the limit is the bandwidth of a plain copy of the keys with the same threads, where copying X bytes
// moves 2*X.
//
// Reached, as a share of that bandwidth, copy and kernel timed in turn in one process, fastest tenth of each, on two
// cores of a Sapphire Rapids server under other load; L = 32768, Di = 128, Dr = 64, r = 4:
//     f32 0.88 on one thread, 0.89 on two;  f16 0.90 and 0.81;  bf16 0.80 and 0.85
// The rest is not arithmetic (from the L2 cache a block takes a third of the time). Four of five bytes are read, and one
// core reads no faster while it writes less. For 2^20 tokens, which come from memory, the share falls to 0.6.
// On two cores of a Zen 4 server, f32: 0.91 on one thread and 0.89 on two; 2^18 tokens 0.82 and 0.67, 2^20 0.78 and 0.57.
// There the rows of cos and sin are the rest: a quarter of either table is read, and the hardware fetches more of it;
// without rotation 2^20 tokens reach 0.93 and 0.81. Other orders and hints of prefetching them gained nothing, nor did
// means of eight blocks before their roots.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../common/kernel.hpp"

namespace qsa {

// One call. All arrays are dense and row-major; arrays without elements may be null.
struct Problem {
    ElementType element_type;
    LengthType length_type;
    std::size_t N, L, Di, Dr, Bp, B;  // Dr = 0: rotation off
    std::size_t r;                    // key_block_size, at least 2
    double epsilon;

    const void* raw_index_keys;            // [N, L, Di]
    const void* past_block_index_keys;     // [N, Bp, Di]
    const void* key_length;                // [length_count]
    std::size_t length_count;              // N, or 1 for all sequences
    const void* rope_cos;                  // [N, L, Dr]
    const void* rope_sin;                  // [N, L, Dr]
    const void* k_norm_weight;             // [Di]; null: normalization off
    const void* past_incomplete_raw_keys;  // [N, r-1, Di]
    const void* past_incomplete_rope;      // [N, 2*Dr]

    void* block_index_keys;             // [N, B, Di]
    void* present_incomplete_raw_keys;  // [N, r-1, Di]
    void* present_incomplete_rope;      // [N, 2*Dr]
};

// Where the tokens of one sequence stand: the contract's S, pad, c, q, c' and q'.
struct Sequence {
    std::size_t length, pad, blocks_before, open_before, blocks_after, open_after;
};

// Sequence n of the problem; its key_length must not be negative.
Sequence sequence(const Problem& problem, std::size_t n);

struct Options {
    Isa isa = Isa::automatic;
    // Enough work for a tile to hide the cost of fetching it, little enough for an even share and for the L2 cache.
    std::size_t tile_bytes = std::size_t{128} << 10;
    // A worker for every so many bytes that move: waking one for less takes longer than the work.
    std::size_t worker_bytes = std::size_t{256} << 10;
    // New block keys of more bytes than this go past the caches: whoever reads them next finds them in memory anyway,
    // and the line that a store through the cache first reads need not move. A plain copy decides likewise.
    std::size_t stream_bytes = std::size_t{32} << 20;
};

// Computes all outputs. Rows that the contract leaves unspecified become zero, so that equal inputs give equal bits.
// The problem must have passed the operation's checks: nothing is verified here. Two workers never write to the same
// row, and every block is computed by one worker in token order, so the result depends neither on the number of
// workers nor on how a stream was split.
void prepare(const Problem& problem, const Workers& workers, const Options& options = {});

// Bytes that `prepare` must move for this problem, read and written (the roofline above).
std::size_t bytes_to_move(const Problem& problem);

// A run of consecutive blocks of one sequence, as the code for one instruction set takes it.
struct Blocks {
    std::size_t count, r, Di, Dr;
    double epsilon;
    const void* carried_rows;  // first `carried` raw keys of the first block
    std::size_t carried;       // 0: the first block begins with a new token
    const void* carried_cos;   // rope of the first block when carried > 0
    const void* carried_sin;
    const void* rows;          // new rows; token t of the run is new row t - carried
    const void* cos;           // cos and sin rows of the same tokens
    const void* sin;
    const void* weight;        // null: normalization off
    std::size_t key_bytes_ahead;    // how far ahead keys are asked for; 0: the hardware does it
    std::size_t rope_blocks_ahead;  // the same for rows of cos and sin, at least 1
    bool stream;               // store past the caches where the rows' alignment allows it
    void* keys;                // [count, Di]
    float* scratch;            // at least scratch_size(Di) floats
};

// Room for whole registers behind the last element.
constexpr std::size_t scratch_size(std::size_t Di) { return Di + 32; }

using BlocksFunction = void (*)(const Blocks&, ElementType);
void blocks_portable(const Blocks& blocks, ElementType type);
void blocks_avx2(const Blocks& blocks, ElementType type);
void blocks_avx512(const Blocks& blocks, ElementType type);

}  // namespace qsa
