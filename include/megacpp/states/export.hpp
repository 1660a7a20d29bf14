// The command `export`, which writes a saved model anew for use elsewhere.
#pragma once

#include <megacpp/hf/merge.hpp>
#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/io/same_place.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/start.hpp>

#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

#include <unistd.h>

namespace mc {

namespace detail {

/// Throws mc::error(exit_code::output) for a folder of states, which no model replaces.
inline void require_no_states(const std::string& path) {
  std::error_code problem;
  if (!std::filesystem::is_directory(path, problem) || ::access(path.c_str(), R_OK | X_OK) != 0)
    return; // folder_writer says what else it is
  const model_folder there(path);
  if (is_state_root(there) || there.contains(state_file_name))
    throw error(exit_code::output, fmt::format("{} holds the state of a run, which export leaves "
                                               "as it is: choose another folder to save to",
                                               path));
}

/// Throws mc::error(exit_code::output) for a folder that is read, which other files may name by its
/// checksum.
inline void require_other_folder(const std::string& path, const model_folder& read,
                                 const char* what) {
  if (is_same_place(path, read.path()))
    throw error(exit_code::output,
                fmt::format("{} holds {}, by which adapters beside it are checked: choose another "
                            "folder to save to",
                            path, what));
}

} // namespace detail

/// Writes a saved model anew, or an adapter by itself or merged into its base. Weights go from file
/// to file, and all ranks call it. Throws mc::error.
inline void run_export(const program_view& p, const export_request& r,
                       communicator& hosts = self::hosts()) {
  agreement all(hosts);
  const std::string named = all.enter_after_first();
  if (!r.start.load || !r.save)
    throw error(exit_code::usage,
                "export needs start_request::load FOLDER, a saved model, and export_request::save "
                "FOLDER, where to write it");
  require_one_adapter(r.start);
  const found_model from = detail::required_model(r.start, "export", all, named);
  if (all.first()) detail::require_no_states(*r.save);
  all.let_others_enter(name_of(from));
  detail::require_same_model(all, from);
  const model_folder& weights = from.base ? *from.base : from.folder;
  const model_folder* const adapter = from.base               ? &from.folder
                                      : from.adapters.empty() ? nullptr
                                                              : &from.adapters.front().folder;
  if (adapter == nullptr && r.merge)
    throw error(exit_code::usage,
                fmt::format("{} is no state of an adapter: name an adapter to merge into it by "
                            "start_request::adapters",
                            weights.path()));
  if (r.through_nf4 && !r.merge)
    throw error(exit_code::usage,
                "export_request::through_nf4 is for a model into which an adapter is merged; add "
                "export_request::merge, or leave it out");
  const bool adapter_alone = adapter != nullptr && !r.merge;
  if (r.merge && all.first()) detail::require_other_folder(*r.save, weights, "the base");
  if (r.layout && !adapter_alone)
    throw error(exit_code::usage,
                "a model is written, and export_request::layout is for an "
                "adapter by itself; leave it out");
  if (r.max_shard && adapter_alone && all.first())
    print_note("the most bytes of a file of a model change nothing: an adapter is one file");
  const auto layout = adapter_layout_named(r.layout.value_or("peft"));
  if (!layout)
    throw error(exit_code::usage,
                fmt::format("export_request::layout is \"{}\"; give peft, peft-0.18 or vllm",
                            printable(*r.layout)));
  if ((r.nf4 || r.through_nf4) && p.numbers.adapter.base != base_storage::nf4)
    throw error(exit_code::mismatch,
                fmt::format("{} stores no layer in NF4; build a preset with base=nf4", p.name));
  if (r.nf4 && adapter != nullptr)
    throw error(exit_code::usage,
                fmt::format("{} is an adapter, which stays as it is; name the model to write in "
                            "NF4 by start_request::load alone",
                            adapter->path()));
  const std::optional<storage_type> type = weight_type_named(r.type);
  // A state has the files of the tokenizer that its run used.
  const auto extra = tokenizer_files(from.folder.path());
  saved_model m;
  std::string checked;
  if (adapter == nullptr) {
    std::optional<std::uint64_t> of;
    if (r.nf4) {
      const std::uint64_t of_plain = detail::plain_checksum(weights);
      of = of_plain != 0 ? of_plain : checksum_of_values(weights, p, hosts);
    }
    m = export_model_folder(weights, *r.save, p, type, r.max_shard.value_or(hf_shard_limit), hosts,
                            extra, {.nf4_of = of});
  } else {
    const adapter_in_folder values(
        *adapter, p,
        from.base ? adapter_layout::peft : adapter_layout_named(r.start.adapter_layout));
    const adapter_base base = base_in(weights, p, hosts);
    require_base(base, values.base(), *adapter, weights, r.start, hosts);
    if (r.merge) {
      merging change(p, values);
      m = export_model_folder(weights, *r.save, p, type, r.max_shard.value_or(hf_shard_limit),
                              hosts, extra, {.change = &change, .through_nf4 = r.through_nf4});
      checked =
          fmt::format("; {} rows of weights have the adapter, checked in double", change.checked());
    } else m = export_adapter_folder(values, *r.save, p, base, *layout, type, hosts, extra);
  }
  if (!all.first()) return;
  print_line(fmt::format("{} tensors, {} in {} file{}, written to {}{}", m.tensors,
                         bytes_text(m.bytes).view(), m.files, m.files == 1 ? "" : "s", *r.save,
                         checked));
}

} // namespace mc
