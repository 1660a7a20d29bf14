// Files with pictures of a run.
#pragma once

#include <megacpp/inspect/pictures.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Draws ranks, and the schedule of the program's stages for twice as many micro-batches, into
/// files of a folder, and prints their names. Throws mc::error.
inline void draw_pictures(const program_view& p, mesh ranks, const std::string& folder) {
  if (p.model.extents.experts == 0) // no mesh of theirs
    for (const axis a : {axis::ep, axis::etp}) ranks.size[static_cast<unsigned>(a)] = 1;
  std::vector<std::pair<std::string, std::string>> files{
      {folder + "/mesh.svg", mesh_picture(ranks)}};
  if (const layout& l = p.numbers.ranks; l.pp > 1) {
    const int most = p.numbers.batch.micro_batches,
              micros = nearest_micros(p, most > 0 ? std::min(most, 2 * l.pp) : 2 * l.pp);
    files.emplace_back(folder + "/schedule.svg",
                       schedule_picture(timed(schedule_of(l), l, micros),
                                        fmt::format("{}: {}, {} stages, {} micro-batches", p.name,
                                                    name_of_schedule(l), l.pp, micros)));
  }
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    throw error(exit_code::output, fmt::format("cannot create {}: {}; choose another folder",
                                               folder, problem.message()));
  for (const auto& [path, svg] : files) check_own_kind(path, "<svg ", "picture");
  for (const auto& [path, svg] : files) {
    write_text_file(path, svg);
    print_line(path);
  }
}

} // namespace mc
