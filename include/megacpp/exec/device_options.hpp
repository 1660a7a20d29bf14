// What a user may choose of the device of a program, and who makes it: commands know a device by
// its type alone, and the libraries of its products are for the unit that makes it.
#pragma once

#include <megacpp/exec/device.hpp>

#include <memory>
#include <string_view>
#include <typeinfo>

namespace mc {

/// What a user may choose of a device.
struct device_options {
  product_type products = product_type::automatic; ///< how bf16 operands are multiplied
  int threads = 0;                                 ///< of the host, that work for it; 0: all cores
  product_rows rows = product_rows::together;      ///< how those of forward products are computed
  void (*tell)(std::string_view) = nullptr;        ///< hears once of a library that computes wrong
  /// It says how much memory a program needs, and computes nothing: no device need be there.
  bool sizes_alone = false;
  /// It is described, and computes nothing but what describing it needs.
  bool described = false;
};

/// Makes a device of a type (part_view::device_type), as mc::make_device does
/// (product/devices.hpp).
using device_maker = std::unique_ptr<device>(const std::type_info&, const device_options&);

} // namespace mc
