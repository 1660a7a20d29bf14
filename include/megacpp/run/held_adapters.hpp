// The program of generation with several adapters at once (setup::held_adapters), whose number
// becomes known at run time: the compiled program has the factors of one.
#pragma once

#include <megacpp/plan/verify_registry.hpp>
#include <megacpp/run/interpreted_part.hpp>
#include <megacpp/run/stage.hpp>

#include <memory>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// A program whose factors are those of several adapters side by side. It has stores and
/// generates; its parts of training cannot be run.
class program_of_adapters {
public:
  /// `p` must outlive this object. With `held` of 0 the program is p. Throws
  /// mc::error(exit_code::mismatch) for a program without an adapter, or with the fault of a graph
  /// that cannot be made.
  program_of_adapters(const program_view& p, int held) : view_(p) {
    if (held == 0) return;
    if (p.numbers.adapter.rank == 0)
      throw error(exit_code::mismatch,
                  fmt::format("{} has no adapter, and is to hold {}; build a preset that has one",
                              p.name, held));
    view_.numbers.held_adapters = held;
    std::vector<const graph*> parts;
    for (int i = 0; i <= p.kinds() + 1; ++i) {
      const part_kind part = i == 0           ? part_kind::stem
                             : i <= p.kinds() ? part_kind::block
                                              : part_kind::loss;
      graphs_.push_back(
          std::make_unique<graph>(p.generation.forward(p.model.at, view_.numbers, part, i - 1)));
      refuse(graphs_.back()->wrong);
      parts.push_back(view_.parts[static_cast<unsigned>(i)].g = graphs_.back().get());
    }
    std::vector<int> layers(parts.size());
    layers.front() = layers.back() = 1;
    for (const int kind : p.kind_of) ++layers[static_cast<unsigned>(1 + kind)];
    stores_ = verified_registry(parts, layers, p.numbers.ranks.zero, mesh(p.numbers.ranks));
    refuse(stores_.wrong);
    view_.stores = &stores_;
  }
  program_of_adapters(const program_of_adapters&) = delete;
  program_of_adapters& operator=(const program_of_adapters&) = delete;

  const program_view& view() const { return view_; }

private:
  program_view view_;
  std::vector<std::unique_ptr<graph>> graphs_;
  registry stores_{};
};

} // namespace mc
