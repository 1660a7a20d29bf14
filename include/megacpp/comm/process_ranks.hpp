// The processes that a launcher has started, as ranks: by MPI, or one process that has no others.
#pragma once

#include <megacpp/comm/launch.hpp>
#include <megacpp/comm/mpi.hpp>
#include <megacpp/comm/self.hpp>

#include <array>
#include <chrono>
#include <optional>
#include <string>
#include <thread>

namespace mc {

/// One in a process, used by the thread that makes it. The first process goes ahead, since what it
/// is refused all are: the others wait until it calls them.
class process_ranks {
public:
  /// Joins the others. Throws mc::error(exit_code::mismatch) where they cannot be reached.
  process_ranks() : launch_(launch_of_process()) {
    if (!several()) return;
    const std::string started =
        std::string(launch_.by) + " has started " + std::to_string(launch_.size) + " processes";
#if defined(MEGACPP_WITH_MPI)
    if (!launch_.connected)
      refuse(started +
             ", which do not know of each other: start them by srun --mpi=pmix where Slurm "
             "has it (srun --mpi=list), or by mpirun");
    mpi_.emplace();
    if (mpi_->size() != launch_.size)
      refuse(started + ", and MPI knows of " + std::to_string(mpi_->size()) +
             ": start them by the mpirun of the MPI that this program is built with, or by srun "
             "--mpi=pmix");
#else
    refuse(started +
           ", and this program is built without MPI: build it where MPI is (on Debian or "
           "Ubuntu, apt install libopenmpi-dev), or start one process with --ranks " +
           std::to_string(launch_.size));
#endif
  }
  process_ranks(const process_ranks&) = delete;
  process_ranks& operator=(const process_ranks&) = delete;

  bool several() const { return launch_.size > 1; }
  bool first() const { return launch_.rank == 0; }
  int size() const { return launch_.size; }
  /// "rank 3: " before what another process than the first says.
  static std::string who() {
    const launch l = launch_of_process();
    return l.rank > 0 ? "rank " + std::to_string(l.rank) + ": " : "";
  }
  /// Processes on this machine, of those that were started.
  int here() const {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->on_machine();
#endif
    return 1;
  }
  /// The place of this process among them.
  int place() const {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->place_on_machine();
#endif
    return 0;
  }
  /// Of `asked` threads of this machine, 0 being all processors, those of each rank.
  int threads(int asked) const {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->threads(asked);
#endif
    return asked;
  }

  /// Up to so many bytes of `word` go from the first process to the others.
  static constexpr std::size_t most_bytes = 256;
  /// By the first process: the others take part from here on, and are told a word.
  void call(const std::string& word) { tell(true, word); }
  /// By the first process: there is nothing to do for the others.
  void dismiss() {
    if (!told_) tell(false, "");
  }
  /// By another process: what the first one calls it with; none if it is dismissed.
  std::optional<std::string> called() { return tell(false, ""); }

  /// f(hosts) on this process's rank of a mesh of all.
  template <class F> void run([[maybe_unused]] const mesh& m,
                              [[maybe_unused]] std::chrono::duration<double> patience, F f) {
#if defined(MEGACPP_WITH_MPI)
    if (mpi_) return mpi_->run(m, patience, f);
#endif
    f(static_cast<communicator&>(self::hosts()));
  }

  /// The process has told what there is to tell, and ends with this code: with 0 once all others
  /// do, else all with it.
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
  /// All cannot: those beside the first leave it the time to say so, and where that ends them, the
  /// silence.
  [[noreturn]] void refuse(const std::string& sentence) const {
    if (!first()) std::this_thread::sleep_for(std::chrono::seconds(2));
    throw error(exit_code::mismatch, sentence);
  }
  mesh replicas() const { return mesh({size(), 1, 1, 1, size(), 1, 1}); }
  std::optional<std::string> tell(bool take_part, const std::string& word) {
    if (std::exchange(told_, true) || !several()) return std::nullopt;
    std::array<char, most_bytes + 1> text{};
    if (word.size() >= most_bytes)
      throw error(exit_code::internal,
                  "ranks cannot be told of " + word + ": its name is too long");
    text[0] = take_part ? 'y' : 'n';
    word.copy(text.data() + 1, most_bytes - 1);
    // The first one may have a large state to verify.
    run(replicas(), std::chrono::hours(1), [&](communicator& c) {
      c.run(
          exchange::broadcast(axis::dp, dtype::u8, text.data(), text.data(), std::ssize(text), 0));
    });
    if (text[0] != 'y') return std::nullopt;
    return std::string(text.data() + 1);
  }

  launch launch_;
  bool told_ = false;
#if defined(MEGACPP_WITH_MPI)
  std::optional<mpi_ranks> mpi_;
#endif
};

} // namespace mc
