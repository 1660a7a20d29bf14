// config.json of a Hugging Face model, compared field by field with a program.
#pragma once

#include <megacpp/checkpoint/json_file.hpp>
#include <megacpp/exec/error.hpp>

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// Collects the fields in which a configuration and a program differ. A field that is missing or
/// null has the value that transformers gives it, where that is known, else it is refused.
class hf_comparison {
public:
  hf_comparison(const json_value& config, std::string program)
      : config_(config), program_(std::move(program)) {}

  const json_value& config() const { return config_; }

  void number(std::string_view name, double ours, std::optional<double> absent = {}) {
    number_in(config_, name, ours, absent);
  }
  /// The same in an object of the configuration.
  void number_in(const json_value& object, std::string_view name, double ours,
                 std::optional<double> absent = {}) {
    const double theirs =
        absent ? object.field_or<double>(name, *absent) : object.field<double>(name);
    if (theirs != ours) differs(name, fmt::format("{}", theirs), fmt::format("{}", ours));
  }
  void flag(std::string_view name, bool ours, bool absent) {
    const bool theirs = config_.field_or<bool>(name, absent);
    if (theirs != ours) differs(name, fmt::format("{}", theirs), fmt::format("{}", ours));
  }
  /// One of `ours` is needed, which mean the same.
  void text(std::string_view name, std::initializer_list<std::string_view> ours,
            std::string_view absent) {
    const std::string theirs = config_.field_or<std::string>(name, std::string(absent));
    for (const std::string_view x : ours)
      if (theirs == x) return;
    differs(name, printable(theirs), *ours.begin());
  }
  void differs(std::string_view field, std::string_view theirs, std::string_view ours) {
    found_ += fmt::format("{}{} is {} there and {} in the program", found_.empty() ? "" : ", ",
                          field, theirs, ours);
  }

  /// Throws mc::error of the file's class if anything differed.
  void finish() const {
    if (!found_.empty())
      throw config_.fault(
          fmt::format("this is another model than {} was built for: {}; give the "
                      "folder of such a model, or build a preset of this one",
                      program_, found_));
  }

private:
  const json_value& config_;
  std::string program_, found_;
};

/// A whole number as JSON writes it.
inline nlohmann::json hf_integer(double x) { return static_cast<std::int64_t>(x); }

} // namespace mc
