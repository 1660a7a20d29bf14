// Kernel of op/redistribute.hpp on one rank: nothing moves between ranks, values are handed on.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/op/redistribute.hpp>

namespace mc {

template <> struct kernel_of<&op::redistribute> {
  template <class T, class Call> static void run(Call& c) {
    c.comm().run(exchange::all_reduce({}, dtype_of<T>, c.template in<T>(0), c.template out<T>(0),
                                       c.in_size(0)));
  }
};

} // namespace mc
