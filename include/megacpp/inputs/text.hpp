// Texts and files of token ids, and the bytes or characters that stand for tokens.
#pragma once

#include <megacpp/data/byte_tokens.hpp>
#include <megacpp/data/character_file.hpp>
#include <megacpp/data/character_tokens.hpp>
#include <megacpp/data/fingerprint.hpp>
#include <megacpp/data/id_tokens.hpp>
#include <megacpp/data/random_tokens.hpp>
#include <megacpp/data/split.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/request/data_request.hpp>
#include <megacpp/run/view.hpp>

#include <memory>
#include <optional>

namespace mc {

/// The tokens of a text or of a file of ids, and their splits for training and validation.
struct text_data {
  std::shared_ptr<token_source> source;
  split_ranges splits;
  std::optional<character_set> characters; ///< absent: tokens are bytes
};

namespace detail {

/// Throws mc::error(exit_code::usage) if the request has no type and the vocabulary is above 256:
/// the tokens of such a model come from a tokenizer, so the bytes of a text must not be taken for
/// them. `ids` is what the message advises to give instead.
inline void require_byte_vocabulary(const program_view& p, const tokenizer_request& r,
                                    const char* ids) {
  constexpr int bytes = 256;
  if (p.vocabulary <= bytes || r.type) return;
  throw error(exit_code::usage,
              fmt::format("{} has a vocabulary of {} tokens, which are not bytes: give {}, or "
                          "tokenizer_request::type byte if they are",
                          p.name, p.vocabulary, ids));
}

/// Throws mc::error(exit_code::mismatch) where the request has bytes and the model in `folder` was
/// trained on characters, or the other way round.
inline void require_tokenizer_of(const std::string& folder, const tokenizer_request& r,
                                 bool characters) {
  if (r.type && (r.type == "char") != characters)
    throw error(
        exit_code::mismatch,
        fmt::format(
            "tokenizer_request::type is {}, but the model in {} was saved with {}; leave it out",
            *r.type, folder, characters ? "char" : "byte"));
}

/// Throws mc::error unless a text is read as bytes, or as the characters of the model in `folder`,
/// "" being none.
inline void require_readable(const program_view& p, const tokenizer_request& r,
                             const std::string& folder, bool characters) {
  const std::string_view type = r.kind();
  if (type != "byte" && type != "char")
    throw error(
        exit_code::usage,
        fmt::format("tokenizer_request::type {} does not read texts here: turn the text into a "
                    "data set by megacpp-data prepare, and give that as data_request::paths",
                    type));
  if (r.names_files())
    throw error(exit_code::usage,
                "a tokenizer does not read texts here: turn the text into a data set by "
                "megacpp-data prepare, and give that as data_request::paths");
  if (!folder.empty()) require_tokenizer_of(folder, r, characters);
  if (!characters)
    require_byte_vocabulary(
        p, r,
        "by data_request::paths a data set that megacpp-data prepare has made of the text, token "
        "ids by data_request::kind u16 or i32, conversations by data_request::kind chat");
}

/// Throws mc::error where data that are ids stand beside characters, which the request or the model
/// in `folder` has.
inline void require_no_characters(const std::string& folder, const data_request& d,
                                  bool characters) {
  const std::string ids =
      d.of_ids() ? fmt::format("data_request::kind {}", name_of(d.kind)) : "indexed data sets";
  if (d.tokenizer.kind() == "char")
    throw error(exit_code::usage,
                fmt::format("{} and tokenizer_request::type char contradict each other: token ids "
                            "need no tokenizer; give one of them",
                            ids));
  if (characters)
    throw error(exit_code::mismatch, fmt::format("{} and the characters that the model in {} was "
                                                 "trained on contradict each other; give a text",
                                                 ids, folder));
}

} // namespace detail

/// Opens the text or the ids of `train`, or file number `measured` of those of `eval`. `saved`: the
/// characters of the model in `folder`, "" being none. Throws mc::error.
inline text_data open_text(const program_view& p, const data_request& r, const std::string& folder,
                           std::optional<character_set> saved,
                           std::optional<std::size_t> measured = {}) {
  const std::string shares = measured ? r.split.value_or("0,100,0") : r.training_split();
  text_data d;
  if (r.kind == data_kind::random && !measured) {
    const std::int64_t tokens = std::max<std::int64_t>(1 << 20, 4 * p.numbers.batch.sequence);
    d.source = std::make_unique<random_tokens>(tokens, p.vocabulary, r.seed);
    d.splits = split(shares, tokens);
    return d;
  }
  if (r.of_ids()) detail::require_no_characters(folder, r, saved.has_value());
  else detail::require_readable(p, r.tokenizer, folder, saved.has_value());
  if (measured.value_or(0) >= r.paths.size())
    throw error(exit_code::usage, fmt::format("{} needs data_request::paths FILE, the text to read",
                                              measured ? "eval" : "train"));
  mapped_file file(r.paths[measured.value_or(0)], exit_code::data);
  bool checked = saved || p.vocabulary < 256; // else each byte or character is a token
  if (r.of_ids()) {
    checked = p.vocabulary <= 0xffff || r.kind == data_kind::i32;
    if (r.kind == data_kind::u16)
      d.source = std::make_unique<id_tokens<std::uint16_t>>(std::move(file), p.vocabulary);
    else d.source = std::make_unique<id_tokens<std::int32_t>>(std::move(file), p.vocabulary);
  } else if (saved || r.tokenizer.kind() == "char") {
    d.characters = saved ? *std::move(saved) : character_set::of(file.bytes());
    d.source = std::make_unique<character_tokens>(std::move(file), *d.characters, p.vocabulary);
  } else {
    d.source = std::make_unique<byte_tokens>(std::move(file), p.vocabulary);
  }
  d.splits = split(shares, d.source->size());
  for (const token_range range : {d.splits.train, d.splits.valid})
    if (checked && !measured) detail::check_tokens(*d.source, range);
  return d;
}

/// Returns {"name", "tokens", "part": [begin, end) of the training split, "xxh64": of its tokens},
/// which tell the data of a run from others.
inline nlohmann::json identity_of(const text_data& text) {
  const token_range range = text.splits.train;
  return {{"name", text.source->name()},
          {"tokens", text.source->size()},
          {"part", {range.begin, range.end}},
          {"xxh64", fmt::format("{:016x}", fingerprint(*text.source, range))}};
}

/// Returns a hash that follows from the tokens and the splits of a text, and not from its name.
inline std::uint64_t hash_of(const text_data& text) {
  nlohmann::json all = identity_of(text);
  all.erase("name");
  const token_range valid = text.splits.valid;
  const std::string bytes = fmt::format("{} {} {} {:016x}", all.dump(), valid.begin, valid.end,
                                        fingerprint(*text.source, valid));
  return xxh64::of(std::as_bytes(std::span(bytes)));
}

/// Returns a line that says that the samples come in another order than before, since a run that
/// goes on has become longer or shorter; "" if they do not, or if the state does not tell.
inline std::string order_changes(const nlohmann::json& data, const json_value& saved) {
  if (!data.contains("order") || !saved.has("order")) return "";
  const auto now = data["order"].get<std::string>(), then = saved.field<std::string>("order");
  if (now == then) return "";
  return fmt::format(
      "epochs of the data: {} -> {} (may change): samples come in another order from "
      "here on, so that some were seen before, and others may come late or not",
      then, now);
}

/// Throws mc::error(exit_code::mismatch) where a run that goes on has other data than before, in
/// which its position means nothing. `saved`: the identity of the data in the state.
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
