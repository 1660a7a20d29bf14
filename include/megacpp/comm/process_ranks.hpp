// The processes that a launcher has started, as ranks that MPI connects; or a single process
// without a launcher.
#pragma once

#include <megacpp/comm/mpi.hpp>
#include <megacpp/comm/process_start.hpp>
#include <megacpp/comm/self.hpp>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

namespace mc {

/// A process has one such object, which the thread that makes it uses alone. The first process goes
/// ahead and checks what all need; the others wait until it calls them.
class process_ranks {
public:
  /// Joins the other processes. Throws mc::error(exit_code::mismatch) if they cannot be reached.
  process_ranks() : start_(start_of_process()) {
    if (!several()) return;
    const std::string started =
        std::string(start_.by) + " has started " + std::to_string(start_.size) + " processes";
#if defined(MEGACPP_WITH_MPI)
    if (!start_.connected)
      refuse(started +
             ", which do not know of each other: start them by srun --mpi=pmix where Slurm "
             "has it (srun --mpi=list), or by mpirun");
    mpi_.emplace();
    if (mpi_->size() != start_.size)
      refuse(started + ", and MPI knows of " + std::to_string(mpi_->size()) +
             ": start them by the mpirun of the MPI that this program is built with, or by srun "
             "--mpi=pmix");
#else
    refuse(started +
           ", and this program is built without MPI: build it where MPI is (on Debian or "
           "Ubuntu, apt install libopenmpi-dev), or start one process with --ranks " +
           std::to_string(start_.size));
#endif
  }
  process_ranks(const process_ranks&) = delete;
  process_ranks& operator=(const process_ranks&) = delete;

  bool several() const { return start_.size > 1; }
  bool first() const { return start_.rank == 0; }
  int size() const { return start_.size; }
  /// Returns "rank 3: ", with which the messages of a process other than the first begin; "" for
  /// the first.
  static std::string who() {
    const process_start start = start_of_process();
    return start.rank > 0 ? "rank " + std::to_string(start.rank) + ": " : "";
  }
  /// Returns the number of processes of this run on this machine.
  int here() const {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->on_machine();
#endif
    return 1;
  }
  /// Returns the number of this process among those on its machine.
  int place() const {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->place_on_machine();
#endif
    return 0;
  }
  /// Returns the threads for each rank, of `asked` threads on this machine. 0 asks for all
  /// processors.
  int threads(int asked) const {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->threads(asked);
#endif
    return asked;
  }

  /// Longest `message` that the first process sends to the others, in bytes.
  static constexpr std::size_t most_bytes = 256;
  /// The first process calls the others, which do the same work from here on, and sends them a
  /// message.
  void call(const std::string& message) { tell(true, message); }
  /// The first process tells the others that there is nothing to do.
  void dismiss() {
    if (!told_) tell(false, "");
  }
  /// Another process waits for the first, and returns the message that it is called with; nothing
  /// if it is dismissed.
  std::optional<std::string> called() { return tell(false, ""); }

  /// Calls f(hosts) on this process's rank of a mesh of all processes.
  template <class F> void run([[maybe_unused]] const mesh& m,
                              [[maybe_unused]] std::chrono::duration<double> patience, F f) {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->run(m, patience, f);
#endif
    f(static_cast<communicator&>(self::hosts()));
  }

  /// Ends this process, which has printed all its messages. With code 0 it waits until all others
  /// end, too; another code ends all processes.
  void end([[maybe_unused]] int code) {
#if defined(MEGACPP_WITH_MPI)
    if (!mpi_) return;
    if (code != 0) mpi_ranks::end(code);
    if (first()) dismiss();
    constexpr auto as_long_as_it_takes = std::chrono::hours(24 * 365);
    mpi_->run(replicas(), as_long_as_it_takes, [](communicator&) {});
    mpi_->finish();
#endif
  }

private:
  /// Throws on every process. The others leave the first one time to print its sentence, which ends
  /// them.
  [[noreturn]] void refuse(const std::string& sentence) const {
    if (!first()) std::this_thread::sleep_for(std::chrono::seconds(2));
    throw error(exit_code::mismatch, sentence);
  }
  mesh replicas() const { return mesh({size(), 1, 1, 1, size(), 1, 1}); }
  std::optional<std::string> tell(bool others_work, const std::string& message) {
    if (std::exchange(told_, true) || !several()) return std::nullopt;
    std::array<char, most_bytes + 1> text{};
    if (message.size() >= most_bytes)
      throw error(exit_code::internal,
                  "ranks cannot be told of " + message + ": its name is too long");
    text[0] = others_work ? 'y' : 'n';
    message.copy(text.data() + 1, most_bytes - 1);
    // The first process may have a large state to verify.
    run(replicas(), std::chrono::hours(1), [&](communicator& c) {
      c.run(
          exchange::broadcast(axis::dp, dtype::u8, text.data(), text.data(), std::ssize(text), 0));
    });
    if (text[0] != 'y') return std::nullopt;
    return std::string(text.data() + 1);
  }

  process_start start_;
  bool told_ = false;
#if defined(MEGACPP_WITH_MPI)
  std::optional<mpi_ranks> mpi_;
#endif
};

} // namespace mc
