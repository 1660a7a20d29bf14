// The folder of the states of a run, as it is written (states/saved_states.hpp lists its contents).
//
// A state is written to a temporary folder. Its files and the folder itself are made durable, it is
// renamed to the name of its step, and the root is made durable (folder_writer). Then the file that
// names the newest step is replaced in the same way, and old states are removed. The best state is
// exchanged with the one before it.
#pragma once

#include <megacpp/io/folder_writer.hpp>
#include <megacpp/io/small_file.hpp>
#include <megacpp/states/saved_states.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// A root that this process saves to. A lock keeps others out while it lives.
class state_root {
public:
  /// Creates the folder if it is missing, and removes what killed runs left in it. A folder that is
  /// created here is removed again unless a state is saved. Throws mc::error(exit_code::output).
  explicit state_root(const std::string& path) : path_(path) {
    if (path.empty())
      throw error(exit_code::output, "the folder to save to has an empty name; give one");
    take();
  }

  /// Leaves out steps whose states are damaged when it counts those that are kept.
  void skip(const std::vector<std::int64_t>& damaged) {
    damaged_.insert(damaged.begin(), damaged.end());
  }

  const std::string& path() const { return path_; }
  std::string folder_of(std::int64_t step) const { return path_ + '/' + step_folder_name(step); }

  /// Returns a warning where the file system has no locks, so that nothing keeps others out; else
  /// "".
  std::string note() const {
    if (lock_problem_ == 0) return {};
    return fmt::format(
        "{} cannot be locked ({}), so another run that saves to it will not be refused; start none",
        path_, reason_of(lock_problem_));
  }

  /// Tells whether the path names the folder that was locked. Somebody may have removed or replaced
  /// it since.
  bool in_place() const {
    struct stat opened {};
    struct stat named {};
    return ::fstat(folder(), &opened) == 0 && ::stat(path_.c_str(), &named) == 0 &&
           opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
  }

  /// Returns the best state, as this process knows it.
  const std::optional<validation_result>& best() const { return best_; }
  /// Returns why the best state that was there cannot be used; "" if it can, or if there was none.
  const std::string& fault_of_best() const { return fault_of_best_; }
  std::string folder_of_best() const { return path_ + '/' + best_folder_name; }

  /// Tells whether a step has a folder of its own whose state is not known to be damaged.
  bool has(std::int64_t step) const {
    const std::vector<std::int64_t> steps = undamaged();
    return std::ranges::find(steps, step) != steps.end();
  }
  /// Returns the newest step with a state that is not known to be damaged. It may be the best one.
  std::optional<std::int64_t> newest() const {
    std::vector<std::int64_t> steps = undamaged();
    if (best_) steps.push_back(best_->step);
    return steps.empty() ? std::nullopt : std::optional(std::ranges::max(steps));
  }

  /// Does all that save() does but for most of the bytes (folder_writer::rehearse), and checks that
  /// there is room for all states that are there at once after `saves` calls of save() up to this
  /// step, the last, and `bests` calls of save_best(). The run may reach damaged steps again, and
  /// steps whose names others have taken: such folders must be replaceable. Returns what one
  /// save takes. Throws mc::error.
  detail::save_cost rehearse(std::int64_t step, std::int64_t saves, std::int64_t keep,
                             const std::function<void(folder_writer&)>& fill,
                             std::int64_t bests = 0) const {
    const std::int64_t present = newest().value_or(-1);
    std::set<std::string> replaced;
    for (const std::int64_t again : damaged_) replaced.insert(step_folder_name(again));
    for (const std::string& name : names())
      if (const auto taken = step_of(name); taken && *taken > present && *taken <= step)
        replaced.insert(name);
    if (bests > 0) replaced.insert(best_folder_name);
    for (const std::string& name : replaced) {
      require_own(name);
      folder_writer::check_target(place_of(name), state_kind);
    }
    require_own(step_folder_name(step));
    const detail::save_cost one =
        folder_writer::rehearse(place_of(step_folder_name(step)), state_kind, fill);
    point_to(step, true);
    require_space(one.room, saves, keep, bests);
    return one;
  }

  /// Writes the state of a step, whole or not at all, and removes old ones beyond the `keep`
  /// newest; with 0, none. `fill` writes every file. Returns notes on what could not be removed.
  /// Throws mc::error(exit_code::output), and leaves what was there. A root that was removed
  /// meanwhile is made anew and locked; a folder that took its place is used if it holds no state.
  std::vector<std::string> save(std::int64_t step, std::int64_t keep,
                                const std::function<void(folder_writer&)>& fill) {
    write(step_folder_name(step), fill);
    damaged_.erase(step);
    point_to(step, false);
    return keep > 0 ? prune(step, keep) : std::vector<std::string>();
  }

  /// Replaces the best state, whole or not at all. Throws as save() does.
  void save_best(const validation_result& best, const std::function<void(folder_writer&)>& fill) {
    write(best_folder_name, fill);
    best_ = best;
  }

private:
  int folder() const { return folder_->get(); }
  /// Returns the names of all files and folders in the root. Throws mc::error.
  std::vector<std::string> names() const {
    auto list = detail::list_folder(folder());
    if (!list) throw detail::output_error("list", path_, errno);
    return *std::move(list);
  }
  /// Returns the steps with a folder of their own whose states are not known to be damaged, the
  /// newest first.
  std::vector<std::int64_t> undamaged() const {
    std::vector<std::int64_t> steps = detail::steps_in(folder(), names());
    std::erase_if(steps, [&](std::int64_t step) { return damaged_.count(step) > 0; });
    return steps;
  }
  folder_target place_of(const std::string& name) const { return {path_, folder_, name}; }
  void write(const std::string& name, const std::function<void(folder_writer&)>& fill) {
    if (!in_place()) take_anew();
    require_own(name);
    folder_writer out(place_of(name), state_kind);
    fill(out);
    out.commit();
    made_.keep();
  }

  /// Opens and locks the folder of the path, and removes what killed runs left there.
  void take() {
    bool was_there = false;
    for (int attempt = 0; !claim(was_there); ++attempt) {
      if (attempt < 100) continue;
      struct stat s {};
      if (was_there)
        throw error(exit_code::output,
                    fmt::format("{} is removed by others as often as it is made; choose another "
                                "folder to save to",
                                path_));
      if (::lstat(path_.c_str(), &s) == 0 && S_ISLNK(s.st_mode))
        throw error(exit_code::output,
                    fmt::format("{} is a symbolic link to a folder that is not there; make that "
                                "folder, or choose another one to save to",
                                path_));
      throw detail::output_error("create", path_, ENOENT);
    }
    if (::faccessat(folder(), model_folder_marker, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
      throw error(exit_code::output, fmt::format("{} holds {}: it is a model, not a folder of "
                                                 "saved states; choose another folder to save to",
                                                 path_, model_folder_marker));
    tidy();
    look_for_best();
  }

  /// Reads the best state, all of its bytes, since its loss decides which later states are saved,
  /// and its step where a run may begin. A damaged one is not used, and the next one replaces it.
  void look_for_best() {
    best_.reset();
    fault_of_best_.clear();
    if (!detail::has_best(folder())) return;
    try {
      best_ = best_state_of(model_folder(path_), [](const std::string&) { return true; });
    } catch (const unexamined& e) {
      throw error(exit_code::model,
                  fmt::format("{}; the best state may be whole, so nothing is saved beside it: "
                              "move {} away, or choose another folder to save to",
                              e.what(), folder_of_best()));
    } catch (const error& e) {
      if (e.code() != exit_code::model) throw;
      fault_of_best_ = e.what();
    }
  }

  /// Takes the folder of the path in the course of a run, if it holds no state, for nobody knows
  /// whose that would be.
  void take_anew() {
    const std::shared_ptr<const descriptor> before = folder_;
    const std::optional<validation_result> best = best_;
    try {
      take();
      damaged_.clear();
      if (const auto other = newest())
        throw error(exit_code::output,
                    fmt::format("{} was replaced during the run by a folder that holds the state "
                                "of step {}; nothing is added to it: choose another folder to save "
                                "to",
                                path_, *other));
    } catch (...) {
      folder_ = before;
      best_ = best;
      throw;
    }
  }

  /// Opens and locks the folder, and creates it if it is missing. Returns false if the run that had
  /// created it, and saved nothing, removed it meanwhile. Sets `was_there` once the folder was
  /// there.
  bool claim(bool& was_there) {
    if (const int problem = made_.create(path_)) {
      if (problem == ENOENT) return false;
      throw detail::output_error("create", path_, problem);
    }
    descriptor open(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!open && errno == ENOENT) return false;
    if (!open && errno == ENOTDIR)
      throw error(exit_code::output,
                  fmt::format("{} is not a folder; it is left as it is: choose another folder to "
                              "save to",
                              path_));
    if (!open) throw detail::output_error("open", path_, errno);
    was_there = true;
    lock_problem_ = ::flock(open.get(), LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    if (lock_problem_ == EWOULDBLOCK) {
      made_.keep(); // what this run made is the other's now
      throw error(exit_code::output,
                  fmt::format("another run is saving to {}; choose another folder", path_));
    }
    folder_ = std::make_shared<const descriptor>(std::move(open));
    return in_place();
  }

  /// Throws mc::error unless there is room for as many more states as are there at once. `one`: the
  /// room that one state takes.
  void require_space(const detail::disk_room& one, std::int64_t saves, std::int64_t keep,
                     std::int64_t bests) const {
    const std::int64_t room_to_keep = std::max<std::int64_t>(0, keep - std::ssize(undamaged()));
    const std::int64_t kept = keep > 0 ? std::min(saves, room_to_keep) : saves;
    const std::int64_t best = std::min<std::int64_t>(bests, best_ ? 0 : 1);
    const bool replaces = kept < saves || best < bests; // an old one goes when the new one is there
    const std::int64_t most = kept + best + (replaces ? 1 : 0);
    const auto require = [&](std::uint64_t each, std::uint64_t besides, std::uint64_t left,
                             const char* unit, const char* remedy) {
      if (left >= besides && (left - besides) / each >= static_cast<std::uint64_t>(most)) return;
      throw error(
          exit_code::output,
          fmt::format(
              "{} is to get {} state{} of {} {} before any is removed, but has "
              "{} {} left; free some {}{} choose another folder",
              path_, most, most == 1 ? "" : "s", each, unit, left, unit, remedy,
              most > 1 && keep != 1 ? ", keep fewer with loop_request::keep_latest, or" : " or"));
    };
    // The old hint and the new one need room besides.
    constexpr std::uint64_t page = detail::page_bytes;
    const detail::disk_room left = detail::room_left(folder(), path_);
    require(one.bytes + page, 2 * page, left.bytes, "bytes", "space");
    require(one.inodes, 2, left.inodes, "inodes", "inodes");
  }

  void tidy() const {
    for (const std::string& name : names()) {
      const std::string_view target = detail::leftover_of(name).target;
      if (step_of(target) || target == best_folder_name) detail::tidy(folder(), target, state_kind);
      else if (target == newest_step_name) ::unlinkat(folder(), name.c_str(), 0);
    }
  }

  /// Throws mc::error where a name is a link, since what it names is not in the root, or a model
  /// that somebody put there.
  void require_own(const std::string& name) const {
    struct stat s {};
    const std::string full = path_ + '/' + name;
    if (::fstatat(folder(), name.c_str(), &s, AT_SYMLINK_NOFOLLOW) == 0 && S_ISLNK(s.st_mode))
      throw error(exit_code::output,
                  fmt::format("{} is a symbolic link, and states are not saved through one; "
                              "remove it, or choose another folder to save to",
                              full));
    if (detail::is_model_in(folder(), name))
      throw error(exit_code::output,
                  fmt::format("{} is a model, not a state, and is left as it is; move it away, or "
                              "choose another folder to save to",
                              full));
  }

  /// Writes the hint. In a rehearsal it replaces a hint that is there by the text of that one.
  void point_to(std::int64_t step, bool rehearsal) const {
    const detail::small_file hint(folder(), path_, newest_step_name);
    const std::string text = fmt::format("{}\n", step);
    if (!rehearsal) return hint.replace(text);
    if (const std::optional<std::string> present = hint.read()) hint.replace(*present);
    else hint.rehearse(text);
  }

  /// Removes states that are older than the `keep` newest whole ones up to `newest`. Returns notes
  /// on those that could not be removed.
  std::vector<std::string> prune(std::int64_t newest, std::int64_t keep) const {
    std::vector<std::string> notes;
    const auto names = detail::list_folder(folder());
    if (!names) return {fmt::format("cannot list {}: old states are kept", path_)};
    for (const std::int64_t step : detail::steps_in(folder(), *names)) {
      if (step > newest) continue;
      if (keep > 0 || step == newest) keep -= damaged_.count(step) == 0 ? 1 : 0;
      else if (std::string note = remove(step); !note.empty()) notes.push_back(std::move(note));
    }
    return notes;
  }

  /// Removes a state. It loses its name first, so that no half of it is taken for a state. Returns
  /// a note on what is left of it; "" if nothing is.
  std::string remove(std::int64_t step) const {
    const std::string name = step_folder_name(step);
    const auto kept = [&](std::string_view why) {
      return fmt::format("{} is kept: {}", folder_of(step), why);
    };
    const detail::flat_folder state(folder(), name, state_kind);
    if (!state.foreign().empty()) return kept("it holds " + printable(state.foreign()));
    if (const int problem = state.obstacle()) return kept(reason_of(problem));
    const std::string aside = detail::temporary_of(name) + "-old";
    const bool moved = detail::rename_in_folder(folder(), name, aside, RENAME_NOREPLACE);
    if (!moved && errno != EXDEV) return kept(reason_of(errno));
    if (!moved) // a folder of a lower layer of overlayfs: it stops being a state otherwise
      if (const int problem = state.unmark()) return kept(reason_of(problem));
    const std::string& at = moved ? aside : name;
    if (const int problem = state.remove(folder(), at))
      return fmt::format("{}/{} is left of the state of step {}: {}; remove it", path_, at, step,
                         reason_of(problem));
    return {};
  }

  std::string path_;
  std::set<std::int64_t> damaged_;
  std::optional<validation_result> best_;
  std::string fault_of_best_;
  std::shared_ptr<const descriptor> folder_;
  int lock_problem_ = 0;
  detail::made_folders made_; // declared last, so that folders are removed under the lock
};

} // namespace mc
