// The ranks of several processes, once they are connected.
#pragma once

#include <megacpp/comm/communicator.hpp>

#include <chrono>
#include <functional>

namespace mc {

/// The machine of a rank, as the ranks on it see it together.
struct machine_of_rank {
  int ranks = 1;      ///< ranks on this machine
  int place = 0;      ///< number of this rank among them
  int processors = 1; ///< processors that they may use
};

/// This process's rank, and its connection to the others. What connects them (MPI, TCP) derives
/// from it.
class connected_ranks {
public:
  using seconds = std::chrono::duration<double>;

  connected_ranks() = default;
  connected_ranks(const connected_ranks&) = delete;
  connected_ranks& operator=(const connected_ranks&) = delete;
  virtual ~connected_ranks() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual machine_of_rank machine() const = 0;
  /// Calls f(hosts) on this rank, while all other processes do the same. `patience`: how long a
  /// rank waits for another one. Throws what f throws, mc::error(exit_code::mismatch) for a mesh of
  /// another number of ranks, and mc::error(exit_code::ranks) for a rank that does not come.
  virtual void run(const mesh& m, seconds patience,
                   const std::function<void(communicator&)>& f) = 0;
  /// Parts from the other ranks, after all runs have ended well.
  virtual void finish() = 0;
  /// Waits so long for the end of this process, which another rank may be about to cause: that one
  /// tells why, and this one need not.
  virtual void wait_to_be_ended(seconds time) = 0;
  /// Ends this process with `code`, which is not 0, and has the other ranks end with it.
  [[noreturn]] virtual void end(int code) = 0;
};

} // namespace mc
