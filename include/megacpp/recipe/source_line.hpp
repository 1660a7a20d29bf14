// Lines of the source that a user writes: of a model's function calls, and of a run's members.
#pragma once

namespace mc {

/// A line of a model's source. A source_line that is converted from a number has no file.
struct source_line {
  int number;
  const char* file;

  constexpr source_line(int line = 0, const char* in = "") : number(line), file(in) {}

  /// Returns the name of the file without its folders.
  constexpr const char* file_name() const {
    const char* name = file;
    for (const char* at = file; *at != 0; ++at)
      if (*at == '/') name = at + 1;
    return name;
  }
};

/// Returns the line and the file of the call, as a default argument of the function that is called.
constexpr source_line here(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return {line, file};
}

/// The source line where the braces of a struct of a run's numbers stand. It does not count as part
/// of the struct's value, so all compare equal. `layout l;` has no braces, and thus no such line.
struct written_at {
  source_line line{};

  constexpr written_at(source_line l = {}) : line(l) {}
  /// Returns the line, or an empty one if it lies in the struct's own header.
  constexpr source_line outside(const char* header) const {
    const char *a = line.file_name(), *b = source_line(0, header).file_name();
    while (*a != 0 && *a == *b) ++a, ++b;
    return *a == *b ? source_line{} : line;
  }
  constexpr bool operator==(const written_at&) const { return true; }
};

} // namespace mc
