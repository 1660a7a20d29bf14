// The number of processors that a process can use: those that it may run on, or fewer where the
// quota of a container limits it to a fraction of their time.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

namespace mc {

namespace detail {

/// Returns the text of a file of the kernel; "" if there is no such file.
inline std::string kernel_text(const std::string& path) {
  std::string text;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return text;
  std::array<char, 4096> block;
  for (::ssize_t n; (n = ::read(file, block.data(), block.size())) > 0;)
    text.append(block.data(), static_cast<std::size_t>(n));
  ::close(file);
  return text;
}

/// The number of processors for a process without a quota: all of them.
inline constexpr int all_processors = std::numeric_limits<int>::max();

/// Returns quota over period, rounded up, from a text with both; all_processors for "max" and -1.
inline int quota_in(std::string_view text) {
  std::int64_t quota = 0, period = 0;
  const char* const end = text.data() + text.size();
  const auto first = std::from_chars(text.data(), end, quota);
  if (first.ec != std::errc() || quota <= 0 || first.ptr == end) return all_processors;
  const auto second = std::from_chars(first.ptr + 1, end, period);
  if (second.ec != std::errc() || period <= 0) return all_processors;
  const std::int64_t whole = quota / period + (quota % period != 0 ? 1 : 0);
  return static_cast<int>(std::min<std::int64_t>(whole, all_processors));
}

/// Returns the quota of one control group, of version 2 or 1, as a number of processors.
inline int quota_of_cgroup(const std::string& folder) {
  return std::min(quota_in(kernel_text(folder + "/cpu.max")),
                  quota_in(kernel_text(folder + "/cpu.cfs_quota_us") +
                           kernel_text(folder + "/cpu.cfs_period_us")));
}

/// Calls f(folder) for the control groups of a process that have the controller, and for the groups
/// above them. `memberships` has the lines of /proc/self/cgroup; `mounts` is the folder of the
/// hierarchies. A container may see its own group at the root of a hierarchy although the group's
/// path is longer: a folder that does not exist sets no limit.
template <class F> void for_each_cgroup(std::string_view memberships, const std::string& mounts,
                                        const std::string& controller, const F& f) {
  while (!memberships.empty()) {
    const std::string line(memberships.substr(0, memberships.find('\n')));
    memberships.remove_prefix(std::min(line.size() + 1, memberships.size()));
    const std::size_t one = line.find(':'), two = line.find(':', one + 1);
    if (one == std::string::npos || two == std::string::npos) continue;
    const std::string controllers = line.substr(one + 1, two - one - 1);
    std::string listed(1, ','), wanted(1, ',');
    (listed += controllers) += ',', (wanted += controller) += ',';
    const bool version_1 = listed.find(wanted) != std::string::npos;
    if (!controllers.empty() && !version_1) continue;
    std::string root = mounts;
    if (version_1) (root += '/') += controller; // the folder is a link where controllers share one
    for (std::string path = line.substr(two + 1);; path.resize(path.rfind('/'))) {
      while (path.ends_with('/')) path.pop_back();
      f(root + path);
      if (path.find('/') == std::string::npos) break;
    }
  }
}

/// Returns the least quota of the control groups of a process and of the groups above them.
inline int quota_of(std::string_view memberships, const std::string& mounts) {
  int least = all_processors;
  for_each_cgroup(memberships, mounts, "cpu", [&](const std::string& folder) {
    least = std::min(least, quota_of_cgroup(folder));
  });
  return least;
}

} // namespace detail

/// Returns the number of processors that this process may use, by affinity and by the quota of its
/// control groups.
inline int processors() {
  cpu_set_t mine;
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN); // may exceed the bits of a cpu_set_t
  const bool known = ::sched_getaffinity(0, sizeof mine, &mine) == 0;
  const int allowed = known ? CPU_COUNT(&mine) : static_cast<int>(std::max(1L, online));
  return std::min(allowed,
                  detail::quota_of(detail::kernel_text("/proc/self/cgroup"), "/sys/fs/cgroup"));
}

/// Returns the number of processors that processes of one machine may use together: `all` has those
/// that any of them may run on, and `mine` those of this one. Where a control group leaves this one
/// fewer than that, all share them.
inline int processors_of(const cpu_set_t& mine, const cpu_set_t& all) {
  const int allowed = CPU_COUNT(&mine), quota = processors();
  return std::max(1, quota < allowed ? quota : CPU_COUNT(&all));
}

} // namespace mc
