// A reference to a function of any type, so that code that takes one is compiled once.
#pragma once

namespace mc {

/// Calls a function of these arguments. The function must outlive the reference to it.
template <class... Arguments> class function_ref {
public:
  template <class F> function_ref(const F& f)
      : of_(&f),
        call_([](const void* of, Arguments... a) { (*static_cast<const F*>(of))(a...); }) {}
  void operator()(Arguments... a) const { call_(of_, a...); }

private:
  const void* of_;
  void (*call_)(const void*, Arguments...);
};

} // namespace mc
