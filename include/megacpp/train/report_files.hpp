// Files that a training run reports to: they take the place of nothing else.
#pragma once

#include <megacpp/inspect/timeline.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/states/saved_states.hpp>

#include <filesystem>
#include <string>
#include <string_view>

#include <sys/stat.h>
#include <unistd.h>

namespace mc {

namespace detail {
/// Whether two paths name one file or folder that exists, by whatever name.
inline bool is_same_file(const std::string& a, const std::string& b) {
  std::error_code ignored;
  return !a.empty() && std::filesystem::equivalent(a, b, ignored);
}
/// Whether a path names the file that a descriptor writes to.
inline bool is_file_of(int descriptor, const std::string& path) {
  struct stat a {};
  struct stat b {};
  return ::fstat(descriptor, &a) == 0 && ::stat(path.c_str(), &b) == 0 && S_ISREG(a.st_mode) &&
         a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}
/// A path without links and dots; it need not exist.
inline std::filesystem::path place_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path p = fs::weakly_canonical(fs::absolute(behind_links(path), ignored), ignored);
  return p.has_filename() ? p : p.parent_path();
}
/// Whether two paths name one place, which need not exist.
inline bool is_same_place(const std::string& a, const std::string& b) {
  return place_of(a) == place_of(b) || is_same_file(a, b);
}
/// True for a path that a folder of saved states keeps for its states, or that would make it none.
inline bool is_taken_by_states(const std::string& path, const std::string& root) {
  const std::filesystem::path within = place_of(path).lexically_relative(place_of(root));
  if (within.empty()) return false;
  const std::string name = within.begin()->string();
  const auto taken = [](std::string_view n) {
    return step_of(n) || n == newest_step_name || n == best_folder_name || is_state_file(n);
  };
  return taken(name) || taken(leftover_of(name).target);
}
} // namespace detail

/// Reports replace or continue files of their own kind alone, and neither each other, nor the data,
/// nor what is saved, nor what the program says. Throws mc::error.
inline void check_report_files(const options& o) {
  const struct report_file {
    const text_flag& path;
    const char *name, *kind;
    std::string_view begin;
    bool replaced; // and not added to
  } all[] = {{o.report.loss_curve, "loss-curve", "curve", "<svg ", true},
             {o.report.metrics_jsonl, "metrics-jsonl", "file of metrics", "{\"step\":", false},
             {o.report.trace, "trace", "trace", trace_begin, true}};
  const auto refuse = [](const std::string& why) { throw error(exit_code::usage, why); };
  for (const report_file& f : all) {
    if (!f.path.given()) continue;
    const std::string& path = f.path();
    if (path.empty()) refuse(fmt::format("--{} needs the name of a file", f.name));
    if (o.training.save.given() && detail::is_taken_by_states(path, o.training.save()))
      refuse(fmt::format("--{} names {}, which {} needs for its states; choose another file",
                         f.name, path, o.training.save()));
    for (const int said : {STDOUT_FILENO, STDERR_FILENO})
      if (detail::is_file_of(said, path))
        refuse(
            fmt::format("--{} names {}, the file of the standard {}; give the report a file of "
                        "its own",
                        f.name, path, said == STDOUT_FILENO ? "output" : "error"));
  }
  for (const report_file& f : all) {
    if (!f.path.given()) continue;
    if (f.replaced) check_text_file(f.path());
    check_own_kind(f.path(), f.begin, f.kind);
    for (const std::string& data : o.data.data_path())
      if (detail::is_same_place(f.path(), data))
        refuse(fmt::format("--{} and --data-path both name {}; give the report a file of its own",
                           f.name, f.path()));
    for (const report_file* other = all; other != &f; ++other)
      if (other->path.given() && detail::is_same_place(f.path(), other->path()))
        refuse(fmt::format("--{} and --{} both name {}; give two files", other->name, f.name,
                           other->path()));
  }
}

} // namespace mc
