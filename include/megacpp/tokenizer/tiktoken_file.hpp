// This header reads tiktoken's vocabularies, and has the rules by which published ones cut texts.
#pragma once

#include <megacpp/tokenizer/tokenizer_reader.hpp>

#include <charconv>
#include <filesystem>
#include <map>
#include <system_error>

namespace mc {

namespace detail {

/// Returns the bytes that a text has in Base64 (RFC 4648), or nothing where it is no Base64.
inline std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.empty() || text.size() % 4 != 0) return std::nullopt;
  std::size_t padding = 0;
  while (padding < 2 && text.ends_with('=')) text.remove_suffix(1), ++padding;
  std::string bytes;
  std::uint32_t bits = 0;
  int held = 0;
  for (const char c : text) {
    const std::size_t value = letters.find(c);
    if (value == std::string_view::npos) return std::nullopt;
    bits = bits << 6 | static_cast<std::uint32_t>(value);
    if ((held += 6) < 8) continue;
    held -= 8;
    bytes += static_cast<char>(bits >> held & 0xffu);
  }
  return bytes;
}

} // namespace detail

/// tiktoken_rules are what a .tiktoken file does not say: the expression that cuts texts, and the
/// special tokens.
struct tiktoken_rules {
  std::string expression;
  std::vector<added_token> special;
};

/// tiktoken_names are the vocabularies whose rules are known. "_base" may be left out.
inline constexpr std::array<std::string_view, 10> tiktoken_names{
    "gpt2",       "r50k_base", "p50k_base", "p50k_edit", "cl100k_base",
    "o200k_base", "llama3",    "llama3_1",  "qwen",      "qwen2"};

namespace detail {

/// Returns the special tokens of Llama 3: 256 ids from 128000 on. Llama 3.1 and later use some of
/// the reserved tokens, so that the other reserved tokens have other names (their tokenizer.json
/// files).
inline std::vector<added_token> llama3_tokens(bool of_3_1) {
  constexpr std::int32_t first = 128000, count = 256;
  using entry = std::pair<std::int32_t, std::string_view>;
  std::vector<entry> named{{0, "<|begin_of_text|>"},
                           {1, "<|end_of_text|>"},
                           {6, "<|start_header_id|>"},
                           {7, "<|end_header_id|>"},
                           {9, "<|eot_id|>"}};
  if (of_3_1)
    named.insert(named.end(),
                 {{4, "<|finetune_right_pad_id|>"}, {8, "<|eom_id|>"}, {10, "<|python_tag|>"}});
  std::vector<added_token> tokens;
  int reserved = 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const auto at = std::ranges::find(named, i, &entry::first);
    tokens.push_back({.content = at != named.end()
                                     ? std::string(at->second)
                                     : fmt::format("<|reserved_special_token_{}|>", reserved++),
                      .id = first + i,
                      .special = true});
  }
  return tokens;
}

} // namespace detail

/// Returns the rules of a vocabulary by its name: one of tiktoken's own (openai_public.py of 0.14),
/// Llama 3's or Qwen's. Returns nothing for another name.
inline std::optional<tiktoken_rules> tiktoken_rules_of(std::string_view name) {
  const auto rules = [](std::string_view expression,
                        std::initializer_list<std::pair<std::string_view, std::int32_t>> special) {
    tiktoken_rules r{std::string(expression), {}};
    for (const auto& [content, id] : special)
      r.special.push_back({.content = std::string(content), .id = id, .special = true});
    return r;
  };
  const auto is = [name](std::string_view known) {
    constexpr std::string_view base = "_base";
    return name == known ||
           (known.ends_with(base) && name == known.substr(0, known.size() - base.size()));
  };
  if (is("gpt2") || is("r50k_base") || is("p50k_base"))
    return rules(detail::gpt2_expression, {{"<|endoftext|>", 50256}});
  if (is("p50k_edit"))
    return rules(detail::gpt2_expression, {{"<|endoftext|>", 50256},
                                           {"<|fim_prefix|>", 50281},
                                           {"<|fim_middle|>", 50282},
                                           {"<|fim_suffix|>", 50283}});
  if (is("cl100k_base"))
    return rules(detail::cl100k_expression, {{"<|endoftext|>", 100257},
                                             {"<|fim_prefix|>", 100258},
                                             {"<|fim_middle|>", 100259},
                                             {"<|fim_suffix|>", 100260},
                                             {"<|endofprompt|>", 100276}});
  if (is("o200k_base"))
    return rules(detail::o200k_expression,
                 {{"<|endoftext|>", 199999}, {"<|endofprompt|>", 200018}});
  if (is("llama3") || is("llama3_1")) // Llama 3 cuts texts as cl100k_base does.
    return tiktoken_rules{std::string(detail::cl100k_expression),
                          detail::llama3_tokens(is("llama3_1"))};
  if (is("qwen") || is("qwen2"))
    return rules(detail::qwen2_expression,
                 {{"<|endoftext|>", 151643}, {"<|im_start|>", 151644}, {"<|im_end|>", 151645}});
  return std::nullopt;
}

/// Returns the rules that `asked` names: the name of a vocabulary, or "regex:" and an expression,
/// without special tokens. `flag` names the request in messages. Throws mc::error(exit_code::usage)
/// for a name that is not known.
inline tiktoken_rules tiktoken_rules_by(std::string_view flag, std::string_view asked) {
  constexpr std::string_view mark = "regex:";
  if (asked.starts_with(mark)) return {std::string(asked.substr(mark.size())), {}};
  if (auto rules = tiktoken_rules_of(asked)) return *std::move(rules);
  throw error(
      exit_code::usage,
      fmt::format("{} \"{}\" is none of {}; give one of these, or regex: and the expression "
                  "that cuts texts, as regex:\\p{{L}}+|\\P{{L}}+",
                  flag, printable(asked), fmt::join(tiktoken_names, ", ")));
}

/// Reads a .tiktoken file, which has a line for each token: its bytes in Base64, and its rank,
/// which is its id. Two adjacent symbols merge if their bytes together are a token, that of lowest
/// rank first. So each way to cut a token into two tokens is a merge of the token's rank. `special`
/// names special tokens in place of those of the rules; their ids follow those of the file. Throws
/// mc::error(exit_code::data).
inline tokenizer_data read_tiktoken(const std::string& path, tiktoken_rules rules,
                                    std::optional<std::vector<std::string>> special = {}) {
  const mapped_file file(path, exit_code::data);
  tokenizer_data p;
  p.file = path;
  std::unordered_map<std::string, std::int32_t> ids;
  detail::each_line(written_text(file), [&](std::string_view line, std::size_t number) {
    if (line.empty()) return;
    const auto refuse = [&](std::string_view why) {
      return error(exit_code::data, fmt::format("{}: line {} is \"{}\", but {}", path, number,
                                                printable(line), why));
    };
    const std::size_t blank = std::min(line.find(' '), line.size());
    const std::optional<std::string> bytes = detail::from_base64(line.substr(0, blank));
    const std::string_view rank = line.substr(std::min(blank + 1, line.size()));
    std::uint32_t id = 0;
    const auto [end, problem] = std::from_chars(rank.data(), rank.data() + rank.size(), id);
    if (!bytes || problem != std::errc() || end != rank.data() + rank.size() ||
        id > detail::tokenizer_reader::most_ids)
      throw refuse("must be Base64 and a rank");
    if (id >= p.tokens.size()) p.tokens.resize(id + 1);
    if (!p.tokens[id].empty()) throw refuse("the rank is that of another line, too");
    if (!ids.emplace(*bytes, static_cast<std::int32_t>(id)).second)
      throw refuse("its token is that of another line, too");
    p.tokens[id] = *bytes;
  });
  for (const auto& [bytes, id] : ids)
    for (std::size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(bytes.substr(0, cut)), right = ids.find(bytes.substr(cut));
      if (left != ids.end() && right != ids.end())
        p.merges.insert(left->second, right->second, {static_cast<std::uint32_t>(id), id});
    }
  if (special) {
    rules.special.clear();
    for (const std::string& content : *special)
      rules.special.push_back(
          {.content = content,
           .id = static_cast<std::int32_t>(p.tokens.size() + rules.special.size()),
           .special = true});
  }
  std::set<std::string> contents;
  for (const added_token& a : rules.special) {
    const auto id = static_cast<std::size_t>(a.id);
    if ((id < p.tokens.size() && !p.tokens[id].empty()) || ids.contains(a.content) ||
        a.content.empty() || !contents.insert(a.content).second)
      throw error(
          exit_code::data,
          fmt::format("{}: the special token {} has the id {}, which is that of another token; "
                      "give the rules of this vocabulary",
                      path, a.content, a.id));
  }
  p.added = std::move(rules.special);
  p.splits.push_back(detail::isolated_by(rules.expression, path + ": its expression"));
  return p;
}

/// Returns the path of the .tiktoken file of a folder whose name says its rules; "" if there is no
/// such file, or more than one.
inline std::string tiktoken_in(const std::string& folder) {
  namespace fs = std::filesystem;
  std::string found;
  std::error_code ignored;
  for (const fs::directory_entry& e : fs::directory_iterator(folder, ignored)) {
    const fs::path& path = e.path();
    if (path.extension() != ".tiktoken" || !tiktoken_rules_of(path.stem().string())) continue;
    if (!found.empty()) return "";
    found = path.string();
  }
  return found;
}

namespace detail {

/// Returns whether a text begins as a .tiktoken file does, with a token in Base64 and its rank.
inline bool has_tiktoken_lines(std::string_view text) {
  const std::string_view line = text.substr(0, std::min(text.find('\n'), std::size_t{1} << 12));
  const std::size_t blank = std::min(line.find(' '), line.size());
  std::string_view rank = line.substr(std::min(blank + 1, line.size()));
  if (rank.ends_with('\r')) rank.remove_suffix(1);
  return blank > 0 && from_base64(line.substr(0, blank)) && !rank.empty() &&
         rank.find_first_not_of("0123456789") == std::string_view::npos;
}
inline bool is_tiktoken_file(const std::string& path) {
  std::error_code ignored;
  return path.ends_with(".tiktoken") ||
         (std::filesystem::is_regular_file(path, ignored) &&
          std::filesystem::file_size(path, ignored) > 0 &&
          has_tiktoken_lines(written_text(mapped_file(path, exit_code::data))));
}

} // namespace detail

} // namespace mc
