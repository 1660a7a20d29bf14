// The exchange of rows with the ranks that have their experts, and back (op/experts.hpp). On their
// way, rows are stored by rank: the rows of a rank's choices by the rank of the expert, with a copy
// for every other rank of etp; the rows of a rank's experts by the rank that they came from.
// Between two ranks they keep the order of the rows.
//
// All of this follows from the counts of experts. The host reads its mirror of the counts, tells
// the communicator how much goes to and comes from each rank, and gives the bodies two tables:
// where the rows of a piece are, and the difference between the number of a choice's row and its
// place.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/op/experts.hpp>

#include <algorithm>
#include <span>

namespace mc::detail {

/// The counts of experts as the host of one rank sees them.
class seen_counts {
public:
  /// Reads the mirror of operand `counts` of the call's op (op_info::seen).
  template <class Call, class Name> seen_counts(const Call& c, Name counts)
      : all_(c.mirrored(counts)),
        experts_(c.value_of(counts).dims[1].n),
        sequences_(c.value_of(counts).dims[2].n),
        ep_(c.ranks().of(axis::ep)),
        etp_(c.ranks().of(axis::etp)),
        at_(c.coordinate()) {}

  /// Return the number of all experts, the number of one rank's experts, and the first expert of
  /// this rank.
  std::int64_t experts() const { return experts_; }
  std::int64_t mine() const { return experts_ / ep_; }
  std::int64_t first() const { return at_[static_cast<unsigned>(axis::ep)] * mine(); }
  /// Return the number of ranks that share experts, and the number of this rank among them.
  std::int64_t ranks() const { return ep_ * etp_; }
  std::int64_t rank() const {
    return at_[static_cast<unsigned>(axis::ep)] * etp_ + at_[static_cast<unsigned>(axis::etp)];
  }
  std::int64_t etp() const { return etp_; }
  /// Returns the counts of one expert for each sequence; those of a rank are side by side.
  std::span<const std::int32_t> of(std::int64_t expert) const {
    return {all_ + expert * sequences_, static_cast<std::size_t>(sequences_)};
  }
  std::int64_t sequences() const { return sequences_; }
  /// Returns the number of rows that one expert gets from one rank.
  std::int64_t from(std::int64_t expert, std::int64_t rank) const {
    const std::int64_t apart = sequences_ / ranks();
    std::int64_t n = 0;
    for (std::int64_t k = 0; k < apart; ++k) n += all_[expert * sequences_ + rank * apart + k];
    return n;
  }
  /// Returns the number of rows that this rank's experts get.
  std::int64_t rows() const {
    std::int64_t n = 0;
    for (std::int64_t e = first(); e < first() + mine(); ++e)
      for (const std::int32_t x : of(e)) n += x;
    return n;
  }

private:
  const std::int32_t* all_;
  std::int64_t experts_, sequences_, ep_, etp_;
  coordinates at_;
};

/// A round of expert rows, as the nodes between dispatch and combine see it.
struct round_of_rows {
  std::int64_t base = 0; ///< the first row of the round among all rows of the rank
  std::int64_t rows = 0; ///< number of rows of a round, R
  std::int64_t used = 0; ///< number of rows of the round that hold a choice

  round_of_rows(std::int64_t rows_of_round, int round, const seen_counts& counts)
      : base(round * rows_of_round),
        rows(rows_of_round),
        used(std::clamp<std::int64_t>(counts.rows() - base, 0, rows)) {}
};

/// The exchange, between ranks, of the rows of one round, each of `width` elements.
template <class T> class expert_exchange {
public:
  /// Prepares the exchange for a call of dispatch or combine; `In` names the call's inputs.
  template <class Call, class In> expert_exchange(Call& c, type_tag<In>, const seen_counts& counts,
                                                  const round_of_rows& r, std::int64_t width)
      : width_(width), etp_(counts.etp()), ranks_(counts.ranks()), choices_(c.size(In::row)) {
    const op::exchange_scratch lies(c.ranks(), c.value_of(In::experts), counts.experts(), r.rows,
                                    width * std::int64_t{sizeof(T)});
    std::byte* const at = c.declared_scratch();
    gives_ = reinterpret_cast<std::int64_t*>(c.host_room()), takes_ = gives_ + ranks_;
    std::byte* const tables = reinterpret_cast<std::byte*>(takes_ + ranks_);
    pieces_ = counts.mine() * ranks_;
    make_tables(counts, r, reinterpret_cast<rows::piece_of_rows*>(tables + lies.of_senders),
                reinterpret_cast<std::int64_t*>(tables + lies.of_experts));
    c.lane().write(at, tables, lies.tables);
    piece_ = reinterpret_cast<const rows::piece_of_rows*>(at + lies.of_senders);
    place_ = reinterpret_cast<std::int32_t*>(at + lies.of_choices);
    chosen_ = reinterpret_cast<T*>(at + lies.chosen), rows_ = reinterpret_cast<T*>(at + lies.rows);
    for_blocks(
        c.lane(), choices_,
        rows::place_choices{choices_, r.base, r.base + r.rows, c.in(In::experts), c.in(In::row),
                            reinterpret_cast<const std::int64_t*>(at + lies.of_experts), place_});
  }

  /// Return the number of rows of this rank's choices on their way; the place of each choice among
  /// them, -1 for a choice in another round or dropped; and the rows.
  std::int64_t chosen() const { return sent_; }
  const std::int32_t* place() const { return place_; }
  T* rows_of_choices() const { return chosen_; }

  /// Sends the rows of choices, each in its first place, to the ranks of their experts.
  template <class Device> void go(Device& on, communicator& to, source_line line, T* rows) const {
    each_rank_of_ep([&](T* first, std::int64_t elements) {
      for (std::int64_t t = 1; t < etp_; ++t)
        for_blocks(on, elements, rows::copy_block<T>{elements, first, first + t * elements});
    });
    to.run(on, exchange::all_to_all(op::expert_group, dtype_of<T>, chosen_, rows_, counts(gives_),
                                    counts(takes_), line));
    for_rows(on, pieces_, rows::rows_from_way<T>{width_, piece_, rows_, rows});
  }
  /// Sends the rows of this rank's experts back to the ranks of their choices. Each choice's row,
  /// summed over etp, arrives in its first place.
  template <class Device>
  void come_back(Device& on, communicator& to, source_line line, const T* rows) const {
    for_rows(on, pieces_, rows::rows_to_way<T>{width_, piece_, rows, rows_});
    to.run(on, exchange::all_to_all(op::expert_group, dtype_of<T>, rows_, chosen_, counts(takes_),
                                    counts(gives_), line));
    each_rank_of_ep([&](T* first, std::int64_t elements) {
      if (etp_ > 1) for_blocks(on, elements, rows::sum_of_copies<T>{elements, etp_, first});
    });
  }

private:
  std::span<const std::int64_t> counts(const std::int64_t* of) const {
    return {of, static_cast<std::size_t>(ranks_)};
  }

  /// The overlap of rows [row, row + n) with this round: its first row, and the number of rows.
  struct overlap {
    std::int64_t first, n;
    overlap(const round_of_rows& r, std::int64_t row, std::int64_t count)
        : first(std::clamp(row, r.base, r.base + r.rows)),
          n(std::clamp(row + count, r.base, r.base + r.rows) - first) {}
  };

  /// Makes the tables. The rows of a rank are sorted by expert, then by the rank that sends them.
  /// On the way the rows of a rank follow those of the rank before.
  void make_tables(const seen_counts& counts, const round_of_rows& r, rows::piece_of_rows* piece,
                   std::int64_t* shift) {
    const std::int64_t mine = counts.mine(), me = counts.rank();
    std::fill_n(gives_, 2 * ranks_, 0);
    for (std::int64_t row = 0, e = 0; e < mine; ++e)
      for (std::int64_t q = 0; q < ranks_; ++q) {
        const std::int64_t n = counts.from(counts.first() + e, q);
        const overlap here(r, row, n);
        piece[e * ranks_ + q] = {here.first - r.base, takes_[q], here.n};
        takes_[q] += here.n * width_, row += n;
      }
    for (std::int64_t before = 0, q = 0; q < ranks_; before += takes_[q++])
      for (std::int64_t e = 0; e < mine; ++e) piece[e * ranks_ + q].at += before;
    for (std::int64_t q = 0; q < ranks_; q += etp_) {
      std::int64_t row = 0, n = 0; // rows of that rank so far; rows that this rank sends it
      for (std::int64_t e = q / etp_ * mine; e < (q / etp_ + 1) * mine; ++e)
        for (std::int64_t from = 0; from < ranks_; ++from) {
          const std::int64_t count = counts.from(e, from);
          if (from == me) {
            const overlap here(r, row, count);
            shift[e] = sent_ + n - here.first;
            n += here.n;
          }
          row += count;
        }
      std::fill_n(gives_ + q, etp_, n * width_);
      sent_ += n * etp_;
    }
  }
  /// Calls f(the rows for a rank of ep, their elements); each of that rank's etp ranks gets a copy.
  template <class F> void each_rank_of_ep(F f) const {
    T* at = chosen_;
    for (std::int64_t q = 0; q < ranks_; q += etp_) {
      f(at, gives_[q]);
      at += etp_ * gives_[q];
    }
  }

  std::int64_t width_, etp_, ranks_, choices_;
  std::int64_t sent_ = 0, pieces_ = 0;
  std::int64_t *gives_ = nullptr,
               *takes_ = nullptr; ///< elements for and from each rank, in memory of the host
  const rows::piece_of_rows* piece_ = nullptr;
  std::int32_t* place_ = nullptr;
  T *chosen_ = nullptr, *rows_ = nullptr;
};

} // namespace mc::detail
