#include "operation.hpp"

#include <array>

#include "../common/openvino.hpp"
#include "kernel.hpp"

namespace qsa {
namespace {

enum Port : std::size_t {
    query,
    key,
    value,
    block_indices,
    block_count,
    key_length_port,
    scale,
    sinks,
    port_count
};
constexpr std::array<const char*, port_count> port_names{"query",       "key",        "value", "block_indices",
                                                         "block_count", "key_length", "scale", "sinks"};
const Rules rules{"SparseAttention", port_names.data()};

struct Sizes {
    ov::Dimension N, H, Hkv, Hs, L, S, E, Ev, KB;
};

// ERR-1.
void check_attributes(std::int64_t r, std::int64_t qb) {
    if (r < 1) rules.refuse(1, "key_block_size", join("it is ", r, ", but must be at least 1"));
    if (qb < 1) rules.refuse(1, "query_block_size", join("it is ", qb, ", but must be at least 1"));
}

// ERR-3.
ov::element::Type check_types(const ov::element::Type* types, std::size_t count) {
    rules.whole(types[block_indices], block_indices);
    rules.whole(types[block_count], block_count);
    if (types[block_indices].is_static() && types[block_count].is_static() && types[block_indices] != types[block_count])
        rules.refuse(3, "block_count", join("its type is ", types[block_count], ", but that of block_indices ", types[block_indices]));
    if (count > key_length_port) rules.whole(types[key_length_port], key_length_port);
    std::vector<std::size_t> floats{query, key, value};
    for (const std::size_t port : {scale, sinks})
        if (count > port) floats.push_back(port);
    return rules.common_float(types, floats);
}

ov::Dimension groups(const ov::Dimension& L, std::int64_t qb) {
    const auto most = L.get_max_length();
    return {(L.get_min_length() + qb - 1) / qb, most < 0 ? -1 : (most + qb - 1) / qb};
}

void check_multiple(const ov::Dimension& H, const ov::Dimension& of, const char* symbol, const std::string& names) {
    if (H.is_static() && of.is_static() && of.get_length() > 0 && H.get_length() % of.get_length() != 0)
        rules.refuse(2, names, join("the number of query heads ", H, " is not a multiple of ", symbol, " = ", of));
}

// The query tokens say how many groups there are; a selection with other rows is at fault, alone or both of its ports.
void check_groups(const ov::PartialShape* shapes, const ov::Dimension& Lq) {
    std::vector<std::size_t> odd;
    for (const std::size_t port : {block_indices, block_count})
        if (shapes[port].rank().is_static() && !shapes[port][2].compatible(Lq)) odd.push_back(port);
    if (!odd.empty())
        rules.refuse(2, rules.list_names(odd),
                     join("it has ", shapes[odd.front()][2], " rows, but there are ", Lq, " groups of query tokens"));
}

// ERR-2.
Sizes check_shapes(const ov::PartialShape* shapes, std::size_t count, std::int64_t qb) {
    for (const std::size_t port : {query, key, value, block_indices}) rules.rank(shapes[port], port, 4);
    rules.rank(shapes[block_count], block_count, 3);
    const bool lengths = count > key_length_port;
    if (lengths) rules.rank(shapes[key_length_port], key_length_port, 1);
    if (count > scale && !shapes[scale].compatible(ov::PartialShape{}) && !shapes[scale].compatible(ov::PartialShape{1}))
        rules.refuse(2, "scale", join("its shape is ", shapes[scale], ", but it is a scalar or [1]"));
    if (count > sinks) rules.rank(shapes[sinks], sinks, 1);
    Agreement N(rules, "N"), H(rules, "H"), Hkv(rules, "Hkv"), Hs(rules, "Hs"), S(rules, "S"), E(rules, "E");
    const auto add = [&](Agreement& agreement, Port port, std::size_t axis) { agreement.add(port, shapes[port], axis); };
    for (const Port port : {query, key, value, block_indices, block_count}) add(N, port, 0);
    if (lengths && shapes[key_length_port].rank().is_static() && !shapes[key_length_port][0].compatible(1))
        add(N, key_length_port, 0);
    add(H, query, 1);
    if (count > sinks) add(H, sinks, 0);
    add(Hkv, key, 1);
    add(Hkv, value, 1);
    add(Hs, block_indices, 1);
    add(Hs, block_count, 1);
    add(S, key, 2);
    add(S, value, 2);
    add(E, query, 3);
    add(E, key, 3);
    ov::Dimension L, Ev, KB;
    if (shapes[query].rank().is_static()) {
        L = shapes[query][2];
        check_groups(shapes, groups(L, qb));
    }
    if (shapes[value].rank().is_static()) Ev = shapes[value][3];
    if (shapes[block_indices].rank().is_static()) KB = shapes[block_indices][3];
    Sizes sizes{N.settle(), H.settle(), Hkv.settle(), Hs.settle(), L, S.settle(), E.settle(), Ev, KB};
    if (sizes.H == 0) rules.refuse(2, "query", "it has no heads");
    if (sizes.Hkv == 0) rules.refuse(2, "key,value", "they have no heads");
    if (sizes.Hs == 0) rules.refuse(2, "block_indices,block_count", "they have no selections");
    if (sizes.E == 0) rules.refuse(2, "query,key", "their rows have no elements");
    if (sizes.Ev == 0) rules.refuse(2, "value", "its rows have no elements");
    check_multiple(sizes.H, sizes.Hkv, "Hkv", "key,value");
    check_multiple(sizes.H, sizes.Hs, "Hs", "block_indices,block_count");
    return sizes;
}

// ERR-5. Entries of padding rows, and entries from the count on, are not looked at (LEN-4, SEL-1).
void check_values(const attention::Problem& p) {
    if (p.N == 0) return;
    const auto at = [](const void* data, LengthType type, std::size_t i) {
        return type == LengthType::i32 ? static_cast<const std::int32_t*>(data)[i] : static_cast<const std::int64_t*>(data)[i];
    };
    const auto S = static_cast<std::int64_t>(p.S), L = static_cast<std::int64_t>(p.L), r = static_cast<std::int64_t>(p.r);
    const auto qb = static_cast<std::int64_t>(p.qb), KB = static_cast<std::int64_t>(p.KB), Lq = (L + qb - 1) / qb;
    for (std::size_t n = 0; n < p.length_count && p.key_length != nullptr; ++n) {
        const std::int64_t Sn = at(p.key_length, p.length_type, n);
        if (Sn < 0 || Sn > S)
            rules.refuse(5, "key_length", join("key_length[", n, "] is ", Sn, ", but must lie in 0 .. S = ", S));
    }
    for (std::size_t n = 0; n < p.N; ++n) {
        const std::int64_t Sn = p.key_length == nullptr ? S : key_length(p.key_length, p.length_type, p.length_count, n);
        for (std::size_t g = 0; g < p.Hs; ++g)
            for (std::int64_t i = 0; i < Lq; ++i) {
                const std::int64_t last = Sn - L + std::min(i * qb + qb, L) - 1;  // position of the group's last query
                if (p.causal && last < 0) continue;
                const std::int64_t limit = !p.causal ? (Sn + r - 1) / r : p.qb == 1 ? (last + 1) / r : last / r + 1;
                const std::size_t row = (n * p.Hs + g) * static_cast<std::size_t>(Lq) + static_cast<std::size_t>(i);
                const std::int64_t count = at(p.block_count, p.index_type, row);
                if (count < 0 || count > KB)
                    rules.refuse(5, "block_count", join("a count is ", count, ", but must lie in 0 .. ", KB));
                for (std::int64_t k = 0; k < count; ++k) {
                    const std::int64_t block = at(p.block_indices, p.index_type, row * p.KB + static_cast<std::size_t>(k));
                    if (block < 0 || block >= limit)
                        rules.refuse(5, "block_indices", join("an entry is ", block, ", but must lie in 0 .. ", limit - 1));
                }
            }
    }
}

}  // namespace

SparseAttention::SparseAttention(const ov::OutputVector& inputs, std::int64_t key_block_size, std::int64_t query_block_size,
                                 bool causal)
    : Op(inputs), m_key_block_size(key_block_size), m_query_block_size(query_block_size), m_causal(causal) {
    constructor_validate_and_infer_types();
}

bool SparseAttention::visit_attributes(ov::AttributeVisitor& visitor) {
    visitor.on_attribute("key_block_size", m_key_block_size);
    visitor.on_attribute("query_block_size", m_query_block_size);
    visitor.on_attribute("causal", m_causal);
    return true;
}

std::shared_ptr<ov::Node> SparseAttention::clone_with_new_inputs(const ov::OutputVector& inputs) const {
    return std::make_shared<SparseAttention>(inputs, m_key_block_size, m_query_block_size, m_causal);
}

void SparseAttention::validate_and_infer_types() {
    const std::size_t count = get_input_size();
    check_input_count(rules, count, key_length_port, port_count);
    check_attributes(m_key_block_size, m_query_block_size);
    std::array<ov::element::Type, port_count> types;
    std::array<ov::PartialShape, port_count> shapes;
    inputs_of(*this, types.data(), shapes.data());
    const auto T = check_types(types.data(), count);
    const Sizes sizes = check_shapes(shapes.data(), count, m_query_block_size);
    set_output_size(1);
    set_output_type(0, T, ov::PartialShape{sizes.N, sizes.H, sizes.L, sizes.Ev});
}

bool SparseAttention::evaluate(ov::TensorVector& outputs, const ov::TensorVector& inputs) const {
    const std::size_t count = inputs.size();
    check_input_count(rules, count, key_length_port, port_count);
    std::array<ov::element::Type, port_count> types;
    std::array<ov::PartialShape, port_count> shapes;
    for (std::size_t port = 0; port < count; ++port) {
        types[port] = inputs[port].get_element_type();
        shapes[port] = inputs[port].get_shape();
    }
    const auto T = check_types(types.data(), count);
    const Sizes sizes = check_shapes(shapes.data(), count, m_query_block_size);

    attention::Problem p{};
    p.element_type = element_type(T);
    p.index_type = length_type(types[block_indices]);
    p.N = sizes.N.get_length();
    p.H = sizes.H.get_length();
    p.Hkv = sizes.Hkv.get_length();
    p.Hs = sizes.Hs.get_length();
    p.L = sizes.L.get_length();
    p.S = sizes.S.get_length();
    p.E = sizes.E.get_length();
    p.Ev = sizes.Ev.get_length();
    p.KB = sizes.KB.get_length();
    p.r = m_key_block_size;
    p.qb = m_query_block_size;
    p.causal = m_causal;
    p.query = data_of(inputs[query]);
    p.key = data_of(inputs[key]);
    p.value = data_of(inputs[value]);
    p.block_indices = data_of(inputs[block_indices]);
    p.block_count = data_of(inputs[block_count]);
    if (count > key_length_port) {
        p.length_type = length_type(types[key_length_port]);
        p.key_length = data_of(inputs[key_length_port]);
        p.length_count = inputs[key_length_port].get_size();
    }
    p.scale = count > scale ? data_of(inputs[scale]) : nullptr;
    p.sinks = count > sinks ? data_of(inputs[sinks]) : nullptr;
    check_values(p);
    set_shape(outputs[0], ov::PartialShape{sizes.N, sizes.H, sizes.L, sizes.Ev});
    p.output = data_of(outputs[0]);
    attention::attend(p, OpenVINOWorkers());
    return true;
}

}  // namespace qsa
