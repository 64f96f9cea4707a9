// QSAPrepare as a plug-in of qsa-conformance, in one file and without any dependency.
//
//     c++ -std=c++17 -O2 -o qsa_prepare_plugin qsa_prepare_plugin.cpp
//     qsa-conformance run -b "cmd:./qsa_prepare_plugin"
//
// Replace the class Operation by a call of your own implementation; the rest can stay.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Int = std::int64_t;
using Shape = std::vector<Int>;

// What the contract forbids; becomes the answer `rejected`.
struct Refused {
    std::string kind, phase;
    std::vector<std::string> names;
};

// What this plug-in cannot do; becomes the answer `unsupported`.
struct Unsupported {
    std::string feature, reason;
};

// ---------------------------------------------------------------------------------------------------------------- JSON

struct Json {
    enum class Kind { null, boolean, number, text, list, object } kind = Kind::null;
    double number = 0;  // of a boolean 0 or 1; whole numbers are exact up to 2^53
    std::string text;
    std::vector<Json> items;
    std::map<std::string, Json> fields;

    bool has(const std::string& name) const { return fields.count(name) != 0; }

    const Json& operator[](const std::string& name) const {
        const auto found = fields.find(name);
        if (found == fields.end()) throw std::runtime_error("the request has no field '" + name + "'");
        return found->second;
    }
};

class Reader {
public:
    explicit Reader(const std::string& text) : at_(text.c_str()), end_(at_ + text.size()) {}

    Json document() {
        Json value = any();
        space();
        if (at_ != end_) fail("nothing more");
        return value;
    }

private:
    const char* at_;
    const char* end_;

    [[noreturn]] void fail(const char* wanted) const {
        throw std::runtime_error(std::string("a line that is not JSON: expected ") + wanted);
    }

    void space() {
        while (at_ != end_ && std::strchr(" \t\r\n", *at_)) ++at_;
    }

    bool take(char c) {
        space();
        if (at_ == end_ || *at_ != c) return false;
        ++at_;
        return true;
    }

    Json word(const char* spelling, Json::Kind kind, double number) {
        const std::size_t length = std::strlen(spelling);
        if (static_cast<std::size_t>(end_ - at_) < length || std::strncmp(at_, spelling, length) != 0) fail("a value");
        at_ += length;
        Json value;
        value.kind = kind;
        value.number = number;
        return value;
    }

    Json any() {
        space();
        if (at_ == end_) fail("a value");
        switch (*at_) {
            case '{': return object();
            case '[': return list();
            case '"': {
                Json value;
                value.kind = Json::Kind::text;
                value.text = string();
                return value;
            }
            case 't': return word("true", Json::Kind::boolean, 1);
            case 'f': return word("false", Json::Kind::boolean, 0);
            case 'n': return word("null", Json::Kind::null, 0);
            default: return number();
        }
    }

    Json number() {
        char* stop = nullptr;
        Json value;
        value.kind = Json::Kind::number;
        value.number = std::strtod(at_, &stop);
        if (stop == at_) fail("a number");
        at_ = stop;
        return value;
    }

    Json list() {
        Json value;
        value.kind = Json::Kind::list;
        take('[');
        if (take(']')) return value;
        do value.items.push_back(any());
        while (take(','));
        if (!take(']')) fail("a comma or ]");
        return value;
    }

    Json object() {
        Json value;
        value.kind = Json::Kind::object;
        take('{');
        if (take('}')) return value;
        do {
            space();
            if (at_ == end_ || *at_ != '"') fail("a name");
            std::string name = string();
            if (!take(':')) fail("a colon");
            value.fields[std::move(name)] = any();
        } while (take(','));
        if (!take('}')) fail("a comma or }");
        return value;
    }

    std::string string() {
        std::string text;
        ++at_;
        while (true) {
            const char* stop = at_;
            while (stop != end_ && *stop != '"' && *stop != '\\') ++stop;
            text.append(at_, stop);
            at_ = stop;
            if (end_ - at_ < 1) fail("the end of a string");
            if (*at_++ == '"') return text;
            if (at_ == end_) fail("an escape");
            const char c = *at_++;
            static const std::map<char, char> plain = {{'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'b', '\b'},
                                                       {'f', '\f'}, {'n', '\n'},  {'r', '\r'}, {'t', '\t'}};
            if (c == 'u') {
                append_utf8(text, unicode());
            } else if (plain.count(c)) {
                text += plain.at(c);
            } else {
                fail("an escape");
            }
        }
    }

    std::uint32_t hex4() {
        if (end_ - at_ < 4) fail("four hex digits");
        const std::string digits(at_, at_ + 4);
        at_ += 4;
        return static_cast<std::uint32_t>(std::stoul(digits, nullptr, 16));
    }

    std::uint32_t unicode() {
        const std::uint32_t high = hex4();
        if (high < 0xD800 || high > 0xDBFF || end_ - at_ < 6 || at_[0] != '\\' || at_[1] != 'u') return high;
        at_ += 2;
        return 0x10000 + ((high - 0xD800) << 10) + (hex4() - 0xDC00);
    }

    static void append_utf8(std::string& text, std::uint32_t code) {
        if (code < 0x80) {
            text += static_cast<char>(code);
            return;
        }
        const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        static const std::uint32_t lead[] = {0, 0xC0, 0xE0, 0xF0};
        text += static_cast<char>(lead[more] | (code >> (6 * more)));
        for (int i = more - 1; i >= 0; --i) text += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
    }
};

std::string quoted(const std::string& text) {
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (static_cast<unsigned char>(c) < 0x20) {
            char escape[8];
            std::snprintf(escape, sizeof escape, "\\u%04x", c);
            out += escape;
        } else {
            out += c;
        }
    }
    return out + '"';
}

std::string quoted(const std::vector<std::string>& texts) {
    std::string out;
    for (const auto& text : texts) out += (out.empty() ? "" : ",") + quoted(text);
    return "[" + out + "]";
}

// -------------------------------------------------------------------------------------------------------------- base64

const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

std::string to_base64(const std::string& bytes) {
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const std::size_t n = std::min<std::size_t>(3, bytes.size() - i);
        std::uint32_t bits = 0;
        for (std::size_t j = 0; j < 3; ++j) {
            bits = bits << 8 | (j < n ? static_cast<unsigned char>(bytes[i + j]) : 0u);
        }
        for (std::size_t j = 0; j < 4; ++j) out += j <= n ? kDigits[bits >> (18 - 6 * j) & 63] : '=';
    }
    return out;
}

std::string from_base64(const std::string& text) {
    static const auto values = [] {
        std::array<int, 256> table{};
        table.fill(-1);
        for (int i = 0; i < 64; ++i) table[static_cast<unsigned char>(kDigits[i])] = i;
        return table;
    }();
    std::string out;
    out.reserve(text.size() / 4 * 3);
    std::uint32_t bits = 0;
    int waiting = 0;  // bits that are not a whole byte yet
    for (const char c : text) {
        if (c == '=') break;
        const int value = values[static_cast<unsigned char>(c)];
        if (value < 0) throw std::runtime_error("data that is not base64");
        bits = bits << 6 | static_cast<std::uint32_t>(value);
        waiting += 6;
        if (waiting >= 8) {
            waiting -= 8;
            out += static_cast<char>(bits >> waiting & 0xFF);
        }
    }
    return out;
}

// ------------------------------------------------------------------------------------------------------------- tensors

struct Tensor {
    std::string type;
    Shape shape;
    std::string bytes;  // elements in C order, as they are stored
};

std::size_t size_of(const std::string& type) {
    static const std::map<std::string, std::size_t> sizes = {
        {"f64", 8}, {"f32", 4}, {"f16", 2}, {"bf16", 2}, {"i64", 8}, {"i32", 4},
        {"i16", 2}, {"i8", 1},  {"u64", 8}, {"u32", 4},  {"u16", 2}, {"u8", 1},  {"bool", 1}};
    const auto found = sizes.find(type);
    if (found == sizes.end()) throw std::runtime_error("unknown element type '" + type + "'");
    return found->second;
}

Int count(const Shape& shape) {
    Int product = 1;
    for (const Int size : shape) product *= size;
    return product;
}

Tensor zeros(const std::string& type, const Shape& shape) {
    return {type, shape, std::string(static_cast<std::size_t>(count(shape)) * size_of(type), '\0')};
}

Tensor read_tensor(const Json& json, const std::string& directory) {
    Tensor tensor;
    tensor.type = json["type"].text;
    for (const Json& size : json["shape"].items) tensor.shape.push_back(static_cast<Int>(size.number));
    const std::size_t size = static_cast<std::size_t>(count(tensor.shape)) * size_of(tensor.type);
    if (json.has("file")) {
        std::ifstream file(directory + "/" + json["file"].text, std::ios::binary);
        tensor.bytes.resize(size);
        file.read(&tensor.bytes[0], static_cast<std::streamsize>(size));
        tensor.bytes.resize(static_cast<std::size_t>(file.gcount()));
    } else {
        tensor.bytes = from_base64(json["data"].text);
    }
    if (tensor.bytes.size() != size) {
        throw std::runtime_error("a tensor whose elements do not fill its shape");
    }
    return tensor;
}

std::string write_tensor(const Tensor& tensor, const std::string& directory, std::size_t inline_limit,
                         const std::string& file_name) {
    std::string shape;
    for (const Int size : tensor.shape) shape += (shape.empty() ? "" : ",") + std::to_string(size);
    std::string out = "{\"type\":" + quoted(tensor.type) + ",\"shape\":[" + shape + "],";
    if (tensor.bytes.size() <= inline_limit) return out + "\"data\":\"" + to_base64(tensor.bytes) + "\"}";
    std::ofstream file(directory + "/" + file_name, std::ios::binary);
    if (!file.write(tensor.bytes.data(), static_cast<std::streamsize>(tensor.bytes.size()))) {
        throw std::runtime_error("cannot write " + directory + "/" + file_name);
    }
    return out + "\"file\":" + quoted(file_name) + "}";
}

// ------------------------------------------------------------------------------------------------------------ elements

template <typename To, typename From>
To bits_as(From from) {
    static_assert(sizeof(To) == sizeof(From), "same size");
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}

float from_f16(std::uint16_t half) {
    const int exponent = half >> 10 & 31;
    const int fraction = half & 1023;
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return sign * (fraction ? std::numeric_limits<float>::quiet_NaN() : HUGE_VALF);
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
    return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

std::uint16_t to_f16(float value) {
    const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return sign | 0x7E00;
    const float size = std::fabs(value);
    if (size >= 65520.0f) return sign | 0x7C00;  // from here on infinity is nearest
    // A multiple of the distance between two halves in this range; nearbyint rounds to nearest, ties to even.
    const int exponent = size < 6.103515625e-05f ? -14 : std::ilogb(size);
    const int steps = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return static_cast<std::uint16_t>(sign | (((exponent + 14) << 10) + steps));
}

float from_bf16(std::uint16_t bits) { return bits_as<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bf16(float value) {
    if (std::isnan(value)) return 0x7FC0;
    const std::uint32_t bits = bits_as<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);  // to nearest, ties to even
}

// Reads and writes stored elements of one type T.
class Elements {
public:
    const std::size_t size;

    explicit Elements(const std::string& type) : size(size_of(type)), type_(type) {}

    float get(const char* row, Int j) const {
        const char* at = row + static_cast<std::size_t>(j) * size;
        if (size == 4) {
            float value;
            std::memcpy(&value, at, 4);
            return value;
        }
        std::uint16_t bits;
        std::memcpy(&bits, at, 2);
        return type_ == "f16" ? from_f16(bits) : from_bf16(bits);
    }

    void put(char* row, Int j, float value) const {
        char* at = row + static_cast<std::size_t>(j) * size;
        if (size == 4) {
            std::memcpy(at, &value, 4);
            return;
        }
        const std::uint16_t bits = type_ == "f16" ? to_f16(value) : to_bf16(value);
        std::memcpy(at, &bits, 2);
    }

private:
    std::string type_;
};

// ------------------------------------------------------------------------------------------------------- the operation

using Tensors = std::map<std::string, Tensor>;
const std::vector<std::string> kRope = {"rope_cos", "rope_sin", "past_incomplete_rope"};

// One prepared instance. It keeps no state between calls: that is in the tensors.
class Operation {
public:
    explicit Operation(const Json& request)
        : type_(request["element_type"].text), length_type_(request["length_type"].text) {
        if (request["operation"].text != "QSAPrepare") {
            throw Unsupported{request["operation"].text, "this plug-in serves QSAPrepare only"};
        }
        const Json& attributes = request["attributes"];
        r_ = static_cast<Int>(attributes["key_block_size"].number);
        if (r_ < 2) throw Refused{"attribute", "prepare", {"key_block_size"}};
        const Json& epsilon = attributes["epsilon"];
        // What JSON has no number for comes as a word: "nan", "inf" or "-inf".
        const double value = epsilon.kind == Json::Kind::text ? std::strtod(epsilon.text.c_str(), nullptr)
                                                              : epsilon.number;
        if (!(value >= 0)) throw Refused{"attribute", "prepare", {"epsilon"}};
        epsilon_ = static_cast<float>(value);
        for (const Json& feature : request["disabled"].items) {
            (feature.text == "rope" ? rotates_ : normalizes_) = false;
        }
    }

    // The eight inputs to the three outputs, by contract name.
    Tensors run(const Tensors& in) const {
        check(in);
        const Elements T(type_);
        const Tensor& raw = in.at("raw_index_keys");
        const Tensor& past_keys = in.at("past_block_index_keys");
        const Tensor& waiting = in.at("past_incomplete_raw_keys");
        const Tensor& past_rope = in.at("past_incomplete_rope");
        const Int N = raw.shape[0], L = raw.shape[1], Di = raw.shape[2], Bp = past_keys.shape[1];
        const Int Dr = rotates_ ? in.at("rope_cos").shape[2] : 0;
        const std::vector<Int> S = lengths(in.at("key_length"), N);
        Int B = 0;
        for (const Int length : S) {
            if (length < 0) throw Refused{"value", "call", {"key_length"}};
            if (Bp < std::max<Int>(length - L, 0) / r_) throw Refused{"value", "call", {"past_block_index_keys"}};
            B = std::max(B, length / r_);
        }

        Tensor keys = zeros(type_, {N, B, Di});
        Tensor open_keys = zeros(type_, {N, r_ - 1, Di});
        Tensor open_rope = rotates_ ? zeros(type_, {N, 2 * Dr}) : zeros(type_, {0});
        // Where rows of a tensor start; rows are counted over all sequences.
        const auto row = [&](const Tensor& tensor, Int index, Int width) {
            return tensor.bytes.data() + static_cast<std::size_t>(index * width) * T.size;
        };
        const auto to_row = [&](Tensor& tensor, Int index, Int width) {
            return &tensor.bytes[0] + static_cast<std::size_t>(index * width) * T.size;
        };
        const auto copy = [&](char* to, const char* from, Int elements) {
            if (elements > 0) std::memcpy(to, from, static_cast<std::size_t>(elements) * T.size);
        };
        const std::vector<float> weight = row_of_floats(T, in.at("k_norm_weight").bytes.data(), normalizes_ ? Di : 0);

        for (Int n = 0; n < N; ++n) {
            const Int past = std::max<Int>(S[n] - L, 0);
            const Int c = past / r_, c_after = S[n] / r_, q_after = S[n] % r_;
            const auto key_of = [&](Int token) {  // tokens from c * r on are at hand
                return token < past ? row(waiting, n * (r_ - 1) + token - c * r_, Di)
                                    : row(raw, n * L + token - S[n] + L, Di);
            };
            const auto rope_of = [&](Int token, Int part) {  // of a block's first token; part 0 is cos, 1 is sin
                return token < past ? row(past_rope, 2 * n + part, Dr)
                                    : row(in.at(kRope[static_cast<std::size_t>(part)]), n * L + token - S[n] + L, Dr);
            };
            if (c > 0) copy(to_row(keys, n * B, Di), row(past_keys, n * Bp, Di), c * Di);
            for (Int b = c; b < c_after; ++b) {
                std::vector<float> y(static_cast<std::size_t>(Di), 0.0f);
                for (Int token = b * r_; token < (b + 1) * r_; ++token) {
                    const char* key = key_of(token);
                    for (Int j = 0; j < Di; ++j) y[static_cast<std::size_t>(j)] += T.get(key, j);
                }
                for (float& value : y) value /= static_cast<float>(r_);
                if (normalizes_) normalize(y, weight);
                if (rotates_) {
                    rotate(y, row_of_floats(T, rope_of(b * r_, 0), Dr), row_of_floats(T, rope_of(b * r_, 1), Dr));
                }
                char* out = to_row(keys, n * B + b, Di);
                for (Int j = 0; j < Di; ++j) T.put(out, j, y[static_cast<std::size_t>(j)]);
            }
            for (Int i = 0; i < q_after; ++i) {
                copy(to_row(open_keys, n * (r_ - 1) + i, Di), key_of(c_after * r_ + i), Di);
            }
            for (Int part = 0; rotates_ && q_after > 0 && part < 2; ++part) {
                copy(to_row(open_rope, 2 * n + part, Dr), rope_of(c_after * r_, part), Dr);
            }
        }
        return {{"block_index_keys", std::move(keys)},
                {"present_incomplete_raw_keys", std::move(open_keys)},
                {"present_incomplete_rope", std::move(open_rope)}};
    }

private:
    std::string type_, length_type_;
    Int r_ = 0;
    float epsilon_ = 0;
    bool rotates_ = true, normalizes_ = true;

    static std::vector<float> row_of_floats(const Elements& T, const char* row, Int width) {
        std::vector<float> values;
        for (Int j = 0; j < width; ++j) values.push_back(T.get(row, j));
        return values;
    }

    std::vector<Int> lengths(const Tensor& tensor, Int N) const {
        std::vector<Int> S;
        const Int given = count(tensor.shape);
        for (Int n = 0; n < N; ++n) {
            const char* at = tensor.bytes.data() + static_cast<std::size_t>(given == 1 ? 0 : n) * size_of(tensor.type);
            if (tensor.type == "i64") {
                Int value;
                std::memcpy(&value, at, 8);
                S.push_back(value);
            } else {
                std::int32_t value;
                std::memcpy(&value, at, 4);
                S.push_back(value);
            }
        }
        return S;
    }

    void normalize(std::vector<float>& y, const std::vector<float>& weight) const {
        float squares = 0;
        for (const float value : y) squares += value * value;
        const float root = std::sqrt(squares / static_cast<float>(y.size()) + epsilon_);
        for (std::size_t j = 0; j < y.size(); ++j) y[j] = y[j] / root * weight[j];
    }

    static void rotate(std::vector<float>& y, const std::vector<float>& cos, const std::vector<float>& sin) {
        const std::size_t half = cos.size() / 2;
        for (std::size_t j = 0; j < half; ++j) {
            const float a = y[j], b = y[j + half];
            y[j] = a * cos[j] - b * sin[j];
            y[j + half] = b * cos[j + half] + a * sin[j + half];
        }
    }

    bool takes_part(const std::string& name) const {
        if (std::find(kRope.begin(), kRope.end(), name) != kRope.end()) return rotates_;
        return name != "k_norm_weight" || normalizes_;
    }

    // Types and shapes, before any element is looked at.
    void check(const Tensors& in) const {
        for (const auto& [name, tensor] : in) {
            if (tensor.type != (name == "key_length" ? length_type_ : type_)) throw Refused{"type", "call", {name}};
        }
        std::vector<std::string> wrong;
        for (const auto& name : kRope) {
            const Shape& shape = in.at(name).shape;
            const bool empty = !shape.empty() && shape.back() == 0;
            if (empty == rotates_) wrong.push_back(name);
        }
        if (!wrong.empty()) throw Refused{"rope", "call", wrong};

        static const std::vector<std::pair<std::string, std::size_t>> ranks = {
            {"raw_index_keys", 3}, {"past_block_index_keys", 3},    {"key_length", 1},
            {"rope_cos", 3},       {"rope_sin", 3},                 {"k_norm_weight", 1},
            {"past_incomplete_raw_keys", 3}, {"past_incomplete_rope", 2}};
        for (const auto& [name, rank] : ranks) {
            if (takes_part(name) && in.at(name).shape.size() != rank) throw Refused{"shape", "call", {name}};
        }
        const Shape& raw = in.at("raw_index_keys").shape;
        const Int N = raw[0], L = raw[1], Di = raw[2], Dr = rotates_ ? in.at("rope_cos").shape[2] : 0;
        const bool one_length = in.at("key_length").shape == Shape{1};
        const std::map<std::string, Shape> due = {
            {"past_block_index_keys", {N, in.at("past_block_index_keys").shape[1], Di}},
            {"key_length", {one_length ? 1 : N}},
            {"rope_cos", {N, L, Dr}},
            {"rope_sin", {N, L, Dr}},
            {"k_norm_weight", {Di}},
            {"past_incomplete_raw_keys", {N, r_ - 1, Di}},
            {"past_incomplete_rope", {N, 2 * Dr}}};
        for (const auto& [name, shape] : due) {
            if (takes_part(name) && in.at(name).shape != shape) wrong.push_back(name);
        }
        if (!wrong.empty()) throw Refused{"shape", "call", wrong};
        if (Dr % 2 || Dr > Di) throw Refused{"rope", "call", kRope};
    }
};

// --------------------------------------------------------------------------------------------------------- the protocol

class Plugin {
public:
    // The fields of the answer to one request, all but its number.
    std::string answer(const Json& request) {
        const std::string& message = request["message"].text;
        if (message == "hello") {
            directory_ = request["directory"].text;
            inline_ = static_cast<std::size_t>(request["inline"].number);
            return R"("answer":"hello","protocol":1,"name":"example-cpp","version":"1.0",)"
                   R"("vendor":"qsa-conformance examples","element_types":["f32","f16","bf16"],)"
                   R"("outputs":["block_index_keys","present_incomplete_raw_keys","present_incomplete_rope"],)"
                   R"("features":["rope","norm","left_padding"])";
        }
        if (message == "prepare") {
            sessions_.emplace(session(request), Operation(request));
            return R"("answer":"prepared")";
        }
        if (message == "run") return run(request);
        if (message == "release") {
            if (!sessions_.erase(session(request))) throw std::runtime_error("there is no such session");
            return R"("answer":"released")";
        }
        if (message == "bye") return R"("answer":"bye")";
        throw std::runtime_error("'" + message + "' is not a request that I know");
    }

private:
    std::map<Int, Operation> sessions_;
    std::string directory_;
    std::size_t inline_ = 0;

    static Int session(const Json& request) { return static_cast<Int>(request["session"].number); }

    std::string run(const Json& request) {
        const auto found = sessions_.find(session(request));
        if (found == sessions_.end()) throw std::runtime_error("there is no such session");
        Tensors inputs;
        for (const auto& [name, tensor] : request["inputs"].fields) inputs[name] = read_tensor(tensor, directory_);
        const std::string number = std::to_string(static_cast<Int>(request["id"].number));
        std::string outputs;
        for (const auto& [name, tensor] : found->second.run(inputs)) {
            const std::string text = write_tensor(tensor, directory_, inline_, number + "-" + name + ".out");
            outputs += (outputs.empty() ? "" : ",") + quoted(name) + ":" + text;
        }
        return R"("answer":"done","outputs":{)" + outputs + "}";
    }
};

}  // namespace

int main() {
    std::ios::sync_with_stdio(false);
    Plugin plugin;
    std::string line;
    while (std::getline(std::cin, line)) {
        std::string number = "0", fields, message;
        try {
            const Json request = Reader(line).document();
            number = std::to_string(static_cast<Int>(request["id"].number));
            message = request["message"].text;
            fields = plugin.answer(request);
        } catch (const Refused& refused) {
            fields = R"("answer":"rejected","kind":)" + quoted(refused.kind) + R"(,"phase":)" + quoted(refused.phase) +
                     R"(,"names":)" + quoted(refused.names);
        } catch (const Unsupported& unsupported) {
            fields = R"("answer":"unsupported","feature":)" + quoted(unsupported.feature) + R"(,"reason":)" +
                     quoted(unsupported.reason);
        } catch (const std::exception& error) {
            fields = R"("answer":"error","reason":)" + quoted(error.what());
        }
        std::cout << "{\"id\":" << number << "," << fields << "}" << std::endl;
        if (message == "bye") break;
    }
    return 0;
}
