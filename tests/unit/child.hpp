// Child processes of tests, for functions that end a process, or whose effects must stay in one.
#pragma once

#include <functional>
#include <string>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

namespace test {

/// Returns the wait status of a child process that runs f, and exits with its result; it leaves no
/// core.
inline int in_child(const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    ::_exit(f());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

/// The end of a child: its status, and the first bytes of its standard error, as many as a pipe
/// holds without a reader.
struct ended_child {
  int status = 0;
  std::string said;
};
inline ended_child child_of(const std::function<int()>& f) {
  int pipe[2];
  if (::pipe(pipe) != 0) return {-1, "no pipe"};
  ended_child ended;
  ended.status = in_child([&] { return ::dup2(pipe[1], STDERR_FILENO) < 0 ? -1 : f(); });
  ::close(pipe[1]);
  ended.said.resize(4096);
  const ssize_t n = ::read(pipe[0], ended.said.data(), ended.said.size());
  ended.said.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
  ::close(pipe[0]);
  return ended;
}

} // namespace test
