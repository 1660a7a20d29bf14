// Whether the memory that all ranks of a run plan is there, before any of it is reserved: the
// kernel grants more than there is, and ends processes once they use it.
#pragma once

#include <megacpp/comm/process_ranks.hpp>
#include <megacpp/data/micro_batches.hpp>
#include <megacpp/exec/device_options.hpp>
#include <megacpp/exec/memory_room.hpp>
#include <megacpp/inspect/work.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace mc {

/// The least that ranks need, in bytes.
struct memory_need {
  std::int64_t all = 0;     ///< of them together
  std::int64_t largest = 0; ///< of the one that needs most
};

/// Libraries need so many bytes for their checks on a device whose memory the host does not see,
/// where the `lent` bytes are too few. A command that generates does not know its texts: one row
/// counts.
inline std::int64_t room_of_checks(device& on, bool generates, std::int64_t lent) {
  const attention_source* const attention = on.attention();
  std::int64_t most = attention == nullptr || generates ? 0 : attention->check_bytes();
  for (product_shape s : on.products().shapes()) {
    if (generates) s.M = 1, s.part = 0;
    most = std::max(most, on.products().check_bytes(s));
  }
  return most > lent ? most : 0; // what does not fit what is lent has memory of its own
}

/// The memory that ranks need to train, evaluate or generate: their plans, with what kernels need
/// on the threads of each, and, where the device's memory is the host's, the micro-batches that are
/// read ahead. A device that has memory of its own also holds the product by which the first rank
/// measures speed, and what checks of its libraries need where the values of steps are fewer bytes.
/// A command that generates does not know its texts yet: the weights count, and of kernels scratch,
/// tables and a workspace that no text changes. The device `on` counts sizes alone.
inline memory_need need_of(const program_view& p, command what, const mesh& ranks, device& on) {
  memory_need need;
  const batching& b = p.numbers.batch;
  const bool trains = what == command::train, generates = what == command::generate;
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

/// Throws mc::error(exit_code::memory) where there is less on the machine than its ranks need, or
/// less address space than those of this process do. `here`: ranks on this machine, of which
/// `mine` are of this process.
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

/// The device that a user has chosen by its number; -1: none.
inline int number_of_device(const options& o) {
  return o.machine.device.given() ? static_cast<int>(o.machine.device()) : -1;
}

/// Checks the memory for a command, in the first process. Ranks of other machines do not count.
inline void require_memory(const program_view& p, command what, const options& o, const mesh& ranks,
                           const process_ranks& processes, int threads, device_maker& make_device) {
  if (o.machine.no_memory_check() || !processes.first()) return;
  const int n = ranks_of(ranks);
  const auto on = make_device(p.device_type(),
                              {.threads = threads,
                               .deterministic_attention = !o.machine.no_deterministic_attention(),
                               .number = number_of_device(o),
                               .place = processes.place(),
                               .sizes_alone = true});
  const memory_need need = need_of(p, what, ranks, *on);
  const int here = processes.several() ? processes.here() : n, mine = processes.several() ? 1 : n;
  if (on->host_sees())
    return require_memory(need, n, here, mine, room_on_machine(), room_in_process());
  const std::optional<memory_room> room = on->room();
  const int share =
      processes.several() && room ? (here + room->spread_over - 1) / room->spread_over : here;
  require_memory(need, n, share, mine, room, std::nullopt);
}

} // namespace mc
