// What the kernels of all operations share: types, instruction sets, threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace qsa {

enum class ElementType { f32, f16, bf16 };
enum class LengthType { i32, i64 };

// Which code computes the blocks. `automatic` takes the widest that this CPU runs.
enum class Isa { automatic, portable, avx2, avx512, avx512_bf16 };

// key_length of sequence n, as it was given.
std::int64_t key_length(const void* lengths, LengthType type, std::size_t count, std::size_t n);

// Runs `work(state, worker)` for workers 0 .. count-1, in any order, and returns when all have returned.
class Workers {
public:
    virtual ~Workers() = default;
    virtual std::size_t limit() const = 0;
    virtual void run(std::size_t count, void (*work)(void* state, std::size_t worker), void* state) const = 0;
};

// What `automatic` means on this machine.
Isa best_isa();
bool runs_here(Isa isa);

// Bytes of one element.
constexpr std::size_t size_of(ElementType type) { return type == ElementType::f32 ? 4 : 2; }
constexpr std::size_t ceil_div(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace qsa
