// The processors that a program was compiled for, as `describe` tells them.
#pragma once

#include <megacpp/threads/machine.hpp>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// The processors that have every extension of a mask: a level of the x86-64 psABI ("x86-64-v3"),
/// and the extensions beside those of the level.
struct processors_built_for {
  std::string level;
  std::vector<std::string> also;

  /// Returns both as text: "x86-64-v3", or "x86-64-v4 with ADX, GFNI".
  std::string text() const {
    std::string out = level;
    for (std::size_t i = 0; i < also.size(); ++i) out += (i == 0 ? " with " : ", ") + also[i];
    return out;
  }
};

/// Returns the processors of the highest level that `compiled` has all extensions of. The levels
/// are those of the x86-64 psABI, section 3.1.1.
inline processors_built_for processors_of(instruction_mask compiled = compiled_instruction_sets) {
  constexpr std::string_view levels[][8] = {
      {"SSE3", "SSSE3", "SSE4.1", "SSE4.2", "POPCNT"},
      {"AVX", "AVX2", "BMI1", "BMI2", "F16C", "FMA", "LZCNT", "MOVBE"},
      {"AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"}};
  const auto bit = [](std::string_view name) {
    for (int i = 0; i < detail::instruction_set_count; ++i)
      if (name == detail::instruction_sets[i].name) return instruction_mask{1} << i;
    return instruction_mask{0};
  };
  processors_built_for out{"x86-64", {}};
  instruction_mask told = 0;
  int version = 1;
  for (const auto& level : levels) {
    instruction_mask needed = 0;
    for (const std::string_view name : level) needed |= bit(name);
    if ((compiled & needed) != needed) break;
    told |= needed;
    out.level = "x86-64-v" + std::to_string(++version);
  }
  for (int i = 0; i < detail::instruction_set_count; ++i)
    if ((((compiled & ~told) >> i) & 1u) != 0)
      out.also.emplace_back(detail::instruction_sets[i].name);
  return out;
}

} // namespace mc
