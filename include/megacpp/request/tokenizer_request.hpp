// The request of a tokenizer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace mc {

/// All types of tokenizers, as a flag lists them. Files of SentencePiece's types are not read.
inline constexpr const char* tokenizer_types =
    "byte|char|HuggingFaceTokenizer|GPT2BPETokenizer|TikTokenizer|NullTokenizer|Llama2Tokenizer|"
    "SentencePieceTokenizer|GPTSentencePieceTokenizer";

/// A tokenizer. Without a member it is that of the model's folder, or of bytes.
struct tokenizer_request {
  std::optional<std::string> type;  ///< byte, char, or Megatron-LM's name; none: as the files say
  std::optional<std::string> model; ///< folder of a model, a tokenizer.json or a .tiktoken file
  std::optional<std::string> vocabulary, merges; ///< GPT-2's two files

  /// Returns the type, or byte, as which texts without a tokenizer are read.
  std::string_view kind() const { return type ? std::string_view(*type) : "byte"; }
  /// Tells whether files of a tokenizer are named.
  bool names_files() const { return model || vocabulary || merges; }
  /// Tells whether the type is one of SentencePiece's, whose files are not read.
  bool of_sentencepiece() const {
    return kind() == "Llama2Tokenizer" || kind() == "SentencePieceTokenizer" ||
           kind() == "GPTSentencePieceTokenizer";
  }
};

} // namespace mc
