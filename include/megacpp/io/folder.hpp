// Model folders: what is one, and reading files beneath one.
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

/// True for a name that can only be an entry of the folder it is looked up in.
inline bool is_bare_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         name.find('/') == std::string_view::npos && name.find('\0') == std::string_view::npos;
}

/// What a model folder has of its tokenizer and of how it writes: it goes along with the weights.
inline constexpr std::string_view tokenizer_file_names[] = {
    "tokenizer.json",      "tokenizer_config.json", "vocab.json",
    "merges.txt",          "added_tokens.json",     "special_tokens_map.json",
    "chat_template.jinja", "generation_config.json"};

/// True for the names of files that megacpp writes into a model folder. A folder that holds
/// anything else is never replaced.
inline bool is_model_file(std::string_view name) {
  return std::ranges::find(tokenizer_file_names, name) != std::end(tokenizer_file_names) ||
         name == "config.json" || name == "characters.json" ||
         name == "model.safetensors.index.json" || name.ends_with(".tiktoken") ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

namespace detail {

/// Names what stands in a folder in the place of a model's weights, and says what to do: the end of
/// a sentence about the folder. "" where nothing that is known stands there.
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
        "model; merge it into that model by PEFT's merge_and_unload(), and save "
        "the result by save_pretrained()",
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

/// The name without which a folder is not a model folder.
inline constexpr const char* model_folder_marker = "config.json";

/// Which folders folder_writer replaces: those that hold nothing but these names.
struct folder_kind {
  const char* name;
  bool (*holds)(std::string_view);
  const char* marker; ///< the name that such a folder has; null: none is needed
  const char* first;  ///< removed before the others: what lacks it is not whole
};
inline constexpr folder_kind model_kind{"model", is_model_file, model_folder_marker,
                                        model_folder_marker};

namespace detail {

/// Names in an open folder, without . and ..; nothing if it cannot be listed.
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
    errno = 0; // the memory of a name may set it, and be there all the same
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

/// Not a link, a folder or a device.
inline bool is_plain_file(int folder, const std::string& name) {
  struct stat s {};
  return ::fstatat(folder, name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(s.st_mode);
}

} // namespace detail

/// A folder opened for reading. Files are opened beneath it by bare name, and symbolic links are
/// not followed, so a weight index cannot name a file outside. A name that was opened stays that
/// file until close_files(): what was verified is what is read, also once others have removed it.
/// For one thread at a time.
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

  /// A folder in a folder, by bare name, or where a symbolic link of that name leads: whoever moved
  /// a state to a larger disk left one. Where a link leads may come back, so one that leads nowhere
  /// leaves open what it names.
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
  /// Names of its entries, in no order. Throws mc::error(exit_code::model).
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
  /// True if it certainly has no such entry, which is less than that contains() is false.
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
    if (errno == ELOOP) // and what it leads to may be right
      throw unexamined(exit_code::model,
                       fmt::format("{} is a symbolic link, and links are not followed out of a "
                                   "model folder; copy the folder with cp -rL, or download it with "
                                   "huggingface-cli download --local-dir",
                                   full));
    throw unexamined(exit_code::model,
                     fmt::format("cannot open {}: {}", full, reason_not_to_read(errno)));
  }
  /// Lets go of the files that were opened: those that were removed take room until then.
  void close_files() { opened_.clear(); }

private:
  std::string path_;
  descriptor folder_;
  mutable std::map<std::string, std::shared_ptr<const descriptor>> opened_;
};

} // namespace mc
