// Micro-batches of a sample set, read ahead of whoever computes with them.
#pragma once

#include <megacpp/data/sample_set.hpp>
#include <megacpp/threads/own_thread.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace mc {

/// The integers of one micro-batch, each (B, S).
class micro_batch {
public:
  micro_batch(std::int64_t rows, std::int64_t sequence)
      : sequence_(static_cast<std::size_t>(sequence)),
        ints_(4 * static_cast<std::size_t>(rows) * sequence_) {}

  std::int64_t rows() const { return static_cast<std::int64_t>(ints_.size() / (4 * sequence_)); }
  std::span<std::int32_t> tokens() { return part(0); }
  std::span<std::int32_t> labels() { return part(1); }
  std::span<std::int32_t> positions() { return part(2); }
  std::span<std::int32_t> documents() { return part(3); }

  /// Samples first ... first + B - 1 of a set, as below.
  void fill(const sample_set& set, std::int64_t first) {
    fill_rows(set, [first](std::int64_t b) { return first + b; });
  }
  /// Row b holds sample number_of(b) of a set; one that it does not have is token 0 and no label.
  template <class Number> void fill_rows(const sample_set& set, const Number& number_of) {
    for (std::int64_t b = 0; b < rows(); ++b) {
      const std::int64_t sample = number_of(b);
      const auto row_of = [&](std::span<std::int32_t> all) {
        return all.subspan(static_cast<std::size_t>(b) * sequence_, sequence_);
      };
      const sample_row row{row_of(tokens()), row_of(labels()), row_of(positions()),
                           row_of(documents())};
      if (sample < set.size()) {
        set.fill(sample, row);
        continue;
      }
      std::ranges::fill(row.tokens, 0);
      std::ranges::fill(row.labels, ignored_label);
      one_document(row);
    }
  }

private:
  std::span<std::int32_t> part(std::size_t i) {
    const std::size_t n = ints_.size() / 4;
    return std::span(ints_).subspan(i * n, n);
  }

  std::size_t sequence_;
  std::vector<std::int32_t> ints_;
};

/// Whether any sample of a set has a label: without one there is no loss. Reads up to the first.
inline bool has_label(const sample_set& set, std::int64_t sequence) {
  micro_batch one(1, sequence);
  for (std::int64_t i = 0; i < set.size(); ++i) {
    one.fill(set, i);
    if (std::ranges::any_of(one.labels(), [](std::int32_t l) { return l != ignored_label; }))
      return true;
  }
  return false;
}

/// Reads micro-batches in a thread of its own, a few ahead of those that are asked for.
class read_ahead {
public:
  static constexpr std::size_t ahead = 4;

  /// `next_first`: the number of the first sample of each micro-batch, one after the other, called
  /// in the thread that reads. `set` must outlive this.
  read_ahead(const sample_set& set, std::int64_t rows, std::int64_t sequence,
             std::function<std::int64_t()> next_first)
      : set_(set), next_first_(std::move(next_first)) {
    for (std::size_t i = 0; i < ahead; ++i)
      slots_.push_back({micro_batch(rows, sequence), nullptr});
    thread_ = std::make_unique<own_thread>([this] { read(); });
  }
  read_ahead(const read_ahead&) = delete;
  read_ahead& operator=(const read_ahead&) = delete;
  ~read_ahead() {
    {
      const std::lock_guard guard(lock_);
      over_ = true;
    }
    moved_.notify_all();
    thread_.reset();
  }

  /// The next micro-batch, valid until the next call. Throws what reading it threw.
  micro_batch& next() {
    std::unique_lock guard(lock_);
    if (std::exchange(taken_, true)) {
      ++begin_;
      moved_.notify_all();
    }
    moved_.wait(guard, [this] { return begin_ < end_; });
    slot& s = slots_[begin_ % ahead];
    if (s.problem) std::rethrow_exception(s.problem);
    return s.batch;
  }

private:
  struct slot {
    micro_batch batch;
    std::exception_ptr problem; ///< the last that is read
  };

  void read() {
    while (true) {
      std::unique_lock guard(lock_);
      moved_.wait(guard, [this] { return over_ || end_ - begin_ < ahead; });
      if (over_) return;
      slot& s = slots_[end_ % ahead];
      guard.unlock();
      try {
        s.batch.fill(set_, next_first_());
      } catch (...) {
        s.problem = std::current_exception();
      }
      guard.lock();
      ++end_;
      over_ = over_ || s.problem;
      moved_.notify_all();
    }
  }

  const sample_set& set_;
  std::function<std::int64_t()> next_first_;
  std::vector<slot> slots_;
  std::mutex lock_;
  std::condition_variable moved_;
  std::size_t begin_ = 0, end_ = 0; ///< micro-batches that were used, and that are read
  bool taken_ = false, over_ = false;
  std::unique_ptr<own_thread> thread_;
};

} // namespace mc
