// A destructor that may throw, without ending the program while another exception is on its way.
#pragma once

#include <exception>

namespace mc {

/// The member of a class by which its destructor does something that may throw.
class ending {
public:
  /// Calls f(); to be called in that destructor. Throws what f throws, unless another exception is
  /// on its way.
  template <class F> void call(F f) const {
    if (std::uncaught_exceptions() == thrown_) {
      f();
      return;
    }
    try {
      f();
    } catch (...) { // the exception that is on its way is reported
    }
  }

private:
  int thrown_ = std::uncaught_exceptions();
};

} // namespace mc
