// A product table as a JSON file:
//
//   {"format": "megacpp-product-table", "version": 1, "machines": [
//     {"gpu": "NVIDIA ...", "compute_capability": "9.0", "cublaslt": 130000, "products": [
//       {"product": {"kind": "forward", "M": 4096, ...}, "tf32": false, "algorithm": "00ff...",
//        "seconds": 0.00012, "first_seconds": 0.00013}, ...]}, ...]}
//
// `algorithm` has the bytes of a cublasLtMatmulAlgo_t as hexadecimal digits. NVIDIA lets programs
// keep these for the same version of the library.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/product/cuda/product_table.hpp>
#include <megacpp/product/product_json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

namespace detail {

inline constexpr const char* product_table_format = "megacpp-product-table";

inline std::string hexadecimal(const cublasLtMatmulAlgo_t& way) {
  unsigned char bytes[sizeof way.data];
  std::memcpy(bytes, way.data, sizeof bytes);
  return fmt::format("{:02x}", fmt::join(bytes, ""));
}
inline cublasLtMatmulAlgo_t algorithm_of(const json_value& of) {
  cublasLtMatmulAlgo_t way{};
  const auto text = of.field<std::string>("algorithm");
  unsigned char bytes[sizeof way.data];
  const auto digit = [](char c) {
    const auto at = std::string_view("0123456789abcdef").find(c);
    return at == std::string_view::npos ? -1 : static_cast<int>(at);
  };
  bool right = text.size() == 2 * sizeof bytes;
  for (std::size_t i = 0; right && i < sizeof bytes; ++i) {
    const int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
    right = high >= 0 && low >= 0;
    bytes[i] = static_cast<unsigned char>(16 * high + low);
  }
  if (!right)
    throw of.fault(
        fmt::format("field \"{}\" is not {} hexadecimal digits; measure the product "
                    "again",
                    place_of(of, "algorithm"), 2 * sizeof bytes));
  std::memcpy(way.data, bytes, sizeof bytes);
  return way;
}

/// Throws mc::error, with the name of the field, if an object has a field with another name.
inline void require_known(const json_value& of, std::initializer_list<std::string_view> names) {
  for (const auto& [name, value] : of.raw().items())
    if (std::ranges::find(names, name) == names.end())
      throw of.fault(
          fmt::format("field \"{}\" is none that this version of megacpp knows; make the "
                      "table anew by megacpp_gpu --tune",
                      place_of(of, name)));
}

inline tuned_product tuned_product_of(const json_value& of) {
  require_known(of, {"product", "tf32", "algorithm", "seconds", "first_seconds"});
  tuned_product t;
  const auto call = of.field<json_value>("product");
  const product_shape s = product_shape_of(call);
  t.call = call_of(s);
  if (s.dynamic_rows || s.segment != 0)
    throw of.fault(
        fmt::format("field \"{}\" has \"part\" or \"dynamic_rows\", and is no call of the "
                    "library; make the table anew by megacpp_gpu --tune",
                    call.path()));
  t.tf32 = of.field<bool>("tf32");
  t.way = algorithm_of(of);
  t.seconds = of.field<double>("seconds", 0, 1e6);
  t.first_seconds = of.field<double>("first_seconds", 0, 1e6);
  return t;
}

} // namespace detail

/// Reads a table from a parsed file. Throws mc::error, with the file and the field.
inline product_table product_table_of(const json_value& file) {
  using detail::require_known;
  require_known(file, {"format", "version", "machines"});
  if (const auto format = file.field<std::string>("format"); format != detail::product_table_format)
    throw file.fault(
        fmt::format("field \"format\" is \"{}\", and not \"{}\": give a file that "
                    "megacpp_gpu --tune has written",
                    printable(format), detail::product_table_format));
  (void)file.field<int>("version", 1, 1);
  product_table table;
  for (const auto& of : file.field<std::vector<json_value>>("machines")) {
    require_known(of, {"gpu", "compute_capability", "cublaslt", "products"});
    const tuned_machine m{of.field<std::string>("gpu"), of.field<std::string>("compute_capability"),
                          of.field<std::size_t>("cublaslt")};
    const auto twice = [](const json_value& at) {
      return at.fault(fmt::format(
          "field \"{}\" has what one before it has, too; remove one of them", at.path()));
    };
    if (table.find(m) != nullptr) throw twice(of);
    auto& products = table.machines.emplace_back(product_table::of_machine{m, {}}).products;
    for (const auto& one : of.field<std::vector<json_value>>("products")) {
      const tuned_product t = detail::tuned_product_of(one);
      if (find_tuned(products, t.call, t.tf32) != nullptr) throw twice(one);
      products.push_back(t);
    }
  }
  return table;
}
/// Reads the table of a file. Throws mc::error(exit_code::usage), with the file and the byte or
/// field.
inline product_table read_product_table(const std::string& path) {
  return product_table_of(read_json(path, exit_code::usage));
}

/// Returns the text of a table's file, with a product on each line.
inline std::string text_of(const product_table& table) {
  std::string text = fmt::format("{{\"format\": \"{}\", \"version\": 1, \"machines\": [",
                                 detail::product_table_format);
  for (const auto& m : table.machines) {
    const auto quoted = [](const std::string& of) { return json_output(of).dump(); };
    text += fmt::format(
        "{}\n {{\"gpu\": {}, \"compute_capability\": {}, \"cublaslt\": {}, "
        "\"products\": [",
        &m == table.machines.data() ? "" : ",", quoted(m.machine.gpu), quoted(m.machine.capability),
        m.machine.cublaslt);
    for (const tuned_product& t : m.products) {
      const json_output one{{"product", json_of(t.call)},
                            {"tf32", t.tf32},
                            {"algorithm", detail::hexadecimal(t.way)},
                            {"seconds", json_number(t.seconds)},
                            {"first_seconds", json_number(t.first_seconds)}};
      text += fmt::format("{}\n  {}", &t == m.products.data() ? "" : ",", one.dump());
    }
    text += "]}";
  }
  return text + "]}\n";
}

} // namespace mc
