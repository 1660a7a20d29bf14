// The memory that is left for a process and its neighbours: of the machine, of the cgroups of the
// process (those of a container, too), and of the process's address space.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/threads/processors.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <sys/resource.h>
#include <unistd.h>

namespace mc {

/// The files in which the kernel reports memory.
struct memory_files {
  std::string machine = "/proc/meminfo", process = "/proc/self/statm",
              memberships = "/proc/self/cgroup", cgroups = "/sys/fs/cgroup";
};

namespace detail {

/// Returns the number behind a word at the beginning of a line; for the word "", the first number
/// of the text.
inline std::optional<std::int64_t> number_behind(std::string_view text, std::string_view word) {
  while (!text.starts_with(word)) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return std::nullopt;
    text.remove_prefix(end + 1);
  }
  text.remove_prefix(word.size());
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  std::int64_t n = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), n);
  return problem == std::errc() ? std::optional(n) : std::nullopt;
}

/// Returns the memory that a cgroup of version 2 or 1 leaves. Pages of files do not count as used,
/// since the kernel takes them back. Returns nothing where the cgroup has no limit.
inline std::optional<std::int64_t> room_of_cgroup(const std::string& folder) {
  std::optional<std::int64_t> least;
  for (const auto& [limit, used, prefix] :
       {std::array{"/memory.max", "/memory.current", ""},
        std::array{"/memory.limit_in_bytes", "/memory.usage_in_bytes", "total_"}}) {
    const auto most = number_behind(kernel_text(folder + limit), ""),
               now = number_behind(kernel_text(folder + used), "");
    if (!most || !now) continue; // "max" is not a number
    const std::string statistics = kernel_text(folder + "/memory.stat");
    std::int64_t files = 0;
    for (const char* const list : {"inactive_file ", "active_file "})
      files += number_behind(statistics, std::string(prefix) + list).value_or(0);
    const std::int64_t left =
        std::max<std::int64_t>(0, *most - std::max<std::int64_t>(0, *now - files));
    least = std::min(least.value_or(left), left);
  }
  return least;
}

} // namespace detail

/// Returns the memory that is left for all processes of this machine, or of the container of this
/// process; nothing where that is not known.
inline std::optional<memory_room> room_on_machine(const memory_files& from = {}) {
  std::optional<memory_room> least;
  const auto add = [&](std::int64_t bytes, std::string of) {
    if (!least || bytes < least->bytes) least = memory_room{bytes, std::move(of)};
  };
  if (const auto kibibytes =
          detail::number_behind(detail::kernel_text(from.machine), "MemAvailable:"))
    add(*kibibytes * 1024, "the machine (MemAvailable)");
  detail::for_each_cgroup(detail::kernel_text(from.memberships), from.cgroups, "memory",
                          [&](const std::string& folder) {
                            if (const auto left = detail::room_of_cgroup(folder))
                              add(*left, "the limit of the control group " + folder);
                          });
  return least;
}

/// Returns the rest of the address space of this process, which may have `most` bytes
/// (RLIM_INFINITY: any number); nothing where there is no limit.
inline std::optional<memory_room> room_in_process(::rlim_t most, const memory_files& from = {}) {
  const auto pages = detail::number_behind(detail::kernel_text(from.process), "");
  if (most == RLIM_INFINITY || !pages) return std::nullopt;
  const std::int64_t used = *pages * ::sysconf(_SC_PAGESIZE);
  return memory_room{std::max<std::int64_t>(0, static_cast<std::int64_t>(most) - used),
                     "the limit on address space (ulimit -v)"};
}
inline std::optional<memory_room> room_in_process() {
  rlimit space{};
  return ::getrlimit(RLIMIT_AS, &space) == 0 ? room_in_process(space.rlim_cur) : std::nullopt;
}

} // namespace mc
