// A command-line flag: a value with its default, range and explanation, and how it reads text.
#pragma once

#include <megacpp/io/json_file.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

/// Calls f for each text between separators.
template <class F> constexpr void each_between(std::string_view text, char separator, const F& f) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    f(text.substr(begin, end - begin));
    begin = end + 1;
  }
}

/// Reads a text that is a number as a whole. Returns what is wrong with one that is none.
template <class T> std::errc read_number(std::string_view text, T& n) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
  return problem == std::errc() && end != text.data() + text.size() ? std::errc::invalid_argument
                                                                    : problem;
}

/// Returns a name with - for _.
inline std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

/// Returns the error for a command line that is refused with this sentence.
template <class... A> error usage(fmt::format_string<A...> sentence, A&&... arguments) {
  return {exit_code::usage, fmt::format(sentence, std::forward<A>(arguments)...)};
}

/// The subcommands, as a set of bits: those of a run's program, and those of megacpp-data.
enum class command : unsigned {
  train = 1,
  eval = 2,
  generate = 4,
  describe = 8,
  convert = 16,
  all = 31,
  reading = train | eval,
  running = reading | generate,
  encode = 1 << 8,
  decode = 1 << 9,
  count = 1 << 10,
  prepare = 1 << 11,
  merge = 1 << 12,
  inspect = 1 << 13,
  verify = 1 << 14,
  chat = 1 << 15,
  all_of_data = 255 << 8
};
constexpr command operator|(command a, command b) {
  return static_cast<command>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}
constexpr command operator&(command a, command b) {
  return static_cast<command>(static_cast<unsigned>(a) & static_cast<unsigned>(b));
}
constexpr bool overlaps(command a, command b) { return (a & b) != command{}; }

/// The ways in which a run that goes on from a saved state takes a flag.
///   must_match  the state means something else with another value: a difference is refused
///   may_change  a difference is told and taken
///   derived     left out, it follows from other flags again; given, it may change
///   unsaved     it belongs to the process, not to the run, and is not in the state
/// One of the first two that is left out keeps its saved value.
enum class on_resume : std::uint8_t { undecided, must_match, may_change, derived, unsaved };

/// The number of values of a switch, and of a flag that takes as many as follow.
inline constexpr int no_value = 0, several_values = 1 << 20;

/// The values that a flag takes, its commands, and texts about it.
struct flag_terms {
  double low = -std::numeric_limits<double>::infinity(), high = -low; ///< bounds of a number
  bool open = false, zero = false; ///< `low` itself is not allowed; 0 is, too
  const char* choices = "";        ///< texts that are allowed, with | between them; "": all are
  const char* names = "";          ///< of the whole numbers above 0 that a text consists of
  bool is_path = false;          ///< a text names a file or folder, which ranks may have copies of
  int most_values = 1;           ///< values that may follow on the command line
  const char* instead = nullptr; ///< what the help shows in place of the default
  command commands{};            ///< none: those of the group
  on_resume resuming = on_resume::undecided; ///< undecided: as the group
  /// The advice about a value that is compiled in: what to do for another value, which stands for
  /// {0} (of a switch 1 or 0), and for a switch to be off or a number to be 0, if that is something
  /// else.
  std::string remedy{}, if_off{};
};

/// The default of a flag, and its terms.
template <class T> struct flag_is : flag_terms {
  T initial;

  explicit flag_is(T value) : initial(value) {}
  flag_is& within(double a, double b) { return low = a, high = b, *this; }
  flag_is& above(double a, double b) { return open = true, within(a, b); }
  flag_is& zero_or_within(double a, double b) { return zero = true, within(a, b); }
  flag_is& at_least(double a) { return low = a, *this; }
  flag_is& one_of(const char* all) { return choices = all, *this; }
  flag_is& whole_numbers(int n, const char* as) { return most_values = n, names = as, *this; }
  flag_is& path() { return is_path = true, *this; }
  /// Lets several texts follow the flag at once.
  flag_is& many() { return most_values = several_values, *this; }
  flag_is& of(command c) { return commands = c, *this; }
  flag_is& of(command c, on_resume how) { return of(c).resumes(how); }
  flag_is& resumes(on_resume how) { return resuming = how, *this; }
  flag_is& shown(const char* text) { return instead = text, *this; }
  flag_is& otherwise(const std::string& how, const std::string& off = "") {
    return remedy = how, if_off = off, *this;
  }
};

class flag_base;

using text_list = std::vector<std::string>;

/// Flags that are members of one class, which derives from this one. A flag tells its group how far
/// behind the group's begin it stands, so that a copy of a group has its own. C++ promises such a
/// distance for classes of standard layout alone, as for offsetof; compilers keep it in all classes
/// without virtual bases.
class flag_group {
public:
  const char* title; ///< in the help
  bool compiled;     ///< the flags say what is compiled into a program

  /// Calls f for each flag, in the order of their declarations.
  template <class F> void each(const F& f);

protected:
  using enum command;
  using enum on_resume;

  flag_group(const char* name, command c, on_resume how, const char* remedy = nullptr)
      : title(name), compiled(remedy != nullptr) {
    terms_.commands = c, terms_.resuming = how, terms_.remedy = compiled ? remedy : "";
  }
  // A group is copied as a part of the class with its flags. By itself it would have none.
  flag_group(const flag_group&) = default;
  flag_group& operator=(const flag_group&) = default;

  /// Returns the terms of a flag with a default, to be added to.
  template <class T> static flag_is<T> is(T initial) { return flag_is<T>(initial); }
  /// Returns the terms of a flag of texts, of which there are none by default.
  static flag_is<text_list> none() { return flag_is<text_list>({}); }

private:
  friend class flag_base;
  flag_terms terms_; ///< of flags that have none of their own
  std::vector<std::ptrdiff_t> places_;
};
static_assert(!std::is_copy_constructible_v<flag_group>);

/// A flag without the type of its value, as the command line, files of flags, states and the help
/// see it.
class flag_base {
public:
  using value_type = std::variant<bool, std::int64_t, double, std::string, text_list>;

  /// Returns the name as the command line has it, without the dashes before it.
  const std::string& name() const { return name_; }
  bool given() const { return given_; }
  /// Tells whether the command line itself gave it, not a file of flags nor a state.
  bool asked() const { return asked_; }
  const char* help() const { return help_; }
  command commands() const { return terms_.commands; }
  on_resume resuming() const { return terms_.resuming; }
  /// Tells whether the flag may stand on the command line without a value.
  bool is_toggle() const { return std::holds_alternative<bool>(value_); }
  bool is_text() const { return std::holds_alternative<std::string>(value_) || is_list(); }
  /// Tells whether a text names a file or folder, which ranks may have copies of.
  bool is_path() const { return terms_.is_path; }
  /// Tells whether each time that the flag is given adds a text.
  bool is_list() const { return std::holds_alternative<text_list>(value_); }
  /// Returns how many values may follow the flag on the command line.
  int most_values() const { return terms_.most_values; }
  /// Tells whether nothing of the program depends on a compiled-in value: any value agrees.
  bool is_idle() const { return idle_; }
  void idles(bool idle) { idle_ = idle; }
  /// Returns what to do where the program was compiled with another value; "" if a user can do
  /// nothing.
  std::string otherwise() const {
    const bool off = (text() == "false" || text() == "0") && !terms_.if_off.empty();
    return fmt::format(fmt::runtime(off ? terms_.if_off : terms_.remedy), !is_toggle() ? text()
                                                                          : text() == "true" ? "1"
                                                                                             : "0");
  }
  /// Returns what the help shows in place of a value: N, X, TEXT or a list of choices.
  std::string argument() const {
    if (is_toggle()) return "";
    if (!is_text()) return std::holds_alternative<double>(value_) ? "X" : "N";
    if (is_list()) return most_values() > 1 ? "TEXT..." : "TEXT";
    if (*terms_.names != 0) return terms_.names;
    const std::string_view choices = terms_.choices;
    return std::string(choices.empty() ? "TEXT" : choices.size() > 60 ? "NAME" : choices);
  }
  /// Returns the present value as the command line would spell it.
  std::string text() const {
    return std::visit(
        [&](const auto& value) {
          if constexpr (std::is_same_v<decltype(value), const text_list&>)
            return fmt::format("{}", fmt::join(value, ", "));
          else return fmt::format("{}", value);
        },
        value_);
  }
  /// Returns the texts of a list; of another flag the only one.
  text_list texts() const { return is_list() ? std::get<text_list>(value_) : text_list{text()}; }
  /// Tells whether the flag itself would take its present value, unlike a default that stands for
  /// "not given", such as a count of 0.
  bool is_value() const {
    if (const auto* whole = std::get_if<std::int64_t>(&value_))
      return is_within(static_cast<double>(*whole));
    if (const auto* real = std::get_if<double>(&value_)) return is_within(*real);
    if (!is_text() || is_list()) return true;
    return *terms_.names != 0 ? !text().empty() : *terms_.choices == 0 || is_choice(text());
  }
  /// Returns the default as the help shows it; "" if there is none to show.
  std::string default_text() const { return terms_.instead != nullptr ? terms_.instead : text(); }
  /// Reads a value. `where` names flag and origin for messages. Throws mc::error(exit_code::usage).
  void read(std::string_view text, std::string_view where) {
    std::visit([&](auto& value) { assign(value, text, where); }, value_);
    given_ = true;
  }
  /// Tells whether a value of JSON is of the type of the flag. A list may be one text.
  bool fits(const nlohmann::json& value) const {
    if (is_list() && value.is_array())
      return std::ranges::all_of(value, [](const nlohmann::json& one) { return one.is_string(); });
    return is_text() ? value.is_string() : is_toggle() ? value.is_boolean() : value.is_number();
  }
  /// Reads a value that fits. Throws mc::error(exit_code::usage).
  void read_json(const nlohmann::json& value, std::string_view where) {
    for (const nlohmann::json& one : value.is_array() ? value : nlohmann::json::array({value}))
      read(one.is_string() ? one.get<std::string>() : one.dump(), where);
  }
  /// Reads a value of the command line. Throws mc::error(exit_code::usage).
  void ask(std::string_view text, std::string_view where) { read(text, where), asked_ = true; }
  /// Forgets what was read, so that the command line overrides a file.
  void forget() { value_ = initial_, given_ = false; }

protected:
  flag_base(flag_group* group, std::string_view name, const flag_terms& terms, const char* help,
            value_type value)
      : value_(std::move(value)),
        initial_(value_),
        given_(false),
        terms_(terms),
        name_(dashed(std::string(name))),
        help_(help) {
    if (group == nullptr) return;
    group->places_.push_back(reinterpret_cast<std::byte*>(this) -
                             reinterpret_cast<std::byte*>(group));
    const flag_terms& other = group->terms_;
    if (terms.commands == command{}) terms_.commands = other.commands;
    if (terms.resuming == on_resume::undecided) terms_.resuming = other.resuming;
    if (terms.remedy.empty() && terms.if_off.empty()) terms_.remedy = other.remedy;
  }
  ~flag_base() = default;
  flag_base(const flag_base&) = default;
  flag_base& operator=(const flag_base&) = default;

  value_type value_, initial_;
  bool given_;
  flag_terms terms_;

private:
  [[noreturn]] static void refuse(std::string_view where, std::string_view text,
                                  std::string_view why) {
    throw usage("{} is \"{}\", but {}", where, printable(text), why);
  }
  template <class T> void assign(T& value, std::string_view text, std::string_view where) const {
    if constexpr (std::is_same_v<T, bool>) {
      if (text != "true" && text != "false") refuse(where, text, "must be true or false");
      value = text == "true";
    } else if constexpr (std::is_arithmetic_v<T>) {
      constexpr bool whole = std::is_integral_v<T>;
      T number{};
      const std::errc problem = read_number(text, number);
      if (problem == std::errc::result_out_of_range && whole && std::isinf(terms_.high) &&
          !text.starts_with('-'))
        refuse(where, text, fmt::format("must be at most {}", std::numeric_limits<T>::max()));
      if (problem == std::errc::invalid_argument)
        refuse(where, text, whole ? "must be a whole number" : "must be a number");
      if (problem != std::errc() || !is_within(static_cast<double>(number)))
        refuse(where, text, range(whole));
      value = number + T{}; // -0 is 0
    } else {
      if (text.find('\0') != std::string_view::npos) refuse(where, text, "must have no NUL in it");
      if (*terms_.choices != 0 && !is_choice(text))
        refuse(where, text, fmt::format("must be one of {}", terms_.choices));
      if constexpr (std::is_same_v<T, text_list>) value.emplace_back(text);
      else value = *terms_.names != 0 ? numbers_of(text, where) : std::string(text);
    }
  }
  bool is_within(double n) const {
    const flag_terms& t = terms_;
    return std::isfinite(n) && ((t.zero && n == 0) || (t.open ? n > t.low : n >= t.low)) &&
           n <= t.high;
  }
  bool is_choice(std::string_view text) const {
    return text.find('|') == std::string_view::npos &&
           fmt::format("|{}|", terms_.choices).find(fmt::format("|{}|", text)) != std::string::npos;
  }
  /// Says which numbers there may be.
  std::string range(bool whole) const {
    const flag_terms& t = terms_;
    if (std::isinf(t.low) && std::isinf(t.high)) return "must be a finite number";
    return fmt::format("must be {}{} {}{}{}", t.zero ? "0 or " : "", t.open ? "above" : "at least",
                       t.low, std::isinf(t.high) ? "" : fmt::format(" and at most {}", t.high),
                       whole ? "" : ", and finite");
  }
  /// Returns the numbers of a text, with one blank between them.
  std::string numbers_of(std::string_view text, std::string_view where) const {
    std::vector<std::int64_t> numbers;
    bool right = true;
    each_between(text, ' ', [&](std::string_view one) {
      if (one.empty()) return;
      right &= read_number(one, numbers.emplace_back()) == std::errc() && numbers.back() > 0;
    });
    if (!right || std::ssize(numbers) != most_values())
      refuse(where, text,
             fmt::format("must be {} whole numbers above 0: {}", most_values(), terms_.names));
    return fmt::format("{}", fmt::join(numbers, " "));
  }

  std::string name_;
  const char* help_;
  bool asked_ = false, idle_ = false;
};

template <class F> void flag_group::each(const F& f) {
  for (const std::ptrdiff_t place : places_)
    f(*std::launder(reinterpret_cast<flag_base*>(reinterpret_cast<std::byte*>(this) + place)));
}

/// A flag of a whole number, a real number, a text, several texts or a switch.
template <class T> class flag final : public flag_base {
public:
  /// Makes a flag of a group, or of none. Its name may have _ for -.
  template <class I>
  flag(flag_group* group, std::string_view name, const flag_is<I>& terms, const char* help)
      : flag_base(group, name, terms, help, T(terms.initial)) {}
  const T& operator()() const { return std::get<T>(value_); }
  /// Returns the value of a flag that was given.
  std::optional<T> if_given() const { return given_ ? std::optional<T>((*this)()) : std::nullopt; }
  /// Returns the choice that a text is, as an enumeration that has all of them in the same order.
  template <class E> E choice() const {
    int n = 0, at = 0;
    each_between(terms_.choices, '|',
                 [&](std::string_view one) { at = one == (*this)() ? n : at, ++n; });
    return static_cast<E>(at);
  }
  /// Sets the value that the flag has until one is read.
  void set(T initial) { value_ = initial_ = std::move(initial); }
};

using whole_flag = flag<std::int64_t>;
using real_flag = flag<double>;
using text_flag = flag<std::string>;
using texts_flag = flag<text_list>;
using switch_flag = flag<bool>;

} // namespace mc
