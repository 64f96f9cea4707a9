// What the OpenVINO operations share: threads, and types and memory of tensors in the kernels' terms.
#pragma once

#include <cstdint>

#include <openvino/core/parallel.hpp>
#include <openvino/op/op.hpp>

#include "kernel.hpp"
#include "rules.hpp"

namespace qsa {

// OpenVINO's own threads: inside an inference these are the ones of its stream, so INFERENCE_NUM_THREADS holds.
class OpenVINOWorkers : public Workers {
public:
    std::size_t limit() const override { return static_cast<std::size_t>(parallel_get_max_threads()); }
    void run(std::size_t count, void (*work)(void*, std::size_t), void* state) const override {
        ov::parallel_nt(static_cast<int>(count), [&](int worker, int) { work(state, static_cast<std::size_t>(worker)); });
    }
};

inline ElementType element_type(const ov::element::Type& type) {
    if (type == ov::element::f16) return ElementType::f16;
    return type == ov::element::bf16 ? ElementType::bf16 : ElementType::f32;
}

inline LengthType length_type(const ov::element::Type& type) {
    return type == ov::element::i32 ? LengthType::i32 : LengthType::i64;
}

inline const void* data_of(const ov::Tensor& tensor) { return tensor.get_size() == 0 ? nullptr : tensor.data(); }
inline void* data_of(ov::Tensor& tensor) { return tensor.get_size() == 0 ? nullptr : tensor.data(); }

inline void check_input_count(const Rules& rules, std::size_t count, std::size_t least, std::size_t most) {
    OPENVINO_ASSERT(count >= least && count <= most, rules.operation, " takes ", least, least < most ? " to " : "",
                    least < most ? std::to_string(most) : "", " inputs, but got ", count);
}

// Types and shapes of a node's inputs; `count` may exceed their number: the rest stays dynamic.
inline void inputs_of(const ov::Node& node, ov::element::Type* types, ov::PartialShape* shapes) {
    for (std::size_t port = 0; port < node.get_input_size(); ++port) {
        types[port] = node.get_input_element_type(port);
        shapes[port] = node.get_input_partial_shape(port);
    }
}

inline void set_shape(ov::Tensor& tensor, const ov::PartialShape& shape) {
    const ov::Shape wanted = shape.to_shape();
    if (tensor.get_shape() != wanted) tensor.set_shape(wanted);
}

}  // namespace qsa
