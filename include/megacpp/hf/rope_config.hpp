// This header reads the fields of RoPE in config.json. transformers 4 has rope_theta and an object
// rope_scaling, whose type is "rope_type" or "type"; transformers 5 has all fields in
// rope_parameters.
//
// Where the two versions compute different angles, megacpp computes those of 5, as vLLM does. They
// differ for yarn: 4.51 does not know "truncate", and replaces the factor by
// max_position_embeddings / original_max_position_embeddings where the latter is written.
#pragma once

#include <megacpp/hf/config.hpp>
#include <megacpp/model/rope_scaling.hpp>

#include <array>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// rope_type_names has the names of RoPE's types in config.json, in the order of rope_type.
inline constexpr std::array<const char*, 4> rope_type_names{"default", "linear", "llama3", "yarn"};

namespace detail {

/// rope_object reads an object with fields of RoPE: rope_scaling or rope_parameters.
class rope_object {
public:
  rope_object(std::string_view name, const json_value& object)
      : name_(name), object_(object), fields_(object_) {}

  double theta(double low, double high, double absent) {
    return fields_.number("rope_theta", low, high, absent);
  }
  bool has_theta() {
    if (fields_.is_null("rope_theta"))
      throw refuse("rope_theta",
                   "is null, which no angles follow from; write a number, or remove it");
    return fields_.has("rope_theta");
  }

  rope_stretch read(int positions) {
    rope_stretch s;
    s.type = type();
    switch (s.type) {
    case rope_type::unscaled: break;
    case rope_type::linear: s.factor = factor(); break;
    case rope_type::llama3:
      s.factor = factor();
      s.original = fields_.extent(original_name, hf_limits::positions, positions);
      s.slow = turns("low_freq_factor"), s.fast = turns("high_freq_factor");
      require_order(s, "low_freq_factor", "high_freq_factor");
      break;
    case rope_type::yarn: read_yarn(s, positions); break;
    }
    for (const auto& [key, value] : object_.raw().items())
      if (!value.is_null() && !fields_.asked_for(key) && key != "rope_theta")
        throw refuse(key, fmt::format("is set, but RoPE of type \"{}\" has no such number; remove "
                                      "it",
                                      rope_type_names[static_cast<std::size_t>(s.type)]));
    return s;
  }

private:
  static constexpr const char* original_name = "original_max_position_embeddings";

  error refuse(std::string_view key, std::string_view what) const {
    return fields_.contradiction(fmt::format("\"{}.{}\" {}", name_, printable(key), what));
  }
  rope_type type() {
    const std::string by_type = fields_.text("type", ""),
                      found = fields_.text("rope_type", by_type);
    const char* const key = fields_.has("rope_type") ? "rope_type" : "type";
    if (!by_type.empty() && by_type != found)
      throw refuse("type", fmt::format("is \"{}\" and \"{}.rope_type\" is \"{}\", which are two "
                                       "names of one thing; remove one",
                                       printable(by_type), name_, printable(found)));
    if (found.empty()) return rope_type::unscaled;
    for (std::size_t i = 0; i < rope_type_names.size(); ++i)
      if (found == rope_type_names[i]) return static_cast<rope_type>(i);
    throw refuse(key, fmt::format("is \"{}\", but RoPE of the types default, linear, llama3 and "
                                  "yarn alone is supported",
                                  printable(found)));
  }
  double given(std::string_view key, double low, double high) {
    if (!fields_.has(key)) throw refuse(key, "is missing, but its \"rope_type\" needs it");
    return fields_.number(key, low, high, low);
  }
  double factor() { return given("factor", 1, 1e6); }
  double turns(std::string_view key) { return given(key, 1e-6, 1e6); }
  void require_order(const rope_stretch& s, std::string_view slow, std::string_view fast) const {
    if (s.slow < s.fast) return;
    throw refuse(fast, fmt::format("is {} and \"{}.{}\" is {}, but the first must be greater",
                                   s.fast, name_, slow, s.slow));
  }
  void read_yarn(rope_stretch& s, int positions) {
    s.factor = factor();
    s.original = fields_.extent(original_name, hf_limits::positions, positions);
    if (s.original == positions) s.original = 0;
    s.slow = fields_.number("beta_slow", 0, 1e6, 0),
    s.fast = fields_.number("beta_fast", 0, 1e6, 0);
    if (s.slow == 0) s.slow = 1; // transformers takes 0 and null for 1, and below for 32.
    if (s.fast == 0) s.fast = 32;
    require_order(s, "beta_slow", "beta_fast");
    if (fields_.is_null("truncate"))
      throw refuse("truncate", "is null, which is neither true nor false; write one of them");
    s.truncated = fields_.flag("truncate", true);
    const double mscale = fields_.number("mscale", 0, 1e3, 0),
                 all_dim = fields_.number("mscale_all_dim", 0, 1e3, 0);
    const double by_default = yarn_attention(s.factor);
    double m = by_default;
    if (mscale > 0 && all_dim > 0)
      m = yarn_attention(s.factor, mscale) / yarn_attention(s.factor, all_dim);
    if (fields_.has("attention_factor")) m = fields_.number("attention_factor", 1e-3, 1e3, m);
    s.attention = m == by_default ? 0 : m;
  }

  std::string name_;
  json_value object_;
  hf_reader fields_;
};

} // namespace detail

/// Reads RoPE's fields into m: the base of the angles, and how they are stretched for longer texts.
/// m must have its positions and its head_dim.
template <class Model> void read_rope(hf_reader& r, Model& m) {
  constexpr double low = 1, high = 1e15, absent = 10000;
  const bool outside = r.has("rope_theta");
  m.rope_theta = outside ? r.number("rope_theta", low, high, absent) : absent;
  std::string told = outside ? "rope_theta" : ""; // The field that rope_theta was read from.
  bool missing = false;                           // An object without rope_theta was found.
  std::optional<rope_stretch> found;
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!r.has(name)) continue;
    detail::rope_object object(name, r.config().field<json_value>(name));
    if (object.has_theta()) {
      const double inner = object.theta(low, high, m.rope_theta);
      if (!told.empty() && inner != m.rope_theta)
        throw r.contradiction(
            fmt::format("\"{}.rope_theta\" is {} and \"{}\" is {}, which "
                        "are two names of one number; remove one",
                        name, inner, told, m.rope_theta));
      m.rope_theta = inner;
      told = fmt::format("{}.rope_theta", name);
    } else {
      missing = true;
    }
    const rope_stretch read = object.read(m.positions);
    if (found && *found != read)
      throw r.contradiction(
          "\"rope_scaling\" and \"rope_parameters\" say different things, but "
          "are two names of one; remove one");
    found = read;
  }
  if (told.empty()) r.refuse_null("rope_theta");
  if (!outside && !told.empty() && missing) // transformers reads only one of the two objects.
    throw r.contradiction(
        fmt::format("\"{}\" stands in one of \"rope_scaling\" and \"rope_parameters\" alone, which "
                    "are two names of one object; remove the other",
                    told));
  m.rope_scaling = found.value_or(rope_stretch{});
  if (m.rope_scaling.type == rope_type::yarn && !(m.rope_theta > 1))
    throw r.refuse("rope_theta", "yarn needs one above 1", m.rope_theta);
}

/// Writes RoPE's fields as transformers 4.51 spells them. For yarn,
/// original_max_position_embeddings is left out where it equals max_position_embeddings, because
/// 4.51 then uses the factor as it is written.
inline void to_json(nlohmann::json& j, const rope_stretch& s) {
  j = nullptr;
  if (s.type == rope_type::unscaled) return;
  j = {{"rope_type", rope_type_names[static_cast<std::size_t>(s.type)]}, {"factor", s.factor}};
  if (s.original > 0) j["original_max_position_embeddings"] = s.original;
  if (s.type == rope_type::llama3) j["low_freq_factor"] = s.slow, j["high_freq_factor"] = s.fast;
  if (s.type != rope_type::yarn) return;
  j["beta_slow"] = s.slow, j["beta_fast"] = s.fast;
  if (s.attention > 0) j["attention_factor"] = s.attention;
  if (!s.truncated) j["truncate"] = false;
}

/// Returns the fields of RoPE as C++ writes them: {.type = rope_type::yarn, ...}, or {}.
inline std::string member_text(const rope_stretch& s) {
  if (s.type == rope_type::unscaled) return "{}";
  constexpr const char* types[] = {"unscaled", "linear", "llama3", "yarn"};
  std::string members = fmt::format(".type = rope_type::{}", types[static_cast<int>(s.type)]);
  decltype(rope_stretch::members)::each(s, [&](std::string_view name, const auto& value) {
    if constexpr (!std::is_enum_v<std::decay_t<decltype(value)>>)
      members += fmt::format(", .{} = {}", name, member_text(value));
  });
  return "{" + members + "}";
}

} // namespace mc
