// The OpenMP runtime that oneDNN may have brought into the process. A tile of a product is one call
// of oneDNN on one of this library's threads, so the runtime must use one thread there. Its
// functions are looked up by name in the whole process, as oneDNN's own calls are bound, and not
// linked: the compiler may have another runtime (clang's libomp beside oneDNN's libgomp).
#pragma once

#include <dlfcn.h>

namespace mc {

/// Functions of the OpenMP runtime; null pointers where the process has no runtime.
struct openmp_runtime {
  void (*set_threads)(int) = nullptr;
  int (*threads)() = nullptr;

  static const openmp_runtime& of_process() {
    static const openmp_runtime found = [] {
      openmp_runtime r;
      r.set_threads = reinterpret_cast<void (*)(int)>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
      r.threads = reinterpret_cast<int (*)()>(::dlsym(RTLD_DEFAULT, "omp_get_max_threads"));
      return r;
    }();
    return found;
  }
  bool present() const { return set_threads != nullptr && threads != nullptr; }
};

/// Holds OpenMP to one thread, for calls from the thread that made the object, while the object
/// lives.
class one_openmp_thread {
public:
  one_openmp_thread() : runtime_(openmp_runtime::of_process()) {
    if (!runtime_.present()) return;
    before_ = runtime_.threads();
    runtime_.set_threads(1);
  }
  one_openmp_thread(const one_openmp_thread&) = delete;
  one_openmp_thread& operator=(const one_openmp_thread&) = delete;
  ~one_openmp_thread() {
    if (runtime_.present()) runtime_.set_threads(before_);
  }

private:
  const openmp_runtime& runtime_;
  int before_ = 1;
};

} // namespace mc
