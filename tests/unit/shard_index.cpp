// Models in several files: how they are cut, what an index may say, and how sizes are written.
#define BOOST_TEST_MODULE shard_index
#include <boost/test/unit_test.hpp>

#include <megacpp/checkpoint/shard_index.hpp>

#include <cstdint>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include <scratch.hpp>

namespace {

using mc::exit_code;

mc::shard_map read(const std::string& text) {
  return mc::read_shard_index({mc::parse_json(text, "index"), "index", exit_code::model});
}

BOOST_AUTO_TEST_CASE(shards_hold_every_tensor_once_and_are_full) {
  std::mt19937_64 random(3);
  for (int trial = 0; trial < 2000; ++trial) {
    const std::uint64_t limit = 1 + random() % 50;
    std::vector<std::uint64_t> sizes(1 + random() % 20);
    for (auto& s : sizes) s = random() % 60;
    const auto counts = mc::cut_into_shards(sizes, limit);
    BOOST_REQUIRE(std::accumulate(counts.begin(), counts.end(), std::size_t{0}) == sizes.size());
    std::size_t at = 0;
    for (std::size_t k = 0; k < counts.size(); ++k) {
      BOOST_REQUIRE(counts[k] > 0u);
      std::uint64_t sum = 0;
      for (std::size_t i = 0; i < counts[k]; ++i) sum += sizes[at + i];
      BOOST_REQUIRE((sum <= limit || counts[k] == 1 || sum - sizes[at] == 0));
      at += counts[k];
      // The next file begins because its first tensor had no room here.
      if (at < sizes.size()) BOOST_REQUIRE(sum + sizes[at] > limit);
    }
  }
  BOOST_TEST(mc::cut_into_shards(std::vector<std::uint64_t>{}, 5).empty());
  const std::uint64_t huge = ~std::uint64_t{0};
  BOOST_TEST(mc::cut_into_shards(std::vector<std::uint64_t>{huge, huge, 1}, huge).size() == 3u);
}

BOOST_AUTO_TEST_CASE(names_of_files) {
  BOOST_TEST(mc::shard_name(0, 2) == "model-00001-of-00002.safetensors");
  BOOST_TEST(mc::shard_name(11, 118) == "model-00012-of-00118.safetensors");
  BOOST_TEST(mc::is_model_file(mc::shard_name(0, 2)));
}

BOOST_AUTO_TEST_CASE(sizes_are_written_as_in_the_hugging_face_libraries) {
  BOOST_TEST(*mc::size_from_text("5GB") == 5'000'000'000u);
  BOOST_TEST(*mc::size_from_text("200mb") == 200'000'000u);
  BOOST_TEST(*mc::size_from_text("3KiB") == 3072u);
  BOOST_TEST(*mc::size_from_text("2tib") == 2199023255552u);
  BOOST_TEST(*mc::size_from_text("1234") == 1234u);
  for (const char* text :
       {"", "GB", "0", "0GB", "-1GB", "+1GB", "1.5GB", "5 GB", "5G", "5B", "5GBB", "5PB", "5XB",
        "18446744073709551616", "99999999999999999TB", "5GB "})
    BOOST_TEST(!mc::size_from_text(text), text);
}

BOOST_AUTO_TEST_CASE(an_index_names_files_of_its_folder) {
  const auto index = read(R"({"metadata":{"total_size":12},"weight_map":{
    "a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors",
    "c":"model-00001-of-00002.safetensors"}})");
  BOOST_TEST(index.size() == 3u);
  BOOST_TEST(index.at("c") == "model-00001-of-00002.safetensors");
  BOOST_TEST(mc::files_of(index).size() == 2u);
  const auto refused = [](const std::string& text, const char* says) {
    CHECK_REFUSED(read(text), exit_code::model, says);
  };
  refused("{}", "has no field \"weight_map\"");
  refused(R"({"weight_map":{}})", "names no tensor");
  refused(R"({"weight_map":[]})", "is a list, but an object is needed");
  refused(R"({"weight_map":{"a":1}})", "gives tensor \"a\" 1, but the name of a file");
  refused(R"({"weight_map":{"a":["x.safetensors"]}})", "but the name of a file");
  refused(R"({"weight_map":{"a":"x","a":"x"}})", "\"a\" appears twice");
  for (const char* name : {"../x.safetensors", "/etc/x.safetensors", "d/x.safetensors", "",
                           ".safetensors/..", "pytorch_model-00001-of-00002.bin", "config.json"})
    refused(nlohmann::json{{"weight_map", {{"a", name}}}}.dump(), "is not the plain name of a");
}

} // namespace
