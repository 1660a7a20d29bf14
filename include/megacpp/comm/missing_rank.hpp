// The sentences about a rank that other ranks wait for in vain.
#pragma once

#include <megacpp/comm/communicator.hpp>

#include <cstdint>
#include <string>

namespace mc {

/// Returns an exchange as text: "exchange 12 of its group, all-reduce over dp x tp at
/// qwen3.hpp:41". `number`: exchanges that were asked of the group before.
inline std::string text_of(const exchange& x, std::int64_t number) {
  std::string what = "exchange " + std::to_string(number) + " of its group, " +
                     std::string(name_of(x)) + " over " + name_of(x.over);
  if (x.line.number > 0) what += std::string(" at ") + text_of(x.line).c_str();
  return what;
}

/// Returns the error about `rank`, which is missing in an exchange: rank `waits` has waited for it
/// so many seconds. `gone`: the missing rank has ended.
inline error missing_rank(int rank, bool gone, const std::string& what, int waits,
                          std::int64_t seconds) {
  std::string says = "rank " + std::to_string(rank);
  says += (gone ? " has ended without " : " did not come to ") + what + ", for which rank " +
          std::to_string(waits) + " waits";
  if (!gone) says += " " + std::to_string(seconds) + " s";
  says += ": see what that rank does";
  if (!gone) says += ", or let it take longer by --collective-timeout";
  return error(exit_code::ranks, says);
}

/// Returns the error about ranks that wait for each other: rank `waits` waits for `rank` in
/// exchange `what`, which waits for `next` in exchange `lacks`, and so on.
inline error crossed_ranks(int waits, int rank, const std::string& what, int next,
                           const std::string& lacks) {
  return error(exit_code::ranks, "ranks wait for each other: rank " + std::to_string(waits) +
                                     " for rank " + std::to_string(rank) + " in " + what +
                                     ", and that one for rank " + std::to_string(next) + " in " +
                                     lacks + ": let all ranks of a group ask for the same");
}

} // namespace mc
