// What backends that copy and add up on the host ask of a device.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/io/error.hpp>

#include <string>

namespace mc {

/// Ranks made `as` threads or processes cannot move memory that the host does not see: throws
/// mc::error(exit_code::internal).
inline void require_seen(const memory_space& of, const char* as) {
  if (!of.host_sees())
    throw error(exit_code::internal, std::string("ranks as ") + as +
                                         " move memory that the host sees, and it does not see "
                                         "this device's: use ranks that are made for the device");
}

} // namespace mc
