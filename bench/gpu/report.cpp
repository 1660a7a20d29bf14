#include "report.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/stat.h>

namespace gpu {
namespace {

// Time that a call may take beyond the limit of its part, before the program gives it up.
constexpr std::chrono::seconds patience{20};

std::string quoted(const std::string& text) {
  std::string r = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') r += '\\';
    if (static_cast<unsigned char>(c) < 0x20) r += ' ';
    else r += c;
  }
  return r + '"';
}

std::string json(const std::variant<double, std::string>& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return quoted(*text);
  const double x = std::get<double>(value);
  if (!std::isfinite(x)) return "null";
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.6g", x);
  return buffer;
}

std::string shown(const std::variant<double, std::string>& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return *text;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%.4g", std::get<double>(value));
  return buffer;
}

} // namespace

report::report(std::string path, figures facts, std::function<void()> alive)
    : path_(std::move(path)), facts_(std::move(facts)), alive_(std::move(alive)) {
  write(); // fails before anything has run if path cannot be written
  watch_ = std::thread([this] { watch(); });
}

report::~report() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  watch_.join();
}

void report::part(const std::string& name, double seconds, const std::function<void()>& f) {
  {
    const std::lock_guard lock(mutex_);
    part_ = name, running_ = name, late_ = false, inside_ = true;
    until_ = clock::now() + std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  changed_.notify_all();
  std::printf("%s\n", name.c_str());
  if (!lost_) {
    try {
      f();
    } catch (const std::exception& e) { // an error outside of the part's checks
      add({name, name, e.what(), {}});
    }
  }
  const std::lock_guard lock(mutex_);
  inside_ = false;
  write();
}

void report::check(const std::string& name, const std::function<figures()>& f) {
  {
    const std::lock_guard lock(mutex_);
    if (lost_ || late_) return;
    running_ = name;
    late_ = clock::now() >= until_;
  }
  if (late_) {
    add({part_,
         name,
         "this and what follows it in its part did not run: the part's time was over",
         {}});
    return;
  }
  outcome o{part_, name, "", {}};
  try {
    o.of = f();
  } catch (const std::exception& e) {
    o.fault = *e.what() != 0 ? e.what() : "failed without a sentence";
  }
  if (!o.fault.empty()) {
    try {
      alive_();
    } catch (const std::exception&) {
      lost_ = true;
      o.fault += "; the device answers no more, and what follows did not run";
    }
  }
  add(std::move(o));
}

void report::add(outcome o) {
  std::string line = (o.fault.empty() ? "  passed  " : "  FAILED  ") + o.name;
  for (const auto& [name, value] : o.of) line += "  " + name + " " + shown(value);
  if (!o.fault.empty()) line += ": " + o.fault;
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
  const std::lock_guard lock(mutex_);
  keep(std::move(o));
  write();
}

void report::keep(outcome o) {
  checks_ += done_.empty() ? "\n" : ",\n";
  checks_ += "  {\"part\": " + quoted(o.part) + ", \"name\": " + quoted(o.name) +
             ", \"passed\": " + (o.fault.empty() ? "true" : "false");
  if (!o.fault.empty()) checks_ += ", \"fault\": " + quoted(o.fault);
  for (const auto& [name, value] : o.of) checks_ += ", " + quoted(name) + ": " + json(value);
  checks_ += "}";
  done_.push_back(std::move(o));
}

void report::fact(const std::string& name, std::variant<double, std::string> value) {
  const std::lock_guard lock(mutex_);
  facts_.emplace_back(name, std::move(value));
}

double report::fact(const std::string& name) const {
  for (const auto& [of, value] : facts_)
    if (of == name) return std::get<double>(value);
  return std::nan("");
}

std::int64_t report::failed() const {
  return std::count_if(done_.begin(), done_.end(),
                       [](const outcome& o) { return !o.fault.empty(); });
}

std::int64_t report::passed() const { return static_cast<std::int64_t>(done_.size()) - failed(); }

std::string report::totals() const {
  return std::to_string(passed()) + " passed, " + std::to_string(failed()) + " failed";
}

int report::end() {
  const std::lock_guard lock(mutex_);
  write();
  std::printf("%s\n", totals().c_str());
  return passed() > 0 && failed() == 0 ? 0 : 1;
}

void report::write() const {
  if (path_.empty()) return;
  std::string text = "{\n";
  for (const auto& [name, value] : facts_)
    text.append(" ").append(quoted(name)).append(": ").append(json(value)).append(",\n");
  text += " \"totals\": " + quoted(totals()) + ",\n \"checks\": [" + checks_ + "\n ]\n}\n";
  // A program that is killed leaves the file of its last check: a new file replaces the old one
  // when it is complete. A path that is no regular file, such as /dev/stdout, is written to
  // directly.
  struct stat is {};
  const bool replaces = ::stat(path_.c_str(), &is) != 0 || S_ISREG(is.st_mode);
  const std::string to = replaces ? path_ + ".part" : path_;
  std::FILE* const file = std::fopen(to.c_str(), "w");
  bool wrote = file != nullptr && std::fwrite(text.data(), 1, text.size(), file) == text.size();
  int reason = errno;
  if (file != nullptr && std::fclose(file) != 0) wrote = false, reason = errno;
  if (wrote && replaces && std::rename(to.c_str(), path_.c_str()) != 0)
    wrote = false, reason = errno;
  if (!wrote)
    throw mc::error(mc::exit_code::output, path_ + " cannot be written: " + std::strerror(reason) +
                                               "; give --json another file");
}

void report::watch() {
  std::unique_lock lock(mutex_);
  while (!ending_) {
    if (!inside_) {
      changed_.wait(lock);
    } else if (clock::now() < until_ + patience) {
      changed_.wait_until(lock, until_ + patience);
    } else {
      keep({part_, running_, "did not return in the time of its part", {}});
      std::printf("  FAILED  %s: did not return in the time of its part\n%s\n", running_.c_str(),
                  totals().c_str());
      std::fflush(stdout);
      try {
        write();
      } catch (const std::exception& e) {
        std::fprintf(stderr, "megacpp_gpu: %s\n", e.what());
      }
      std::_Exit(1);
    }
  }
}

} // namespace gpu
