// The tokenizer of a run, as its flags or the folder of its model name it.
#pragma once

#include <megacpp/options/options.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

namespace mc {

/// Whether a model's folder has files of a tokenizer.
inline bool has_tokenizer(const std::string& folder) {
  const auto there = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::path(folder) / name, ignored);
  };
  return there("tokenizer.json") || (there("vocab.json") && there("merges.txt")) ||
         !tiktoken_in(folder).empty();
}

/// Whether flags name one.
inline bool names_tokenizer(const data_flags& d) {
  return d.tokenizer_model.given() || d.vocab_file.given() || d.merge_file.given();
}

/// True if the flags name a file of SentencePiece, which nothing here reads.
inline bool of_sentencepiece(const data_flags& d) {
  const std::string& type = d.tokenizer_type();
  return type == "Llama2Tokenizer" || type == "SentencePieceTokenizer" ||
         type == "GPTSentencePieceTokenizer";
}

/// The tokenizer that flags name, or else that of the folder of a model, "" being none; null if
/// there is none of either, or if tokens are bytes, characters or ids. Throws mc::error.
inline std::unique_ptr<const tokenizer> run_tokenizer(const data_flags& d,
                                                      const std::string& folder = "") {
  const std::string& type = d.tokenizer_type();
  const auto usage = [](const std::string& sentence) { return error(exit_code::usage, sentence); };
  const bool files = d.vocab_file.given() || d.merge_file.given();
  if (d.tokenizer_type.given() && (type == "byte" || type == "char" || type == "NullTokenizer")) {
    if (names_tokenizer(d))
      throw usage(
          fmt::format("--tokenizer-type {} and {} contradict each other; leave one of them "
                      "out",
                      type, files ? "--vocab-file" : "--tokenizer-model"));
    return nullptr;
  }
  if (of_sentencepiece(d))
    throw usage(
        fmt::format("--tokenizer-type {} is of a file of SentencePiece, which is not read here; "
                    "give a folder with a tokenizer.json as --tokenizer-model",
                    type));
  const bool any = !d.tokenizer_type.given();
  if (files && d.tokenizer_model.given())
    throw usage("--tokenizer-model and --vocab-file contradict each other; give one");
  const bool saved = !names_tokenizer(d) && !folder.empty() && has_tokenizer(folder);
  if (files || (type == "GPT2BPETokenizer" && !saved)) {
    if (!d.vocab_file.given() || !d.merge_file.given())
      throw usage(
          "GPT-2's tokenizer needs --vocab-file and --merge-file; give both, or its folder "
          "as --tokenizer-model");
    if (!any && type != "GPT2BPETokenizer")
      throw usage(
          fmt::format("--vocab-file and --merge-file are of GPT2BPETokenizer, and "
                      "--tokenizer-type is {}; leave one of them out",
                      type));
    return std::make_unique<tokenizer>(read_vocabulary_and_merges(d.vocab_file(), d.merge_file()));
  }
  if (d.tokenizer_model.given()) {
    const bool tiktoken = d.tokenizer_model().ends_with(".tiktoken");
    if (!any && tiktoken != (type == "TikTokenizer"))
      throw usage(
          fmt::format("--tokenizer-type is {}, but --tokenizer-model {} is {}a .tiktoken "
                      "file; leave --tokenizer-type out",
                      type, d.tokenizer_model(), tiktoken ? "" : "not "));
    return open_tokenizer(d.tokenizer_model());
  }
  if (saved) return open_tokenizer(folder);
  if (!any)
    throw usage(
        fmt::format("--tokenizer-type {} needs --tokenizer-model, the folder of a model or "
                    "the file of a tokenizer",
                    type));
  return nullptr;
}

} // namespace mc
