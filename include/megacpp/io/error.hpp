// Errors: one sentence that a user can act on, and the exit code of the kind of error.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The exit codes of every megacpp program (docs/errors.md). A failure is never 0.
enum class exit_code : int {
  success = 0,
  internal = 1,     // a fault of megacpp itself
  usage = 2,        // command line or configuration file
  mismatch = 3,     // flags, model folder or state contradict the compiled program
  data = 4,         // training or evaluation data
  model = 5,        // a model folder: missing, malformed, of another model
  output = 6,       // something could not be written: full disk, permissions
  nonfinite = 7,    // loss, gradient norm, or what an update wrote is not finite
  machine = 8,      // the processor lacks instructions the program was built for
  memory = 9,       // memory could not be reserved
  interrupted = 10, // a signal ended the run after its state was saved
  ranks = 11,       // a rank did not come to the others, or has gone
};

/// An error with a sentence that says what is wrong, where (file, offset, field, rank), and what to
/// do.
class error : public std::runtime_error {
public:
  error(exit_code c, const std::string& sentence) : std::runtime_error(sentence), code_(c) {}
  exit_code code() const noexcept { return code_; }

private:
  exit_code code_;
};

/// Several errors at once, each with a sentence of its own.
class errors : public error {
public:
  errors(exit_code c, const std::string& title, std::vector<std::string> sentences)
      : error(c, joined(title, sentences)), title_(title), sentences_(std::move(sentences)) {}
  const std::string& title() const noexcept { return title_; }
  const std::vector<std::string>& sentences() const noexcept { return sentences_; }

private:
  static std::string joined(std::string text, const std::vector<std::string>& sentences) {
    for (const std::string& one : sentences) text += (&one == sentences.data() ? " " : "; ") + one;
    return text;
  }
  std::string title_;
  std::vector<std::string> sentences_;
};

/// An error that leaves open whether a file or folder is right, such as one that could not be
/// opened. No other file may be taken in its place.
class unexamined : public error {
public:
  using error::error;
};

} // namespace mc
