// The description of an exchange that one rank asks of another. Ranks compare the descriptions of
// both before they go on with what they received. Where these differ, a sentence names both ranks,
// what each asked for, and the lines of the model.
#pragma once

#include <megacpp/comm/communicator.hpp>

#include <algorithm>
#include <cstring>

namespace mc {

/// The description is plain bytes, so that it can be sent.
struct exchange_description {
  std::int64_t number = 0;           ///< number of exchanges before it over its group and plane
  std::int64_t gives = 0, takes = 0; ///< elements: `count`, or those to and from the other rank
  std::int32_t rank = 0;             ///< number of the rank in the run
  std::int32_t root = -1;
  std::int32_t line = 0;
  collective what{};
  dtype type{};
  reduction by{};
  plane moves{};
  std::uint8_t over = 0;
  bool by_counts = false;
  char file[40]{}; ///< beginning of the name of the model's file
};

/// Describes an exchange of rank `rank` to the group's rank `other`, on the plane `moves`.
inline exchange_description description_of(const exchange& x, plane moves, std::int64_t number,
                                           int rank, int other) {
  exchange_description d;
  d.moves = moves, d.number = number, d.rank = rank, d.what = x.what, d.type = x.type,
  d.over = x.over.bits;
  d.by = x.by;
  d.by_counts = x.by_counts();
  d.gives = d.by_counts ? x.gives[static_cast<std::size_t>(other)] : x.count;
  d.takes = d.by_counts ? x.takes[static_cast<std::size_t>(other)] : x.count;
  if (x.what == collective::broadcast) d.root = x.peer;
  if (x.before != collective::none) return d; // a description of a description has no line
  d.line = x.line.number;
  const char* const file = x.line.file_name();
  std::memcpy(d.file, file, std::min(std::strlen(file), sizeof d.file - 1));
  return d;
}

/// Returns whether two descriptions match. In an all-reduce one rank may have no elements.
inline bool agree(const exchange_description& a, const exchange_description& b) {
  using enum collective;
  const collective met = a.what == send ? receive : a.what == receive ? send : a.what;
  const bool nothing = a.what == all_reduce && (a.gives == 0 || b.gives == 0);
  return b.what == met && b.number == a.number && b.type == a.type && b.by == a.by &&
         b.moves == a.moves && b.over == a.over && b.root == a.root && b.by_counts == a.by_counts &&
         (nothing || (b.gives == a.takes && b.takes == a.gives)) && b.line == a.line &&
         std::strcmp(a.file, b.file) == 0;
}

/// Returns a description as text: "rank 3 for all-reduce of 12 f32 over tp at qwen3.hpp:41
/// (exchange 5 of its group)".
inline std::string text_of(const exchange_description& d) {
  std::string text = "rank " + std::to_string(d.rank) + " for " + name_of(d.what) + " of ";
  if (d.by == reduction::maximum) text += "the maximum of ";
  text += d.by_counts ? std::to_string(d.gives) + " to and " + std::to_string(d.takes) +
                            " from the other, of"
                      : std::to_string(d.gives);
  text += std::string(" ") + name_of(d.type) + " over " + name_of(axis_set::of_bits(d.over));
  if (d.root >= 0) text += " from its rank " + std::to_string(d.root);
  if (d.line > 0) text += std::string(" at ") + text_of(source_line(d.line, d.file)).c_str();
  return text + " (exchange " + std::to_string(d.number) +
         (d.moves == plane::hosts ? " of its group of hosts)" : " of its group)");
}

/// Throws mc::error(exit_code::internal) if two descriptions do not match.
inline void require_agreement(const exchange_description& mine,
                              const exchange_description& theirs) {
  if (!agree(mine, theirs))
    throw error(exit_code::internal, "ranks ask for different exchanges: " + text_of(mine) + ", " +
                                         text_of(theirs) +
                                         ": let all ranks of a group ask for the same");
}

} // namespace mc
