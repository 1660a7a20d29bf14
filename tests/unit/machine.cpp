// The processor check, the quota of containers, and the stop signals. This program is itself checked at its start, and runs
// itself under an emulated older processor where qemu-user is installed.
#define BOOST_TEST_MODULE machine
#include <boost/test/unit_test.hpp>

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/exec/memory_room.hpp>
#include <megacpp/inspect/built_for.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/threads/machine.hpp>
#include <megacpp/threads/machine_at_start.hpp>
#include <megacpp/threads/processors.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <scratch.hpp>

#include "child.hpp"

namespace {

using mc::exit_code;
using test::in_child;

BOOST_AUTO_TEST_CASE(this_machine_has_what_this_program_was_built_for) {
  BOOST_TEST((mc::compiled_instruction_sets & ~mc::available_instruction_sets()) == 0u);
}

BOOST_AUTO_TEST_CASE(the_masks_are_those_of_the_compiler) {
  const auto bit = [](std::string_view name) {
    for (int i = 0; i < mc::detail::instruction_set_count; ++i)
      if (name == mc::detail::instruction_sets[i].name) return mc::instruction_mask{1} << i;
    BOOST_FAIL("no " << name);
    return mc::instruction_mask{0};
  };
  const auto avx2 = bit("AVX2"), avx512f = bit("AVX512F");
#if defined(__AVX2__)
  BOOST_TEST((mc::compiled_instruction_sets & avx2) != 0u);
#else
  BOOST_TEST((mc::compiled_instruction_sets & avx2) == 0u);
#endif
#if defined(__x86_64__)
  // The compiler's own run-time check agrees.
  BOOST_TEST(((mc::available_instruction_sets() & avx2) != 0) ==
             (__builtin_cpu_supports("avx2") != 0));
  BOOST_TEST(((mc::available_instruction_sets() & avx512f) != 0) ==
             (__builtin_cpu_supports("avx512f") != 0));
  BOOST_TEST(((mc::available_instruction_sets() & bit("FMA")) != 0) ==
             (__builtin_cpu_supports("fma") != 0));
  BOOST_TEST(((mc::available_instruction_sets() & bit("BMI2")) != 0) ==
             (__builtin_cpu_supports("bmi2") != 0));
#endif
}

BOOST_AUTO_TEST_CASE(a_program_tells_the_level_of_its_processors) {
  const auto of = [](std::initializer_list<std::string_view> names) {
    mc::instruction_mask mask = 0;
    for (int i = 0; i < mc::detail::instruction_set_count; ++i)
      for (const std::string_view name : names)
        if (name == mc::detail::instruction_sets[i].name) mask |= mc::instruction_mask{1} << i;
    return mask;
  };
  BOOST_TEST(mc::processors_of(0).text() == "x86-64");
  const auto v2 = of({"SSE3", "SSSE3", "SSE4.1", "SSE4.2", "POPCNT"});
  const auto v3 = v2 | of({"AVX", "AVX2", "BMI1", "BMI2", "F16C", "FMA", "LZCNT", "MOVBE"});
  const auto v4 = v3 | of({"AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"});
  BOOST_TEST(mc::processors_of(v2).text() == "x86-64-v2");
  BOOST_TEST(mc::processors_of(v3).text() == "x86-64-v3");
  BOOST_TEST(mc::processors_of(v4).text() == "x86-64-v4");
  BOOST_TEST(mc::processors_of(v4 | of({"ADX", "GFNI"})).text() == "x86-64-v4 with ADX, GFNI");
  BOOST_TEST(mc::processors_of(v3 & ~of({"MOVBE"})).text() ==
             "x86-64-v2 with LZCNT, BMI1, BMI2, AVX, F16C, FMA, AVX2");
}

BOOST_AUTO_TEST_CASE(memory_that_is_refused_is_never_0_MiB) {
  constexpr std::int64_t too_many = std::int64_t{1} << 60; // more than there are addresses
  CHECK_REFUSED(mc::arena(mc::host_memory::of_process(), too_many, "x", "y"), exit_code::memory,
                "reserve 1099511627776 MiB for x");
  CHECK_REFUSED(mc::arena(mc::host_memory::of_process(), too_many + 1, "x", "y"), exit_code::memory,
                "reserve 1099511627777 MiB");
}

BOOST_AUTO_TEST_CASE(a_slow_build_says_so) {
  const mc::instruction_mask all = ~mc::instruction_mask{0};
  const auto says = [](bool optimised, mc::instruction_mask compiled,
                       mc::instruction_mask machine) {
    return std::string(mc::why_slow(optimised, compiled, machine));
  };
  BOOST_TEST(says(true, all, all) == "");
  BOOST_TEST(says(true, 0, 0) == ""); // all that the machine has
  BOOST_TEST(says(true, 0, all).find("-march=native") != std::string::npos);
  BOOST_TEST(says(false, all, all).find("Release") != std::string::npos);
#if defined(__OPTIMIZE__) && defined(__AVX2__)
  BOOST_TEST(std::string(mc::why_slow()) == "");
#elif !defined(__OPTIMIZE__) && !defined(MEGACPP_SANITIZED)
  BOOST_TEST(std::string(mc::why_slow()).find("Release") != std::string::npos);
#endif
}

BOOST_AUTO_TEST_CASE(an_older_processor_gets_a_sentence_instead_of_sigill) {
#if !defined(MEGACPP_SANITIZED)
  if (mc::compiled_instruction_sets == 0) return; // this program runs on every x86-64
  if (std::system("qemu-x86_64 --version >/dev/null 2>&1") != 0) {
    test::left_out("there is no qemu-x86_64; on Debian or Ubuntu, apt install qemu-user");
    return;
  }
  const std::string self = std::to_string(::getpid());
  std::FILE* const out =
      ::popen(("qemu-x86_64 -cpu qemu64 /proc/" + self + "/exe --list_content 2>&1").c_str(), "r");
  BOOST_REQUIRE(out);
  std::string text;
  for (int c; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
  const int status = ::pclose(out);
  BOOST_TEST(WIFEXITED(status));
  BOOST_TEST(WEXITSTATUS(status) == static_cast<int>(exit_code::machine), text);
  BOOST_TEST(text.find("error: this program was built for a processor with ") != std::string::npos,
             text);
  BOOST_TEST(text.find("lacks; build it again on this machine, or for it by MEGACPP_MARCH\n") !=
                 std::string::npos,
             text);
#endif
}

BOOST_AUTO_TEST_CASE(a_quota_of_control_groups_is_rounded_up) {
  using mc::detail::all_processors;
  for (const auto& [text, processors] :
       {std::pair("max 100000\n", all_processors), std::pair("200000 100000\n", 2),
        std::pair("150000 100000\n", 2), std::pair("1000 100000\n", 1),
        std::pair("-1\n100000\n", all_processors), std::pair("350000\n100000\n", 4),
        std::pair("", all_processors), std::pair("100000", all_processors),
        std::pair("100000 0", all_processors), std::pair("x", all_processors),
        std::pair("9223372036854775807 1", all_processors)})
    BOOST_TEST(mc::detail::quota_in(text) == processors, text);

  // The least of a group and those above it, wherever the hierarchy begins.
  const test::scratch_folder folder;
  const auto group = [&](const std::string& path, const std::string& file, const char* text) {
    std::filesystem::create_directories(folder / path);
    test::write_text(folder / (path + '/' + file), text);
  };
  const auto quota = [&](const char* memberships) {
    return mc::detail::quota_of(memberships, folder.path().string());
  };
  BOOST_TEST(quota("0::/a/b\n") == all_processors);
  group("a/b", "cpu.max", "300000 100000\n");
  BOOST_TEST(quota("0::/a/b\n") == 3);
  BOOST_TEST(quota("0::/a/b/not/there\n") == 3);
  BOOST_TEST(quota("0::/a\n") == all_processors);
  group("a", "cpu.max", "200000 100000\n");
  BOOST_TEST(quota("0::/a/b\n") == 2);
  group("cpu/x", "cpu.cfs_quota_us", "500000\n");
  group("cpu/x", "cpu.cfs_period_us", "100000\n");
  BOOST_TEST(quota("3:memory:/x\n2:cpu,cpuacct:/x\n1:cpuset:/x\n") == 5);
  BOOST_TEST(quota("3:cpuset,cpu:/x\n0::/a\n") == 2);
  // Groups of other controllers may have the names of groups that have a quota.
  BOOST_TEST(quota("4:memory:/a/b\n") == all_processors);
  BOOST_TEST(quota("4:memory:/a/b\n2:cpu,cpuacct:/x\n") == 5);
  BOOST_TEST(quota("no line\n:\n") == all_processors);
  group(".", "cpu.max", "50000 100000\n");
  BOOST_TEST(quota("0::/of/the/host\n") == 1);
  BOOST_TEST(quota("0::/\n") == 1);
  BOOST_TEST(mc::processors() >= 1);
}

BOOST_AUTO_TEST_CASE(the_least_memory_that_anything_leaves_counts) {
  const test::scratch_folder folder;
  const auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories((folder.path() / path).parent_path());
    test::write_text(folder / path, text);
  };
  const mc::memory_files files{.machine = folder / "meminfo",
                               .process = folder / "statm",
                               .memberships = folder / "cgroup",
                               .cgroups = folder / "groups"};
  const auto left = [&] {
    const auto room = mc::room_on_machine(files);
    return room ? room->bytes : -1;
  };
  BOOST_TEST(left() == -1); // the kernel tells nothing
  write("meminfo", "MemTotal:       24000000 kB\nMemFree:  100 kB\nMemAvailable:   20000 kB\n");
  BOOST_TEST(left() == 20000 * 1024);
  // Version 2: the group and those above it; pages of files can be taken back.
  write("cgroup", "0::/pod/box\n");
  write("groups/pod/box/memory.max", "max\n");
  write("groups/pod/box/memory.current", "123\n");
  BOOST_TEST(left() == 20000 * 1024);
  write("groups/pod/memory.max", "9000000\n");
  write("groups/pod/memory.current", "5000000\n");
  BOOST_TEST(left() == 4000000);
  write("groups/pod/memory.stat", "anon 1000\ninactive_file 700000\nactive_file 300000\n");
  BOOST_TEST(left() == 5000000);
  BOOST_TEST(mc::room_on_machine(files)->of.find("groups/pod") != std::string::npos);
  write("groups/pod/box/memory.max", "1000\n");
  BOOST_TEST(left() == 877);
  write("groups/pod/box/memory.max", "100\n"); // less than is used
  BOOST_TEST(left() == 0);
  // Version 1, seen from within a container, at the root of the hierarchy.
  write("cgroup", "12:cpu,cpuacct:/docker/a\n7:memory:/docker/a\n");
  write("groups/memory/memory.limit_in_bytes", "8000000\n");
  write("groups/memory/memory.usage_in_bytes", "6000000\n");
  write("groups/memory/memory.stat", "cache 5\ntotal_inactive_file 1000000\ninactive_file 7\n");
  BOOST_TEST(left() == 3000000);
  write("groups/memory/memory.limit_in_bytes", "9223372036854771712\n"); // none
  BOOST_TEST(left() == 20000 * 1024);
  // Of the address space, what is mapped already is not left.
  write("statm", "1000 500 300 1 0 400 0\n");
  BOOST_TEST((!mc::room_in_process(RLIM_INFINITY, files)));
  BOOST_TEST(
      mc::room_in_process(static_cast<::rlim_t>(3000 * ::sysconf(_SC_PAGESIZE)), files)->bytes ==
      2000 * ::sysconf(_SC_PAGESIZE));
  BOOST_TEST(mc::room_in_process(5, files)->bytes == 0);
  BOOST_TEST(mc::room_on_machine()->bytes > 0); // of this one
}

BOOST_AUTO_TEST_CASE(the_first_signal_asks_and_one_that_comes_later_ends) {
  for (const int first : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU})
    for (const int second : {SIGINT, SIGTERM}) {
      const int status = in_child([=] {
        const mc::stop_signals signals;
        if (signals.requested() || !signals.name().empty()) return 1;
        ::raise(first);
        if (!signals.requested() || signals.number() != first) return 2;
        // The same request once more, as timeout and launchers send it.
        for (const int again : {first, SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU}) ::raise(again);
        if (signals.number() != first) return 3;
        mc::detail::stop_time -= 1'000'000'000; // as if a second had passed
        for (const int again : {SIGHUP, SIGUSR1, SIGXCPU}) ::raise(again);
        if (signals.number() != first) return 4;
        ::raise(second);
        return 5;
      });
      BOOST_TEST(WIFSIGNALED(status));
      BOOST_TEST(WTERMSIG(status) == second);
    }
}

// What is read or written goes on: a save, too, must not fail for a request to stop.
BOOST_AUTO_TEST_CASE(a_request_interrupts_neither_reads_nor_writes) {
  for (const int number : {SIGTERM, SIGUSR1})
    BOOST_TEST(in_child([number] {
                 const mc::stop_signals signals;
                 int ends[2];
                 if (::pipe(ends) != 0) return 1;
                 const pid_t reader = ::getpid();
                 if (::fork() == 0) {
                   for (int i = 0; i < 20; ++i) ::kill(reader, number), ::usleep(1000);
                   ::_exit(::write(ends[1], "x", 1) == 1 ? 0 : 1);
                 }
                 char x = 0;
                 if (::read(ends[0], &x, 1) != 1) return 2;
                 return signals.number() == number ? 0 : 3;
               }) == 0);
}

BOOST_AUTO_TEST_CASE(ignored_signals_stay_ignored_and_held_ones_are_taken) {
  BOOST_TEST(in_child([] {
               std::signal(SIGINT, SIG_IGN);
               const mc::stop_signals signals;
               ::raise(SIGINT);
               return signals.requested() ? 1 : 0;
             }) == 0);
  BOOST_TEST(in_child([] {
               const mc::signals_held by_the_parent;
               const mc::stop_signals_taken all_the_same;
               const mc::stop_signals signals;
               ::raise(SIGTERM);
               return signals.name() == "SIGTERM" ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(signals_are_as_before_afterwards_and_limits_are_errors_meanwhile) {
  const int status = in_child([] {
    { const mc::stop_signals signals; }
    ::raise(SIGTERM);
    return 0;
  });
  BOOST_TEST(WIFSIGNALED(status));
  BOOST_TEST(in_child([] {
               const mc::write_errors errors;
               int ends[2];
               if (::pipe(ends) != 0) return 1;
               ::close(ends[0]);
               return ::write(ends[1], "x", 1) == -1 ? 0 : 2;
             }) == 0);
}

} // namespace
