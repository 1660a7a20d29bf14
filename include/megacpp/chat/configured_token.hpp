// The tokenizer_config.json of a model folder says which token has which use, such as the token
// that ends a document.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/io/json_file.hpp>

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace mc::detail {

/// Returns the token that a folder's tokenizer_config.json has in the field `name`, such as
/// "eos_token"; "" where the file or the field is missing.
inline std::string configured_token(const std::filesystem::path& folder, std::string_view name) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? spelled_token(read_json(path.string()), name, "")
                                                : "";
}

} // namespace mc::detail
