// The flags that values of requests come from. Code that works with a request names its member in a
// message, report_request::curve for example; a user who gave flags reads the flag.
#pragma once

#include <megacpp/options/flag.hpp>

#include <new>
#include <string>
#include <string_view>

namespace mc {

/// The members of a request that sentences name, with commas between them. The flag of such a value
/// has the member's name, or stands behind =.
struct values_of_request {
  std::string_view request, members;
};
inline constexpr values_of_request flags_of_values[] = {
    {"batch_schedule",
     "increment=INCREMENT of --rampup-batch-size, last=global-batch-size, start=START of "
     "--rampup-batch-size"},
    {"data_request",
     "cache=data-cache-path, eod_mask_loss, eod_token, fields=chat-keys, kind=data-type, "
     "learned=chat-loss, paths=data-path, reset_attention_mask, reset_position_ids, seed, split"},
    {"export_request",
     "layout=export-layout, max_shard=max-shard-size, merge, save, through_nf4=dequantised"},
    {"loop_request",
     "batches=global-batch-size, bench=bench-json, epochs, eval_interval, eval_iters, "
     "exit_minutes=exit-duration-in-mins, keep_best, keep_latest=keep-latest-k, sample_interval, "
     "sample_prompt, samples_asked=train-samples, save, steps=train-iters, stop_after_no_better, "
     "warmup"},
    {"report_request",
     "address=metrics-address, curve=loss-curve, katib=katib-metrics, metrics=metrics-jsonl, "
     "peak_tflops, "
     "port=metrics-port, profile, tensorboard=tensorboard-dir, trace, "
     "trace_after=profile-step-start, "
     "trace_last=profile-step-end"},
    {"run_constants", "clip=clip-grad"},
    {"sampling_request",
     "chat, ids, prompts=prompt, prompts_file, stop_tokens, stops=stop, thinks=enable-thinking"},
    {"schedule",
     "decay=lr-decay-iters, lr, min_lr, style=lr-decay-style, warmup=lr-warmup-iters, "
     "wsd_decay=lr-wsd-decay-iters"},
    {"split_paths", "test=test-data-path, train=train-data-path, valid=valid-data-path"},
    {"start_request",
     "adapters=adapter, finetune, load, other_base=allow-other-base, "
     "pretrained=pretrained-checkpoint, random_weights"},
    {"text_rules", "invalid=invalid-utf8, keys=json-keys"},
    {"tiktoken_rules", "expression=megacpp-data's --tiktoken-pattern"},
    {"tokenizer_request",
     "merges=merge-file, model=tokenizer-model, type=tokenizer-type, vocabulary=vocab-file"}};

/// Calls f(value, flag) for each: f("schedule::decay", "--lr-decay-iters").
template <class F> void for_each_flag_of_value(const F& f) {
  for (const auto& [request, members] : flags_of_values)
    each_between(members, ',', [&, owner = request](std::string_view one) {
      one.remove_prefix(one.starts_with(' ') ? 1 : 0);
      const std::size_t is = std::min(one.find('='), one.size());
      std::string flag(is < one.size() ? one.substr(is + 1) : dashed(std::string(one)));
      if (flag.find("--") == std::string::npos) flag.insert(0, "--");
      f(fmt::format("{}::{}", owner, one.substr(0, is)), flag);
    });
}

/// Returns a sentence in which each member of a request is called by its flag.
inline std::string in_flags(std::string sentence) {
  constexpr std::string_view letters =
      "abcdefghijklmnopqrstuvwxyz_:0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
  for_each_flag_of_value([&](const std::string& value, const std::string& flag) {
    for (std::size_t at = 0; (at = sentence.find(value, at)) != std::string::npos; ++at) {
      const std::size_t end = at + value.size();
      std::string_view behind = std::string_view(sentence).substr(end, 2);
      if (behind.starts_with(':') && behind != "::") behind.remove_prefix(1); // punctuation
      if ((at == 0 || letters.find(sentence[at - 1]) == std::string_view::npos) &&
          (behind.empty() || letters.find(behind[0]) == std::string_view::npos))
        sentence.replace(at, value.size(), flag);
    }
  });
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
