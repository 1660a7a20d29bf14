// The ranks of a node, for an operator that has started the node alone (PyTorchJob and TrainJob
// without torchrun): this process starts them as its children, passes signals on to them, ends them
// when one has failed, and gives the exit code of the one that failed first. It serves as the first
// process of a container, too, which reaps processes that have lost their parents.
#pragma once

#include <megacpp/io/small_file.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/join/proof.hpp>

#include <array>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace mc {

namespace detail {

/// Signals that the ranks get, and the one that says that one of them has ended.
inline constexpr std::array signals_of_node{SIGTERM, SIGINT,  SIGHUP,  SIGQUIT,
                                            SIGUSR1, SIGUSR2, SIGXCPU, SIGCHLD};
inline int signal_pipe = -1; ///< where the handler writes the signal that came

extern "C" inline void pass_signal_on(int number) {
  const int before = errno;
  const auto byte = static_cast<char>(number);
  (void)!::write(signal_pipe, &byte, 1);
  errno = before;
}

/// Has the signals of a node written to a pipe while it lives. There is one at a time.
class node_signals {
public:
  node_signals() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0)
      throw error(exit_code::internal, "no pipe can be made: " + reason_of(errno));
    read_ = descriptor(ends[0]), write_ = descriptor(ends[1]);
    signal_pipe = write_.get();
    struct sigaction action {};
    action.sa_handler = pass_signal_on;
    action.sa_flags = SA_RESTART;
    sigfillset(&action.sa_mask);
    for (std::size_t i = 0; i < old_.size(); ++i) {
      ::sigaction(signals_of_node[i], nullptr, &old_[i]);
      if (old_[i].sa_handler != SIG_IGN || signals_of_node[i] == SIGCHLD)
        ::sigaction(signals_of_node[i], &action, nullptr);
    }
  }
  node_signals(const node_signals&) = delete;
  node_signals& operator=(const node_signals&) = delete;
  ~node_signals() {
    for (std::size_t i = 0; i < old_.size(); ++i)
      ::sigaction(signals_of_node[i], &old_[i], nullptr);
    signal_pipe = -1;
  }
  /// Waits so many milliseconds at most, and returns a signal that has come; 0 for none.
  int next(int milliseconds) const {
    pollfd one{read_.get(), POLLIN, 0};
    char byte = 0;
    if (::poll(&one, 1, milliseconds) > 0 && ::read(read_.get(), &byte, 1) == 1) return byte;
    return 0;
  }

private:
  descriptor read_, write_;
  std::array<struct sigaction, signals_of_node.size()> old_{};
};

/// Returns the words that this process was started with.
inline std::vector<std::string> own_arguments() {
  const descriptor file(::open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC));
  if (!file)
    throw error(exit_code::memory,
                "the words of this command line cannot be read for the ranks of "
                "the node: " +
                    reason_of(errno));
  std::string all;
  std::array<char, 4096> block;
  for (ssize_t n; (n = ::read(file.get(), block.data(), block.size())) > 0;)
    all.append(block.data(), static_cast<std::size_t>(n));
  std::vector<std::string> words;
  for (std::size_t at = 0; at < all.size();) {
    words.push_back(all.substr(at, all.find('\0', at) - at));
    at += words.back().size() + 1;
  }
  return words;
}

/// Returns the environment of a rank that a node starts, each variable with its value.
inline std::vector<std::string> environment_of_rank(const process_start& start, int ranks, int rank,
                                                    int port, int listener,
                                                    const std::string& secret) {
  std::vector<std::pair<std::string, std::string>> own{
      {"RANK", std::to_string(start.node * ranks + rank)},
      {"WORLD_SIZE", std::to_string(start.nodes * ranks)},
      {"LOCAL_RANK", std::to_string(rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
      {"GROUP_RANK", std::to_string(start.node)},
      {"GROUP_WORLD_SIZE", std::to_string(start.nodes)},
      {"MASTER_ADDR", start.master},
      {"MASTER_PORT", std::to_string(port)},
      {"TORCHELASTIC_RUN_ID", start.job},
      {"TORCHELASTIC_USE_AGENT_STORE", ""},
      {"MEGACPP_STARTED_BY_NODE", "1"},
      {"MEGACPP_RENDEZVOUS_LISTENER", listener < 0 ? "" : std::to_string(listener)},
      {"MEGACPP_RENDEZVOUS_SECRET", secret}};
  if (start.nodes == 1) own.emplace_back("MEGACPP_RENDEZVOUS_FOLDER", ""); // they have a port
  std::vector<std::string> all;
  for (char** v = environ; *v != nullptr; ++v) {
    const std::string_view one = *v;
    const std::string_view name = one.substr(0, one.find('='));
    bool replaced = false;
    for (const auto& [key, value] : own)
      replaced |= name == key && (key != "MEGACPP_RENDEZVOUS_SECRET" || !value.empty());
    if (!replaced) all.emplace_back(one);
  }
  for (const auto& [key, value] : own) {
    if (value.empty()) continue;
    std::string variable = key;
    (variable += '=') += value;
    all.push_back(std::move(variable));
  }
  return all;
}

inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> all;
  all.reserve(texts.size() + 1);
  for (std::string& t : texts) all.push_back(t.data());
  all.push_back(nullptr);
  return all;
}

} // namespace detail

/// Starts `ranks` ranks of the node of this process, waits until all have ended, and returns the
/// exit code: 0 if all have ended with 0, else that of the first that failed; for one that a signal
/// has ended, 128 and the signal's number. Throws mc::error if they cannot be started.
inline int start_ranks_of_node(const process_start& start, int ranks) {
  const detail::node_signals signals;
  // The ranks of the only node meet at a port that nobody else uses, by a secret that nobody else
  // has. The port is open before they start, and rank 0 takes it over.
  std::string secret;
  descriptor listener;
  int port = start.port;
  if (start.nodes == 1) {
    listener = listen_at(*socket_address::of_text("127.0.0.1", 0));
    if (!listener) listener = listen_at(*socket_address::of_text("::1", 0));
    if (!listener)
      throw error(exit_code::ranks,
                  "the ranks of this node cannot meet on loopback: " + reason_of(errno));
    port = socket_address::of_socket(listener.get()).port();
    secret = hexadecimal(drawn_bytes(32));
  }
  std::vector<std::string> words = detail::own_arguments();
  const std::vector<char*> arguments = detail::pointers_to(words);
  const pid_t parent = ::getpid();
  std::vector<pid_t> children;
  int failed = 0;           // the code of the first
  std::uint64_t passed = 0; // stop signals that all have got, a bit each
  const auto signal_all = [&](int number) {
    for (const pid_t child : children)
      if (child > 0) ::kill(child, number);
  };
  for (int r = 0; r < ranks; ++r) {
    std::vector<std::string> variables = detail::environment_of_rank(
        start, ranks, r, port, r == 0 && listener ? listener.get() : -1, secret);
    const std::vector<char*> environment_of_child = detail::pointers_to(variables);
    const pid_t child = ::fork();
    if (child == 0) { // only what is safe behind fork in a process of several threads
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != parent) ::_exit(128 + SIGKILL);
      for (const int number : {SIGPIPE, SIGXFSZ, SIGCHLD}) ::signal(number, SIG_DFL);
      sigset_t none;
      sigemptyset(&none);
      ::sigprocmask(SIG_SETMASK, &none, nullptr);
      if (r == 0 && listener) ::fcntl(listener.get(), F_SETFD, 0);
      ::execve("/proc/self/exe", arguments.data(), environment_of_child.data());
      ::_exit(static_cast<int>(exit_code::internal));
    }
    if (child < 0) {
      const int why = errno;
      signal_all(SIGKILL);
      throw error(exit_code::memory, "rank " + std::to_string(r) +
                                         " of this node cannot be started: " + reason_of(why) +
                                         "; raise the limit on processes (ulimit -u, pids.max of "
                                         "the control group)");
    }
    children.push_back(child);
  }
  listener.reset();
  deadline ends{};
  for (int left = ranks; left > 0;) {
    const int came = signals.next(failed == 0 ? 500 : 50);
    if (came != 0 && came != SIGCHLD) signal_all(came);
    if (came != 0 && came != SIGUSR2) passed |= std::uint64_t{1} << came;
    int status = 0;
    for (pid_t gone; (gone = ::waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto at = std::find(children.begin(), children.end(), gone);
      if (at == children.end()) continue; // another process of the container
      *at = -1;
      --left;
      int code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
      if (WIFSIGNALED(status) &&
          (passed >> WTERMSIG(status) & 1) != 0) // it had not begun to take signals
        code = static_cast<int>(exit_code::interrupted);
      else if (WIFSIGNALED(status) && failed == 0) // it could not say so itself
        std::fprintf(stderr, "rank %td of this node was ended by signal %d (%s)\n",
                     at - children.begin(), WTERMSIG(status), ::strsignal(WTERMSIG(status)));
      // Ranks that only miss another one are not the first, though they may be seen first.
      constexpr int misses = static_cast<int>(exit_code::ranks);
      if (code != 0 && (failed == 0 || (failed == misses && steady::now() < ends))) {
        if (failed == 0) ends = steady::now() + std::chrono::milliseconds(1500);
        failed = code;
      }
    }
    if (failed != 0 && steady::now() >= ends) signal_all(SIGKILL);
  }
  return failed;
}

} // namespace mc
