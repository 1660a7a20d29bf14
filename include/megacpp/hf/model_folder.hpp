// A Hugging Face folder holds a model's weights: config.json, generation_config.json, and
// model.safetensors or several files and their index. This header writes folders that transformers
// loads, and reads folders of any writer.
#pragma once

#include <megacpp/checkpoint/finite_file.hpp>
#include <megacpp/checkpoint/join_bytes.hpp>
#include <megacpp/hf/encoded_tensor.hpp>
#include <megacpp/hf/weights.hpp>
#include <megacpp/io/folder_writer.hpp>

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// hf_shard_limit is the most bytes of tensors in one file of a model: 5 GB, as in huggingface_hub.
inline constexpr std::uint64_t hf_shard_limit = 5'000'000'000;

/// The names in a file's metadata of the checksums of an adapter's base, and of its storage.
inline constexpr const char *base_checksum_key = "megacpp_base",
                            *plain_checksum_key = "megacpp_base_plain",
                            *base_storage_key = "megacpp_base_storage";

/// extra_file is a file beside the weights: its name, which is_model_file() knows, and contents.
using extra_file = std::pair<std::string, std::string>;

/// saved_model counts the tensors, files and bytes of a model that was saved.
struct saved_model {
  std::size_t tensors = 0, files = 0;
  std::uint64_t bytes = 0; ///< The bytes of all tensors.
};

namespace detail {

inline const char* torch_name(storage_type t) {
  switch (t) {
  case storage_type::f64: return "float64";
  case storage_type::bf16: return "bfloat16";
  case storage_type::f16: return "float16";
  default: return "float32";
  }
}

/// outgoing_model is a model that is about to be written.
struct outgoing_model {
  struct tensor {
    std::string name;
    storage_type type;
    std::vector<std::int64_t> shape;
    std::function<void(const byte_sink&)> write;
  };
  std::vector<tensor> tensors;
  const char* weights_name = hf_weights_name; ///< The file of the tensors, if it is one.
  std::map<std::string, std::string> metadata{
      {"format", "pt"}};                    ///< Metadata of the files of tensors.
  std::map<std::string, std::string> texts; ///< The contents of all other files, by their names.
};

/// Returns the text of the index that says which of these files holds which tensor.
inline std::string index_text(const std::vector<safetensors_layout>& shards) {
  nlohmann::json files = nlohmann::json::object();
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    total += shards[i].data_size();
    for (const tensor_spec& t : shards[i].tensors()) files[t.name] = shard_name(i, shards.size());
  }
  return nlohmann::json{{"metadata", {{"total_size", total}}}, {"weight_map", files}}.dump(2) +
         "\n";
}

/// Writes the files of a model, each of at most `max_shard` bytes of tensors.
inline saved_model write_model(folder_writer& out, outgoing_model m, std::uint64_t max_shard) {
  std::map<std::string, const outgoing_model::tensor*> by_name;
  std::vector<std::uint64_t> sizes;
  for (const auto& t : m.tensors) {
    by_name.emplace(t.name, &t);
    sizes.push_back(byte_count(t.type, t.shape).value_or(0));
  }
  std::vector<safetensors_layout> shards;
  std::size_t next = 0;
  for (const std::size_t count : cut_into_shards(sizes, max_shard)) {
    std::vector<tensor_spec> specs;
    for (const std::size_t end = next + count; next < end; ++next)
      specs.push_back({m.tensors[next].name, m.tensors[next].type, m.tensors[next].shape});
    shards.emplace_back(std::move(specs), m.metadata);
  }
  if (shards.size() > 1) m.texts[hf_index_name] = index_text(shards);
  saved_model saved{m.tensors.size(), shards.size()};
  std::uint64_t bytes = 0;
  for (const safetensors_layout& s : shards) bytes += s.file_size(), saved.bytes += s.data_size();
  for (const auto& [name, text] : m.texts) bytes += text.size();
  out.require_space(bytes);
  for (const auto& [name, text] : m.texts) out.write(name, text);
  for (std::size_t i = 0; i < shards.size(); ++i)
    out.write(shards.size() == 1 ? m.weights_name : shard_name(i, shards.size()),
              shards[i].file_size(), [&](const byte_sink& sink) {
                write_finite(shards[i], sink, [&](const tensor_spec& t, const byte_sink& data) {
                  by_name.at(t.name)->write(data);
                });
              });
  return saved;
}

/// Returns config.json for tensors of a type, and a generation_config.json with its token ids.
inline std::map<std::string, std::string> config_texts(nlohmann::json config, storage_type type) {
  config["torch_dtype"] = torch_name(type);
  const nlohmann::json generation{{"_from_model_config", true},
                                  {"bos_token_id", config.at("bos_token_id")},
                                  {"eos_token_id", config.at("eos_token_id")}};
  return {{"config.json", config.dump(2) + "\n"},
          {"generation_config.json", generation.dump(2) + "\n"}};
}

/// Writes a tensor of T to a file, stretch by stretch. A stretch begins as zeros, and
/// fill(values, first, count) puts the tensor's elements from number `first` on into it.
template <class T, class Fill> void write_stretches(const hf_tensor& t,
                                                    std::vector<std::byte>& buffer,
                                                    const byte_sink& sink, Fill fill) {
  const std::int64_t n = t.elements(), stretch = t.stretch();
  for (std::int64_t first = 0; first < n; first += stretch) {
    const std::int64_t count = std::min(stretch, n - first);
    buffer.assign(static_cast<std::size_t>(count) * sizeof(T), std::byte{});
    fill(reinterpret_cast<T*>(buffer.data()), first, count);
    sink(buffer);
  }
}

/// Writes a tensor of T with the elements that the ranks' stores keep, converted to T. Elements for
/// which the program has no parameter are zeros.
template <class T> void write_tensor(const hf_tensor& t, const mc::stores& s, communicator& hosts,
                                     std::vector<std::byte>& buffer, const byte_sink& sink) {
  struct held {
    store_source of;
    std::pair<std::int64_t, std::int64_t> range;
    host_accessor seen;
    held(const hf_tensor& tensor, const mc::stores& in, const store_source& from)
        : of(from),
          range(tensor.range(in, from.what)),
          seen(in.seen(from.data, from.type, range.first, range.second)) {}
  };
  std::deque<held>
      all_held; // A deque does not move its elements, and a host_accessor must stay in place.
  for (const store_source& k : s.kept()) all_held.emplace_back(t, s, k);
  write_stretches<T>(t, buffer, sink, [&](T* to, std::int64_t first, auto count) {
    for (const held& p : all_held)
      with_float_type(p.of.type, [&]<class From>(From) {
        const From* const from = reinterpret_cast<const From*>(p.seen.data());
        t.each(s, p.of.what, first, count, [&](std::int64_t i, std::int64_t at) {
          to[i - first] = convert<T>(from[at - p.range.first]);
        });
      });
    join_bytes(hosts, buffer);
  });
}

/// Adds tensors of the ranks' stores to a model that is about to be written. `buffer` must stay.
inline void add_tensors(outgoing_model& m, const std::vector<hf_tensor>& tensors,
                        const mc::stores& s, communicator& hosts, std::vector<std::byte>& buffer) {
  const dtype type = s.kept().front().type;
  for (const hf_tensor& t : tensors)
    m.tensors.push_back(
        {t.name, storage_of(type), t.shape, [t, type, &s, &hosts, &buffer](const byte_sink& data) {
           with_float_type(type, [&]<class T>(T) { write_tensor<T>(t, s, hosts, buffer, data); });
         }});
}

/// filled_store gives the host access to a tensor's elements of T in a store, to write them.
template <class T> class filled_store {
public:
  filled_store(const hf_tensor& t, const mc::stores& s, std::byte* store, store_side what)
      : tensor_(t),
        stores_(s),
        what_(what),
        range_(store == nullptr ? std::pair<std::int64_t, std::int64_t>{} : t.range(s, what)),
        seen_(s.seen(store, dtype_of<T>, range_.first, range_.second, true)) {}
  bool empty() const { return range_.first == range_.second; }
  /// Writes elements of the tensor, from number `first` on, as far as this rank's store holds them.
  void fill(std::int64_t first, std::span<const double> x) const {
    if (empty()) return;
    T* const to = reinterpret_cast<T*>(seen_.data());
    tensor_.each(stores_, what_, first, static_cast<std::int64_t>(x.size()),
                 [&, begin = range_.first](std::int64_t i, std::int64_t at) {
                   to[at - begin] = convert<T>(x[static_cast<std::size_t>(i - first)]);
                 });
  }

private:
  const hf_tensor& tensor_;
  const mc::stores& stores_;
  store_side what_;
  std::pair<std::int64_t, std::int64_t> range_;
  host_accessor seen_;
};

/// Fills a tensor's weights of T and their masters, as far as this rank's stores hold them, from a
/// folder.
template <class T, class Master>
void load_tensor(const weights_in_folder::match& m, std::vector<double>& values, mc::stores& s) {
  const bool apart = !s.precision().updates_weights();
  const filled_store<T> weights(m.ours, s, s.weights(), {});
  const filled_store<Master> masters(m.ours, s, apart ? s.masters() : nullptr, {.states = true});
  if (weights.empty()) return; // Other ranks hold this tensor.
  weights_in_folder::read_in_parallel(
      m, values, [&](auto first, auto x) { weights.fill(first, x), masters.fill(first, x); });
}

/// Fills the weights of tensors that were found, and their masters. What is encoded is encoded
/// while it is read.
inline void load_tensors(std::span<const weights_in_folder::match> all, mc::stores& s) {
  std::vector<double> values;
  for (const weights_in_folder::match& m : all)
    if (is_encoded(m.ours)) encode_tensor(m, values, s);
    else if (!m.ours.sources.empty())
      with_float_type(s.precision().weight, [&]<class T>(T) {
        with_float_type(s.precision().master,
                        [&]<class Master>(Master) { load_tensor<T, Master>(m, values, s); });
      });
}

/// Returns the text of a JSON file of a folder. Throws mc::error where it is not sound JSON.
inline std::string text_of(const model_folder& folder, const std::string& name) {
  const mapped_file file = folder.open(name);
  static_cast<void>(read_json(file));
  return std::string(file.text());
}

/// Throws mc::error(exit_code::mismatch) for parameters that Hugging Face folders do not have.
inline void require_tensors(const program_view& p, bool writes = false) {
  const bool lacks = writes && p.numbers.adapter.rank > 0;
  const parameter_info* const found = encoded_parameter(p);
  if ((found != nullptr && found->encoding->encode_matrix == nullptr) || lacks)
    throw error(
        exit_code::mismatch,
        fmt::format("{} {}, for which Hugging Face folders of models have no tensors: use "
                    "the folder of a state",
                    p.name,
                    lacks ? std::string("has an adapter")
                          : fmt::format("stores a parameter as {}", found->encoding->name)));
}
} // namespace detail

/// Writes the files of a Hugging Face folder.
///
/// Weights are written in the type that training updates, which is F32 for bf16_mixed, too: master
/// weights have digits that bf16 would lose, training can go on from them, and readers convert
/// while they load. A program for inference has no masters, and writes its own type. Rows that pad
/// the vocabulary are left out. A model of more than `max_shard` bytes is cut into several files.
///
/// All ranks call this function, and `p` is the whole program. The first rank writes; the others
/// have a writer of another rank (folder_writer).
///
/// A generation_config.json among `extra_files` replaces the one that is written otherwise. Throws
/// mc::error: output if something cannot be written, nonfinite that names a tensor with an infinite
/// element or NaN, mismatch for a family that transformers does not have or a program for another
/// number of ranks.
inline saved_model write_model_files(folder_writer& out, const program_view& p, const mc::stores& s,
                                     std::span<const extra_file> extra_files = {},
                                     std::uint64_t max_shard = hf_shard_limit,
                                     communicator& hosts = self::hosts()) {
  const hf_family& family = hf_family_of(p);
  require_ranks(p, hosts);
  detail::require_tensors(p, true);
  detail::outgoing_model m;
  m.texts = detail::config_texts(family.config(p), storage_of(s.kept().front().type));
  for (const auto& [name, text] : extra_files) m.texts[name] = text;
  std::vector<std::byte> buffer;
  detail::add_tensors(m, family.tensors(p), s, hosts, buffer);
  return detail::write_model(out, std::move(m), max_shard);
}

/// Saves the weights as a Hugging Face folder, for use elsewhere: the optimizer's state is not
/// saved. The folder appears complete or not at all; until then, a folder of that name that was
/// there before stays (folder_writer). Throws as write_model_files does.
inline saved_model save_model_folder(const std::filesystem::path& folder, const program_view& p,
                                     const mc::stores& s,
                                     std::span<const extra_file> extra_files = {},
                                     std::uint64_t max_shard = hf_shard_limit) {
  folder_writer out(folder.string());
  const saved_model saved = write_model_files(out, p, s, extra_files, max_shard);
  out.commit();
  return saved;
}

/// Loads weights, and masters where the program has them, from a folder of any writer, as far as
/// this rank holds them. Reads F64, F32, BF16, F16, FP8 in blocks and NF4, from one
/// model.safetensors or from the files of an index. The weights change only after the whole folder
/// was found sound. Beside the mapped files, loading takes about half a MiB a thread, and a matrix
/// in double where the program keeps it in NF4.
///
/// A program without biases takes a model whose biases are absent or zero. Rows that pad the
/// vocabulary become zero. Throws mc::error(exit_code::model) that names the file and the field or
/// tensor: no such folder, a file missing or cut short, a configuration of another model (all
/// fields that differ, with both values), a tensor missing, unknown, not finite, or of another
/// shape or type.
inline void load_model_folder(const model_folder& in, const program_view& p, mc::stores& s) {
  static_cast<void>(hf_family_of(p));
  detail::require_tensors(p);
  require_same_model(read_json(in.open("config.json")), p);
  const weights_in_folder weights(in, p);
  s.clear_padding();
  detail::load_tensors(weights.matches(), s);
}

inline void load_model_folder(const std::filesystem::path& folder, const program_view& p,
                              mc::stores& s) {
  load_model_folder(model_folder(folder.string()), p, s);
}

} // namespace mc
