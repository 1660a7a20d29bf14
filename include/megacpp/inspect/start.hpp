// The way in which this process was started, for people and programs: describe --launch.
#pragma once

#include <megacpp/join/process_start.hpp>
#include <megacpp/join/sockets.hpp>

#include <algorithm>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

namespace detail {
inline std::string place_of_meeting(const process_start& s) {
  switch (s.meets) {
  case meeting_place::agent_store:
    return "the store of torchrun at " + place_text(s.master, s.port);
  case meeting_place::first_rank: return "rank 0, " + place_text(s.master, s.port);
  case meeting_place::folder: return s.place;
  default: return "";
  }
}
} // namespace detail

/// Returns a start as text, a line for each thing that is known.
inline std::string start_text(const process_start& s) {
  std::string text;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) text += fmt::format("{:<14} {}\n", name, value);
  };
  line("started by", name_of(s.by));
  std::string rank = fmt::format("{} of {}", s.rank, s.size);
  if (s.local_rank >= 0 && s.local_size > 0)
    rank += fmt::format(", {} of {} on its machine", s.local_rank, s.local_size);
  line("rank", rank);
  if (s.node >= 0 && s.nodes > 0) line("node", fmt::format("{} of {}", s.node, s.nodes));
  if (!s.per_node.empty())
    line("starts", s.per_node == "auto" || s.per_node == "gpu"
                       ? "as many ranks as the node's GPUs or the layout ask for"
                       : s.per_node + " ranks of this node");
  line("connected by", s.over == connected_by::mpi   ? "MPI"
                       : s.over == connected_by::tcp ? "TCP"
                                                     : "");
  line("ranks meet at", detail::place_of_meeting(s));
  line("job", s.job);
  if (s.restarts > 0) line("restart", std::to_string(s.restarts));
  for (const std::string& one : s.outer) line("within", one);
  return text;
}

/// Returns the same as JSON.
inline std::string start_json(const process_start& s) {
  nlohmann::ordered_json j = {{"started_by", name_of(s.by)},
                              {"rank", s.rank},
                              {"size", s.size},
                              {"local_rank", s.local_rank},
                              {"local_size", s.local_size},
                              {"node", s.node},
                              {"nodes", s.nodes},
                              {"ranks_per_node", s.per_node},
                              {"connected_by", s.over == connected_by::mpi   ? "mpi"
                                               : s.over == connected_by::tcp ? "tcp"
                                                                             : ""},
                              {"meeting_place", detail::place_of_meeting(s)},
                              {"job", s.job},
                              {"restarts", s.restarts},
                              {"within", s.outer}};
  if (!s.refused.empty()) j["refused"] = s.refused;
  return j.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

/// Tells whether a command line asks how this process was started (describe --launch). The answer
/// needs no other rank.
inline bool asks_for_start(int argc, char** argv) {
  return argc > 1 && std::string_view(argv[1]) == "describe" &&
         std::any_of(argv + 2, argv + argc, [](std::string_view w) { return w == "--launch"; });
}

/// Throws mc::error(exit_code::mismatch) for a start whose variables have a fault.
inline void require_sound(const process_start& s) {
  if (!s.refused.empty()) throw error(exit_code::mismatch, s.refused);
}

} // namespace mc
