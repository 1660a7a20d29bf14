// The continuation of a batch of texts, token by token, and of a conversation, message by message.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/generate/sampler.hpp>
#include <megacpp/generate/text_end.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/text.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace mc::detail {

/// Settings for continuing texts.
struct continuing {
  sampling draw;
  bool slides = true; ///< a full context slides on; else the text ends
  bool caches = true; ///< keys and values of earlier tokens are kept
  std::string model;  ///< name of the model, for messages
  bool logprobs = false;
};
inline continuing continuing_of(const generation_request& r) {
  const sampling_request& s = r.sampling;
  return {{s.temperature, s.top_k, s.top_p, s.seed},
          s.slides,
          s.caches,
          r.start.load ? "the model in " + *r.start.load : "the model",
          s.logprobs};
}

/// Returns the room for texts and for all tokens that may follow them.
inline generation_room room_of(std::span<const continued_text> texts, const program_view& p,
                               std::int64_t most) {
  generation_room room;
  room.sequences = static_cast<int>(texts.size());
  for (const continued_text& t : texts) {
    const auto given = static_cast<std::int64_t>(t.given);
    room.tokens = std::max(room.tokens, given + std::min(p.positions - given, most));
    room.prompt = std::max(room.prompt, given);
  }
  return room;
}

/// The number of tokens, and the seconds that computing them took.
struct generation_work {
  std::int64_t prompt = 0, fresh = 0;
  double prompt_seconds = 0, fresh_seconds = 0;
};

/// Continues the texts of one batch.
class continuation {
public:
  continuation(continuing how, const token_text& tokens, const text_end& end)
      : how_(std::move(how)),
        tokens_(tokens),
        end_(end),
        logits_(static_cast<std::size_t>(how_.logprobs ? tokens.vocabulary() : tokens.drawn())) {}

  /// Continues the texts by a generator that has room for them and no tokens yet. `live`: the first
  /// text is printed as it grows. After `stop` has asked for an end, no text grows any more.
  void run(std::span<continued_text> texts, generator& g, bool live,
           const stop_signals* stop = nullptr) {
    prepare(texts);
    for (std::size_t b = 0; b < texts.size(); ++b) g.choose(static_cast<int>(b), texts[b].adapter);
    shown_ = 0;
    if (live) show(texts[0].written);
    std::vector<std::span<const std::int32_t>> more(texts.size());
    bool going = false;
    for (std::size_t b = 0; b < texts.size(); ++b) {
      texts[b].end = end_.of(texts[b]);
      if (texts[b].end != nullptr) continue;
      more[b] = texts[b].tokens, going = true;
      work_.prompt += std::ssize(more[b]);
    }
    const auto stopped = [stop] { return stop != nullptr && stop->requested(); };
    for (double* seconds = &work_.prompt_seconds; going && !stopped();
         seconds = &work_.fresh_seconds) {
      const stopwatch watch;
      g.append(more);
      going = draw(texts, g, more, live);
      *seconds += watch.seconds();
    }
    if (live) print(texts[0].written.substr(shown_) + "\n");
  }
  const generation_work& work() const { return work_; }

private:
  void prepare(std::span<continued_text> texts) {
    const auto room = static_cast<std::size_t>(std::min<std::int64_t>(end_.most(), 1 << 20));
    for (continued_text& t : texts)
      t.tokens.reserve(t.given + room), t.written.reserve(t.written.size() + room),
          t.logprobs.reserve(how_.logprobs ? room : 0);
    draws_.clear();
    // Draws do not depend on the batch and the number of texts.
    for (const continued_text& t : texts)
      draws_.emplace_back(how_.draw, static_cast<std::uint64_t>(t.sample) << 32 |
                                         static_cast<std::uint64_t>(t.number));
  }
  /// Draws a token for each text that goes on. `more` holds then the tokens that the generator
  /// needs next. Returns false if it needs none.
  bool draw(std::span<continued_text> texts, generator& g,
            std::vector<std::span<const std::int32_t>>& more, bool live) {
    bool going = false;
    for (std::size_t b = 0; b < texts.size(); ++b) {
      continued_text& t = texts[b];
      more[b] = {};
      if (t.end != nullptr) continue;
      const auto sequence = static_cast<int>(b);
      t.tokens.push_back(next(t, g, sequence));
      if (how_.logprobs) t.logprobs.push_back(log_probability(logits_, t.tokens.back()));
      if (tokens_.ids() || end_.is_said(t.tokens.back())) tokens_.write(t.tokens.back(), t.written);
      if (live) show(t.written);
      ++work_.fresh;
      t.end = end_.of(t);
      const bool full = g.length(sequence) == g.room();
      if (t.end == nullptr && full && !how_.slides) t.end = "positions";
      if (t.end != nullptr) continue;
      std::int64_t needed = full ? std::max<std::int64_t>(g.room() / 2, 1) : 1;
      if (!full && !how_.caches) needed = g.length(sequence) + 1;
      if (needed > 1) g.clear(sequence);
      more[b] = std::span(t.tokens).last(static_cast<std::size_t>(needed));
      going = true;
    }
    return going;
  }
  /// Prints the new bytes of a text, but holds back a code point that is not complete yet.
  void show(const std::string& text) {
    const std::size_t whole = text.size() - unfinished_utf8(text);
    if (whole <= shown_) return;
    print(std::string_view(text).substr(shown_, whole - shown_));
    shown_ = whole;
  }
  std::int32_t next(const continued_text& t, const generator& g, int sequence) {
    for (std::size_t i = 0; i < logits_.size(); ++i) {
      logits_[i] = g.logit(sequence, static_cast<std::int32_t>(i));
      if (!std::isfinite(logits_[i]))
        throw error(exit_code::nonfinite,
                    fmt::format("the logit of token {} is {} after {} tokens; {} is not usable", i,
                                logits_[i], t.fresh(), how_.model));
    }
    const auto drawn = static_cast<std::size_t>(tokens_.drawn());
    return draws_[static_cast<std::size_t>(sequence)].draw(std::span(logits_).first(drawn));
  }

  continuing how_;
  const token_text& tokens_;
  const text_end& end_;
  std::vector<double> logits_; ///< logits of the tokens that may be drawn, or of all
  std::vector<sampler> draws_;
  generation_work work_;
  std::size_t shown_ = 0; ///< bytes of a live text that were printed
};

/// Holds a conversation with the user, who writes a message a line on the standard input.
/// `make(texts)` returns a generator with room for them. `tell(text)` is called for each answer, on
/// the first rank.
template <class Make, class Tell> void talk(const chat_prompts& chat, agreement& all,
                                            continuation& answers, const Make& make,
                                            const Tell& tell) {
  conversation c = chat.begun();
  const auto heard = [&all] { // returns "" at the end of the input
    std::string line;
    if (all.first()) {
      char* text = nullptr;
      std::size_t room = 0;
      const ::ssize_t n = ::getline(&text, &room, stdin);
      const std::unique_ptr<char, decltype(&std::free)> owned(text, &std::free);
      if (n >= 0) line = fmt::format(">{}", without_mark({text, static_cast<std::size_t>(n)}));
      std::erase(line, '\0');
    }
    std::string whole; // ranks get it in pieces: "+..." and, as the last one, "...."
    for (std::string piece = "+"; piece.starts_with('+'); whole += piece.substr(1)) {
      const std::size_t most = 500, n = std::min(most, line.size());
      piece = all.any(all.first() ? (n < line.size() ? '+' : '.') + line.substr(0, n) : "");
      line.erase(0, n);
    }
    return whole;
  };
  std::int64_t turn = 0; // number of the answer, which its random draws depend on
  for (std::string line = heard(); !line.empty(); line = heard()) {
    line.erase(0, 1);
    while (line.ends_with('\n') || line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    chat_prompts::say(c, chat_speaker::user, as_utf8(line));
    continued_text t = chat.asking(c, "the conversation", exit_code::data);
    t.number = turn++;
    generator g = make(std::span(&t, 1));
    answers.run(std::span(&t, 1), g, all.first());
    if (all.first()) tell(t);
    chat_prompts::say(c, chat_speaker::assistant, as_utf8(t.written));
  }
}

} // namespace mc::detail
