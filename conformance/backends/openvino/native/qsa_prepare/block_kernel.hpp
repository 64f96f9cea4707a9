// The blocks of one sequence in terms of `Simd`, which the including file has defined for its instruction set.
// Everything has internal linkage: the same templates are compiled several times with different compiler flags, and the
// linker must not merge them.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "kernel.hpp"

namespace {

// Rows start with those carried over from earlier calls.
template <class T>
struct Rows {
    const T* carried;
    std::size_t carried_count;
    const T* fresh;
    std::size_t fresh_count;
    std::size_t stride;
    std::size_t ahead;  // bytes, as Blocks::key_bytes_ahead
};

// Register k of a row; asks for the line that stands `ahead` bytes behind it, once a line.
template <class T>
inline typename Simd::Reg load_key(const T* row, int k, std::size_t ahead) {
    constexpr std::size_t bytes = Simd::width * sizeof(T);
    const T* p = row + k * Simd::width;
    if (static_cast<std::size_t>(k) * bytes % 64 == 0)
        __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(p) + ahead));
    return Simd::load(p);
}

template <class T, int K>
inline void add_rows(typename Simd::Reg (&sum)[K], const T* row, std::size_t count, const Rows<T>& rows) {
    const std::size_t ahead = rows.ahead;
    for (std::size_t i = 0; i < count; ++i, row += rows.stride)
        for (int k = 0; k < K; ++k) sum[k] = Simd::add(sum[k], load_key(row, k, ahead));
}

// Mean of K registers of columns, in token order (AVG-1), to `mean`; adds the squares of the means to `squares`.
template <int K, class T>
inline void mean_columns(const Rows<T>& rows, std::size_t column, float r, bool exact, float* mean,
                         typename Simd::Squares& squares) {
    typename Simd::Reg sum[K];
    const T* carried = rows.carried + column;
    const T* fresh = rows.fresh + column;
    std::size_t carried_count = rows.carried_count, fresh_count = rows.fresh_count;
    const T* first = carried_count != 0 ? carried : fresh;
    for (int k = 0; k < K; ++k) sum[k] = load_key(first, k, rows.ahead);
    if (carried_count != 0) {
        add_rows<T, K>(sum, carried + rows.stride, carried_count - 1, rows);
        add_rows<T, K>(sum, fresh, fresh_count, rows);
    } else {
        add_rows<T, K>(sum, fresh + rows.stride, fresh_count - 1, rows);
    }
    // 1/r is exact for powers of two only; elsewhere the division keeps integers such as a mean of equal keys exact.
    const auto divisor = Simd::broadcast(r);
    const auto factor = Simd::broadcast(1.0f / r);
    for (int k = 0; k < K; ++k) {
        const auto m = exact ? Simd::mul(sum[k], factor) : Simd::div(sum[k], divisor);
        Simd::add_squares(squares, m);
        Simd::store(mean + column + k * Simd::width, m);
    }
}

// The last columns, fewer than one register; lanes beyond `count` are zero and stay so.
template <class T>
inline void mean_tail(const Rows<T>& rows, std::size_t column, std::size_t count, float r, float* mean,
                      typename Simd::Squares& squares) {
    auto sum = Simd::broadcast(0.0f);
    for (std::size_t i = 0; i < rows.carried_count; ++i)
        sum = Simd::add(sum, Simd::load(rows.carried + column + i * rows.stride, count));
    for (std::size_t i = 0; i < rows.fresh_count; ++i)
        sum = Simd::add(sum, Simd::load(rows.fresh + column + i * rows.stride, count));
    const auto m = Simd::div(sum, Simd::broadcast(r));
    Simd::add_squares(squares, m);
    Simd::store(mean + column, m);
}

// Mean of the block's rows; returns the sum of its squares. Each key is read once: columns are taken in groups as wide
// as the registers allow. Squares are summed in f64, so that neither their size nor their order limits the root.
template <class T>
inline double mean_rows(const Rows<T>& rows, std::size_t Di, std::size_t r, float* mean) {
    constexpr std::size_t w = Simd::width;
    const float divisor = static_cast<float>(r);
    const bool exact = (r & (r - 1)) == 0;
    auto squares = Simd::no_squares();
    std::size_t column = 0;
    for (; Di - column >= Simd::accumulators * w; column += Simd::accumulators * w)
        mean_columns<Simd::accumulators>(rows, column, divisor, exact, mean, squares);
    if constexpr (Simd::accumulators > 8)
        for (; Di - column >= 8 * w; column += 8 * w) mean_columns<8>(rows, column, divisor, exact, mean, squares);
    for (; Di - column >= 4 * w; column += 4 * w) mean_columns<4>(rows, column, divisor, exact, mean, squares);
    for (; Di - column >= w; column += w) mean_columns<1>(rows, column, divisor, exact, mean, squares);
    if (column < Di) mean_tail(rows, column, Di - column, divisor, mean, squares);
    return Simd::total(squares);
}

// Normalized elements j .. j+width-1 (NRM-1), the weight applied as given; `count` of them are wanted.
template <bool Norm, class T>
inline typename Simd::Reg normalized(const float* mean, const T* weight, typename Simd::Reg scale, std::size_t j,
                                     std::size_t count) {
    const auto m = Simd::load(mean + j);
    if constexpr (!Norm) return m;
    const auto w = count >= Simd::width ? Simd::load(weight + j) : Simd::load(weight + j, count);
    return Simd::mul(Simd::mul(m, scale), w);
}

template <class T>
inline typename Simd::Reg load_up_to(const T* p, std::size_t count) {
    return count >= Simd::width ? Simd::load(p) : Simd::load(p, count);
}

template <bool Stream, class T>
inline void store_up_to(T* p, typename Simd::Reg v, std::size_t count) {
    if (count < Simd::width)
        Simd::store(p, v, count);
    else if constexpr (Stream)
        Simd::stream(p, v);
    else
        Simd::store(p, v);
}

// Normalization, rotation of the first Dr elements (ROT-1: j goes with j + Dr/2) and the only rounding to T (NUM-2).
template <bool Norm, bool Stream, class T>
inline void finish(const float* mean, float scale_value, const T* weight, const T* cos, const T* sin, std::size_t Di,
                   std::size_t Dr, T* key) {
    const std::size_t half = Dr / 2;
    const auto scale = Simd::broadcast(scale_value);
    for (std::size_t j = 0; j < half; j += Simd::width) {
        const std::size_t count = half - j;
        const auto a = normalized<Norm>(mean, weight, scale, j, count);
        const auto b = normalized<Norm>(mean, weight, scale, j + half, count);
        const auto left = Simd::mul(a, load_up_to(cos + j, count));
        const auto right = Simd::mul(b, load_up_to(cos + j + half, count));
        store_up_to<Stream>(key + j, Simd::minus_product(left, b, load_up_to(sin + j, count)), count);
        store_up_to<Stream>(key + j + half, Simd::plus_product(right, a, load_up_to(sin + j + half, count)), count);
    }
    for (std::size_t j = Dr; j < Di; j += Simd::width)
        store_up_to<Stream>(key + j, normalized<Norm>(mean, weight, scale, j, Di - j), Di - j);
}

// The hardware follows the keys, but not the rows of cos and sin, which stand r rows apart.
template <class T>
inline void prefetch_row(const T* row, std::size_t width) {
    for (std::size_t j = 0; j < width; j += 64 / sizeof(T)) __builtin_prefetch(row + j);
}

template <bool Stream, class T>
void compute(const qsa::Blocks& job) {
    const auto* rows = static_cast<const T*>(job.rows);
    const auto* cos = static_cast<const T*>(job.cos);
    const auto* sin = static_cast<const T*>(job.sin);
    const auto* weight = static_cast<const T*>(job.weight);
    auto* key = static_cast<T*>(job.keys);
    std::size_t carried = job.carried;
    for (std::size_t i = 0; i < job.count; ++i, key += job.Di) {
        const T* block_cos = cos;
        const T* block_sin = sin;
        if (carried != 0) {  // ROT-4
            block_cos = static_cast<const T*>(job.carried_cos);
            block_sin = static_cast<const T*>(job.carried_sin);
        }
        const std::size_t fresh = job.r - carried;
        if (job.Dr != 0 && i + job.rope_blocks_ahead < job.count) {
            const std::size_t ahead = (fresh + (job.rope_blocks_ahead - 1) * job.r) * job.Dr;
            prefetch_row(cos + ahead, job.Dr);
            prefetch_row(sin + ahead, job.Dr);
        }
        const Rows<T> block{static_cast<const T*>(job.carried_rows), carried, rows, fresh, job.Di, job.key_bytes_ahead};
        const double squares = mean_rows(block, job.Di, job.r, job.scratch);
        if (weight != nullptr) {
            const double mean_square = squares / static_cast<double>(job.Di);
            const float scale = static_cast<float>(1.0 / std::sqrt(mean_square + job.epsilon));
            finish<true, Stream>(job.scratch, scale, weight, block_cos, block_sin, job.Di, job.Dr, key);
        } else {
            finish<false, Stream>(job.scratch, 1.0f, weight, block_cos, block_sin, job.Di, job.Dr, key);
        }
        rows += fresh * job.Di;
        if (job.Dr != 0) {
            cos += fresh * job.Dr;
            sin += fresh * job.Dr;
        }
        carried = 0;
    }
}

template <class T>
void compute_any(const qsa::Blocks& job) {
    // Stores past the caches take whole registers at aligned addresses: rows, and the halves of the rotated part.
    const std::size_t steps = reinterpret_cast<std::uintptr_t>(job.keys) | (job.Di * sizeof(T)) | (job.Dr / 2 * sizeof(T));
    if (!job.stream || steps % 64 != 0) return compute<false, T>(job);
    compute<true, T>(job);
    Simd::fence();
}

void compute(const qsa::Blocks& job, qsa::ElementType type) {
    switch (type) {
        case qsa::ElementType::f32: return compute_any<float>(job);
        case qsa::ElementType::f16: return compute_any<Half>(job);
        case qsa::ElementType::bf16: return compute_any<BFloat>(job);
    }
}

}  // namespace
