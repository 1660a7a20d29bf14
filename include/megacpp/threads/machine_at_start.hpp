// Checks the processor before anything else of the program runs. The unit that holds main includes
// this header; each further unit that includes it would repeat the check.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/threads/machine.hpp>

#if defined(__x86_64__)
#include <unistd.h>

namespace mc::detail {
namespace {

// Constructor functions of priority 101, the first that programs may have, run before all
// initialisers of namespace-scope objects in any unit, which may already use the instructions in
// question. An exception cannot leave a constructor function, and formatting would be library code,
// so this function writes a message and exits. It is marked `used` because nothing refers to it.
__attribute__((constructor(101), used,
               target("no-sse3,no-bmi,no-bmi2,no-lzcnt,no-movbe,no-popcnt,no-adx"))) void
check_machine_at_start() {
  const instruction_mask missing = compiled_instruction_sets & ~available_instruction_sets();
  if (missing == 0) return;
  char text[1024];
  int size = 0;
  // The message leaves the last bytes of the text free for the end of the line.
  const auto put = [&text, &size ](const char* s)
      __attribute__((target("no-sse3,no-bmi,no-bmi2,no-lzcnt,no-movbe,no-popcnt,no-adx"))) {
    while (*s && size < 1000) text[size++] = *s++;
  };
  char brand[49];
  processor_brand(brand);
  put("error: this program was built for a processor with ");
  bool first = true;
  for (int i = 0; i < instruction_set_count; ++i) {
    if (!((missing >> i) & 1u)) continue;
    if (!first) put(", ");
    put(instruction_sets[i].name);
    first = false;
  }
  put(", which this one (");
  put(brand[0] ? brand : "unknown processor");
  put(") lacks; build it again on this machine, or for it by MEGACPP_MARCH");
  text[size++] = '\n';
  const long written = ::write(2, text, static_cast<unsigned long>(size));
  (void)written;
  ::_exit(static_cast<int>(exit_code::machine));
}

} // namespace
} // namespace mc::detail
#endif
