// Kernel of op/totals.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/op/totals.hpp>

namespace mc {

template <> struct kernel_of<&op::add_total> { // total, x
  template <class T, class Call> static void run(Call& c) {
    *c.template in_out<double>(0) += convert<double>(*c.template in<T>(1));
  }
};

} // namespace mc
