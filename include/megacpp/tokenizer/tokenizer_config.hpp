// A folder has files about its tokenizer beside tokenizer.json, or beside vocab.json and
// merges.txt: tokenizer_config.json, special_tokens_map.json and added_tokens.json. They name
// tokens and rules. This header reads them as transformers' AutoTokenizer does.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/tokenizer/tokenizer.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// named_token is a token that a file of the folder names.
struct named_token {
  added_token token; ///< The token; its id is not set.
  std::string place; ///< name of the place in messages: tokenizer_config.json: field "pad_token"
  std::optional<int> id = {}; ///< The id that the file gives the token.
  std::string use = {};       ///< The use of the token, such as pad_token; "" for none.
};

/// tokenizer_config has the rules of a folder for its tokenizer. It is empty for a tokenizer
/// without a folder.
struct tokenizer_config {
  std::string file; ///< The file that most rules are from; "" where there is none.
  std::string
      type; ///< The class of transformers, without "Fast" at its end; "" where none is named.
  std::vector<named_token> listed; ///< Tokens with ids, in rising order of these.
  bool lists_rules = false;        ///< `listed` says how tokens are searched, and overrules others.
  std::vector<named_token> special; ///< Tokens with a use, such as pad_token.
  std::vector<named_token> others;  ///< Tokens in fields that some versions of transformers ignore.
  /// The members prefix_space, begins and ends are add_prefix_space, add_bos_token, add_eos_token.
  std::optional<bool> prefix_space, begins, ends;
};

namespace detail {

/// token_uses are the uses of tokens that transformers has names for, in the order in which it
/// adds their tokens.
inline constexpr std::array<std::string_view, 7> token_uses{
    "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};

/// tokenizer_config_reader reads the files of one folder; "" means no folder.
class tokenizer_config_reader {
public:
  tokenizer_config_reader(const std::string& folder, const std::string& padding)
      : folder_(folder), padding_(padding) {
    if (const auto file = read("tokenizer_config.json")) {
      c_.file = file->file();
      if (file->has("tokenizer_class")) c_.type = file->field<std::string>("tokenizer_class");
      rules(*file);
      uses(*file);
      if (file->has("added_tokens_decoder")) { // transformers ignores the two other files then.
        c_.listed = list_of(file->field<json_value>("added_tokens_decoder"));
        c_.lists_rules = true;
        finish();
        return;
      }
    }
    if (const auto file = read("special_tokens_map.json")) uses(*file);
    finish();
    if (const auto file = read("added_tokens.json")) c_.listed = ids_of(*file);
  }
  tokenizer_config take() { return std::move(c_); }

private:
  std::optional<json_value> read(const char* name) const {
    const std::filesystem::path path = folder_ / name;
    std::error_code ignored;
    if (folder_.empty() || !std::filesystem::exists(path, ignored)) return std::nullopt;
    return read_json(mapped_file(path.string(), exit_code::data));
  }

  void rules(const json_value& file) {
    const auto flag = [&file](const char* name) {
      return file.has(name) ? std::optional(file.field<bool>(name)) : std::nullopt;
    };
    c_.prefix_space = flag("add_prefix_space");
    // transformers 4.51 takes a missing field for false, except with this class.
    if (!c_.type.starts_with("LlamaTokenizer") && !c_.prefix_space) c_.prefix_space = false;
    c_.begins = flag("add_bos_token");
    c_.ends = flag("add_eos_token");
    if (flag("split_special_tokens").value_or(false))
      throw file.fault(
          "field \"split_special_tokens\" is true, by which special tokens in a text are letters, "
          "and that is not supported; set it to false, or remove the field");
  }

  /// Reads a token, which is a string, or an object that also says how the token is searched.
  static added_token token_of(const json_value& file, const std::string& field,
                              const nlohmann::json& spelled, bool special) {
    if (spelled.is_string())
      return {.content = spelled.get<std::string>(), .special = special, .normalized = !special};
    const json_value t(spelled, fmt::format("{}: field \"{}\"", file.file(), field),
                       exit_code::data);
    const auto flag = [&t](const char* name, bool otherwise) {
      return t.has(name) ? t.field<bool>(name) : otherwise;
    };
    added_token a{.content = t.as<json_value>().field<std::string>("content")};
    a.special = special || flag("special", false);
    a.normalized = flag("normalized", !a.special);
    a.lstrip = flag("lstrip", false), a.rstrip = flag("rstrip", false);
    if (flag("single_word", false))
      throw t.fault(
          "field \"single_word\" is not supported, and would change the ids; use a "
          "tokenizer without it");
    return a;
  }
  static named_token named(const json_value& file, const std::string& field,
                           const nlohmann::json& spelled) {
    return {token_of(file, field, spelled, true),
            fmt::format("{}: field \"{}\"", file.file(), field)};
  }

  /// Reads the tokens that a file names for a use. Tokens of a later file replace those of an
  /// earlier one.
  void uses(const json_value& file) {
    for (const auto& [name, spelled] : file.raw().items()) {
      const bool is_use = std::ranges::find(token_uses, name) != token_uses.end();
      if (is_use) {
        uses_[name] = spelled.is_null() ? std::nullopt : std::optional(named(file, name, spelled));
      } else if (name == "additional_special_tokens" || name == "extra_special_tokens") {
        for (const auto& [key, token] : spelled.items())
          if (spelled.is_array() || spelled.is_object())
            more_.push_back(named(file, fmt::format("{}.{}", name, key), token));
      } else if (name == "model_specific_special_tokens" && spelled.is_object()) {
        for (const auto& [key, token] : spelled.items())
          c_.others.push_back(named(file, fmt::format("{}.{}", name, key), token));
      } else if (name.ends_with("_token") && spelled.is_string()) {
        c_.others.push_back(named(file, name, spelled));
      }
    }
  }

  std::vector<named_token> list_of(const json_value& decoder) const {
    std::vector<named_token> list;
    for (const auto& [number, spelled] : decoder.raw().items()) {
      const std::string field = fmt::format("{}.{}", decoder.path(), number);
      named_token t{token_of(decoder, field, spelled, false),
                    fmt::format("{}: field \"{}\"", decoder.file(), field)};
      int id = 0;
      const char* const end = number.data() + number.size();
      if (number.empty() || std::from_chars(number.data(), end, id).ptr != end || id < 0)
        throw decoder.fault(
            fmt::format("field \"{}\" has \"{}\" in the place of an id; correct it, or download "
                        "the file again",
                        decoder.path(), printable(number)));
      t.id = id;
      list.push_back(std::move(t));
    }
    std::ranges::sort(list, {}, [](const named_token& t) { return *t.id; });
    return list;
  }

  /// Reads added_tokens.json. Its tokens are special if another file gives them a use.
  std::vector<named_token> ids_of(const json_value& file) const {
    std::vector<named_token> list;
    for (const auto& [content, id] : file.raw().items()) {
      const bool special = std::ranges::any_of(
          c_.special,
          [&, &spelled = content](const named_token& t) { return t.token.content == spelled; });
      list.push_back({{.content = content, .special = special, .normalized = !special},
                      fmt::format("{}: token \"{}\"", file.file(), printable(content)),
                      file.field<std::int32_t>(content)});
    }
    std::ranges::sort(list, {}, [](const named_token& t) { return *t.id; });
    return list;
  }

  /// Adds the tokens that a class of transformers has where no file says otherwise.
  void finish() {
    if (c_.type.empty()) take_type_of_model();
    if (c_.type.ends_with("Fast")) c_.type.resize(c_.type.size() - 4);
    for (const auto& [type, name] :
         {std::pair{"GPT2Tokenizer", "bos_token"}, std::pair{"GPT2Tokenizer", "eos_token"},
          std::pair{"GPT2Tokenizer", "unk_token"}, std::pair{"Qwen2Tokenizer", "eos_token"},
          std::pair{"Qwen2Tokenizer", "unk_token"}, std::pair{"Qwen2Tokenizer", "pad_token"}})
      if (c_.type == type && !uses_.contains(name))
        uses_[name] = named_token{{.content = "<|endoftext|>", .special = true},
                                  fmt::format("{}'s \"{}\"", type, name)};
    for (const auto& [name, content] :
         {std::pair{"unk_token", "<unk>"}, std::pair{"bos_token", "<s>"},
          std::pair{"eos_token", "</s>"}})
      // transformers 4.51 adds LlamaTokenizer's tokens, and transformers 5 does not.
      if (c_.type == "LlamaTokenizer" && !uses_.contains(name))
        c_.others.push_back(
            {{.content = content, .special = true},
             fmt::format("{}: LlamaTokenizer, where no field \"{}\" is,", c_.file, name)});
    const bool own = c_.type == "GPT2Tokenizer" || c_.type == "Qwen2Tokenizer";
    if (!padding_.empty() && !own && !uses_.contains("pad_token"))
      uses_["pad_token"] = named_token{{.content = padding_, .special = true},
                                       "tokenizer.json: field \"padding.pad_token\""};
    for (const std::string_view use : token_uses)
      if (const auto at = uses_.find(std::string(use)); at != uses_.end() && at->second) {
        c_.special.push_back(*at->second);
        c_.special.back().use = use;
      }
    std::ranges::move(more_, std::back_inserter(c_.special));
  }

  /// Takes AutoTokenizer's class for the model, since tokenizer_config.json names none.
  void take_type_of_model() {
    const auto file = read("config.json");
    if (!file) return;
    if (c_.file.empty()) c_.file = file->file();
    const auto text = [&file](const char* name) {
      return file->has(name) ? file->field<std::string>(name) : std::string();
    };
    c_.type = text("tokenizer_class");
    const std::string model = text("model_type");
    if (!c_.type.empty()) return;
    if (model == "gpt2") c_.type = "GPT2Tokenizer";
    if (model.starts_with("qwen2") || model.starts_with("qwen3")) c_.type = "Qwen2Tokenizer";
  }

  std::filesystem::path folder_;
  std::string padding_;
  tokenizer_config c_;
  std::map<std::string, std::optional<named_token>, std::less<>> uses_;
  std::vector<named_token> more_;
};

} // namespace detail

/// Reads the rules of a folder for its tokenizer; "" means no folder. `padding` is the token for
/// padding where the files name none. Throws mc::error(exit_code::data).
inline tokenizer_config read_tokenizer_config(const std::string& folder,
                                              const std::string& padding = "") {
  return detail::tokenizer_config_reader(folder, padding).take();
}

} // namespace mc
