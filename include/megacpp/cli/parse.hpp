// A command line is read: a subcommand, and values for its flags.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/cli/option_file.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/ranges.h>

namespace mc {

namespace detail {

/// A flag of a command line, of this program or of another one, with the values that follow it.
struct given_flag {
  std::string_view name;
  const named_flag* own = nullptr; ///< null: a flag of another program, or --config
  foreign_flag foreign{};
  std::vector<std::string> values{};

  bool operator==(const given_flag& o) const { return name == o.name && values == o.values; }
  /// Returns how many values must follow; the next one, how many may.
  int least() const { return own != nullptr && own->flag->is_toggle() ? 0 : std::min(1, most()); }
  int most() const {
    return own != nullptr           ? own->flag->most_values()
           : foreign.row != nullptr ? foreign.row->values
                                    : 1;
  }
};

/// The arguments of a command line, sorted.
struct split_line {
  const command_text* what = nullptr;  ///< null: no command is named
  const command_text* other = nullptr; ///< another command, which is one too many
  bool help = false, version = false;
  std::vector<std::string> outside; ///< arguments before the command and behind "--"
  std::vector<std::string> unknown; ///< arguments that no flag takes
  std::vector<given_flag> given;
};

inline error usage(const std::string& sentence) { return error(exit_code::usage, sentence); }

/// Tells whether an argument is a flag or looks like one, unlike a number below 0.
inline bool looks_like_flag(std::string_view s) {
  return s.size() > 1 && s[0] == '-' && s[1] != '.' && !(s[1] >= '0' && s[1] <= '9');
}

/// Sorts the arguments behind the name of the program. Throws mc::error(exit_code::usage) for a
/// flag that lacks its value.
class line_splitter {
public:
  line_splitter(std::span<const char* const> arguments, const std::vector<named_flag>& list,
                std::span<const command_text> among)
      : arguments_(arguments), list_(list), among_(among), at_(arguments.empty() ? 0 : 1) {}

  split_line split() {
    while (at_ < arguments_.size()) {
      const std::string_view one = arguments_[at_++];
      if (one == "--") break;
      const command_text* const named = command_of(one);
      if (one.substr(0, one.find('=')) == "--help" || one == "-h") line_.help = true;
      else if (line_.what != nullptr && named != nullptr) line_.other = named;
      else if (line_.what != nullptr) read(one);
      else if (one == "--version" || one == "-V") line_.version = true;
      else if (line_.what = named; named == nullptr) line_.outside.emplace_back(one);
    }
    line_.outside.insert(line_.outside.end(), arguments_.begin() + offset(), arguments_.end());
    return std::move(line_);
  }

private:
  std::ptrdiff_t offset() const { return static_cast<std::ptrdiff_t>(at_); }
  const command_text* command_of(std::string_view name) const {
    const auto found = std::ranges::find(among_, name, &command_text::name);
    return found == among_.end() ? nullptr : &*found;
  }
  /// Returns the flag that an argument names, "--name" or "--name=value", for some commands.
  std::optional<given_flag> flag_of(std::string_view argument, command c) const {
    if (!argument.starts_with("--")) return std::nullopt;
    const std::string_view name = argument.substr(2, argument.find('=') - 2);
    if (name == "config") return given_flag{name};
    const named_flag* const own = find_flag(list_, name);
    if (own != nullptr && overlaps(own->flag->commands(), c)) return given_flag{name, own};
    const foreign_flag foreign = find_foreign(name, c);
    if (foreign.row == nullptr || foreign.name != name || !foreign.row->is_taken())
      return std::nullopt;
    return given_flag{name, nullptr, foreign};
  }
  /// Reads a flag of the command with its values.
  void read(std::string_view argument) {
    std::optional<given_flag> flag = flag_of(argument, line_.what->which);
    if (!flag) return line_.unknown.emplace_back(argument), void();
    const auto left = [&] { return at_ < arguments_.size(); };
    if (const std::size_t is = argument.find('='); is != std::string_view::npos) {
      flag->values.emplace_back(argument.substr(is + 1));
      if (flag->values[0].empty())
        throw usage(fmt::format("--{0}= has no value; give {1}", flag->name,
                                flag->own != nullptr && flag->own->flag->is_toggle()
                                    ? fmt::format("--{0}, or --{0}=false", flag->name)
                                    : fmt::format("--{0}=VALUE, or leave --{0} out", flag->name)));
    } else if (flag->least() > 0) {
      if (!left()) throw usage(fmt::format("--{} needs one value; see --help", flag->name));
      if (flag_of(arguments_[at_], all_among(among_)))
        throw usage(fmt::format("--{} needs one value, but {} follows; see --help", flag->name,
                                arguments_[at_]));
      flag->values.emplace_back(arguments_[at_++]);
    }
    while (left() && std::ssize(flag->values) < flag->most() && !looks_like_flag(arguments_[at_]) &&
           command_of(arguments_[at_]) == nullptr)
      flag->values.emplace_back(arguments_[at_++]);
    if (flag->values.empty()) flag->values.emplace_back("true");
    line_.given.push_back(std::move(*flag));
  }

  std::span<const char* const> arguments_;
  const std::vector<named_flag>& list_;
  std::span<const command_text> among_;
  std::size_t at_; ///< place of the next argument
  split_line line_;
};

/// Refuses arguments that no flag takes: flags that are unknown, with the values behind them, and
/// others. `what` is null where no command is named.
inline void add_unknown(const std::vector<std::string>& arguments, const command_text* what,
                        const std::vector<named_flag>& list, std::span<const command_text> among,
                        refusals& refused) {
  std::vector<std::string> told;
  for (const std::string& one : arguments) {
    const std::string name = one.substr(0, one.find('='));
    if (looks_like_flag(one) && std::ranges::find(told, name) == told.end()) {
      const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
      const command c = what != nullptr ? what->which : all_among(among);
      refused.add(exit_code::usage, fmt::format("unknown flag {}; {}", printable(name),
                                                advice_for(list, "--", bare, c, among)));
      told.push_back(name);
    } else if (told.empty()) {
      refused.add(exit_code::usage,
                  fmt::format("unknown argument \"{}\"; {}", printable(one),
                              what != nullptr ? "see --help" : advice_for_command(one, among)));
    }
  }
}

/// Refuses arguments that stand before the command or behind "--". Throws
/// mc::error(exit_code::usage) for flags that would be read elsewhere.
inline void add_outside(const std::vector<std::string>& arguments, const command_text* what,
                        const std::vector<named_flag>& list, std::span<const command_text> among,
                        refusals& refused) {
  if (arguments.empty()) return;
  const std::string name = arguments[0].substr(0, arguments[0].find('='));
  const named_flag* const e = name.starts_with("--") ? find_flag(list, name.substr(2)) : nullptr;
  const command c = what != nullptr ? what->which : all_among(among);
  if (name == "--config" || (e != nullptr && overlaps(e->flag->commands(), c)))
    throw usage(
        fmt::format("{} stands before the command or after \"--\", where no flag is read; "
                    "put it behind the command",
                    name));
  add_unknown(arguments, what, list, among, refused);
}

/// A command line that was read.
struct parsed_line {
  const command_text* what = nullptr; ///< null: the program's own help or version
  bool help = false, version = false;
  bool whole = true;                 ///< every flag of the program has the value that it was given
  std::vector<std::string> repeated; ///< flags that were given several times with several values
  std::vector<std::string> added_up; ///< lists that were given several times, all of which count
  std::vector<std::string> idle;     ///< flags of other programs that change nothing

  /// Returns the line about flags that were given several times; "" where there are none.
  std::string note_of_repeated() const {
    return note_of({{"given several times, of which the last counts", repeated},
                    {"given several times, of which all count", added_up}});
  }
};

/// Gives flags the values of the command line, where the last one counts, unless a flag collects
/// texts. Adds flags of other programs to `foreign`.
inline void read_given(const std::vector<given_flag>& given, parsed_line& r, refusals& refused,
                       std::vector<given_foreign>& foreign) {
  for (std::size_t i = 0; i < given.size(); ++i) {
    const given_flag& g = given[i];
    const std::string name(g.name), where = "--" + name;
    const auto again = [&](const given_flag& other) { return other.name == name; };
    const auto first = std::ranges::find_if(given, again);
    const bool last = std::find_if(given.begin() + static_cast<std::ptrdiff_t>(i) + 1, given.end(),
                                   again) == given.end();
    const bool list = g.own != nullptr && g.own->flag->is_list();
    if (list && &*first == &g) g.own->flag->forget(); // texts of a file
    if (list)
      for (const std::string& text : g.values)
        r.whole &= refused.collect([&] { g.own->flag->ask(text, where); });
    if (!last) continue;
    const std::string value = fmt::format("{}", fmt::join(g.values, " "));
    if (list && g.most() > 1 && &*first != &g) r.added_up.push_back(name);
    if (!list && (g.own != nullptr || g.foreign.row->idle != "*") &&
        std::ranges::any_of(given, [&](const given_flag& o) { return again(o) && o != g; }))
      r.repeated.push_back(name);
    if (g.own == nullptr) foreign.push_back({g.foreign, value, where});
    else if (!list) r.whole &= refused.collect([&] { g.own->flag->ask(value, where); });
  }
}

/// Reads the arguments into the flags of `list`. Adds what is wrong with a flag to `refused`;
/// throws mc::error(exit_code::usage) where nothing more can be said.
inline parsed_line parse(int argc, const char* const* argv, const std::vector<named_flag>& list,
                         std::span<const command_text> among, refusals& refused) {
  split_line line = line_splitter({argv, static_cast<std::size_t>(argc)}, list, among).split();
  parsed_line r;
  r.what = line.what, r.help = line.help, r.version = line.version;
  if (r.what == nullptr) {
    line.outside.resize(std::min<std::size_t>(line.outside.size(), 1));
    add_outside(line.outside, nullptr, list, among, refused);
    refused.raise();
    if (r.help || r.version) return r;
    std::string names;
    for (const command_text& c : among)
      names += fmt::format("{}{}",
                           names.empty()         ? ""
                           : &c == &among.back() ? " or "
                                                 : ", ",
                           c.name);
    throw usage(fmt::format("give a command: {}; see --help", names));
  }
  if (r.help || r.version) return r;
  if (line.other != nullptr)
    throw usage(fmt::format("two commands, {} and {}; give one", r.what->name, line.other->name));
  add_outside(line.outside, r.what, list, among, refused);
  add_unknown(line.unknown, r.what, list, among, refused);
  std::vector<given_foreign> foreign;
  const auto config = std::ranges::find(line.given, "config", &given_flag::name);
  if (config != line.given.end()) {
    const std::string path = config->values[0];
    line.given.erase(config);
    if (path.empty()) throw usage("--config needs the name of a file");
    if (std::ranges::find(line.given, "config", &given_flag::name) != line.given.end())
      throw usage("--config is given twice; give one file of flags");
    read_option_file(path, list, refused, foreign, among);
  }
  read_given(line.given, r, refused, foreign);
  for (const given_foreign& g : foreign)
    refused.collect([&] { take_foreign(g, list, r.what->which, r.idle); });
  for (const named_flag& e : list) // of a file that serves other commands, too
    if (!e.compiled && !overlaps(e.flag->commands(), r.what->which)) e.flag->forget();
  return r;
}

} // namespace detail

} // namespace mc
