// The ranks of a training run, as one of them sees all.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/comm/communicator.hpp>
#include <megacpp/comm/timed.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// This rank's communicators, and what it knows of the others' time.
class training_ranks {
public:
  /// The communicators and the device must outlive this.
  training_ranks(const planes& of, device& on)
      : hosts_(of.hosts), ranks_(of.ranks), all_(of.hosts) {
    if (all_.alone()) return;
    timed_.emplace(ranks_, on);
    computing_.resize(static_cast<std::size_t>(ranks_of(hosts_.ranks())));
  }

  communicator& hosts() { return hosts_; }
  /// Returns the communicator for what the tasks of a step exchange.
  communicator& steps() { return timed_ ? *timed_ : ranks_; }
  /// Returns what times these exchanges; nullptr if there is one rank.
  timed_communicator* timed() { return timed_ ? &*timed_ : nullptr; }
  agreement& all() { return all_; }

  /// Returns for how many nanoseconds this rank has waited for others.
  std::int64_t nanoseconds_waited() { return timed_ ? timed_->waited() : 0; }
  /// Hands the seconds that each rank has computed in a step to all ranks; all call it. Returns
  /// nothing if there is one rank.
  const std::vector<double>& tell_computing(double seconds) {
    if (timed_) all_.of_each(seconds, computing_);
    return computing_;
  }

  /// Returns words that name the first rank with a loss that is not finite, where other ranks of
  /// its stage have finite ones; else "". All ranks call it with the loss that each has computed.
  std::string whose(double loss) {
    if (all_.alone()) return "";
    std::vector<double> broken(computing_.size());
    all_.of_each(std::isfinite(loss) ? 0 : 1, broken);
    const auto first = std::find(broken.begin(), broken.end(), 1.0);
    const auto of_stage = std::ssize(broken) / hosts_.ranks().of(axis::pp);
    const auto count = std::count(first, broken.end(), 1.0);
    if (count == 0 || count >= of_stage) return "";
    return fmt::format(", and not of all: look at rank {}", first - broken.begin());
  }

private:
  communicator &hosts_, &ranks_;
  agreement all_;
  std::optional<timed_communicator> timed_; ///< of several ranks
  std::vector<double> computing_;           ///< seconds, by rank
};

} // namespace mc
