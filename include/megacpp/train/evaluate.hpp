// The mean loss over sets of samples, each of which is read once.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/data/micro_batches.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/run_data.hpp>
#include <megacpp/train/state.hpp>

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// What a micro-batch of data gives a session: documents where its program tells them apart.
inline batch_view view_of(micro_batch& b, bool packed, std::int64_t first_sample = 0) {
  return {.tokens = b.tokens().data(),
          .labels = b.labels().data(),
          .first_sample = first_sample,
          .positions = b.positions().data(),
          .documents = packed ? b.documents().data() : nullptr};
}

/// Evaluates one set, again and again, on all ranks at once: replicas take turns with its
/// micro-batches. Buffers are made once.
class evaluation {
public:
  /// `s` and `ranks` must outlive this.
  evaluation(session& s, const program_view& p, measured_set set,
             const communicator& ranks = self::of_process())
      : session_(&s),
        set_(std::move(set)),
        packed_(p.numbers.batch.packed),
        replicas_(ranks.ranks().of(axis::dp)),
        replica_(ranks.coordinate()[static_cast<unsigned>(axis::dp)]),
        batch_(s.micro_batch(), s.sequence()) {}

  const std::string& name() const { return set_.name; }
  /// Micro-batches of the whole set.
  std::int64_t batches() const {
    return (set_.samples->size() + session_->micro_batch() - 1) / session_->micro_batch();
  }

  /// Summed loss over at most `limit` micro-batches: of evaluation number `number` those that
  /// follow on the ones before, where the set wants that, or else spread evenly. Nothing once
  /// `stop` asks for an end, of one rank alone.
  std::optional<loss_sum> run(std::int64_t limit, std::int64_t number = 0,
                              const stop_signals* stop = nullptr) {
    const std::int64_t micro = session_->micro_batch(), all = batches();
    const std::int64_t n = set_.each > 0 ? (set_.each + micro - 1) / micro
                                         : std::min({limit, all, std::int64_t{max_micros}});
    const std::int64_t each = (n + replicas_ - 1) / replicas_;
    const std::int64_t before = set_.each > 0 ? number * set_.each / micro : 0;
    return session_->evaluate(static_cast<int>(each), [&](int m, batch_view& b) {
      if (stop != nullptr && stop->requested()) return false;
      const std::int64_t turn = std::int64_t{m} * replicas_ + replica_, i = std::min(turn, n - 1);
      const std::int64_t batch = set_.each > 0 ? (before + i) % all
                                 : n == all    ? i
                                               : spread(i, n, all);
      batch_.fill(*set_.samples, batch * micro);
      if (turn >= n) std::ranges::fill(batch_.labels(), ignored_label); // the others have all
      b = view_of(batch_, packed_);
      return true;
    });
  }

private:
  static std::int64_t spread(std::int64_t i, std::int64_t n, std::int64_t all) {
    return static_cast<std::int64_t>(static_cast<double>(i) * static_cast<double>(all) /
                                     static_cast<double>(n));
  }

  session* session_;
  measured_set set_;
  bool packed_;
  int replicas_, replica_; ///< of the model, and which of them this rank is of
  micro_batch batch_;
};

/// exp(loss): among how many equally likely tokens the model chooses.
inline double perplexity(double loss) { return std::exp(loss); }

namespace detail {

/// Threads that read data for all ranks of this process, while they wait.
inline int reading_threads(const device& on, const communicator& ranks) {
  return on.threads() * (ranks.in_one_process() ? ranks_of(ranks.ranks()) : 1);
}

/// Ranks of several processes, each of which has opened the model for itself, have the same.
inline void require_same_model(agreement& all, const model_folder& folder) {
  if (!all.apart()) return;
  all.require_same(hash_of(folder), "another model at --load",
                   "let all of them see the same folder");
}

/// The folder with the weights of --load, which the command needs: what the first rank finds, which
/// tells what is damaged, or what it has named to others (agreement::before_others).
inline found_model required_model(const options& o, const char* command, const agreement& ranks,
                                  const std::string& named) {
  if (!ranks.first()) return found_as_named(o.model.load(), named, false, ranks.apart());
  if (!o.model.load.given())
    throw error(exit_code::usage,
                fmt::format("{} needs --load FOLDER, the folder of a saved model", command));
  std::optional<found_model> found = find_saved(o.model.load(), false);
  if (!found)
    throw error(exit_code::model,
                fmt::format("{} has neither a model nor a saved state; train with --save first",
                            o.model.load()));
  for (const std::string& note : found->notes) print_note(note);
  return std::move(*found);
}

} // namespace detail

namespace detail {

/// `loss: 1.2345 nats per token | ...`.
inline std::string evaluation_text(const loss_sum& total) {
  const double loss = total.mean();
  return fmt::format(
      "loss: {:.4f} nats per token | perplexity: {:.4f} | {:.4f} bits per token | "
      "{:.0f} tokens",
      loss, perplexity(loss), loss / std::numbers::ln2, total.count);
}
/// The same as fields; a perplexity that double cannot hold is null.
inline json_output evaluation_json(const loss_sum& total) {
  const double loss = total.mean();
  return {{"loss", loss},
          {"tokens", json_number(total.count)},
          {"perplexity", perplexity(loss)},
          {"bits_per_token", loss / std::numbers::ln2}};
}

} // namespace detail

/// `eval`: one line, or with --json one object {"loss": nats a token, "tokens": number of
/// predictions, "perplexity": exp(loss), "bits_per_token": loss / ln 2}. Of several files one for
/// each, with its name or the field "file", and one for all tokens together, with their number or
/// the field "files". All files are opened before the first is read. `data`: of the ranks of a
/// process the same.
inline void run_evaluation(const program_view& p, const options& o, device& on,
                           communicator& ranks = self::of_process(),
                           const opened_once<std::vector<run_data>>& data = {}) {
  agreement all_ranks(ranks);
  const std::string named = all_ranks.before_others();
  const found_model found = detail::required_model(o, "eval", all_ranks, named);
  const model_folder& folder = found.folder;
  const std::optional<character_set> characters = characters_of(folder, p);
  const auto opened = data([&] {
    return open_evaluation_data(p, o, folder.path(), characters,
                                detail::reading_threads(on, ranks));
  });
  const std::size_t files = opened->size();
  all_ranks.after_first(name_of(found));
  detail::require_same_model(all_ranks, folder);
  for (const run_data& d : *opened)
    if (all_ranks.apart())
      all_ranks.require_same(d.hash(), "other data", "give all of them the same");
  session s(p, on, purpose::inference, ranks);
  load_weights(folder, p, s.weights());
  // `of`: what the loss is of, as a field that comes first where there are several files.
  const auto tell = [&](const loss_sum& total, std::string_view name, json_output of) {
    if (!std::isfinite(total.mean()))
      throw error(exit_code::nonfinite,
                  fmt::format("the mean loss of {} on {} is {}; the model is not usable",
                              o.model.load(), name, total.mean()));
    if (!all_ranks.first()) return;
    if (!o.report.json())
      return print_line((files > 1 ? fmt::format("{}: ", name) : "") +
                        detail::evaluation_text(total));
    if (files == 1) of = json_output::object();
    of.update(detail::evaluation_json(total));
    print(json_line(of));
  };
  loss_sum all;
  for (const run_data& d : *opened) {
    evaluation e(s, p, d.validation[0], ranks);
    const loss_sum total = *e.run(e.batches());
    tell(total, d.name, {{"file", d.name}});
    all.sum += total.sum, all.count += total.count;
  }
  if (files > 1) tell(all, fmt::format("all {} files", files), {{"files", files}});
}

} // namespace mc
