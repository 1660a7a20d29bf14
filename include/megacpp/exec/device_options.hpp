// A program's device is made by one unit, which has the libraries of its products; commands know it
// by its type alone, and say what a user has chosen of it.
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
  product_type products = product_type::automatic; ///< how bf16 operands are multiplied
  int threads = 0;                                 ///< of the host, that work for it; 0: all cores
  product_rows rows = product_rows::together;      ///< how those of forward products are computed
  bool tf32 = false;                               ///< fp32 operands may be rounded to TF32
  std::string product_table{};                     ///< a file with tuned products; empty: none
  bool deterministic_attention = true;             ///< its gradients have the same bits in each run
  bool graphs = true; ///< work that follows from its addresses is kept as graphs of CUDA
  int number = -1;    ///< of the devices that are visible; -1: left to the place of the process
  int place = 0;      ///< of the process among those of its machine, which take devices in turn
  void (*tell)(std::string_view) = nullptr; ///< hears once of a library that computes wrong
  /// It says how much memory a program needs, and computes nothing.
  bool sizes_alone = false;
  /// It is described, and computes nothing but what describing it needs.
  bool described = false;
};

/// Makes a device of a type (part_view::device_type), as mc::make_device does
/// (product/devices.hpp).
using device_maker = std::unique_ptr<device>(const std::type_info&, const device_options&);

/// Throws mc::error(exit_code::internal) unless a device that is asked for is of the type that its
/// maker makes.
inline void require_device(const std::type_info& asked, const std::type_info& made) {
  if (asked != made)
    throw error(exit_code::internal,
                std::string("the program computes on a device of type ") + asked.name() +
                    ", and its commands make one of type " + made.name() +
                    ": give megacpp_add_run the DEVICE that the run names, or open a session on "
                    "a device of your own");
}

} // namespace mc
