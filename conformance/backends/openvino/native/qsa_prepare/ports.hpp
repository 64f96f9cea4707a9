// The rules between the ports of QSAPrepare: types (ERR-3), presence of features (ERR-4), dimensions (ERR-2) and
// values (ERR-5). One set of functions serves shape inference, where dimensions may be unknown, and the call.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include <openvino/core/partial_shape.hpp>
#include <openvino/core/type/element_type.hpp>
#include <openvino/runtime/tensor.hpp>

namespace qsa {

enum Port : std::size_t {
    raw_index_keys,
    past_block_index_keys,
    key_length_port,
    rope_cos,
    rope_sin,
    k_norm_weight,
    past_incomplete_raw_keys,
    past_incomplete_rope,
    port_count
};

constexpr std::array<const char*, port_count> port_names{
    "raw_index_keys", "past_block_index_keys", "key_length",
    "rope_cos", "rope_sin", "k_norm_weight",
    "past_incomplete_raw_keys", "past_incomplete_rope"};

using Shapes = std::array<ov::PartialShape, port_count>;
using Types = std::array<ov::element::Type, port_count>;

// What is known of the dimensions once all ports agree.
struct Layout {
    ov::Dimension N, L, Di, Dr, Bp;
    bool rope, norm;  // false only when certainly off
};

// key_length as numbers; no data: not known yet.
struct Lengths {
    const void* data = nullptr;
    ov::element::Type type;
    std::size_t count = 0;

    std::int64_t operator[](std::size_t n) const;
};

void check_attributes(std::int64_t key_block_size, double epsilon);
ov::element::Type check_types(const Types& types);  // T, or dynamic
Layout check_shapes(const Shapes& shapes, std::int64_t r);
Layout check_shapes(const ov::TensorVector& tensors, std::int64_t r);

// ERR-5 where N, L and Bp are known; returns B.
ov::Dimension check_lengths(const Lengths& lengths, const Layout& layout, std::int64_t r);

// Bounds of B from shapes alone.
ov::Dimension bound_blocks(const Layout& layout, std::int64_t r);

std::array<ov::PartialShape, 3> output_shapes(const Layout& layout, const ov::Dimension& B,
                                              const ov::PartialShape& past_rope, std::int64_t r);

}  // namespace qsa
