#include "ports.hpp"

#include <algorithm>
#include <sstream>
#include <vector>

#include <openvino/core/except.hpp>

#include "../common/rules.hpp"
#include "kernel.hpp"

namespace qsa {
namespace {

using ov::Dimension;
using ov::PartialShape;

const Rules rules{"QSAPrepare", port_names.data()};

// A feature is off when the port has no last dimension to speak of; [N, 0, Dr] with Dr > 0 is on without tokens (OFF-3).
enum class Presence { on, off, unknown };

Presence presence(const PartialShape& shape) {
    if (shape.rank().is_dynamic()) return Presence::unknown;
    if (shape.rank().get_length() == 0) return Presence::on;
    const Dimension& last = *shape.rbegin();
    if (last.get_min_length() > 0) return Presence::on;
    return last.is_static() ? Presence::off : Presence::unknown;
}

void check_ranks(const Shapes& shapes) {
    static constexpr std::array<std::int64_t, port_count> ranks{3, 3, 1, 3, 3, 1, 3, 2};
    static constexpr std::array<bool, port_count> may_be_off{false, false, false, true, true, true, false, true};
    for (std::size_t port = 0; port < port_count; ++port) {
        const auto& rank = shapes[port].rank();
        if (rank.is_dynamic() || rank.get_length() == ranks[port]) continue;
        if (may_be_off[port] && presence(shapes[port]) != Presence::on) continue;
        rules.refuse(2, port_names[port], join("its shape is ", shapes[port], ", but it has ", ranks[port], " dimensions"));
    }
}

// All of rope_cos, rope_sin and past_incomplete_rope, or none; the odd one out is named (ERR-4).
bool check_rope_presence(const Shapes& shapes) {
    std::vector<std::size_t> on, off;
    for (const Port port : {rope_cos, rope_sin, past_incomplete_rope}) {
        const Presence p = presence(shapes[port]);
        if (p == Presence::on) on.push_back(port);
        if (p == Presence::off) off.push_back(port);
    }
    if (!on.empty() && !off.empty()) {
        const auto& odd = off.size() <= on.size() ? off : on;
        rules.refuse(4, rules.list_names(odd),
               join(rules.list_names(off), " has no elements while ", rules.list_names(on),
                    " has: rotation needs rope_cos, rope_sin and past_incomplete_rope, or none of them"));
    }
    return !on.empty();
}

// Dr from the last dimension of past_incomplete_rope, which holds cos and sin.
Dimension half_of(const Dimension& both) {
    if (both.is_static() && both.get_length() % 2 != 0)
        rules.refuse(2, port_names[past_incomplete_rope], join("its last dimension is ", both, ", but it holds cos and sin: 2*Dr"));
    const auto most = both.get_max_length();
    return {(both.get_min_length() + 1) / 2, most < 0 ? -1 : most / 2};
}

Dimension twice(const Dimension& Dr) {
    const auto most = Dr.get_max_length();
    return {2 * Dr.get_min_length(), most < 0 ? -1 : 2 * most};
}

Dimension agree_on_N(const Shapes& shapes, bool rope) {
    Agreement N(rules, "N");
    N.add(raw_index_keys, shapes[raw_index_keys], 0);
    N.add(past_block_index_keys, shapes[past_block_index_keys], 0);
    const PartialShape& lengths = shapes[key_length_port];
    if (lengths.rank().is_static() && !lengths[0].compatible(1)) N.add(key_length_port, lengths[0]);  // LEN-2
    if (rope) {
        N.add(rope_cos, shapes[rope_cos], 0);
        N.add(rope_sin, shapes[rope_sin], 0);
    }
    N.add(past_incomplete_raw_keys, shapes[past_incomplete_raw_keys], 0);
    if (rope) N.add(past_incomplete_rope, shapes[past_incomplete_rope], 0);
    return N.settle();
}

Dimension agree_on_Di(const Shapes& shapes, bool norm) {
    Agreement Di(rules, "Di");
    Di.add(raw_index_keys, shapes[raw_index_keys], 2);
    Di.add(past_block_index_keys, shapes[past_block_index_keys], 2);
    if (norm) Di.add(k_norm_weight, shapes[k_norm_weight], 0);
    Di.add(past_incomplete_raw_keys, shapes[past_incomplete_raw_keys], 2);
    return Di.settle();
}

Dimension agree_on_L(const Shapes& shapes, bool rope) {
    Agreement L(rules, "L");
    L.add(raw_index_keys, shapes[raw_index_keys], 1);
    if (rope) {
        L.add(rope_cos, shapes[rope_cos], 1);
        L.add(rope_sin, shapes[rope_sin], 1);
    }
    return L.settle();
}

Dimension agree_on_Dr(const Shapes& shapes, const Dimension& Di) {
    Agreement width(rules, "Dr");
    width.add(rope_cos, shapes[rope_cos], 2);
    width.add(rope_sin, shapes[rope_sin], 2);
    if (shapes[past_incomplete_rope].rank().is_static())
        width.add(past_incomplete_rope, half_of(shapes[past_incomplete_rope][1]));
    const Dimension Dr = width.settle();
    if (Dr.is_static() && Dr.get_length() % 2 != 0)
        rules.refuse(4, "rope_cos,rope_sin,past_incomplete_rope", join("Dr is ", Dr, ", but the rotary width is even"));
    if (Di.is_static() && Dr.get_min_length() > Di.get_length())
        rules.refuse(4, "rope_cos,rope_sin,past_incomplete_rope", join("Dr is ", Dr, ", but an index key has only ", Di, " elements"));
    return Dr;
}

std::int64_t length(const Dimension& dimension) { return dimension.get_length(); }
std::int64_t length(std::size_t size) { return static_cast<std::int64_t>(size); }

// The usual call, in which everything is right, without the notes that explain what is wrong: false for any other, of
// which `check_shapes` then says more. All dimensions are known. `shape` gives the shape of a port.
template <class ShapeOf>
bool settle(const ShapeOf& shape, std::int64_t r, Layout& layout) {
    const auto size = [&](Port port, std::size_t axis) { return length(shape(port)[axis]); };
    const auto on = [&](Port port) { return shape(port).size() == 0 || size(port, shape(port).size() - 1) > 0; };
    for (const Port port : {raw_index_keys, past_block_index_keys, past_incomplete_raw_keys})
        if (shape(port).size() != 3) return false;
    if (shape(key_length_port).size() != 1) return false;
    const auto N = size(raw_index_keys, 0), L = size(raw_index_keys, 1), Di = size(raw_index_keys, 2);
    if (size(past_block_index_keys, 0) != N || size(past_block_index_keys, 2) != Di) return false;
    if (size(past_incomplete_raw_keys, 0) != N || size(past_incomplete_raw_keys, 1) != r - 1 ||
        size(past_incomplete_raw_keys, 2) != Di)
        return false;
    if (size(key_length_port, 0) != N && size(key_length_port, 0) != 1) return false;
    const bool norm = on(k_norm_weight);
    if (norm && (shape(k_norm_weight).size() != 1 || size(k_norm_weight, 0) != Di)) return false;
    const bool rope = on(rope_cos);
    if (on(rope_sin) != rope || on(past_incomplete_rope) != rope) return false;
    std::int64_t Dr = 0;
    if (rope) {
        if (shape(rope_cos).size() != 3 || shape(past_incomplete_rope).size() != 2) return false;
        Dr = size(rope_cos, 2);
        if (shape(rope_sin) != shape(rope_cos) || size(rope_cos, 0) != N || size(rope_cos, 1) != L) return false;
        if (size(past_incomplete_rope, 0) != N || size(past_incomplete_rope, 1) != 2 * Dr) return false;
        if (Dr % 2 != 0 || Dr > Di) return false;
    }
    layout = {N, L, Di, Dr, size(past_block_index_keys, 1), rope, norm};
    return true;
}

}  // namespace

std::int64_t Lengths::operator[](std::size_t n) const {
    return key_length(data, type == ov::element::i32 ? LengthType::i32 : LengthType::i64, count, n);
}

void check_attributes(std::int64_t key_block_size, double epsilon) {
    if (key_block_size < 2) rules.refuse(1, "key_block_size", join("it is ", key_block_size, ", but must be at least 2"));
    if (!(epsilon >= 0)) rules.refuse(1, "epsilon", join("it is ", epsilon, ", but must not be negative or NaN"));
}

ov::element::Type check_types(const Types& types) {
    rules.whole(types[key_length_port], key_length_port);
    std::vector<std::size_t> floats;
    for (std::size_t port = 0; port < port_count; ++port)
        if (port != key_length_port) floats.push_back(port);
    return rules.common_float(types.data(), floats);
}

Layout check_shapes(const ov::TensorVector& tensors, std::int64_t r) {
    Layout layout;
    if (settle([&](Port port) -> const ov::Shape& { return tensors[port].get_shape(); }, r, layout)) return layout;
    Shapes shapes;
    for (std::size_t port = 0; port < port_count; ++port) shapes[port] = tensors[port].get_shape();
    return check_shapes(shapes, r);
}

Layout check_shapes(const Shapes& shapes, std::int64_t r) {
    Layout layout;
    const bool known = std::all_of(shapes.begin(), shapes.end(), [](const PartialShape& shape) { return shape.is_static(); });
    if (known && settle([&](Port port) -> const PartialShape& { return shapes[port]; }, r, layout)) return layout;
    check_ranks(shapes);
    layout.rope = check_rope_presence(shapes);
    layout.norm = presence(shapes[k_norm_weight]) == Presence::on;
    layout.N = agree_on_N(shapes, layout.rope);
    layout.Di = agree_on_Di(shapes, layout.norm);
    layout.L = agree_on_L(shapes, layout.rope);
    if (layout.rope) {
        layout.Dr = agree_on_Dr(shapes, layout.Di);
    } else {
        layout.Dr = presence(shapes[rope_cos]) == Presence::off ? Dimension(0) : Dimension::dynamic();
    }
    layout.Bp = shapes[past_block_index_keys].rank().is_static() ? shapes[past_block_index_keys][1] : Dimension();

    const PartialShape& lengths = shapes[key_length_port];
    if (lengths.rank().is_static() && !lengths[0].compatible(1) && !lengths[0].compatible(layout.N))
        rules.refuse(2, "key_length", join("its shape is ", lengths, ", but must be [1] or [N], N = ", layout.N));
    const PartialShape& raw = shapes[past_incomplete_raw_keys];
    if (raw.rank().is_static() && !raw[1].compatible(r - 1))
        rules.refuse(2, "past_incomplete_raw_keys",
               join("its shape is ", raw, ", but the second dimension is key_block_size - 1 = ", r - 1));
    return layout;
}

Dimension check_lengths(const Lengths& lengths, const Layout& layout, std::int64_t r) {
    std::int64_t most = 0;
    for (std::size_t n = 0; n < lengths.count; ++n) {
        const std::int64_t S = lengths[n];
        if (S < 0) rules.refuse(5, "key_length", join("key_length[", n, "] is ", S, ", but must not be negative"));
        if (layout.L.is_static() && layout.Bp.get_max_length() >= 0 && layout.N.get_max_length() != 0) {
            const std::int64_t c = std::max<std::int64_t>(S - layout.L.get_length(), 0) / r;
            if (c > layout.Bp.get_max_length())
                rules.refuse(5, "past_block_index_keys",
                       join("it holds Bp = ", layout.Bp, " block keys, but key_length[", n, "] = ", S, " with L = ",
                            layout.L, " means ", c, " finished blocks"));
        }
        most = std::max(most, S / r);
    }
    if (layout.N.get_max_length() == 0) return 0;
    return layout.N.get_min_length() > 0 ? Dimension(most) : Dimension(0, most);
}

Dimension bound_blocks(const Layout& layout, std::int64_t r) {
    if (layout.N.is_static() && layout.N.get_length() == 0) return 0;
    const auto L = layout.L.get_max_length(), Bp = layout.Bp.get_max_length();
    return L < 0 || Bp < 0 ? Dimension(0, -1) : Dimension(0, Bp + (L + r - 1) / r);
}

std::array<PartialShape, 3> output_shapes(const Layout& layout, const Dimension& B, const PartialShape& past_rope,
                                          std::int64_t r) {
    PartialShape rope = PartialShape::dynamic();
    if (past_rope.rank().is_static() && past_rope.rank().get_length() != 2)
        rope = PartialShape{0};
    else if (past_rope.rank().is_static() || layout.rope)
        rope = PartialShape{layout.N, twice(layout.Dr)};
    return {PartialShape{layout.N, B, layout.Di}, PartialShape{layout.N, r - 1, layout.Di}, rope};
}

}  // namespace qsa
