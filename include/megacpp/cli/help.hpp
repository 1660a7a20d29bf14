// The help of a program, which the list of flags makes.
#pragma once

#include <megacpp/options/options.hpp>

#include <span>

namespace mc {

/// A subcommand as the help shows it.
struct command_text {
  const char* name;
  command which;
  const char* what;
  const char* example;
};

inline constexpr command_text commands[] = {
    {"train", command::train, "train the model on a text",
     "train --data-path book.txt --split 90,10,0 --train-iters 1000 --save model"},
    {"eval", command::eval, "measure a saved model on a text",
     "eval --load model --data-path book.txt --split 90,10,0"},
    {"generate", command::generate, "continue a text with a saved model",
     "generate --load model --prompt 'Once upon' --temperature 0.8 --top-k 50"},
    {"export", command::convert,
     "write a saved model anew as a Hugging Face folder: another type, other file sizes",
     "export --load model --save converted --dtype bf16 --max-shard-size 1GB"},
    {"describe", command::describe,
     "print the model, its memory, arithmetic and communication, or list saved states",
     "describe --load model"}};

namespace detail {

inline constexpr std::size_t help_columns = 80, help_indent = 8;

/// Appends a text in lines of at most help_columns, each indented.
inline void append_wrapped(std::string& out, std::string_view text, std::size_t indent) {
  std::size_t column = help_columns;
  each_between(text, ' ', [&](std::string_view one) {
    if (column + 1 + one.size() > help_columns) {
      if (!out.empty() && out.back() != '\n') out += '\n';
      out.append(indent, ' ');
      column = indent;
    } else {
      out += ' ';
      ++column;
    }
    out += one;
    column += one.size();
  });
  out += '\n';
}

} // namespace detail

/// Returns the set of all commands of the program that has some.
inline command all_among(std::span<const command_text> among) {
  return overlaps(among.front().which, command::all) ? command::all : command::all_of_data;
}

inline std::string version_text() {
  return fmt::format("megacpp {}.{}.{}", MEGACPP_VERSION_MAJOR, MEGACPP_VERSION_MINOR,
                     MEGACPP_VERSION_PATCH);
}

/// Returns the help of the whole program.
inline std::string program_help(std::string_view program, std::string_view summary,
                                std::span<const command_text> all) {
  std::string out, examples;
  detail::append_wrapped(out, summary, 0);
  out += fmt::format("\nusage: {} COMMAND [--FLAG VALUE]...\n\ncommands:\n", program);
  for (const command_text& c : all) {
    out += fmt::format("  {:<10}{}\n", c.name, c.what);
    examples += fmt::format("  {} {}\n", program, c.example);
  }
  return out + fmt::format(
                   "\nexamples:\n{1}\n  {0} COMMAND --help   the flags of a command\n  {0} "
                   "--version        version and commit\n",
                   program, examples);
}

/// Returns the help of one subcommand.
inline std::string command_help(std::string_view program, std::string_view summary,
                                const command_text& c, const std::vector<named_flag>& list) {
  std::string out;
  detail::append_wrapped(out, fmt::format("{} {}: {}. {}", program, c.name, c.what, summary), 0);
  out += fmt::format("\nexample:\n  {} {}\n", program, c.example);
  const auto append = [&](std::string_view name, std::string_view value, const std::string& text) {
    out += fmt::format("  --{}{}{}\n", name, value.empty() ? "" : " ", value);
    detail::append_wrapped(out, text, detail::help_indent);
  };
  const char* group = "";
  for (const named_flag& e : list) {
    if (!overlaps(e.flag->commands(), c.which)) continue;
    if (e.group != group) out += fmt::format("\n{}:\n", group = e.group);
    const std::string initial = e.flag->default_text();
    const bool plain = initial.empty() || (e.flag->is_toggle() && initial == "false");
    append(e.name, e.flag->argument(),
           e.flag->help() + (e.compiled ? fmt::format(" [compiled in: {}]", initial)
                             : plain    ? ""
                                        : fmt::format(" [default: {}]", initial)));
  }
  out += "\nOther:\n";
  append(
      "config", "FILE.json",
      "a file of flags: one JSON object with the names above without their dashes, for example "
      "{\"lr\": 0.001, \"save\": \"model\"}. Flags of the command line override it, and one file "
      "may serve all commands");
  append("help", "", "this text");
  return out;
}

/// Returns the flags of a command that were given, as `lr=0.001 save=model`.
inline std::string given_flags(const std::vector<named_flag>& list, command c) {
  std::string text;
  for (const named_flag& e : list) {
    if (!e.flag->given() || !overlaps(e.flag->commands(), c)) continue;
    if (!text.empty()) text += ' ';
    text += fmt::format("{}={}", e.name, e.flag->text());
  }
  return text;
}

} // namespace mc
