// The losses that a training run measures beside those of its steps.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/data/measured_set.hpp>
#include <megacpp/inputs/named_data.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/optim/recurrence.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/early_end.hpp>
#include <megacpp/train/evaluation.hpp>
#include <megacpp/train/reports.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Measures the loss on validation data between steps, and on validation and test data behind the
/// last one. The references must stay valid.
class validation {
public:
  validation(const data_request& asked, const loop_request& loop, const run_data& data,
             std::int64_t sequence)
      : asked_(asked), loop_(loop), data_(data), sequence_(sequence) {}

  /// Returns a text that tells the validation data of this run from others, where losses on them
  /// are compared; "" if there are none.
  const std::string& find_measure() {
    if (!loop_.compares_evaluations() || !measures() || data_.validation.empty()) return measure_;
    xxh64 of_all;
    for (const measured_set& set : data_.validation) {
      const std::uint64_t one = hash_of(set, samples_of(set), sequence_);
      of_all.add(std::as_bytes(std::span(&one, 1)));
    }
    return measure_ = fmt::format("{:016x}", of_all.value());
  }
  const std::string& measure() const { return measure_; }

  /// Reserves memory for evaluations on a session, which must outlive this. Throws mc::error where
  /// evaluations are asked for and there are no data for them.
  void prepare(session& on, const program_view& p, communicator& hosts, agreement& all) {
    const bool wanted = measures() && (loop_.validates_some() || !data_.validation.empty());
    if (wanted && data_.validation.empty() && !data_.text.source)
      throw error(
          exit_code::data,
          fmt::format("loop_request::eval_iters {} asks for evaluations, and nothing of {} is left "
                      "to validate; give another data_request::split, or split_paths::valid",
                      *loop_.eval_iters, data_.name));
    if (wanted && data_.validation.empty())
      require_prediction(*data_.text.source, data_.text.splits.valid, "validation");
    if (!wanted && loop_.insists_on_best) {
      all.wait_for_end();
      throw error(
          exit_code::usage,
          fmt::format(
              "loop_request::keep_best changes nothing: {}; or leave loop_request::keep_best out",
              detail::nothing_to_validate(asked_)));
    }
    if (!wanted && loop_.stop_after_no_better > 0) {
      all.wait_for_end();
      throw error(
          exit_code::usage,
          fmt::format("loop_request::stop_after_no_better {} needs evaluations: {}; or give "
                      "loop_request::stop_after_no_better 0",
                      loop_.stop_after_no_better, detail::nothing_to_validate(asked_)));
    }
    for (const measured_set& set : data_.test)
      if (measures()) tests_.emplace_back(on, p, set, set.samples->size(), hosts);
    for (const measured_set& set : data_.validation)
      if (wanted) sets_.emplace_back(on, p, set, samples_of(set), hosts);
  }

  bool evaluates() const { return !sets_.empty(); }
  bool is_due(std::int64_t step) const { return when().is_due(step, loop_.steps); }
  /// Returns how many evaluations are left once this step has been taken.
  std::int64_t times_left(std::int64_t step) const {
    return evaluates() ? when().times_from(step, loop_.steps) : 0;
  }
  /// Returns losses as long, as a text, as those of a run that ends behind step `last` may be.
  run_losses longest(std::int64_t last) const {
    if (!evaluates()) return run_losses::longest(last, 0, 0, measure_, 0);
    const std::int64_t evaluations = last / loop_.eval_interval + 1;
    std::int64_t tokens = 0;
    for (const measured_set& set : data_.validation) tokens += sequence_ * samples_of(set);
    return run_losses::longest(last, evaluations, tokens, measure_, loop_.stop_after_no_better);
  }

  /// Measures the loss on the validation data behind a step. Where there are several sets, the loss
  /// on each is reported. Returns nothing where a stop ends it, on one rank alone. Of several
  /// ranks, one that cannot read its data has a pending error afterwards.
  std::optional<loss_sum> evaluate(std::int64_t step, early_end& end, training_reports& reports) {
    const std::int64_t number = loop_.compares_evaluations() ? 0 : (step - 1) / loop_.eval_interval;
    return run(sets_, number, end, [&](const std::string& name, const loss_sum& one) {
      reports.evaluation_of(name, step, one);
    });
  }
  bool tests() const { return !tests_.empty(); }
  /// Measures the loss on the test data as evaluate() does on validation data.
  std::optional<loss_sum> test(std::int64_t step, early_end& end, training_reports& reports) {
    return run(tests_, 0, end, [&](const std::string& name, const loss_sum& one) {
      reports.test(step, one, name);
    });
  }

private:
  recurrence when() const { return {loop_.eval_interval}; }
  /// Returns the summed loss over all sets. Where there are several, each is told by tell(name,
  /// loss).
  template <class Tell> static std::optional<loss_sum> run(std::vector<evaluation>& sets,
                                                           std::int64_t number, early_end& end,
                                                           const Tell& tell) {
    const stop_signals* const stop = end.signals_if_alone();
    loss_sum total;
    for (evaluation& e : sets) {
      const std::optional<loss_sum> one = e.run(number, stop, &end.pending_error());
      if (!one || (stop != nullptr && stop->requested())) return std::nullopt;
      if (sets.size() > 1) end.tell([&] { tell(e.name(), *one); });
      total.sum += one->sum, total.count += one->count;
    }
    return total;
  }
  /// Tells whether the request asks for evaluations, if there are data for them.
  bool measures() const {
    return loop_.validates_some() ? *loop_.eval_iters > 0
                                  : !loop_.bench && asked_.kind != data_kind::random;
  }
  /// Returns how many samples of a set one evaluation takes at most.
  std::int64_t samples_of(const measured_set& set) const {
    const std::int64_t all = set.samples->size(), batch = loop_.batches.last;
    const std::int64_t iters = loop_.eval_iters.value_or(0);
    return loop_.validates_some() && iters <= all / batch ? iters * batch : all;
  }

  const data_request& asked_;
  const loop_request& loop_;
  const run_data& data_;
  std::int64_t sequence_;
  std::string measure_;
  std::vector<evaluation> sets_, tests_;
};

} // namespace mc
