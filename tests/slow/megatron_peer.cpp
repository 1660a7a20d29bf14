// What megatron_peer.py holds against megatron-core: datasets written again, and samples.
//
//   megatron_peer DIR   does what DIR/cases.json says: "written": datasets TO of what is in FROM;
//                       "cases": DIR/NAME.samples, int32: their number, then tokens, labels,
//                       positions and documents of each
#include <megacpp/data/split.hpp>
#include <megacpp/sets/gpt_dataset.hpp>
#include <megacpp/sets/indexed_writer.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

using nlohmann::json;

constexpr std::int64_t any_id = std::int64_t{1} << 31;

/// The documents of the first as they are added one by one, those of the others appended.
void write(const json& c) {
  const auto from = c.at("from").get<std::vector<std::string>>();
  mc::indexed_writer w(c.at("to").get<std::string>(), static_cast<mc::token_type>(c.at("type")));
  const mc::indexed_dataset first(from[0], any_id);
  for (std::int64_t d = 0; d < first.documents(); ++d) {
    for (std::int64_t s = first.first_of(d); s < first.first_of(d + 1); ++s) {
      std::vector<std::int32_t> ids(static_cast<std::size_t>(first.length(s)));
      first.read(s, 0, ids);
      w.add(ids);
    }
    w.end_document();
  }
  for (std::size_t i = 1; i < from.size(); ++i) w.append({from[i], any_id});
  w.commit();
}

template <class T> std::optional<T> optional(const json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<T>());
}

void write_samples(const json& c, const std::string& path, const mc::index_cache& cache) {
  const mc::blend b = mc::parse_blend(c.at("words").get<std::vector<std::string>>(), "words");
  const int part = c.at("part");
  std::vector<mc::dataset_range> parts;
  for (const std::string& prefix : b.prefixes) {
    auto data = std::make_shared<const mc::indexed_dataset>(prefix, c.at("vocabulary").get<int>());
    const mc::split_ranges s = mc::split(c.at("split").get<std::string>(), data->sequences());
    parts.push_back({std::move(data), part == 0 ? s.train : part == 1 ? s.valid : s.test});
  }
  const mc::gpt_parameters request{.sequence = c.at("sequence"),
                                   .samples = optional<std::int64_t>(c.at("samples")),
                                   .seed = c.at("seed"),
                                   .drop_last = c.at("drop_last")};
  const mc::document_ends ends{.eod = c.at("eod").get<std::int32_t>(),
                               .pad = optional<std::int32_t>(c.at("pad")),
                               .reset_position_ids = c.at("reset_position_ids"),
                               .reset_attention_mask = c.at("reset_attention_mask"),
                               .eod_mask_loss = c.at("eod_mask_loss")};
  const auto set = mc::blended_samples(parts, b.weights, request, ends, cache);
  std::ofstream out(path, std::ios::binary);
  const auto put = [&out](std::span<const std::int32_t> x) {
    out.write(reinterpret_cast<const char*>(x.data()),
              static_cast<std::streamsize>(x.size_bytes()));
  };
  const auto size = static_cast<std::int32_t>(set->size());
  put({&size, 1});
  const auto l = static_cast<std::size_t>(request.sequence);
  std::vector<std::int32_t> row(4 * l);
  const std::span all(row);
  for (std::int64_t i = 0; i < size; ++i) {
    set->fill(i, {all.first(l), all.subspan(l, l), all.subspan(2 * l, l), all.last(l)});
    put(row);
  }
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw std::runtime_error("usage: megatron_peer DIR");
    const std::string dir = argv[1];
    const json all = json::parse(std::ifstream(dir + "/cases.json"));
    for (const json& c : all.at("written")) write(c);
    const mc::index_cache none, cache(dir + "/cache");
    for (const json& c : all.at("cases"))
      write_samples(c, dir + '/' + c.at("name").get<std::string>() + ".samples",
                    c.at("cached").get<bool>() ? cache : none);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "megatron_peer: " << e.what() << '\n';
    return 1;
  }
}
