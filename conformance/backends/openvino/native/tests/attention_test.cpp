// The kernels of SparseAttentionIndexer and SparseAttention against plain loops in double, on many small calls: every type,
// instruction set and number of workers, ragged lengths, left padding, sizes of zero, widths that fill no register. Rows
// that must not be read are NaN.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "arrays.hpp"
#include "sparse_attention/kernel.hpp"
#include "sparse_attention_indexer/kernel.hpp"

namespace {

struct Random {
    std::mt19937 next;
    explicit Random(unsigned seed) : next(seed) {}
    std::size_t below(std::size_t n) { return next() % n; }
    double whole(int most) { return static_cast<double>(below(2 * static_cast<std::size_t>(most) + 1)) - most; }
    double number() { return static_cast<double>(static_cast<int>(below(255)) - 127) / 64.0; }
};

std::int64_t whole_blocks(std::int64_t tokens, std::size_t r) { return tokens <= 0 ? 0 : tokens / static_cast<std::int64_t>(r); }

// Small whole numbers: every score is exact, so that the selection and its order are known.
void check_indexer(Isa isa, ElementType type, unsigned seed) {
    Random random(seed);
    const std::size_t N = random.below(4), Hs = 1 + random.below(3), Hi = Hs * (1 + random.below(3)), L = random.below(8);
    const std::size_t Di = 1 + random.below(40), r = 1 + random.below(5), K = 1 + random.below(random.below(2) ? 6 : 60);
    const bool weighted = random.below(2) != 0, one = random.below(5) == 0;
    std::vector<std::int64_t> lengths;
    for (std::size_t n = 0; n < (one ? 1 : N); ++n) lengths.push_back(static_cast<std::int64_t>(random.below(random.below(4) ? 60 : 600)));
    std::int64_t most = 0;
    for (const auto S : lengths) most = std::max(most, S);
    const std::size_t B = static_cast<std::size_t>(most) / r + random.below(3);
    Array query(type, N * Hi * L * Di), keys(type, N * B * Di), weights(type, weighted ? N * L * Hi : 0);
    for (std::size_t i = 0; i < query.count(); ++i) query.set(i, random.whole(2));
    for (std::size_t i = 0; i < weights.count(); ++i) weights.set(i, random.whole(2));
    const auto length = [&](std::size_t n) { return lengths[one ? 0 : n]; };
    for (std::size_t n = 0; n < N; ++n)
        for (std::size_t b = 0; b < static_cast<std::size_t>(length(n)) / r; ++b)
            for (std::size_t j = 0; j < Di; ++j) keys.set((n * B + b) * Di + j, random.whole(1));
    std::vector<std::int32_t> indices(N * Hs * L * K, 77), counts(N * Hs * L, 77);
    indexer::Problem p{type, LengthType::i64, N, Hi, L, Di, B, Hs, r, K, query.data(), keys.data(), lengths.data(),
                       lengths.size(), weighted ? weights.data() : nullptr, indices.data(), counts.data()};
    indexer::Options options;
    options.isa = isa;
    options.worker_work = 1;
    options.tile_rows = 1 + random.below(40);
    options.share_blocks = 1 + random.below(40);
    indexer::select(p, Threads(1 + seed % 4), options);
    char text[160];
    std::snprintf(text, sizeof text, "indexer %s type %d seed %u", name_of(isa), static_cast<int>(type), seed);
    const std::string label = text;
    for (std::size_t n = 0; n < N; ++n)
        for (std::size_t g = 0; g < Hs; ++g)
            for (std::size_t l = 0; l < L; ++l) {
                const auto visible = static_cast<std::size_t>(
                    whole_blocks(length(n) - static_cast<std::int64_t>(L) + static_cast<std::int64_t>(l) + 1, r));
                std::vector<std::pair<double, std::size_t>> scores;
                for (std::size_t b = 0; b < visible; ++b) {
                    double score = 0;
                    for (std::size_t h = g * (Hi / Hs); h < (g + 1) * (Hi / Hs); ++h) {
                        double dot = 0;
                        for (std::size_t j = 0; j < Di; ++j)
                            dot += query.get(((n * Hi + h) * L + l) * Di + j) * keys.get((n * B + b) * Di + j);
                        score += std::max(dot, 0.0) * (weighted ? weights.get((n * L + l) * Hi + h) : 1.0);
                    }
                    scores.emplace_back(-score, b);
                }
                std::sort(scores.begin(), scores.end());
                const std::size_t row = (n * Hs + g) * L + l, m = std::min(K, visible);
                EXPECT(counts[row] == static_cast<std::int32_t>(m), "%d blocks, not %zu", counts[row], m);
                for (std::size_t k = 0; k < K; ++k) {
                    const auto wanted = k < m ? static_cast<std::int32_t>(scores[k].second) : -1;
                    EXPECT(indices[row * K + k] == wanted, "entry %zu of row %zu is %d, not %d", k, row, indices[row * K + k], wanted);
                }
            }
}

void check_attention(Isa isa, ElementType type, unsigned seed) {
    Random random(seed);
    const std::size_t Hkv = 1 + random.below(3), Hs = 1 + random.below(3), H = Hkv * Hs * (1 + random.below(3));
    const std::size_t N = random.below(3), L = random.below(7), E = 1 + random.below(40), Ev = 1 + random.below(70);
    const std::size_t r = 1 + random.below(5), qb = 1 + random.below(3), KB = random.below(6);
    const bool causal = random.below(3) != 0, scaled = random.below(2) != 0, sunk = scaled && random.below(2) != 0;
    const std::size_t S = L + random.below(random.below(4) ? 40 : 400), Lq = (L + qb - 1) / qb;
    std::vector<std::int64_t> lengths(N, static_cast<std::int64_t>(S));
    if (causal)
        for (auto& Sn : lengths) Sn = static_cast<std::int64_t>(random.below(S + 1));
    Array query(type, N * H * L * E), key(type, N * Hkv * S * E), value(type, N * Hkv * S * Ev), scale(type, scaled ? 1 : 0);
    Array sinks(type, sunk ? H : 0), out(type, N * H * L * Ev);
    for (std::size_t i = 0; i < query.count(); ++i) query.set(i, random.number());
    for (std::size_t i = 0; i < sinks.count(); ++i) sinks.set(i, random.number());
    if (scaled) scale.set(0, 0.25);
    std::vector<std::int32_t> indices(N * Hs * Lq * KB, 1 << 30), counts(N * Hs * Lq, 0);
    for (std::size_t n = 0; n < N; ++n) {
        const auto first = S - static_cast<std::size_t>(lengths[n]);
        for (std::size_t h = 0; h < Hkv; ++h)
            for (std::size_t t = first; t < S; ++t) {
                for (std::size_t j = 0; j < E; ++j) key.set(((n * Hkv + h) * S + t) * E + j, random.number());
                for (std::size_t j = 0; j < Ev; ++j) value.set(((n * Hkv + h) * S + t) * Ev + j, random.number());
            }
        for (std::size_t g = 0; g < Hs; ++g)
            for (std::size_t i = 0; i < Lq; ++i) {
                // Blocks that every query of the group may see.
                const std::int64_t end = lengths[n] - static_cast<std::int64_t>(L) + static_cast<std::int64_t>(i * qb) + 1;
                const auto there = static_cast<std::size_t>(
                    causal ? whole_blocks(end, r) : (lengths[n] + static_cast<std::int64_t>(r) - 1) / static_cast<std::int64_t>(r));
                std::vector<std::int32_t> blocks(there);
                for (std::size_t b = 0; b < there; ++b) blocks[b] = static_cast<std::int32_t>(b);
                std::shuffle(blocks.begin(), blocks.end(), random.next);
                const std::size_t row = (n * Hs + g) * Lq + i, count = std::min(there, random.below(KB + 1));
                counts[row] = static_cast<std::int32_t>(count);
                std::copy(blocks.begin(), blocks.begin() + static_cast<std::ptrdiff_t>(count), indices.begin() + static_cast<std::ptrdiff_t>(row * KB));
            }
    }
    attention::Problem p{};
    p.element_type = type, p.length_type = LengthType::i64, p.index_type = LengthType::i32;
    p.N = N, p.H = H, p.Hkv = Hkv, p.Hs = Hs, p.L = L, p.S = S, p.E = E, p.Ev = Ev, p.KB = KB, p.r = r, p.qb = qb, p.causal = causal;
    p.query = query.data(), p.key = key.data(), p.value = value.data();
    p.block_indices = indices.data(), p.block_count = counts.data();
    p.key_length = lengths.data(), p.length_count = N;
    p.scale = scaled ? scale.data() : nullptr, p.sinks = sunk ? sinks.data() : nullptr;
    p.output = out.data();
    attention::Options options;
    options.isa = isa;
    options.worker_work = 1;
    options.chunk = 32 * (1 + random.below(4));
    options.share_tokens = 1 + random.below(40);
    attention::attend(p, Threads(1 + seed % 4), options);
    char text[160];
    std::snprintf(text, sizeof text, "attention %s type %d seed %u", name_of(isa), static_cast<int>(type), seed);
    const std::string label = text;
    const double factor = scaled ? 0.25 : 1 / std::sqrt(static_cast<double>(E));
    const double unit = type == ElementType::f32 ? 0x1p-24 : type == ElementType::f16 ? 0x1p-11 : 0x1p-8;
    // Where bf16 is multiplied as it is, weights are rounded to it.
    const double rounded = isa == Isa::avx512_bf16 && type == ElementType::bf16 ? 0x1p-8 : 0x1p-17;
    for (std::size_t n = 0; n < N; ++n)
        for (std::size_t h = 0; h < H; ++h)
            for (std::size_t l = 0; l < L; ++l) {
                const std::int64_t Sn = lengths[n], position = Sn - static_cast<std::int64_t>(L) + static_cast<std::int64_t>(l);
                std::vector<std::size_t> tokens;
                const std::size_t row = (n * Hs + h / (H / Hs)) * Lq + l / qb, kv = h / (H / Hkv);
                if (!causal || position >= 0) {
                    for (std::size_t k = 0; k < static_cast<std::size_t>(counts[row]); ++k)
                        for (std::size_t i = 0; i < r; ++i) {
                            const std::size_t t = static_cast<std::size_t>(indices[row * KB + k]) * r + i;
                            if (t < static_cast<std::size_t>(Sn)) tokens.push_back(t);
                        }
                    if (causal)
                        for (std::int64_t t = whole_blocks(position + 1, r) * static_cast<std::int64_t>(r); t <= position; ++t)
                            tokens.push_back(static_cast<std::size_t>(t));
                }
                std::vector<double> z;
                double most = sunk ? sinks.get(h) : -INFINITY;
                const std::size_t shift = S - static_cast<std::size_t>(Sn);
                for (const auto t : tokens) {
                    double dot = 0;
                    for (std::size_t j = 0; j < E; ++j)
                        dot += query.get(((n * H + h) * L + l) * E + j) * key.get(((n * Hkv + kv) * S + t + shift) * E + j);
                    z.push_back(dot * factor);
                    most = std::max(most, z.back());
                }
                double total = sunk ? std::exp(sinks.get(h) - most) : 0;
                for (auto& x : z) total += x = std::exp(x - most);
                for (std::size_t j = 0; j < Ev; ++j) {
                    double wanted = 0, size = 0;
                    for (std::size_t i = 0; i < tokens.size(); ++i) {
                        const double v = value.get(((n * Hkv + kv) * S + tokens[i] + shift) * Ev + j);
                        wanted += z[i] / total * v;
                        size += z[i] / total * std::fabs(v);
                    }
                    const double got = out.get(((n * H + h) * L + l) * Ev + j);
                    EXPECT(std::fabs(got - wanted) <= unit * std::fabs(wanted) + rounded * (size + std::fabs(wanted)) + 0x1p-25,
                           "output of head %zu, token %zu, element %zu: %g, not %g", h, l, j, got, wanted);
                }
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
        for (unsigned seed = 0; seed < 120; ++seed)
            for (const ElementType type : {ElementType::f32, ElementType::f16, ElementType::bf16}) {
                check_indexer(isa, type, 3 * seed);
                check_attention(isa, type, 3 * seed + 1);
                calls += 2;
            }
    }
    std::printf("%d calls, %d failures\n", calls, failures);
    return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
