// Training runs as a command line asks for them: flags by name, and a text to train on.
#pragma once

#include <megacpp/options/options.hpp>

#include <string>
#include <utility>
#include <vector>

namespace test {

using flag_values = std::vector<std::pair<std::string, std::string>>;

inline mc::options options_of(const flag_values& flags) {
  mc::options o;
  const auto list = mc::flags_of(o);
  for (const auto& [name, value] : flags) mc::find_flag(list, name)->flag->read(value, name);
  return o;
}

/// Returns a text of 101 different bytes, none above 100.
inline std::string text_of_101_bytes() {
  std::string t;
  for (unsigned i = 0, x = 1; i < 6000; ++i)
    t += static_cast<char>((x = x * 1103515245u + 12345u) / 65536u % 101u);
  return t;
}

} // namespace test
