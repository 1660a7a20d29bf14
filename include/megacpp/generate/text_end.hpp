// The conditions that finish a text of `generate`.
#pragma once

#include <megacpp/generate/prompts.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/io/json_file.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace mc::detail {

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

} // namespace mc::detail
