// `export`: a saved model written anew for use elsewhere.
#pragma once

#include <megacpp/observe/text.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/options.hpp>
#include <megacpp/train/print.hpp>

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

} // namespace detail

/// Reads --load and writes --save; no weights are held in memory.
inline void run_export(const program_view& p, const options& o) {
  if (!o.model.load.given() || !o.training.save.given())
    throw error(exit_code::usage,
                "export needs --load FOLDER, a saved model, and --save FOLDER, where to write it");
  const model_folder from = detail::required_model(o, "export");
  const saved_model m = export_model_folder(
      from, o.training.save(), p, detail::storage_named(o.model.dtype()), shard_limit_of(o));
  print_line(fmt::format("{} tensors, {} in {} file{}, written to {}", m.tensors,
                         bytes_text(m.bytes).view(), m.files, m.files == 1 ? "" : "s",
                         o.training.save()));
}

} // namespace mc
