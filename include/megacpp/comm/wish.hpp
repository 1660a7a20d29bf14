// What a rank asks of another one of its group, as that one has to see it. Ranks agree where both
// ask for the same exchange, which is compared before a rank goes on with what it got; where they
// do not, a sentence tells both ranks, what each asked for, and for which line of the model.
#pragma once

#include <megacpp/comm/communicator.hpp>

#include <algorithm>
#include <cstring>

namespace mc {

/// Bytes that can be sent.
struct wish {
  std::int64_t number = 0;           ///< exchanges of its group before, on its plane
  std::int64_t gives = 0, takes = 0; ///< elements: `count`, or by counts those of the other rank
  std::int32_t rank = 0;             ///< in the run
  std::int32_t root = -1;
  std::int32_t line = 0;
  collective what{};
  dtype type{};
  reduction by{};
  plane moves{};
  std::uint8_t over = 0;
  bool by_counts = false;
  char file[40]{}; ///< the name's beginning
};

/// Of an exchange of rank `rank` on a plane, as the group's rank `other` has to see it.
inline wish wish_of(const exchange& x, plane moves, std::int64_t number, int rank, int other) {
  wish w;
  w.moves = moves, w.number = number, w.rank = rank, w.what = x.what, w.type = x.type,
  w.over = x.over.bits;
  w.by = x.by;
  w.by_counts = x.by_counts();
  w.gives = w.by_counts ? x.gives[static_cast<std::size_t>(other)] : x.count;
  w.takes = w.by_counts ? x.takes[static_cast<std::size_t>(other)] : x.count;
  if (x.what == collective::broadcast) w.root = x.peer;
  if (x.before != collective::none) return w; // it tells of lines
  w.line = x.line.number;
  const char* const file = x.line.file_name();
  std::memcpy(w.file, file, std::min(std::strlen(file), sizeof w.file - 1));
  return w;
}

/// Whether two ranks ask each other for the same. Of an all-reduce one may have nothing.
inline bool agree(const wish& a, const wish& b) {
  using enum collective;
  const collective met = a.what == send ? receive : a.what == receive ? send : a.what;
  const bool nothing = a.what == all_reduce && (a.gives == 0 || b.gives == 0);
  return b.what == met && b.number == a.number && b.type == a.type && b.by == a.by &&
         b.moves == a.moves && b.over == a.over && b.root == a.root && b.by_counts == a.by_counts &&
         (nothing || (b.gives == a.takes && b.takes == a.gives)) && b.line == a.line &&
         std::strcmp(a.file, b.file) == 0;
}

/// "rank 3 for all-reduce of 12 f32 over tp at qwen3.hpp:41 (exchange 5 of its group)".
inline std::string text_of(const wish& w) {
  std::string text = "rank " + std::to_string(w.rank) + " for " + name_of(w.what) + " of ";
  if (w.by == reduction::maximum) text += "the maximum of ";
  text += w.by_counts ? std::to_string(w.gives) + " to and " + std::to_string(w.takes) +
                            " from the other, of"
                      : std::to_string(w.gives);
  text += std::string(" ") + name_of(w.type) + " over " + name_of(axis_set::of_bits(w.over));
  if (w.root >= 0) text += " from its rank " + std::to_string(w.root);
  if (w.line > 0) text += std::string(" at ") + text_of(source_line(w.line, w.file)).c_str();
  return text + " (exchange " + std::to_string(w.number) +
         (w.moves == plane::hosts ? " of its group of hosts)" : " of its group)");
}

/// Throws mc::error(exit_code::internal) where they do not agree.
inline void require_agreement(const wish& mine, const wish& theirs) {
  if (!agree(mine, theirs))
    throw error(exit_code::internal, "ranks ask for different exchanges: " + text_of(mine) + ", " +
                                         text_of(theirs) +
                                         ": let all ranks of a group ask for the same");
}

} // namespace mc
