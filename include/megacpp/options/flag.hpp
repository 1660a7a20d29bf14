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

namespace mc {

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
constexpr bool overlaps(command a, command b) {
  return (static_cast<unsigned>(a) & static_cast<unsigned>(b)) != 0;
}

/// What a flag is to a run that goes on from a saved state.
///   must_match  the state means something else with another value: a difference is refused
///   may_change  a difference is told and taken
///   derived     left out, it follows from other flags again; given, it may change
///   unsaved     it belongs to the process, not to the run, and is not in the state
/// One of the first two that is left out keeps its saved value.
enum class on_resume : std::uint8_t { undecided, must_match, may_change, derived, unsaved };

/// What the type-free parts (command line, configuration file, help) see of a flag.
class flag_base {
public:
  virtual ~flag_base() = default;

  bool given() const { return given_; }
  /// True if the command line itself gave it, not a file of flags nor a state.
  bool asked() const { return asked_; }
  const char* help() const { return help_; }
  command commands() const { return commands_; }
  on_resume resuming() const { return resuming_; }
  /// True for a flag that needs no value on the command line.
  virtual bool is_toggle() const { return false; }
  virtual bool is_text() const { return false; }
  /// What to do where its present value is not that of the program; empty: it is the program's
  /// own affair.
  virtual std::string otherwise() const = 0;
  /// True if nothing of the program depends on a compiled-in value: any value agrees.
  bool is_idle() const { return idle_; }
  /// How many words its value has at most.
  virtual int words() const { return 1; }
  /// True for a flag that may be given several times, each adding a text.
  virtual bool is_list() const { return false; }
  /// True for one of those that takes several texts at once.
  bool takes_many() const { return many_; }
  /// Forgets what was read, so that the command line overrides a file.
  void forget() { reset(), given_ = false; }
  /// What stands for the value in the help: N, X, TEXT or a list of choices.
  virtual std::string argument() const = 0;
  /// The present value as the command line would spell it.
  virtual std::string text() const = 0;
  /// The same of a list, each of its texts apart.
  virtual std::vector<std::string> texts() const { return {text()}; }
  /// False for a default that stands for "not given", such as a count of 0.
  virtual bool is_value() const = 0;
  /// The default as the help shows it; empty if there is none to show.
  std::string default_text() const { return shown_ != nullptr ? shown_ : text(); }
  /// Reads a value. `where` names flag and origin for messages. Throws mc::error(exit_code::usage).
  void read(std::string_view value, std::string_view where) {
    assign(value, where);
    given_ = true;
  }
  /// The same of a value of the command line.
  void ask(std::string_view value, std::string_view where) {
    read(value, where);
    asked_ = true;
  }

protected:
  flag_base() = default;
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
  bool given_ = false, asked_ = false, many_ = false, idle_ = false;
};

/// A flag of a whole number, a real number, a text, several texts or a switch.
template <class T> class flag final : public flag_base {
public:
  const T& operator()() const { return value_; }
  /// The value of a flag that was given.
  std::optional<T> if_given() const { return given_ ? std::optional<T>(value_) : std::nullopt; }

  // For the constructors of the option groups.
  flag& is(T initial, const char* help) {
    value_ = initial_ = std::move(initial);
    help_ = help;
    return *this;
  }
  /// Bounds of a number, both allowed.
  flag& within(T low, T high) {
    low_ = std::move(low), high_ = std::move(high);
    return *this;
  }
  /// A number above `low` and at most `high`.
  flag& above(T low, T high) {
    open_ = true;
    return within(std::move(low), std::move(high));
  }
  /// 0, or a number in these bounds.
  flag& zero_or_within(T low, T high) {
    zero_ = true;
    return within(std::move(low), std::move(high));
  }
  flag& at_least(T low) { return within(std::move(low), std::numeric_limits<T>::max()); }
  /// A text that must be one of these, separated by |.
  flag& one_of(const char* choices) {
    choices_ = choices;
    return *this;
  }
  /// A text of so many whole numbers above 0, separated by blanks, under these names.
  flag& whole_numbers(int count, const char* names) {
    words_ = count, names_ = names;
    return *this;
  }
  /// Several texts, one behind the other.
  flag& many() {
    many_ = true;
    return *this;
  }
  /// Of what is compiled in: what to do for another value, which stands for {0} in it (of a switch
  /// 1 or 0), or for a switch that is to be off.
  flag& otherwise(std::string pattern, std::string if_off = "") {
    otherwise_ = std::move(pattern), if_off_ = std::move(if_off);
    return *this;
  }
  /// Marks a compiled-in value that nothing of the program depends on.
  flag& idles(bool idle) {
    idle_ = idle;
    return *this;
  }
  /// What the help shows as default instead of the value.
  flag& shown_as(const char* text) {
    shown_ = text;
    return *this;
  }
  flag& of(command c) {
    commands_ = c;
    return *this;
  }
  flag& resumes(on_resume how) {
    resuming_ = how;
    return *this;
  }

  bool is_toggle() const override { return std::is_same_v<T, bool>; }
  bool is_text() const override { return std::is_same_v<T, std::string> || listed; }
  bool is_list() const override { return listed; }
  std::string otherwise() const override {
    if constexpr (std::is_same_v<T, bool>)
      return fmt::format(fmt::runtime(value_ || if_off_.empty() ? otherwise_ : if_off_),
                         value_ ? 1 : 0);
    else return fmt::format(fmt::runtime(otherwise_), text());
  }
  int words() const override { return words_; }
  std::string argument() const override {
    if (words_ > 1) return names_;
    if constexpr (std::is_same_v<T, bool>) return "";
    else if constexpr (listed) return many_ ? "TEXT..." : "TEXT";
    else if constexpr (std::is_same_v<T, std::string>)
      return *choices_ == 0 ? "TEXT" : std::string_view(choices_).size() > 60 ? "NAME" : choices_;
    else return std::is_integral_v<T> ? "N" : "X";
  }
  std::string text() const override {
    if constexpr (listed) {
      std::string all;
      for (const std::string& one : value_) (all += all.empty() ? "" : ", ") += one;
      return all;
    } else {
      return fmt::format("{}", value_);
    }
  }
  std::vector<std::string> texts() const override {
    if constexpr (listed) return value_;
    else return {text()};
  }
  bool is_value() const override {
    if constexpr (std::is_same_v<T, bool> || listed) return true;
    else if constexpr (std::is_same_v<T, std::string>)
      return words_ > 1 ? !value_.empty() : *choices_ == 0 || is_choice(value_);
    else return is_within(value_);
  }

private:
  static constexpr bool listed = std::is_same_v<T, std::vector<std::string>>;

  void reset() override { value_ = initial_; }
  void assign(std::string_view value, std::string_view where) override {
    if constexpr (std::is_same_v<T, bool>) {
      if (value != "true" && value != "false") refuse(where, value, "must be true or false");
      value_ = value == "true";
    } else if constexpr (listed) {
      value_.emplace_back(value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (*choices_ != 0 && !is_choice(value))
        refuse(where, value, fmt::format("must be one of {}", choices_));
      value_ = words_ > 1 ? numbers_of(value, where) : std::string(value);
    } else {
      T number{};
      const auto [end, problem] =
          std::from_chars(value.data(), value.data() + value.size(), number);
      if (problem == std::errc::result_out_of_range)
        refuse(where, value,
               std::is_integral_v<T> && high_ == highest() && !value.starts_with('-')
                   ? fmt::format("must be at most {}", high_)
                   : range());
      if (problem != std::errc() || end != value.data() + value.size())
        refuse(where, value, std::is_integral_v<T> ? "must be a whole number" : "must be a number");
      if (!is_within(number)) refuse(where, value, range());
      value_ = number + T{}; // -0 is 0
    }
  }
  bool is_within(T number) const {
    return ((number >= low_ && number <= high_ && !(open_ && number == low_)) ||
            (zero_ && number == T{})) &&
           std::isfinite(static_cast<double>(number));
  }
  /// The numbers of a text, with one blank between them.
  std::string numbers_of(std::string_view value, std::string_view where) const {
    std::string all;
    int count = 0;
    for (std::string_view rest = value; !rest.empty();) {
      const std::string_view word = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
      if (word.empty()) continue;
      std::int64_t number = 0;
      const auto [end, problem] = std::from_chars(word.data(), word.data() + word.size(), number);
      if (problem != std::errc() || end != word.data() + word.size() || number < 1) count = words_;
      all += fmt::format("{}{}", ++count == 1 ? "" : " ", number);
    }
    if (count != words_)
      refuse(where, value, fmt::format("must be {} whole numbers above 0: {}", words_, names_));
    return all;
  }
  bool is_choice(std::string_view value) const {
    for (std::string_view rest = choices_; !rest.empty();) {
      const auto bar = rest.find('|');
      if (rest.substr(0, bar) == value) return true;
      rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
    }
    return false;
  }
  std::string range() const {
    if constexpr (std::is_arithmetic_v<T>) {
      const bool bounded = high_ < std::numeric_limits<T>::max();
      const bool any = low_ == std::numeric_limits<T>::lowest() && !bounded;
      if (any) return "must be a finite number";
      std::string text =
          fmt::format("must be {}{} {}", zero_ ? "0 or " : "", open_ ? "above" : "at least", low_);
      if (bounded) text += fmt::format(" and at most {}", high_);
      return text + (std::is_integral_v<T> ? "" : ", and finite");
    } else {
      return "";
    }
  }

  static constexpr T lowest() {
    if constexpr (std::is_arithmetic_v<T>) return std::numeric_limits<T>::lowest();
    else return T();
  }
  static constexpr T highest() {
    if constexpr (std::is_arithmetic_v<T>) return std::numeric_limits<T>::max();
    else return T();
  }

  T value_{}, initial_{};
  T low_ = lowest(), high_ = highest();
  bool open_ = false, zero_ = false;
  const char* choices_ = "";
  int words_ = 1;
  const char* names_ = "";
  std::string otherwise_, if_off_;
};

using whole_flag = flag<std::int64_t>;
using real_flag = flag<double>;
using text_flag = flag<std::string>;
using texts_flag = flag<std::vector<std::string>>;
using switch_flag = flag<bool>;

} // namespace mc
