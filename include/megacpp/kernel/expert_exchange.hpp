// How rows go to the ranks that have their experts, and back (op/experts.hpp). On their way they
// lie by rank: those of a rank's choices by the rank of the expert, and once more for every other
// rank of etp; those of a rank's experts by the rank that they are of. Between two ranks they are
// in the order of the rows.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/comm/rank_order.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/op/experts.hpp>

#include <algorithm>
#include <cstring>
#include <span>

namespace mc::detail {

/// What a round is, as the nodes between dispatch and combine see it.
struct round_of_rows {
  std::int64_t base = 0; ///< the first row of the round among all rows of the rank
  std::int64_t rows = 0; ///< R
  std::int64_t used = 0; ///< rows of the round that hold a choice

  round_of_rows(std::int64_t rows_of_round, int round, const std::int32_t* counts, std::int64_t n)
      : base(round * rows_of_round), rows(rows_of_round) {
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += counts[i];
    used = std::clamp<std::int64_t>(total - base, 0, rows);
  }
};

/// Where the operands of dispatch or combine lie, and what they are.
struct crossing_operands {
  const mesh& ranks;
  const value &experts, &counted; ///< operands 1 and 3
  const std::int32_t *chosen, *row, *counts;
  std::int64_t choices;
  std::byte* scratch; ///< output 1

  template <class Call> explicit crossing_operands(Call& c)
      : ranks(c.ranks()),
        experts(c.value_in(1)),
        counted(c.value_in(3)),
        chosen(c.template in<std::int32_t>(1)),
        row(c.template in<std::int32_t>(2)),
        counts(c.template in<std::int32_t>(3)),
        choices(c.in_size(2)),
        scratch(c.template out<std::byte>(1)) {}
};

/// A round's exchange, of rows of `width` elements.
template <class T> class expert_exchange {
public:
  expert_exchange(const crossing_operands& c, const round_of_rows& r, std::int64_t width)
      : width_(width), etp_(c.ranks.of(axis::etp)) {
    const std::int64_t experts = c.counted.dims[1].n;
    ranks_ = ranks_of(c.ranks, op::expert_group);
    mine_ = experts * etp_ / ranks_, apart_ = c.counted.dims[2].n / ranks_;
    const op::exchange_scratch lies(c.ranks, c.experts, experts, r.rows,
                                    width * std::int64_t{sizeof(T)});
    std::byte* const at = c.scratch;
    gives_ = reinterpret_cast<std::int64_t*>(at + lies.of_ranks);
    takes_ = gives_ + ranks_, next_ = takes_ + ranks_;
    parts_ = reinterpret_cast<const void**>(next_ + ranks_);
    place_ = reinterpret_cast<std::int32_t*>(at + lies.of_choices);
    chosen_ = reinterpret_cast<T*>(at + lies.chosen), rows_ = reinterpret_cast<T*>(at + lies.rows);
    base_ = r.base, end_ = r.base + r.rows, counts_ = c.counts;
    place_choices({c.chosen, static_cast<std::size_t>(c.choices)}, c.row, experts,
                  reinterpret_cast<std::int32_t*>(at + lies.of_experts));
    std::fill_n(takes_, ranks_, 0);
    each_run([&](std::int64_t, std::int64_t n, std::int64_t q) { takes_[q] += n * width_; });
  }

  /// Rows of this rank's choices on their way, in number; where each choice is among them, -1: in
  /// another round or dropped.
  std::int64_t chosen() const { return sent_; }
  const std::int32_t* place() const { return place_; }
  T* rows_of_choices() const { return chosen_; }

  /// What lies in the first place of each choice goes to the ranks of its expert.
  void go(communicator& to, source_line line, T* rows) const {
    each_rank_of_ep([&](T* first, std::int64_t elements) {
      for (std::int64_t t = 1; t < etp_; ++t)
        std::memcpy(static_cast<void*>(first + t * elements), first, bytes(elements));
    });
    to.run(exchange::all_to_all(op::expert_group, dtype_of<T>, chosen_, rows_, counts(gives_),
                                counts(takes_), line));
    each_piece([&](std::int64_t row, T* piece, std::int64_t n) {
      std::memcpy(static_cast<void*>(rows + row * width_), piece, bytes(n * width_));
    });
  }
  /// The rows of this rank's experts go to the ranks that they are of; what came back of every
  /// choice, a sum over etp, lies in its first place.
  void come_back(communicator& to, source_line line, const T* rows) const {
    each_piece([&](std::int64_t row, T* piece, std::int64_t n) {
      std::memcpy(static_cast<void*>(piece), rows + row * width_, bytes(n * width_));
    });
    to.run(exchange::all_to_all(op::expert_group, dtype_of<T>, rows_, chosen_, counts(takes_),
                                counts(gives_), line));
    each_rank_of_ep([&](T* first, std::int64_t elements) {
      for (std::int64_t t = 0; t < etp_; ++t) parts_[t] = first + t * elements;
      sum_in_rank_order(dtype_of<T>, {parts_, static_cast<std::size_t>(etp_)}, first, elements);
    });
  }

private:
  static std::size_t bytes(std::int64_t elements) {
    return static_cast<std::size_t>(elements) * sizeof(T);
  }
  std::span<const std::int64_t> counts(const std::int64_t* of) const {
    return {of, static_cast<std::size_t>(ranks_)};
  }

  /// This rank's rows of an expert have numbers that follow each other; `numbers`: two an expert.
  void place_choices(std::span<const std::int32_t> experts, const std::int32_t* row,
                     std::int64_t count, std::int32_t* numbers) {
    std::int32_t *const first = numbers, *const how_many = numbers + count;
    std::fill_n(numbers, 2 * count, 0);
    for (std::size_t i = 0; i < experts.size(); ++i) {
      if (row[i] < base_ || row[i] >= end_) continue;
      const std::int32_t e = experts[i];
      if (how_many[e]++ == 0 || row[i] < first[e]) first[e] = row[i];
    }
    for (std::int64_t q = 0; q < ranks_; q += etp_) {
      std::int64_t n = 0;
      for (std::int64_t e = q / etp_ * mine_; e < (q / etp_ + 1) * mine_; ++e) {
        first[e] = static_cast<std::int32_t>(sent_ + n - first[e]);
        n += how_many[e];
      }
      std::fill_n(gives_ + q, etp_, n * width_);
      sent_ += n * etp_;
    }
    for (std::size_t i = 0; i < experts.size(); ++i)
      place_[i] = row[i] < base_ || row[i] >= end_ ? -1 : first[experts[i]] + row[i];
  }
  /// f(row of the round, how many from there on, rank that they are of).
  template <class F> void each_run(F f) const {
    std::int64_t row = 0;
    for (std::int64_t i = 0; i < mine_ * ranks_; ++i) {
      const std::int64_t first = std::clamp(row, base_, end_);
      for (std::int64_t k = 0; k < apart_; ++k) row += counts_[i * apart_ + k];
      const std::int64_t n = std::clamp(row, base_, end_) - first;
      if (n > 0) f(first - base_, n, i % ranks_);
    }
  }
  /// f(row of the round, where it and those behind it lie on their way, how many).
  template <class F> void each_piece(F f) const {
    for (std::int64_t q = 0, at = 0; q < ranks_; at += takes_[q++]) next_[q] = at;
    each_run([&](std::int64_t row, std::int64_t n, std::int64_t q) {
      f(row, rows_ + next_[q], n);
      next_[q] += n * width_;
    });
  }
  /// f(where the rows for a rank of ep lie, their elements): as many for each of its ranks of etp.
  template <class F> void each_rank_of_ep(F f) const {
    T* at = chosen_;
    for (std::int64_t q = 0; q < ranks_; q += etp_) {
      f(at, gives_[q]);
      at += etp_ * gives_[q];
    }
  }

  std::int64_t width_, etp_, ranks_ = 1;
  std::int64_t mine_ = 0;  ///< experts of this rank
  std::int64_t apart_ = 1; ///< counts of an expert's rows from one rank
  std::int64_t base_ = 0, end_ = 0, sent_ = 0;
  const std::int32_t* counts_ = nullptr;
  std::int64_t *gives_ = nullptr, *takes_ = nullptr; ///< elements for and from each rank
  std::int64_t* next_ = nullptr;
  const void** parts_ = nullptr;
  std::int32_t* place_ = nullptr;
  T *chosen_ = nullptr, *rows_ = nullptr;
};

} // namespace mc::detail
