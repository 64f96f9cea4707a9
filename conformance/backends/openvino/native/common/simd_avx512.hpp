// Sixteen f32 lanes; f16 and bf16 are converted in registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace {

struct Half {
    std::uint16_t bits;
};
struct BFloat {
    std::uint16_t bits;
};

struct Simd {
    using Reg = __m512;
    struct Squares {
        __m512d low, high;
    };
    static constexpr std::size_t width = 16;
    static constexpr int accumulators = 16;

    static Reg broadcast(float x) { return _mm512_set1_ps(x); }
    static Reg add(Reg a, Reg b) { return _mm512_add_ps(a, b); }
    static Reg mul(Reg a, Reg b) { return _mm512_mul_ps(a, b); }
    static Reg div(Reg a, Reg b) { return _mm512_div_ps(a, b); }
    static Reg plus_product(Reg c, Reg a, Reg b) { return _mm512_fmadd_ps(a, b, c); }
    static Reg minus_product(Reg c, Reg a, Reg b) { return _mm512_fnmadd_ps(a, b, c); }

    static Reg max(Reg a, Reg b) { return _mm512_max_ps(a, b); }
    // A bit for each lane in which a > b; none for a NaN.
    static unsigned greater(Reg a, Reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ); }
    static float largest(Reg x) { return _mm512_reduce_max_ps(x); }
    static float sum(Reg x) { return _mm512_reduce_add_ps(x); }
    // The sum of each of four, times a factor.
    static void store_sums(const Reg (&x)[4], float by, float* to) {
        const Reg a = _mm512_add_ps(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
        const Reg b = _mm512_add_ps(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
        const Reg c = _mm512_add_ps(pairs<0x44>(a, b), pairs<0xee>(a, b));
        const __m256 d = _mm256_add_ps(_mm512_castps512_ps256(c), _mm512_extractf32x8_ps(c, 1));
        _mm_storeu_ps(to, _mm_mul_ps(_mm_set1_ps(by), _mm_add_ps(_mm256_castps256_ps128(d), _mm256_extractf128_ps(d, 1))));
    }

    // Rows become columns.
    static void transpose(Reg (&x)[16]) {
        Reg t[16];
        for (int i = 0; i < 16; i += 2) {
            t[i] = _mm512_unpacklo_ps(x[i], x[i + 1]);
            t[i + 1] = _mm512_unpackhi_ps(x[i], x[i + 1]);
        }
        for (int i = 0; i < 16; i += 4) {
            x[i] = pairs<0x44>(t[i], t[i + 2]);
            x[i + 1] = pairs<0xee>(t[i], t[i + 2]);
            x[i + 2] = pairs<0x44>(t[i + 1], t[i + 3]);
            x[i + 3] = pairs<0xee>(t[i + 1], t[i + 3]);
        }
        for (int i = 0; i < 4; ++i) {
            t[i] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0x88);
            t[i + 4] = _mm512_shuffle_f32x4(x[i], x[i + 4], 0xdd);
            t[i + 8] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0x88);
            t[i + 12] = _mm512_shuffle_f32x4(x[i + 8], x[i + 12], 0xdd);
        }
        for (int i = 0; i < 8; ++i) {
            x[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
            x[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
        }
    }

    // e to the x for x at or below zero: within 2 units of round-off; 0 where the result would be subnormal.
    static Reg exp(Reg x) {
        const Reg n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
        Reg r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693145752f), x);
        r = _mm512_fnmadd_ps(n, _mm512_set1_ps(1.42860677e-6f), r);
        Reg y = _mm512_set1_ps(1.98756915e-4f);
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.39819995e-3f));
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(8.33345186e-3f));
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(4.16657962e-2f));
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.66666657e-1f));
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(5.0e-1f));
        y = _mm512_fmadd_ps(_mm512_mul_ps(r, r), y, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
        return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(-87.3f), _CMP_GT_OQ), y, n);
    }

    static Squares no_squares() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
    static void add_squares(Squares& s, Reg x) {
        const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        const __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        s.low = _mm512_fmadd_pd(low, low, s.low);
        s.high = _mm512_fmadd_pd(high, high, s.high);
    }
    static double total(const Squares& s) { return _mm512_reduce_add_pd(_mm512_add_pd(s.low, s.high)); }

    static Reg load(const float* p) { return _mm512_loadu_ps(p); }
    static Reg load(const Half* p) { return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
    static Reg load(const BFloat* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

    static Reg load(const float* p, std::size_t n) { return _mm512_maskz_loadu_ps(mask(n), p); }
    static Reg load(const Half* p, std::size_t n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p)); }
    static Reg load(const BFloat* p, std::size_t n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }

    static void store(float* p, Reg x) { _mm512_storeu_ps(p, x); }
    static void store(Half* p, Reg x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), half(x)); }
    static void store(BFloat* p, Reg x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }

    static void store(float* p, Reg x, std::size_t n) { _mm512_mask_storeu_ps(p, mask(n), x); }
    static void store(Half* p, Reg x, std::size_t n) { _mm256_mask_storeu_epi16(p, mask(n), half(x)); }
    static void store(BFloat* p, Reg x, std::size_t n) { _mm256_mask_storeu_epi16(p, mask(n), narrow(x)); }

    // Past the caches, at aligned addresses; `fence` before others may look.
    static void stream(float* p, Reg x) { _mm512_stream_ps(p, x); }
    static void stream(Half* p, Reg x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), half(x)); }
    static void stream(BFloat* p, Reg x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
    static void fence() { _mm_sfence(); }

private:
    template <int Which>
    static Reg pairs(Reg a, Reg b) {
        return _mm512_shuffle_ps(a, b, Which);
    }
    static __mmask16 mask(std::size_t n) { return static_cast<__mmask16>((1u << n) - 1u); }
    static Reg widen(__m256i x) {
        return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16));
    }
    static __m256i half(Reg x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // To nearest even; a NaN stays a NaN. The instruction for it (AVX512_BF16) would flush subnormals.
    static __m256i narrow(Reg x) {
        const __m512i bits = _mm512_castps_si512(x);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
        const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        const __m512i safe = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
        const __m512i upper_halves = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  //
                                                      31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        return _mm512_castsi512_si256(_mm512_permutexvar_epi16(upper_halves, safe));
    }
};

}  // namespace
