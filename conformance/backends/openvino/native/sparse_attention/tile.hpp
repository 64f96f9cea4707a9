// Attention of a few heads to a list of tokens in terms of `Simd`, which the including file has defined for its
// instruction set. Everything has internal linkage.
#pragma once

#include <algorithm>
#include <limits>

#include "../common/tiles.hpp"
#include "kernel.hpp"

namespace {

constexpr std::size_t pair = 2 * Simd::width;

template <class T>
void load_row(const T* from, std::size_t width, float* to) {
    std::size_t j = 0;
    for (; j + Simd::width <= width; j += Simd::width) Simd::store(to + j, Simd::load(from + j));
    if (j < width) Simd::store(to + j, Simd::load(from + j, width - j), width - j);
}

// ATT-1: logits of a chunk of tokens, scaled; lanes beyond the last token are minus infinity.
template <class T>
void compute_logits(const qsa::attention::Tile& tile, const T* keys, const T* const* values, std::size_t first,
                    std::size_t count) {
    constexpr std::size_t w = Simd::width;
    const std::size_t E = tile.problem->E;
    const auto scale = Simd::broadcast(tile.scale);
    for (std::size_t t = 0; t < count; t += pair) {
        for (std::size_t half = 0; half < 2; ++half) {
            const T *from[w], *next[w];
            const std::size_t begin = t + half * w, there = begin < count ? std::min(w, count - begin) : 0;
            for (std::size_t i = 0; i < there; ++i) {
                const std::size_t at = first + begin + i;
                from[i] = keys + tile.rows[at] * E;
                next[i] = keys + tile.rows[std::min(at + pair, tile.tokens - 1)] * E;
            }
            pack<T>(from, there, E, tile.panels + half * E * w, next, values + begin);
        }
        products(tile.queries, tile.heads, tile.panels, E, tile.logits + t, tile.chunk);
        for (std::size_t h = 0; h < tile.heads; ++h) {
            float* logits = tile.logits + h * tile.chunk + t;
            Simd::store(logits, Simd::mul(Simd::load(logits), scale));
            Simd::store(logits + w, Simd::mul(Simd::load(logits + w), scale));
            for (std::size_t i = count - t; i < pair; ++i) logits[i] = -std::numeric_limits<float>::infinity();
        }
    }
}

// Logits become exp(logit - maximum); what was summed before is rescaled to the new maximum.
inline void exponentials(const qsa::attention::Tile& tile, std::size_t h, std::size_t count, std::size_t width) {
    constexpr std::size_t w = Simd::width;
    float* logits = tile.logits + h * tile.chunk;
    auto most = Simd::load(logits);
    for (std::size_t t = w; t < count; t += w) most = Simd::max(most, Simd::load(logits + t));
    const float before = tile.largest[h], now = std::max(before, Simd::largest(most));
    const auto maximum = Simd::broadcast(now);
    auto total = Simd::broadcast(0.0f);
    for (std::size_t t = 0; t < count; t += w) {
        const auto weight = Simd::exp(Simd::add(Simd::load(logits + t), Simd::mul(maximum, Simd::broadcast(-1.0f))));
        Simd::store(logits + t, weight);
        total = Simd::add(total, weight);
    }
    if (now > before) {
        alignas(64) float factor[w];
        Simd::store(factor, Simd::exp(Simd::broadcast(before - now)));
        tile.sum[h] *= factor[0];
        float* weighted = tile.weighted + h * width;
        const auto by = Simd::broadcast(factor[0]);
        for (std::size_t j = 0; j < width; j += w) Simd::store(weighted + j, Simd::mul(Simd::load(weighted + j), by));
        tile.largest[h] = now;
    }
    tile.sum[h] += Simd::sum(total);
}

template <class T>
inline void load_pair(const T* from, std::size_t count, typename Simd::Reg& low, typename Simd::Reg& high) {
    constexpr std::size_t w = Simd::width;
    if (count >= 2 * w) {
        low = Simd::load(from);
        high = Simd::load(from + w);
    } else {
        low = count >= w ? Simd::load(from) : Simd::load(from, count);
        high = count > w ? Simd::load(from + w, count - w) : Simd::broadcast(0.0f);
    }
}

// weighted[i] += sum over the chunk of weight[i][t] * value[t], for MR heads and two registers of columns.
template <int MR, class T>
void add_values(const qsa::attention::Tile& tile, const T* const* values, std::size_t head, std::size_t column,
                std::size_t count, std::size_t width) {
    constexpr std::size_t w = Simd::width;
    const std::size_t there = tile.problem->Ev - column;
    typename Simd::Reg low[MR], high[MR];
    float* weighted = tile.weighted + head * width + column;
    for (int i = 0; i < MR; ++i) {
        low[i] = Simd::load(weighted + static_cast<std::size_t>(i) * width);
        high[i] = Simd::load(weighted + static_cast<std::size_t>(i) * width + w);
    }
    const float* weights = tile.logits + head * tile.chunk;
    for (std::size_t t = 0; t < count; ++t) {
        typename Simd::Reg a, b;
        load_pair(values[t] + column, there, a, b);
        for (int i = 0; i < MR; ++i) {
            const auto x = Simd::broadcast(weights[static_cast<std::size_t>(i) * tile.chunk + t]);
            low[i] = Simd::plus_product(low[i], x, a);
            high[i] = Simd::plus_product(high[i], x, b);
        }
    }
    for (int i = 0; i < MR; ++i) {
        Simd::store(weighted + static_cast<std::size_t>(i) * width, low[i]);
        Simd::store(weighted + static_cast<std::size_t>(i) * width + w, high[i]);
    }
}

template <int MR, class T>
void add_values_of_rest(const qsa::attention::Tile& tile, const T* const* values, std::size_t head, std::size_t heads,
                        std::size_t column, std::size_t count, std::size_t width) {
    if constexpr (MR > 0) {
        if (heads == MR) return add_values<MR>(tile, values, head, column, count, width);
        add_values_of_rest<MR - 1>(tile, values, head, heads, column, count, width);
    }
}

template <class T>
void compute(const qsa::attention::Tile& tile) {
    const qsa::attention::Problem& p = *tile.problem;
    const std::size_t width = qsa::attention::padded(p.Ev), kv = tile.first_head / (p.H / p.Hkv);
    const T* query = static_cast<const T*>(p.query);
    for (std::size_t h = 0; h < tile.heads; ++h)
        load_row(query + ((tile.n * p.H + tile.first_head + h) * p.L + tile.l) * p.E, p.E, tile.queries + h * p.E);
    std::fill(tile.largest, tile.largest + tile.heads, -std::numeric_limits<float>::infinity());
    std::fill(tile.sum, tile.sum + tile.heads, 0.0f);
    std::fill(tile.weighted, tile.weighted + tile.heads * width, 0.0f);
    const T* keys = static_cast<const T*>(p.key) + (tile.n * p.Hkv + kv) * p.S * p.E;
    const T* all_values = static_cast<const T*>(p.value) + (tile.n * p.Hkv + kv) * p.S * p.Ev;
    const T* values[qsa::attention::most_chunk];
    for (std::size_t first = 0; first < tile.tokens; first += tile.chunk) {
        const std::size_t count = std::min(tile.chunk, tile.tokens - first);
        for (std::size_t t = 0; t < count; ++t) values[t] = all_values + tile.rows[first + t] * p.Ev;
        compute_logits(tile, keys, values, first, count);
        for (std::size_t h = 0; h < tile.heads; ++h) exponentials(tile, h, count, width);
        for (std::size_t column = 0; column < p.Ev; column += pair) {
            std::size_t h = 0;
            for (; h + tile_rows <= tile.heads; h += tile_rows) add_values<tile_rows>(tile, values, h, column, count, width);
            add_values_of_rest<tile_rows - 1>(tile, values, h, tile.heads - h, column, count, width);
        }
    }
}

void compute(const qsa::attention::Tile& tile, qsa::ElementType type) {
    switch (type) {
        case qsa::ElementType::f32: return compute<float>(tile);
        case qsa::ElementType::f16: return compute<Half>(tile);
        case qsa::ElementType::bf16: return compute<BFloat>(tile);
    }
}

}  // namespace
