// What a command line asks for: a subcommand, and values for its flags.
#pragma once

#include <megacpp/cli/advice.hpp>
#include <megacpp/cli/option_file.hpp>

#include <cstddef>
#include <span>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

namespace mc {

namespace detail {

/// One flag of the command line as it was given.
struct given_flag {
  const flag_entry* entry = nullptr;
  std::string value;
};

inline void declare_flags(CLI::App& app, const std::vector<flag_entry>& list, command c,
                          std::vector<given_flag>& given) {
  for (const flag_entry& e : list) {
    if (!overlaps(e.flag->commands(), c)) continue;
    const CLI::callback_t keep = [&given, &e](const CLI::results_t& r) {
      if (e.flag->words() == 1) {
        for (const std::string& value : r) given.push_back({&e, value});
      } else {
        given.push_back({&e, fmt::format("{}", fmt::join(r, " "))});
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

/// What a command line asks for.
struct request {
  const command_text* what = nullptr; ///< null: the program's own help or version
  bool help = false, version = false;
};

/// "train, eval or describe".
inline std::string any_of(std::span<const command_text> among) {
  std::string names;
  for (const command_text& c : among)
    names += fmt::format("{}{}", names.empty() ? "" : &c == &among.back() ? " or " : ", ", c.name);
  return names;
}

inline error usage(const std::string& sentence) { return error(exit_code::usage, sentence); }

/// "--name=" of a flag would take the next argument for its value (CLI11 2.1).
inline void refuse_empty_values(int argc, const char* const* argv,
                                const std::vector<flag_entry>& list) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with("--") || !word.ends_with('=')) continue;
    const std::string_view name = word.substr(2, word.size() - 3);
    const flag_entry* const e = find_flag(list, name);
    if (e == nullptr && name != "config") continue;
    throw usage(fmt::format("--{0}= has no value; give {1}", name,
                            e != nullptr && e->flag->is_toggle()
                                ? fmt::format("--{0}, or --{0}=false", name)
                                : fmt::format("--{0}=VALUE, or leave --{0} out", name)));
  }
}

/// Reads the arguments into the flags of `list`. Throws mc::error(exit_code::usage).
inline request parse(int argc, const char* const* argv, const std::vector<flag_entry>& list,
                     std::span<const command_text> among) {
  request r;
  std::optional<std::string> config;
  std::vector<given_flag> given;
  CLI::App app;
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
  }
  refuse_empty_values(argc, argv, list);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ArgumentMismatch& e) {
    const std::string_view what = e.what();
    throw usage(fmt::format("{} needs one value; see --help", what.substr(0, what.find(':'))));
  } catch (const CLI::ParseError& e) {
    std::string why = e.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    throw usage(why + "; see --help");
  }
  const auto refuse_rest = [&](const std::vector<std::string>& rest, command c) {
    if (rest.empty()) return;
    std::string name = rest.front();
    if (!name.starts_with("-"))
      throw usage(fmt::format("unknown argument \"{}\"; {}", printable(name),
                              r.what != nullptr ? "see --help" : advice_for_command(name, among)));
    name = name.substr(0, name.find('='));
    const std::size_t dashes = std::min(name.find_first_not_of('-'), name.size());
    throw usage(fmt::format("unknown flag {}; {}", printable(name),
                            advice_for(list, "--", name.substr(dashes), c, among)));
  };
  // A flag without its value has taken the next flag for it; with an = it means what it says.
  const auto follows = [&](const std::string& name, const std::string& value) {
    for (int i = 1; i + 1 < argc; ++i)
      if (argv[i] == "--" + name && argv[i + 1] == value) return true;
    return false;
  };
  for (const given_flag& g : given)
    if (g.value.starts_with("--") && find_flag(list, g.value.substr(2)) != nullptr &&
        follows(g.entry->name, g.value))
      throw usage(
          fmt::format("--{} needs one value, but {} follows; see --help", g.entry->name, g.value));
  for (std::size_t i = 1; i < given.size(); ++i) // those of one flag stand together
    if (const given_flag& a = given[i - 1], &b = given[i];
        a.entry == b.entry && !a.entry->flag->is_list() && a.value != b.value)
      throw usage(fmt::format("--{} takes one value, but is given \"{}\" and \"{}\"; give one",
                              a.entry->name, printable(a.value), printable(b.value)));
  // What stands before the command or after "--".
  const auto refuse_outside = [&](std::vector<std::string> rest, command c) {
    std::erase(rest, "--");
    if (rest.empty()) return;
    const std::string name = rest.front().substr(0, rest.front().find('='));
    const flag_entry* const e = name.starts_with("--") ? find_flag(list, name.substr(2)) : nullptr;
    if (name == "--config" || (e != nullptr && overlaps(e->flag->commands(), c)))
      throw usage(
          fmt::format("{} stands before the command or after \"--\", where no flag is read; "
                      "put it behind the command",
                      name));
    refuse_rest(rest, c);
  };
  if (r.what == nullptr) {
    refuse_outside(app.remaining(), command::all | command::all_of_data);
    if (!r.help && !r.version)
      throw usage(fmt::format("give a command: {}; see --help", any_of(among)));
    return r;
  }
  if (r.help || r.version) return r;
  if (app.get_subcommands().size() > 1)
    throw usage(fmt::format("two commands, {} and {}; give one",
                            app.get_subcommands()[0]->get_name(),
                            app.get_subcommands()[1]->get_name()));
  refuse_outside(app.remaining(), r.what->which);
  refuse_rest(app.get_subcommands().front()->remaining(), r.what->which);
  if (config && config->empty()) throw usage("--config needs the name of a file");
  if (config) read_option_file(*config, list, among);
  for (const given_flag& g : given)
    if (g.entry->flag->is_list()) g.entry->flag->forget(); // the file's
  for (const given_flag& g : given) g.entry->flag->ask(g.value, "--" + g.entry->name);
  return r;
}

} // namespace detail

} // namespace mc
