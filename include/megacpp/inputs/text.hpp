// What a program reads tokens from, and how bytes and tokens correspond.
#pragma once

#include <megacpp/data/byte_tokens.hpp>
#include <megacpp/data/character_tokens.hpp>
#include <megacpp/data/fingerprint.hpp>
#include <megacpp/data/id_tokens.hpp>
#include <megacpp/data/random_tokens.hpp>
#include <megacpp/data/split.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/request/data_request.hpp>
#include <megacpp/run/view.hpp>

#include <memory>
#include <optional>

namespace mc {

inline constexpr const char* characters_name = "characters.json";

/// The characters of a saved model; nothing if its tokens are bytes. Throws mc::error(model), also
/// for more of them than the vocabulary has tokens.
inline std::optional<character_set> characters_of(const model_folder& folder,
                                                  const program_view& p) {
  if (!folder.contains(characters_name)) return std::nullopt;
  const json_value file = read_json(folder.open(characters_name));
  const auto list = file.field<std::vector<std::int32_t>>("characters");
  std::vector<std::uint8_t> bytes;
  for (const std::int32_t b : list) {
    if (b < 0 || b > 255 || (!bytes.empty() && b <= bytes.back()))
      throw file.fault("field \"characters\" must hold rising byte values from 0 to 255");
    bytes.push_back(static_cast<std::uint8_t>(b));
  }
  if (bytes.empty()) throw file.fault("field \"characters\" is empty");
  if (std::ssize(bytes) > p.vocabulary)
    throw file.fault(
        fmt::format("field \"characters\" has {} of them, but the vocabulary of {} "
                    "has only {} tokens",
                    bytes.size(), p.name, p.vocabulary));
  return character_set(std::move(bytes));
}

inline std::string characters_text(const character_set& c) {
  return json_line({{"characters", c.bytes()}});
}

/// A source of tokens and its parts.
struct text_data {
  std::shared_ptr<token_source> source;
  split_ranges splits;
  std::optional<character_set> characters; ///< absent: tokens are bytes
};

namespace detail {

/// Opens file number `which` of the data. Throws mc::error.
inline mapped_file open_text(const data_request& d, const char* command, std::size_t which) {
  if (which >= d.paths.size())
    throw error(exit_code::usage,
                fmt::format("{} needs data_request::paths FILE, the text to read", command));
  return mapped_file(d.paths[which], exit_code::data);
}

/// Bytes stand in for the tokens of a model only where it was made for them, or was asked for: a
/// larger vocabulary is that of a tokenizer, under which ids below 256 mean something else.
inline void require_byte_vocabulary(const program_view& p, const tokenizer_request& r,
                                    const char* ids) {
  constexpr int bytes = 256;
  if (p.vocabulary <= bytes || r.type) return;
  throw error(exit_code::usage,
              fmt::format("{} has a vocabulary of {} tokens, which are not bytes: give {}, or "
                          "tokenizer_request::type byte if they are",
                          p.name, p.vocabulary, ids));
}

/// Throws mc::error(exit_code::mismatch) for another type than the model in `folder` was trained
/// with.
inline void require_tokenizer_of(const std::string& folder, const tokenizer_request& r,
                                 bool characters) {
  if (r.type && (r.type == "char") != characters)
    throw error(
        exit_code::mismatch,
        fmt::format(
            "tokenizer_request::type is {}, but the model in {} was saved with {}; leave it out",
            *r.type, folder, characters ? "char" : "byte"));
}

inline constexpr const char* ids_as_data =
    "by data_request::paths a data set that megacpp-data prepare has made of the text, token ids "
    "by "
    "data_request::kind u16 or i32, conversations by data_request::kind chat";

/// A file of token ids.
inline std::unique_ptr<token_source> id_source(const program_view& p, const data_request& d,
                                               const char* command, std::size_t which) {
  mapped_file file = open_text(d, command, which);
  if (d.kind == data_kind::u16)
    return std::make_unique<id_tokens<std::uint16_t>>(std::move(file), p.vocabulary);
  return std::make_unique<id_tokens<std::int32_t>>(std::move(file), p.vocabulary);
}

inline std::string of_ids(const data_request& d) {
  return d.of_ids() ? fmt::format("data_request::kind {}", name_of(d.kind)) : "indexed data sets";
}

/// A text is read as bytes or characters alone.
inline void refuse_tokenizer(const tokenizer_request& r) {
  const std::string_view type = r.kind();
  if (type != "byte" && type != "char")
    throw error(
        exit_code::usage,
        fmt::format(
            "tokenizer_request::type {} does not read texts here: turn the text into a data "
            "set by megacpp-data prepare, and give that as data_request::paths",
            type));
  if (r.names_files())
    throw error(
        exit_code::usage,
        "a tokenizer does not read texts here: turn the text into a data set by megacpp-data "
        "prepare, and give that as data_request::paths");
}

/// Ids have no characters: neither asked for nor saved with the model in `folder`.
inline void refuse_characters(const std::string& folder, const data_request& d, bool characters) {
  if (d.tokenizer.kind() == "char")
    throw error(exit_code::usage,
                fmt::format("{} and tokenizer_request::type char contradict each other: token ids "
                            "need no tokenizer; give one of them",
                            of_ids(d)));
  if (characters)
    throw error(exit_code::mismatch,
                fmt::format("{} and the characters that the model in {} was trained on contradict "
                            "each other; give a text",
                            of_ids(d), folder));
}

} // namespace detail

/// Opens file number `which` of what `eval` measures, with the characters of the model in `folder`
/// if it has any.
inline text_data open_evaluation_text(const program_view& p, const data_request& r,
                                      const std::string& folder,
                                      std::optional<character_set> characters,
                                      std::size_t which = 0) {
  text_data d;
  if (r.of_ids()) {
    detail::refuse_characters(folder, r, characters.has_value());
    d.source = detail::id_source(p, r, "eval", which);
    d.splits = split(r.split.value_or("0,100,0"), d.source->size());
    return d;
  }
  detail::refuse_tokenizer(r.tokenizer);
  detail::require_tokenizer_of(folder, r.tokenizer, characters.has_value());
  if (!characters) detail::require_byte_vocabulary(p, r.tokenizer, detail::ids_as_data);
  mapped_file file = detail::open_text(r, "eval", which);
  if (characters)
    d.source = std::make_unique<character_tokens>(std::move(file), *characters, p.vocabulary);
  else d.source = std::make_unique<byte_tokens>(std::move(file), p.vocabulary);
  d.characters = std::move(characters);
  d.splits = split(r.split.value_or("0,100,0"), d.source->size());
  return d;
}

/// Opens the data of `train`. `saved` are the characters of the model in `folder`, from which
/// training starts; "" is none.
inline text_data open_training_text(const program_view& p, const data_request& r,
                                    const std::string& folder, std::optional<character_set> saved) {
  text_data d;
  if (r.kind == data_kind::random) {
    const std::int64_t tokens = std::max<std::int64_t>(1 << 20, 4 * p.numbers.batch.sequence);
    d.source = std::make_unique<random_tokens>(tokens, p.vocabulary, r.seed);
    d.splits = split(r.training_split(), tokens);
    return d;
  }
  if (r.of_ids()) {
    detail::refuse_characters(folder, r, saved.has_value());
    d.source = detail::id_source(p, r, "train", 0);
    d.splits = split(r.training_split(), d.source->size());
    if (p.vocabulary <= 0xffff || r.kind == data_kind::i32) {
      detail::check_tokens(*d.source, d.splits.train);
      detail::check_tokens(*d.source, d.splits.valid);
    }
    return d;
  }
  detail::refuse_tokenizer(r.tokenizer);
  const bool by_characters = r.tokenizer.kind() == "char";
  if (!folder.empty()) detail::require_tokenizer_of(folder, r.tokenizer, saved.has_value());
  if (!saved) detail::require_byte_vocabulary(p, r.tokenizer, detail::ids_as_data);
  mapped_file file = detail::open_text(r, "train", 0);
  if (saved || by_characters) {
    d.characters = saved ? *saved : character_set::of(file.bytes());
    d.source = std::make_unique<character_tokens>(std::move(file), *d.characters, p.vocabulary);
  } else {
    d.source = std::make_unique<byte_tokens>(std::move(file), p.vocabulary);
  }
  d.splits = split(r.training_split(), d.source->size());
  if (saved || p.vocabulary < 256) {
    detail::check_tokens(*d.source, d.splits.train);
    detail::check_tokens(*d.source, d.splits.valid);
  }
  return d;
}

/// What tells the data of a run from others:
/// {"name", "tokens", "part": [begin, end), "xxh64": of the training part}.
inline nlohmann::json identity_of(const text_data& text) {
  const token_range part = text.splits.train;
  return {{"name", text.source->name()},
          {"tokens", text.source->size()},
          {"part", {part.begin, part.end}},
          {"xxh64", fmt::format("{:016x}", fingerprint(*text.source, part))}};
}

/// Of the same tokens, the same, whatever they are called.
inline std::uint64_t hash_of(const text_data& text) {
  nlohmann::json all = identity_of(text);
  all.erase("name");
  xxh64 hash;
  const token_range valid = text.splits.valid;
  const std::string bytes = fmt::format("{} {} {} {:016x}", all.dump(), valid.begin, valid.end,
                                        fingerprint(*text.source, valid));
  hash.add(std::as_bytes(std::span(bytes)));
  return hash.value();
}

/// A line for data whose samples come in another order than in the run that goes on, since it is
/// longer or shorter; "" for the same order, or where a state does not tell it.
inline std::string order_changes(const nlohmann::json& data, const json_value& saved) {
  if (!data.contains("order") || !saved.has("order")) return "";
  const auto now = data["order"].get<std::string>(), then = saved.field<std::string>("order");
  if (now == then) return "";
  return fmt::format(
      "epochs of the data: {} -> {} (may change): samples come in another order from "
      "here on, so that some were seen before, and others may come late or not",
      then, now);
}

/// The number of a sample says nothing about other data. `saved`: what a state says of its own.
/// Throws mc::error(exit_code::mismatch).
inline void require_same_data(const nlohmann::json& data, const json_value& saved) {
  nlohmann::json now = data, then = saved.raw();
  for (const char* may_change : {"name", "order"}) now.erase(may_change), then.erase(may_change);
  if (!then.contains("trained")) now.erase("trained"); // states of before do not tell
  if (now == then) return;
  throw error(
      exit_code::mismatch,
      fmt::format("{} ({} tokens) is not the data of the run in {} ({} tokens of {}); give "
                  "the same data, or start a new run from its weights with start_request::finetune",
                  data["name"].get<std::string>(), data["tokens"].get<std::int64_t>(), saved.file(),
                  saved.field<std::int64_t>("tokens"),
                  printable(saved.field<std::string>("name"))));
}

} // namespace mc
