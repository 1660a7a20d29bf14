// The numbers of a step that its graphs read: the seed of the run, the number of optimizer steps
// done, and the learning rate. They are inputs, the same on every rank, and the host writes them
// before the step.
#pragma once

#include <megacpp/graph/builder.hpp>

namespace mc {

constexpr bool is_number(feed f) {
  return f == feed::seed || f == feed::step || f == feed::learning_rate;
}
/// The bytes of the three numbers, as the host writes them.
inline constexpr std::int64_t bytes_of_numbers = 3 * 8;
constexpr dtype type_of_number(feed f) {
  return f == feed::learning_rate ? dtype::f64 : dtype::i64;
}

/// Returns a number of the step as an input of the graph. A graph has each number once.
constexpr var number_input(builder& b, feed f) {
  for (int i = 0; i < b.g.value_count; ++i)
    if (const value& v = b.g.values[i]; v.is == role::input && v.from == f)
      return {&b, static_cast<value_id>(i)};
  const char* const name = f == feed::seed ? "seed" : f == feed::step ? "step" : "learning_rate";
  return b.input(f, name, type_of_number(f), {}, {}, 0);
}

} // namespace mc
