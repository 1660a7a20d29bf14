// The tokenizer of a run, as its request or the folder of its model names it.
#pragma once

#include <megacpp/request/tokenizer_request.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <memory>
#include <string>
#include <string_view>

namespace mc {

/// Opens the tokenizer that a request names, or else the one in the folder of a model, "" being
/// none. Returns null if there is neither, or if tokens are bytes, characters or ids. Throws
/// mc::error.
inline std::unique_ptr<const tokenizer> run_tokenizer(const tokenizer_request& r,
                                                      const std::string& folder = "") {
  const std::string_view type = r.kind();
  const auto usage = [](const std::string& sentence) { return error(exit_code::usage, sentence); };
  const bool files = r.vocabulary || r.merges;
  if (r.type && (type == "byte" || type == "char" || type == "NullTokenizer")) {
    if (r.names_files())
      throw usage(fmt::format(
          "tokenizer_request::type {} and {} contradict each other; leave one of them out", type,
          files ? "tokenizer_request::vocabulary" : "tokenizer_request::model"));
    return nullptr;
  }
  if (r.of_sentencepiece())
    throw usage(fmt::format(
        "tokenizer_request::type {} is of a file of SentencePiece, which is not read here; "
        "give a folder with a tokenizer.json as tokenizer_request::model",
        type));
  const bool any = !r.type;
  if (files && r.model)
    throw usage(
        "tokenizer_request::model and tokenizer_request::vocabulary contradict each other; give "
        "one");
  const bool saved = !r.names_files() && !folder.empty() && has_tokenizer(folder);
  if (files || (type == "GPT2BPETokenizer" && !saved)) {
    if (!r.vocabulary || !r.merges)
      throw usage(
          "GPT-2's tokenizer needs tokenizer_request::vocabulary and tokenizer_request::merges; "
          "give both, or its folder as tokenizer_request::model");
    if (!any && type != "GPT2BPETokenizer")
      throw usage(
          fmt::format("tokenizer_request::vocabulary and tokenizer_request::merges are of "
                      "GPT2BPETokenizer, and tokenizer_request::type is {}; leave one of them out",
                      type));
    return std::make_unique<tokenizer>(read_vocabulary_and_merges(*r.vocabulary, *r.merges));
  }
  if (r.model) {
    const bool tiktoken = r.model->ends_with(".tiktoken");
    if (!any && tiktoken != (type == "TikTokenizer"))
      throw usage(fmt::format(
          "tokenizer_request::type is {}, but tokenizer_request::model {} is {}a .tiktoken "
          "file; leave tokenizer_request::type out",
          type, *r.model, tiktoken ? "" : "not "));
    return open_tokenizer(*r.model);
  }
  if (saved) return open_tokenizer(folder);
  if (!any)
    throw usage(fmt::format(
        "tokenizer_request::type {} needs tokenizer_request::model, the folder of a model or "
        "the file of a tokenizer",
        type));
  return nullptr;
}

} // namespace mc
