// bf16 in pairs, as the instruction of AVX512_BF16 multiplies them. It adds in f32, to nearest, and takes subnormals for
// zeros, as NUM-5 allows. Weights are rounded to bf16 as NUM-2 allows; their sum is that of the rounded ones.
#pragma once

#include <cstring>

#include "products.hpp"

namespace {

template <>
struct Products<BFloat> {
    using Query = BFloat;
    using Weight = BFloat;
    using Reg = __m512bh;
    static constexpr std::size_t width = 32;
    static constexpr std::size_t tokens = 2;

    static Reg load(const BFloat* p) { return (Reg)_mm512_loadu_si512(p); }
    static Reg load(const BFloat* p, std::size_t n) { return (Reg)_mm512_maskz_loadu_epi16(mask(n), p); }
    static Simd::Reg plus_product(Simd::Reg c, Reg a, Reg b) { return _mm512_dpbf16_ps(c, a, b); }

    // Two tokens side by side in every lane; zeros where there is only one left.
    static void load_values(const BFloat* const* values, std::size_t tokens_left, std::size_t column, std::size_t there, Reg& low,
                            Reg& high) {
        const __mmask32 columns = mask(there);
        const __m512i a = _mm512_maskz_loadu_epi16(columns, values[0] + column);
        const __m512i b = tokens_left > 1 ? _mm512_maskz_loadu_epi16(columns, values[1] + column) : _mm512_setzero_si512();
        const __m512i first = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8,  //
                                               39, 7, 38, 6, 37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        low = (Reg)_mm512_permutex2var_epi16(a, first, b);
        high = (Reg)_mm512_permutex2var_epi16(a, _mm512_add_epi16(first, _mm512_set1_epi16(16)), b);
    }
    static Reg weight(const BFloat* at) {
        int both;
        std::memcpy(&both, at, sizeof both);
        return (Reg)_mm512_set1_epi32(both);
    }
    static Simd::Reg keep(BFloat* at, Simd::Reg weights) {
        const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(weights);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(at), rounded);
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16));
    }

private:
    static __mmask32 mask(std::size_t n) { return n >= width ? 0xffffffffu : (1u << n) - 1u; }
};

}  // namespace
