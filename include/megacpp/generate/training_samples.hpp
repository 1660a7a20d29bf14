// Sample texts that a training run writes as it goes on.
#pragma once

#include <megacpp/generate/generate.hpp>
#include <megacpp/train/sample_writer.hpp>

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mc {

/// Continues the prompt of a request by a number of tokens, drawn as `generate` does by default.
/// The random numbers follow from the seed and are the same each time, so that texts differ only by
/// what was learned. If the data are token ids without a tokenizer, so are prompt and text. If the
/// data are conversations, the prompt is a user's message, and the text the answer.
class training_samples final : public sample_writer {
public:
  training_samples(const program_view& p, const training_request& r, device& on,
                   const stores& weights, const run_data& data)
      : tokens_(p, r.data.tokenizer, r.start.load.value_or(""), data.text.characters,
                is_of_ids(r.data, data), data.tokenizer),
        end_(r.loop.sample_tokens),
        text_(data.template_folder.empty() ? prompt_of(r.loop)
                                           : question_of(r, data.template_folder)),
        writes_({{.seed = r.loop.numbers.seed}, true, true, p.name}, tokens_, end_),
        generator_(p, on, weights, detail::room_of(std::span(&text_, 1), p, end_.most())) {}

  std::string_view write(const stop_signals* stop) override {
    text_.tokens.resize(text_.given);
    text_.written = text_.prompt;
    generator_.renew();
    writes_.run(std::span(&text_, 1), generator_, false, stop);
    return text_.written;
  }

private:
  static bool is_of_ids(const data_request& d, const run_data& data) {
    return d.of_ids() || d.kind == data_kind::random || (!data.text.source && !data.tokenizer);
  }
  detail::continued_text question_of(const training_request& r, const std::string& folder) {
    const std::optional<std::string>& prompt = r.loop.sample_prompt;
    if (!prompt)
      throw error(exit_code::usage,
                  "loop_request::sample_interval needs loop_request::sample_prompt with what a "
                  "user says, since the data "
                  "of this run are conversations");
    const detail::chat_prompts chat({}, r.data.tokenizer, tokens_, folder);
    conversation c = chat.begun();
    detail::chat_prompts::say(c, chat_speaker::user, *prompt);
    end_.add(chat.end_of_turn(), false);
    return chat.asking(c, "loop_request::sample_prompt", exit_code::usage);
  }
  detail::continued_text prompt_of(const loop_request& loop) const {
    detail::continued_text t;
    const std::optional<std::string>& prompt = loop.sample_prompt;
    if (prompt)
      t.tokens = tokens_.read_prompt(*prompt, "loop_request::sample_prompt", exit_code::usage);
    else if (!tokens_.ids()) t.tokens = {tokens_.first("loop_request::sample_prompt")};
    if (t.tokens.empty())
      throw error(
          exit_code::usage,
          tokens_.ids()
              ? "loop_request::sample_interval needs loop_request::sample_prompt with token ids, "
                "since "
                "the data of this run are ids; give at least one"
              : "loop_request::sample_prompt is empty; leave it out to begin with a line end");
    t.given = t.tokens.size();
    if (!tokens_.ids()) t.prompt = prompt.value_or("");
    else
      for (const std::int32_t id : t.tokens) tokens_.write(id, t.prompt);
    return t;
  }

  token_text tokens_;
  detail::text_end end_;
  detail::continued_text text_;
  detail::continuation writes_;
  generator generator_;
};

inline std::unique_ptr<sample_writer> make_training_samples(const program_view& p,
                                                            const training_request& r, device& on,
                                                            const stores& weights,
                                                            const run_data& data) {
  return std::make_unique<training_samples>(p, r, on, weights, data);
}

} // namespace mc
