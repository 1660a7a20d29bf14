// A user's choices of a device. One unit of a program, which has the libraries of the products,
// makes the device; commands know the device only by its type and these choices.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/io/error.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <typeinfo>

namespace mc {

/// A user's choices of a device.
struct device_options {
  product_type products = product_type::automatic; ///< arithmetic of bf16 operands
  int threads = 0;                                 ///< threads of the host for it; 0: all cores
  product_rows rows = product_rows::together;      ///< arrangement of the rows of forward products
  bool tf32 = false;                               ///< fp32 operands may be rounded to TF32
  std::string product_table{};                     ///< a file with tuned products; empty: none
  bool deterministic_attention = true;             ///< attention's gradients have the same bits
  bool graphs = true; ///< lanes keep work with fixed addresses as graphs of CUDA
  int number = -1;    ///< number of the device among the visible ones; -1: `place` decides
  int place = 0;      ///< place of the process on its machine, where they take turns
  void (*tell)(std::string_view) = nullptr; ///< is called once for a library that computes wrong
  /// The device only says how much memory a program needs, and computes nothing.
  bool sizes_alone = false;
  /// The device is described, and computes only what its description needs.
  bool described = false;
};

/// A function that makes a device of a type (part_view::device_type), such as mc::make_device
/// (product/devices.hpp).
using device_maker = std::unique_ptr<device>(const std::type_info&, const device_options&);

/// Throws mc::error(exit_code::internal) unless the device type that is asked for is the type that
/// the maker makes.
inline void require_device(const std::type_info& asked, const std::type_info& made) {
  if (asked != made)
    throw error(exit_code::internal,
                std::string("the program computes on a device of type ") + asked.name() +
                    ", and its commands make one of type " + made.name() +
                    ": give megacpp_add_run the DEVICE that the run names, or open a session on "
                    "a device of your own");
}

} // namespace mc
