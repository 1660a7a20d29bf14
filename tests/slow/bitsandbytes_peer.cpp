// bitsandbytes_peer WHAT [OFFSET]: what becomes of the numbers on standard input, for
// bitsandbytes_peer.py to compare.
//   grid, nearest, grid-bf16    a matrix in float, or in bf16, as NF4: standard output has the dynamic
//                               map, offset, absmax, nested absmax, codes of absmax, codes, and the
//                               matrix dequantised in its type. OFFSET is one of a float's spellings.
//   e4m3, e4m3-back             floats as FP8; bytes of FP8 as floats
#include <megacpp/num/fp8.hpp>

#include <cstdlib>
#include <iostream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nf4_arrays.hpp>

namespace {

template <class T> std::vector<T> read() {
  const std::string bytes(std::istreambuf_iterator<char>(std::cin), {});
  std::vector<T> out(bytes.size() / sizeof(T));
  bytes.copy(reinterpret_cast<char*>(out.data()), out.size() * sizeof(T));
  return out;
}

template <class Array> void write(const Array& values) {
  const auto bytes = std::as_bytes(std::span(values));
  std::cout.write(reinterpret_cast<const char*>(bytes.data()),
                  static_cast<std::streamsize>(bytes.size()));
}

template <class T> void write_matrix(std::optional<float> offset, mc::dynamic_search search) {
  const auto weights = read<T>();
  const test::nf4_arrays a = test::nf4_quantised(weights, offset, search);
  write(mc::dynamic_map);
  write(std::vector{a.offset});
  write(a.absmax);
  write(a.nested_absmax);
  write(a.absmax_codes);
  write(a.codes);
  write(a.template range<T>(0, weights.size()));
}

} // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  std::optional<float> offset;
  if (argc > 2) offset = std::strtof(argv[2], nullptr);
  if (what == "grid") write_matrix<float>(offset, mc::dynamic_search::on_grid);
  else if (what == "nearest") write_matrix<float>(offset, mc::dynamic_search::nearest);
  else if (what == "grid-bf16") write_matrix<mc::bf16>(offset, mc::dynamic_search::on_grid);
  else if (what == "e4m3") {
    std::vector<mc::e4m3> out;
    for (const float x : read<float>()) out.emplace_back(x);
    write(out);
  } else if (what == "e4m3-back") {
    std::vector<float> out;
    for (const mc::e4m3 x : read<mc::e4m3>()) out.push_back(static_cast<float>(x));
    write(out);
  } else return 2;
  return std::cout.flush() ? 0 : 6;
}
