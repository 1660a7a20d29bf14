// The request of a run's data.
#pragma once

#include <megacpp/chat/chat_fields.hpp>
#include <megacpp/chat/chat_template.hpp>
#include <megacpp/request/tokenizer_request.hpp>
#include <megacpp/sets/blending.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// The forms in which data are stored. Random tokens are drawn, and stored nowhere.
enum class data_kind : std::uint8_t { text, u16, i32, indexed, chat, random };

inline std::string_view name_of(data_kind k) {
  constexpr std::string_view names[] = {"text", "u16", "i32", "indexed", "chat", "random"};
  return names[static_cast<unsigned>(k)];
}

/// The data that are named for training, validation and test apart: files, or prefixes of data sets
/// with or without weights.
struct split_paths {
  std::vector<std::string> train, valid, test;
};

/// The data of a run. A message names a member as data_request::member.
struct data_request {
  data_kind kind = data_kind::text;
  std::vector<std::string> paths;      ///< files, or prefixes, each with a weight before it or none
  std::optional<split_paths> by_split; ///< in place of `paths`
  /// Shares for training, validation and test, such as 969,30,1. An evaluation reads the second
  /// one.
  std::optional<std::string> split;
  std::string cache; ///< folder that keeps the order of samples for the next start; "" is none
  tokenizer_request tokenizer;
  bool reset_position_ids = false;      ///< positions begin anew behind the end of a document
  bool reset_attention_mask = false;    ///< attention stays within a document
  bool eod_mask_loss = false;           ///< nothing is learned behind the end of a document
  std::optional<std::string> eod_token; ///< token that ends a document, if not the tokenizer's
  trained_on learned = trained_on::assistant; ///< tokens of conversations that are learned
  std::optional<chat_fields> fields;          ///< of conversations that are no lists of messages
  std::uint64_t seed = 1234; ///< seed of random tokens, and of the order of a data set's samples

  /// The shares of a training run that asks for none.
  static constexpr const char* default_split = "969,30,1";
  std::string training_split() const { return split.value_or(default_split); }
  bool of_ids() const { return kind == data_kind::u16 || kind == data_kind::i32; }
  /// Returns the files and prefixes of `paths`, without weights.
  std::vector<std::string> named() const {
    std::vector<std::string> all = paths;
    if (kind == data_kind::indexed) std::erase_if(all, detail::looks_like_weight);
    return all;
  }
};

} // namespace mc
