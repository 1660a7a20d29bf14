// The program megacpp-data, which main starts.
#pragma once

#include <megacpp/cli/parse.hpp>
#include <megacpp/observe/guarded.hpp>
#include <megacpp/options/flags_of_values.hpp>
#include <megacpp/tool/prepare.hpp>
#include <megacpp/tool/set_commands.hpp>
#include <megacpp/tool/text_commands.hpp>

namespace mc {

namespace detail {

inline constexpr std::string_view data_summary =
    "megacpp-data turns texts into token ids and the data sets that training reads.";

inline void run_data_command(std::string_view program, int argc, char** argv,
                             std::string_view commit) {
  data_program_flags flags;
  const std::vector<named_flag> list = flags_of(flags);
  refusals refused;
  const parsed_line r = parse(argc, argv, list, data_commands, refused);
  if (r.version || r.help)
    return print(r.asked_text(program, "megacpp-data", commit, data_summary, list, data_commands));
  refused.raise();
  for (const std::string& note : r.told.notes()) print_note(note);
  switch (r.what->which) {
  case command::encode: return run_encode(flags);
  case command::decode: return run_decode(flags);
  case command::prepare: return run_prepare(flags);
  case command::merge: return run_merge(flags);
  case command::inspect: return run_inspect(flags);
  case command::verify: return run_verify(flags);
  case command::chat: return run_chat(flags);
  default: return run_count(flags);
  }
}

} // namespace detail

/// The body of megacpp-data's main.
inline int run_data_program(int argc, char** argv, std::string_view commit) {
  return guarded_main(
      argc, argv, [] { return std::string_view(); }, &spelled_flags,
      [&](std::string_view program, const auto& attempt) {
        return attempt([&] { detail::run_data_command(program, argc, argv, commit); });
      });
}

} // namespace mc
