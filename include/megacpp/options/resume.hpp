// Flags across runs: a state keeps them, and a run that goes on from it takes them up. How a flag
// is taken up stands beside it (options.hpp).
#pragma once

#include <megacpp/options/options.hpp>
#include <megacpp/request/kept_request.hpp>
#include <megacpp/states/start.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

namespace detail {

/// Tells whether a state keeps a flag.
inline bool is_saved(const named_flag& e) {
  return overlaps(e.flag->commands(), command::train) && e.flag->resuming() != on_resume::unsaved;
}

/// Returns the value of a flag, where texts that are not UTF-8 are made so.
inline nlohmann::json shown_value(const named_flag& e) {
  const std::string text = e.flag->text();
  if (!e.flag->is_text()) return nlohmann::json::parse(text); // numbers, true, false: as in JSON
  if (!e.flag->is_list()) return as_utf8(text);
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& one : e.flag->texts()) all.push_back(as_utf8(one));
  return all;
}

/// Returns the value of a flag. Throws mc::error(exit_code::usage) for a text that JSON cannot
/// hold.
inline nlohmann::json json_of(const named_flag& e) {
  const std::string text = e.flag->text();
  if (e.flag->is_text() && as_utf8(text) != text)
    throw usage(
        "--{} is {}, which is not UTF-8, so that a state cannot name it; give it another name, or "
        "a link that has one",
        e.name, printable(text));
  return shown_value(e);
}

/// Reads a saved flag into `into`. Returns false for a value that this program does not take,
/// though the program that saved it did, where the command line gives another one. Throws
/// mc::error(exit_code::model) for other values that the flag does not take.
inline bool read_saved(const json_value& flags, const named_flag& e, flag_base& into) {
  const nlohmann::json& value = flags.raw().at(e.name);
  if (!into.fits(value))
    throw flags.fault(fmt::format("flag \"{}\" has a value of another type", e.name));
  try {
    into.read_json(value, e.name);
    return true;
  } catch (const error& wrong) {
    const bool may_change = e.flag->resuming() == on_resume::may_change;
    if (may_change && e.flag->given()) return false;
    throw flags.fault(
        fmt::format("flag {}{}", wrong.what(),
                    may_change ? fmt::format("; give --{} to go on with another", e.name) : ""));
  }
}

/// Returns a line about a flag whose value a run changes.
inline std::string change_of(std::string_view name, std::string_view then, std::string_view now,
                             const char* how = "may change") {
  return fmt::format("{}: {} -> {} ({})", name, then, now, how);
}

/// Tells whether a program adds up over tokens in another order than the one before, so that a run
/// that goes on has other bits than one that did not stop.
inline bool sums_otherwise(const key_flags& then, const key_flags& now) {
  const auto sums = [](const key_flags& f) { return f.of<text_flag>("NUMERICS")(); };
  const auto micro = [](const key_flags& f) { return f.of<whole_flag>("MICRO_BATCH")(); };
  return sums(now) != sums(then) || (sums(now) == "fast" && micro(now) != micro(then));
}

/// Flags that together say one thing in one way. A run takes one way of each group.
struct way_to_say {
  int group;
  std::array<std::string_view, 3> flags; ///< "" is none
  bool first_decides = false; ///< the first flag means this way, and the others alone do not
  bool has(std::string_view name) const { return std::ranges::find(flags, name) != flags.end(); }
};
inline constexpr std::array<way_to_say, 11> ways_to_say{
    {{0, {"data-path"}},
     {0, {"data-args-path"}},
     {1, {"train-data-path", "valid-data-path", "test-data-path"}},
     {1, {"per-split-data-args-path"}},
     {2, {"train-iters", "lr-decay-iters", "lr-warmup-iters"}, true},
     {2, {"train-samples", "lr-decay-samples", "lr-warmup-samples"}, true},
     {2, {"epochs", "lr-decay-iters", "lr-warmup-iters"}, true},
     {3, {"tokenizer-model"}},
     {3, {"vocab-file", "merge-file"}},
     {4, {"lr-warmup-iters", "lr-warmup-samples"}},
     {4, {"lr-warmup-fraction"}}}};

/// Returns a flag of the command line that says the same as `name` in another way; "" is none.
inline std::string_view said_otherwise(const std::vector<named_flag>& list, std::string_view name) {
  for (const way_to_say& own : ways_to_say)
    for (const way_to_say& other : ways_to_say) {
      if (!own.has(name) || own.group != other.group || other.has(name)) continue;
      const std::size_t deciding = other.first_decides ? 1 : other.flags.size();
      for (std::size_t i = 0; i < deciding && !other.flags[i].empty(); ++i)
        if (find_flag(list, other.flags[i])->flag->asked()) return other.flags[i];
    }
  return "";
}

} // namespace detail

/// Adds {"flags": every flag's value, "given": the names of the flags that were given} to a state.
/// Flags that were left out have the values in `o` that they have come to.
inline void save_flags(nlohmann::json& state, options o) {
  nlohmann::json flags = nlohmann::json::object(), given = nlohmann::json::array();
  for (const named_flag& e : flags_of(o)) {
    if (!detail::is_saved(e) || !e.flag->is_value()) continue;
    flags[e.name] = detail::json_of(e);
    if (e.flag->given() && !e.compiled) given.push_back(e.name);
  }
  state["flags"] = std::move(flags);
  state["given"] = std::move(given);
}

/// Prepares `o` for a run that goes on from a state: flags that were left out take their saved
/// values. Returns one line for each flag that changes, and one more if sums over tokens then have
/// other bits. Throws mc::error(exit_code::mismatch), which names every flag that must match and
/// does not, and mc::error(exit_code::model) for a flag that this program does not know.
inline std::vector<std::string> resume_flags(const json_value& state, options& o,
                                             std::string_view program) {
  const json_value flags = state.field<json_value>("flags");
  const auto given = state.field<std::vector<std::string>>("given");
  const std::vector<named_flag> list = flags_of(o);
  options before;
  const std::vector<named_flag> saved = flags_of(before);
  for (const auto& item : flags.raw().items()) {
    const named_flag* const e = find_flag(list, item.key());
    if (e == nullptr || !detail::is_saved(*e))
      throw flags.fault(
          fmt::format("has a flag \"{}\" that this program does not know", printable(item.key())));
  }
  const bool asked = o.data.mock_data.given();
  std::vector<std::string> changes;
  std::string refused;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const named_flag& e = list[i];
    if (!detail::is_saved(e) || !flags.has(e.name)) continue;
    flag_base &now = *e.flag, &then = *saved[i].flag;
    const bool is_read = detail::read_saved(flags, e, then),
               was_given = std::ranges::find(given, e.name) != given.end();
    const std::string was = is_read ? then.text() : printable(flags.raw().at(e.name).dump());
    const std::string_view otherwise = detail::said_otherwise(list, e.name);
    if (is_read && !now.given() && !otherwise.empty()) {
      if (was_given)
        changes.push_back(
            detail::change_of(e.name, was, fmt::format("left out, for --{} is given", otherwise)));
    } else if (is_read && !now.given() && !e.compiled) {
      if (was_given || (now.resuming() != on_resume::derived && now.text() != was))
        for (const std::string& one : then.texts()) now.read(one, e.name);
    } else if (is_read && now.text() == was) {
      continue;
    } else if (is_read && now.resuming() == on_resume::must_match) {
      const auto shown = [](const std::string& text) { return text.empty() ? "none" : text; };
      refused +=
          fmt::format("{}{} is {} there and {} {}", refused.empty() ? "" : ", ", e.name, shown(was),
                      shown(now.text()), e.compiled ? "compiled in here" : "here");
    } else {
      changes.push_back(detail::change_of(e.name, was.empty() ? "none" : was, now.text()));
    }
  }
  if (!refused.empty())
    throw error(exit_code::mismatch,
                fmt::format("{} cannot go on from {}: {}; leave such a flag out or build the same "
                            "model, or start a new run from the weights with --finetune",
                            program, state.file(), refused));
  for (const std::string_view name :
       {"data-path", "data-args-path", "train-data-path", "per-split-data-args-path"})
    if (!asked && o.data.mock_data() && find_flag(list, name)->flag->given())
      throw error(exit_code::mismatch,
                  fmt::format("{} is of a run on random tokens (--mock-data), which --{} "
                              "contradicts; leave it out, or start a new run from the weights with "
                              "--finetune",
                              state.file(), name));
  if (detail::sums_otherwise(before.keys, o.keys))
    changes.emplace_back(
        "the run goes on with other bits than if it had not stopped: sums over tokens "
        "depend on the micro-batch unless both programs are compiled with numerics "
        "batch_invariant (rounding alone differs)");
  return changes;
}

/// The flags of a training run. Its states keep them, and the values that flags which were left out
/// have come to.
class kept_flags final : public kept_request {
public:
  explicit kept_flags(options o) : flags_(std::move(o)) {}

  void keep(nlohmann::json& state, const settled_values& v) const override {
    save_flags(state, settled(v));
  }
  nlohmann::json shown(const settled_values& v) const override {
    nlohmann::json all = nlohmann::json::object();
    options o = settled(v);
    for (const named_flag& e : flags_of(o))
      if (detail::is_saved(e) && e.flag->is_value()) all[e.name] = detail::shown_value(e);
    return all;
  }
  std::vector<std::string> derived_changes(const json_value& state,
                                           const settled_values& v) const override {
    const json_value flags = state.field<json_value>("flags");
    options before, effective = settled(v);
    const std::vector<named_flag> saved = flags_of(before), now = flags_of(effective);
    std::vector<std::string> changes;
    for (std::size_t i = 0; i < now.size(); ++i) {
      const named_flag& e = now[i];
      flag_base& then = *saved[i].flag;
      if (e.flag->resuming() != on_resume::derived || e.flag->given() || !flags.has(e.name))
        continue;
      detail::read_saved(flags, e, then);
      if (then.text() != e.flag->text())
        changes.push_back(detail::change_of(e.name, then.text(), e.flag->text(), "derived"));
    }
    return changes;
  }

private:
  options settled(const settled_values& v) const {
    options o = flags_;
    o.training.train_iters.set(v.loop.steps);
    o.training.global_batch_size.set(v.loop.batches.last);
    (v.loop.rates_by_samples ? o.optimizer.lr_decay_samples : o.optimizer.lr_decay_iters)
        .set(v.loop.rates.decay);
    if (v.products != product_type::automatic)
      o.machine.product_type.set(v.products == product_type::bf16 ? "bf16" : "widened");
    if (!v.data_kind.empty()) o.data.data_type.set(v.data_kind);
    return o;
  }
  options flags_;
};

inline start_request start_request_of(const model_flags& f) {
  return {.load = f.load.if_given(),
          .pretrained = f.pretrained_checkpoint.if_given(),
          .adapters = adapters_of(f.adapter()),
          .adapter_layout = f.adapter_layout.given() ? f.adapter_layout() : "",
          .other_base = f.allow_other_base(),
          .finetune = f.finetune(),
          .random_weights = f.random_weights()};
}

/// Finds the start of a training run (find_start). A state fills in the flags that were left out;
/// the run tells changes once everything is accepted. A run that saves nothing `claims` no folder.
/// Throws mc::error.
inline training_start prepare_start(const program_view& p, options& o, bool claims = true) {
  training_start start = find_start(start_request_of(o.model), o.training.save.if_given(), claims);
  if (!start.from || !start.from->state || start.weights_alone) return start;
  const json_value& state = start.from->state->state();
  require_same_program(state, p);
  start.from->changes = resume_flags(state, o, p.name);
  return start;
}
/// Finds that start on a rank of another process, in the folder that the first rank has named.
/// Throws mc::error.
inline training_start prepare_named_start(const std::string& told, options& o,
                                          std::string_view program) {
  training_start start = start_of_text(told, start_request_of(o.model));
  if (start.from && start.from->state && !start.weights_alone)
    resume_flags(start.from->state->state(), o, program);
  return start;
}

} // namespace mc
