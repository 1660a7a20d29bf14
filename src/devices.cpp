// Makes the device of a program, whose matrix products are here. It knows no run.
#include <megacpp/product/devices.hpp>

std::unique_ptr<mc::device> megacpp_make_device(const std::type_info& type,
                                                const mc::device_options& o);
std::unique_ptr<mc::device> megacpp_make_device(const std::type_info& type,
                                                const mc::device_options& o) {
  return mc::make_device(type, o);
}
