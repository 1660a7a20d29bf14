// The processor check and the stop signals. This program is itself checked at its start, and runs
// itself under an emulated older processor where qemu-user is installed.
#define BOOST_TEST_MODULE machine
#include <boost/test/unit_test.hpp>

#include <megacpp/exec/machine.hpp>
#include <megacpp/exec/machine_at_start.hpp>
#include <megacpp/exec/signals.hpp>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include <sys/wait.h>
#include <unistd.h>

#include <scratch.hpp>

namespace {

using mc::exit_code;

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
#elif !defined(__OPTIMIZE__)
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
  BOOST_TEST(text.find("lacks; build it again on this machine\n") != std::string::npos, text);
#endif
}

/// The wait status of a child that runs f.
int in_child(const std::function<int()>& f) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(f());
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

BOOST_AUTO_TEST_CASE(the_first_signal_asks_and_the_second_ends) {
  for (const int first : {SIGINT, SIGTERM})
    for (const int second : {SIGINT, SIGTERM}) {
      const int status = in_child([=] {
        const mc::stop_signals signals;
        if (signals.requested()) return 1;
        ::raise(first);
        if (!signals.requested() || signals.number() != first) return 2;
        ::raise(second);
        return 3;
      });
      BOOST_TEST(WIFSIGNALED(status));
      BOOST_TEST(WTERMSIG(status) == second);
    }
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
