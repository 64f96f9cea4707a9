// Plain C++ in groups of eight, for the compiler to vectorize as it can; conversions by hand.
#pragma once

#include <cmath>
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

inline float from_bits(std::uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

inline std::uint32_t to_bits(float x) {
    std::uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

inline float to_float(float x) { return x; }

inline float to_float(BFloat x) { return from_bits(static_cast<std::uint32_t>(x.bits) << 16); }

inline float to_float(Half x) {
    const std::uint32_t sign = static_cast<std::uint32_t>(x.bits & 0x8000u) << 16;
    const std::uint32_t exponent = (x.bits >> 10) & 0x1fu;
    const std::uint32_t fraction = x.bits & 0x3ffu;
    if (exponent == 0x1f) return from_bits(sign | 0x7f800000u | (fraction << 13));
    if (exponent != 0) return from_bits(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
}

inline void from_float(float x, float& y) { y = x; }

inline void from_float(float x, BFloat& y) {
    const std::uint32_t bits = to_bits(x);
    if (x != x)
        y.bits = static_cast<std::uint16_t>((bits >> 16) | 0x40u);
    else
        y.bits = static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline void from_float(float x, Half& y) {
    const std::uint32_t bits = to_bits(x);
    const std::uint32_t sign = (bits >> 16) & 0x8000u;
    const std::uint32_t magnitude = bits & 0x7fffffffu;
    std::uint32_t result;
    if (magnitude > 0x7f800000u) {
        result = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
    } else if (magnitude >= 0x477ff000u) {  // 65520 and above round to infinity
        result = 0x7c00u;
    } else if (magnitude >= 0x38800000u) {  // normal numbers of f16
        result = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    } else {  // multiples of 2^-24: adding 0.5 lets the f32 adder round to nearest even
        result = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
    }
    y.bits = static_cast<std::uint16_t>(sign | result);
}

struct Simd {
    static constexpr std::size_t width = 8;
    static constexpr int accumulators = 4;
    struct Reg {
        float lane[width];
    };
    struct Squares {
        double lane[width];
    };

    template <class F>
    static Reg each(F f) {
        Reg x;
        for (std::size_t i = 0; i < width; ++i) x.lane[i] = f(i);
        return x;
    }
    static Reg broadcast(float x) {
        return each([&](std::size_t) { return x; });
    }
    static Reg add(const Reg& a, const Reg& b) {
        return each([&](std::size_t i) { return a.lane[i] + b.lane[i]; });
    }
    static Reg mul(const Reg& a, const Reg& b) {
        return each([&](std::size_t i) { return a.lane[i] * b.lane[i]; });
    }
    static Reg div(const Reg& a, const Reg& b) {
        return each([&](std::size_t i) { return a.lane[i] / b.lane[i]; });
    }
    static Reg plus_product(const Reg& c, const Reg& a, const Reg& b) {
        return each([&](std::size_t i) { return c.lane[i] + a.lane[i] * b.lane[i]; });
    }
    static Reg minus_product(const Reg& c, const Reg& a, const Reg& b) {
        return each([&](std::size_t i) { return c.lane[i] - a.lane[i] * b.lane[i]; });
    }

    static Reg max(const Reg& a, const Reg& b) {
        return each([&](std::size_t i) { return a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]; });
    }
    // A bit for each lane in which a > b; none for a NaN.
    static unsigned greater(const Reg& a, const Reg& b) {
        unsigned mask = 0;
        for (std::size_t i = 0; i < width; ++i) mask |= static_cast<unsigned>(a.lane[i] > b.lane[i]) << i;
        return mask;
    }
    static float largest(const Reg& x) {
        float most = x.lane[0];
        for (std::size_t i = 1; i < width; ++i) most = x.lane[i] > most ? x.lane[i] : most;
        return most;
    }
    static float sum(const Reg& x) {
        float total = 0;
        for (std::size_t i = 0; i < width; ++i) total += x.lane[i];
        return total;
    }
    // The sum of each of four, times a factor.
    static void store_sums(const Reg (&x)[4], float by, float* to) {
        for (std::size_t i = 0; i < 4; ++i) to[i] = by * sum(x[i]);
    }

    // Rows become columns.
    static void transpose(Reg (&x)[width]) {
        for (std::size_t i = 0; i < width; ++i)
            for (std::size_t j = 0; j < i; ++j) {
                const float held = x[i].lane[j];
                x[i].lane[j] = x[j].lane[i];
                x[j].lane[i] = held;
            }
    }

    // e to the x for x at or below zero; 0 where the result would be subnormal.
    static Reg exp(const Reg& x) {
        return each([&](std::size_t i) { return x.lane[i] > -87.3f ? std::exp(x.lane[i]) : 0.0f; });
    }

    static Squares no_squares() { return {}; }
    static void add_squares(Squares& s, const Reg& x) {
        for (std::size_t i = 0; i < width; ++i)
            s.lane[i] += static_cast<double>(x.lane[i]) * static_cast<double>(x.lane[i]);
    }
    static double total(const Squares& s) {
        double sum = 0;
        for (std::size_t i = 0; i < width; ++i) sum += s.lane[i];
        return sum;
    }

    template <class T>
    static Reg load(const T* p) {
        return each([&](std::size_t i) { return to_float(p[i]); });
    }
    template <class T>
    static Reg load(const T* p, std::size_t n) {
        return each([&](std::size_t i) { return i < n ? to_float(p[i]) : 0.0f; });
    }
    template <class T>
    static void store(T* p, const Reg& x) {
        for (std::size_t i = 0; i < width; ++i) from_float(x.lane[i], p[i]);
    }
    template <class T>
    static void store(T* p, const Reg& x, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) from_float(x.lane[i], p[i]);
    }
    template <class T>
    static void stream(T* p, const Reg& x) {
        store(p, x);
    }
    static void fence() {}
};

}  // namespace
