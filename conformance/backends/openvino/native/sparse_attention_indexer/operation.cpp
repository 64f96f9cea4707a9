#include "operation.hpp"

#include <array>

#include "../common/openvino.hpp"
#include "kernel.hpp"

namespace qsa {
namespace {

enum Port : std::size_t { index_query, block_index_keys, key_length_port, index_weights, port_count };
constexpr std::array<const char*, port_count> port_names{"index_query", "block_index_keys", "key_length", "index_weights"};
const Rules rules{"SparseAttentionIndexer", port_names.data()};

struct Sizes {
    ov::Dimension N, Hi, L, Di, B;
};

// ERR-1, but for what needs the number of index heads.
void check_attributes(std::int64_t r, std::int64_t budget, std::int64_t Hs) {
    if (r < 1) rules.refuse(1, "key_block_size", join("it is ", r, ", but must be at least 1"));
    if (budget < 1 || budget % r != 0)
        rules.refuse(1, "token_budget", join("it is ", budget, ", but must be a positive multiple of key_block_size ", r));
    if (Hs < 1) rules.refuse(1, "num_selection_heads", join("it is ", Hs, ", but must be at least 1"));
}

// ERR-3.
ov::element::Type check_types(const ov::element::Type* types, std::size_t count) {
    rules.whole(types[key_length_port], key_length_port);
    std::vector<std::size_t> floats{index_query, block_index_keys};
    if (count > index_weights) floats.push_back(index_weights);
    return rules.common_float(types, floats);
}

// ERR-2, and the part of ERR-1 that needs the number of index heads.
Sizes check_shapes(const ov::PartialShape* shapes, std::size_t count, std::int64_t Hs) {
    const bool weighted = count > index_weights;
    rules.rank(shapes[index_query], index_query, 4);
    rules.rank(shapes[block_index_keys], block_index_keys, 3);
    rules.rank(shapes[key_length_port], key_length_port, 1);
    if (weighted) rules.rank(shapes[index_weights], index_weights, 3);
    Agreement N(rules, "N"), Hi(rules, "Hi"), L(rules, "L"), Di(rules, "Di");
    const auto add = [&](Agreement& agreement, Port port, std::size_t axis) { agreement.add(port, shapes[port], axis); };
    add(N, index_query, 0);
    add(N, block_index_keys, 0);
    const auto& lengths = shapes[key_length_port];
    if (lengths.rank().is_static() && !lengths[0].compatible(1)) add(N, key_length_port, 0);  // LEN-2
    if (weighted) add(N, index_weights, 0);
    add(Hi, index_query, 1);
    if (weighted) add(Hi, index_weights, 2);
    add(L, index_query, 2);
    if (weighted) add(L, index_weights, 1);
    add(Di, index_query, 3);
    add(Di, block_index_keys, 2);
    Sizes sizes{N.settle(), Hi.settle(), L.settle(), Di.settle(), {}};
    if (shapes[block_index_keys].rank().is_static()) sizes.B = shapes[block_index_keys][1];
    if (sizes.Hi == 0) rules.refuse(2, "index_query", "it has no index heads");
    if (sizes.Di == 0) rules.refuse(2, "index_query", "its index keys have no elements");
    if (sizes.Hi.is_static() && sizes.Hi.get_length() % Hs != 0)
        rules.refuse(1, "num_selection_heads", join("it is ", Hs, ", but must divide the number of index heads ", sizes.Hi));
    return sizes;
}

// ERR-5.
void check_lengths(const ov::Tensor& lengths, const Sizes& sizes, std::int64_t r) {
    if (sizes.N == 0) return;
    const LengthType type = length_type(lengths.get_element_type());
    const std::int64_t B = sizes.B.get_length();
    for (std::size_t n = 0; n < lengths.get_size(); ++n) {
        const std::int64_t S = key_length(lengths.data(), type, lengths.get_size(), n);
        if (S < 0) rules.refuse(5, "key_length", join("key_length[", n, "] is ", S, ", but must not be negative"));
        if (S / r > B)
            rules.refuse(5, "block_index_keys", join("it holds ", B, " block keys, but key_length[", n, "] = ", S, " means ", S / r));
    }
}

std::array<ov::PartialShape, 2> output_shapes(const Sizes& sizes, std::int64_t Hs, std::int64_t K) {
    return {ov::PartialShape{sizes.N, Hs, sizes.L, K}, ov::PartialShape{sizes.N, Hs, sizes.L}};
}

}  // namespace

SparseAttentionIndexer::SparseAttentionIndexer(const ov::OutputVector& inputs, std::int64_t key_block_size,
                                               std::int64_t token_budget, std::int64_t num_selection_heads)
    : Op(inputs), m_key_block_size(key_block_size), m_token_budget(token_budget), m_num_selection_heads(num_selection_heads) {
    constructor_validate_and_infer_types();
}

bool SparseAttentionIndexer::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("key_block_size", m_key_block_size);
    visitor.on_attribute("token_budget", m_token_budget);
    visitor.on_attribute("num_selection_heads", m_num_selection_heads);
    return true;
}

std::shared_ptr<ov::Node> SparseAttentionIndexer::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    return std::make_shared<SparseAttentionIndexer>(inputs, m_key_block_size, m_token_budget, m_num_selection_heads);
}

void SparseAttentionIndexer::validate_and_infer_types() {
    const std::size_t count = get_input_size();
    check_input_count(rules, count, index_weights, port_count);
    check_attributes(m_key_block_size, m_token_budget, m_num_selection_heads);
    std::array<ov::element::Type, port_count> types;
    std::array<ov::PartialShape, port_count> shapes;
    inputs_of(*this, types.data(), shapes.data());
    check_types(types.data(), count);
    const Sizes sizes = check_shapes(shapes.data(), count, m_num_selection_heads);
    const auto outputs = output_shapes(sizes, m_num_selection_heads, m_token_budget / m_key_block_size);
    set_output_size(2);
    for (std::size_t i = 0; i < 2; ++i) set_output_type(i, ov::element::i32, outputs[i]);
}

bool SparseAttentionIndexer::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const std::size_t count = inputs.size();
    check_input_count(rules, count, index_weights, port_count);
    std::array<ov::element::Type, port_count> types;
    std::array<ov::PartialShape, port_count> shapes;
    for (std::size_t port = 0; port < count; ++port) {
        types[port] = inputs[port].get_element_type();
        shapes[port] = inputs[port].get_shape();
    }
    const auto T = check_types(types.data(), count);
    const Sizes sizes = check_shapes(shapes.data(), count, m_num_selection_heads);
    check_lengths(inputs[key_length_port], sizes, m_key_block_size);
    const auto wanted = output_shapes(sizes, m_num_selection_heads, m_token_budget / m_key_block_size);
    for (std::size_t i = 0; i < 2; ++i) set_shape(outputs[i], wanted[i]);

    indexer::Problem p;
    p.element_type = element_type(T);
    p.length_type = length_type(types[key_length_port]);
    p.N = sizes.N.get_length();
    p.Hi = sizes.Hi.get_length();
    p.L = sizes.L.get_length();
    p.Di = sizes.Di.get_length();
    p.B = sizes.B.get_length();
    p.Hs = m_num_selection_heads;
    p.r = m_key_block_size;
    p.K = m_token_budget / m_key_block_size;
    p.index_query = data_of(inputs[index_query]);
    p.block_index_keys = data_of(inputs[block_index_keys]);
    p.key_length = data_of(inputs[key_length_port]);
    p.length_count = inputs[key_length_port].get_size();
    p.index_weights = count > index_weights ? data_of(inputs[index_weights]) : nullptr;
    p.block_indices = static_cast<std::int32_t*>(data_of(outputs[0]));
    p.block_count = static_cast<std::int32_t*>(data_of(outputs[1]));
    indexer::select(p, OpenVINOWorkers());
    return true;
}

}  // namespace qsa
