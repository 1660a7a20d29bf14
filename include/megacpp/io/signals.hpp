// The signals of a run: those that request a stop; SIGPIPE and SIGXFSZ, which become errors of
// writes; and none on a thread while it computes matrix products.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <initializer_list>
#include <string_view>
#include <utility>

#include <unistd.h>

namespace mc {

namespace detail {
/// The signals that request a stop. They come from a person, a scheduler or a closed terminal; from
/// Slurm, by --signal=USR1; or from a limit on processor time, which repeats its signal until a
/// harder limit ends the process.
inline constexpr std::array<std::pair<int, std::string_view>, 5> stop_signal_names{
    {{SIGINT, "SIGINT"},
     {SIGTERM, "SIGTERM"},
     {SIGHUP, "SIGHUP"},
     {SIGUSR1, "SIGUSR1"},
     {SIGXCPU, "SIGXCPU"}}};

inline sigset_t stop_signal_set() {
  sigset_t set;
  sigemptyset(&set);
  for (const auto& s : stop_signal_names) sigaddset(&set, s.first);
  return set;
}

/// Returns a time in nanoseconds. It is async-signal-safe; the clocks of <chrono> do not promise
/// that.
inline std::int64_t signal_time() {
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Ends the process by a signal that ends processes. It is async-signal-safe (POSIX.1-2017, 2.4.3).
/// The first process of a container ignores signals that it does not handle, so it exits with the
/// code by which shells report the signal.
extern "C" inline void end_by_signal(int number) {
  sigset_t only;
  sigemptyset(&only);
  sigaddset(&only, number);
  std::signal(number, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
  std::raise(number);
  ::_exit(128 + number);
}

inline std::atomic<int> stop_signal{0};
inline std::atomic<int> saves_asked{0};        ///< times that SIGUSR2 has come
inline std::atomic<std::int64_t> stop_time{0}; ///< signal_time() of the first stop signal; 0: none
                                               ///< yet
static_assert(std::atomic<int>::is_always_lock_free &&
                  std::atomic<std::int64_t>::is_always_lock_free,
              "a signal handler may only touch these");

extern "C" inline void note_save_signal(int /*number*/) {
  saves_asked.fetch_add(1, std::memory_order_relaxed);
}
extern "C" inline void note_stop_signal(int number) {
  constexpr std::int64_t of_another_mind = 1'000'000'000;
  std::int64_t first = 0;
  const std::int64_t now = signal_time();
  if (stop_time.compare_exchange_strong(first, now)) {
    stop_signal.store(number, std::memory_order_relaxed);
    return;
  }
  // A launcher or shell may send one request twice, and some other signals repeat.
  if ((number != SIGINT && number != SIGTERM) || now - first < of_another_mind) return;
  end_by_signal(number); // files are safe, since they are committed by a rename
}
/// Returns the set of signals that another thread, process or timer sends. Signals that an
/// instruction of the thread itself or abort raises are not in it, because the thread must take
/// them.
inline sigset_t asynchronous_signals() {
  sigset_t set;
  sigfillset(&set);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT})
    sigdelset(&set, own);
  return set;
}
} // namespace detail

/// Blocks asynchronous signals on its thread while it lives: another thread takes them, or they
/// wait. Threads inside oneDNN need it, whose kernels may move the stack pointer into a buffer on
/// the heap (2.6.3 on AVX2, fp32): a signal would write its frame over the bytes below.
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

/// Turns signals about writes beyond a file size limit, or to a closed pipe, into errors with a
/// sentence, while it lives. main has one at a time.
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

/// Unblocks the signals that request a stop on its thread while it lives, even if the program was
/// started with them blocked.
class stop_signals_taken {
public:
  stop_signals_taken() {
    const sigset_t set = detail::stop_signal_set();
    ::pthread_sigmask(SIG_UNBLOCK, &set, &before_);
  }
  stop_signals_taken(const stop_signals_taken&) = delete;
  stop_signals_taken& operator=(const stop_signals_taken&) = delete;
  ~stop_signals_taken() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

private:
  sigset_t before_;
};

/// Lets the signals that request a stop end the first process of a container, as they end any
/// other, while it lives. main has one at a time.
class first_process_ends {
public:
  first_process_ends() : first_(::getpid() == 1) {
    if (!first_) return;
    struct sigaction action {};
    action.sa_handler = detail::end_by_signal;
    for (std::size_t i = 0; i < old_.size(); ++i) {
      const int number = detail::stop_signal_names[i].first;
      ::sigaction(number, nullptr, &old_[i]);
      if (old_[i].sa_handler == SIG_DFL) ::sigaction(number, &action, nullptr);
    }
  }
  first_process_ends(const first_process_ends&) = delete;
  first_process_ends& operator=(const first_process_ends&) = delete;
  ~first_process_ends() {
    for (std::size_t i = 0; first_ && i < old_.size(); ++i)
      ::sigaction(detail::stop_signal_names[i].first, &old_[i], nullptr);
  }

private:
  bool first_;
  std::array<struct sigaction, detail::stop_signal_names.size()> old_{};
};

namespace detail {
inline std::atomic<int> code_of_interrupted{10};
extern "C" inline void ignore_signal(int /*number*/) {}
extern "C" inline void end_idle_rank(int /*number*/) { ::_exit(code_of_interrupted); }
} // namespace detail

/// Ends a rank by a code when a stop signal comes while no run takes signals: before all ranks have
/// met, and behind the last save. It says nothing, since a launcher ends ranks so where another one
/// has failed and said why. SIGUSR2 asks for nothing then. It gets a handler in place of SIG_IGN,
/// which programs that are started would inherit. main has one at a time.
class ends_idle_rank {
public:
  /// `code`: the exit code.
  explicit ends_idle_rank(int code) {
    detail::code_of_interrupted = code;
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    for (std::size_t i = 0; i <= detail::stop_signal_names.size(); ++i) {
      const bool stops = i < detail::stop_signal_names.size();
      const int number = stops ? detail::stop_signal_names[i].first : SIGUSR2;
      action.sa_handler = stops ? detail::end_idle_rank : detail::ignore_signal;
      action.sa_flags = SA_RESTART;
      ::sigaction(number, nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
    }
  }
  ends_idle_rank(const ends_idle_rank&) = delete;
  ends_idle_rank& operator=(const ends_idle_rank&) = delete;
  ~ends_idle_rank() {
    for (std::size_t i = 0; i < detail::stop_signal_names.size(); ++i)
      ::sigaction(detail::stop_signal_names[i].first, &old_[i], nullptr);
    ::sigaction(SIGUSR2, &old_.back(), nullptr);
  }

private:
  std::array<struct sigaction, detail::stop_signal_names.size() + 1> old_{};
};

/// Returns whether a signal of stop_signals has come. It is cheap enough for every micro-batch.
inline bool stop_requested() { return detail::stop_signal.load(std::memory_order_relaxed) != 0; }
/// Returns the name of the first signal that came; "" if none has.
inline std::string_view stop_signal_name() {
  for (const auto& s : detail::stop_signal_names)
    if (s.first == detail::stop_signal.load(std::memory_order_relaxed)) return s.second;
  return "";
}
/// Returns the seconds since the first signal came; 0 if none has.
inline double seconds_since_stop() {
  const std::int64_t since = detail::stop_time.load();
  return since == 0 ? 0 : static_cast<double>(detail::signal_time() - since) * 1e-9;
}

/// Notes the first SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU, and each SIGUSR2, while it lives. A
/// SIGINT or SIGTERM a second or more after the first signal ends the process. Signals that were
/// ignored when the program was started stay ignored. There is one such object at a time; its
/// signal stays known until the next one is made.
class stop_signals {
public:
  stop_signals() {
    detail::stop_signal = 0;
    detail::stop_time = 0;
    detail::saves_asked = 0;
    struct sigaction action {};
    action.sa_handler = detail::note_stop_signal;
    action.sa_flags = SA_RESTART; // reads and writes under way continue
    action.sa_mask = detail::stop_signal_set();
    for (std::size_t i = 0; i < old_.size(); ++i) {
      const int number = detail::stop_signal_names[i].first;
      ::sigaction(number, nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
    }
    action.sa_handler = detail::note_save_signal;
    ::sigaction(SIGUSR2, nullptr, &old_save_);
    if (old_save_.sa_handler != SIG_IGN) ::sigaction(SIGUSR2, &action, nullptr);
  }
  stop_signals(const stop_signals&) = delete;
  stop_signals& operator=(const stop_signals&) = delete;
  ~stop_signals() {
    for (std::size_t i = 0; i < old_.size(); ++i)
      ::sigaction(detail::stop_signal_names[i].first, &old_[i], nullptr);
    ::sigaction(SIGUSR2, &old_save_, nullptr);
  }

  /// Returns how often SIGUSR2 has come, which asks for a state to be saved.
  int saves_asked() const { return detail::saves_asked.load(std::memory_order_relaxed); }
  bool requested() const { return stop_requested(); }
  /// Returns the number of the first signal that came; 0 if none has.
  int number() const { return detail::stop_signal.load(std::memory_order_relaxed); }
  /// Returns the name of the first signal that came; "" if none has.
  std::string_view name() const { return stop_signal_name(); }

private:
  std::array<struct sigaction, detail::stop_signal_names.size()> old_{};
  struct sigaction old_save_ {};
};

} // namespace mc
