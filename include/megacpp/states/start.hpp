// The model or state that a command starts from.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/same_place.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/request/start_request.hpp>
#include <megacpp/request/tokenizer_request.hpp>
#include <megacpp/states/adapter_base.hpp>
#include <megacpp/states/find_saved.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The model or state that a run starts from, if there is one, and the data that the ranks of a
/// process share.
struct training_start {
  std::optional<state_root> root{}; ///< the folder to save to, if the run starts from it
  std::optional<found_model> from{};
  bool weights_alone = false; ///< of `from` alone the weights are taken, and a new run begins
  opened_once<run_data> data = {};
};

namespace detail {

/// Opens what a model or state needs beside it: the base of a state of an adapter, by
/// start_request::pretrained or else by the path in the state, or the adapter of a request. A run
/// that `goes_on` from a state has its adapter there. Throws mc::error.
inline void open_base_and_adapter(found_model& found, const start_request& r,
                                  bool goes_on = false) {
  const bool of_adapter = found.state && found.state->state().has("base");
  const auto note_from = [&](const found_model& other) {
    for (const std::string& note : other.notes)
      found.notes.push_back(fmt::format("{}: {}", other.root, note));
  };
  if (of_adapter && !r.adapters.empty() && !goes_on)
    throw error(
        exit_code::usage,
        fmt::format("{} is the state of an adapter, and start_request::adapters names another "
                    "one: give the model by start_request::load",
                    found.folder.path()));
  for (const named_adapter& asked : r.adapters) {
    if (of_adapter) break;
    std::optional<found_model> state;
    if (model_folder there(asked.folder);
        there.contains(adapter_config_name) && !there.contains(state_file_name))
      found.adapters.push_back({asked.name, std::move(there)});
    else if ((state = find_saved(asked.folder, false)) &&
             state->folder.contains(adapter_config_name))
      note_from(*state), found.adapters.push_back({asked.name, std::move(state->folder)});
    else
      throw error(
          exit_code::model,
          fmt::format("{} holds no adapter: it has no {}, as a folder of PEFT and a state of "
                      "an adapter have",
                      asked.folder, adapter_config_name));
  }
  if (!of_adapter) return;
  const auto named = found.state->state().field<json_value>("base").field<std::string>("folder");
  const std::string& path = r.pretrained.value_or(named);
  const auto needs = [&](const std::string& problem) {
    return error(exit_code::model,
                 fmt::format("{} is the state of an adapter, and the model that it adapts {}; give "
                             "it by start_request::pretrained, or by start_request::load with this "
                             "folder as start_request::adapters",
                             found.folder.path(), problem));
  };
  std::error_code ignored;
  if (path.empty()) throw needs("has no path there");
  if (!std::filesystem::exists(path, ignored)) throw needs(fmt::format("is not at {}", path));
  std::optional<found_model> base = find_saved(path, false);
  if (!base) throw needs(fmt::format("is not in {}", path));
  note_from(*base);
  found.base.emplace(std::move(base->folder));
}

/// Returns a sentence about the way in which weights are stored in a folder and in the program; ""
/// where they are plain in both.
inline std::string storage_text(const model_folder& folder, const program_view& p) {
  hf_storage stored = hf_storage::plain;
  if (!folder.contains(state_file_name) && folder.contains("config.json"))
    stored = hf_storage_of(read_json(folder.open("config.json")));
  const bool keeps = p.numbers.adapter.base == base_storage::nf4;
  if (stored == hf_storage::plain && !keeps) return "";
  const char* const there = stored == hf_storage::fp8   ? "in FP8, in blocks of 128 by 128"
                            : stored == hf_storage::nf4 ? "in NF4"
                                                        : "plain";
  return fmt::format("the weights of {} are {}; {}", folder.path(), there,
                     !keeps                      ? "they are decoded while they load"
                     : stored == hf_storage::nf4 ? "linear layers keep their codes"
                                                 : "linear layers are quantised to NF4 while they "
                                                   "load");
}
} // namespace detail

/// Throws mc::error(exit_code::mismatch) for another base than the one beside which the adapter in
/// a folder was trained, unless nobody has told that one or the request says so. The same model in
/// fewer bits is no other one; the first rank tells it.
inline void require_base(const adapter_base& base, const adapter_base& trained_beside,
                         const model_folder& adapter, const model_folder& weights,
                         const start_request& r, communicator& hosts) {
  if (!trained_beside.is_known() || r.other_base) return;
  if (!trained_beside.is_of(base))
    throw error(
        exit_code::mismatch,
        fmt::format("{} has other weights (checksum {:016x}) than the model beside which "
                    "the adapter in {} was trained ({:016x}); give that model, or "
                    "start_request::other_base if this one is meant",
                    weights.path(), base.checksum, adapter.path(), trained_beside.checksum));
  const bool coded = trained_beside.nf4 || trained_beside.plain != 0;
  if (hosts.rank() == 0 && coded != (base.nf4 || base.plain != 0))
    print_note(
        fmt::format("the adapter in {} was trained beside {} weights of this model, and is "
                    "used beside {} ones",
                    adapter.path(), coded ? "quantised" : "plain", coded ? "plain" : "quantised"));
}
/// Returns the base of the program's adapter, which the weights of a folder are. All ranks call it.
inline adapter_base base_in(const model_folder& weights, const program_view& p,
                            communicator& hosts) {
  return {std::filesystem::absolute(weights.path()).lexically_normal().string(),
          checksum_of_values(weights, p, hosts), detail::plain_checksum(weights),
          p.numbers.adapter.base == base_storage::nf4};
}

/// Loads the weights of what a command starts from: a model, with a new adapter or with those of a
/// request, or the state of an adapter and its base. Returns the base of the program's adapter.
/// All ranks call it. Throws mc::error: mismatch for a base other than the one beside which an
/// adapter was trained, unless the request says so.
inline adapter_base load_start(const found_model& found, const start_request& r,
                               const program_view& p, mc::stores& s, std::uint64_t seed,
                               communicator& hosts) {
  const model_folder& weights = found.base ? *found.base : found.folder;
  if (p.numbers.held_adapters == 0) require_one_adapter(r);
  if (p.numbers.adapter.rank == 0 && (found.base || !found.adapters.empty()))
    throw error(
        exit_code::mismatch,
        fmt::format("{} has no adapter to load {} into; build a preset that has one", p.name,
                    (found.base ? found.folder : found.adapters.front().folder).path()));
  if (hosts.rank() == 0)
    if (const std::string how = detail::storage_text(weights, p); !how.empty()) print_note(how);
  load_weights(weights, p, s, seed);
  if (p.numbers.adapter.rank == 0) return {};
  adapter_base base = base_in(weights, p, hosts);
  if (found.base) {
    adapter_base trained_beside = *base_of_state(found.state->state());
    trained_beside.nf4 = p.numbers.adapter.base == base_storage::nf4; // as require_same_program saw
    load_adapter_of_state(found.folder, found.state->state(), p, s);
    require_base(base, trained_beside, found.folder, weights, r, hosts);
    return base;
  }
  std::vector<std::unique_ptr<const adapter_in_folder>> all;
  for (const auto& [name, folder] : found.adapters) {
    const auto layout = folder.contains(state_file_name) ? adapter_layout::peft
                                                         : adapter_layout_named(r.adapter_layout);
    all.push_back(
        std::make_unique<const adapter_in_folder>(folder, p, layout, static_cast<int>(all.size())));
    require_base(base, all.back()->base(), folder, weights, r, hosts);
  }
  load_adapters(all, s, seed);
  for (const auto& [name, folder] : found.adapters) detail::require_finite_weights(folder, p, s);
  return base;
}

/// Finds the model or state that a training run starts from. `save`: the folder that it saves to.
/// If the run loads from that folder, which has no state yet, it starts from the weights of
/// start_request::pretrained, or from nothing, so one request serves the first start and every
/// later one. That folder is locked and tidied first, so that what is found in it stays the newest
/// while the run lives, unless the run saves nothing and so `claims` no folder. Throws mc::error.
inline training_start find_start(const start_request& r, const std::optional<std::string>& save,
                                 bool claims = true) {
  training_start start{.weights_alone = r.finetune};
  if (!r.load) return start;
  const bool same = save && detail::is_same_place(*r.load, *save);
  std::error_code ignored;
  if (claims && same && std::filesystem::is_directory(*r.load, ignored)) start.root.emplace(*save);
  std::optional<found_model>& from = start.from;
  if (!same || std::filesystem::exists(*r.load, ignored)) from = find_saved(*r.load, !r.finetune);
  if (!from && r.pretrained) {
    from = find_saved(*r.pretrained, false);
    if (!from) throw nothing_saved(*r.pretrained, "check the path of start_request::pretrained");
    print_on_the_way(
        fmt::format("{} has no saved state yet: a new run begins with the weights of {}", *r.load,
                    *r.pretrained));
    start.weights_alone = true;
  }
  if (!from && !same) throw nothing_saved(*r.load, "check the path of start_request::load");
  if (!from) {
    print_on_the_way(fmt::format("{} has no saved state yet: a new run begins", *r.load));
    return start;
  }
  if (from->state && !start.weights_alone)
    for (const named_adapter& a : r.adapters)
      from->notes.push_back(
          fmt::format("{} has the state of a run, which goes on with its own "
                      "factors: those of {} are not read",
                      from->folder.path(), a.folder));
  else if (!from->state && !start.weights_alone && r.pretrained)
    throw error(
        exit_code::usage,
        fmt::format("{} holds a model and start_request::pretrained names another, {}; give "
                    "one of the two",
                    from->folder.path(), *r.pretrained));
  if (start.root) start.root->skip(from->damaged);
  detail::open_base_and_adapter(*from, r, !start.weights_alone);
  for (const std::string& note : from->notes) print_on_the_way(note);
  return start;
}

/// Returns the start of another rank of this process: the folder that the first rank has examined,
/// and the same data.
inline training_start for_another_rank(const training_start& first, const start_request& r = {}) {
  training_start start{.weights_alone = first.weights_alone};
  start.data = first.data;
  if (!first.from) return start;
  const std::string& root = first.from->root;
  start.from = found_as_named(root.empty() ? first.from->folder.path() : root, name_of(*first.from),
                              false, false, first.from->state.has_value());
  detail::open_base_and_adapter(*start.from, r, !start.weights_alone);
  return start;
}

/// Returns a start as another process has to know it: the name of the folder that was found within
/// the path, and whether that is the path of start_request::pretrained; "" for a new model.
inline std::string text_of(const training_start& start, const start_request& r) {
  if (!start.from) return "";
  return (start.weights_alone && !r.finetune ? "pretrained/" : "load/") + name_of(*start.from);
}
/// Returns the start that another process has told by such a text. Throws mc::error.
inline training_start start_of_text(std::string_view text, const start_request& r) {
  training_start start{.weights_alone = r.finetune};
  if (text.empty()) return start;
  const bool pretrained = text.starts_with("pretrained/");
  start.weights_alone |= pretrained;
  start.from =
      found_as_named((pretrained ? r.pretrained : r.load).value_or(""),
                     std::string(text.substr(text.find('/') + 1)), !start.weights_alone, true);
  detail::open_base_and_adapter(*start.from, r, !start.weights_alone);
  return start;
}

/// Adds to the request of a command the type of tokenizer that the run of a state was given, unless
/// the command names a type or files itself. A model of characters needs none, since their list
/// lies beside its weights. Throws mc::error(exit_code::model).
inline tokenizer_request with_tokenizer_of_run(tokenizer_request r, const json_value& state) {
  const auto given = state.field<std::vector<std::string>>("given");
  constexpr std::string_view name = "tokenizer-type";
  if (r.type || r.names_files() || std::ranges::find(given, name) == given.end()) return r;
  const json_value flags = state.field<json_value>("flags");
  const auto type = flags.field<std::string>(name);
  if (fmt::format("|{}|", tokenizer_types).find(fmt::format("|{}|", type)) == std::string::npos)
    throw flags.fault(fmt::format("field \"{}\" is \"{}\", which is no type of a tokenizer", name,
                                  printable(type)));
  if (type != "char") r.type = type;
  return r;
}

namespace detail {

/// Throws mc::error unless all processes, each of which has opened the model for itself, have the
/// same.
inline void require_same_model(agreement& all, const found_model& found) {
  if (!all.separate_processes()) return;
  all.require_same(hash_of(found), "another model at start_request::load",
                   "let all of them see the same folder");
}

/// Returns the model that a command needs. The first rank finds it and tells what is damaged; other
/// ranks open what it has `named` (agreement::enter_after_first). Throws mc::error.
inline found_model required_model(const start_request& r, const char* command,
                                  const agreement& ranks, const std::string& named) {
  const std::optional<std::string>& load = r.load;
  if (!ranks.first()) {
    found_model found = found_as_named(load.value_or(""), named, false, ranks.separate_processes());
    open_base_and_adapter(found, r);
    return found;
  }
  if (!load)
    throw error(
        exit_code::usage,
        fmt::format("{} needs start_request::load FOLDER, the folder of a saved model", command));
  std::optional<found_model> found = find_saved(*load, false);
  if (!found) throw nothing_saved(*load, "train with loop_request::save first");
  open_base_and_adapter(*found, r);
  if (r.pretrained && !found->base)
    found->notes.push_back(
        fmt::format("{} is no state of an adapter, so {}, the model beside "
                    "which an adapter would be used, changes nothing",
                    found->folder.path(), *r.pretrained));
  for (const std::string& note : found->notes) print_note(note);
  return std::move(*found);
}

} // namespace detail
} // namespace mc
