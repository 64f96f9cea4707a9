#include "operation.hpp"

#include <openvino/op/constant.hpp>

#include "../common/openvino.hpp"
#include "kernel.hpp"
#include "ports.hpp"

namespace qsa {
namespace {

void check_count(std::size_t count) {
    OPENVINO_ASSERT(count == port_count, "QSAPrepare takes ", std::size_t{port_count}, " inputs, but got ", count);
}

}  // namespace

QSAPrepare::QSAPrepare(const ov::OutputVector& inputs, std::int64_t key_block_size, double epsilon)
    : Op(inputs), m_key_block_size(key_block_size), m_epsilon(epsilon) {
    constructor_validate_and_infer_types();
}

bool QSAPrepare::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("key_block_size", m_key_block_size);
    visitor.on_attribute("epsilon", m_epsilon);
    return true;
}

std::shared_ptr<ov::Node> QSAPrepare::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    check_new_args_count(this, inputs);
    return std::make_shared<QSAPrepare>(inputs, m_key_block_size, m_epsilon);
}

void QSAPrepare::validate_and_infer_types() {
    check_count(get_input_size());
    check_attributes(m_key_block_size, m_epsilon);
    Types types;
    Shapes shapes;
    for (std::size_t port = 0; port < port_count; ++port) {
        types[port] = get_input_element_type(port);
        shapes[port] = get_input_partial_shape(port);
    }
    const auto T = check_types(types);
    const Layout layout = check_shapes(shapes, m_key_block_size);
    ov::Dimension B = bound_blocks(layout, m_key_block_size);
    // The CPU plugin infers shapes at every call on a clone whose inputs are constants over the actual memory: an exact
    // B here is what lets it allocate the outputs before the call, instead of copying them out afterwards.
    if (const auto constant = ov::as_type_ptr<ov::op::v0::Constant>(get_input_node_shared_ptr(key_length_port))) {
        const Lengths lengths{constant->get_data_ptr(), types[key_length_port], ov::shape_size(constant->get_shape())};
        B = check_lengths(lengths, layout, m_key_block_size);
    }
    set_input_is_relevant_to_shape(key_length_port);
    const auto outputs = output_shapes(layout, B, shapes[past_incomplete_rope], m_key_block_size);
    set_output_size(outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) set_output_type(i, T, outputs[i]);
}

bool QSAPrepare::has_evaluate() const { return true; }

bool QSAPrepare::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    check_count(inputs.size());
    Types types;
    for (std::size_t port = 0; port < port_count; ++port) types[port] = inputs[port].get_element_type();
    const auto T = check_types(types);
    const Layout layout = check_shapes(inputs, m_key_block_size);
    const Lengths lengths{data_of(inputs[key_length_port]), types[key_length_port], inputs[key_length_port].get_size()};
    const ov::Dimension B = check_lengths(lengths, layout, m_key_block_size);
    const auto wanted = output_shapes(layout, B, inputs[past_incomplete_rope].get_shape(), m_key_block_size);
    OPENVINO_ASSERT(outputs.size() == wanted.size(), "QSAPrepare has ", wanted.size(), " outputs, but got ", outputs.size());
    for (std::size_t i = 0; i < outputs.size(); ++i) {
        const ov::Shape shape = wanted[i].to_shape();
        if (outputs[i].get_shape() != shape) outputs[i].set_shape(shape);
    }

    Problem p;
    p.element_type = element_type(T);
    p.length_type = length_type(lengths.type);
    p.N = layout.N.get_length();
    p.L = layout.L.get_length();
    p.Di = layout.Di.get_length();
    p.Dr = layout.rope ? layout.Dr.get_length() : 0;
    p.Bp = layout.Bp.get_length();
    p.B = B.get_length();
    p.r = m_key_block_size;
    p.epsilon = m_epsilon;
    p.raw_index_keys = data_of(inputs[raw_index_keys]);
    p.past_block_index_keys = data_of(inputs[past_block_index_keys]);
    p.key_length = lengths.data;
    p.length_count = lengths.count;
    p.rope_cos = data_of(inputs[rope_cos]);
    p.rope_sin = data_of(inputs[rope_sin]);
    p.k_norm_weight = layout.norm ? data_of(inputs[k_norm_weight]) : nullptr;
    p.past_incomplete_raw_keys = data_of(inputs[past_incomplete_raw_keys]);
    p.past_incomplete_rope = data_of(inputs[past_incomplete_rope]);
    p.block_index_keys = data_of(outputs[0]);
    p.present_incomplete_raw_keys = data_of(outputs[1]);
    p.present_incomplete_rope = data_of(outputs[2]);
    prepare(p, OpenVINOWorkers());
    return true;
}

EmptyOp::EmptyOp(const ov::OutputVector& inputs) : Op(inputs) { constructor_validate_and_infer_types(); }

void EmptyOp::validate_and_infer_types() {
    check_count(get_input_size());
    set_output_size(3);
    set_output_type(0, get_input_element_type(0), get_input_partial_shape(past_block_index_keys));
    set_output_type(1, get_input_element_type(0), get_input_partial_shape(past_incomplete_raw_keys));
    set_output_type(2, get_input_element_type(0), get_input_partial_shape(past_incomplete_rope));
}

std::shared_ptr<ov::Node> EmptyOp::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    check_new_args_count(this, inputs);
    return std::make_shared<EmptyOp>(inputs);
}

bool EmptyOp::has_evaluate() const { return true; }

bool EmptyOp::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    outputs[0].set_shape(inputs[past_block_index_keys].get_shape());
    outputs[1].set_shape(inputs[past_incomplete_raw_keys].get_shape());
    outputs[2].set_shape(inputs[past_incomplete_rope].get_shape());
    return true;
}

}  // namespace qsa
