// The files of saved states: any damage is found before anything is used, and the newest whole state
// is the one that is read.
#define BOOST_TEST_MODULE state_files
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/states/find_saved.hpp>
#include <megacpp/states/state.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>

#include <kernels.hpp>
#include <scratch.hpp>

#include "state_tests.hpp"

using namespace mc;
using namespace test;
using namespace test::states;

namespace {

// Places of damage that are left out under sanitizers, which see the same code at all of them.
#if defined(MEGACPP_SANITIZED)
constexpr std::size_t coarser = 7;
#else
constexpr std::size_t coarser = 1;
#endif

/// Writes over a file in place: a file that is truncated first is flushed at each close.
void overwrite(const std::string& path, const std::string& text) {
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << text;
  fs::resize_file(path, text.size());
}

} // namespace

// Figure 4 of the reliability rules: every byte of every file, cut off there or with a bit flipped.
BOOST_AUTO_TEST_CASE(any_damage_is_found_and_the_state_before_is_read) {
  const two_states s;
  BOOST_TEST(newest_step(s.root) == 2);
  for (const std::string& path : s.files()) {
    const std::string whole = read_text(path);
    const std::size_t stride = whole.size() > 4000 ? 37 * coarser : coarser;
    for (std::size_t at = 0; at < whole.size(); at += stride) {
      BOOST_TEST_CONTEXT(path << " at " << at) {
        overwrite(path, whole.substr(0, at));
        // Without its last newline, the state's own file says what it said.
        const bool nothing_lost =
            at + 1 == whole.size() && whole.back() == '\n' && path.ends_with(state_file_name);
        BOOST_REQUIRE(newest_step(s.root) == (nothing_lost ? 2 : 1));
        std::string flipped = whole;
        flipped[at] = static_cast<char>(flipped[at] ^ (1 << at % 8));
        overwrite(path, flipped);
        if (!path.ends_with(state_file_name)) {
          BOOST_REQUIRE(newest_step(s.root) == 1);
          continue;
        }
        const json says = json::parse(flipped, nullptr, false);
        if (const int version = says.is_object() ? says.value("version", 0) : 0; version > 1) {
          CHECK_REFUSED(newest_step(s.root), exit_code::model, "may be whole");
          continue;
        }
        // 1e-05 and 1E-05 are one number: the state's own file says the same then.
        BOOST_REQUIRE(newest_step(s.root) == (says == json::parse(whole) ? 2 : 1));
      }
    }
    overwrite(path, whole + "x");
    BOOST_TEST(newest_step(s.root) == 1);
    fs::remove(path);
    BOOST_TEST(newest_step(s.root) == 1);
    fs::create_symlink(path + ".elsewhere", path); // which may be whole
    CHECK_REFUSED(newest_step(s.root), exit_code::model, "no older one takes its place");
    fs::remove(path);
    write_text(path, whole);
    BOOST_TEST(newest_step(s.root) == 2);
  }
  write_text(s.newer + "/characters.json", "{}"); // a file that the state does not know
  BOOST_TEST(newest_step(s.root) == 1);
  fs::remove(s.newer + "/characters.json");
  fs::rename(s.newer, s.root + "/iter_0000003"); // a state under another step's name
  BOOST_TEST(newest_step(s.root) == 1);
  const auto found = find_saved(s.root, true);
  BOOST_REQUIRE(found);
  BOOST_TEST(found->damaged == std::vector<std::int64_t>{3}, boost::test_tools::per_element());
  BOOST_TEST(found->notes.size() == 1u);
  fs::remove(s.root + "/iter_0000001/" + state_file_name);
  CHECK_REFUSED(find_saved(s.root, true), exit_code::model, "none of the 2 states");
  CHECK_REFUSED(find_saved(s.root + "/iter_0000001", true), exit_code::model, "damaged state");
}

// What may be whole is not passed over, for what follows the state before would replace it.
BOOST_AUTO_TEST_CASE(a_state_that_cannot_be_examined_is_not_taken_for_damaged) {
  const two_states s;
  const auto refused = [&](std::string_view says) {
    BOOST_TEST_CONTEXT(says) {
      CHECK_REFUSED(find_saved(s.root, true), exit_code::model, says);
      CHECK_REFUSED(find_saved(s.root, true), exit_code::model, "no older one takes its place");
    }
  };
  const std::string path = s.newer + "/" + state_file_name, whole = read_text(path);
  json later = json::parse(whole);
  later["version"] = state_version + 1;
  write_text(path, later.dump());
  refused("is of version 2");
  write_text(path, whole);
  {
    BOOST_REQUIRE(::chmod(s.dir.path().c_str(), 0755) == 0);
    for (const std::string& closed : {path, s.newer + "/" + optimizer_file_name, s.newer}) {
      const fs::perms before = fs::status(closed).permissions();
      fs::permissions(closed, fs::perms::none);
      {
        const test::unprivileged nobody;
        refused("Permission denied; check its permissions");
      }
      fs::permissions(closed, before);
    }
  }
  struct rlimit before {};
  ::getrlimit(RLIMIT_NOFILE, &before);
  const struct rlimit none { 0, before.rlim_max };
  const auto without_descriptors = [&](const std::string&) {
    ::setrlimit(RLIMIT_NOFILE, &none);
    return true;
  };
  CHECK_REFUSED(newest_state(model_folder(s.root), without_descriptors), exit_code::model,
                "Too many open files");
  ::setrlimit(RLIMIT_NOFILE, &before);
  BOOST_TEST(newest_step(s.root) == 2);
}

// A run that saves and removes older states does not stand in the way of those that read.
BOOST_AUTO_TEST_CASE(a_state_that_is_removed_while_it_is_read_has_a_newer_one) {
  const two_states s;
  state_root root(s.root);
  std::int64_t last = 2;
  const auto meanwhile = [&](const std::string&) {
    if (last < 5) s.model.save(root, ++last, 1);
    return true;
  };
  const auto found = newest_state(model_folder(s.root), meanwhile);
  BOOST_REQUIRE(found);
  BOOST_TEST(found->state->state().field<std::int64_t>("step") == 5);
  BOOST_TEST(found->damaged.empty());
  BOOST_TEST(found->notes.empty());
}

// A state whose files are what was saved, but not numbers: as for damage, the one before is taken.
BOOST_AUTO_TEST_CASE(a_state_that_is_not_finite_is_none) {
  const two_states s;
  const float numbers_in_turn[] = {NAN, INFINITY, -INFINITY};
  std::size_t turn = 0;
  for (const char* name : {"model.safetensors", optimizer_file_name}) {
    const std::string whole = read_text(s.newer + "/" + name);
    const safetensors_reader view(std::as_bytes(std::span(whole)), name);
    for (std::size_t i = 0; i < view.size(); ++i) {
      const file_tensor t = view[i];
      const auto start =
          static_cast<std::size_t>(reinterpret_cast<const char*>(t.bytes.data()) - whole.data());
      for (const std::int64_t element : {std::int64_t{0}, t.elements() / 2, t.elements() - 1}) {
        const float number = numbers_in_turn[turn++ % 3];
        std::string bytes = whole;
        std::memcpy(bytes.data() + start + static_cast<std::size_t>(element) * 4, &number, 4);
        s.replace(name, bytes);
        const std::string says = fmt::format("{}/{}: element {} of tensor \"{}\" is {}", s.newer,
                                             name, element, t.name, number);
        CHECK_REFUSED(find_saved(s.newer, true), exit_code::model, says);
        const auto found = find_saved(s.root, true);
        BOOST_REQUIRE((found && found->damaged == std::vector<std::int64_t>{2}));
        BOOST_TEST(found->notes.at(0).find(says) != std::string::npos);
        // Without its moments it is as good as any model.
        const bool weights = std::string_view(name) != optimizer_file_name;
        BOOST_TEST((find_saved(s.root, false)->folder.path() == s.newer) != weights);
      }
    }
    s.replace(name, whole);
    BOOST_TEST(newest_step(s.root) == 2);
  }
}

BOOST_AUTO_TEST_CASE(the_hint_decides_nothing) {
  const two_states s;
  for (const char* hint : {"1\n", "7\n", "", "x", "-1", "release\n"}) {
    write_text(s.root + "/" + newest_step_name, hint);
    BOOST_TEST(newest_step(s.root) == 2);
  }
  fs::remove(s.root + "/" + newest_step_name);
  BOOST_TEST(newest_step(s.root) == 2);
}

BOOST_AUTO_TEST_CASE(evaluation_does_not_need_the_moments_to_be_right) {
  const two_states s;
  const std::string path = s.newer + "/" + optimizer_file_name;
  std::string bytes = read_text(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_text(path, bytes);
  BOOST_TEST(find_saved(s.root, false)->folder.path() == s.newer);
  BOOST_TEST(find_saved(s.root, true)->folder.path() != s.newer);
}

// Files that are sealed and wrong: whoever wrote them, reading them is a sentence.
BOOST_AUTO_TEST_CASE(a_sealed_file_is_read_strictly) {
  const two_states s;
  const std::string path = s.newer + "/" + state_file_name;
  const std::string whole = read_text(path);
  const auto refused = [&](std::string_view says, const std::function<void(json&)>& f) {
    s.change(f);
    BOOST_TEST_CONTEXT(says) { CHECK_REFUSED(find_saved(s.newer, true), exit_code::model, says); }
    BOOST_TEST(newest_step(s.root) == 1);
    write_text(path, whole);
  };
  refused("no file of a state",
          [](json& j) { j["files"]["../config.json"] = j["files"]["config.json"]; });
  refused("no file of a state",
          [](json& j) { j["files"][state_file_name] = j["files"]["config.json"]; });
  refused("does not list", [](json& j) { j["files"].erase("config.json"); });
  refused("has no file",
          [](json& j) { j["files"]["characters.json"] = j["files"]["config.json"]; });
  refused("bytes", [](json& j) { j["files"]["config.json"]["bytes"] = -1; });
  refused("checksums for the", [](json& j) { j["files"]["config.json"]["bytes"] = 0; });
  refused("checksums for the",
          [](json& j) { j["files"]["config.json"]["bytes"] = std::uint64_t{1} << 63; });
  refused("16 hexadecimal", [](json& j) { j["files"]["config.json"]["xxh64"] = {"xyz"}; });
  refused("a string", [](json& j) { j["files"]["config.json"]["xxh64"] = {7}; });
  refused("chunk_bytes", [](json& j) { j["chunk_bytes"] = 0; });
  refused("files", [](json& j) { j.erase("files"); });
  const auto raw = [&](std::string_view says, const std::string& text) {
    write_text(path, text);
    CHECK_REFUSED(find_saved(s.newer, true), exit_code::model, says);
    write_text(path, whole);
  };
  json other = json::parse(whole);
  other["version"] = 2;
  raw("version 2", other.dump());
  other["format"] = "other";
  raw("not the state", other.dump());
  raw("nested deeper", std::string(1000, '['));
  raw("appears twice", "{\"format\": 1, \"format\": 2}");
  raw("object", "[]");
}

// Large files have a checksum for every chunk.
BOOST_AUTO_TEST_CASE(damage_is_found_in_every_chunk_of_a_file) {
  const scratch_folder dir;
  gpt m = small;
  m.vocabulary = 70'000;
  const trained<gpt> model(m);
  {
    state_root root(dir / "root");
    model.save(root, 1);
  }
  const std::string path = dir / "root/iter_0000001/" + optimizer_file_name;
  const std::size_t size = fs::file_size(path);
  BOOST_REQUIRE(size > bytes_per_checksum);
  BOOST_TEST(newest_step(dir / "root") == 1);
  for (const std::size_t at : {bytes_per_checksum - 1, bytes_per_checksum, size - 1}) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    const auto place = static_cast<std::streamoff>(at);
    const int byte = file.seekg(place).get();
    file.seekp(place).put(static_cast<char>(byte ^ 1)).flush();
    CHECK_REFUSED(newest_step(dir / "root"), exit_code::model, "none of the 1 states");
    file.seekp(place).put(static_cast<char>(byte)).flush();
  }
  BOOST_TEST(newest_step(dir / "root") == 1);
}
