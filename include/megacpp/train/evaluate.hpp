// The mean loss over non-overlapping windows of a text.
#pragma once

#include <megacpp/data/windows.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/state.hpp>
#include <megacpp/train/text.hpp>

#include <algorithm>
#include <cstdint>
#include <numbers>
#include <optional>

namespace mc {

/// Evaluates one part of a text, again and again. Buffers are made once.
class evaluation {
public:
  /// `s` and `source` must outlive this. Throws mc::error(exit_code::data) for a part of fewer than
  /// two tokens.
  evaluation(session& s, const token_source& source, token_range part)
      : session_(&s),
        windows_(source, part, s.sequence()),
        tokens_(static_cast<std::size_t>(s.micro_batch()) * static_cast<std::size_t>(s.sequence())),
        labels_(tokens_.size()) {}

  /// Micro-batches of the whole part.
  std::int64_t batches() const {
    return (windows_.count() + session_->micro_batch() - 1) / session_->micro_batch();
  }

  /// Summed loss over at most `limit` micro-batches, spread evenly over the part; nothing once
  /// `stop` asks for an end.
  std::optional<loss_sum> run(std::int64_t limit, const stop_signals* stop = nullptr) {
    const std::int64_t all = batches(), n = std::min({limit, all, std::int64_t{max_micros}});
    return session_->evaluate(static_cast<int>(n), [&](int i, batch_view& b) {
      if (stop != nullptr && stop->requested()) return false;
      const std::int64_t batch = n == all ? i : spread(i, n, all);
      windows_.fill(batch * session_->micro_batch(), tokens_, labels_);
      b = {tokens_.data(), labels_.data()};
      return true;
    });
  }

private:
  static std::int64_t spread(std::int64_t i, std::int64_t n, std::int64_t all) {
    return static_cast<std::int64_t>(static_cast<double>(i) * static_cast<double>(all) /
                                     static_cast<double>(n));
  }

  session* session_;
  evaluation_windows windows_;
  std::vector<std::int32_t> tokens_, labels_; // (B, S)
};

/// exp(loss): among how many equally likely tokens the model chooses.
inline double perplexity(double loss) { return std::exp(loss); }

namespace detail {

/// The folder with the weights of --load, which the command needs.
inline model_folder required_model(const options& o, const char* command) {
  if (!o.model.load.given())
    throw error(exit_code::usage,
                fmt::format("{} needs --load FOLDER, the folder of a saved model", command));
  std::optional<found_model> found = find_saved(o.model.load(), false);
  if (!found)
    throw error(exit_code::model,
                fmt::format("{} has neither a model nor a saved state; train with --save first",
                            o.model.load()));
  for (const std::string& note : found->notes) print_note(note);
  return std::move(found->folder);
}

inline std::string number_text(double x) {
  return std::isfinite(x) ? fmt::format("{}", x) : std::string("null");
}

} // namespace detail

/// `eval`: one line, or with --json one object {"loss": nats a token, "tokens": number of
/// predictions, "perplexity": exp(loss), "bits_per_token": loss / ln 2}.
inline void run_evaluation(const program_view& p, const options& o, device& on) {
  const model_folder folder = detail::required_model(o, "eval");
  const text_data text = open_evaluation_text(p, o, characters_of(folder, p));
  require_prediction(*text.source, text.parts.valid, "validation");
  session s(p, on, purpose::inference);
  load_weights(folder, p, s.weights());
  evaluation e(s, *text.source, text.parts.valid);
  const loss_sum total = *e.run(e.batches());
  const double loss = total.mean();
  if (!std::isfinite(loss))
    throw error(exit_code::nonfinite,
                fmt::format("the mean loss of {} on {} is {}; the model is not usable",
                            o.model.load(), text.source->name(), loss));
  if (o.report.json())
    print(fmt::format("{{\"loss\":{},\"tokens\":{:.0f},\"perplexity\":{},\"bits_per_token\":{}}}\n",
                      loss, total.count, detail::number_text(perplexity(loss)),
                      loss / std::numbers::ln2));
  else
    print(
        fmt::format("loss: {:.4f} nats per token | perplexity: {:.4f} | {:.4f} bits per token | "
                    "{:.0f} tokens\n",
                    loss, perplexity(loss), loss / std::numbers::ln2, total.count));
}

} // namespace mc
