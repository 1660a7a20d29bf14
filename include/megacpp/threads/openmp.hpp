// The OpenMP runtime that oneDNN may have brought into the process. A tile of a product is one call
// on one of our threads, so the runtime must have one thread wherever oneDNN is called. It is
// looked up as oneDNN's own calls are bound, by name in the whole process, and not linked: the
// compiler's may be another one (clang's libomp beside oneDNN's libgomp).
#pragma once

#include <dlfcn.h>

namespace mc {

/// Null where no runtime has these.
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

/// While an object lives, OpenMP has one thread for what its thread calls.
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
