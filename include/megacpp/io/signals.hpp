// Signals of a run: those that ask it to stop, SIGPIPE and SIGXFSZ as errors of the writes that
// raise them; and none on a thread while it computes products.
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
/// What asks a run to stop: a person, a scheduler, a closed terminal; Slurm, by --signal=USR1;
/// a limit on processor time, which repeats it until a harder limit ends the process.
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

/// Nanoseconds; async-signal-safe, unlike the clocks of <chrono> by the letter.
inline std::int64_t signal_time() {
  struct timespec now {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Ends the process by a signal that ends processes. Async-signal-safe (POSIX.1-2017, 2.4.3). The
/// first process of a container takes none that it does not handle, so it exits as shells tell it.
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
inline std::atomic<std::int64_t> stop_time{0}; ///< signal_time() of the first; 0: none has come
static_assert(std::atomic<int>::is_always_lock_free &&
                  std::atomic<std::int64_t>::is_always_lock_free,
              "a signal handler may only touch these");

extern "C" inline void note_stop_signal(int number) {
  constexpr std::int64_t of_another_mind = 1'000'000'000;
  std::int64_t first = 0;
  const std::int64_t now = signal_time();
  if (stop_time.compare_exchange_strong(first, now)) {
    stop_signal.store(number, std::memory_order_relaxed);
    return;
  }
  // timeout, shells and launchers send one request twice, some other signals again and again.
  if ((number != SIGINT && number != SIGTERM) || now - first < of_another_mind) return;
  end_by_signal(number); // files are safe because they are committed by rename
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

/// While an object lives, its thread takes the signals that ask to stop, even where whoever started
/// the program holds them back.
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

/// While an object lives, the signals that ask to stop end the first process of a container as they
/// end any other. One at a time, in main.
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

/// Whether one of the signals of a stop_signals has come. Cheap enough for every micro-batch.
inline bool stop_requested() { return detail::stop_signal.load(std::memory_order_relaxed) != 0; }
/// Its name, of the first that came; "" if none has.
inline std::string_view stop_signal_name() {
  for (const auto& s : detail::stop_signal_names)
    if (s.first == detail::stop_signal.load(std::memory_order_relaxed)) return s.second;
  return "";
}
/// Seconds since then; 0 if none has.
inline double seconds_since_stop() {
  const std::int64_t since = detail::stop_time.load();
  return since == 0 ? 0 : static_cast<double>(detail::signal_time() - since) * 1e-9;
}

/// While an object lives, the first SIGINT, SIGTERM, SIGHUP, SIGUSR1 or SIGXCPU is noted, and a
/// SIGINT or SIGTERM a second or more after it ends the process. What whoever started the program
/// ignores stays ignored. One at a time; what was noted is known until the next one.
class stop_signals {
public:
  stop_signals() {
    detail::stop_signal = 0;
    detail::stop_time = 0;
    struct sigaction action {};
    action.sa_handler = detail::note_stop_signal;
    action.sa_flags = SA_RESTART; // reads and writes under way go on
    action.sa_mask = detail::stop_signal_set();
    for (std::size_t i = 0; i < old_.size(); ++i) {
      const int number = detail::stop_signal_names[i].first;
      ::sigaction(number, nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_IGN) ::sigaction(number, &action, nullptr);
    }
  }
  stop_signals(const stop_signals&) = delete;
  stop_signals& operator=(const stop_signals&) = delete;
  ~stop_signals() {
    for (std::size_t i = 0; i < old_.size(); ++i)
      ::sigaction(detail::stop_signal_names[i].first, &old_[i], nullptr);
  }

  bool requested() const { return stop_requested(); }
  /// The first that came, or 0.
  int number() const { return detail::stop_signal.load(std::memory_order_relaxed); }
  /// Its name; "" if none came.
  std::string_view name() const { return stop_signal_name(); }

private:
  std::array<struct sigaction, detail::stop_signal_names.size()> old_{};
};

} // namespace mc
