// Texts that a model is to continue.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mc {

/// The texts that are wanted, and how their tokens are chosen. A sentence names a member as
/// sampling_request::member.
struct sampling_request {
  std::vector<std::string> prompts;        ///< to be continued, in one batch
  std::optional<std::string> prompts_file; ///< file with further prompts, one a line
  bool chat = false;                       ///< a prompt is what a user says
  std::string system_prompt;               ///< of a conversation, said first; "" is nothing
  bool thinks = true;                      ///< before it answers, where the template has a switch
  bool insists_on_thinking = false;        ///< a template without that switch is refused
  bool ids = false;                        ///< prompts and texts are token ids
  std::int64_t samples = 1;                ///< texts for each prompt
  bool numbered = false;                   ///< and each is told with its number
  std::int64_t most = 200;                 ///< new tokens of a text
  std::vector<std::string> stop_tokens;    ///< lists of ids, any of which finishes a text
  std::vector<std::string> stops;          ///< texts, any of which does
  bool ignores_eos = false;                ///< the tokens that end a text for the model do not
  double temperature = 1;                  ///< 0: the likeliest token is always taken
  std::int64_t top_k = 0;                  ///< likeliest tokens that are chosen among; 0: all
  double top_p = 1;                        ///< probability that those have together
  std::uint64_t seed = 1234;
  bool slides = true;      ///< at the end of the positions the later half is read again
  std::int64_t batch = 16; ///< texts that are continued at once
  bool caches = true;      ///< keys and values of earlier tokens are kept
  bool logprobs = false;   ///< told of each new token
  bool json = false;       ///< one object a text in place of the text
};

} // namespace mc
