// `export`: a saved model written anew for use elsewhere.
#pragma once

#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/train/evaluate.hpp>

#include <filesystem>
#include <string>
#include <system_error>

#include <unistd.h>

namespace mc {

/// Throws mc::error(exit_code::usage) for a --max-shard-size that is no size.
inline std::uint64_t shard_limit_of(const options& o) {
  const std::string& text = o.model.max_shard_size();
  if (const auto size = size_from_text(text)) return *size;
  throw error(exit_code::usage,
              fmt::format("--max-shard-size is \"{}\", but must be a number of bytes above 0, or "
                          "one with KB, MB, GB, TB, KiB, MiB, GiB or TiB, for example 5GB",
                          printable(text)));
}

namespace detail {

inline std::optional<storage_type> storage_named(std::string_view name) {
  if (name == "fp32") return storage_type::f32;
  if (name == "bf16") return storage_type::bf16;
  if (name == "fp64") return storage_type::f64;
  return std::nullopt;
}

/// Throws mc::error(exit_code::output) for a folder of states, which no model replaces.
inline void refuse_states(const std::string& path) {
  std::error_code problem;
  if (!std::filesystem::is_directory(path, problem) || ::access(path.c_str(), R_OK | X_OK) != 0)
    return; // what else it is, folder_writer says
  const model_folder there(path);
  if (is_state_root(there) || there.contains(state_file_name))
    throw error(exit_code::output,
                fmt::format("{} holds the state of a run, which export leaves as it is: choose "
                            "another folder to save to",
                            path));
}

} // namespace detail

/// Reads --load and writes --save; no weights are held in memory. All ranks call it.
inline void run_export(const program_view& p, const options& o,
                       communicator& hosts = self::hosts()) {
  agreement all(hosts);
  const std::string named = all.before_others();
  if (!o.model.load.given() || !o.training.save.given())
    throw error(exit_code::usage,
                "export needs --load FOLDER, a saved model, and --save FOLDER, where to write it");
  const found_model from = detail::required_model(o, "export", all, named);
  const std::uint64_t shard_limit = shard_limit_of(o);
  if (all.first()) detail::refuse_states(o.training.save());
  all.after_first(name_of(from));
  detail::require_same_model(all, from.folder);
  const saved_model m =
      export_model_folder(from.folder, o.training.save(), p, detail::storage_named(o.model.dtype()),
                          shard_limit, hosts, tokenizer_files(from.folder.path()));
  if (!all.first()) return;
  print_line(fmt::format("{} tensors, {} in {} file{}, written to {}", m.tensors,
                         bytes_text(m.bytes).view(), m.files, m.files == 1 ? "" : "s",
                         o.training.save()));
}

} // namespace mc
