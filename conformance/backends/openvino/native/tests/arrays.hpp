// What the tests of the kernels share: threads, arrays that stand alone on the heap, and how a failure is told.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "common/kernel.hpp"

namespace {

using namespace qsa;

class Threads : public Workers {
public:
    explicit Threads(std::size_t count) : m_count(count) {}
    std::size_t limit() const override { return m_count; }
    void run(std::size_t count, void (*work)(void*, std::size_t), void* state) const override {
        std::vector<std::thread> threads;
        for (std::size_t i = 1; i < count; ++i) threads.emplace_back(work, state, i);
        work(state, 0);
        for (auto& thread : threads) thread.join();
    }

private:
    std::size_t m_count;
};

constexpr std::align_val_t alignment{64};  // as OpenVINO's tensors; stores past the caches need it

struct Release {
    void operator()(unsigned char* bytes) const { ::operator delete(bytes, alignment); }
};

// An array of T that is seen as doubles.
class Array {
public:
    Array(ElementType type, std::size_t count) : m_type(type), m_count(count) {
        if (count != 0) m_bytes.reset(static_cast<unsigned char*>(::operator new(count * size_of(type), alignment)));
        for (std::size_t i = 0; i < count; ++i) set(i, std::numeric_limits<double>::quiet_NaN());
    }
    void* data() { return m_bytes.get(); }
    std::size_t count() const { return m_count; }

    double get(std::size_t i) const {
        if (m_type == ElementType::f32) {
            float x;
            std::memcpy(&x, m_bytes.get() + 4 * i, 4);
            return x;
        }
        const unsigned bits = raw(i);
        if (m_type == ElementType::bf16) {
            const std::uint32_t wide = bits << 16;
            float x;
            std::memcpy(&x, &wide, 4);
            return x;
        }
        const int exponent = static_cast<int>(bits >> 10 & 31);
        const double fraction = bits & 1023;
        const double sign = (bits & 0x8000) != 0 ? -1 : 1;
        if (exponent == 31)
            return fraction != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
        return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(fraction + 1024, exponent - 25));
    }

    // Only values that T holds exactly, and NaN.
    void set(std::size_t i, double value) {
        if (m_type == ElementType::f32) {
            const float x = static_cast<float>(value);
            std::memcpy(m_bytes.get() + 4 * i, &x, 4);
            return;
        }
        std::uint16_t bits;
        if (m_type == ElementType::bf16) {
            const float x = static_cast<float>(value);
            std::uint32_t wide;
            std::memcpy(&wide, &x, 4);
            bits = static_cast<std::uint16_t>(wide >> 16);
        } else if (value != value) {
            bits = 0x7e00;
        } else {
            int exponent = 0;
            const double mantissa = std::frexp(std::fabs(value), &exponent);
            const unsigned magnitude =
                value == 0 ? 0 : static_cast<unsigned>(exponent + 14) * 1024u + static_cast<unsigned>(std::ldexp(mantissa, 11)) - 1024u;
            bits = static_cast<std::uint16_t>((std::signbit(value) ? 0x8000u : 0u) + magnitude);
        }
        std::memcpy(m_bytes.get() + 2 * i, &bits, 2);
    }

    bool same_bits(std::size_t i, const Array& other, std::size_t j) const {
        return std::memcmp(m_bytes.get() + i * size_of(m_type), other.m_bytes.get() + j * size_of(m_type), size_of(m_type)) == 0;
    }

private:
    unsigned raw(std::size_t i) const {
        std::uint16_t bits;
        std::memcpy(&bits, m_bytes.get() + 2 * i, 2);
        return bits;
    }

    ElementType m_type;
    std::size_t m_count;
    std::unique_ptr<unsigned char[], Release> m_bytes;
};

int failures = 0;

#define EXPECT(condition, ...)                       \
    do {                                             \
        if (!(condition)) {                          \
            if (++failures <= 10) {                  \
                std::printf("FAILED: " __VA_ARGS__); \
                std::printf(" [%s]\n", label.c_str()); \
            }                                        \
            return;                                  \
        }                                            \
    } while (0)

const char* name_of(Isa isa) {
    const char* const names[] = {"automatic", "portable", "avx2", "avx512", "avx512_bf16"};
    return names[static_cast<int>(isa)];
}

}  // namespace
