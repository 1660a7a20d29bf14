// `generate`: continues prompts, token by token.
#pragma once

#include <megacpp/generate/continuation.hpp>
#include <megacpp/inspect/untrained_positions.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/run/held_adapters.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/train/evaluate.hpp>

#include <optional>
#include <string>
#include <vector>

namespace mc {

namespace detail {

/// Returns the model that continues the texts; nothing if random weights take its place. Throws
/// mc::error.
inline std::optional<found_model> model_of_texts(const start_request& r, const agreement& ranks,
                                                 const std::string& named) {
  if (r.random_weights) return std::nullopt;
  return required_model(r, "generate", ranks, named);
}

/// Returns the tokens of a model: by its tokenizer, by its characters, as bytes, or as ids.
inline token_text token_text_of(const program_view& p, const tokenizer_request& r, bool ids,
                                const std::optional<found_model>& found) {
  if (!found) return {p, r, "", std::nullopt, ids};
  const std::string& folder = found->folder.path();
  std::optional<character_set> characters = characters_of(found->folder, p.vocabulary, p.name);
  std::shared_ptr<const tokenizer> words;
  if (!ids && !characters) words = run_tokenizer(r, folder);
  return {p, r, folder, std::move(characters), ids, std::move(words)};
}

/// Returns sentences about positions that the state's run never trained, if texts of at most
/// `longest` tokens may reach them; none for a folder without a state.
inline std::vector<std::string> untrained_reached(const model_folder& folder, const program_view& p,
                                                  std::int64_t longest) {
  if (!folder.contains(state_file_name)) return {};
  const state_file file(folder);
  const auto sequence = file.state().field<json_value>("program").field<std::int64_t>(
      "sequence", 1, std::int64_t{1} << 31);
  return longest > sequence ? untrained_positions(p, sequence) : std::vector<std::string>();
}

/// Returns a text as a line of JSON. `numbered`: with the number of its sample.
inline std::string json_of(const continued_text& t, const token_text& tokens, bool numbered,
                           bool logprobs, std::span<const named_adapter> adapters) {
  json_output d = json_output::object();
  if (are_named(adapters))
    d["adapter"] = t.adapter < 0 ? "-" : as_utf8(adapters[static_cast<unsigned>(t.adapter)].name);
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
    const std::int64_t numbers[] = {std::ssize(t.tokens), t.adapter};
    hash.add(std::as_bytes(std::span(numbers)));
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
/// {"sample": 1, ...}, texts that have one of several adapters with {"adapter": its name, ...}, and
/// logprobs add {"logprobs": [one for each new token]}, or lines behind a text. The standard error
/// gets the speed, a sentence for each text that ends at the model's last position, and before the
/// first text a sentence about positions that were never trained. In a chat, prompts are messages
/// of a user, and texts are answers alone; without a prompt it talks (detail::talk).
inline void run_generation(const program_view& p, generation_request r, device& on,
                           const planes& both = self::both()) {
  agreement all(both.hosts);
  const std::string model = all.enter_after_first();
  const sampling_request& s = r.sampling;
  const std::optional<found_model> found = detail::model_of_texts(r.start, all, model);
  if (found && found->state)
    r.tokenizer = with_tokenizer_of_run(std::move(r.tokenizer), found->state->state());
  const token_text tokens = detail::token_text_of(p, r.tokenizer, s.ids, found);
  std::optional<detail::chat_prompts> chat;
  if (s.chat) chat.emplace(s, r.tokenizer, tokens, found ? found->folder.path() : "");
  const bool talks = chat && s.prompts.empty() && !s.prompts_file;
  const std::vector<named_adapter>& adapters = r.start.adapters;
  const bool named = are_named(adapters);
  if (named) require_names(adapters);
  if (r.start.random_weights && !adapters.empty())
    throw error(exit_code::usage,
                "start_request::adapters are for the weights of a model, and "
                "start_request::random_weights has none; leave one out");
  if (named && !s.prompts_file && s.prompts.empty())
    throw error(exit_code::usage,
                "start_request::adapters have names, and nothing says which of them a text has; "
                "give sampling_request::prompts or sampling_request::prompts_file, or one adapter "
                "without a name");
  std::vector<detail::continued_text> texts;
  if (!talks)
    texts = detail::with_samples(detail::read_prompts(s, tokens, chat ? &*chat : nullptr, adapters),
                                 s.samples);
  detail::text_end end(s, p, tokens);
  if (found && !s.ignores_eos) {
    for (const std::int32_t id : detail::end_tokens_of(found->folder)) end.add(id, !chat);
    if (chat) end.add(chat->end_of_turn(), false);
  }
  all.let_others_enter(found ? name_of(*found) : "");
  if (found) detail::require_same_model(all, *found);
  if (all.separate_processes())
    all.require_same(detail::hash_of(texts), "other prompts", "give all the same");
  const program_of_adapters held(p, named ? static_cast<int>(adapters.size()) : 0);
  const rank_program of_rank(held.view(), both.ranks);
  stores weights(of_rank.view(), false, both.ranks.coordinate(), on, both.ranks.ranks());
  if (found) load_start(*found, r.start, held.view(), weights, s.seed, both.hosts);
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
      if (s.json) print(detail::json_of(some[b], tokens, s.numbered, s.logprobs, adapters));
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
