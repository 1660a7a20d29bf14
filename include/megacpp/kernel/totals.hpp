// The kernel of op/totals.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/op/totals.hpp>

namespace mc {

template <> struct kernel_of<&op::add_total> { // total, x
  using elements = accumulators;
  using in = op::add_total_in;
  template <class T, class Call> static void run(Call& c) {
    for_one(c.lane(), rows::add_to_total<T>{c.in(in::x), c.in_out(in::total)});
  }
};

} // namespace mc
