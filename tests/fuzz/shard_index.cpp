// libFuzzer: any index is either refused with mc::error or names plain .safetensors files only and
// reads the same again; every list of sizes is cut into files that hold each tensor once.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/shard_index.cpp -lfmt
#include <megacpp/checkpoint/shard_index.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

namespace {

void require(bool law) {
  if (!law) std::abort();
}

void check(const nlohmann::json& document) {
  try {
    const mc::json_value index(document, "fuzz", mc::exit_code::model);
    const mc::shard_map files = mc::read_shard_index(index);
    require(!files.empty());
    for (const auto& [tensor, file] : files)
      require(file.find('/') == std::string::npos && file.find('\0') == std::string::npos &&
              file != ".." && file.ends_with(".safetensors"));
    const nlohmann::json again{{"weight_map", files}};
    require(mc::read_shard_index({again, "again", mc::exit_code::model}) == files);
    require(mc::files_of(files).size() <= files.size());
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::model);
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  static_cast<void>(mc::size_from_text(text));
  try {
    check(mc::parse_json(text, "fuzz"));
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::model);
  }
  // Lines as names of files.
  nlohmann::json map = nlohmann::json::object();
  for (std::size_t at = 0; at < size;) {
    const std::size_t end = std::min(text.find('\n', at), size);
    std::string name;
    for (const char c : text.substr(at, end - at)) name += static_cast<char>(c & 0x7f);
    map[std::to_string(at)] = name + (at % 2 == 0 ? ".safetensors" : "");
    at = end + 1;
  }
  check({{"weight_map", map}});

  std::vector<std::uint64_t> sizes(size / 8);
  if (!sizes.empty()) std::memcpy(sizes.data(), data, 8 * sizes.size());
  const std::uint64_t limit = 1 + (size > 0 ? data[0] : 0);
  const auto counts = mc::cut_into_shards(sizes, limit);
  require(std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == sizes.size());
  return 0;
}
