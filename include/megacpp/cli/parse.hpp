// What a command line asks for: a subcommand, and values for its flags.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/cli/option_file.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace mc {

namespace detail {

/// One flag of the command line as it was given, of this program or of another one.
struct given_flag {
  const flag_entry* entry = nullptr;
  const foreign_flag* foreign = nullptr;
  std::string value;

  std::string_view name() const { return entry != nullptr ? entry->name : foreign->name; }
};

inline void declare_flags(CLI::App& app, const std::vector<flag_entry>& list, command c,
                          std::vector<given_flag>& given) {
  for (const flag_entry& e : list) {
    if (!overlaps(e.flag->commands(), c)) continue;
    const CLI::callback_t keep = [&given, &e](const CLI::results_t& r) {
      if (e.flag->words() == 1) {
        for (const std::string& value : r) given.push_back({&e, nullptr, value});
      } else {
        given.push_back({&e, nullptr, fmt::format("{}", fmt::join(r, " "))});
      }
      return true;
    };
    CLI::Option* const option = app.add_option("--" + e.name, keep);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (e.flag->is_toggle()) option->expected(0, 1)->default_str("true");
    if (e.flag->words() > 1) option->expected(1, e.flag->words());
    if (e.flag->takes_many()) option->expected(1, 1 << 20);
  }
}

/// The flags of other programs that a command line may have.
template <class Table> void declare_foreign(CLI::App& app, const Table& table,
                                            const std::vector<flag_entry>& list, command c,
                                            std::vector<given_flag>& given) {
  for (const foreign_flag& f : table) {
    const flag_entry* const own = find_flag(list, f.name);
    if (!f.is_taken() || (own != nullptr && overlaps(own->flag->commands(), c))) continue;
    const CLI::callback_t keep = [&given, &f](const CLI::results_t& r) {
      if (f.words == several_values)
        given.push_back({nullptr, &f, fmt::format("{}", fmt::join(r, " "))});
      else
        for (const std::string& value : r) given.push_back({nullptr, &f, value});
      return true;
    };
    CLI::Option* const option = app.add_option(fmt::format("--{}", f.name), keep);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (f.words == is_switch) option->expected(0);
    if (f.words == several_values) option->expected(1, several_values);
  }
}

/// A command line that was read.
struct parsed_line {
  const command_text* what = nullptr; ///< null: the program's own help or version
  bool help = false, version = false;
  bool whole = true;                 ///< every flag of the program has the value that it was given
  std::vector<std::string> repeated; ///< flags that were given several times with several values
  std::vector<std::string> added_up; ///< lists that were given several times, all of which count
  std::vector<std::string> idle;     ///< flags of other programs that change nothing

  /// The line about flags that were given several times; "" where there are none.
  std::string note_of_repeated() const {
    const auto list = [](const char* what, const std::vector<std::string>& names) {
      return names.empty() ? std::string()
                           : fmt::format("given several times, of which {}: --{}", what,
                                         fmt::join(names, ", --"));
    };
    const std::string a = list("the last counts", repeated), b = list("all count", added_up);
    return a + (a.empty() || b.empty() ? "" : "; ") + b;
  }
};

/// "train, eval or describe".
inline std::string any_of(std::span<const command_text> among) {
  std::string names;
  for (const command_text& c : among)
    names += fmt::format("{}{}", names.empty() ? "" : &c == &among.back() ? " or " : ", ", c.name);
  return names;
}

inline error usage(const std::string& sentence) { return error(exit_code::usage, sentence); }

inline std::string_view name_in(std::string_view word) {
  if (!word.starts_with("--")) return "";
  return word.substr(2, std::min(word.find('='), word.size()) - 2);
}
inline bool is_negative(std::string_view word) {
  return word.size() > 1 && word[0] == '-' &&
         (word[1] == '.' || (word[1] >= '0' && word[1] <= '9'));
}

/// The words of a command line, of which a flag of several words has its last ones alone, unless it
/// is a list, which collects. The names of those that had others before are added to `r`.
inline std::vector<std::string> last_words(int argc, const char* const* argv,
                                           const std::vector<flag_entry>& list, parsed_line& r) {
  std::vector<std::string> words(argv, argv + argc);
  struct run_of_words {
    const flag_entry* entry;
    std::size_t begin, end;
  };
  std::vector<run_of_words> runs;
  for (std::size_t i = 1; i < words.size() && words[i] != "--"; ++i) {
    const flag_entry* const e = find_flag(list, name_in(words[i]));
    if (e == nullptr || (e->flag->words() == 1 && !e->flag->takes_many())) continue;
    std::size_t end = i + 1;
    while (end < words.size() && (!words[end].starts_with('-') || is_negative(words[end]))) ++end;
    runs.push_back({e, i, end});
  }
  for (std::size_t k = runs.size(); k-- > 0;) {
    const auto last = std::find_if(runs.rbegin(), runs.rend(),
                                   [&](const run_of_words& r) { return r.entry == runs[k].entry; });
    if (&*last == &runs[k]) continue;
    if (runs[k].entry->flag->is_list()) {
      if (std::ranges::find(r.added_up, runs[k].entry->name) == r.added_up.end())
        r.added_up.push_back(runs[k].entry->name);
      continue;
    }
    const auto at = [&](std::size_t i) { return words.begin() + static_cast<std::ptrdiff_t>(i); };
    if (!std::equal(at(runs[k].begin), at(runs[k].end), at(last->begin), at(last->end)) &&
        std::ranges::find(r.repeated, runs[k].entry->name) == r.repeated.end())
      r.repeated.push_back(runs[k].entry->name);
    const std::size_t gone = runs[k].end - runs[k].begin;
    words.erase(at(runs[k].begin), at(runs[k].end));
    for (std::size_t j = k + 1; j < runs.size(); ++j) runs[j].begin -= gone, runs[j].end -= gone;
    runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(k));
  }
  return words;
}

/// "--name=" of a flag would take the next argument for its value (CLI11 2.1).
inline void refuse_empty_values(const std::vector<std::string>& words,
                                const std::vector<flag_entry>& list, command c) {
  for (const std::string_view word : words) {
    if (!word.starts_with("--") || !word.ends_with('=')) continue;
    const std::string_view name = word.substr(2, word.size() - 3);
    const flag_entry* const e = find_flag(list, name);
    const foreign_flag* const f = find_foreign(name, c);
    if (e == nullptr && name != "config" && (f == nullptr || !f->is_taken())) continue;
    throw usage(fmt::format("--{0}= has no value; give {1}", name,
                            e != nullptr && e->flag->is_toggle()
                                ? fmt::format("--{0}, or --{0}=false", name)
                                : fmt::format("--{0}=VALUE, or leave --{0} out", name)));
  }
}

/// Refuses what no flag has read: unknown flags, with what follows them, and other words.
inline void refuse_rest(const std::vector<std::string>& rest, const parsed_line& r, command c,
                        const std::vector<flag_entry>& list, std::span<const command_text> among,
                        refusals& refused) {
  std::set<std::string> told;
  bool behind_flag = false;
  for (const std::string& word : rest) {
    if (!word.starts_with('-') || is_negative(word)) {
      if (!behind_flag)
        refused.add(
            exit_code::usage,
            fmt::format("unknown argument \"{}\"; {}", printable(word),
                        r.what != nullptr ? "see --help" : advice_for_command(word, among)));
      continue;
    }
    behind_flag = true;
    const std::string name = word.substr(0, word.find('='));
    const std::size_t dashes = std::min(name.find_first_not_of('-'), name.size());
    if (told.insert(name).second)
      refused.add(exit_code::usage,
                  fmt::format("unknown flag {}; {}", printable(name),
                              advice_for(list, "--", name.substr(dashes), c, among)));
  }
}

/// The commands of a program with their flags, those of other programs for a command that `words`
/// name.
inline void declare_commands(CLI::App& app, std::span<const command_text> among,
                             const std::vector<std::string>& words,
                             const std::vector<flag_entry>& list, parsed_line& r,
                             std::optional<std::string>& config, std::vector<given_flag>& given) {
  app.set_help_flag();
  app.allow_extras();
  app.add_flag("--version,-V", r.version);
  app.add_flag("--help,-h", r.help);
  for (const command_text& c : among) {
    CLI::App* const sub = app.add_subcommand(c.name);
    sub->set_help_flag();
    sub->allow_extras();
    sub->fallthrough(false);
    sub->add_flag("--help,-h", r.help);
    sub->callback([&r, &c] { r.what = &c; });
    sub->add_option("--config", config)->multi_option_policy(CLI::MultiOptionPolicy::Throw);
    declare_flags(*sub, list, c.which, given);
    if (std::ranges::find(words, c.name) == words.end()) continue;
    if (overlaps(c.which, command::all))
      declare_foreign(*sub, megatron_flags, list, c.which, given);
    else declare_foreign(*sub, preprocess_flags, list, c.which, given);
  }
}

/// Lets CLI11 read the words, of which some may be left.
inline void read_words(CLI::App& app, const std::vector<std::string>& words) {
  std::vector<const char*> argv(words.size());
  std::ranges::transform(words, argv.begin(), [](const std::string& word) { return word.c_str(); });
  try {
    app.parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string_view what = e.what();
    throw usage(fmt::format("{} needs one value; see --help", what.substr(0, what.find(':'))));
  } catch (const CLI::ParseError& e) {
    std::string why = e.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    throw usage(why + "; see --help");
  }
}

/// A flag without its value has taken the next flag for it; with an = it means what it says.
inline void refuse_flags_as_values(const std::vector<given_flag>& given,
                                   const std::vector<std::string>& words,
                                   const std::vector<flag_entry>& list, command c) {
  const auto follows = [&](std::string_view name, const std::string& value) {
    for (std::size_t i = 1; i + 1 < words.size(); ++i)
      if (words[i] == fmt::format("--{}", name) && words[i + 1] == value) return true;
    return false;
  };
  for (const given_flag& g : given) {
    const std::string_view next = name_in(g.value);
    const foreign_flag* const f = next.empty() ? nullptr : find_foreign(next, c);
    if (!next.empty() && (find_flag(list, next) != nullptr || (f != nullptr && f->is_taken())) &&
        follows(g.name(), g.value))
      throw usage(
          fmt::format("--{} needs one value, but {} follows; see --help", g.name(), g.value));
  }
}

/// Refuses flags that stand before the command or after "--".
inline void refuse_outside(std::vector<std::string> rest, const parsed_line& r, command c,
                           const std::vector<flag_entry>& list, std::span<const command_text> among,
                           refusals& refused) {
  std::erase(rest, "--");
  if (rest.empty()) return;
  const std::string name = rest.front().substr(0, rest.front().find('='));
  const flag_entry* const e = name.starts_with("--") ? find_flag(list, name.substr(2)) : nullptr;
  if (name == "--config" || (e != nullptr && overlaps(e->flag->commands(), c)))
    throw usage(
        fmt::format("{} stands before the command or after \"--\", where no flag is read; "
                    "put it behind the command",
                    name));
  refuse_rest(rest, r, c, list, among, refused);
}

/// Gives flags the values of the command line, where the last one counts, but for those that
/// collect texts. Those of other programs are added to `foreign`.
inline void read_given(const std::vector<given_flag>& given, parsed_line& r, refusals& refused,
                       std::vector<given_foreign>& foreign) {
  for (const given_flag& g : given)
    if (g.entry != nullptr && g.entry->flag->is_list()) g.entry->flag->forget(); // the file's
  for (std::size_t i = 0; i < given.size(); ++i) { // those of one flag stand together
    const given_flag& g = given[i];
    const std::string name(g.name());
    const bool again = i + 1 < given.size() && given[i + 1].name() == name;
    if (again && (g.entry == nullptr || !g.entry->flag->is_list())) {
      if (g.value != given[i + 1].value && (g.entry != nullptr || g.foreign->idle != "*") &&
          std::ranges::find(r.repeated, name) == r.repeated.end())
        r.repeated.push_back(name);
    } else if (g.entry == nullptr) {
      foreign.push_back({g.foreign, g.value, fmt::format("--{}", name)});
    } else {
      r.whole &= refused.collect([&] { g.entry->flag->ask(g.value, fmt::format("--{}", name)); });
    }
  }
}

/// Reads the arguments into the flags of `list`. What is wrong with a flag is added to `refused`;
/// throws mc::error(exit_code::usage) where nothing more can be said.
inline parsed_line parse(int argc, const char* const* argv, const std::vector<flag_entry>& list,
                         std::span<const command_text> among, refusals& refused) {
  parsed_line r;
  const std::vector<std::string> words = last_words(argc, argv, list, r);
  std::optional<std::string> config;
  std::vector<given_flag> given;
  const command all = all_among(among);
  refuse_empty_values(words, list, all);
  CLI::App app;
  declare_commands(app, among, words, list, r, config, given);
  read_words(app, words);
  refuse_flags_as_values(given, words, list, all);
  if (r.what == nullptr) {
    std::vector<std::string> rest = app.remaining(); // whose first word is no command
    std::erase(rest, "--");
    rest.resize(std::min<std::size_t>(rest.size(), 1));
    refuse_outside(rest, r, all, list, among, refused);
    refused.raise();
    if (!r.help && !r.version)
      throw usage(fmt::format("give a command: {}; see --help", any_of(among)));
    return r;
  }
  if (r.help || r.version) return r;
  if (app.get_subcommands().size() > 1)
    throw usage(fmt::format("two commands, {} and {}; give one",
                            app.get_subcommands()[0]->get_name(),
                            app.get_subcommands()[1]->get_name()));
  refuse_outside(app.remaining(), r, r.what->which, list, among, refused);
  refuse_rest(app.get_subcommands().front()->remaining(), r, r.what->which, list, among, refused);
  if (config && config->empty()) throw usage("--config needs the name of a file");
  std::vector<given_foreign> foreign;
  if (config) read_option_file(*config, list, refused, foreign, among);
  read_given(given, r, refused, foreign);
  for (const given_foreign& g : foreign)
    refused.collect([&] { take_foreign(g, list, r.what->which, r.idle); });
  for (const flag_entry& e : list) // of a file that serves other commands, too
    if (!e.compiled && !overlaps(e.flag->commands(), r.what->which)) e.flag->forget();
  return r;
}

} // namespace detail

} // namespace mc
