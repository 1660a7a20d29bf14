// libFuzzer: any text is either refused with mc::error or a state file whose list of files, written
// again, is read again as the same. The first byte says whether the rest is the text of a file, or
// of a "state" that is sealed here, for nothing else would get past the seal, or a list of bytes to
// exchange (position in two bytes, new byte) in a state that is right.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/state.cpp -lfmt
#include <megacpp/options/resume.hpp>
#include <megacpp/states/state_file.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace {

void require(bool law) {
  if (!law) std::abort();
}

std::string sealed(std::string_view text) {
  nlohmann::json state = mc::parse_json(text, "fuzz");
  return nlohmann::json{{"format", mc::state_format},
                        {"version", mc::state_version},
                        {"xxh64", mc::detail::seal_of(state)},
                        {"state", std::move(state)}}
      .dump();
}

/// A state that is right, with bytes exchanged.
std::string edited(std::string_view edits) {
  static const std::string right = [] {
    nlohmann::json state{{"step", 7}};
    mc::save_flags(state, mc::options());
    const mc::file_record files[] = {{"config.json", 612, {1}}, {"optimizer.safetensors", 9, {2}}};
    return nlohmann::json::parse(mc::state_text(state, files)).at("state").dump();
  }();
  std::string text = right;
  for (; edits.size() >= 3; edits.remove_prefix(3)) {
    const auto at =
        static_cast<unsigned char>(edits[0]) * 256u + static_cast<unsigned char>(edits[1]);
    text[at % text.size()] = edits[2];
  }
  return text;
}

void check(const mc::state_file& file) {
  for (const mc::file_record& f : file.files()) {
    require(mc::is_bare_name(f.name) && mc::is_state_file(f.name) && f.bytes > 0);
    require(!f.checksums.empty() && f.checksums.size() <= f.bytes);
  }
  nlohmann::json state = file.state().raw();
  if (state.at("chunk_bytes") == mc::bytes_per_checksum) {
    const mc::state_file again(mc::state_text(state, file.files()), "again");
    require(std::equal(again.files().begin(), again.files().end(), file.files().begin(),
                       file.files().end(), [](const auto& a, const auto& b) {
                         return a.name == b.name && a.bytes == b.bytes &&
                                a.checksums == b.checksums;
                       }));
  }
  mc::options o;
  static_cast<void>(mc::resume_flags(file.state(), o, "fuzz"));
  for (const mc::named_flag& e : mc::flags_of(o)) require(!e.flag->given() || e.flag->is_value());
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    check(mc::state_file(data[0] % 3 == 0   ? std::string(text)
                         : data[0] % 3 == 1 ? sealed(text)
                                            : sealed(edited(text)),
                         "fuzz"));
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::model || e.code() == mc::exit_code::mismatch);
    require(!std::string_view(e.what()).empty());
  }
  return 0;
}
