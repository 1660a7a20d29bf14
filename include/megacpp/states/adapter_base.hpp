// The model that an adapter is trained beside. A state of the adapter names it, by its path and a
// checksum of its weights, and does not hold it.
#pragma once

#include <megacpp/io/checksum.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <list>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// Returns a checksum of the values of all weights in a folder, by tensor. It depends on no type
/// that holds the values exactly, and neither on the files that the tensors lie in nor on their
/// order. All ranks call it, and each reads its share. Throws mc::error.
inline std::uint64_t checksum_of_values(const model_folder& folder, const program_view& p,
                                        communicator& hosts = self::hosts()) {
  struct tensor {
    std::string name;
    storage_type type;
    std::span<const std::byte> bytes;
    const weights_in_folder::match* of_model = nullptr; ///< null: it lies in the registry's file
  };
  std::vector<tensor> all;
  std::list<weights_in_folder> of_model;
  std::list<safetensors_file> of_registry;
  if (detail::has_registry_weights(folder)) {
    const safetensors_file& file = of_registry.emplace_back(folder.open(hf_weights_name));
    for (std::size_t i = 0; i < file->size(); ++i) {
      const file_tensor t = file.tensors()[i];
      all.push_back({std::string(t.name), t.type, t.bytes});
    }
  } else {
    for (const auto& m : of_model.emplace_back(folder, p).matches())
      if (m.file != nullptr) all.push_back({m.ours.name, m.theirs.type, m.theirs.bytes, &m});
  }
  const std::int64_t ranks = ranks_of(hosts.ranks());
  std::uint64_t mine = 0;
  std::int64_t before = 0;
  for (const tensor& t : all) {
    const auto size = static_cast<std::int64_t>(bits_of(t.type) / 8);
    const std::int64_t count =
                           t.of_model ? t.of_model->ours.elements() : std::ssize(t.bytes) / size,
                       at_once = t.of_model ? t.of_model->ours.stretch() : 1 << 16,
                       pieces = (count + at_once - 1) / at_once;
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(pieces));
    parallel_for(pieces, [&](std::int64_t i) {
      if ((before + i) % ranks != hosts.rank()) return;
      const std::int64_t n = std::min(at_once, count - i * at_once);
      std::vector<double> values(static_cast<std::size_t>(n));
      if (t.of_model)
        weights_in_folder::read_from(*t.of_model, i * at_once, values, [](std::span<double>) {});
      else
        read_values(file_tensor{t.name, t.type, std::span(&n, 1),
                                t.bytes.subspan(static_cast<std::size_t>(i * at_once * size),
                                                static_cast<std::size_t>(n * size))},
                    std::span(values));
      xxh64 hash;
      hash.add(std::as_bytes(std::span(t.name)));
      hash.add(std::as_bytes(std::span(&i, 1)));
      hash.add(std::as_bytes(std::span(values).first(static_cast<std::size_t>(n))));
      sums[static_cast<std::size_t>(i)] = hash.value();
    });
    mine = std::accumulate(sums.begin(), sums.end(), mine);
    before += pieces;
  }
  std::vector<std::uint64_t> of_ranks(static_cast<std::size_t>(ranks));
  hosts.run(exchange::all_gather(everyone, dtype::i64, &mine, of_ranks.data(), 1));
  return std::accumulate(of_ranks.begin(), of_ranks.end(), std::uint64_t{0});
}

namespace detail {
/// Returns the checksum of the plain weights that those of a folder were quantised from; 0 if it
/// does not say.
inline std::uint64_t plain_checksum(const model_folder& folder) {
  std::string name = hf_weights_name;
  if (!folder.contains(name)) {
    if (!folder.contains(hf_index_name)) return 0;
    name = read_shard_index(read_json(folder.open(hf_index_name))).begin()->second;
  }
  return checksum_in(safetensors_file(folder.open(name)).tensors().metadata(), plain_checksum_key);
}
} // namespace detail

/// Returns the base that a state of an adapter names; nothing for the state of a whole model.
/// Throws mc::error.
inline std::optional<adapter_base> base_of_state(const json_value& state) {
  if (!state.has("base")) return std::nullopt;
  const auto base = state.field<json_value>("base");
  const auto sum = [&](const char* name) {
    return detail::checksum_of(base, base.field<std::string>(name));
  };
  return adapter_base{base.field<std::string>("folder"), sum("values"), sum("plain"), false};
}

} // namespace mc
