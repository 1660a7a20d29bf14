// A destructor may do something that throws by this.
#pragma once

#include <exception>

namespace mc {

/// An object has this as a member if its destructor does something that may throw.
class ending {
public:
  /// Calls f() in that destructor. Throws what f throws, unless something else is on its way.
  template <class F> void run(F f) const {
    if (std::uncaught_exceptions() == thrown_) {
      f();
      return;
    }
    try {
      f();
    } catch (...) { // what is thrown already is told
    }
  }

private:
  int thrown_ = std::uncaught_exceptions();
};

} // namespace mc
