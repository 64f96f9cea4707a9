// Attention of a few heads to a list of tokens in terms of `Simd`, which the including file has defined for its
// instruction set. Everything has internal linkage.
#pragma once

#include <algorithm>
#include <limits>

#include "kernel.hpp"
#include "products.hpp"

namespace {

constexpr std::size_t line = 64;  // bytes of a cache line

using qsa::attention::Tile;
using qsa::attention::dot_rows;

// How many heads are worked on at a time, as many as there are registers: in dot products MR*dot_rows sums, a register of
// every row and one of a query; in weighted sums MR*2 sums, two registers of a value and one weight.
constexpr int dot_heads = Simd::width == 16 ? 6 : Simd::accumulators == 8 ? 2 : 1;
constexpr int sum_heads = Simd::width == 16 ? 12 : Simd::accumulators == 8 ? 6 : 2;

// dots[i][0 .. dot_rows-1] = scale * query i . every row, for MR queries that stand `stride` elements apart; dots stand
// `apart` apart. Rows that come `next`, if there are any, are asked for on the way.
template <int MR, class T>
void dot_products(const typename Products<T>::Query* queries, std::size_t stride, const T* const* rows, std::size_t E,
                  float scale, float* dots, std::size_t apart, const T* const* next) {
    using P = Products<T>;
    Simd::Reg sums[MR][dot_rows];
    for (int i = 0; i < MR; ++i)
        for (std::size_t j = 0; j < dot_rows; ++j) sums[i][j] = Simd::broadcast(0.0f);
    for (std::size_t k = 0; k < E; k += P::width) {
        typename P::Reg row[dot_rows];
        for (std::size_t j = 0; j < dot_rows; ++j) {
            row[j] = k + P::width <= E ? P::load(rows[j] + k) : P::load(rows[j] + k, E - k);
            if (next != nullptr && k * sizeof(T) % line == 0) __builtin_prefetch(next[j] + k);
        }
        for (int i = 0; i < MR; ++i) {
            const auto query = P::load(queries + static_cast<std::size_t>(i) * stride + k);
            for (std::size_t j = 0; j < dot_rows; ++j) sums[i][j] = P::plus_product(sums[i][j], query, row[j]);
        }
    }
    for (int i = 0; i < MR; ++i) Simd::store_sums(sums[i], scale, dots + static_cast<std::size_t>(i) * apart);
}

template <int MR, class T>
void dot_products_of_rest(std::size_t heads, const typename Products<T>::Query* queries, std::size_t stride,
                          const T* const* rows, std::size_t E, float scale, float* dots, std::size_t apart) {
    if constexpr (MR > 0) {
        if (heads == MR) return dot_products<MR, T>(queries, stride, rows, E, scale, dots, apart, nullptr);
        dot_products_of_rest<MR - 1, T>(heads, queries, stride, rows, E, scale, dots, apart);
    }
}

// ATT-1: logits of a chunk of tokens.
template <class T>
void compute_logits(const Tile& tile, const T* keys, const T* const* values, std::size_t first, std::size_t count) {
    const std::size_t E = tile.problem->E, stride = qsa::attention::padded(E);
    const auto* queries = reinterpret_cast<const typename Products<T>::Query*>(tile.queries);
    const T *rows[dot_rows], *next[dot_rows];
    for (std::size_t t = 0; t < count; t += dot_rows) {
        for (std::size_t j = 0; j < dot_rows; ++j) {
            const std::size_t at = first + t + j;
            rows[j] = keys + tile.rows[std::min(at, tile.tokens - 1)] * E;
            next[j] = keys + tile.rows[std::min(at + 2 * dot_rows, tile.tokens - 1)] * E;
        }
        for (std::size_t j = 0; j < dot_rows; ++j)
            for (std::size_t k = 0; k < tile.problem->Ev; k += line / sizeof(T)) __builtin_prefetch(values[t + j] + k, 0, 2);
        float* logits = tile.logits + t;
        std::size_t h = 0;
        for (; h + dot_heads <= tile.heads; h += dot_heads)
            dot_products<dot_heads, T>(queries + h * stride, stride, rows, E, tile.scale,
                                       logits + h * tile.chunk, tile.chunk, h == 0 ? next : nullptr);
        dot_products_of_rest<dot_heads - 1, T>(tile.heads - h, queries + h * stride, stride, rows, E, tile.scale,
                                               logits + h * tile.chunk, tile.chunk);
    }
}

// Logits become exp(logit - maximum), zeros beyond the last token; what was summed before is rescaled to the new
// maximum.
template <class T>
void exponentials(const Tile& tile, std::size_t h, std::size_t count, std::size_t width) {
    constexpr std::size_t w = Simd::width;
    float* logits = tile.logits + h * tile.chunk;
    auto* weights = reinterpret_cast<typename Products<T>::Weight*>(logits);  // no larger, so none is overwritten unread
    for (std::size_t t = count; t % pair != 0; ++t) logits[t] = -std::numeric_limits<float>::infinity();
    auto most = Simd::load(logits);
    for (std::size_t t = w; t < count; t += w) most = Simd::max(most, Simd::load(logits + t));
    const float before = tile.largest[h], now = std::max(before, Simd::largest(most));
    const auto less = Simd::broadcast(-now);
    auto total = Simd::broadcast(0.0f);
    for (std::size_t t = 0; t < count; t += w)
        total = Simd::add(total, Products<T>::keep(weights + t, Simd::exp(Simd::add(Simd::load(logits + t), less))));
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

// weighted[i] += sum over the chunk of weight[i][t] * value[t], for MR heads and two registers of columns.
template <int MR, class T>
void add_values(const Tile& tile, const T* const* values, std::size_t head, std::size_t column, std::size_t count,
                std::size_t width) {
    using P = Products<T>;
    constexpr std::size_t w = Simd::width;
    const std::size_t there = tile.problem->Ev - column;
    Simd::Reg low[MR], high[MR];
    float* weighted = tile.weighted + head * width + column;
    for (int i = 0; i < MR; ++i) {
        low[i] = Simd::load(weighted + static_cast<std::size_t>(i) * width);
        high[i] = Simd::load(weighted + static_cast<std::size_t>(i) * width + w);
    }
    const float* weights = tile.logits + head * tile.chunk;
    for (std::size_t t = 0; t < count; t += P::tokens) {
        typename P::Reg a, b;
        P::load_values(values + t, count - t, column, there, a, b);
        if (head == 0 && there > pair)  // what the next columns need
            for (std::size_t j = 0; j < P::tokens; ++j)
                for (std::size_t k = 0; k < pair; k += line / sizeof(T)) __builtin_prefetch(values[t + j] + column + pair + k);
        for (int i = 0; i < MR; ++i) {
            const auto* of_head = reinterpret_cast<const typename P::Weight*>(weights + static_cast<std::size_t>(i) * tile.chunk);
            const auto x = P::weight(of_head + t);
            low[i] = P::plus_product(low[i], x, a);
            high[i] = P::plus_product(high[i], x, b);
        }
    }
    for (int i = 0; i < MR; ++i) {
        Simd::store(weighted + static_cast<std::size_t>(i) * width, low[i]);
        Simd::store(weighted + static_cast<std::size_t>(i) * width + w, high[i]);
    }
}

template <int MR, class T>
void add_values_of_rest(const Tile& tile, const T* const* values, std::size_t head, std::size_t heads, std::size_t column,
                        std::size_t count, std::size_t width) {
    if constexpr (MR > 0) {
        if (heads == MR) return add_values<MR, T>(tile, values, head, column, count, width);
        add_values_of_rest<MR - 1, T>(tile, values, head, heads, column, count, width);
    }
}

// A row as it will be multiplied, zeros beyond its end.
template <class To, class T>
void load_row(const T* from, std::size_t width, To* to) {
    std::size_t j = 0;
    for (; j + Simd::width <= width; j += Simd::width) Simd::store(to + j, Simd::load(from + j));
    if (j < width) Simd::store(to + j, Simd::load(from + j, width - j));
}

template <class T>
void compute(const Tile& tile) {
    const qsa::attention::Problem& p = *tile.problem;
    const std::size_t width = qsa::attention::padded(p.Ev), stride = qsa::attention::padded(p.E);
    const std::size_t kv = tile.first_head / (p.H / p.Hkv);
    const T* query = static_cast<const T*>(p.query);
    std::fill(tile.queries, tile.queries + tile.heads * stride, 0.0f);
    auto* queries = reinterpret_cast<typename Products<T>::Query*>(tile.queries);
    for (std::size_t h = 0; h < tile.heads; ++h)
        load_row(query + ((tile.n * p.H + tile.first_head + h) * p.L + tile.l) * p.E, p.E, queries + h * stride);
    std::fill(tile.largest, tile.largest + tile.heads, -std::numeric_limits<float>::infinity());
    std::fill(tile.sum, tile.sum + tile.heads, 0.0f);
    std::fill(tile.weighted, tile.weighted + tile.heads * width, 0.0f);
    const T* keys = static_cast<const T*>(p.key) + (tile.n * p.Hkv + kv) * p.S * p.E;
    const T* all_values = static_cast<const T*>(p.value) + (tile.n * p.Hkv + kv) * p.S * p.Ev;
    const T* values[qsa::attention::most_chunk];
    for (std::size_t first = 0; first < tile.tokens; first += tile.chunk) {
        const std::size_t count = std::min(tile.chunk, tile.tokens - first), asked = (count + dot_rows - 1) / dot_rows * dot_rows;
        for (std::size_t t = 0; t < asked; ++t) values[t] = all_values + tile.rows[first + std::min(t, count - 1)] * p.Ev;
        compute_logits(tile, keys, values, first, count);
        for (std::size_t h = 0; h < tile.heads; ++h) exponentials<T>(tile, h, count, width);
        for (std::size_t column = 0; column < p.Ev; column += pair) {
            std::size_t h = 0;
            for (; h + sum_heads <= tile.heads; h += sum_heads) add_values<sum_heads, T>(tile, values, h, column, count, width);
            add_values_of_rest<sum_heads - 1, T>(tile, values, h, tile.heads - h, column, count, width);
        }
    }
}

template <class T>
void finish(const Tile& tile, std::size_t h, const float* const* parts, const float* factors, std::size_t count) {
    constexpr std::size_t w = Simd::width;
    const qsa::attention::Problem& p = *tile.problem;
    T* out = static_cast<T*>(p.output) + ((tile.n * p.H + tile.first_head + h) * p.L + tile.l) * p.Ev;
    for (std::size_t j = 0; j < p.Ev; j += w) {
        auto total = Simd::mul(Simd::load(parts[0] + j), Simd::broadcast(factors[0]));
        for (std::size_t i = 1; i < count; ++i)
            total = Simd::plus_product(total, Simd::load(parts[i] + j), Simd::broadcast(factors[i]));
        if (j + w <= p.Ev)
            Simd::store(out + j, total);
        else
            Simd::store(out + j, total, p.Ev - j);
    }
}

void compute_tile(const Tile& tile, qsa::ElementType type) {
    switch (type) {
        case qsa::ElementType::f32: return compute<float>(tile);
        case qsa::ElementType::f16: return compute<Half>(tile);
        case qsa::ElementType::bf16: return compute<BFloat>(tile);
    }
}

void finish_head(const Tile& tile, qsa::ElementType type, std::size_t h, const float* const* parts, const float* factors,
                 std::size_t count) {
    switch (type) {
        case qsa::ElementType::f32: return finish<float>(tile, h, parts, factors, count);
        case qsa::ElementType::f16: return finish<Half>(tile, h, parts, factors, count);
        case qsa::ElementType::bf16: return finish<BFloat>(tile, h, parts, factors, count);
    }
}

}  // namespace
