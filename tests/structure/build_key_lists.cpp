// Prints what is made of the table of build keys, as tests/structure/build_keys.py compares it:
//
//   build_key_lists cmake   cmake/megacpp_build_keys.cmake
//   build_key_lists docs    the table of docs/using-megacpp.md
//   build_key_lists flags   the flags of every program that say what was compiled in
#include <megacpp/options/options.hpp>

#include <algorithm>
#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace {

using mc::build_key, mc::build_keys, mc::key_kind;

void print(const std::string& text) { std::fputs(text.c_str(), stdout); }

/// The value of a key as help and docs show it, in which | separates choices.
std::string value_of(const build_key& k, bool in_script) {
  switch (k.kind) {
  case key_kind::number:
  case key_kind::whole: return "N";
  case key_kind::decimal: return "X";
  case key_kind::on_or_off: return in_script ? "1" : "";
  case key_kind::layers: return in_script ? "N,N,..." : "N N ...";
  case key_kind::blocks: return in_script ? "N,N-N,..." : "N N-N ...";
  case key_kind::names: return in_script ? "name,name,..." : "name name ...";
  case key_kind::pattern: return in_script ? "name:X,name:X,..." : "name:X name:X ...";
  case key_kind::name: return "name";
  case key_kind::file: return "file";
  case key_kind::headers: return "header...";
  case key_kind::choice: break;
  }
  std::string names;
  mc::for_each_choice(k, [&](std::string_view name, std::string_view) {
    names += fmt::format("{}{}", names.empty() ? "" : "|", name);
  });
  return names;
}

/// What a key says, and its default.
std::string sentence_of(const build_key& k) {
  return k.sentence + (*k.initial == 0 ? "" : fmt::format("; by default {}", k.initial));
}

/// A line of CMake's comment for a key; what is long goes on below.
void print_help(std::string spelled, const build_key& k) {
  constexpr std::size_t at = 28, columns = 100;
  std::string line = fmt::format("{:<{}}", "#   " + spelled, at - 1);
  if (line.size() >= at) print(line + '\n'), line = fmt::format("{:<{}}", '#', at - 1);
  std::string rest = sentence_of(k);
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    if (line.size() + 1 + end > columns)
      print(line + '\n'), line = fmt::format("{:<{}}", '#', at - 1);
    line += " " + rest.substr(0, end);
    rest.erase(0, end + 1);
  }
  print(line + '\n');
}

void print_cmake() {
  print(
      "# The keys of a build. tests/structure/build_keys.py writes this file from the table in\n"
      "# include/megacpp/options/build_keys.hpp.\n#\n"
      "# megacpp_add_preset(NAME ...) takes\n#\n");
  for (const build_key& k : build_keys) {
    const std::string value = value_of(k, false);
    print_help(fmt::format("{}{}{}", k.cmake, value.empty() ? "" : " ", value), k);
  }
  print("#\n# and examples/build_preset.sh, whose --help prints these lines:\n#\n");
  for (const build_key& k : build_keys)
    if (!k.script.empty()) print_help(fmt::format("{}={}", k.script, value_of(k, true)), k);
  print("#\nset(megacpp_build_keys");
  for (const build_key& k : build_keys) print(fmt::format("\n  {}", k.cmake));
  print(
      "\n  CACHE INTERNAL \"Keys of megacpp_add_preset\")\n# These take no value.\n"
      "set(megacpp_keys_alone");
  for (const build_key& k : build_keys)
    if (k.kind == key_kind::on_or_off) print(fmt::format(" {}", k.cmake));
  print(
      " CACHE INTERNAL \"Keys without a value\")\n# Keys as examples/build_preset.sh has them.\n");
  print("set(megacpp_script_keys");
  for (const build_key& k : build_keys)
    if (!k.script.empty()) print(fmt::format("\n  {}", k.script));
  print(
      "\n  CACHE INTERNAL \"Keys before =\")\n"
      "# CMake reads the values of these, since sources or libraries depend on them.\n"
      "set(megacpp_keys_for_cmake");
  for (const build_key& k : build_keys)
    if (k.for_cmake) print(fmt::format(" {}", k.cmake));
  print(" CACHE INTERNAL \"Keys that CMake reads\")\n");
  for (const build_key& k : build_keys)
    if (k.for_cmake)
      print(
          fmt::format("set(megacpp_script_of_{} \"{}\" CACHE INTERNAL \"\")\n", k.cmake, k.script));
}

void print_docs() {
  const auto code = [](std::string_view text) {
    std::string in_cell;
    for (const char c : text) in_cell += c == '|' ? std::string("` or `") : std::string(1, c);
    return text.empty() ? "" : fmt::format("`{}`", in_cell);
  };
  print(
      "| key | of build_preset.sh | what it says | default | Megatron-LM "
      "|\n|---|---|---|---|---|\n");
  for (const build_key& k : build_keys) {
    const std::string value = value_of(k, false);
    print(fmt::format("| {} | {} | {} | {} | {} |\n",
                      code(fmt::format("{}{}{}", k.cmake, value.empty() ? "" : " ", value)),
                      code(k.script.empty() ? "" : fmt::format("{}=", k.script)), k.sentence,
                      k.initial, code(k.flag.empty() ? "" : fmt::format("--{}", k.flag))));
  }
}

void print_flags() {
  mc::options o;
  for (const mc::named_flag& e : mc::flags_of(o))
    if (e.compiled)
      print(fmt::format("--{}: {}: {}\n", e.name, e.flag->help(), e.flag->otherwise()));
}

} // namespace

int main(int argc, char** argv) {
  const std::string_view what = argc == 2 ? argv[1] : "";
  if (what == "cmake") print_cmake();
  else if (what == "docs") print_docs();
  else if (what == "flags") print_flags();
  else return std::fputs("build_key_lists: say cmake, docs or flags\n", stderr), 2;
  return 0;
}
