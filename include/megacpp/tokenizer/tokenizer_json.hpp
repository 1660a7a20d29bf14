// This header reads Hugging Face's files of tokenizers: tokenizer.json, or vocab.json with
// merges.txt, and the rules that their folder has beside them. A field that would change ids and is
// not supported is refused by its name.
#pragma once

#include <megacpp/tokenizer/tokenizer_reader.hpp>

namespace mc {

namespace detail {

/// tokenizer_json_reader reads a tokenizer.json and the rules of its folder; "" means no folder.
/// Truncation and padding are settings of somebody's last call, which AutoTokenizer ignores, too.
/// The token for padding is read, though.
class tokenizer_json_reader : public tokenizer_reader {
public:
  tokenizer_json_reader(const json_value& file, const std::string& folder)
      : tokenizer_reader(file.file()) {
    known_fields(file, {"version", "truncation", "padding", "added_tokens", "normalizer",
                        "pre_tokenizer", "post_processor", "decoder", "model"});
    model(file.field<json_value>("model"));
    if (file.has("added_tokens"))
      for (const json_value& a : file.field<std::vector<json_value>>("added_tokens")) add(a);
    if (file.has("normalizer")) normalize(file.field<json_value>("normalizer"));
    if (file.has("pre_tokenizer")) cut(file.field<json_value>("pre_tokenizer"));
    if (!by_bytes_) throw unsupported("field \"pre_tokenizer\" without a ByteLevel step");
    if (file.has("post_processor")) surround(file.field<json_value>("post_processor"));
    if (file.has("decoder")) decode(file.field<json_value>("decoder"));
    std::string padding;
    if (file.has("padding") && file.field<json_value>("padding").has("pad_token"))
      padding = file.field<json_value>("padding").field<std::string>("pad_token");
    const tokenizer_config c = read_tokenizer_config(folder, padding);
    agree(c);
    named(*own_, c);
  }

private:
  static std::string type_of(const json_value& v) { return v.field<std::string>("type"); }
  error unsupported_type(const json_value& v) const {
    return unsupported(fmt::format("field \"{}\" of type {}", v.path(), printable(type_of(v))));
  }
  void known_fields(const json_value& v, std::initializer_list<std::string_view> names) const {
    for (const auto& [name, value] : v.raw().items())
      if (std::ranges::find(names, name) == names.end() && !value.is_null())
        throw unsupported(fmt::format("field \"{}{}{}\"", v.path(), v.path().empty() ? "" : ".",
                                      printable(name)));
  }
  template <class F> void each(const json_value& v, const char* list, F f) {
    for (const json_value& one : v.field<std::vector<json_value>>(list)) f(one);
  }
  static bool flag(const json_value& v, const char* name, bool otherwise) {
    return v.has(name) ? v.field<bool>(name) : otherwise;
  }

  void model(const json_value& m) {
    known_fields(m,
                 {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                  "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (m.has("type") && type_of(m) != "BPE") throw unsupported_type(m);
    if (m.has("dropout") && m.field<double>("dropout") != 0)
      throw unsupported("field \"model.dropout\"");
    for (const char* mark : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (m.has(mark) && !m.field<std::string>(mark).empty())
        throw unsupported(fmt::format("field \"model.{}\"", mark));
    p_.ignore_merges = flag(m, "ignore_merges", false);
    if (!m.has("vocab") || !m.has("merges"))
      throw fault("field \"model\" has no vocabulary or no merges; the file is no BPE tokenizer");
    own_ = &m.raw()["vocab"];
    vocabulary(*own_);
    merges(*own_, m.raw()["merges"]);
  }

  void add(const json_value& a) {
    known_fields(a, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    added_token t{.content = a.field<std::string>("content"),
                  .id = a.field<std::int32_t>("id", 0, static_cast<std::int32_t>(most_ids)),
                  .special = flag(a, "special", false),
                  .normalized = flag(a, "normalized", false),
                  .lstrip = flag(a, "lstrip", false),
                  .rstrip = flag(a, "rstrip", false)};
    if (flag(a, "single_word", false))
      throw unsupported(fmt::format("single_word of the added token \"{}\"", printable(t.content)));
    added(*own_, std::move(t));
  }

  void normalize(const json_value& n) {
    const std::string type = type_of(n);
    if (type == "Sequence") each(n, "normalizers", [&](const json_value& one) { normalize(one); });
    else if (type == "NFC") p_.composes = true;
    else throw unsupported_type(n);
  }

  void cut(const json_value& c) {
    const std::string type = type_of(c);
    if (type == "Sequence")
      return each(c, "pretokenizers", [&](const json_value& one) { cut(one); });
    if (by_bytes_) throw unsupported(fmt::format("field \"{}\" behind ByteLevel", c.path()));
    if (type == "ByteLevel") {
      known_fields(c, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      by_bytes_ = true;
      if (flag(c, "add_prefix_space", true)) {
        if (!p_.splits.empty())
          throw unsupported(
              fmt::format("add_prefix_space in \"{}\" behind another step", c.path()));
        p_.prefix_space = true;
      }
      if (flag(c, "use_regex", true)) split_by(isolated_by(gpt2_expression, where(c.path())));
    } else if (type == "Split") {
      known_fields(c, {"type", "pattern", "behavior", "invert"});
      const auto pattern = c.field<json_value>("pattern");
      known_fields(pattern, {"Regex", "String"});
      const bool literal = pattern.has("String");
      split_by(
          {std::make_shared<const split_expression>(
               pattern.field<std::string>(literal ? "String" : "Regex"), where(c.path()), literal),
           behavior(c), flag(c, "invert", false)});
    } else if (type == "Digits") {
      known_fields(c, {"type", "individual_digits"});
      split_by(isolated_by(flag(c, "individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)",
                           where(c.path())));
    } else {
      throw unsupported_type(c);
    }
  }
  split_rule::behavior behavior(const json_value& c) const {
    using enum split_rule::behavior;
    const auto name = c.field<std::string>("behavior");
    for (const auto& [spelled, is] :
         {std::pair{"Removed", removed}, std::pair{"Isolated", isolated},
          std::pair{"Contiguous", contiguous},
          std::pair{"MergedWithPrevious", merged_with_previous},
          std::pair{"MergedWithNext", merged_with_next}})
      if (name == spelled) return is;
    throw unsupported(fmt::format("behavior {} in \"{}\"", printable(name), c.path()));
  }

  /// Reads which ids are put around every text.
  void surround(const json_value& s) {
    const std::string type = type_of(s);
    if (type == "Sequence")
      return each(s, "processors", [&](const json_value& one) { surround(one); });
    if (type == "ByteLevel") return; // ByteLevel changes offsets alone here.
    if (type != "TemplateProcessing") throw unsupported_type(s);
    if (std::exchange(templated_, true)) throw unsupported("a second template");
    const auto special = s.field<json_value>("special_tokens");
    bool behind = false;
    each(s, "single", [&](const json_value& part) {
      if (part.has("Sequence")) {
        if (part.field<json_value>("Sequence").field<std::string>("id") != "A")
          throw unsupported("a template of a second text");
        if (std::exchange(behind, true)) throw unsupported("a template that repeats its text");
        return;
      }
      const auto name = part.field<json_value>("SpecialToken").field<std::string>("id");
      if (!special.has(name))
        throw fault(
            fmt::format("the template names {}, which special_tokens does not", printable(name)));
      for (const std::int32_t id :
           special.field<json_value>(name).field<std::vector<std::int32_t>>("ids"))
        (behind ? p_.after : p_.before).push_back(id);
    });
    if (!behind) throw fault("the template of \"post_processor\" does not hold the text");
  }

  void decode(const json_value& d) {
    const std::string type = type_of(d);
    if (type == "Sequence") return each(d, "decoders", [&](const json_value& one) { decode(one); });
    if (type != "ByteLevel") throw unsupported_type(d);
  }

  /// Throws where tokenizer.json and the folder's other files state different rules, since versions
  /// of transformers differ in which file wins.
  void agree(const tokenizer_config& c) const {
    require_known_class(c);
    const auto differ = [&](const char* field, bool says, std::string_view other) {
      return fault(
          fmt::format("{} says otherwise than field \"{}\" of {}, which is {}; make them agree",
                      other, field, c.file, says));
    };
    if (c.prefix_space && *c.prefix_space != p_.prefix_space)
      throw differ("add_prefix_space", *c.prefix_space, "its \"pre_tokenizer\"");
    if (c.type != "LlamaTokenizer") return;
    // transformers 4.51 decides by itself which ids it puts around a text, and transformers 5 reads
    // them from tokenizer.json.
    const auto around = [&](const char* field, const char* task, const char* otherwise, bool wanted,
                            const std::vector<std::int32_t>& ids) {
      const auto at = std::ranges::find(c.special, task, &named_token::use);
      const std::string token = at == c.special.end() ? otherwise : at->token.content;
      std::vector<std::int32_t> theirs;
      if (wanted) theirs.push_back(id_of(*own_, token));
      if (ids != theirs) throw differ(field, wanted, "its \"post_processor\"");
    };
    around("add_bos_token", "bos_token", "<s>", c.begins.value_or(true), p_.before);
    around("add_eos_token", "eos_token", "</s>", c.ends.value_or(false), p_.after);
  }

  /// Throws for a class of transformers that is not known. Other classes add tokens of their own,
  /// which differ from version to version.
  void require_known_class(const tokenizer_config& c) const {
    constexpr std::array known{"",
                               "PreTrainedTokenizer",
                               "TokenizersBackend",
                               "GPT2Tokenizer",
                               "Qwen2Tokenizer",
                               "LlamaTokenizer"};
    if (std::ranges::find(known, c.type) == known.end())
      throw error(
          exit_code::data,
          fmt::format("{}: field \"tokenizer_class\" is {}, a class with rules of its own beside "
                      "those of tokenizer.json, which versions of transformers apply differently; "
                      "write PreTrainedTokenizerFast if tokenizer.json has all rules",
                      c.file, printable(c.type)));
  }

  const nlohmann::json* own_ = nullptr; ///< The vocabulary, within the JSON of the file.
  bool by_bytes_ = false, templated_ = false;
};

} // namespace detail

/// Reads a tokenizer.json, and the rules of its folder; "" means no folder. Throws
/// mc::error(exit_code::data).
inline tokenizer_data read_tokenizer_json(const std::string& path, const std::string& folder = "") {
  const json_value file = read_json(mapped_file(path, exit_code::data), tokenizer_size_limit);
  return detail::tokenizer_json_reader(file, folder).take();
}

namespace detail {

/// Applies the rules that transformers' class has for a vocabulary with merges. Throws
/// mc::error(exit_code::data) for a class whose rules are not known.
inline void apply_rules(tokenizer_reader& reader, const nlohmann::json& vocabulary,
                        const tokenizer_config& c) {
  const bool qwen2 = c.type == "Qwen2Tokenizer";
  const auto fault = [&c](std::string_view sentence) {
    return error(exit_code::data,
                 fmt::format("{} {}; write a tokenizer.json once, by transformers: "
                             "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)",
                             c.file, sentence));
  };
  if (!qwen2 && c.type != "GPT2Tokenizer" && !c.type.empty())
    throw fault(
        fmt::format("names the class {}, and of a vocab.json with merges.txt the rules of "
                    "GPT2Tokenizer and Qwen2Tokenizer alone are known",
                    printable(c.type)));
  reader.named(vocabulary, c);
  if (c.ends.value_or(false)) throw fault("has a true \"add_eos_token\", which is not supported");
  if (qwen2) {
    if (c.prefix_space.value_or(false) || c.begins.value_or(false))
      throw fault(
          "has a true \"add_prefix_space\" or \"add_bos_token\", which Qwen2Tokenizer's "
          "rules here do not have");
    for (const named_token& t : c.special)
      if (!reader.is_plain(t.token.content))
        throw fault(
            fmt::format("has the token \"{}\" with a true \"lstrip\", \"rstrip\" or "
                        "\"normalized\", which is not supported for Qwen2Tokenizer",
                        printable(t.token.content)));
    return reader.cut_by(isolated_by(qwen2_expression, "Qwen2's expression"), true);
  }
  if (c.begins.value_or(false)) {
    const auto begin = std::ranges::find(c.special, "bos_token", &named_token::use);
    if (begin == c.special.end()) throw fault("has a true \"add_bos_token\", but no \"bos_token\"");
    reader.begin_by(begin->token.content);
  }
  reader.cut_by(isolated_by(gpt2_expression, "GPT-2's expression"), false,
                c.prefix_space.value_or(false));
}

} // namespace detail

/// Reads a vocabulary, which has tokens with their ids, and a file of merges, which has one a line.
/// Texts are cut by the rules of the class that the folder names, and the folder's other files may
/// name more tokens. Without a folder (""), the two files are taken for GPT-2's, and a token
/// <|endoftext|> is special. Throws mc::error(exit_code::data).
inline tokenizer_data read_vocabulary_and_merges(const std::string& vocabulary,
                                                 const std::string& merges,
                                                 const std::string& folder = "") {
  const json_value list = read_json(mapped_file(vocabulary, exit_code::data), tokenizer_size_limit);
  const mapped_file file(merges, exit_code::data);
  detail::tokenizer_reader reader(vocabulary);
  reader.vocabulary(list.raw());
  std::size_t rank = 0;
  detail::each_line(written_text(file), [&](std::string_view line, std::size_t number) {
    if (line.empty() || (number == 1 && line.starts_with("#version"))) return;
    const std::size_t blank = line.find(' ');
    if (blank == std::string_view::npos || line.find(' ', blank + 1) != std::string_view::npos)
      throw error(
          exit_code::data,
          fmt::format("{}: line {} is \"{}\", but must be two tokens with a blank between them",
                      merges, number, printable(line)));
    reader.merge(list.raw(), rank++, std::string(line.substr(0, blank)),
                 std::string(line.substr(blank + 1)));
  });
  const tokenizer_config config = read_tokenizer_config(folder);
  constexpr const char* end = "<|endoftext|>";
  if (const auto at = list.raw().find(end); config.type.empty() && at != list.raw().end())
    reader.added(list.raw(), {.content = end, .id = at->get<std::int32_t>(), .special = true});
  detail::apply_rules(reader, list.raw(), config);
  return reader.take();
}

} // namespace mc
