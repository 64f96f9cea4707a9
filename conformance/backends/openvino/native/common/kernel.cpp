#include "kernel.hpp"

#include <initializer_list>

namespace qsa {

bool runs_here(Isa isa) {
#ifdef QSA_X86
    // Every CPU with AVX2 and FMA converts f16 as well.
    if (isa == Isa::avx2) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (isa == Isa::avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
#ifdef QSA_AVX512_BF16
    if (isa == Isa::avx512_bf16) return runs_here(Isa::avx512) && __builtin_cpu_supports("avx512bf16");
#endif
    return isa == Isa::automatic || isa == Isa::portable;
}

Isa best_isa() {
    static const Isa best = [] {
        for (const Isa isa : {Isa::avx512_bf16, Isa::avx512, Isa::avx2})
            if (runs_here(isa)) return isa;
        return Isa::portable;
    }();
    return best;
}

std::int64_t key_length(const void* lengths, LengthType type, std::size_t count, std::size_t n) {
    const std::size_t i = count == 1 ? 0 : n;  // LEN-2
    return type == LengthType::i32 ? static_cast<const std::int32_t*>(lengths)[i]
                                   : static_cast<const std::int64_t*>(lengths)[i];
}

}  // namespace qsa
