// open_tokenizer opens a tokenizer by its folder or file, in any of the formats that are read.
#pragma once

#include <megacpp/tokenizer/tiktoken_file.hpp>
#include <megacpp/tokenizer/tokenizer_json.hpp>

#include <filesystem>
#include <string>
#include <system_error>

namespace mc {

namespace detail {

/// Throws mc::error(exit_code::data) where a folder names a token that the rules of its .tiktoken
/// file do not have. These rules follow from the name of that file.
inline void require_named(const tokenizer& t, const tokenizer_config& c) {
  for (const std::vector<named_token>* const list : {&c.listed, &c.special})
    for (const named_token& named : *list) {
      const auto id = t.id_of(named.token.content);
      if (!id || (named.id && *named.id != *id))
        throw error(
            exit_code::data,
            fmt::format(
                "{} is the token \"{}\"{}, which the rules for the name of {} do "
                "not have; give that file alone, or its rules by tiktoken_rules::expression",
                named.place, printable(named.token.content),
                named.id ? fmt::format(" with the id {}", *named.id) : "", t.file()));
    }
}

/// Returns whether a file is a model of SentencePiece. Such a file is a message of protobuf, whose
/// first field is another message that begins with a text, and has a score of four bytes.
inline bool is_sentencepiece(std::string_view text) {
  return text.size() > 3 && text[0] == '\n' && text[2] == '\n' &&
         text.substr(0, 64).find('\0') != std::string_view::npos;
}

/// Throws mc::error(exit_code::data) for a tokenizer's file in another format than JSON, such as a
/// tokenizer.model.
inline void refuse_other_formats(const std::string& path) {
  const mapped_file file(path, exit_code::data);
  if (is_sentencepiece(file.text()))
    throw error(
        exit_code::data,
        fmt::format("{} is a model of SentencePiece, and byte-level BPE alone is read; give "
                    "the model's tokenizer.json where that is of this kind, or turn texts "
                    "into token ids by another program",
                    path));
  if (has_tiktoken_lines(written_text(file)))
    throw error(exit_code::data,
                fmt::format("{} is a file of tiktoken's, and its name does not say how texts are "
                            "cut; give it the name of the rules that it has, such as "
                            "llama3.tiktoken for Llama 3's tokenizer.model (known are {}), or "
                            "give the rules by tiktoken_rules::expression",
                            path, fmt::join(tiktoken_names, ", ")));
}

} // namespace detail

/// Tells whether the folder of a model has the files of a tokenizer.
inline bool has_tokenizer(const std::string& folder) {
  const auto there = [&](const char* name) {
    std::error_code ignored;
    return std::filesystem::exists(std::filesystem::path(folder) / name, ignored);
  };
  return there("tokenizer.json") || (there("vocab.json") && there("merges.txt")) ||
         !tiktoken_in(folder).empty();
}

/// Opens a tokenizer: a folder with a tokenizer.json, with vocab.json and merges.txt, or with a
/// .tiktoken file; a tokenizer.json of any name; or a .tiktoken file, by the rules of its name.
/// Throws mc::error(exit_code::data).
inline std::unique_ptr<const tokenizer> open_tokenizer(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path at(path);
  if (!path.empty() && fs::status(at, ignored).type() == fs::file_type::not_found)
    throw error(exit_code::data,
                fmt::format("{} does not exist; give the path of a tokenizer's folder or file (the "
                            "name of a model on a hub is none: download its files first)",
                            path));
  if (fs::is_directory(at, ignored)) {
    const std::string whole = (at / "tokenizer.json").string(),
                      tokens = (at / "vocab.json").string(), merges = (at / "merges.txt").string();
    if (fs::exists(whole, ignored))
      return std::make_unique<tokenizer>(read_tokenizer_json(whole, path));
    if (fs::exists(tokens, ignored) && fs::exists(merges, ignored))
      return std::make_unique<tokenizer>(read_vocabulary_and_merges(tokens, merges, path));
    if (const std::string ranks = tiktoken_in(path); !ranks.empty()) {
      auto t = open_tokenizer(ranks);
      detail::require_named(*t, read_tokenizer_config(path));
      return t;
    }
    for (const char* other : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model"})
      if (fs::is_regular_file(at / other, ignored)) detail::refuse_other_formats(at / other);
    throw error(
        exit_code::data,
        fmt::format(
            "{} has no tokenizer.json, nor vocab.json and merges.txt, nor one of tiktoken's "
            "files; give the folder or the file of a tokenizer",
            path));
  }
  if (at.extension() == ".tiktoken") {
    std::optional<tiktoken_rules> rules = tiktoken_rules_of(at.stem().string());
    if (!rules)
      throw error(
          exit_code::data,
          fmt::format(
              "{} does not say how texts are cut, since its name is none of {}; give it the "
              "name of the one whose rules it has, or give the rules by "
              "tiktoken_rules::expression",
              path, fmt::join(tiktoken_names, ", ")));
    return std::make_unique<tokenizer>(read_tiktoken(path, std::move(*rules)));
  }
  detail::refuse_other_formats(path);
  return std::make_unique<tokenizer>(read_tokenizer_json(path));
}

/// Returns the token that ends a document: the token `asked`, or, where that is "", a token that
/// ends documents in published vocabularies. `advice` says in messages what to do where the
/// tokenizer has none of these. Throws mc::error(exit_code::usage) where there is no such token.
inline std::int32_t end_of_document(
    const tokenizer& t, const std::string& asked = "",
    std::string_view advice = "name the one that ends a document by data_request::eod_token") {
  const std::string_view known[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};
  for (const std::string_view name : known)
    if (asked.empty())
      if (const auto id = t.id_of(name)) return *id;
  if (const auto id = t.id_of(asked); id && !asked.empty()) return *id;
  throw error(
      exit_code::usage,
      asked.empty()
          ? fmt::format("{} has no token {}; {}", t.file(), fmt::join(known, ", "), advice)
          : fmt::format("\"{}\", which is to end documents, is no token of {}; give one of its own "
                        "by data_request::eod_token",
                        printable(asked), t.file()));
}

} // namespace mc
