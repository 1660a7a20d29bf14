// The files of reports of a training run, none of which replaces another file, and its page for
// Prometheus.
#pragma once

#include <megacpp/io/same_place.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/prometheus.hpp>
#include <megacpp/request/report_request.hpp>
#include <megacpp/states/saved_states.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <unistd.h>

namespace mc {

namespace detail {
/// Tells whether a path names a file that a folder of states keeps for itself, or one by which it
/// would be taken for something else.
inline bool is_taken_by_states(const std::string& path, const std::string& root) {
  const std::filesystem::path within = resolved_path(path).lexically_relative(resolved_path(root));
  if (within.empty()) return false;
  const std::string name = within.begin()->string();
  const auto taken = [](std::string_view n) {
    return step_of(n) || n == newest_step_name || n == best_folder_name || is_state_file(n);
  };
  return taken(name) || taken(leftover_of(name).target);
}
} // namespace detail

/// Throws mc::error unless each report has a file of its own, which is new or holds a report of the
/// same kind, and which is not one of the `data`, not in the folder `save` of states, and not the
/// output of the program.
inline void check_report_files(const report_request& r, const std::optional<std::string>& save,
                               const std::vector<std::string>& data) {
  const auto all = r.files();
  const auto refuse = [](const std::string& why) { throw error(exit_code::usage, why); };
  if (r.tensorboard && r.tensorboard->empty())
    refuse("report_request::tensorboard needs the name of a folder");
  if (r.port) static_cast<void>(prometheus_address(r.address));
  for (const report_file& f : all) {
    if (!f.path) continue;
    const std::string& path = *f.path;
    if (path.empty()) refuse(fmt::format("{} needs the name of a file", f.name));
    if (save && detail::is_taken_by_states(path, *save))
      refuse(fmt::format("{} names {}, which {} needs for its states; choose another file", f.name,
                         path, *save));
    for (const int said : {STDOUT_FILENO, STDERR_FILENO})
      if (detail::is_file_of(said, path))
        refuse(fmt::format(
            "{} names {}, the file of the standard {}; give the report a file of its own", f.name,
            path, said == STDOUT_FILENO ? "output" : "error"));
  }
  for (const report_file& f : all) {
    if (!f.path) continue;
    if (f.replaced) check_text_file(*f.path);
    check_own_kind(*f.path, f.begin, f.kind);
    for (const std::string& one : data)
      if (detail::is_same_place(*f.path, one))
        refuse(fmt::format(
            "{} and data_request::paths both name {}; give the report a file of its own", f.name,
            *f.path));
    for (const report_file* other = all.data(); other != &f; ++other)
      if (other->path && detail::is_same_place(*f.path, *other->path))
        refuse(fmt::format("{} and {} both name {}; give two files", other->name, f.name,
                           *other->path));
  }
}

} // namespace mc
