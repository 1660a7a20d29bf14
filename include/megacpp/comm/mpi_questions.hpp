// Questions by which waiting processes find the rank that delays them. A process asks the rank
// whose message is missing which rank that one waits for, and so on. A rank that does not answer
// computes or is stopped; one that has ended says so.
#pragma once

#if defined(MEGACPP_WITH_MPI)

#include <megacpp/comm/missing_rank.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include <mpi.h>

namespace mc {

namespace detail {

/// Throws mc::error(exit_code::ranks) with MPI's sentence about a call that failed. `rank` is
/// printed behind `what`.
inline void require_mpi(int result, const char* what, int rank = -1) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw error(exit_code::ranks,
              std::string("MPI cannot ") + what + (rank < 0 ? "" : std::to_string(rank)) + ": " +
                  text.data() +
                  "; see what other ranks say, and whether machines reach each other");
}

} // namespace detail

/// The state of a rank in an exchange: what it waits for.
struct mpi_wait {
  int lacks = -1;     ///< missing rank; -1: the rank is about to go on
  std::string what{}; ///< the exchange, as text
  bool ended = false; ///< the rank starts no further exchange
};

/// The questions and answers of one process, in messages of their own. A process answers only while
/// it waits.
class mpi_questions {
public:
  using seconds = std::chrono::duration<double>;

  /// All processes construct it at the same time.
  mpi_questions() {
    detail::require_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &among_), "make a communicator");
    MPI_Comm_rank(among_, &rank_);
    MPI_Comm_size(among_, &size_);
    listen();
  }
  mpi_questions(const mpi_questions&) = delete;
  mpi_questions& operator=(const mpi_questions&) = delete;
  void close() {
    MPI_Cancel(&heard_);
    MPI_Wait(&heard_, MPI_STATUS_IGNORE);
    for (sent_note& s : sent_) // notes are short enough to be gone already
      if (s.pending != MPI_REQUEST_NULL) MPI_Wait(&s.pending, MPI_STATUS_IGNORE);
    MPI_Comm_free(&among_);
  }

  /// Answers all questions that have come. `now()` returns this rank's mpi_wait.
  template <class Now> void hear(const Now& now) {
    for (;;) {
      int came = 0;
      MPI_Status state;
      detail::require_mpi(MPI_Test(&heard_, &came, &state), "listen to other ranks");
      if (came == 0) return;
      const note heard = note_;
      listen();
      if (heard.what == note::question) {
        const mpi_wait w = now();
        note answer;
        answer.what = w.ended ? note::ended : note::waits;
        answer.lacks = w.lacks, answer.number = heard.number;
        w.what.copy(answer.text, sizeof answer.text - 1);
        if (w.ended || w.lacks >= 0) tell(state.MPI_SOURCE, answer);
      } else if (state.MPI_SOURCE == suspect_.rank && heard.number == asked_) {
        suspect_.says = heard.what == note::ended ? suspect::has_ended : suspect::waits_too;
        suspect_.next = heard.lacks;
        suspect_.lacks.assign(heard.text, ::strnlen(heard.text, sizeof heard.text));
      }
    }
  }

  void forget() { suspect_ = {}; }
  /// Asks once in an interval of a long wait: first the missing rank, then the rank that this one
  /// waits for, and so on. Throws mc::error(exit_code::ranks) for a rank that has ended, or when
  /// patience is over.
  void look(const mpi_wait& mine, seconds waited, seconds patience, seconds interval) {
    const auto named = [&](bool gone) {
      return missing_rank(suspect_.rank, gone, suspect_.what, suspect_.waits,
                          static_cast<std::int64_t>(waited.count()));
    };
    const bool asked = suspect_.rank >= 0;
    if (asked && suspect_.says == suspect::has_ended) throw named(true);
    if (asked && suspect_.says == suspect::waits_too) {
      if (waited >= patience + (size_ + 2) * interval) // by then every rank was asked
        throw crossed_ranks(suspect_.waits, suspect_.rank, suspect_.what, suspect_.next,
                            suspect_.lacks);
      return ask({suspect_.next, suspect_.rank, suspect_.lacks});
    }
    if (asked && waited >= patience) throw named(false);
    if (mine.lacks >= 0) ask({mine.lacks, rank_, mine.what});
    else forget();
  }

private:
  /// A question to a rank about what it waits for, or an answer: the rank has ended, or waits for
  /// another one.
  struct note {
    enum : std::int32_t { question, waits, ended } what = question;
    std::int32_t lacks = -1;
    std::int32_t number = 0; ///< number of the question, by which its answer is known
    char text[244]{};        ///< the exchange, as text
  };
  struct sent_note {
    note text;
    MPI_Request pending = MPI_REQUEST_NULL;
  };
  /// A rank that others wait for, as far as this process knows.
  struct suspect {
    int rank = -1, waits = -1; ///< the missing rank, and a rank that waits for it
    std::string what{};        ///< exchange in which the rank is missing
    enum : std::uint8_t { asked, waits_too, has_ended } says = asked;
    int next = -1;       ///< rank that the missing one waits for
    std::string lacks{}; ///< exchange in which the missing rank waits
  };

  void ask(suspect s) {
    suspect_ = std::move(s);
    note question;
    question.number = ++asked_;
    tell(suspect_.rank, question);
  }
  void listen() {
    detail::require_mpi(
        MPI_Irecv(&note_, sizeof note_, MPI_BYTE, MPI_ANY_SOURCE, 0, among_, &heard_),
        "listen to other ranks");
  }
  /// Sends a note, or drops it if many are under way: a question without an answer is asked again.
  void tell(int other, const note& n) {
    for (sent_note& s : sent_) {
      int gone = 1;
      if (s.pending != MPI_REQUEST_NULL) MPI_Test(&s.pending, &gone, MPI_STATUS_IGNORE);
      if (gone == 0) continue;
      s.text = n;
      detail::require_mpi(MPI_Isend(&s.text, sizeof s.text, MPI_BYTE, other, 0, among_, &s.pending),
                          "ask rank ", other);
      return;
    }
  }

  MPI_Comm among_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  suspect suspect_;
  std::int32_t asked_ = 0; ///< number of questions so far
  note note_;
  MPI_Request heard_ = MPI_REQUEST_NULL;
  std::array<sent_note, 16> sent_;
};

} // namespace mc

#endif
