// Threads of this library have a stack of known size, whatever `ulimit -s` says, and block
// asynchronous signals, which go to the threads of the program that uses the library
// (io/signals.hpp says why).
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/signals.hpp>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include <pthread.h>

namespace mc {

/// Runs a function, which must not throw, on a thread of its own. The destructor waits for the
/// function's end.
class own_thread {
public:
  /// The size of a stack: main threads usually have as much.
  static constexpr std::size_t stack_bytes = std::size_t{8} << 20;

  /// Throws mc::error(exit_code::memory) when the system cannot start another thread. `instead` is
  /// the first part of the advice in the message: another remedy than raising limits.
  explicit own_thread(std::function<void()> function, const char* instead = "")
      : function_(std::make_shared<std::function<void()>>(std::move(function))) {
    auto of_thread = std::make_unique<std::shared_ptr<std::function<void()>>>(function_);
    pthread_attr_t attributes;
    int failed = ::pthread_attr_init(&attributes);
    if (failed == 0) {
      failed = ::pthread_attr_setstacksize(&attributes, stack_bytes);
      const signals_held inherited;
      if (failed == 0) failed = ::pthread_create(&thread_, &attributes, &call, of_thread.get());
      ::pthread_attr_destroy(&attributes);
    }
    if (failed == 0) static_cast<void>(of_thread.release()); // the thread has it
    if (failed != 0)
      throw error(exit_code::memory,
                  std::string("a thread could not be started (") + std::strerror(failed) + "); " +
                      instead +
                      (failed == EAGAIN || failed == ENOMEM
                           ? "raise the limits on processes and memory (ulimit -u, ulimit -v, "
                             "pids.max of the control group)"
                           : "let what filters system calls (seccomp) allow clone3"));
  }
  own_thread(own_thread&&) = default;
  own_thread& operator=(own_thread&&) = delete;
  ~own_thread() {
    if (function_) ::pthread_join(thread_, nullptr);
  }

  /// Gives up the thread without waiting for it: after a fork the child has no threads but the one
  /// that called fork.
  void forget() { function_.reset(); } // The thread's own reference stays.
  /// Leaves the thread alone, which may go on for as long as the process does.
  void leave() {
    ::pthread_detach(thread_);
    function_.reset();
  }

private:
  static void* call(void* function) {
    const std::unique_ptr<std::shared_ptr<std::function<void()>>> own(
        static_cast<std::shared_ptr<std::function<void()>>*>(function));
    (**own)();
    return nullptr;
  }

  std::shared_ptr<std::function<void()>> function_;
  pthread_t thread_{};
};

} // namespace mc
