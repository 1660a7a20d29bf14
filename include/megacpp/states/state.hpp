// Everything a run needs to stop and go on, as a folder: weights as a Hugging Face model where the
// family has that form and under the registry's names otherwise, both moments, step, position in
// the data, and the flags. docs/state.md describes the files.
//
// Nothing in it depends on layout, threads or micro-batches: tensors are whole, put together by the
// ranks that hold them, and what comes next is a step and the number of a sample. Weights are those
// that training updates (masters where weights are bf16), so the weights of the program are these,
// rounded.
#pragma once

#include <megacpp/hf/model_folder.hpp>
#include <megacpp/states/state_file.hpp>
#include <megacpp/states/state_root.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
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

/// Where a run stands.
struct run_position {
  std::int64_t step = 0;    ///< steps done
  std::int64_t samples = 0; ///< the next sample of training_windows
  std::int64_t empty = 0;   ///< of the steps, those without a token to learn: they changed nothing

  /// Updates that the optimizer has made.
  std::int64_t updates() const { return step - empty; }
};

namespace detail {

/// A parameter, or an array of one in a form, as the files of a state hold it: whole, without the
/// rows that pad a vocabulary.
struct stored_tensor {
  parameter_ref of;
  dtype type; ///< of the stores' weights
  std::vector<std::int64_t> shape;
  global_count count;
};

/// All tensors of a program, or those that training updates.
inline std::vector<stored_tensor> stored_tensors(const program_view& p, bool trained) {
  std::vector<stored_tensor> list;
  for_each_array(p, [&](const parameter_ref& r, dtype type) {
    if (trained && r.info->frozen) return;
    stored_tensor t{r, type, {}, unpadded_size(*r.v, *r.info)};
    for (int i = 0; i < r.v->rank; ++i) t.shape.push_back(r.v->dims[static_cast<unsigned>(i)].n);
    if (r.info->valid_rows > 0) t.shape[0] = r.info->valid_rows;
    list.push_back(std::move(t));
  });
  return list;
}

/// Tensors of a file, whose names begin with `prefix`, and the stores that have them.
struct stored_part {
  const char* prefix;
  dtype type;
  std::vector<store_source> from;
};
/// What a file has of a tensor: arrays of a stored form are those among the weights, in their own
/// type.
inline stored_part part_of_file(const stored_part& part, const stored_tensor& t,
                                const mc::stores& s) {
  if (t.of.info->form == nullptr) return part;
  return {part.prefix, t.type, {{s.weights(), t.type, {.own = true}}}};
}
/// Both moments, of which a rank answers for its own or loads what it has.
inline std::vector<stored_part> moments_of(const mc::stores& s, bool own) {
  const dtype type = s.precision().moment;
  const store_side what{.states = true, .own = own};
  return {{"optim.exp_avg.", type, {{s.first_moments(), type, what}}},
          {"optim.exp_avg_sq.", type, {{s.second_moments(), type, what}}}};
}

/// Tensors in the order of the file, of stores that ranks together have.
inline void write_stores(folder_writer& out, const char* file, std::span<const stored_tensor> list,
                         const mc::stores& s, std::span<const stored_part> parts,
                         communicator& hosts) {
  struct source {
    const stored_tensor& tensor;
    stored_part part;
  };
  std::map<std::string, source> sources;
  std::vector<tensor_spec> specs;
  for (const stored_tensor& t : list)
    for (const stored_part& part : parts) {
      source from{t, part_of_file(part, t, s)};
      specs.push_back({part.prefix + t.of.name, storage_of(from.part.type), t.shape});
      sources.emplace(part.prefix + t.of.name, std::move(from));
    }
  const safetensors_layout layout(std::move(specs));
  out.require_space(layout.file_size());
  constexpr std::int64_t most = 1 << 17; // elements at a time
  std::vector<std::byte> block;
  out.write(file, layout.file_size(), [&](const byte_sink& sink) {
    write_finite(layout, sink, [&](const tensor_spec& spec, const byte_sink& data) {
      const stored_tensor& tensor = sources.at(spec.name).tensor;
      const stored_part& part = sources.at(spec.name).part;
      for (global_count at; at.n < tensor.count.n; at.n += most) {
        const std::int64_t end = std::min(at.n + most, tensor.count.n);
        block.assign(static_cast<std::size_t>((end - at.n) * size_of(part.type)), std::byte{});
        for (const store_source& k : part.from)
          s.part_of(tensor.of, k.what)
              .each_run(at, {end}, [&](global_count first, std::int64_t i, std::int64_t n) {
                const host_view seen = s.seen(k.data, k.type, i, i + n);
                stores::convert_run(seen.data(), k.type, block.data(), part.type, first.n - at.n,
                                    n);
              });
        join_block(hosts, block);
        data(block);
      }
    });
  });
}

/// f(tensor, its view, part) for every tensor of a file, which must be exactly those of the list,
/// in the types of the parts. Throws mc::error(exit_code::mismatch) naming the tensor.
template <class F> void read_stores(const model_folder& folder, const char* name,
                                    const program_view& p, std::span<const stored_tensor> ours,
                                    std::span<const stored_part> parts, F f) {
  const safetensors_file file(folder.open(name));
  const auto refuse = [&](const std::string& tensor, std::string_view why) {
    return error(exit_code::mismatch, fmt::format("{}: tensor \"{}\" {}; the state is of another "
                                                  "model than {}, or of a run that froze other "
                                                  "parameters: go on from its weights alone by "
                                                  "start_request::finetune",
                                                  file->path(), printable(tensor), why, p.name));
  };
  std::set<std::string> known;
  for (const stored_tensor& t : ours)
    for (const stored_part& part : parts) {
      const std::string full = part.prefix + t.of.name;
      const auto found = file->find(full);
      if (!found) throw refuse(full, "is missing");
      const storage_type needed = storage_of(t.of.info->form != nullptr ? t.type : part.type);
      if (!std::ranges::equal(found->shape, t.shape) || found->type != needed)
        throw refuse(full,
                     fmt::format("is {} {}, but {} {} is needed", name_of(found->type),
                                 shape_text(found->shape), name_of(needed), shape_text(t.shape)));
      known.insert(full);
    }
  for (std::size_t i = 0; i < file->size(); ++i)
    if (const std::string stored(file.tensors()[i].name); known.count(stored) == 0)
      throw refuse(stored, "is not one of its tensors");
  for (const stored_tensor& t : ours)
    for (const stored_part& part : parts) {
      file.check_unchanged();
      f(t, *file->find(part.prefix + t.of.name), part);
    }
}

/// Element i of a tensor's bytes, which may have any alignment, in double.
inline double stored_element(std::span<const std::byte> bytes, dtype type, std::int64_t i) {
  return with_float_type(type, [&]<class T>(T value) {
    std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    return convert<double>(value);
  });
}

/// True for a program of a family that transformers knows, every parameter and number of which it
/// has a name for.
inline bool has_hugging_face_form(const program_view& p) {
  const hf_family* f = find_hf_family(p);
  if (f == nullptr || stored_in_form(p) != nullptr) return false;
  try {
    static_cast<void>(f->tensors(p));
    static_cast<void>(f->config(p));
    return true;
  } catch (const error&) {
    return false;
  }
}

/// What a state is of.
inline nlohmann::json program_json(const program_view& p) {
  nlohmann::json model = nlohmann::json::object();
  for (const model_number& n : p.model.numbers) model[n.name] = n.value;
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

inline constexpr const char* huggingface_form = "huggingface";
inline constexpr const char* registry_form = "registry";

/// Writes the files of a state. All ranks call it, as write_model_files. `state` has what the
/// trainer adds: flags, data. Throws mc::error: output if something cannot be written, nonfinite
/// naming the tensor of a weight or moment that is not finite, mismatch for a program that is laid
/// out over other ranks.
inline void write_state(folder_writer& out, const program_view& p, const mc::stores& s,
                        const run_position& at, nlohmann::json state,
                        std::span<const extra_file> extra_files = {},
                        std::uint64_t max_shard = hf_shard_limit,
                        communicator& hosts = self::hosts()) {
  require_ranks(p, hosts);
  std::uint64_t bytes = 0;
  for (const bool moments : {false, true})
    for (const detail::stored_tensor& t : detail::stored_tensors(p, moments)) {
      const dtype type = moments                      ? s.precision().moment
                         : t.of.info->form != nullptr ? t.type
                                                      : s.kept().front().type;
      bytes += static_cast<std::uint64_t>((moments ? 2 : 1) * t.count.n * size_of(type));
    }
  out.require_space(bytes);
  state["weights"] = detail::has_hugging_face_form(p) ? huggingface_form : registry_form;
  if (state["weights"] == huggingface_form) {
    write_model_files(out, p, s, extra_files, max_shard, hosts);
  } else {
    for (const auto& [name, text] : extra_files) out.write(name, text);
    const detail::stored_part weights[] = {{"", s.kept().front().type, s.kept()}};
    detail::write_stores(out, hf_weights_name, detail::stored_tensors(p, false), s, weights, hosts);
  }
  detail::write_stores(out, optimizer_file_name, detail::stored_tensors(p, true), s,
                       detail::moments_of(s, true), hosts);
  state["step"] = at.step;
  state["consumed_samples"] = at.samples;
  state["empty_steps"] = at.empty;
  state["program"] = detail::program_json(p);
  out.write(state_file_name, state_text(std::move(state), out.written()));
}

namespace detail {
/// A value of a state as people write it: whole numbers without a point.
inline std::string shown(const nlohmann::json& value) {
  if (value.is_number_float())
    if (const auto x = value.get<double>(); x == std::trunc(x) && std::abs(x) < 1e15)
      return fmt::format("{:.0f}", x);
  return printable(value.dump());
}
} // namespace detail

/// Throws mc::error(exit_code::mismatch) for the state of another model, naming every number that
/// differs.
inline void require_same_program(const json_value& state, const program_view& p) {
  const json_value theirs = state.field<json_value>("program");
  const nlohmann::json ours = detail::program_json(p);
  std::string differ;
  const auto compare = [&](const std::string& name, const nlohmann::json& there,
                           const nlohmann::json& here) {
    if (there != here)
      differ += fmt::format("{}{} is {} there and {} here", differ.empty() ? "" : ", ", name,
                            detail::shown(there), detail::shown(here));
  };
  for (const char* name :
       {"family", "precision", "sequence", "layers", "hidden", "vocabulary", "parameters", "kinds"})
    compare(name, theirs.raw().value(name, nlohmann::json()), ours.at(name));
  const json_value model = theirs.field<json_value>("model");
  for (const auto& item : ours.at("model").items())
    if (!ours.contains(item.key()))
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

/// The weights of a state that have the registry's names.
inline void load_registry_weights(const model_folder& folder, const json_value& state,
                                  const program_view& p, mc::stores& s) {
  require_same_program(state, p);
  const dtype type = s.precision().master;
  const detail::stored_part weights[] = {{"", type, {}}};
  detail::read_stores(
      folder, hf_weights_name, p, detail::stored_tensors(p, false), weights,
      [&](const detail::stored_tensor& t, const tensor_view& stored, const detail::stored_part&) {
        constexpr std::int64_t block = 512;
        const auto held = s.part_of(t.of, {});
        if (t.of.info->form != nullptr) {
          const std::int64_t each = size_of(t.type);
          return held.each_run(
              {}, t.count, [&](global_count from, std::int64_t to, std::int64_t n) {
                s.put_bytes(s.weights(), t.type, to,
                            stored.bytes.subspan(static_cast<std::size_t>(from.n * each),
                                                 static_cast<std::size_t>(n * each)));
              });
        }
        const auto load = [&](global_count from, std::int64_t to, std::int64_t n) {
          double x[block];
          for (std::int64_t i = 0; i < n; ++i)
            x[i] = detail::stored_element(stored.bytes, type, from.n + i);
          s.set_weights(to, {x, static_cast<std::size_t>(n)});
        };
        parallel_for((t.count.n + block - 1) / block, [&](std::int64_t b) {
          held.each_run({b * block}, {std::min(t.count.n, (b + 1) * block)}, load);
        });
      });
  s.clear_padding();
}

} // namespace detail

/// Loads the weights of a folder that --save or anyone else wrote: a state of either form, or a
/// model folder. Throws mc::error(exit_code::model), also for a weight that the program's precision
/// cannot hold.
inline void load_weights(const model_folder& folder, const program_view& p, mc::stores& s) {
  if (!folder.contains(state_file_name)) {
    load_model_folder(folder, p, s);
  } else {
    const state_file file(folder);
    const auto form = file.state().field<std::string>("weights");
    if (form == huggingface_form) {
      if (find_hf_family(p) == nullptr) require_same_program(file.state(), p);
      load_model_folder(folder, p, s);
    } else if (form == registry_form) detail::load_registry_weights(folder, file.state(), p, s);
    else
      throw file.state().fault(
          fmt::format("has weights in the form \"{}\", which is not read", printable(form)));
  }
  if (const std::string wide = s.nonfinite_weight(); !wide.empty())
    throw error(exit_code::model,
                fmt::format("{} has weights that {} cannot hold in {}: {}; build a preset of "
                            "another precision",
                            folder.path(), p.name, name_of(p.numbers.precision.weight), wide));
}

/// Loads the moments of a state into stores that have them, and tells where it stands. The program
/// must be the one that the state is of (require_same_program).
inline run_position load_moments(const model_folder& folder, const json_value& state,
                                 const program_view& p, mc::stores& s) {
  const std::int64_t most = std::int64_t{1} << 62;
  run_position at{state.field<std::int64_t>("step", 0, most),
                  state.field<std::int64_t>("consumed_samples", 0, most)};
  if (state.has("empty_steps")) at.empty = state.field<std::int64_t>("empty_steps", 0, at.step);
  detail::read_stores(
      folder, optimizer_file_name, p, detail::stored_tensors(p, true), detail::moments_of(s, false),
      [&](const detail::stored_tensor& t, const tensor_view& stored,
          const detail::stored_part& part) {
        const auto bytes = [&](std::int64_t n) {
          return static_cast<std::size_t>(n * size_of(part.type));
        };
        for (const store_source& k : part.from)
          s.part_of(t.of, k.what)
              .each_run({}, t.count, [&](global_count from, std::int64_t to, std::int64_t n) {
                s.put_bytes(k.data, k.type, to, stored.bytes.subspan(bytes(from.n), bytes(n)));
              });
      });
  return at;
}

/// Of the same files, the same: their names, sizes and bytes. Of a state, the first bytes of each,
/// which hold the checksums of all others: who reads it verifies these.
inline std::uint64_t hash_of(const model_folder& folder) {
  const bool of_state = folder.contains(state_file_name);
  std::vector<std::string> names = folder.names();
  std::sort(names.begin(), names.end());
  xxh64 hash;
  for (const std::string& name : names) {
    if (!is_state_file(name)) continue;
    const mapped_file file = folder.open(name);
    const std::string what = fmt::format("{} {} ", name, file.size());
    hash.add(std::as_bytes(std::span(what)));
    constexpr std::size_t enough = 1 << 16;
    hash.add({file.data(), of_state ? std::min(enough, file.size()) : file.size()});
  }
  return hash.value();
}

/// What a --load names.
struct found_model {
  model_folder folder;             ///< of the weights
  std::optional<state_file> state; ///< none: a model folder, from anywhere
  std::string root;                ///< of states, if that is what was named
  std::vector<std::int64_t> damaged{};
  std::vector<std::string> notes{};
  std::vector<std::string> changes{}; ///< of flags, one line each, to be told once all is accepted
};

/// The folder that was found, by its name in the one that was named; "." is that one itself.
inline std::string name_of(const found_model& found) {
  const std::string& path = found.folder.path();
  return found.root.empty() ? "." : path.substr(path.rfind('/') + 1);
}
/// What another rank has found at a path, by the name that it gave it. Of a process with files of
/// its own (`apart`), they are verified: they may be copies. Throws mc::error(model).
inline found_model found_as_named(const std::string& path, const std::string& name, bool all,
                                  bool apart) {
  model_folder folder(name == "." ? path : path + "/" + name);
  std::optional<state_file> state;
  if (folder.contains(state_file_name)) {
    state.emplace(folder);
    if (apart)
      state->verify(folder,
                    [all](const std::string& file) { return all || file != optimizer_file_name; });
  }
  return {std::move(folder), std::move(state), name == "." ? std::string() : path};
}

/// The error about a folder in which find_saved finds nothing.
inline error nothing_saved(const std::string& path, std::string_view advice) {
  const std::string other = detail::foreign_weights(model_folder(path).names());
  return error(exit_code::model,
               other.empty()
                   ? fmt::format("{} has neither a model nor a saved state; {}", path, advice)
                   : fmt::format("{} holds no model that is read: it {}", path, other));
}

/// Finds the weights, or with `all` the whole state, at a path: the newest whole state of a root,
/// one state, or a model folder. Nothing for a root without states, nor for a folder that is
/// neither, whatever of others is in it. Throws mc::error(model).
inline std::optional<found_model> find_saved(const std::string& path, bool all) {
  const auto needed = [all](const std::string& name) { return all || name != optimizer_file_name; };
  model_folder folder(path);
  if (folder.contains(state_file_name)) {
    state_file file(folder);
    file.verify(folder, needed);
    return found_model{std::move(folder), std::move(file), ""};
  }
  if (folder.contains(optimizer_file_name))
    throw error(exit_code::model,
                fmt::format("{} holds {} without {}: it is a damaged state; load the folder above, "
                            "which finds the newest whole one",
                            path, optimizer_file_name, state_file_name));
  const std::vector<std::string> names = folder.names();
  if (!is_state_root(folder) && std::any_of(names.begin(), names.end(), is_model_file))
    return found_model{std::move(folder), std::nullopt, ""};
  auto newest = newest_state(folder, needed);
  if (!newest) return std::nullopt;
  return found_model{std::move(newest->folder), std::move(newest->file), path,
                     std::move(newest->damaged), std::move(newest->notes)};
}

} // namespace mc
