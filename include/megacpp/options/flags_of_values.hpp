// The flags that values of requests come from. Code that works with a request names its member in a
// message, report_request::curve for example; a user who gave flags reads the flag.
#pragma once

#include <array>
#include <cstddef>
#include <new>
#include <string>
#include <string_view>

namespace mc {

/// A member of a request, and the flag that gives it.
struct flag_of_value {
  std::string_view value, flag;
};
inline constexpr std::array flags_of_values{
    flag_of_value{"batch_schedule::increment", "INCREMENT of --rampup-batch-size"},
    flag_of_value{"batch_schedule::last", "--global-batch-size"},
    flag_of_value{"batch_schedule::start", "START of --rampup-batch-size"},
    flag_of_value{"data_request::cache", "--data-cache-path"},
    flag_of_value{"data_request::eod_mask_loss", "--eod-mask-loss"},
    flag_of_value{"data_request::eod_token", "--eod-token"},
    flag_of_value{"data_request::kind", "--data-type"},
    flag_of_value{"data_request::learned", "--chat-loss"},
    flag_of_value{"data_request::paths", "--data-path"},
    flag_of_value{"data_request::reset_attention_mask", "--reset-attention-mask"},
    flag_of_value{"data_request::reset_position_ids", "--reset-position-ids"},
    flag_of_value{"data_request::seed", "--seed"},
    flag_of_value{"data_request::split", "--split"},
    flag_of_value{"export_request::load", "--load"},
    flag_of_value{"export_request::save", "--save"},
    flag_of_value{"loop_request::batches", "--global-batch-size"},
    flag_of_value{"loop_request::bench", "--bench-json"},
    flag_of_value{"loop_request::epochs", "--epochs"},
    flag_of_value{"loop_request::eval_interval", "--eval-interval"},
    flag_of_value{"loop_request::eval_iters", "--eval-iters"},
    flag_of_value{"loop_request::exit_minutes", "--exit-duration-in-mins"},
    flag_of_value{"loop_request::keep_best", "--keep-best"},
    flag_of_value{"loop_request::keep_latest", "--keep-latest-k"},
    flag_of_value{"loop_request::sample_interval", "--sample-interval"},
    flag_of_value{"loop_request::sample_prompt", "--sample-prompt"},
    flag_of_value{"loop_request::samples_asked", "--train-samples"},
    flag_of_value{"loop_request::save", "--save"},
    flag_of_value{"loop_request::steps", "--train-iters"},
    flag_of_value{"loop_request::warmup", "--warmup"},
    flag_of_value{"report_request::curve", "--loss-curve"},
    flag_of_value{"report_request::metrics", "--metrics-jsonl"},
    flag_of_value{"report_request::peak_tflops", "--peak-tflops"},
    flag_of_value{"report_request::profile", "--profile"},
    flag_of_value{"report_request::trace", "--trace"},
    flag_of_value{"report_request::trace_after", "--profile-step-start"},
    flag_of_value{"report_request::trace_last", "--profile-step-end"},
    flag_of_value{"run_constants::clip", "--clip-grad"},
    flag_of_value{"sampling_request::chat", "--chat"},
    flag_of_value{"sampling_request::ids", "--ids"},
    flag_of_value{"sampling_request::prompts", "--prompt"},
    flag_of_value{"sampling_request::prompts_file", "--prompts-file"},
    flag_of_value{"sampling_request::stop_tokens", "--stop-tokens"},
    flag_of_value{"sampling_request::stops", "--stop"},
    flag_of_value{"sampling_request::thinks", "--enable-thinking"},
    flag_of_value{"schedule::decay", "--lr-decay-iters"},
    flag_of_value{"schedule::lr", "--lr"},
    flag_of_value{"schedule::min_lr", "--min-lr"},
    flag_of_value{"schedule::style", "--lr-decay-style"},
    flag_of_value{"schedule::warmup", "--lr-warmup-iters"},
    flag_of_value{"schedule::wsd_decay", "--lr-wsd-decay-iters"},
    flag_of_value{"split_paths::test", "--test-data-path"},
    flag_of_value{"split_paths::train", "--train-data-path"},
    flag_of_value{"split_paths::valid", "--valid-data-path"},
    flag_of_value{"start_request::finetune", "--finetune"},
    flag_of_value{"start_request::load", "--load"},
    flag_of_value{"text_rules::invalid", "--invalid-utf8"},
    flag_of_value{"text_rules::keys", "--json-keys"},
    flag_of_value{"tiktoken_rules::expression", "megacpp-data's --tiktoken-pattern"},
    flag_of_value{"tokenizer_request::merges", "--merge-file"},
    flag_of_value{"tokenizer_request::model", "--tokenizer-model"},
    flag_of_value{"tokenizer_request::type", "--tokenizer-type"},
    flag_of_value{"tokenizer_request::vocabulary", "--vocab-file"},
};

/// Returns a sentence in which each member of a request is called by its flag.
inline std::string in_flags(std::string sentence) {
  constexpr std::string_view letters =
      "abcdefghijklmnopqrstuvwxyz_:0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  for (const auto& [value, flag] : flags_of_values)
    for (std::size_t at = 0; (at = sentence.find(value, at)) != std::string::npos; ++at) {
      const std::size_t end = at + value.size();
      std::string_view behind = std::string_view(sentence).substr(end, 2);
      if (behind.starts_with(':') && behind != "::") behind.remove_prefix(1); // punctuation
      if ((at == 0 || letters.find(sentence[at - 1]) == letters.npos) &&
          (behind.empty() || letters.find(behind[0]) == letters.npos))
        sentence.replace(at, value.size(), flag);
    }
  return sentence;
}

/// Returns a sentence with flags in the place of members of requests, or as it is where memory is
/// short.
inline std::string spelled_flags(const std::string& sentence) {
  try {
    return in_flags(sentence);
  } catch (const std::bad_alloc&) {
    return sentence;
  }
}

} // namespace mc
