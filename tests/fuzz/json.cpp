// libFuzzer: any text is either refused with mc::error or parsed to a value that prints and parses
// to itself; asking for any field gives a value or mc::error.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/json.cpp -lfmt
#include <megacpp/io/json_file.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace {

template <class F> void value_or_sentence(F&& f) {
  try {
    f();
  } catch (const mc::error& e) {
    if (e.code() != mc::exit_code::model || std::string_view(e.what()).empty()) std::abort();
  }
}

void ask_everything(const mc::json_value& v) {
  value_or_sentence([&] { (void)v.as<int>(); });
  value_or_sentence([&] { (void)v.as<std::uint8_t>(); });
  value_or_sentence([&] { (void)v.as<std::int64_t>(); });
  value_or_sentence([&] { (void)v.as<std::uint64_t>(); });
  value_or_sentence([&] { (void)v.as<float>(); });
  value_or_sentence([&] { (void)v.as<bool>(); });
  value_or_sentence([&] { (void)v.as<std::string>(); });
  value_or_sentence([&] { (void)v.as<std::vector<double>>(); });
  value_or_sentence([&] { (void)v.as<std::vector<std::string>>(); });
  if (!v.raw().is_object()) return;
  for (const auto& item : v.raw().items()) {
    value_or_sentence([&] { (void)v.field<int>(item.key()); });
    value_or_sentence([&] { (void)v.field<double>(item.key()); });
    value_or_sentence([&] { ask_everything(v.field<mc::json_value>(item.key())); });
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  value_or_sentence([&] {
    const nlohmann::json value = mc::parse_json(text, "fuzz");
    if (mc::parse_json(value.dump(), "again") != value) std::abort();
    ask_everything({value, "fuzz", mc::exit_code::model});
  });
  return 0;
}
