// Products of a few rows with many. Every product is summed over its elements in order, one fused step each, so that its
// bits depend neither on the tile it falls into nor on the number of workers. Included by files that have defined `Simd`.
#pragma once

#include <cstddef>
#include <cstdint>

namespace {

constexpr std::size_t panel_rows = Simd::width;  // rows that become the lanes of one panel

// As many registers as there are: MR*2 sums, two lanes of a panel, one broadcast.
constexpr int tile_rows = Simd::width == 16 ? 12 : Simd::accumulators == 8 ? 6 : 2;

// `count` rows of `width` elements, at most `panel_rows`, as a panel [width][panel_rows] of f32; other lanes are zero.
// Rows of the panel that comes `next`, if there are any, are asked for on the way.
template <class T>
inline void pack(const T* const* rows, std::size_t count, std::size_t width, float* panel, const T* const* next = nullptr) {
    constexpr std::size_t w = Simd::width;
    typename Simd::Reg x[w];
    std::size_t j = 0;
    for (; j + w <= width; j += w) {
        for (std::size_t i = 0; i < w; ++i) {
            x[i] = i < count ? Simd::load(rows[i] + j) : Simd::broadcast(0.0f);
            if (next != nullptr && i < count && j * sizeof(T) % 64 == 0) __builtin_prefetch(next[i] + j);
        }
        Simd::transpose(x);
        for (std::size_t i = 0; i < w; ++i) Simd::store(panel + (j + i) * w, x[i]);
    }
    if (j < width) {
        for (std::size_t i = 0; i < w; ++i) x[i] = i < count ? Simd::load(rows[i] + j, width - j) : Simd::broadcast(0.0f);
        Simd::transpose(x);
        for (std::size_t i = 0; j + i < width; ++i) Simd::store(panel + (j + i) * w, x[i]);
    }
}

// dots[i][0 .. 2*width-1] = row i . both panels, for MR rows that stand `width` floats apart; dots stand `stride` apart.
template <int MR>
inline void products(const float* rows, const float* panels, std::size_t width, float* dots, std::size_t stride) {
    constexpr std::size_t w = Simd::width;
    typename Simd::Reg low[MR], high[MR];
    for (int i = 0; i < MR; ++i) low[i] = high[i] = Simd::broadcast(0.0f);
    const float* other = panels + width * w;
    for (std::size_t k = 0; k < width; ++k) {
        const auto a = Simd::load(panels + k * w);
        const auto b = Simd::load(other + k * w);
        for (int i = 0; i < MR; ++i) {
            const auto x = Simd::broadcast(rows[static_cast<std::size_t>(i) * width + k]);
            low[i] = Simd::plus_product(low[i], x, a);
            high[i] = Simd::plus_product(high[i], x, b);
        }
    }
    for (int i = 0; i < MR; ++i) {
        Simd::store(dots + static_cast<std::size_t>(i) * stride, low[i]);
        Simd::store(dots + static_cast<std::size_t>(i) * stride + w, high[i]);
    }
}

template <int MR>
inline void products_of_rest(const float* rows, std::size_t count, const float* panels, std::size_t width, float* dots,
                             std::size_t stride) {
    if constexpr (MR > 0) {
        if (count == MR) return products<MR>(rows, panels, width, dots, stride);
        products_of_rest<MR - 1>(rows, count, panels, width, dots, stride);
    }
}

// The same for any number of rows.
inline void products(const float* rows, std::size_t count, const float* panels, std::size_t width, float* dots,
                     std::size_t stride) {
    std::size_t i = 0;
    for (; i + tile_rows <= count; i += tile_rows)
        products<tile_rows>(rows + i * width, panels, width, dots + i * stride, stride);
    products_of_rest<tile_rows - 1>(rows + i * width, count - i, panels, width, dots + i * stride, stride);
}

}  // namespace
