// A folder names tokens for tasks, such as one to end documents.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/io/json_file.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace mc::detail {

/// The token of a name in the tokenizer_config.json of a folder; "" for none.
inline std::string configured_token(const std::filesystem::path& folder, std::string_view name) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? spelled_token(read_json(path.string()), name, "")
                                                : "";
}

} // namespace mc::detail
