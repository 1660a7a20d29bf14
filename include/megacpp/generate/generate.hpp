// `generate`: continues prompts, token by token.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/generate/sampler.hpp>
#include <megacpp/inputs/token_text.hpp>
#include <megacpp/inspect/untrained_positions.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/train/evaluate.hpp>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace mc {

namespace detail {

/// A prompt and the tokens that continue it.
struct continued_text {
  std::string prompt;               ///< prompt as the user gave it
  std::vector<std::int32_t> tokens; ///< tokens of the prompt, then new ones
  std::size_t given = 0;            ///< number of the prompt's tokens
  std::int64_t number = 0;          ///< number of the prompt, from 0
  std::int64_t sample = 0;          ///< number of the text among those of its prompt, from 0
  std::string written;              ///< the prompt and the new tokens, as text
  std::vector<double> logprobs;     ///< log probability of each new token, if asked for
  const char* end = nullptr;        ///< why the text is finished: "stop", "length" or "positions"

  std::int64_t fresh() const { return std::ssize(tokens) - static_cast<std::int64_t>(given); }
};

/// Returns the model that continues the texts; nothing if random weights take its place. Throws
/// mc::error.
inline std::optional<found_model> model_of_texts(const start_request& r, const agreement& ranks,
                                                 const std::string& named) {
  if (r.random_weights) return std::nullopt;
  return required_model(r.load, "generate", ranks, named);
}

/// Returns the tokens of a model: by its tokenizer, by its characters, as bytes, or as ids.
inline token_text token_text_of(const program_view& p, const tokenizer_request& r, bool ids,
                                const std::optional<found_model>& found) {
  if (!found) return {p, r, "", std::nullopt, ids};
  const std::string& folder = found->folder.path();
  std::optional<character_set> characters = characters_of(found->folder, p);
  std::shared_ptr<const tokenizer> words;
  if (!ids && !characters) words = run_tokenizer(r, folder);
  return {p, r, folder, std::move(characters), ids, std::move(words)};
}

/// Prompts that are conversations, in the format of the model's chat template.
class chat_prompts {
public:
  /// `folder`: the model's folder, whose template is used unless the request names another. Throws
  /// mc::error.
  chat_prompts(const sampling_request& asked, const tokenizer_request& r, const token_text& tokens,
               const std::string& folder)
      : tokens_(&tokens),
        system_(asked.system_prompt),
        thinks_(asked.thinks),
        style_(chat_template::of_folder(r.model ? *r.model : folder)) {
    if (tokens.words() == nullptr)
      throw error(
          exit_code::usage,
          "sampling_request::chat needs the tokenizer of the model, and sampling_request::ids or "
          "a tokenizer_request::type of bytes "
          "contradict it; leave them out");
    const std::optional<std::int32_t> end = tokens.words()->id_of(style_.end_of_turn());
    if (!end)
      throw error(exit_code::model,
                  fmt::format("{} has no token {}, by which turns of the template {} end; give the "
                              "tokenizer of the template",
                              tokens.words()->file(), style_.end_of_turn(), style_.name()));
    end_ = *end;
    if (asked.insists_on_thinking && style_.style() != chat_style::qwen3)
      throw error(
          exit_code::usage,
          fmt::format("sampling_request::thinks changes nothing: it is a switch of the template "
                      "of Qwen3, and this one is of {}; leave it out",
                      style_.name()));
  }

  std::int32_t end_of_turn() const { return end_; }
  /// Returns a conversation that has the system's message, if there is one.
  conversation begun() const {
    conversation c;
    if (!system_.empty()) say(c, chat_role::system, system_);
    return c;
  }
  static void say(conversation& c, chat_role role, std::string words) {
    c.messages.emplace_back();
    c.messages.back().role = role, c.messages.back().content = std::move(words);
  }
  /// Returns the prompt that asks for the assistant's next message. Throws mc::error(code) for one
  /// that is too long.
  continued_text asking(const conversation& c, const std::string& where, exit_code code) const {
    continued_text t;
    t.tokens = tokens_->read_template(style_.prompt(c, thinks_), where, code);
    t.given = t.tokens.size();
    return t;
  }

private:
  const token_text* tokens_;
  std::string system_;
  bool thinks_;
  chat_template style_;
  std::int32_t end_ = 0;
};

/// Returns the prompts of a request and then those of its file. Throws mc::error with usage or data
/// for a prompt that is empty, too long, or has an id that is no token.
inline std::vector<continued_text> read_prompts(const sampling_request& asked,
                                                const token_text& tokens,
                                                const chat_prompts* chat = nullptr) {
  std::vector<continued_text> list;
  const auto add = [&](std::string_view prompt, const std::string& where, exit_code code) {
    if (chat != nullptr) {
      if (prompt.find_first_not_of(" \t") == std::string_view::npos)
        throw error(code, fmt::format("{}: the question is empty; leave it out", where));
      conversation c = chat->begun();
      chat_prompts::say(c, chat_role::user, std::string(prompt));
      list.push_back(chat->asking(c, where, code));
      list.back().prompt = prompt;
      return;
    }
    continued_text t;
    t.tokens = tokens.read_prompt(prompt, where, code);
    t.prompt = prompt, t.given = t.tokens.size();
    if (t.tokens.empty())
      throw error(code, fmt::format("{}: the prompt is empty; {}", where,
                                    tokens.ids() ? "give at least one token id"
                                                 : "leave it out to begin with a line end"));
    for (const std::int32_t token : t.tokens)
      if (tokens.ids()) tokens.write(token, t.written);
    if (!tokens.ids()) t.written = t.prompt;
    list.push_back(std::move(t));
  };
  for (const std::string& prompt : asked.prompts)
    add(prompt, "sampling_request::prompts", exit_code::usage);
  if (asked.prompts_file) {
    const mapped_file file(*asked.prompts_file, exit_code::data);
    std::string_view rest = written_text(file);
    for (int line = 1; !rest.empty(); ++line) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view prompt = rest.substr(0, end);
      if (prompt.ends_with('\r')) prompt.remove_suffix(1);
      add(prompt, fmt::format("{}, line {}", file.path(), line), exit_code::data);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  if (!list.empty()) return list;
  if (tokens.ids())
    throw error(
        exit_code::usage,
        "sampling_request::ids needs sampling_request::prompts or sampling_request::prompts_file "
        "with token ids");
  list.emplace_back();
  list.back().tokens = {tokens.first("sampling_request::prompts")}, list.back().given = 1;
  return list;
}

/// Returns a text for each prompt and each of its `n` samples.
inline std::vector<continued_text> with_samples(std::vector<continued_text> prompts,
                                                std::int64_t n) {
  std::vector<continued_text> texts;
  texts.reserve(prompts.size() * static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < prompts.size(); ++i)
    for (std::int64_t k = 0; k < n; ++k) {
      texts.push_back(prompts[i]);
      texts.back().number = static_cast<std::int64_t>(i), texts.back().sample = k;
    }
  return texts;
}

/// Returns a note if texts of at most `longest` tokens may reach positions that the state's run
/// never trained. For a folder of another program's model there is none.
inline std::vector<std::string> untrained_reached(const model_folder& folder, const program_view& p,
                                                  std::int64_t longest) {
  if (!folder.contains(state_file_name)) return {};
  const state_file file(folder);
  const auto sequence = file.state().field<json_value>("program").field<std::int64_t>(
      "sequence", 1, std::int64_t{1} << 31);
  return longest > sequence ? untrained_positions(p, sequence) : std::vector<std::string>();
}

/// Returns the tokens that end a text of a model: eos_token_id, a number or a list, in its
/// generation_config.json, or else in its config.json. Throws mc::error(exit_code::model).
inline std::vector<std::int32_t> end_tokens_of(const model_folder& folder) {
  constexpr const char* field = "eos_token_id";
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!folder.contains(name)) continue;
    const json_value file = read_json(folder.open(name));
    if (!file.has(field)) continue;
    if (file.raw().at(field).is_array()) return file.field<std::vector<std::int32_t>>(field);
    return {file.field<std::int32_t>(field)};
  }
  return {};
}

/// The conditions that finish a text: tokens, texts, and a largest number of new tokens.
class text_end {
public:
  explicit text_end(std::int64_t most) : most_(most) {}
  text_end(const sampling_request& asked, const program_view& p, const token_text& tokens)
      : most_(asked.most) {
    for (const std::string& list : asked.stop_tokens)
      for (const std::int32_t id :
           token_ids(list, p.vocabulary, "sampling_request::stop_tokens", exit_code::usage))
        ids_.push_back(id);
    if (!asked.stop_tokens.empty() && ids_.empty())
      throw error(exit_code::usage,
                  "sampling_request::stop_tokens names no token; give ids or leave it out");
    for (const std::string& text : asked.stops) {
      if (tokens.ids())
        throw error(
            exit_code::usage,
            "sampling_request::stops is a text, and sampling_request::ids writes none; give "
            "sampling_request::stop_tokens");
      texts_.push_back(tokens.read(text, "sampling_request::stops", exit_code::usage));
      if (texts_.back().empty())
        throw error(exit_code::usage,
                    "sampling_request::stops is empty; give a text or leave it out");
    }
  }
  /// Adds a token that finishes a text. `said`: the token is written as part of the text, as those
  /// of the request are.
  void add(std::int32_t id, bool said) {
    if (!said && std::ranges::find(ids_, id) == ids_.end()) unsaid_.push_back(id);
    ids_.push_back(id);
  }
  bool is_said(std::int32_t id) const { return std::ranges::find(unsaid_, id) == unsaid_.end(); }
  /// Returns "stop", "length", or null while a text goes on.
  const char* of(const continued_text& t) const {
    if (t.fresh() > 0 && std::find(ids_.begin(), ids_.end(), t.tokens.back()) != ids_.end())
      return "stop";
    for (const std::vector<std::int32_t>& s : texts_)
      if (t.fresh() >= std::ssize(s) &&
          std::equal(s.begin(), s.end(), t.tokens.end() - std::ssize(s)))
        return "stop";
    return t.fresh() >= most_ ? "length" : nullptr;
  }
  std::int64_t most() const { return most_; }

private:
  std::int64_t most_;
  std::vector<std::int32_t> ids_, unsaid_;
  std::vector<std::vector<std::int32_t>> texts_;
};

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
    chat_prompts::say(c, chat_role::user, as_utf8(line));
    continued_text t = chat.asking(c, "the conversation", exit_code::data);
    t.number = turn++;
    generator g = make(std::span(&t, 1));
    answers.run(std::span(&t, 1), g, all.first());
    if (all.first()) tell(t);
    chat_prompts::say(c, chat_role::assistant, as_utf8(t.written));
  }
}

/// Returns a text as a line of JSON. `numbered`: with the number of its sample.
inline std::string json_of(const continued_text& t, const token_text& tokens, bool numbered,
                           bool logprobs) {
  json_output d = json_output::object();
  if (numbered) d["sample"] = t.sample + 1;
  if (!tokens.ids()) d["prompt"] = as_utf8(t.prompt), d["text"] = as_utf8(t.written);
  d["prompt_tokens"] = std::span(t.tokens).first(t.given);
  d["tokens"] = std::span(t.tokens).subspan(t.given);
  if (logprobs) d["logprobs"] = t.logprobs;
  d["end"] = t.end;
  return json_line(d);
}

/// Returns the log probabilities of a text's new tokens, one a line, with their sum and mean; ""
/// without any.
inline std::string logprobs_text(const continued_text& t, const token_text& tokens) {
  if (t.logprobs.empty()) return "";
  std::string lines =
      fmt::format("{:>10} {:>8}{}\n", "logprob", "token", tokens.ids() ? "" : "  text");
  double sum = 0;
  for (std::size_t i = 0; i < t.logprobs.size(); ++i) {
    const std::int32_t token = t.tokens[t.given + i];
    sum += t.logprobs[i];
    lines += fmt::format("{:>10.4f} {:>8}", t.logprobs[i], token);
    if (!tokens.ids()) lines += "  " + nlohmann::json(as_utf8(tokens.bytes_of(token))).dump();
    lines += '\n';
  }
  const double mean = sum / static_cast<double>(t.logprobs.size());
  return lines + fmt::format("{:>10.4f} in all, {:.4f} a token, perplexity {:.4f}\n", sum, mean,
                             perplexity(-mean));
}

inline std::string speed_of(const generation_work& w) {
  const auto part = [](const char* name, std::int64_t tokens, double seconds) {
    return fmt::format("{}: {} tokens in {:.3f} s, {} tokens/s", name, tokens, seconds,
                       count_text(seconds > 0 ? static_cast<double>(tokens) / seconds : 0).view());
  };
  return part("prompts", w.prompt, w.prompt_seconds) + " | " +
         part("new", w.fresh, w.fresh_seconds);
}

/// Returns a hash of the tokens of all texts.
inline std::uint64_t hash_of(std::span<const continued_text> texts) {
  xxh64 hash;
  for (const continued_text& t : texts) {
    const std::int64_t n = std::ssize(t.tokens);
    hash.add(std::as_bytes(std::span(&n, 1)));
    hash.add(std::as_bytes(std::span(t.tokens)));
  }
  return hash.value();
}

} // namespace detail

/// Runs `generate` on all ranks at once: each has its part of the weights, and the first one
/// writes. A single text is printed as it grows, and ends with a line end. Several texts, for
/// several prompts or samples, are printed in the order of the prompts, each when its batch is
/// finished, with lines of dashes between them. JSON has a line for each text: {"prompt": text,
/// "text": prompt and continuation, "prompt_tokens": [...], "tokens": [new ones], "end": "stop",
/// "length" or "positions"}. With ids the texts are left out, numbered samples begin with
/// {"sample": 1, ...}, and logprobs add {"logprobs": [one for each new token]}, or lines behind a
/// text. The standard error gets the speed, a sentence for each text that ends at the model's last
/// position, and before the first text a sentence about positions that were never trained. In a
/// chat, prompts are messages of a user, and texts are answers alone; without a prompt it talks
/// (detail::talk).
inline void run_generation(const program_view& p, generation_request r, device& on,
                           const planes& both = self::both()) {
  agreement all(both.hosts);
  const std::string named = all.before_others();
  const sampling_request& s = r.sampling;
  const std::optional<found_model> found = detail::model_of_texts(r.start, all, named);
  if (found) r.tokenizer = with_tokenizer_of_run(std::move(r.tokenizer), *found);
  const token_text tokens = detail::token_text_of(p, r.tokenizer, s.ids, found);
  std::optional<detail::chat_prompts> chat;
  if (s.chat) chat.emplace(s, r.tokenizer, tokens, found ? found->folder.path() : "");
  const bool talks = chat && s.prompts.empty() && !s.prompts_file;
  std::vector<detail::continued_text> texts;
  if (!talks)
    texts =
        detail::with_samples(detail::read_prompts(s, tokens, chat ? &*chat : nullptr), s.samples);
  detail::text_end end(s, p, tokens);
  if (found && !s.ignores_eos) {
    for (const std::int32_t id : detail::end_tokens_of(found->folder)) end.add(id, !chat);
    if (chat) end.add(chat->end_of_turn(), false);
  }
  all.after_first(found ? name_of(*found) : "");
  if (found) detail::require_same_model(all, found->folder);
  if (all.apart()) all.require_same(detail::hash_of(texts), "other prompts", "give all the same");
  const rank_program of_rank(p, both.ranks);
  stores weights(of_rank.view(), false, both.ranks.coordinate(), on, both.ranks.ranks());
  if (found) load_weights(found->folder, p, weights);
  else weights.initialise(s.seed);
  std::int64_t longest = 0; // longest text without its last token, which none follows
  for (const detail::continued_text& t : texts) {
    const auto before = static_cast<std::int64_t>(t.given);
    longest = std::max(longest, before + std::min(p.positions - before, end.most() - 1));
  }
  if (found && all.first())
    for (const std::string& line : detail::untrained_reached(found->folder, p, longest))
      print_note(line);

  detail::continuation batch(detail::continuing_of(r), tokens, end);
  const auto tell_end = [&](const detail::continued_text& t) {
    if (std::string_view(t.end) == "positions")
      print_note(fmt::format("text {} ends after {} of {} tokens: {} has {} positions",
                             t.number * s.samples + t.sample + 1, t.fresh(), end.most(), p.name,
                             p.positions));
  };
  if (talks) {
    const auto make = [&](std::span<const detail::continued_text> text) {
      return generator(of_rank.view(), on, weights, detail::room_of(text, p, end.most()),
                       both.ranks);
    };
    detail::talk(*chat, all, batch, make, tell_end);
    if (all.first()) print_note(detail::speed_of(batch.work()));
    return;
  }
  const bool live = all.first() && texts.size() == 1 && !s.json;
  const auto at_once = static_cast<std::size_t>(s.batch);
  for (std::size_t first = 0; first < texts.size(); first += at_once) {
    const auto some = std::span(texts).subspan(first, std::min(at_once, texts.size() - first));
    generator g(of_rank.view(), on, weights, detail::room_of(some, p, end.most()), both.ranks);
    batch.run(some, g, live);
    if (!all.first()) continue;
    for (std::size_t b = 0; b < some.size() && !live; ++b) {
      if (s.json) print(detail::json_of(some[b], tokens, s.numbered, s.logprobs));
      else
        print((first + b > 0 ? "---------------\n" : "") + some[b].written + "\n" +
              detail::logprobs_text(some[b], tokens));
    }
    if (live) print(detail::logprobs_text(some[0], tokens));
  }
  if (!all.first()) return;
  for (const detail::continued_text& t : texts) tell_end(t);
  print_note(detail::speed_of(batch.work()));
}

} // namespace mc
