// QSAPrepare as an OpenVINO operation, and an operation with the same ports that does nothing.
#pragma once

#include <openvino/op/op.hpp>

namespace qsa {

// Inputs, outputs and attributes as in the contract. T is f32, f16 or bf16; key_length is i32 or i64.
//
// A call or a model that breaks a rule is refused with a message that starts with
//     QSAPrepare[ERR-<number> <kind> <ports or attributes, comma separated>]:
// followed by what was found and what is needed.
class QSAPrepare : public ov::op::Op {
public:
    OPENVINO_OP("QSAPrepare", "qsa_conformance");

    QSAPrepare() = default;
    QSAPrepare(const ov::OutputVector& inputs, std::int64_t key_block_size, double epsilon = 1e-6);

    // Static dimensions are passed on. B is exact when key_length is a Constant, else 0 .. Bp + (L+r-1) div r.
    void validate_and_infer_types() override;
    bool visit_attributes(ov::AttributeVisitor& visitor) override;
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool has_evaluate() const override;
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;

private:
    std::int64_t m_key_block_size = 0;
    double m_epsilon = 1e-6;
};

// What a call costs when the operation is free: the ports of QSAPrepare, outputs shaped like the state inputs 1, 6 and
// 7, nothing computed or written.
class EmptyOp : public ov::op::Op {
public:
    OPENVINO_OP("EmptyOp", "qsa_conformance");

    EmptyOp() = default;
    explicit EmptyOp(const ov::OutputVector& inputs);

    void validate_and_infer_types() override;
    bool visit_attributes(ov::AttributeVisitor&) override { return true; }
    std::shared_ptr<ov::Node> clone_with_new_inputs(const ov::OutputVector& inputs) const override;
    bool has_evaluate() const override;
    bool evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const override;
};

}  // namespace qsa
