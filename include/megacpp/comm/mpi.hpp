// Messages of ranks by MPI. Units that are compiled with MEGACPP_WITH_MPI include it.
//
// MPI's own collectives are not used for what ranks compute, since they add in an order of their
// own. Messages of one communicator, sender and tag do not overtake each other (MPI 3.1, section
// 3.5).
#pragma once

#if defined(MEGACPP_WITH_MPI)

#include <megacpp/comm/message_ranks.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/threads/processors.hpp>

#include <array>
#include <chrono>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <mpi.h>
#include <sched.h>

namespace mc {

namespace detail {

/// Returns MPI's sentence about a call that failed. `rank` is printed behind `what`.
inline std::string mpi_failure(int result, const char* what, int rank = -1) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  return std::string("MPI cannot ") + what + (rank < 0 ? "" : std::to_string(rank)) + ": " +
         text.data() + "; see what other ranks say, and whether machines reach each other";
}
/// Throws mc::error(exit_code::ranks) for a call of MPI that failed.
inline void require_mpi(int result, const char* what, int rank = -1) {
  if (result != MPI_SUCCESS) throw error(exit_code::ranks, mpi_failure(result, what, rank));
}

} // namespace detail

/// Returns which MPI the program is linked with. MPI need not have been started.
inline mpi_library library_of_mpi() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return std::string_view(text.data()).starts_with("Open MPI") ? mpi_library::open_mpi
                                                               : mpi_library::mpich;
}

/// The wire of processes that mpirun or srun has started (message_ranks).
class mpi_wire {
public:
  /// A message that is sent or received, with its other rank.
  struct transfer {
    MPI_Request of_mpi = MPI_REQUEST_NULL;
    int peer = -1;
    bool receives = false;
  };

  /// Throws mc::error(exit_code::ranks) if MPI fails or does not allow further threads.
  mpi_wire() {
    int level = 0;
    detail::require_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level), "start");
    detail::require_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "tell errors");
    if (level < MPI_THREAD_FUNNELED)
      throw error(exit_code::ranks,
                  "this MPI is not made for programs of several threads (it offers level " +
                      std::to_string(level) + "): take one that is, such as OpenMPI");
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    for (MPI_Comm* const c : {&planes_[0], &planes_[1], &notes_})
      detail::require_mpi(MPI_Comm_dup(MPI_COMM_WORLD, c), "make a communicator");
    listen();
    int* highest = nullptr;
    int has = 0;
    MPI_Comm_get_attr(planes_[0], MPI_TAG_UB, static_cast<void*>(&highest), &has);
    if (has != 0) highest_tag_ = *highest;
    look_at_machine();
  }
  mpi_wire(const mpi_wire&) = delete;
  mpi_wire& operator=(const mpi_wire&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const machine_of_rank& machine() const { return machine_; }
  int highest_tag() const { return highest_tag_; }

  transfer send(plane p, int to, int tag, const std::byte* from, std::int64_t bytes) {
    transfer q{.peer = to};
    detail::require_mpi(
        MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to, tag, of(p), &q.of_mpi),
        "send to rank ", to);
    return q;
  }
  transfer receive(plane p, int from, int tag, std::byte* to, std::int64_t bytes) {
    transfer q{.peer = from, .receives = true};
    detail::require_mpi(
        MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from, tag, of(p), &q.of_mpi),
        "receive from rank ", from);
    return q;
  }
  void hand_over() const {} // MPI has sent what it could
  moved_messages moved(std::span<transfer> all, std::span<std::int64_t> bytes) {
    pending_.clear();
    for (const transfer& q : all) pending_.push_back(q.of_mpi);
    states_.resize(std::max(states_.size(), all.size()));
    int done = 0;
    const int result =
        MPI_Testall(static_cast<int>(all.size()), pending_.data(), &done, states_.data());
    for (std::size_t i = 0; i < all.size(); ++i) all[i].of_mpi = pending_[i];
    if (result != MPI_SUCCESS) return failure(all, result);
    if (done == 0) return {};
    for (std::size_t i = 0; i < all.size(); ++i) {
      int n = 0;
      if (all[i].receives) MPI_Get_count(&states_[i], MPI_BYTE, &n);
      bytes[i] = n;
    }
    return {.state = moved_messages::all_here};
  }
  bool is_done(const transfer& q) const {
    int here = 0;
    MPI_Status state;
    return MPI_Request_get_status(q.of_mpi, &here, &state) != MPI_SUCCESS || here != 0;
  }
  bool are_sent(std::span<transfer> all) noexcept {
    bool gone = true;
    for (transfer& q : all) {
      if (q.of_mpi == MPI_REQUEST_NULL) continue;
      int done = 0;
      if (q.receives) MPI_Cancel(&q.of_mpi);
      gone &= MPI_Test(&q.of_mpi, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0;
    }
    return gone;
  }
  void give_up() const noexcept {} // MPI ends when this process does

  /// Sends a note, or drops it if many are under way: a question without an answer is asked again.
  void tell(int other, const rank_note& n) {
    for (sent_note& s : sent_) {
      int gone = 1;
      if (s.pending != MPI_REQUEST_NULL) MPI_Test(&s.pending, &gone, MPI_STATUS_IGNORE);
      if (gone == 0) continue;
      s.text = n;
      detail::require_mpi(MPI_Isend(&s.text, sizeof s.text, MPI_BYTE, other, 0, notes_, &s.pending),
                          "ask rank ", other);
      return;
    }
  }
  bool hear(rank_note& heard, int& from) {
    int came = 0;
    MPI_Status state;
    detail::require_mpi(MPI_Test(&heard_, &came, &state), "listen to other ranks");
    if (came == 0) return false;
    heard = note_, from = state.MPI_SOURCE;
    listen();
    return true;
  }
  void advance() const {} // MPI ends a process by itself
  void rest(std::chrono::microseconds nap) const { std::this_thread::sleep_for(nap); }

  void finish() {
    MPI_Cancel(&heard_);
    MPI_Wait(&heard_, MPI_STATUS_IGNORE);
    for (sent_note& s : sent_) // notes are short enough to be gone already
      if (s.pending != MPI_REQUEST_NULL) MPI_Wait(&s.pending, MPI_STATUS_IGNORE);
    for (MPI_Comm* const c : {&notes_, &planes_[0], &planes_[1]}) MPI_Comm_free(c);
    MPI_Finalize();
  }
  /// Ends all processes; the launcher exits with `code`.
  [[noreturn]] void end(int code) {
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
  }

private:
  struct sent_note {
    rank_note text;
    MPI_Request pending = MPI_REQUEST_NULL;
  };

  MPI_Comm of(plane p) const { return planes_[static_cast<unsigned>(p)]; }
  void listen() {
    detail::require_mpi(
        MPI_Irecv(&note_, sizeof note_, MPI_BYTE, MPI_ANY_SOURCE, 0, notes_, &heard_),
        "listen to other ranks");
  }
  moved_messages failure(std::span<const transfer> all, int result) const {
    for (std::size_t i = 0; i < all.size() && result == MPI_ERR_IN_STATUS; ++i) {
      const int wrong = states_[i].MPI_ERROR;
      if (wrong == MPI_SUCCESS || wrong == MPI_ERR_PENDING) continue;
      int kind = 0;
      MPI_Error_class(wrong, &kind);
      return {moved_messages::failed, i,
              kind == MPI_ERR_TRUNCATE ? moved_messages::too_long : moved_messages::other,
              detail::mpi_failure(wrong, "reach rank ", all[i].peer)};
    }
    return {moved_messages::failed, 0, moved_messages::other,
            detail::mpi_failure(result, "move messages")};
  }

  /// Finds the ranks of this machine, and the processors that these have together.
  void look_at_machine() {
    MPI_Comm machine = MPI_COMM_NULL;
    detail::require_mpi(
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &machine),
        "find the ranks of a machine");
    MPI_Comm_size(machine, &machine_.ranks);
    MPI_Comm_rank(machine, &machine_.place);
    cpu_set_t mine;
    CPU_ZERO(&mine);
    ::sched_getaffinity(0, sizeof mine, &mine);
    static_assert(sizeof mine % sizeof(long) == 0);
    cpu_set_t all;
    detail::require_mpi(
        MPI_Allreduce(&mine, &all, sizeof mine / sizeof(long), MPI_LONG, MPI_BOR, machine),
        "find the processors of a machine");
    MPI_Comm_free(&machine);
    machine_.processors = processors_of(mine, all);
  }

  int rank_ = 0, size_ = 1;
  machine_of_rank machine_;
  MPI_Comm planes_[2]{MPI_COMM_NULL, MPI_COMM_NULL}; ///< MPI's communicators for hosts and for
                                                     ///< ranks
  MPI_Comm notes_ = MPI_COMM_NULL;
  int highest_tag_ = 32767; ///< highest tag of the MPI library; each has 32767
  std::vector<MPI_Request> pending_;
  std::vector<MPI_Status> states_;
  rank_note note_;
  MPI_Request heard_ = MPI_REQUEST_NULL;
  std::array<sent_note, 16> sent_;
};

using mpi_ranks = message_ranks<mpi_wire>;

} // namespace mc

#endif
