// Factors of an adapter that learn nothing. B begins as zeros, so that its gradient is the first
// sign that a layer learns: where it is exactly zero in every step, the layer is on no way to the
// loss, or no token reaches it.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/pass/adapt.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

/// The steps of a run behind which it looks whether all factors learn.
inline constexpr std::int64_t steps_before_factors_learn = 10;

/// Returns sentences about the layers whose B has had no gradient since the run began, as the
/// moments of all steps show. Experts that no token has chosen are told apart. `p` is the whole
/// program. All ranks call it.
inline std::vector<std::string> unlearned_factors(const program_view& p, const stores& s,
                                                  communicator& hosts) {
  struct factor {
    parameter_ref of;
    std::int64_t experts;
    std::size_t first; // of its flags
  };
  std::vector<factor> all;
  std::size_t flags = 0;
  for_each_parameter(p, [&](const parameter_ref& r) {
    if (!r.info->added || std::string_view(r.v->name) != second_factor_name) return;
    const std::int64_t experts = r.v->dims[0].d == dim::expert ? r.v->dims[0].n : 1;
    all.push_back({r, experts, flags});
    flags += static_cast<std::size_t>(experts);
  });
  std::vector<double> learns(flags);
  const dtype type = s.precision().moment;
  for (const factor& f : all) {
    const std::int64_t n = global_size(*f.of.v).n, of_expert = n / f.experts;
    s.held(f.of, {.states = true})
        .each_contiguous({}, {n}, [&](global_count at, std::int64_t i, std::int64_t count) {
          const host_accessor seen = s.seen(s.first_moments(), type, i, i + count);
          for (std::int64_t k = 0; k < count; ++k)
            if (stores::get(seen.data(), type, k) != 0)
              learns[f.first + static_cast<std::size_t>((at.n + k) / of_expert)] = 1;
        });
  }
  if (flags > 0)
    hosts.run(exchange::all_reduce(everyone, dtype::f64, learns.data(), learns.data(),
                                   static_cast<std::int64_t>(flags)));
  std::vector<std::string> sentences, silent;
  std::map<std::string, std::pair<int, int>> layers; // with a gradient, and all, by scope
  std::map<std::string, std::int64_t> unchosen;
  for (const factor& f : all) {
    const auto begin = learns.begin() + static_cast<std::ptrdiff_t>(f.first);
    const auto none = std::count(begin, begin + f.experts, 0.0);
    auto& [with, of] = layers[f.of.v->scope];
    with += none < f.experts, ++of;
    if (f.experts > 1 && none < f.experts) unchosen[f.of.v->scope] += none;
  }
  for (const auto& [scope, of] : layers)
    if (of.first < of.second)
      silent.push_back(of.first == 0 ? scope
                                     : fmt::format("{} in {} of {} layers", scope,
                                                   of.second - of.first, of.second));
  if (!silent.empty())
    sentences.push_back(fmt::format(
        "the adapter learns nothing in {}: the gradient of its B has been zero in every step; no "
        "loss depends on these layers, or no token reaches them",
        fmt::join(silent, ", ")));
  for (const auto& [scope, n] : unchosen)
    if (n > 0)
      sentences.push_back(
          fmt::format("{} experts of {} in all layers have had no token so far", n, scope));
  return sentences;
}

} // namespace mc
