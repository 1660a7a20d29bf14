// What a run trains on and what it is measured by.
#pragma once

#include <megacpp/data/micro_batches.hpp>
#include <megacpp/data/sample_set.hpp>
#include <megacpp/inputs/text.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

/// What a loss is measured on, with a name where there are several.
struct measured_set {
  std::string name;
  std::shared_ptr<const sample_set> samples;
  /// Samples that one evaluation takes where each goes on behind the one before, as in Megatron-LM;
  /// 0: each takes all, or some that are spread evenly.
  std::int64_t each = 0;

  /// Samples of one evaluation that takes at most `limit` of those that are not in turn.
  std::int64_t count(std::int64_t limit) const {
    return each > 0 ? each : std::min(limit, samples->size());
  }
  /// Sample i of the n = count(limit) of evaluation number `number`. It depends on no micro-batch
  /// and on no layout, so that these change no loss but by rounding.
  std::int64_t sample(std::int64_t i, std::int64_t n, std::int64_t number) const {
    const std::int64_t all = samples->size();
    if (each > 0) return (number * each + i) % all;
    return all / n * i + all % n * i / n; // i all / n, which may not fit
  }
};

/// A hash that tells the samples of the first evaluation of a set, of at most `limit` of S tokens,
/// from others: their number, and tokens and labels of up to 1024 of them. Throws mc::error.
inline std::uint64_t hash_of(const measured_set& set, std::int64_t limit, std::int64_t sequence) {
  const std::int64_t n = set.count(limit), looked_at = std::min<std::int64_t>(n, 1024);
  micro_batch one(1, sequence);
  xxh64 hash;
  hash.add(std::as_bytes(std::span(&n, 1)));
  for (std::int64_t i = 0; i < looked_at; ++i) {
    one.fill(*set.samples, set.sample(n / looked_at * i, n, 0));
    hash.add(std::as_bytes(one.tokens())), hash.add(std::as_bytes(one.labels()));
  }
  return hash.value();
}

struct run_data {
  std::string name;
  text_data text; ///< what samples are windows of, if they are
  std::shared_ptr<const sample_set> training;
  std::vector<measured_set> validation;
  std::vector<measured_set> test;              ///< measured at the end
  std::string summary;                         ///< how much there is
  std::string unlearned = {};                  ///< what of it is not learned; "" is nothing
  std::string type = {};                       ///< of --data-type, where the data decide it
  std::optional<std::int64_t> steps = {};      ///< of the epochs that were asked for
  std::shared_ptr<const tokenizer> words = {}; ///< of the tokens, where there is one
  std::string template_folder = {};            ///< whose chat template conversations have
  std::function<nlohmann::json()> identity;    ///< what tells it from other data
  std::function<std::uint64_t()> hash; ///< of the same tokens the same, whatever they are called
  /// A file that samples are read from and that was written to since it was opened; "" is none.
  /// Empty where all was read at the start.
  std::function<std::string()> written = {};
};

/// What the ranks of a process read: opened by the one that asks first, while others wait, and
/// shared. Copies are of the same.
template <class T> class opened_once {
public:
  template <class Open> std::shared_ptr<const T> operator()(const Open& open) const {
    const std::scoped_lock hold(all_->lock);
    if (!all_->opened) all_->opened = std::make_shared<const T>(open());
    return all_->opened;
  }

private:
  struct state {
    std::mutex lock;
    std::shared_ptr<const T> opened;
  };
  std::shared_ptr<state> all_ = std::make_shared<state>();
};

} // namespace mc
