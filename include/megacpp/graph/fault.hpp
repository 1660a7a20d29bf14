// Faults of a graph. The first fault is recorded and reported as one sentence, at compile time
// (run/report.hpp) or at run time (`describe`). graph/faults.inc lists all of them, and
// docs/errors.md explains each code.
#pragma once

#include <megacpp/recipe/source_line.hpp>

#include <cstdint>

namespace mc {

enum class fault : std::uint8_t {
  none,
#define MEGACPP_FAULT(code, says) code,
#include <megacpp/graph/faults.inc>
#undef MEGACPP_FAULT
};

/// A string of at most N - 1 characters, as a constexpr value.
template <int N> struct text {
  char c[N]{};
  int n = 0;

  constexpr text& operator<<(const char* s) {
    while (*s != 0 && n < N - 1) c[n++] = *s++;
    return *this;
  }
  constexpr text& operator<<(std::int64_t x) {
    if (x < 0) return *this << "-" << -x;
    char digits[20]{};
    int k = 0;
    do digits[k++] = static_cast<char>('0' + x % 10);
    while ((x /= 10) != 0);
    while (k > 0 && n < N - 1) c[n++] = digits[--k];
    return *this;
  }
  /// Appends a number with six digits, as %g prints it.
  constexpr text& decimal(double x) {
    if (x != x) return *this << "nan";
    if (x < 0) return (*this << "-").decimal(-x);
    if (x > 1e300) return *this << "inf";
    if (x < 1e15 && static_cast<double>(static_cast<std::int64_t>(x)) == x)
      return *this << static_cast<std::int64_t>(x);
    int exponent = 0, digits = 5; // digits behind the point
    for (; x >= 10; x /= 10) ++exponent;
    for (; x < 1; x *= 10) --exponent;
    auto d = static_cast<std::int64_t>(x * 1e5);
    if (x * 1e5 - static_cast<double>(d) >= 0.5) ++d;
    std::int64_t one = 100000;
    if (d == 10 * one) d = one, ++exponent;
    for (; exponent < 0 && exponent >= -4; ++exponent, ++digits) one *= 10;
    for (; exponent > 0 && exponent <= digits; --exponent, --digits) one /= 10;
    for (; digits > 0 && d % 10 == 0; --digits) d /= 10, one /= 10;
    *this << d / one;
    if (digits > 0) *this << ".";
    for (std::int64_t k = one / 10; k > 0; k /= 10) *this << d / k % 10;
    if (exponent != 0) *this << "e" << exponent;
    return *this;
  }
  constexpr const char* c_str() const { return c; }
};

/// The first fault of a graph: its code, the op and operands, and the line of the model source.
struct fault_record {
  fault code = fault::none;
  source_line line{};
  text<160> what{};
};

/// Returns "own_family.hpp:45", or "line 45 of the model" where the file is unknown.
constexpr text<96> text_of(const source_line& line) {
  text<96> out;
  const char* file = line.file_name();
  if (*file == 0) return out << "line " << line.number << " of the model";
  return out << file << ":" << line.number;
}

namespace detail {

struct fault_text {
  const char* code;
  const char* sentence;
};

inline constexpr fault_text fault_texts[] = {
    {"", ""},
#define MEGACPP_FAULT(code, says) {"MEGA-" #code, says},
#include <megacpp/graph/faults.inc>
#undef MEGACPP_FAULT
};

} // namespace detail

constexpr const char* code_of(fault f) { return detail::fault_texts[static_cast<int>(f)].code; }

/// Returns the sentence of a fault: it says what is wrong and what to do.
constexpr const char* sentence_of(fault f) {
  return detail::fault_texts[static_cast<int>(f)].sentence;
}

} // namespace mc
