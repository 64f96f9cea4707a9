// How an instruction set multiplies numbers of a type, in terms of `Simd`, which the including file has defined.
#pragma once

#include <cstddef>

namespace {

constexpr std::size_t pair = 2 * Simd::width;  // columns of the weighted sum that are worked on at a time

// Of type T: converted to f32, one token of the weighted sum at a time. An instruction set with
// products of T itself defines it for that type.
template <class T>
struct Products {
    using Query = float;
    using Weight = float;
    using Reg = Simd::Reg;
    static constexpr std::size_t width = Simd::width;  // elements of a row in one register
    static constexpr std::size_t tokens = 1;           // of a weighted sum at a time

    template <class From>
    static Reg load(const From* p) {
        return Simd::load(p);
    }
    template <class From>
    static Reg load(const From* p, std::size_t n) {
        return Simd::load(p, n);
    }
    static Simd::Reg plus_product(Simd::Reg c, Reg a, Reg b) { return Simd::plus_product(c, a, b); }

    // Two registers of columns of a value, of which `there` are left in its row.
    static void load_values(const T* const* values, std::size_t, std::size_t column, std::size_t there, Reg& low, Reg& high) {
        const T* from = values[0] + column;
        if (there >= pair) {
            low = Simd::load(from);
            high = Simd::load(from + width);
        } else {
            low = there >= width ? Simd::load(from) : Simd::load(from, there);
            high = there > width ? Simd::load(from + width, there - width) : Simd::broadcast(0.0f);
        }
    }
    static Reg weight(const Weight* at) { return Simd::broadcast(*at); }
    // Puts weights down as they will be multiplied, and gives what they became.
    static Simd::Reg keep(Weight* at, Simd::Reg weights) {
        Simd::store(at, weights);
        return weights;
    }
};

}  // namespace
