// Signals of a run: SIGINT and SIGTERM as a request to stop after the current step, SIGPIPE and
// SIGXFSZ as errors of the writes that raise them; and none on a thread while it computes products.
#pragma once

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace mc {

namespace detail {
inline std::atomic<int> stop_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler may only touch these");

extern "C" inline void note_stop_signal(int number) {
  stop_signal.store(number, std::memory_order_relaxed);
  // The next one, of either kind, ends the process at once; files are safe because they are
  // committed by rename. sigaction and signal are async-signal-safe (POSIX.1-2017, 2.4.3).
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}
/// What another thread, process or timer sends. Not what an instruction of the thread itself
/// raises, which must be taken where it happens, nor what abort raises.
inline sigset_t asynchronous_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
    sigdelset(&set, own);
  return set;
}
} // namespace detail

/// While an object lives, its thread takes no asynchronous signals: another one does, or they wait.
/// For threads inside oneDNN, whose kernels may move the stack pointer into a buffer on the heap
/// (2.6.3 on AVX2, fp32): a signal would write its frame there, over what lies below.
class signals_held {
public:
  signals_held() {
    const sigset_t held = detail::asynchronous_signals();
    ::pthread_sigmask(SIG_BLOCK, &held, &before_);
  }
  signals_held(const signals_held&) = delete;
  signals_held& operator=(const signals_held&) = delete;
  ~signals_held() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
  sigset_t before_;
};

/// While an object lives, writes beyond a file size limit or to a closed pipe are errors instead of
/// signals, so that they get their sentence. One at a time, in main.
class write_errors {
public:
  write_errors() {
    struct sigaction action {};
    action.sa_handler = SIG_IGN;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGXFSZ, &action, &old_size_);
    ::sigaction(SIGPIPE, &action, &old_pipe_);
  }
  write_errors(const write_errors&) = delete;
  write_errors& operator=(const write_errors&) = delete;
  ~write_errors() {
    ::sigaction(SIGXFSZ, &old_size_, nullptr);
    ::sigaction(SIGPIPE, &old_pipe_, nullptr);
  }

private:
  struct sigaction old_size_ {
  }, old_pipe_{};
};

/// While an object lives, the first SIGINT or SIGTERM sets a flag and the second ends the process.
/// One at a time.
class stop_signals {
public:
  stop_signals() {
    detail::stop_signal = 0;
    struct sigaction action {};
    action.sa_handler = detail::note_stop_signal;
    action.sa_flags = SA_RESTART; // reads and writes under way go on
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGINT, &action, &old_interrupt_);
    ::sigaction(SIGTERM, &action, &old_terminate_);
  }
  stop_signals(const stop_signals&) = delete;
  stop_signals& operator=(const stop_signals&) = delete;
  ~stop_signals() {
    ::sigaction(SIGINT, &old_interrupt_, nullptr);
    ::sigaction(SIGTERM, &old_terminate_, nullptr);
  }

  /// True once a signal has come. Cheap enough for every step.
  bool requested() const { return number() != 0; }
  /// SIGINT, SIGTERM or 0.
  int number() const { return detail::stop_signal.load(std::memory_order_relaxed); }

private:
  struct sigaction old_interrupt_ {
  }, old_terminate_{};
};

} // namespace mc
