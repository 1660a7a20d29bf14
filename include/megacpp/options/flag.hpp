// A command-line flag: a value with its default, range and explanation, and how it reads text.
#pragma once

#include <megacpp/io/error.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
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

/// The subcommands, as a set of bits: those of a run's program, and those of megacpp-data.
enum class command : unsigned {
  train = 1,
  eval = 2,
  generate = 4,
  describe = 8,
  convert = 16,
  all = 31,
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

/// A flag without the type of its value, as the command line, files of flags, states and the help
/// see it.
class flag_base {
public:
  virtual ~flag_base() = default;

  bool given() const { return given_; }
  /// Tells whether the command line itself gave it, not a file of flags nor a state.
  bool asked() const { return asked_; }
  const char* help() const { return help_; }
  command commands() const { return commands_; }
  on_resume resuming() const { return resuming_; }
  /// Tells whether the flag may stand on the command line without a value.
  bool is_toggle() const { return kind_ == kinds::toggle; }
  bool is_text() const { return kind_ == kinds::text || kind_ == kinds::texts; }
  /// Tells whether each time that the flag is given adds a text.
  bool is_list() const { return kind_ == kinds::texts; }
  /// Returns how many values may follow the flag on the command line.
  int most_values() const { return most_values_; }
  /// Tells whether nothing of the program depends on a compiled-in value: any value agrees.
  bool is_idle() const { return idle_; }
  /// Returns what to do where the program was compiled with another value; "" if a user can do
  /// nothing.
  virtual std::string otherwise() const = 0;
  /// Returns what the help shows in place of a value: N, X, TEXT or a list of choices.
  virtual std::string argument() const = 0;
  /// Returns the present value as the command line would spell it.
  virtual std::string text() const = 0;
  /// Returns the texts of a list; of another flag the only one.
  virtual std::vector<std::string> texts() const { return {text()}; }
  /// Tells whether the flag itself would take its present value, unlike a default that stands for
  /// "not given", such as a count of 0.
  virtual bool is_value() const = 0;
  /// Returns the default as the help shows it; "" if there is none to show.
  std::string default_text() const { return shown_ != nullptr ? shown_ : text(); }
  /// Reads a value. `where` names flag and origin for messages. Throws mc::error(exit_code::usage).
  void read(std::string_view value, std::string_view where) {
    assign(value, where);
    given_ = true;
  }
  /// Reads a value of the command line. Throws mc::error(exit_code::usage).
  void ask(std::string_view value, std::string_view where) {
    read(value, where);
    asked_ = true;
  }
  /// Forgets what was read, so that the command line overrides a file.
  void forget() { reset(), given_ = false; }

  /// Gives the flag the commands and the way across runs that its group has.
  void belongs_to(command c, on_resume how) { commands_ = c, resuming_ = how; }

protected:
  enum class kinds : std::uint8_t { toggle, whole, real, text, texts };
  explicit flag_base(kinds kind) : kind_(kind) {}
  flag_base(const flag_base&) = default;
  flag_base& operator=(const flag_base&) = default;
  virtual void assign(std::string_view value, std::string_view where) = 0;
  virtual void reset() = 0;
  [[noreturn]] static void refuse(std::string_view where, std::string_view value,
                                  std::string_view why) {
    std::string shown;
    for (const char c : value.substr(0, 80)) shown += c >= ' ' && c <= '~' ? c : '?';
    throw error(exit_code::usage, fmt::format("{} is \"{}\", but {}", where, shown, why));
  }

  const char* help_ = "";
  const char* shown_ = nullptr;
  command commands_ = command::all;
  on_resume resuming_ = on_resume::undecided;
  kinds kind_;
  int most_values_ = 1;
  bool given_ = false, asked_ = false, idle_ = false;
};

/// A flag of a whole number, a real number, a text, several texts or a switch.
template <class T> class flag final : public flag_base {
public:
  flag() : flag_base(kind_of_value) {}
  const T& operator()() const { return value_; }
  /// Returns the value of a flag that was given.
  std::optional<T> if_given() const { return given_ ? std::optional<T>(value_) : std::nullopt; }

  // The constructors of groups of flags call these.
  /// Sets the default and the explanation, and a text that the help shows in place of the default.
  flag& is(T initial, const char* help, const char* shown = nullptr) {
    value_ = initial_ = std::move(initial);
    help_ = help, shown_ = shown;
    return *this;
  }
  /// Bounds a number by two that are allowed.
  flag& within(T low, T high) {
    low_ = std::move(low), high_ = std::move(high);
    return *this;
  }
  /// Bounds a number, which must be above `low` and at most `high`.
  flag& above(T low, T high) {
    open_ = true;
    return within(std::move(low), std::move(high));
  }
  /// Bounds a number, which may also be 0.
  flag& zero_or_within(T low, T high) {
    zero_ = true;
    return within(std::move(low), std::move(high));
  }
  flag& at_least(T low) { return within(std::move(low), limits::max()); }
  /// Makes a text one of some, separated by |.
  flag& one_of(const char* choices) {
    choices_ = choices;
    return *this;
  }
  /// Makes a text `count` whole numbers above 0, with blanks between them, under these names.
  flag& whole_numbers(int count, const char* names) {
    most_values_ = count, names_ = names;
    return *this;
  }
  /// Lets several texts follow the flag at once.
  flag& many() {
    most_values_ = several_values;
    return *this;
  }
  /// Says of what is compiled in what to do for another value, which stands for {0} in the pattern
  /// (of a switch 1 or 0), or for a switch that is to be off.
  flag& otherwise(std::string pattern, std::string if_off = "") {
    otherwise_ = std::move(pattern), if_off_ = std::move(if_off);
    return *this;
  }
  /// Makes the flag one of some commands alone.
  flag& of(command c) {
    commands_ = c;
    return *this;
  }
  flag& of(command c, on_resume how) { return of(c).resumes(how); }
  flag& resumes(on_resume how) {
    resuming_ = how;
    return *this;
  }
  /// Marks a compiled-in value that nothing of the program depends on.
  flag& idles(bool idle) {
    idle_ = idle;
    return *this;
  }

  std::string otherwise() const override {
    if constexpr (std::is_same_v<T, bool>)
      return fmt::format(fmt::runtime(value_ || if_off_.empty() ? otherwise_ : if_off_),
                         value_ ? 1 : 0);
    else return fmt::format(fmt::runtime(otherwise_), text());
  }
  std::string argument() const override {
    if constexpr (kind_of_value == kinds::toggle) return "";
    else if constexpr (listed) return most_values_ > 1 ? "TEXT..." : "TEXT";
    else if constexpr (kind_of_value != kinds::text) return std::is_integral_v<T> ? "N" : "X";
    if (*names_ != 0) return names_;
    return *choices_ == 0 ? "TEXT" : std::string_view(choices_).size() > 60 ? "NAME" : choices_;
  }
  std::string text() const override {
    if constexpr (listed) return fmt::format("{}", fmt::join(value_, ", "));
    else return fmt::format("{}", value_);
  }
  std::vector<std::string> texts() const override {
    if constexpr (listed) return value_;
    else return {text()};
  }
  bool is_value() const override {
    if constexpr (std::is_same_v<T, bool> || listed) return true;
    else if constexpr (std::is_same_v<T, std::string>)
      return *names_ != 0 ? !value_.empty() : *choices_ == 0 || is_choice(value_);
    else return is_within(value_);
  }

private:
  static constexpr kinds kind_of_value = std::is_same_v<T, bool>          ? kinds::toggle
                                         : std::is_integral_v<T>          ? kinds::whole
                                         : std::is_floating_point_v<T>    ? kinds::real
                                         : std::is_same_v<T, std::string> ? kinds::text
                                                                          : kinds::texts;
  static constexpr bool listed = kind_of_value == kinds::texts;

  void reset() override { value_ = initial_; }
  void assign(std::string_view value, std::string_view where) override {
    if constexpr (std::is_same_v<T, bool>) {
      if (value != "true" && value != "false") refuse(where, value, "must be true or false");
      value_ = value == "true";
    } else if constexpr (listed) {
      require_text(value, where);
      value_.emplace_back(value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      require_text(value, where);
      if (*choices_ != 0 && !is_choice(value))
        refuse(where, value, fmt::format("must be one of {}", choices_));
      value_ = *names_ != 0 ? numbers_of(value, where) : std::string(value);
    } else {
      T number{};
      const auto [end, problem] =
          std::from_chars(value.data(), value.data() + value.size(), number);
      if (problem == std::errc::result_out_of_range)
        refuse(where, value,
               std::is_integral_v<T> && high_ == limits::max() && !value.starts_with('-')
                   ? fmt::format("must be at most {}", high_)
                   : range());
      if (problem != std::errc() || end != value.data() + value.size())
        refuse(where, value, std::is_integral_v<T> ? "must be a whole number" : "must be a number");
      if (!is_within(number)) refuse(where, value, range());
      value_ = number + T{}; // -0 is 0
    }
  }
  static void require_text(std::string_view value, std::string_view where) {
    if (value.find('\0') != std::string_view::npos) refuse(where, value, "must have no NUL in it");
  }
  bool is_within(T number) const {
    return ((number >= low_ && number <= high_ && !(open_ && number == low_)) ||
            (zero_ && number == T{})) &&
           std::isfinite(static_cast<double>(number));
  }
  /// Returns the numbers of a text, with one blank between them.
  std::string numbers_of(std::string_view value, std::string_view where) const {
    std::vector<std::int64_t> numbers;
    bool right = true;
    each_between(value, ' ', [&](std::string_view one) {
      if (one.empty()) return;
      std::int64_t n = 0;
      const auto [end, problem] = std::from_chars(one.data(), one.data() + one.size(), n);
      right = right && problem == std::errc() && end == one.data() + one.size() && n > 0;
      numbers.push_back(n);
    });
    if (!right || std::ssize(numbers) != most_values_)
      refuse(where, value,
             fmt::format("must be {} whole numbers above 0: {}", most_values_, names_));
    return fmt::format("{}", fmt::join(numbers, " "));
  }
  bool is_choice(std::string_view value) const {
    return value.find('|') == std::string_view::npos &&
           fmt::format("|{}|", choices_).find(fmt::format("|{}|", value)) != std::string::npos;
  }
  std::string range() const {
    if constexpr (std::is_arithmetic_v<T>) {
      const bool bounded = high_ < limits::max();
      if (low_ == limits::lowest() && !bounded) return "must be a finite number";
      return fmt::format("must be {}{} {}{}{}", zero_ ? "0 or " : "", open_ ? "above" : "at least",
                         low_, bounded ? fmt::format(" and at most {}", high_) : "",
                         std::is_integral_v<T> ? "" : ", and finite");
    } else {
      return "";
    }
  }

  using limits = std::numeric_limits<T>; // of a text: no bounds
  T value_{}, initial_{};
  T low_ = limits::lowest(), high_ = limits::max();
  bool open_ = false, zero_ = false;
  const char* choices_ = "";
  const char* names_ = "";
  std::string otherwise_, if_off_;
};

using whole_flag = flag<std::int64_t>;
using real_flag = flag<double>;
using text_flag = flag<std::string>;
using texts_flag = flag<std::vector<std::string>>;
using switch_flag = flag<bool>;

} // namespace mc
