// The program of one rank. The parts of the model are the same on all ranks. The registry and the
// end of a step depend on the pipeline stage and, where replicas share the optimizer's states, on
// the number of replicas. They are made when the rank and the mesh are known, by the functions that
// also make them at compile time, and are interpreted.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/run/interpreted_part.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <memory>
#include <vector>

namespace mc {

class rank_program {
public:
  /// Returns whether a rank needs an end of a step of its own, because the program knows neither
  /// the rank's stage nor the number of replicas.
  static constexpr bool remakes(const layout& l) { return l.pp > 1 || l.zero > 0; }

  /// `rank`: the communicator of this rank. The rank's program points to `p`, which must outlive
  /// it, and to this object. Throws mc::error(exit_code::mismatch) with the fault of a graph that
  /// cannot be made for the stage.
  rank_program(const program_view& p, const communicator& rank) : view_(p) {
    const layout& l = p.numbers.ranks;
    if (!remakes(l)) return;
    if (l.pp > 1) view_.stage = rank.coordinate()[static_cast<unsigned>(axis::pp)];
    stores_ = stores_of_stage(p, stage_of(p, std::max(view_.stage, 0)), rank.ranks());
    refuse(stores_.wrong);
    view_.stores = &stores_;
    if (p.numbers.held_adapters > 0) return; // generates alone (run/held_adapters.hpp)
    const int update = part_of_update(p.kinds());
    end_ = p.generation.part(update_graph(stores_, p.part(update).g->ranks, p.numbers.precision),
                             p.part(update).index);
    view_.parts[static_cast<unsigned>(update)] = end_->view();
  }
  rank_program(const rank_program&) = delete;
  rank_program& operator=(const rank_program&) = delete;

  const program_view& view() const { return view_; }

private:
  program_view view_;
  registry stores_{};
  std::unique_ptr<planned_part> end_; ///< part that ends a step
};

} // namespace mc
