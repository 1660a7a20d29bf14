// The request of texts that a model continues.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mc {

/// The texts to be written, and how their tokens are chosen. A message names a member as
/// sampling_request::member.
struct sampling_request {
  std::vector<std::string> prompts;        ///< texts to be continued, in one batch
  std::optional<std::string> prompts_file; ///< file with further prompts, one a line
  bool chat = false;                       ///< a prompt is a user's turn
  std::string system_prompt;               ///< text of the system, which comes first; "" is none
  bool thinks = true;                      ///< the model does so before it answers, if it can
  bool insists_on_thinking = false;        ///< a template without that switch is refused
  bool ids = false;                        ///< prompts and texts are token ids
  std::int64_t samples = 1;                ///< texts for each prompt
  bool numbered = false;                   ///< each text is told with its number
  std::int64_t most = 200;                 ///< most new tokens of a text
  std::vector<std::string> stop_tokens;    ///< lists of ids, each of which ends a text
  std::vector<std::string> stops;          ///< texts, each of which ends a text
  bool ignores_eos = false;                ///< the model's own tokens that end a text do not
  double temperature = 1;                  ///< 0: the likeliest token is always taken
  std::int64_t top_k = 0;                  ///< tokens are drawn from so many likeliest; 0: all
  double top_p = 1;                        ///< likeliest tokens with this probability together
  std::uint64_t seed = 1234;
  bool slides = true;      ///< at the end of the positions the later half is read again
  std::int64_t batch = 16; ///< texts that are continued at once
  bool caches = true;      ///< keys and values of earlier tokens are kept
  bool logprobs = false;   ///< the log probability of each new token is told
  bool json = false;       ///< one object a text in place of the text
};

} // namespace mc
