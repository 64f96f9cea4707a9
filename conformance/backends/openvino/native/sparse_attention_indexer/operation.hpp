// SparseAttentionIndexer as an OpenVINO operation.
#pragma once

#include <openvino/op/op.hpp>

namespace qsa {

// Inputs, outputs and attributes as in the contract; index_weights may be left out. T is f32, f16 or bf16; key_length is
// i32 or i64. What breaks a rule is refused with a message that starts with
//     SparseAttentionIndexer[ERR-<number> <kind> <ports or attributes, comma separated>]:
class SparseAttentionIndexer : public ov::op::Op {
public:
    OPENVINO_OP("SparseAttentionIndexer", "qsa_conformance");

    SparseAttentionIndexer() = default;
    SparseAttentionIndexer(const ov::OutputVector& inputs, std::int64_t key_block_size, std::int64_t token_budget,
                           std::int64_t num_selection_heads = 1);

    void validate_and_infer_types() override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool has_evaluate() const override { return true; }
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::int64_t m_key_block_size = 0, m_token_budget = 0, m_num_selection_heads = 1;
};

}  // namespace qsa
