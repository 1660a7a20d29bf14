// States: folders with all that a run needs to go on, which are weights, both moments, the step,
// the position in the data, and the request. A family that Hugging Face has is saved as a model of
// theirs, another one under the registry's names. docs/state.md describes the files.
//
// A state does not depend on layout, threads or micro-batches. The ranks that hold a tensor put it
// together whole, and the position is a step and the number of a sample. The weights of a state are
// those that training updates, which are the masters where the program computes in bf16; rounded,
// they are the weights of the program.
#pragma once

#include <megacpp/hf/adapter.hpp>
#include <megacpp/states/state_file.hpp>
#include <megacpp/states/state_root.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// The position of a run.
struct run_position {
  std::int64_t step = 0;    ///< steps done
  std::int64_t samples = 0; ///< samples taken, so also the number of the next one
  std::int64_t empty = 0;   ///< steps without a token to learn, which have changed nothing

  /// Returns how many updates the optimizer has made.
  std::int64_t updates() const { return step - empty; }
};

namespace detail {

/// A tensor of a file of a state: a parameter, an array of one that is stored in several, or a
/// moment of one; whole, without the rows that pad a vocabulary.
struct stored_tensor {
  std::string name;
  parameter_ref of;
  dtype type; ///< in the file
  std::vector<std::int64_t> shape;
  global_count count;
  std::vector<store_source> in; ///< the stores that have it
};

/// The parameters of a file of weights: all, those of the model that an adapter is beside, or those
/// that a run with an adapter trains.
enum class stored_parameters { all, base, trained };

/// Returns the tensors of the file of weights, or of that of moments, which parameters have that
/// training updates. With `own` a rank answers for its part of them, so that ranks together save
/// each once; else for all that it holds.
inline std::vector<stored_tensor> stored_tensors(const program_view& p, const mc::stores& s,
                                                 bool moments, bool own,
                                                 stored_parameters part = stored_parameters::all) {
  std::vector<stored_tensor> list;
  for_each_array(p, [&](const parameter_ref& r, dtype type) {
    if (part == stored_parameters::base ? r.info->added
                                        : part == stored_parameters::trained && r.info->frozen)
      return;
    stored_tensor t{r.name, r, s.precision().master, {}, unpadded_size(*r.v, *r.info), s.kept()};
    for (int i = 0; i < r.v->rank; ++i) t.shape.push_back(r.v->dims[static_cast<unsigned>(i)].n);
    if (r.info->valid_rows > 0) t.shape[0] = r.info->valid_rows;
    if (!moments) {
      if (r.info->encoding != nullptr) t.type = type, t.in = {{s.weights(), type, {.own = own}}};
      return list.push_back(std::move(t));
    }
    t.type = s.precision().moment;
    for (const auto& [prefix, store] : {std::pair("optim.exp_avg.", s.first_moments()),
                                        std::pair("optim.exp_avg_sq.", s.second_moments())}) {
      t.name = prefix + r.name, t.in = {{store, t.type, {.states = true, .own = own}}};
      if (!r.info->frozen) list.push_back(t);
    }
  });
  return list;
}

/// Writes the tensors of a file, which the ranks have together. All ranks call it.
inline void write_stores(folder_writer& out, const char* file,
                         const std::vector<stored_tensor>& list, const mc::stores& s,
                         communicator& hosts) {
  std::map<std::string, const stored_tensor*> by_name;
  std::vector<tensor_spec> specs;
  for (const stored_tensor& t : list) {
    by_name.emplace(t.name, &t);
    specs.push_back({t.name, storage_of(t.type), t.shape});
  }
  const safetensors_layout layout(std::move(specs));
  out.require_space(layout.file_size());
  constexpr std::int64_t most = 1 << 17; // elements at a time
  std::vector<std::byte> block;
  out.write(file, layout.file_size(), [&](const byte_sink& sink) {
    write_finite(layout, sink, [&](const tensor_spec& spec, const byte_sink& data) {
      const stored_tensor& t = *by_name.at(spec.name);
      for (global_count at; at.n < t.count.n; at.n += most) {
        const std::int64_t end = std::min(at.n + most, t.count.n);
        block.assign(static_cast<std::size_t>((end - at.n) * size_of(t.type)), std::byte{});
        for (const store_source& k : t.in)
          s.held(t.of, k.what)
              .each_contiguous(at, {end}, [&](global_count first, std::int64_t i, std::int64_t n) {
                const host_accessor seen = s.seen(k.data, k.type, i, i + n);
                stores::convert_run(seen.data(), k.type, block.data(), t.type, first.n - at.n, n);
              });
        join_bytes(hosts, block);
        data(block);
      }
    });
  });
}

/// Calls f(tensor, its view) for every tensor of a file. Throws mc::error(exit_code::mismatch),
/// naming the tensor, unless the file has exactly these, in their types.
template <class F> void read_stores(const model_folder& folder, const char* name,
                                    const program_view& p, const std::vector<stored_tensor>& ours,
                                    F f) {
  const safetensors_file file(folder.open(name));
  const auto refuse = [&](const std::string& tensor, std::string_view why) {
    return error(exit_code::mismatch, fmt::format("{}: tensor \"{}\" {}; the state is of another "
                                                  "model than {}, or of a run that froze other "
                                                  "parameters: go on from its weights alone by "
                                                  "start_request::finetune",
                                                  file->path(), printable(tensor), why, p.name));
  };
  std::set<std::string> known;
  for (const stored_tensor& t : ours) {
    const auto found = file->find(t.name);
    if (!found) throw refuse(t.name, "is missing");
    const storage_type needed = storage_of(t.type);
    if (!std::ranges::equal(found->shape, t.shape) || found->type != needed)
      throw refuse(t.name,
                   fmt::format("is {} {}, but {} {} is needed", name_of(found->type),
                               shape_text(found->shape), name_of(needed), shape_text(t.shape)));
    known.insert(t.name);
  }
  for (std::size_t i = 0; i < file->size(); ++i)
    if (const std::string stored(file.tensors()[i].name); known.count(stored) == 0)
      throw refuse(stored, "is not one of its tensors");
  for (const stored_tensor& t : ours) {
    file.check_unchanged();
    f(t, *file->find(t.name));
  }
}

/// Takes a tensor of a file into the stores that have it, in the same type.
inline void take_stored(mc::stores& s, const stored_tensor& t, const file_tensor& stored) {
  const auto bytes = [&](std::int64_t n) { return static_cast<std::size_t>(n * size_of(t.type)); };
  for (const store_source& k : t.in)
    s.held(t.of, k.what)
        .each_contiguous({}, t.count, [&](global_count from, std::int64_t to, std::int64_t n) {
          s.put_bytes(k.data, k.type, to, stored.bytes.subspan(bytes(from.n), bytes(n)));
        });
}

/// Returns the numbers by which the program of a state is known.
inline nlohmann::json program_json(const program_view& p) {
  nlohmann::json model = nlohmann::json::object();
  for (const model_number& n : p.model.numbers) model[n.name] = n.value;
  if (const lora& a = p.numbers.adapter; a.rank > 0) {
    model["adapter.rank"] = a.rank, model["adapter.scale"] = a.scale();
    for (const auto& [name, pattern] :
         {std::pair("adapter.ranks", &a.ranks), std::pair("adapter.alphas", &a.alphas)})
      for (int k = 0; k < pattern->count; ++k)
        model[name][pattern->all[k].layer] = pattern->all[k].value;
    for (const auto& [name, list] : {std::pair("adapter.targets", &a.targets),
                                     {"adapter.excluded", &a.excluded},
                                     {"adapter.saved", &a.saved}})
      for (int k = 0; k < list->count; ++k) model[name].push_back(list->names[k]);
    std::vector<int> layers; // told where some have no adapter
    for (int l = 0; l < p.layers; ++l)
      if (a.is_in(l)) layers.push_back(l);
    if (std::ssize(layers) < p.layers) model["adapter.layers"] = layers;
    if (a.base != base_storage::plain) model["adapter.base"] = name_of(a.base);
  }
  return {{"name", p.name},
          {"family", p.family.name},
          {"precision", name_of(p.numbers.precision.weight)},
          {"sequence", p.numbers.batch.sequence},
          {"layers", p.layers},
          {"hidden", p.hidden},
          {"vocabulary", p.vocabulary},
          {"parameters", p.parameters},
          {"kinds", p.kind_of}, // of block, by layer
          {"model", std::move(model)}};
}

} // namespace detail

/// The layouts of weights in the files of a state: those of Hugging Face and of PEFT, and the
/// program's own. The state of a run with an adapter has the adapter alone, and names its base.
inline constexpr const char* huggingface_files = "huggingface";
inline constexpr const char* adapter_files = "adapter";
inline constexpr const char* registry_files = "registry";

/// Writes the files of a state. All ranks call it, as write_model_files. `state` has the fields
/// that the caller adds. Throws mc::error: output if something cannot be written; nonfinite, naming
/// the tensor, if a weight or moment is not finite; mismatch for a program that is laid out over
/// other ranks.
inline void write_state(folder_writer& out, const program_view& p, const mc::stores& s,
                        const run_position& at, nlohmann::json state,
                        std::span<const extra_file> extra_files = {},
                        std::uint64_t max_shard = hf_shard_limit,
                        communicator& hosts = self::hosts(), const adapter_base& base = {}) {
  require_ranks(p, hosts);
  const bool adapts = p.numbers.adapter.rank > 0;
  const auto weights = detail::stored_tensors(
                 p, s, false, true,
                 adapts ? detail::stored_parameters::trained : detail::stored_parameters::all),
             moments = detail::stored_tensors(p, s, true, true);
  std::int64_t bytes = 0;
  for (const auto* const list : {&weights, &moments})
    for (const detail::stored_tensor& t : *list) bytes += t.count.n * size_of(t.type);
  out.require_space(static_cast<std::uint64_t>(bytes));
  state["weights"] = is_hugging_face_model(p) ? huggingface_files
                     : peft_reads_adapter(p)  ? adapter_files
                                              : registry_files;
  if (state["weights"] == huggingface_files) {
    write_model_files(out, p, s, extra_files, max_shard, hosts);
  } else {
    for (const auto& [name, text] : extra_files) out.write(name, text);
    if (state["weights"] == registry_files)
      detail::write_stores(out, hf_weights_name, weights, s, hosts);
    else write_adapter_files(out, p, s, hosts, base);
  }
  detail::write_stores(out, optimizer_file_name, moments, s, hosts);
  state["step"] = at.step;
  state["consumed_samples"] = at.samples;
  state["empty_steps"] = at.empty;
  state["program"] = detail::program_json(p);
  if (adapts)
    state["base"] = {{"folder", base.folder},
                     {"values", fmt::format("{:016x}", base.checksum)},
                     {"plain", fmt::format("{:016x}", base.plain)}};
  out.write(state_file_name, state_text(std::move(state), out.written()));
}

/// Throws mc::error(exit_code::mismatch) for the state of another model. The sentence names every
/// number that differs. `as_base`: the program's adapter does not count.
inline void require_same_program(const json_value& state, const program_view& p,
                                 bool as_base = false) {
  const json_value theirs = state.field<json_value>("program");
  const nlohmann::json ours = detail::program_json(p);
  std::string differ;
  const auto compare = [&](const std::string& name, const nlohmann::json& there,
                           const nlohmann::json& here) {
    if (there != here)
      differ += fmt::format("{}{} is {} there and {} here", differ.empty() ? "" : ", ", name,
                            shown(there), shown(here));
  };
  for (const char* name :
       {"family", "precision", "sequence", "layers", "hidden", "vocabulary", "parameters", "kinds"})
    if (!as_base || (std::string_view(name) != "parameters" &&
                     (p.numbers.adapter.layers.empty() || std::string_view(name) != "kinds")))
      compare(name, theirs.raw().value(name, nlohmann::json()), ours.at(name));
  const json_value model = theirs.field<json_value>("model");
  for (const auto& item : ours.at("model").items())
    if (!ours.contains(item.key()) && !(as_base && item.key().starts_with("adapter.")))
      compare(item.key(), model.raw().value(item.key(), nlohmann::json()), item.value());
  for (const auto& item : model.raw().items())
    if (!ours.at("model").contains(item.key()))
      compare(printable(item.key()), item.value(), nlohmann::json());
  if (!differ.empty())
    throw error(exit_code::mismatch,
                fmt::format("{} is the state of another model than {}: {}; build the program that "
                            "wrote it",
                            state.file(), p.name, differ));
}

namespace detail {

/// Loads the weights of a state that have the registry's names: those of a model, or of an adapter.
/// Throws mc::error.
inline void load_registry_weights(const model_folder& folder, const json_value& state,
                                  const program_view& p, mc::stores& s, stored_parameters part) {
  require_same_program(state, p, part == stored_parameters::base);
  if (part == stored_parameters::base && p.numbers.adapter.base == base_storage::nf4)
    throw error(exit_code::mismatch,
                fmt::format("{} is a state without the form of Hugging Face, whose weights are not "
                            "quantised while they load; build a preset without base=nf4",
                            folder.path()));
  const auto read = [&](const detail::stored_tensor& t, const file_tensor& stored) {
    if (t.of.info->encoding != nullptr) return detail::take_stored(s, t, stored);
    constexpr std::int64_t at_once = 512;
    const auto held = s.held(t.of, {});
    const auto load = [&](global_count from, std::int64_t to, std::int64_t n) {
      double x[at_once];
      for (std::int64_t i = 0; i < n; ++i) x[i] = stored_element(stored.bytes, t.type, from.n + i);
      s.set_weights(to, {x, static_cast<std::size_t>(n)});
    };
    parallel_for((t.count.n + at_once - 1) / at_once, [&](std::int64_t b) {
      held.each_contiguous({b * at_once}, {std::min(t.count.n, (b + 1) * at_once)}, load);
    });
  };
  detail::read_stores(folder, hf_weights_name, p, detail::stored_tensors(p, s, false, false, part),
                      read);
  s.clear_padding();
}

/// Tells whether a folder is a state whose weights have the registry's names.
inline bool has_registry_weights(const model_folder& folder) {
  return folder.contains(state_file_name) &&
         state_file(folder).state().field<std::string>("weights") == registry_files;
}

inline error not_read(const json_value& state, const std::string& form) {
  return state.fault(
      fmt::format("has weights in the form \"{}\", which is not read", printable(form)));
}
/// Throws mc::error(exit_code::model) for weights of the folder that were too large for the
/// program's type.
inline void require_finite_weights(const model_folder& folder, const program_view& p,
                                   const mc::stores& s) {
  if (const std::string wide = s.nonfinite_weight(); !wide.empty())
    throw error(exit_code::model,
                fmt::format("{} has weights that {} cannot hold in {}: {}; build a preset of "
                            "another precision",
                            folder.path(), p.name, name_of(p.numbers.precision.weight), wide));
}

} // namespace detail

/// Loads the weights of a folder, which is a state or a model from anywhere. The factors of the
/// program's adapter, which it does not have, begin anew by a seed and add nothing yet. Throws
/// mc::error(exit_code::model), also for a weight that the program's precision cannot hold.
inline void load_weights(const model_folder& folder, const program_view& p, mc::stores& s,
                         std::uint64_t seed = 0) {
  s.initialise_added(seed);
  if (!folder.contains(state_file_name)) {
    load_model_folder(folder, p, s);
  } else {
    const state_file file(folder);
    const auto form = file.state().field<std::string>("weights");
    if (file.state().has("base"))
      throw error(exit_code::mismatch,
                  fmt::format("{} is the state of an adapter, and holds no model by itself; give "
                              "the model, and this folder as the adapter",
                              folder.path()));
    if (form == huggingface_files) {
      if (find_hf_family(p) == nullptr) require_same_program(file.state(), p, true);
      load_model_folder(folder, p, s);
    } else if (form == registry_files)
      detail::load_registry_weights(folder, file.state(), p, s, detail::stored_parameters::base);
    else throw detail::not_read(file.state(), form);
  }
  detail::require_finite_weights(folder, p, s);
}

/// Loads the adapter of a state, whose base is loaded. Throws mc::error.
inline void load_adapter_of_state(const model_folder& folder, const json_value& state,
                                  const program_view& p, mc::stores& s) {
  require_same_program(state, p);
  const auto form = state.field<std::string>("weights");
  if (form == adapter_files) load_adapter(folder, p, s, 0, adapter_layout::peft);
  else if (form == registry_files)
    detail::load_registry_weights(folder, state, p, s, detail::stored_parameters::trained);
  else throw detail::not_read(state, form);
  detail::require_finite_weights(folder, p, s);
}

/// Loads the moments of a state, and returns its position. The program must be that of the state
/// (require_same_program). Throws mc::error.
inline run_position load_moments(const model_folder& folder, const json_value& state,
                                 const program_view& p, mc::stores& s) {
  const std::int64_t most = std::int64_t{1} << 62;
  run_position at{state.field<std::int64_t>("step", 0, most),
                  state.field<std::int64_t>("consumed_samples", 0, most)};
  if (state.has("empty_steps")) at.empty = state.field<std::int64_t>("empty_steps", 0, at.step);
  detail::read_stores(folder, optimizer_file_name, p, detail::stored_tensors(p, s, true, false),
                      [&](const detail::stored_tensor& t, const file_tensor& stored) {
                        detail::take_stored(s, t, stored);
                      });
  return at;
}

} // namespace mc
