// SparseAttention as an OpenVINO operation.
#pragma once

#include <openvino/op/op.hpp>

namespace qsa {

// Inputs, output and attributes as in the contract; key_length, scale and sinks may be left out, the last ones first.
// T is f32, f16 or bf16; indices, counts and lengths are i32 or i64. What breaks a rule is refused with a message that
// starts with
//     SparseAttention[ERR-<number> <kind> <ports or attributes, comma separated>]:
class SparseAttention : public ov::op::Op {
public:
    OPENVINO_OP("SparseAttention", "qsa_conformance");

    SparseAttention() = default;
    SparseAttention(const ov::OutputVector& inputs, std::int64_t key_block_size, std::int64_t query_block_size = 1,
                    bool causal = true);

    void validate_and_infer_types() override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::int64_t m_key_block_size = 0, m_query_block_size = 1;
    bool m_causal = true;
};

}  // namespace qsa
