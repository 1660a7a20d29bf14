// libFuzzer: any bytes are either refused with mc::error or a consistent safetensors file whose
// every tensor can be found by name, lies within the file, and is written back to the same
// contents.
//
// clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -Iinclude
//   tests/fuzz/safetensors.cpp -lfmt
#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/checkpoint/safetensors_writer.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace {

void require(bool law) {
  if (!law) std::abort();
}

void check(const mc::safetensors_reader& view, std::span<const std::byte> file) {
  std::uint64_t total = 0;
  std::vector<mc::tensor_spec> specs;
  for (std::size_t i = 0; i < view.size(); ++i) {
    const mc::file_tensor t = view[i];
    total += t.bytes.size();
    require(t.bytes.empty() || (t.bytes.data() >= file.data() &&
                                t.bytes.data() + t.bytes.size() <= file.data() + file.size()));
    const auto found = view.find(t.name);
    require(found && found->bytes.data() == t.bytes.data() &&
            found->shape.data() == t.shape.data());
    std::uint64_t sum = 0; // touches every byte
    for (const std::byte b : t.bytes) sum += std::to_integer<std::uint64_t>(b);
    require(sum <= 255 * t.bytes.size());
    if (t.elements() <= 4096) {
      std::vector<float> values(static_cast<std::size_t>(t.elements()));
      try {
        mc::read_values(t, std::span(values));
      } catch (const mc::error&) { // a type that is not a weight's
      }
    }
    specs.push_back({std::string(t.name), t.type, {t.shape.begin(), t.shape.end()}});
  }
  require(total == view.data_size());

  const mc::safetensors_layout layout(
      specs, std::map<std::string, std::string>(view.metadata().begin(), view.metadata().end()));
  std::string again;
  layout.write(
      [&again](std::span<const std::byte> b) {
        again.append(reinterpret_cast<const char*>(b.data()), b.size());
      },
      [&view](const mc::tensor_spec& t, const mc::byte_sink& sink) {
        sink(view.at(t.name).bytes);
      });
  const mc::safetensors_reader back(std::as_bytes(std::span(again)), "again");
  require(back.size() == view.size() && back.metadata() == view.metadata());
  for (std::size_t i = 0; i < view.size(); ++i) {
    const mc::file_tensor t = view[i], u = back.at(t.name);
    require(t.type == u.type &&
            std::equal(t.shape.begin(), t.shape.end(), u.shape.begin(), u.shape.end()));
    require(std::equal(t.bytes.begin(), t.bytes.end(), u.bytes.begin(), u.bytes.end()));
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    check(mc::safetensors_reader(file, "fuzz"), file);
  } catch (const mc::error& e) {
    require(e.code() == mc::exit_code::model); // of the input's making, not ours
  }
  return 0;
}
