// The kernel alone against plain loops in double, on many small calls: every type, instruction set and number of
// workers, ragged lengths, left padding, sizes of zero, widths that fill no register. Arrays stand alone on the heap and
// elements without meaning are NaN, so that a sanitizer or a comparison shows whatever is touched by mistake.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "qsa_prepare/kernel.hpp"

namespace {

struct Shape {
    std::size_t N, L, Di, Dr, r;
    bool norm;
    std::vector<std::int64_t> lengths;  // N of them, or one for all
};

class Call {
public:
    Call(const Shape& shape, ElementType type, unsigned seed)
        : s(shape), m_type(type), Bp(most_before()), B(most_after()), raw(type, s.N * s.L * s.Di), past(type, s.N * Bp * s.Di),
          cos(type, s.N * s.L * s.Dr), sin(type, s.N * s.L * s.Dr), weight(type, s.norm ? s.Di : 0),
          waiting(type, s.N * (s.r - 1) * s.Di), rope(type, s.N * 2 * s.Dr), keys(type, s.N * B * s.Di),
          waiting_after(type, waiting.count()), rope_after(type, rope.count()) {
        std::mt19937 random(seed);
        const auto number = [&] { return static_cast<double>(static_cast<int>(random() % 255) - 127) / 32.0; };
        for (std::size_t i = 0; i < weight.count(); ++i) weight.set(i, number());
        for (std::size_t n = 0; n < s.N; ++n) {
            for (std::size_t i = pad(n) * s.Di; i < s.L * s.Di; ++i) raw.set(n * s.L * s.Di + i, number());
            for (std::size_t i = pad(n) * s.Dr; i < s.L * s.Dr; ++i) {
                cos.set(n * s.L * s.Dr + i, number());
                sin.set(n * s.L * s.Dr + i, number());
            }
            for (std::size_t i = 0; i < before(n) * s.Di; ++i) past.set(n * Bp * s.Di + i, number());
            for (std::size_t i = 0; i < open(n) * s.Di; ++i) waiting.set(n * (s.r - 1) * s.Di + i, number());
            if (open(n) != 0)
                for (std::size_t i = 0; i < 2 * s.Dr; ++i) rope.set(n * 2 * s.Dr + i, number());
        }
        narrow.assign(s.lengths.begin(), s.lengths.end());
    }

    void run(bool narrow_lengths, const Workers& workers, const Options& options) {
        Problem p;
        p.element_type = m_type;
        p.length_type = narrow_lengths ? LengthType::i32 : LengthType::i64;
        p.N = s.N, p.L = s.L, p.Di = s.Di, p.Dr = s.Dr, p.Bp = Bp, p.B = B, p.r = s.r;
        p.epsilon = 1e-6;
        p.raw_index_keys = raw.data();
        p.past_block_index_keys = past.data();
        p.key_length = narrow_lengths ? static_cast<const void*>(narrow.data()) : s.lengths.data();
        p.length_count = s.lengths.size();
        p.rope_cos = cos.data();
        p.rope_sin = sin.data();
        p.k_norm_weight = s.norm ? weight.data() : nullptr;
        p.past_incomplete_raw_keys = waiting.data();
        p.past_incomplete_rope = rope.data();
        p.block_index_keys = keys.data();
        p.present_incomplete_raw_keys = waiting_after.data();
        p.present_incomplete_rope = rope_after.data();
        prepare(p, workers, options);
    }

    void check(const std::string& label) {
        for (std::size_t n = 0; n < s.N; ++n) {
            for (std::size_t b = 0; b < B; ++b) check_block(n, b, label);
            check_state(n, label);
        }
    }

private:
    std::size_t length(std::size_t n) const { return static_cast<std::size_t>(s.lengths[s.lengths.size() == 1 ? 0 : n]); }
    std::size_t pad(std::size_t n) const { return s.L > length(n) ? s.L - length(n) : 0; }
    std::size_t tokens_before(std::size_t n) const { return length(n) > s.L ? length(n) - s.L : 0; }
    std::size_t before(std::size_t n) const { return tokens_before(n) / s.r; }
    std::size_t open(std::size_t n) const { return tokens_before(n) % s.r; }
    std::size_t most_before() const {
        std::size_t most = 0;
        for (std::size_t n = 0; n < s.N; ++n) most = std::max(most, before(n));
        return most + 1;  // a row more than needed: the past may be longer than what counts
    }
    std::size_t most_after() const {
        std::size_t most = 0;
        for (std::size_t n = 0; n < s.N; ++n) most = std::max(most, length(n) / s.r);
        return most;
    }

    // Where element j of token t stands, t counted from the first token of the block that was open before the call.
    std::pair<const Array*, std::size_t> key(std::size_t n, std::size_t t, std::size_t j) const {
        if (t < open(n)) return {&waiting, (n * (s.r - 1) + t) * s.Di + j};
        return {&raw, (n * s.L + pad(n) + t - open(n)) * s.Di + j};
    }
    std::pair<const Array*, std::size_t> turn(bool sine, std::size_t n, std::size_t t, std::size_t j) const {
        if (t < open(n)) return {&rope, n * 2 * s.Dr + (sine ? s.Dr : 0) + j};
        return {sine ? &sin : &cos, (n * s.L + pad(n) + t - open(n)) * s.Dr + j};
    }
    static double at(const std::pair<const Array*, std::size_t>& place) { return place.first->get(place.second); }

    void check_block(std::size_t n, std::size_t b, const std::string& label) {
        const std::size_t row = (n * B + b) * s.Di;
        if (b < before(n)) {
            for (std::size_t j = 0; j < s.Di; ++j)
                EXPECT(keys.same_bits(row + j, past, (n * Bp + b) * s.Di + j), "copied key %zu of sequence %zu", b, n);
            return;
        }
        if (b >= length(n) / s.r) {
            for (std::size_t j = 0; j < s.Di; ++j) EXPECT(keys.get(row + j) == 0, "row %zu of sequence %zu is no zero", b, n);
            return;
        }
        const std::size_t first = (b - before(n)) * s.r;
        std::vector<double> y(s.Di, 0.0);
        double squares = 0, largest = 0;
        for (std::size_t j = 0; j < s.Di; ++j) {
            for (std::size_t t = 0; t < s.r; ++t) y[j] += at(key(n, first + t, j)) / static_cast<double>(s.r);
            squares += y[j] * y[j];
        }
        if (s.norm)
            for (std::size_t j = 0; j < s.Di; ++j)
                y[j] *= weight.get(j) / std::sqrt(squares / static_cast<double>(s.Di) + 1e-6);
        for (const double value : y) largest = std::max(largest, std::fabs(value));
        const std::size_t half = s.Dr / 2;
        for (std::size_t j = 0; j < s.Di; ++j) {
            double wanted = y[j];
            if (j < s.Dr) {
                const double other = j < half ? -y[j + half] : y[j - half];
                wanted = y[j] * at(turn(false, n, first, j)) + other * at(turn(true, n, first, j));
            }
            const double unit = m_type == ElementType::f32 ? 0x1p-24 : m_type == ElementType::f16 ? 0x1p-11 : 0x1p-8;
            const double error = std::fabs(keys.get(row + j) - wanted);
            EXPECT(error <= unit * std::fabs(wanted) + 0x1p-18 * (largest + 1),
                   "key %zu of sequence %zu, element %zu: %g, not %g", b, n, j, keys.get(row + j), wanted);
        }
    }

    void check_state(std::size_t n, const std::string& label) {
        const std::size_t open_after = length(n) % s.r;
        const std::size_t first = (length(n) / s.r - before(n)) * s.r;
        for (std::size_t t = 0; t + 1 < s.r; ++t)
            for (std::size_t j = 0; j < s.Di; ++j) {
                const std::size_t i = (n * (s.r - 1) + t) * s.Di + j;
                if (t >= open_after) {
                    EXPECT(waiting_after.get(i) == 0, "unused state of sequence %zu is no zero", n);
                    continue;
                }
                const auto [array, index] = key(n, first + t, j);
                EXPECT(waiting_after.same_bits(i, *array, index), "raw key %zu of sequence %zu", t, n);
            }
        for (std::size_t j = 0; open_after != 0 && j < 2 * s.Dr; ++j) {
            const auto [array, index] = turn(j >= s.Dr, n, first, j % std::max<std::size_t>(1, s.Dr));
            EXPECT(rope_after.same_bits(n * 2 * s.Dr + j, *array, index), "rope of sequence %zu", n);
        }
    }

    Shape s;
    ElementType m_type;
    std::size_t Bp, B;
    Array raw, past, cos, sin, weight, waiting, rope, keys, waiting_after, rope_after;
    std::vector<std::int32_t> narrow;
};

std::vector<Shape> shapes() {
    std::vector<Shape> all{
        {0, 4, 8, 4, 4, true, {7}},           // no sequences
        {2, 0, 8, 4, 4, true, {3, 9}},        // no tokens
        {2, 5, 8, 4, 4, true, {0, 0}},        // padding only
        {1, 1, 8, 0, 2, false, {1}},          // no block
        {1, 300, 128, 64, 4, true, {300}},    // many blocks at the model's geometry
        {3, 9, 128, 128, 4, true, {2, 40, 9}},
        {1, 40, 6000, 64, 16, true, {47}},    // wider than the stack's scratch
    };
    std::mt19937 random(1);
    const std::size_t widths[] = {1, 2, 6, 8, 15, 16, 17, 24, 40, 64, 72, 100, 128, 130, 256, 264};
    for (int i = 0; i < 150; ++i) {
        Shape s;
        s.N = random() % 5;
        s.L = random() % 30;
        s.Di = widths[random() % (sizeof widths / sizeof *widths)];
        s.Dr = random() % 3 == 0 ? 0 : 2 * (random() % (s.Di / 2 + 1));
        s.r = 2 + random() % 7;
        s.norm = random() % 4 != 0;
        const std::size_t count = random() % 5 == 0 ? 1 : s.N;
        for (std::size_t n = 0; n < count; ++n) s.lengths.push_back(static_cast<std::int64_t>(random() % (s.L + 40)));
        all.push_back(s);
    }
    return all;
}

// A NaN in one key stays in that key's block (SEP-2).
void check_containment(Isa isa, const std::string& label) {
    const std::size_t L = 12, Di = 32, r = 4;
    std::vector<float> raw(L * Di, 1.0f), weight(Di, 1.0f), keys(3 * Di), waiting(3 * Di), waiting_after(3 * Di);
    raw[5 * Di + 3] = std::numeric_limits<float>::quiet_NaN();
    const std::int64_t length = L;
    Problem p{};
    p.element_type = ElementType::f32;
    p.length_type = LengthType::i64;
    p.N = 1, p.L = L, p.Di = Di, p.B = 3, p.r = r;
    p.raw_index_keys = raw.data();
    p.key_length = &length;
    p.length_count = 1;
    p.k_norm_weight = weight.data();
    p.past_incomplete_raw_keys = waiting.data();
    p.block_index_keys = keys.data();
    p.present_incomplete_raw_keys = waiting_after.data();
    Options options;
    options.isa = isa;
    prepare(p, Threads(1), options);
    for (std::size_t j = 0; j < Di; ++j) {
        EXPECT(keys[j] == 1.0f && keys[2 * Di + j] == 1.0f, "a NaN leaves its block");
        EXPECT(std::isnan(keys[Di + j]), "a NaN is lost");
    }
}

}  // namespace

int main() {
    int calls = 0;
    for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16}) {
        if (!runs_here(isa)) {
            std::printf("%s does not run on this CPU\n", name_of(isa));
            continue;
        }
        check_containment(isa, name_of(isa));
        unsigned seed = 0;
        for (const Shape& shape : shapes())
            for (const ElementType type : {ElementType::f32, ElementType::f16, ElementType::bf16}) {
                Options options;
                options.isa = isa;
                options.tile_bytes = 2048;  // several tiles and workers even for small calls
                options.worker_bytes = 1;
                options.stream_bytes = seed % 3 == 0 ? 0 : SIZE_MAX;
                const std::size_t workers = 1 + seed % 4;
                Call call(shape, type, ++seed);
                call.run(seed % 2 == 0, Threads(workers), options);
                char label[160];
                std::snprintf(label, sizeof label, "%s type %d N %zu L %zu Di %zu Dr %zu r %zu norm %d workers %zu", name_of(isa),
                              static_cast<int>(type), shape.N, shape.L, shape.Di, shape.Dr, shape.r, shape.norm, workers);
                call.check(label);
                ++calls;
            }
    }
    std::printf("%d calls, %d failures\n", calls, failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
