#include "kernel.hpp"

namespace qsa {

bool runs_here(Isa isa) {
#ifdef QSA_X86
    // Every CPU with AVX2 and FMA converts f16 as well.
    if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == Isa::avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return isa == Isa::automatic || isa == Isa::portable;
}

Isa best_isa() {
    static const Isa best = runs_here(Isa::avx512) ? Isa::avx512 : runs_here(Isa::avx2) ? Isa::avx2 : Isa::portable;
    return best;
}

std::int64_t key_length(const void* lengths, LengthType type, std::size_t count, std::size_t n) {
    const std::size_t i = count == 1 ? 0 : n;  // LEN-2
    return type == LengthType::i32 ? static_cast<const std::int32_t*>(lengths)[i]
                                   : static_cast<const std::int64_t*>(lengths)[i];
}

}  // namespace qsa
