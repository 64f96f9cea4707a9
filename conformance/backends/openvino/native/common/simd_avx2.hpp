// Eight f32 lanes; f16 and bf16 are converted in registers.
#pragma once

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace {

struct Half {
    std::uint16_t bits;
};
struct BFloat {
    std::uint16_t bits;
};

struct Simd {
    using Reg = __m256;
    struct Squares {
        __m256d low, high;
    };
    static constexpr std::size_t width = 8;
    static constexpr int accumulators = 8;

    static Reg broadcast(float x) { return _mm256_set1_ps(x); }
    static Reg add(Reg a, Reg b) { return _mm256_add_ps(a, b); }
    static Reg mul(Reg a, Reg b) { return _mm256_mul_ps(a, b); }
    static Reg div(Reg a, Reg b) { return _mm256_div_ps(a, b); }
    static Reg plus_product(Reg c, Reg a, Reg b) { return _mm256_fmadd_ps(a, b, c); }
    static Reg minus_product(Reg c, Reg a, Reg b) { return _mm256_fnmadd_ps(a, b, c); }

    static Reg max(Reg a, Reg b) { return _mm256_max_ps(a, b); }
    // A bit for each lane in which a > b; none for a NaN.
    static unsigned greater(Reg a, Reg b) {
        return static_cast<unsigned>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)));
    }
    static float largest(Reg x) {
        float lanes[8];
        _mm256_storeu_ps(lanes, x);
        float most = lanes[0];
        for (int i = 1; i < 8; ++i) most = lanes[i] > most ? lanes[i] : most;
        return most;
    }
    static float sum(Reg x) {
        float lanes[8];
        _mm256_storeu_ps(lanes, x);
        return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
    }
    // The sum of each of four, times a factor.
    static void store_sums(const Reg (&x)[4], float by, float* to) {
        const Reg c = _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
        _mm_storeu_ps(to, _mm_mul_ps(_mm_set1_ps(by), _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1))));
    }

    // Rows become columns.
    static void transpose(Reg (&x)[8]) {
        Reg t[8];
        for (int i = 0; i < 8; i += 2) {
            t[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
            t[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            x[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
            x[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
            x[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
            x[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
        }
        for (int i = 0; i < 4; ++i) {
            const Reg low = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
            x[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
            x[i] = low;
        }
    }

    // e to the x for x at or below zero: within 2 units of round-off; 0 where the result would be subnormal.
    static Reg exp(Reg x) {
        const Reg n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504f)), 8);
        Reg r = _mm256_fnmadd_ps(n, _mm256_set1_ps(0.693145752f), x);
        r = _mm256_fnmadd_ps(n, _mm256_set1_ps(1.42860677e-6f), r);
        Reg y = _mm256_set1_ps(1.98756915e-4f);
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.39819995e-3f));
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(8.33345186e-3f));
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(4.16657962e-2f));
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.66666657e-1f));
        y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(5.0e-1f));
        y = _mm256_fmadd_ps(_mm256_mul_ps(r, r), y, _mm256_add_ps(r, _mm256_set1_ps(1.0f)));
        const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
        const Reg result = _mm256_mul_ps(y, _mm256_castsi256_ps(power));
        return _mm256_and_ps(result, _mm256_cmp_ps(x, _mm256_set1_ps(-87.3f), _CMP_GT_OQ));
    }

    static Squares no_squares() { return {_mm256_setzero_pd(), _mm256_setzero_pd()}; }
    static void add_squares(Squares& s, Reg x) {
        const __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        const __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
        s.low = _mm256_fmadd_pd(low, low, s.low);
        s.high = _mm256_fmadd_pd(high, high, s.high);
    }
    static double total(const Squares& s) {
        double lanes[4];
        _mm256_storeu_pd(lanes, _mm256_add_pd(s.low, s.high));
        return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
    }

    static Reg load(const float* p) { return _mm256_loadu_ps(p); }
    static Reg load(const Half* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
    static Reg load(const BFloat* p) { return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

    static Reg load(const float* p, std::size_t n) { return _mm256_maskload_ps(p, mask(n)); }
    static Reg load(const Half* p, std::size_t n) { return _mm256_cvtph_ps(gather(p, n)); }
    static Reg load(const BFloat* p, std::size_t n) { return widen(gather(p, n)); }

    static void store(float* p, Reg x) { _mm256_storeu_ps(p, x); }
    static void store(Half* p, Reg x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), half(x)); }
    static void store(BFloat* p, Reg x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(x)); }

    static void store(float* p, Reg x, std::size_t n) { _mm256_maskstore_ps(p, mask(n), x); }
    static void store(Half* p, Reg x, std::size_t n) { scatter(p, half(x), n); }
    static void store(BFloat* p, Reg x, std::size_t n) { scatter(p, narrow(x), n); }

    // Past the caches, at aligned addresses; `fence` before others may look.
    static void stream(float* p, Reg x) { _mm256_stream_ps(p, x); }
    static void stream(Half* p, Reg x) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), half(x)); }
    static void stream(BFloat* p, Reg x) { _mm_stream_si128(reinterpret_cast<__m128i*>(p), narrow(x)); }
    static void fence() { _mm_sfence(); }

private:
    static __m256i mask(std::size_t n) {
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), lane);
    }
    static __m128i gather(const void* p, std::size_t n) {
        std::uint16_t lanes[8] = {};
        std::memcpy(lanes, p, n * sizeof(std::uint16_t));
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(lanes));
    }
    static void scatter(void* p, __m128i x, std::size_t n) {
        std::uint16_t lanes[8];
        _mm_storeu_si128(reinterpret_cast<__m128i*>(lanes), x);
        std::memcpy(p, lanes, n * sizeof(std::uint16_t));
    }
    static Reg widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
    static __m128i half(Reg x) { return _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    // To nearest even; a NaN stays a NaN.
    static __m128i narrow(Reg x) {
        const __m256i bits = _mm256_castps_si256(x);
        const __m256i top = _mm256_srli_epi32(bits, 16);
        const __m256i odd = _mm256_and_si256(top, _mm256_set1_epi32(1));
        const __m256i round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
        const __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, round), 16);
        const __m256i quiet = _mm256_or_si256(top, _mm256_set1_epi32(0x40));
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
        const __m256i result = _mm256_blendv_epi8(rounded, quiet, nan);
        return _mm_packus_epi32(_mm256_castsi256_si128(result), _mm256_extracti128_si256(result, 1));
    }
};

}  // namespace
