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

/// Tells whether an argument is a flag or looks like one, unlike a number below 0.
inline bool looks_like_flag(std::string_view s) {
  return s.size() > 1 && s[0] == '-' && s[1] != '.' && !(s[1] >= '0' && s[1] <= '9');
}

/// A command line that was read.
struct parsed_line {
  const command_text* what = nullptr; ///< null: the program's own help or version
  bool help = false, version = false;
  bool whole = true; ///< every flag of the program has the value that it was given
  told_flags told{};

  /// Returns what --version or --help asks for.
  std::string asked_text(std::string_view program, std::string_view name, std::string_view commit,
                         std::string_view summary, const std::vector<named_flag>& list,
                         std::span<const command_text> among) const {
    if (version) return fmt::format("{} ({}, commit {})\n", name, version_text(), commit);
    return what != nullptr ? command_help(program, summary, *what, list)
                           : program_help(program, summary, among);
  }
};

/// Reads the arguments behind the name of a program into its flags. Adds what is wrong with a flag
/// to `refused`; throws mc::error(exit_code::usage) where nothing more can be said.
class line_parser {
public:
  line_parser(std::span<const char* const> arguments, const std::vector<named_flag>& list,
              std::span<const command_text> among, refusals& refused)
      : arguments_(arguments), list_(list), among_(among), refused_(refused) {}

  parsed_line parse() {
    split();
    if (line_.what == nullptr) {
      outside_.resize(std::min<std::size_t>(outside_.size(), 1));
      add_outside();
      refused_.raise();
    }
    if (line_.help || line_.version) return line_;
    if (line_.what == nullptr)
      throw usage("give a command: {}; see --help", names_of(all_among(among_), among_));
    if (other_ != nullptr)
      throw usage("two commands, {} and {}; give one", line_.what->name, other_->name);
    add_outside();
    add_unknown(unknown_);
    read_config();
    for (std::size_t i = 0; i < given_.size(); ++i) read_given(i);
    for (const given_foreign& g : foreign_)
      refused_.collect(
          [&] { take_foreign(g, list_, line_.what->which, line_.told.without_effect); });
    for (const named_flag& e : list_) // of a file that serves other commands, too
      if (!e.compiled && !overlaps(e.flag->commands(), line_.what->which)) e.flag->forget();
    return line_;
  }

private:
  const command_text* command_of(std::string_view name) const {
    const auto found = std::ranges::find(among_, name, &command_text::name);
    return found == among_.end() ? nullptr : &*found;
  }
  /// Returns the command, or all where none is named.
  command which() const { return line_.what != nullptr ? line_.what->which : all_among(among_); }
  /// Sorts the arguments: the command, its flags, what no flag takes, and what stands before the
  /// command or behind "--".
  void split() {
    while (at_ < arguments_.size()) {
      const std::string_view one = arguments_[at_++];
      if (one == "--") break;
      const command_text* const named = command_of(one);
      if (one.substr(0, one.find('=')) == "--help" || one == "-h") line_.help = true;
      else if (line_.what != nullptr && named != nullptr) other_ = named;
      else if (line_.what != nullptr) split_flag(one);
      else if (one == "--version" || one == "-V") line_.version = true;
      else if (line_.what = named; named == nullptr) outside_.emplace_back(one);
    }
    while (at_ < arguments_.size()) outside_.emplace_back(arguments_[at_++]);
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
  /// Takes a flag of the command with its values.
  void split_flag(std::string_view argument) {
    std::optional<given_flag> flag = flag_of(argument, which());
    if (!flag) return unknown_.emplace_back(argument), void();
    const auto left = [&] { return at_ < arguments_.size(); };
    if (const std::size_t is = argument.find('='); is != std::string_view::npos) {
      flag->values.emplace_back(argument.substr(is + 1));
      if (flag->values[0].empty())
        throw usage("--{0}= has no value; give --{0}{1}, or {2}", flag->name,
                    flag->least() == 0 ? "" : "=VALUE",
                    flag->own != nullptr && flag->own->flag->is_toggle()
                        ? fmt::format("--{}=false", flag->name)
                        : fmt::format("leave --{} out", flag->name));
    } else if (flag->least() > 0) {
      if (!left()) throw usage("--{} needs one value; see --help", flag->name);
      if (flag_of(arguments_[at_], all_among(among_)))
        throw usage("--{} needs one value, but {} follows; see --help", flag->name,
                    arguments_[at_]);
      flag->values.emplace_back(arguments_[at_++]);
    }
    while (left() && std::ssize(flag->values) < flag->most() && !looks_like_flag(arguments_[at_]) &&
           command_of(arguments_[at_]) == nullptr)
      flag->values.emplace_back(arguments_[at_++]);
    if (flag->values.empty()) flag->values.emplace_back("true");
    given_.push_back(std::move(*flag));
  }
  /// Refuses arguments that no flag takes: flags that are unknown, with the values behind them, and
  /// others.
  void add_unknown(const std::vector<std::string>& arguments) {
    std::vector<std::string> told;
    for (const std::string& one : arguments) {
      const std::string name = one.substr(0, one.find('='));
      if (looks_like_flag(one) && std::ranges::find(told, name) == told.end()) {
        const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
        refused_.add(exit_code::usage, fmt::format("unknown flag {}; {}", printable(name),
                                                   advice_for(list_, "--", bare, which(), among_)));
        told.push_back(name);
      } else if (told.empty()) {
        refused_.add(
            exit_code::usage,
            fmt::format("unknown argument \"{}\"; {}", printable(one),
                        line_.what != nullptr ? "see --help" : advice_for_command(one, among_)));
      }
    }
  }
  /// Refuses arguments that stand before the command or behind "--".
  void add_outside() {
    const std::optional<given_flag> first =
        outside_.empty() ? std::nullopt : flag_of(outside_[0], which());
    if (first && first->foreign.row == nullptr)
      throw usage(
          "--{} stands before the command or after \"--\", where no flag is read; put it behind "
          "the command",
          first->name);
    add_unknown(outside_);
  }
  /// Reads the file of --config.
  void read_config() {
    const auto is_config = [](const given_flag& g) { return g.name == "config"; };
    const auto config = std::ranges::find_if(given_, is_config);
    if (config == given_.end()) return;
    const std::string path = config->values[0];
    if (path.empty()) throw usage("--config needs the name of a file");
    if (std::erase_if(given_, is_config) > 1)
      throw usage("--config is given twice; give one file of flags");
    read_option_file(path, list_, refused_, foreign_, among_);
  }
  /// Gives a flag its value of the command line, where the last one counts, unless it collects
  /// texts.
  void read_given(std::size_t i) {
    const given_flag& g = given_[i];
    const std::string name(g.name), where = "--" + name;
    const auto again = [&](const given_flag& other) { return other.name == name; };
    const auto begin = given_.begin(), here = begin + static_cast<std::ptrdiff_t>(i);
    const bool first = std::find_if(begin, here, again) == here,
               last = std::find_if(here + 1, given_.end(), again) == given_.end(),
               list = g.own != nullptr && g.own->flag->is_list();
    const auto ask = [&](const std::string& text) {
      line_.whole &= refused_.collect([&] { g.own->flag->ask(text, where); });
    };
    if (list && first) g.own->flag->forget(); // texts of a file
    if (list) std::ranges::for_each(g.values, ask);
    if (!last) return;
    const std::string value = fmt::format("{}", fmt::join(g.values, " "));
    if (list && g.most() > 1 && !first) line_.told.added_up.push_back(name);
    if (!list && (g.own != nullptr || g.foreign.row->idle != "*") &&
        std::ranges::any_of(given_, [&](const given_flag& o) { return again(o) && o != g; }))
      line_.told.repeated.push_back(name);
    if (g.own == nullptr) foreign_.push_back({g.foreign, value, where});
    else if (!list) ask(value);
  }

  std::span<const char* const> arguments_;
  const std::vector<named_flag>& list_;
  std::span<const command_text> among_;
  refusals& refused_;
  std::size_t at_ = 1; ///< place of the next argument
  parsed_line line_;
  const command_text* other_ = nullptr; ///< another command, which is one too many
  std::vector<std::string> outside_;    ///< arguments before the command and behind "--"
  std::vector<std::string> unknown_;    ///< arguments that no flag takes
  std::vector<given_flag> given_;
  std::vector<given_foreign> foreign_; ///< flags of other programs
};

inline parsed_line parse(int argc, const char* const* argv, const std::vector<named_flag>& list,
                         std::span<const command_text> among, refusals& refused) {
  return line_parser({argv, static_cast<std::size_t>(argc)}, list, among, refused).parse();
}

} // namespace detail

} // namespace mc
