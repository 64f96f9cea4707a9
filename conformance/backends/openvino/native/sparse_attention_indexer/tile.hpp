// Scores of a tile of query tokens, and the candidates for their selections, in terms of `Simd`, which the including file
// has defined for its instruction set. Everything has internal linkage.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

#include "kernel.hpp"
#include "panels.hpp"

namespace {

// Rises with the score; -0 is +0, and a NaN is below everything.
inline std::uint32_t rank_of(float score) {
    if (score != score) return 0;
    score += 0.0f;
    std::uint32_t bits;
    std::memcpy(&bits, &score, sizeof bits);
    return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The best candidates of one selection so far. Once K blocks have been seen, `floor` is the K-th best score at the last
// look: blocks come in rising order, so that one of the same score as the K-th (TIE-1) is not wanted any more.
class Candidates {
public:
    Candidates(std::uint64_t* keys, std::size_t& count, std::size_t K, std::size_t capacity)
        : m_keys(keys), m_count(count), m_K(K), m_capacity(capacity) {}

    void add(float score, std::size_t block, float& floor) {
        m_keys[m_count++] = static_cast<std::uint64_t>(rank_of(score)) << 32 | (0xffffffffu - static_cast<std::uint32_t>(block));
        if (m_count == m_capacity) floor = shrink();
    }

    // Keeps the best K; returns the score of the last of them, by which others are turned away.
    float shrink() {
        if (m_count <= m_K) return -std::numeric_limits<float>::infinity();
        std::nth_element(m_keys, m_keys + (m_K - 1), m_keys + m_count, std::greater<std::uint64_t>());
        m_count = m_K;
        const auto rank = static_cast<std::uint32_t>(m_keys[m_K - 1] >> 32);
        if (rank == 0) return -std::numeric_limits<float>::infinity();
        const std::uint32_t bits = (rank & 0x80000000u) != 0 ? rank & 0x7fffffffu : ~rank;
        float score;
        std::memcpy(&score, &bits, sizeof score);
        return score;
    }

private:
    std::uint64_t* m_keys;
    std::size_t& m_count;
    std::size_t m_K, m_capacity;
};

template <class T>
void load_row(const T* from, std::size_t width, float* to) {
    std::size_t j = 0;
    for (; j + Simd::width <= width; j += Simd::width) Simd::store(to + j, Simd::load(from + j));
    if (j < width) Simd::store(to + j, Simd::load(from + j, width - j), width - j);
}

// SCO-1 for one selection and two registers of blocks: rectified per head, then weighted, then summed, in head order.
inline void score(const float* dots, const float* weights, std::size_t heads, typename Simd::Reg& low, typename Simd::Reg& high) {
    const auto zero = Simd::broadcast(0.0f);
    low = high = zero;
    for (std::size_t h = 0; h < heads; ++h, dots += 2 * Simd::width) {
        const auto a = Simd::max(Simd::load(dots), zero);
        const auto b = Simd::max(Simd::load(dots + Simd::width), zero);
        if (weights == nullptr) {
            low = Simd::add(low, a);
            high = Simd::add(high, b);
        } else {
            const auto weight = Simd::broadcast(weights[h]);
            low = Simd::plus_product(low, a, weight);
            high = Simd::plus_product(high, b, weight);
        }
    }
}

template <class T>
void compute(const qsa::indexer::Tile& tile) {
    const qsa::indexer::Problem& p = *tile.problem;
    constexpr std::size_t w = Simd::width, pair = 2 * w;
    const std::size_t heads = p.Hi / p.Hs, rows = tile.tokens * p.Hi, selections = tile.tokens * p.Hs;
    const T* query = static_cast<const T*>(p.index_query);
    for (std::size_t l = 0; l < tile.tokens; ++l)
        for (std::size_t h = 0; h < p.Hi; ++h)
            load_row(query + ((tile.n * p.Hi + h) * p.L + tile.first_token + l) * p.Di, p.Di, tile.queries + (l * p.Hi + h) * p.Di);
    const bool weighted = p.index_weights != nullptr;
    if (weighted)
        load_row(static_cast<const T*>(p.index_weights) + (tile.n * p.L + tile.first_token) * p.Hi, rows, tile.weights);
    float* floors = tile.floors;
    for (std::size_t i = 0; i < selections; ++i) {
        tile.counts[i] = 0;
        floors[i] = -std::numeric_limits<float>::infinity();
    }
    const T* keys = static_cast<const T*>(p.block_index_keys) + tile.n * p.B * p.Di;
    const std::size_t end = tile.first_block + tile.blocks;
    for (std::size_t b = tile.first_block; b < end; b += pair) {
        const std::size_t count = std::min(pair, end - b);
        for (std::size_t half = 0; half < 2; ++half) {
            const T *from[w], *next[w];
            const std::size_t first = b + half * w;
            const std::size_t there = first < end ? std::min(w, end - first) : 0;
            for (std::size_t i = 0; i < there; ++i) {
                from[i] = keys + (first + i) * p.Di;
                next[i] = keys + std::min(first + i + pair, p.B - 1) * p.Di;
            }
            pack<T>(from, there, p.Di, tile.panels + half * p.Di * w, tile.ask_ahead ? next : nullptr);
        }
        products(tile.queries, rows, tile.panels, p.Di, tile.dots, pair);
        for (std::size_t l = 0; l < tile.tokens; ++l) {
            if (tile.visible[l] <= b) continue;
            const std::size_t seen = std::min(count, tile.visible[l] - b);
            const std::uint32_t wanted = seen == 32 ? 0xffffffffu : (1u << seen) - 1u;
            for (std::size_t g = 0; g < p.Hs; ++g) {
                const std::size_t i = l * p.Hs + g;
                typename Simd::Reg low, high;
                const std::size_t row = l * p.Hi + g * heads;
                score(tile.dots + row * pair, weighted ? tile.weights + row : nullptr, heads, low, high);
                Candidates best(tile.candidates + i * tile.capacity, tile.counts[i], p.K, tile.capacity);
                // Until K blocks have been seen all are wanted, whatever their scores are.
                const bool all = b - tile.first_block < p.K;
                const auto floor = Simd::broadcast(floors[i]);
                std::uint32_t mask = all ? ~0u : Simd::greater(low, floor) | Simd::greater(high, floor) << w;
                mask &= wanted;
                if (mask == 0) continue;
                alignas(64) float scores[pair];
                Simd::store(scores, low);
                Simd::store(scores + w, high);
                for (; mask != 0; mask &= mask - 1) {
                    const auto lane = static_cast<std::size_t>(__builtin_ctz(mask));
                    best.add(scores[lane], b + lane, floors[i]);
                }
            }
        }
    }
    for (std::size_t i = 0; i < selections; ++i)
        Candidates(tile.candidates + i * tile.capacity, tile.counts[i], p.K, tile.capacity).shrink();
}

void compute(const qsa::indexer::Tile& tile, qsa::ElementType type) {
    switch (type) {
        case qsa::ElementType::f32: return compute<float>(tile);
        case qsa::ElementType::f16: return compute<Half>(tile);
        case qsa::ElementType::bf16: return compute<BFloat>(tile);
    }
}

}  // namespace
