// The mean loss on sets of samples.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/data/micro_batches.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace mc {

/// Returns exp(loss): among how many equally likely tokens the model chooses.
inline double perplexity(double loss) { return std::exp(loss); }

/// Returns a micro-batch as a session reads it. A packed program tells documents apart.
/// `first_sample`: the number of its first sample within the batch.
inline batch_view view_of(micro_batch& b, bool packed, std::int64_t first_sample = 0) {
  return {.tokens = b.tokens().data(),
          .labels = b.labels().data(),
          .first_sample = first_sample,
          .positions = b.positions().data(),
          .documents = packed ? b.documents().data() : nullptr};
}

/// Evaluates one set, again and again, over at most `limit` samples. All ranks do it at once, and
/// replicas take turns with the micro-batches. Memory is reserved once.
class evaluation {
public:
  /// The session must outlive this.
  evaluation(session& s, const program_view& p, measured_set set, std::int64_t limit,
             const communicator& hosts)
      : session_(&s),
        set_(std::move(set)),
        limit_(limit),
        packed_(p.numbers.batch.packed),
        replicas_(hosts.ranks().of(axis::dp)),
        replica_(hosts.coordinate()[static_cast<unsigned>(axis::dp)]),
        alone_(ranks_of(hosts.ranks()) == 1),
        batch_(s.micro_batch(), s.sequence()) {}

  const std::string& name() const { return set_.name; }

  /// Returns the summed loss of evaluation number `number` (measured_set::sample says over which
  /// samples). Returns nothing once `stop` asks for an end, which one rank alone may give. A rank
  /// that cannot read its data throws, if it is alone or without `problem`; else it leaves the
  /// error there and goes on without its data, so that the other ranks do not wait for it. Then the
  /// sum is of no use.
  std::optional<loss_sum> run(std::int64_t number, const stop_signals* stop = nullptr,
                              std::optional<error>* problem = nullptr) {
    const std::int64_t n = set_.count(limit_), micro = session_->micro_batch(),
                       together = micro * replicas_, micros = (n + together - 1) / together;
    loss_sum total;
    for (std::int64_t begin = 0; begin < micros; begin += max_micros) {
      const auto count = static_cast<int>(std::min<std::int64_t>(max_micros, micros - begin));
      const auto sum = session_->evaluate(count, [&](int m, batch_view& b) {
        if (stop != nullptr && stop->requested()) return false;
        const std::int64_t first = (begin + m) * together + replica_ * micro,
                           none = set_.samples->size();
        try {
          batch_.fill_rows(*set_.samples, [&](std::int64_t row) {
            const std::int64_t i = first + row;
            return i < n ? set_.sample(i, n, number) : none;
          });
        } catch (const error& e) {
          if (alone_ || problem == nullptr) throw;
          *problem = e;
          batch_.fill(*set_.samples, none);
        }
        b = view_of(batch_, packed_);
        return true;
      });
      if (!sum) return std::nullopt;
      total.sum += sum->sum, total.count += sum->count, total.side += sum->side;
    }
    return total;
  }

private:
  session* session_;
  measured_set set_;
  std::int64_t limit_;
  bool packed_;
  int replicas_, replica_; ///< their number, and the one that this rank belongs to
  bool alone_;
  micro_batch batch_;
};

} // namespace mc
