// How an operation refuses: a fixed form of message, and dimensions and types on which several ports must agree.
#pragma once

#include <algorithm>
#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <openvino/core/except.hpp>
#include <openvino/core/partial_shape.hpp>
#include <openvino/core/type/element_type.hpp>

namespace qsa {

template <class... Parts>
std::string join(const Parts&... parts) {
    std::ostringstream text;
    (text << ... << parts);
    return text.str();
}

// The operation's name and those of its ports, by number.
struct Rules {
    const char* operation;
    const char* const* ports;

    std::string list_names(const std::vector<std::size_t>& which) const {
        std::string names;
        for (const std::size_t port : which) names += (names.empty() ? "" : ",") + std::string(ports[port]);
        return names;
    }

    // A message that starts with OPERATION[ERR-<number> <kind> <ports or attributes, comma separated>].
    [[noreturn]] void refuse(int error, const char* kind, const std::string& names, const std::string& text) const {
        OPENVINO_THROW(operation, "[ERR-", error, " ", kind, " ", names, "]: ", text);
    }
    [[noreturn]] void refuse(int error, const std::string& names, const std::string& text) const {
        static const char* const kinds[] = {"attribute", "shape", "type", "rope", "value"};
        refuse(error, kinds[error - 1], names, text);
    }

    void rank(const ov::PartialShape& shape, std::size_t port, std::int64_t wanted) const {
        if (shape.rank().is_dynamic() || shape.rank().get_length() == wanted) return;
        refuse(2, ports[port], join("its shape is ", shape, ", but it has ", wanted, " dimensions"));
    }

    // A port of i32 or i64.
    void whole(const ov::element::Type& type, std::size_t port) const {
        if (type.is_dynamic() || type == ov::element::i32 || type == ov::element::i64) return;
        refuse(3, ports[port], join("its type is ", type, ", but must be i32 or i64"));
    }

    // The one type of these ports: f32, f16 or bf16, or dynamic where none is known. The first port is right unless most
    // others agree against it.
    ov::element::Type common_float(const ov::element::Type* types, const std::vector<std::size_t>& which) const {
        using namespace ov::element;
        std::vector<std::size_t> known;
        for (const std::size_t port : which) {
            if (types[port].is_dynamic()) continue;
            if (types[port] != f32 && types[port] != f16 && types[port] != bf16)
                refuse(3, ports[port], join("its type is ", types[port], ", but must be f32, f16 or bf16"));
            known.push_back(port);
        }
        if (known.empty()) return dynamic;
        const auto count = [&](const Type& type) {
            return std::count_if(known.begin(), known.end(), [&](std::size_t port) { return types[port] == type; });
        };
        Type wanted = types[known.front()];
        for (const std::size_t port : known)
            if (2 * count(types[port]) > static_cast<std::ptrdiff_t>(known.size())) wanted = types[port];
        std::vector<std::size_t> odd;
        for (const std::size_t port : known)
            if (types[port] != wanted) odd.push_back(port);
        if (!odd.empty())
            refuse(3, list_names(odd), join("its type is ", types[odd.front()], ", but the other inputs are ", wanted));
        return wanted;
    }
};

// One dimension as several ports state it. The first is taken as right unless all others, two at least, agree against it.
class Agreement {
public:
    Agreement(const Rules& rules, const char* symbol) : m_rules(rules), m_symbol(symbol) {}

    void add(std::size_t port, const ov::Dimension& value) { m_claims.push_back({port, value}); }
    void add(std::size_t port, const ov::PartialShape& shape, std::size_t axis) {
        if (shape.rank().is_static()) add(port, shape[axis]);
    }

    ov::Dimension settle() const {
        ov::Dimension common = ov::Dimension::dynamic();
        bool agreed = true;
        for (const Claim& claim : m_claims) agreed = agreed && ov::Dimension::merge(common, common, claim.value);
        if (!agreed) refuse_conflict();
        return common;
    }

private:
    struct Claim {
        std::size_t port;
        ov::Dimension value;
    };

    [[noreturn]] void refuse_conflict() const {
        const Claim& first = m_claims.front();
        std::vector<Claim> others;
        for (const Claim& claim : m_claims)
            if (!claim.value.compatible(first.value)) others.push_back(claim);
        const bool against_first =
            others.size() >= 2 && others.size() + 1 == m_claims.size() &&
            std::all_of(others.begin(), others.end(),
                        [&](const Claim& claim) { return claim.value.compatible(others.front().value); });
        if (against_first) say({first.port}, first.value, others.front());
        if (others.empty()) others.push_back(m_claims.back());  // ranges that overlap in pairs only
        std::vector<std::size_t> odd;
        for (const Claim& claim : others) odd.push_back(claim.port);
        say(odd, others.front().value, first);
    }

    [[noreturn]] void say(const std::vector<std::size_t>& odd, const ov::Dimension& got, const Claim& wanted) const {
        m_rules.refuse(2, m_rules.list_names(odd),
                       join(m_symbol, " is ", got, " there, but ", wanted.value, " in ", m_rules.ports[wanted.port]));
    }

    const Rules& m_rules;
    const char* m_symbol;
    std::vector<Claim> m_claims;
};

}  // namespace qsa
