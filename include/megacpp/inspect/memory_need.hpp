// The memory that all ranks of a run plan, which is compared with what there is before any of it is
// reserved: the kernel grants more than there is, and ends processes once they use it.
#pragma once

#include <megacpp/data/micro_batches.hpp>
#include <megacpp/exec/memory_room.hpp>
#include <megacpp/inspect/work.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace mc {

/// The work that memory is for.
enum class planned_work : std::uint8_t { training, evaluation, generation };

/// The least memory that ranks need, in bytes.
struct memory_need {
  std::int64_t all = 0;     ///< of all ranks together
  std::int64_t largest = 0; ///< of the rank that needs most
};

/// Returns how many bytes libraries need for their checks on a device whose memory the host does
/// not see, where the `lent` bytes are too few. Texts to be generated are not known yet: one row
/// counts.
inline std::int64_t room_of_checks(device& on, bool generates, std::int64_t lent) {
  const attention_source* const attention = on.attention();
  std::int64_t most = attention == nullptr || generates ? 0 : attention->check_bytes();
  for (product_shape s : on.products().shapes()) {
    if (generates) s.M = 1, s.segment = 0;
    most = std::max(most, on.products().check_bytes(s));
  }
  return most > lent ? most : 0; // what does not fit what is lent has memory of its own
}

/// Returns the memory that ranks need: their plans, the scratch memory of kernels on the threads of
/// each, and, where the device's memory is the host's, the micro-batches that are read ahead. A
/// device that has memory of its own also holds the product by which the first rank measures speed,
/// and what checks of its libraries need where the values of steps are fewer bytes. Texts to be
/// generated are not known yet: the weights count, and of kernels scratch, tables and a workspace
/// that no text changes. The device `on` counts sizes alone.
inline memory_need need_of(const program_view& p, planned_work work, const mesh& ranks,
                           device& on) {
  memory_need need;
  const batching& b = p.numbers.batch;
  const bool trains = work == planned_work::training, generates = work == planned_work::generation;
  kernel_room kernels = room_of(p.parts, on, trains);
  if (generates && on.host_sees()) kernels.workspace = 0;
  const std::int64_t batch = std::int64_t{b.micro} * b.sequence * 4 * 4,
                     reads = generates || !on.host_sees() ? 0
                             : trains ? batch * (std::int64_t{read_ahead::ahead} + 1)
                                      : batch;
  const int stages = p.numbers.ranks.pp, of_stage = ranks_of(ranks) / stages;
  for (int stage = 0; stage < stages; ++stage) {
    memory_items plan = memory_of_stage(p, stage, trains, ranks);
    plan.kernels = kernels;
    const std::int64_t values = generates ? 0 : plan.values(),
                       one = (generates ? plan.weights + kernels.total() : plan.total()) + reads +
                             room_of_checks(on, generates, values);
    need.all += one * of_stage;
    need.largest = std::max(need.largest, one);
  }
  if (trains && !on.host_sees()) {
    const dtype type =
        p.numbers.precision.weight; // the product is checked before its operands are reserved
    const std::int64_t measured = std::max(
        product_speed::bytes_of(type), on.products().check_bytes(product_speed::shape_of(type)));
    need.all += measured, need.largest += measured;
  }
  return need;
}

/// Throws mc::error(exit_code::memory) where the machine has less memory than its ranks need, or
/// this process has less address space than its own ranks need. `here`: ranks on this machine, of
/// which `mine` are of this process.
inline void require_memory(const memory_need& need, int ranks, int here, int mine,
                           const std::optional<memory_room>& machine,
                           const std::optional<memory_room>& process) {
  const auto require = [&](int some, const std::optional<memory_room>& room) {
    const std::int64_t bytes = std::min(need.all, need.largest * some);
    if (!room || bytes <= room->bytes) return;
    const auto text = [](std::int64_t n) { return bytes_text(static_cast<std::uint64_t>(n)); };
    throw error(
        exit_code::memory,
        fmt::format(
            "{} rank{} of {} each{} need {} of memory, and {} leaves {}: use fewer ranks, a "
            "smaller micro-batch or sequence, recompute, or a machine with more; "
            "--no-memory-check starts all the same",
            some, some == 1 ? "" : "s", text(need.largest).view(),
            need.largest * ranks > need.all ? " at the most" : "", text(bytes).view(), room->of,
            text(room->bytes).view()));
  };
  require(here, machine);
  require(mine, process);
}

} // namespace mc
