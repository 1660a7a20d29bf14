// Questions by which waiting processes find the rank that delays them. A process asks the rank
// whose message is missing which rank that one waits for, and so on. A rank that does not answer
// computes or is stopped; one that has ended says so.
#pragma once

#include <megacpp/comm/missing_rank.hpp>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace mc {

/// The state of a rank in an exchange: what it waits for.
struct rank_wait {
  int lacks = -1;     ///< missing rank; -1: the rank is about to go on
  std::string what{}; ///< the exchange, as text
  bool ended = false; ///< the rank starts no further exchange
};

/// A question to a rank about what it waits for, or an answer: the rank has ended, or waits for
/// another one. It is plain bytes, so that it can be sent.
struct rank_note {
  enum : std::int32_t { question, waits, ended } what = question;
  std::int32_t lacks = -1;
  std::int32_t number = 0; ///< number of the question, by which its answer is known
  char text[244]{};        ///< the exchange, as text
};

/// The questions and answers of one process. A process answers only while it waits. Wire is that of
/// message_ranks.
template <class Wire> class rank_questions {
public:
  using seconds = std::chrono::duration<double>;

  explicit rank_questions(Wire& wire) : wire_(wire) {}

  /// Answers all questions that have come. `now()` returns this rank's rank_wait.
  template <class Now> void hear(const Now& now) {
    rank_note heard;
    int from = 0;
    while (wire_.hear(heard, from)) {
      if (heard.what == rank_note::question) {
        const rank_wait w = now();
        rank_note answer;
        answer.what = w.ended ? rank_note::ended : rank_note::waits;
        answer.lacks = w.lacks, answer.number = heard.number;
        w.what.copy(answer.text, sizeof answer.text - 1);
        if (w.ended || w.lacks >= 0) wire_.tell(from, answer);
      } else if (from == suspect_.rank && heard.number == asked_) {
        suspect_.says = heard.what == rank_note::ended ? suspect::has_ended : suspect::waits_too;
        suspect_.next = heard.lacks;
        suspect_.lacks.assign(heard.text, ::strnlen(heard.text, sizeof heard.text));
      }
    }
  }

  void forget() { suspect_ = {}; }
  /// Asks once in an interval of a long wait: first the missing rank, then the rank that this one
  /// waits for, and so on. Throws mc::error(exit_code::ranks) for a rank that has ended, or when
  /// patience is over.
  void look(const rank_wait& mine, seconds waited, seconds patience, seconds interval) {
    const auto named = [&](bool gone) {
      return missing_rank(suspect_.rank, gone, suspect_.what, suspect_.waits,
                          static_cast<std::int64_t>(waited.count()));
    };
    const bool asked = suspect_.rank >= 0;
    if (asked && suspect_.says == suspect::has_ended) throw named(true);
    if (asked && suspect_.says == suspect::waits_too) {
      if (waited >= patience + (wire_.size() + 2) * interval) // by then every rank was asked
        throw crossed_ranks(suspect_.waits, suspect_.rank, suspect_.what, suspect_.next,
                            suspect_.lacks);
      return ask({suspect_.next, suspect_.rank, suspect_.lacks});
    }
    if (asked && waited >= patience) throw named(false);
    if (mine.lacks >= 0) ask({mine.lacks, wire_.rank(), mine.what});
    else forget();
  }

private:
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
    rank_note question;
    question.number = ++asked_;
    wire_.tell(suspect_.rank, question);
  }

  Wire& wire_;
  suspect suspect_;
  std::int32_t asked_ = 0; ///< number of questions so far
};

} // namespace mc
