// What a program reads tokens from, and how bytes and tokens correspond.
#pragma once

#include <megacpp/checkpoint/folder.hpp>
#include <megacpp/checkpoint/json_file.hpp>
#include <megacpp/data/byte_tokens.hpp>
#include <megacpp/data/character_tokens.hpp>
#include <megacpp/data/random_tokens.hpp>
#include <megacpp/data/split.hpp>
#include <megacpp/run/view.hpp>
#include <megacpp/train/options.hpp>

#include <memory>
#include <optional>

namespace mc {

inline constexpr const char* characters_name = "characters.json";

/// The characters of a saved model; nothing if its tokens are bytes. Throws mc::error(model).
inline std::optional<character_set> characters_of(const model_folder& folder) {
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
  return character_set(std::move(bytes));
}

inline std::string characters_text(const character_set& c) {
  std::string text = "{\n  \"characters\": [";
  for (std::size_t i = 0; i < c.bytes().size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", c.bytes()[i]);
  return text + "]\n}\n";
}

/// Throws unless a set of characters fits the vocabulary.
inline void require_vocabulary(const character_set& c, const program_view& p,
                               std::string_view where, exit_code code) {
  if (c.size() <= p.vocabulary) return;
  throw error(code,
              fmt::format("{} has {} distinct bytes, but the vocabulary of {} has only {} tokens; "
                          "use other data or a preset with a larger vocabulary",
                          where, c.size(), p.name, p.vocabulary));
}

/// A source of tokens and its parts.
struct text_data {
  std::unique_ptr<token_source> source;
  split_ranges parts;
  std::optional<character_set> characters; ///< absent: tokens are bytes
};

namespace detail {

/// Reads a part once, so that a byte which is no token is refused before the first step.
inline void check_tokens(const token_source& source, token_range part) {
  std::vector<std::int32_t> block(1 << 16);
  for (std::int64_t at = part.begin; at < part.end; at += std::ssize(block)) {
    const std::int64_t n = std::min<std::int64_t>(std::ssize(block), part.end - at);
    source.copy(at, std::span(block).first(static_cast<std::size_t>(n)));
  }
}

inline mapped_file open_text(const text_flag& path, const char* command) {
  if (!path.given())
    throw error(exit_code::usage,
                fmt::format("{} needs --data-path FILE, the text to read", command));
  return mapped_file(path(), exit_code::data);
}

} // namespace detail

/// Opens the text of `eval`, with the characters of the model if it has any.
inline text_data open_evaluation_text(const program_view& p, const options& o,
                                      std::optional<character_set> characters) {
  text_data d;
  mapped_file file = detail::open_text(o.data.data_path, "eval");
  if (characters) d.source = std::make_unique<character_tokens>(std::move(file), *characters);
  else d.source = std::make_unique<byte_tokens>(std::move(file), p.vocabulary);
  d.characters = std::move(characters);
  d.parts = split(o.data.split.given() ? o.data.split() : "0,100,0", d.source->size());
  return d;
}

/// Opens the text of `train`. `saved` are the characters of the model that training starts from.
inline text_data open_training_text(const program_view& p, const options& o, bool loaded,
                                    std::optional<character_set> saved) {
  text_data d;
  const bool random = o.data.mock_data() || (o.report.bench_json() && !o.data.data_path.given());
  if (random && o.data.data_path.given())
    throw error(exit_code::usage, "--mock-data and --data-path contradict each other; give one");
  if (random) {
    const std::int64_t tokens = std::max<std::int64_t>(1 << 20, 4 * p.numbers.batch.sequence);
    d.source = std::make_unique<random_tokens>(tokens, p.vocabulary,
                                               static_cast<std::uint64_t>(o.model.seed()));
    d.parts = split(o.data.split(), tokens);
    return d;
  }
  const bool by_characters = o.data.tokenizer() == "char";
  if (loaded && o.data.tokenizer.given() && by_characters != saved.has_value())
    throw error(
        exit_code::mismatch,
        fmt::format("--tokenizer is {}, but the model in {} was saved with {}; leave the flag "
                    "out",
                    o.data.tokenizer(), o.model.load(), saved ? "char" : "byte"));
  mapped_file file = detail::open_text(o.data.data_path, "train");
  if (saved || by_characters) {
    d.characters = saved ? *saved : character_set::of(file.bytes());
    require_vocabulary(*d.characters, p, file.path(), exit_code::data);
    d.source = std::make_unique<character_tokens>(std::move(file), *d.characters);
  } else {
    d.source = std::make_unique<byte_tokens>(std::move(file), p.vocabulary);
  }
  d.parts = split(o.data.split(), d.source->size());
  if (saved || p.vocabulary < 256) {
    detail::check_tokens(*d.source, d.parts.train);
    detail::check_tokens(*d.source, d.parts.valid);
  }
  return d;
}

} // namespace mc
