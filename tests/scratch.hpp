// Means for tests of files: a folder of their own, and the sentence of an error.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/io/error.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include <unistd.h>

namespace test {

/// A folder that is removed with the object.
class scratch_folder {
public:
  scratch_folder() {
    std::string name = (std::filesystem::temp_directory_path() / "megacpp-test-XXXXXX").string();
    if (!::mkdtemp(name.data())) std::abort();
    path_ = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(std::string_view name) const { return (path_ / name).string(); }

private:
  std::filesystem::path path_;
};

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_text(const std::string& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The exit code and the sentence of an error that f throws.
struct refusal {
  mc::exit_code code;
  std::string text;
  bool says(std::string_view part) const { return text.find(part) != std::string::npos; }
};
template <class F> std::optional<refusal> refusal_of(F&& f) {
  try {
    f();
  } catch (const mc::error& e) {
    return refusal{e.code(), e.what()};
  }
  return std::nullopt;
}

/// Reports that something cannot be tested here, and why. It is an error if everything must be
/// tested.
inline void left_out(const std::string& why) {
  if (std::getenv("MEGACPP_TESTS_COMPLETE")) BOOST_ERROR("cannot be tested here: " + why);
  else BOOST_TEST_MESSAGE("left out: " + why);
}

/// Acts as a user without rights while it lives, if the test runs as root.
class unprivileged {
public:
  unprivileged() : root_(::geteuid() == 0) {
    if (root_ && ::seteuid(65534) != 0) std::abort();
  }
  unprivileged(const unprivileged&) = delete;
  unprivileged& operator=(const unprivileged&) = delete;
  ~unprivileged() {
    if (root_ && ::seteuid(0) != 0) std::abort();
  }

private:
  bool root_;
};

} // namespace test

/// Requires that the expression throws mc::error with this exit code and this part in its sentence.
#define CHECK_REFUSED(expression, class_, part)                                                   \
  do {                                                                                            \
    const auto refused = ::test::refusal_of([&] { (void)(expression); });                         \
    BOOST_TEST_CONTEXT(#expression) {                                                             \
      BOOST_REQUIRE_MESSAGE(refused, "was not refused");                                          \
      BOOST_CHECK_MESSAGE(refused->code == (class_),                                              \
                          "class " << static_cast<int>(refused->code) << ": " << refused->text);  \
      BOOST_CHECK_MESSAGE(refused->says(part), "\"" << (part) << "\" not in: " << refused->text); \
    }                                                                                             \
  } while (false)
