// A thread of its own reads micro-batches from a sample set, ahead of the threads that compute.
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

/// micro_batch holds the integers of B sequences of S tokens: tokens, labels, positions and
/// document numbers, each of shape (B, S).
class micro_batch {
public:
  micro_batch(std::int64_t rows, std::int64_t sequence)
      : sequence_(static_cast<std::size_t>(sequence)),
        integers_(4 * static_cast<std::size_t>(rows) * sequence_) {}

  std::int64_t rows() const {
    return static_cast<std::int64_t>(integers_.size() / (4 * sequence_));
  }
  std::span<std::int32_t> tokens() { return integers(0); }
  std::span<std::int32_t> labels() { return integers(1); }
  std::span<std::int32_t> positions() { return integers(2); }
  std::span<std::int32_t> documents() { return integers(3); }

  /// Fills the rows with samples first ... first + B - 1 of a set, as fill_rows does.
  void fill(const sample_set& set, std::int64_t first) {
    fill_rows(set, [first](std::int64_t b) { return first + b; });
  }
  /// Fills each row b with sample number_of(b) of a set. A row whose sample is behind the set's
  /// last one gets token 0 everywhere, and no label.
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
  std::span<std::int32_t> integers(std::size_t i) {
    const std::size_t n = integers_.size() / 4;
    return std::span(integers_).subspan(i * n, n);
  }

  std::size_t sequence_;
  std::vector<std::int32_t> integers_;
};

/// Returns whether any sample of a set has a label; without a label there is no loss. Reads samples
/// up to the first one with a label.
inline bool has_label(const sample_set& set, std::int64_t sequence) {
  micro_batch one(1, sequence);
  for (std::int64_t i = 0; i < set.size(); ++i) {
    one.fill(set, i);
    if (std::ranges::any_of(one.labels(), [](std::int32_t l) { return l != ignored_label; }))
      return true;
  }
  return false;
}

/// read_ahead reads micro-batches in a thread of its own, up to `ahead` before they are asked for.
class read_ahead {
public:
  static constexpr std::size_t ahead = 4;

  /// Starts the thread that reads. It calls `next_first` once for each micro-batch, which returns
  /// the number of the micro-batch's first sample. `set` must outlive the reader.
  read_ahead(const sample_set& set, std::int64_t rows, std::int64_t sequence,
             std::function<std::int64_t()> next_first)
      : set_(set), next_first_(std::move(next_first)) {
    for (std::size_t i = 0; i < ahead; ++i) ring_.push_back({micro_batch(rows, sequence), nullptr});
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

  /// Returns the next micro-batch, which is valid until the next call. Throws the exception that
  /// reading the micro-batch threw.
  micro_batch& next() {
    std::unique_lock guard(lock_);
    if (std::exchange(taken_, true)) {
      ++begin_;
      moved_.notify_all();
    }
    moved_.wait(guard, [this] { return begin_ < end_; });
    read_batch& s = ring_[begin_ % ahead];
    if (s.problem) std::rethrow_exception(s.problem);
    return s.batch;
  }

private:
  struct read_batch {
    micro_batch batch;
    std::exception_ptr problem; ///< The exception that reading the batch threw; reading ends there.
  };

  void read() {
    while (true) {
      std::unique_lock guard(lock_);
      moved_.wait(guard, [this] { return over_ || end_ - begin_ < ahead; });
      if (over_) return;
      read_batch& s = ring_[end_ % ahead];
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
  std::vector<read_batch> ring_;
  std::mutex lock_;
  std::condition_variable moved_;
  std::size_t begin_ = 0,
              end_ =
                  0; ///< The number of micro-batches that were used, and of those that were read.
  bool taken_ = false, over_ = false;
  std::unique_ptr<own_thread> thread_;
};

} // namespace mc
