// Files and data sets that a request names.
#pragma once

#include <megacpp/request/data_request.hpp>
#include <megacpp/run/view.hpp>
#include <megacpp/sets/opened_sets.hpp>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace mc::detail {

/// Returns a sentence that says why nothing is validated, and how it would be.
inline std::string nothing_to_validate(const data_request& d) {
  return d.by_split
             ? "there is nothing to validate; name data by split_paths::valid"
             : fmt::format(
                   "data_request::split {} leaves nothing to validate; 90,10 would leave a tenth",
                   d.training_split());
}

/// Returns the name of data of several files or sets.
inline std::string name_of_all(const std::vector<std::string>& paths) {
  return paths.size() == 1 ? paths[0] : fmt::format("{} and {} more", paths[0], paths.size() - 1);
}

/// Throws mc::error(exit_code::mismatch) unless the program keeps attention within documents, which
/// `what` needs.
inline void require_packed(const program_view& p, const char* what) {
  if (!p.numbers.batch.packed)
    throw error(exit_code::mismatch,
                fmt::format("attention within documents, which {} must have, is not built into {}: "
                            "build it with PACKED of megacpp_add_preset, packed=1 of "
                            "examples/build_preset.sh, or batch.packed = true",
                            what, p.name));
}

/// Throws mc::error unless each path names a file or a data set.
inline void require_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    std::error_code ignored;
    const std::filesystem::path file(path);
    if ((file.extension() == ".bin" || file.extension() == ".idx") &&
        is_set(std::filesystem::path(file).replace_extension().string()))
      throw error(
          exit_code::usage,
          fmt::format("data_request::paths names the data set {} by one of its files; leave {} out",
                      path, file.extension().string()));
    if (!path.empty() && !std::filesystem::exists(file, ignored))
      throw error(
          exit_code::data,
          fmt::format("{} does not exist, and neither does a data set {}.idx; {}", path, path,
                      is_set(path + "_text_document") ? fmt::format("{}_text_document is one", path)
                                                      : "check data_request::paths"));
    if (std::filesystem::is_directory(file, ignored))
      throw error(exit_code::data, fmt::format("{} is a directory; give a file in it, or the name "
                                               "of a data set without .bin and .idx",
                                               path));
  }
}

} // namespace mc::detail
