// Model folders: how they are recognised, and how files in them are read.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <algorithm>
#include <cerrno>
#include <initializer_list>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// Returns whether a name can only be that of an entry directly in a folder.
inline bool is_bare_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

/// The files of a model folder that belong to its tokenizer and to generation. They are copied
/// along with the weights.
inline constexpr std::string_view tokenizer_file_names[] = {
    "tokenizer.json",      "tokenizer_config.json", "vocab.json",
    "merges.txt",          "added_tokens.json",     "special_tokens_map.json",
    "chat_template.jinja", "generation_config.json"};

/// The files of an adapter in a folder of PEFT.
inline constexpr const char *adapter_config_name = "adapter_config.json",
                            *adapter_weights_name = "adapter_model.safetensors";

/// Returns whether megacpp writes files of this name into a model folder. A folder that holds any
/// other file is never replaced.
inline bool is_model_file(std::string_view name) {
  return std::ranges::find(tokenizer_file_names, name) != std::end(tokenizer_file_names) ||
         name == "config.json" || name == "characters.json" ||
         name == "model.safetensors.index.json" || name.ends_with(".tiktoken") ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

namespace detail {

/// Names the file that stands in a folder in place of a model's weights, and says what to do, as
/// the end of a sentence about the folder. "" if there is no such file.
inline std::string foreign_weights(std::vector<std::string> names) {
  std::ranges::sort(names);
  const auto first = [&](const auto& is) -> const std::string* {
    const auto at = std::ranges::find_if(names, is);
    return at == names.end() ? nullptr : &*at;
  };
  const auto ends = [](std::string_view name, std::initializer_list<std::string_view> with) {
    return std::ranges::any_of(with, [name](std::string_view end) { return name.ends_with(end); });
  };
  if (const auto* const adapter =
          first([](std::string_view n) { return n.starts_with("adapter_"); }))
    return fmt::format(
        "has {}: it holds an adapter (PEFT), which changes the weights of another "
        "model; give that model, and the adapter by start_request::adapters in a program that has "
        "one (lora=...), or merge it into that model by PEFT's merge_and_unload()",
        *adapter);
  const auto is_pickle = [&](std::string_view n) {
    // Trainers keep these beside the weights of a checkpoint.
    const bool beside = n.starts_with("training_args") || n.starts_with("optimizer") ||
                        n.starts_with("scheduler") || n.starts_with("rng_state");
    return !beside && (ends(n, {".pt", ".pth", ".ckpt", ".bin.index.json"}) ||
                       (n.ends_with(".bin") && n.find("model") != std::string_view::npos));
  };
  if (const auto* const pickle = first(is_pickle))
    return fmt::format(
        "has {}, and files that torch.save wrote are not read, since they may run "
        "code; save the model as safetensors once, by transformers: "
        "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(FOLDER){}",
        *pickle,
        pickle->starts_with("consolidated.")
            ? ", from the form of the model that transformers reads"
            : "");
  if (const auto* const other = first([&](std::string_view n) {
        return ends(n, {".gguf", ".h5", ".msgpack"});
      }))
    return fmt::format(
        "has {}, which is a model in a form of another program; take the one that "
        "has model.safetensors",
        *other);
  if (const auto* const shard = first([](std::string_view n) {
        return n.starts_with("model-") && n.ends_with(".safetensors");
      }))
    return fmt::format(
        "has {} without model.safetensors.index.json, which says what is in which "
        "file; download that, too",
        *shard);
  if (const auto* const other =
          first([](std::string_view n) { return n.ends_with(".safetensors"); }))
    return fmt::format(
        "has {}, and weights are read from model.safetensors, or from the files "
        "that model.safetensors.index.json names; take the form of the model that "
        "transformers reads",
        *other);
  return "";
}

} // namespace detail

/// The file that every model folder has.
inline constexpr const char* model_folder_marker = "config.json";

/// A kind of folder that folder_writer may replace: one that holds files of these names alone.
struct folder_kind {
  const char* name;
  bool (*holds)(std::string_view);
  const char* marker; ///< a file that every such folder has; null: none
  const char* first;  ///< the file that is removed first: a folder without it is incomplete
};
inline constexpr folder_kind model_kind{"model", is_model_file, model_folder_marker,
                                        model_folder_marker};

/// The folder of an adapter of PEFT, with the files of a tokenizer.
inline bool is_adapter_file(std::string_view name) {
  return name == adapter_config_name || name == adapter_weights_name ||
         std::ranges::find(tokenizer_file_names, name) != std::end(tokenizer_file_names) ||
         name == "characters.json" || name.ends_with(".tiktoken");
}
inline constexpr folder_kind adapter_kind{"adapter", is_adapter_file, adapter_config_name,
                                          adapter_config_name};

namespace detail {

/// Returns the names in an open folder, without . and ..; nothing if it cannot be listed.
inline std::optional<std::vector<std::string>> list_folder(int folder) {
  const int copy = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (copy < 0) return std::nullopt;
  DIR* const dir = ::fdopendir(copy);
  if (!dir) {
    ::close(copy);
    return std::nullopt;
  }
  std::vector<std::string> names;
  for (;;) {
    errno = 0; // allocating a name may set errno without an error
    const dirent* const entry = ::readdir(dir);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  const int problem = errno;
  ::closedir(dir);
  if (problem == 0) return names;
  names = std::vector<std::string>();
  errno = problem;
  return std::nullopt;
}

inline bool is_link(int folder, const std::string& name) {
  struct stat s {};
  return ::fstatat(folder, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode);
}

/// Returns whether a name is that of a regular file: not of a link, a folder or a device.
inline bool is_plain_file(int folder, const std::string& name) {
  struct stat s {};
  return ::fstatat(folder, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
}

} // namespace detail

/// A folder that is open for reading. Files are opened in it by bare name, and symbolic links are
/// not followed, so that a weight index cannot name a file outside. A name that was opened stays
/// the same file until close_files(): the bytes that were verified are those that are read, even if
/// others have removed the file. One thread may use it at a time.
class model_folder {
public:
  explicit model_folder(std::string path) : path_(std::move(path)) {
    folder_ = descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder_) return;
    if (errno == ENOENT)
      throw error(exit_code::model,
                  fmt::format("the model folder {} does not exist; check the path", path_));
    if (errno == ENOTDIR)
      throw error(exit_code::model,
                  fmt::format("{} is not a folder; give one that train --save wrote, or one that "
                              "holds {}",
                              path_, model_folder_marker));
    throw error(exit_code::model, fmt::format("cannot open the model folder {}: {}", path_,
                                              reason_not_to_read(errno)));
  }

  /// Opens a folder in a folder by its bare name, or through a symbolic link of that name, as a
  /// user leaves one who moves a state to a larger disk. If a link leads nowhere, its target may
  /// come back: the error is `unexamined`.
  model_folder(const model_folder& above, const std::string& name)
      : path_(above.path_ + '/' + name),
        folder_(::openat(above.folder_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (folder_ && is_bare_name(name)) return;
    const int problem = folder_ ? ENOENT : errno;
    const bool linked = detail::is_link(above.folder_.get(), name);
    const std::string why =
        fmt::format("{} is {} that can be opened: {}", path_,
                    linked ? "a symbolic link, and leads to no folder" : "not a folder",
                    reason_not_to_read(problem));
    if (!linked && (problem == ENOENT || problem == ENOTDIR)) throw error(exit_code::model, why);
    throw unexamined(exit_code::model, why);
  }

  const std::string& path() const { return path_; }
  int get() const { return folder_.get(); }
  /// Returns the names of the folder's entries, in no order. Throws mc::error(exit_code::model).
  std::vector<std::string> names() const {
    auto list = detail::list_folder(folder_.get());
    if (!list)
      throw unexamined(exit_code::model,
                       fmt::format("cannot list {}: {}", path_, reason_not_to_read(errno)));
    return *std::move(list);
  }
  bool contains(const std::string& name) const {
    struct stat s {};
    return opened_.count(name) != 0 ||
           (is_bare_name(name) &&
            ::fstatat(folder_.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0);
  }
  /// Returns whether the folder certainly has no such entry. If that is unknown, both contains()
  /// and lacks() are false.
  bool lacks(const std::string& name) const {
    struct stat s {};
    return ::fstatat(folder_.get(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
  }
  mapped_file open(const std::string& name) const {
    if (!is_bare_name(name))
      throw error(exit_code::model,
                  fmt::format("{} names the file \"{}\", which is not a plain file name; "
                              "files of a model lie directly in its folder",
                              path_, name));
    const std::string full = path_ + '/' + name;
    if (const auto known = opened_.find(name); known != opened_.end())
      return mapped_file(known->second, full, exit_code::model);
    descriptor file(
        ::openat(folder_.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (file) {
      const auto shared = std::make_shared<const descriptor>(std::move(file));
      mapped_file mapped(shared, full, exit_code::model);
      opened_.emplace(name, shared);
      return mapped;
    }
    if (errno == ENOENT) {
      const std::string other = detail::foreign_weights(names());
      throw error(exit_code::model,
                  fmt::format("the model folder {} has no file {}; it {}", path_, name,
                              other.empty() ? "is incomplete or not a model" : other));
    }
    if (errno == ELOOP) // the target of the link may be right
      throw unexamined(exit_code::model,
                       fmt::format("{} is a symbolic link, and links are not followed out of a "
                                   "model folder; copy the folder with cp -rL, or download it with "
                                   "huggingface-cli download --local-dir",
                                   full));
    throw unexamined(exit_code::model,
                     fmt::format("cannot open {}: {}", full, reason_not_to_read(errno)));
  }
  /// Closes the files that were opened. Files that others have removed take space on the disk until
  /// then.
  void close_files() { opened_.clear(); }

private:
  std::string path_;
  descriptor folder_;
  mutable std::map<std::string, std::shared_ptr<const descriptor>> opened_;
};

} // namespace mc
