// The report of a fault at compile time: one static assertion fails. The operation, the operands,
// and the line and file of the model's source stand in the name of the instantiation.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/graph/fault.hpp>

#include <type_traits>
#include <utility>

namespace mc {

#if MEGACPP_PRINTS_TEXT
template <unsigned N> struct fixed_string {
  char c[N]{};
  constexpr explicit fixed_string(const char* from) {
    for (unsigned i = 0; i + 1 < N; ++i) c[i] = from[i];
  }
};
/// The faulty operation.
template <fixed_string Operation> struct in;
template <int Line, fixed_string File> struct at_line;
#else
/// The faulty operation as a pack of characters, which every compiler prints whole. at_line spells
/// the file so.
template <char... Characters> struct in;
template <int Line, char... File> struct at_line;
#endif
struct at_no_line;

/// Asserts that there is no fault. It returns true even after a failed assertion: otherwise a
/// compiler would add an error about a value that it cannot take from a class with a failed
/// assertion.
template <class Run, fault Code, class Where, class Line> constexpr bool report() {
#define MEGACPP_FAULT(code, says) static_assert(Code != fault::code, "MEGA-" #code " " says);
#include <megacpp/graph/faults.inc>
#undef MEGACPP_FAULT
  return true;
}

namespace detail {

constexpr int length_of(const char* text) {
  int n = 0;
  while (text[n] != 0) ++n;
  return n;
}

/// The operation, line and file of a source's fault_record, as types.
template <class Source> struct spelled {
  static constexpr const char* operation = Source::wrong.what.c_str();
  static constexpr const char* file = Source::wrong.line.file_name();
#if MEGACPP_PRINTS_TEXT
  using where = in<fixed_string<static_cast<unsigned>(length_of(operation) + 1)>(operation)>;
  using written = at_line<Source::wrong.line.number,
                          fixed_string<static_cast<unsigned>(length_of(file) + 1)>(file)>;
#else
  template <int... At> static in<operation[At]...> characters(std::integer_sequence<int, At...>);
  using where = decltype(characters(std::make_integer_sequence<int, length_of(operation)>{}));
  template <int... At> static at_line<Source::wrong.line.number, file[At]...> file_characters(
      std::integer_sequence<int, At...>);
  using written = decltype(file_characters(std::make_integer_sequence<int, length_of(file)>{}));
#endif
  using line = std::conditional_t<(Source::wrong.line.number > 0), written, at_no_line>;
};

} // namespace detail

/// Tells whether the source's constexpr fault_record `wrong` was reported. It is true, or the
/// program does not compile.
template <class Run, class Source> inline constexpr bool reported =
    report<Run, Source::wrong.code, typename detail::spelled<Source>::where,
           typename detail::spelled<Source>::line>();

} // namespace mc
