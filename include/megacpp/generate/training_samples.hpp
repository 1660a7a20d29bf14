// `train --sample-interval`: texts on the way.
#pragma once

#include <megacpp/generate/generate.hpp>
#include <megacpp/train/sample_writer.hpp>

#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace mc {

/// Continues --sample-prompt by up to --max-new-tokens tokens, drawn as `generate` draws them if no
/// other flag is given: each time with the same random numbers, which follow from --seed, so that
/// texts differ by what was learned. Where the data are token ids without a tokenizer, so are
/// prompt and text; where they are conversations, the prompt is what a user says, and the text the
/// answer.
class training_samples final : public sample_writer {
public:
  training_samples(const program_view& p, const options& o, device& on, const stores& weights,
                   const run_data& data)
      : tokens_(p, o, data.text.characters, is_of_ids(o, data), data.words),
        end_(o.sampling.max_new_tokens()),
        text_(data.template_folder.empty() ? prompt_of(o) : question_of(o, data.template_folder)),
        writes_({{.seed = static_cast<std::uint64_t>(o.model.seed())}, true, true, p.name}, tokens_,
                end_),
        generator_(p, on, weights, detail::room_of(std::span(&text_, 1), p, end_.most())) {}

  std::string_view write(const stop_signals* stop) override {
    text_.tokens.resize(text_.given);
    text_.written = text_.prompt;
    generator_.renew();
    writes_.run(std::span(&text_, 1), generator_, false, stop);
    return text_.written;
  }

private:
  static bool is_of_ids(const options& o, const run_data& data) {
    return detail::is_of_ids(o) || o.data.mock_data() || (!data.text.source && !data.words);
  }
  detail::continued_text question_of(const options& o, const std::string& folder) {
    const text_flag& prompt = o.training.sample_prompt;
    if (!prompt.given())
      throw error(exit_code::usage,
                  "--sample-interval needs --sample-prompt with what a user says, since the data "
                  "of this run are conversations");
    const detail::chat_prompts chat(o, tokens_, folder);
    conversation c = chat.begun();
    detail::chat_prompts::say(c, chat_role::user, prompt());
    end_.add(chat.end_of_turn(), false);
    return chat.asking(c, "--sample-prompt", exit_code::usage);
  }
  detail::continued_text prompt_of(const options& o) const {
    detail::continued_text t;
    const text_flag& prompt = o.training.sample_prompt;
    if (prompt.given())
      t.tokens = tokens_.read_prompt(prompt(), "--sample-prompt", exit_code::usage);
    else if (!tokens_.ids()) t.tokens = {tokens_.first("--sample-prompt")};
    if (t.tokens.empty())
      throw error(exit_code::usage,
                  tokens_.ids()
                      ? "--sample-interval needs --sample-prompt with token ids, since "
                        "the data of this run are ids; give at least one"
                      : "--sample-prompt is empty; leave it out to begin with a line end");
    t.given = t.tokens.size();
    if (!tokens_.ids()) t.prompt = prompt();
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

inline std::unique_ptr<sample_writer> make_training_samples(const program_view& p, const options& o,
                                                            device& on, const stores& weights,
                                                            const run_data& data) {
  return std::make_unique<training_samples>(p, o, on, weights, data);
}

} // namespace mc
