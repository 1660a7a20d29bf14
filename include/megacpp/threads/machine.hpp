// The processor: its name, and whether it has the instructions that this program was compiled for.
//
// A program that was compiled with -march=native dies of SIGILL, without a message, on an older
// processor. The check must run before the first such instruction and contain none itself. So its
// functions are compiled for the x86-64 baseline: target("no-sse3,...") switches off everything
// above the baseline and keeps the compiler from inlining code of the surrounding unit. They use
// plain loads and loops and no library template, which would be compiled for the whole instruction
// set. machine_at_start.hpp runs the check before all other initialisers of the program.
#pragma once

#include <megacpp/config/config.hpp>

#include <cstdint>

namespace mc {

/// A set of instruction-set extensions; bit i stands for row i of detail::instruction_sets.
using instruction_mask = std::uint64_t;

namespace detail {

/// One extension and the cpuid bit that reports it. leaf: 0 = cpuid 1, 1 = 7.0, 2 = 7.1, 3 =
/// 0x80000001; reg: 0 to 3 = eax, ebx, ecx, edx; state: the bits of XCR0 that the operating system
/// must have set, because it saves those registers.
struct instruction_set {
  const char* name;
  std::uint8_t leaf, reg, bit, state;
  bool compiled; // the compiler defines the macro as 1: this unit may use the extension
};

// The table lists the extensions that compilers use of their own accord; Intel SDM volume 2, CPUID.
#define MEGACPP_TEXT_OF(x) #x
#define MEGACPP_COMPILED(macro) (MEGACPP_TEXT_OF(macro)[0] == '1')
constexpr std::uint8_t ymm = 0x06, zmm = 0xe6;
constexpr instruction_set instruction_sets[] = {
    {"SSE3", 0, 2, 0, 0, MEGACPP_COMPILED(__SSE3__)},
    {"SSSE3", 0, 2, 9, 0, MEGACPP_COMPILED(__SSSE3__)},
    {"SSE4.1", 0, 2, 19, 0, MEGACPP_COMPILED(__SSE4_1__)},
    {"SSE4.2", 0, 2, 20, 0, MEGACPP_COMPILED(__SSE4_2__)},
    {"POPCNT", 0, 2, 23, 0, MEGACPP_COMPILED(__POPCNT__)},
    {"MOVBE", 0, 2, 22, 0, MEGACPP_COMPILED(__MOVBE__)},
    {"LZCNT", 3, 2, 5, 0, MEGACPP_COMPILED(__LZCNT__)},
    {"BMI1", 1, 1, 3, 0, MEGACPP_COMPILED(__BMI__)},
    {"BMI2", 1, 1, 8, 0, MEGACPP_COMPILED(__BMI2__)},
    {"ADX", 1, 1, 19, 0, MEGACPP_COMPILED(__ADX__)},
    {"GFNI", 1, 2, 8, 0, MEGACPP_COMPILED(__GFNI__)},
    {"AVX", 0, 2, 28, ymm, MEGACPP_COMPILED(__AVX__)},
    {"F16C", 0, 2, 29, ymm, MEGACPP_COMPILED(__F16C__)},
    {"FMA", 0, 2, 12, ymm, MEGACPP_COMPILED(__FMA__)},
    {"AVX2", 1, 1, 5, ymm, MEGACPP_COMPILED(__AVX2__)},
    {"AVX-VNNI", 2, 0, 4, ymm, MEGACPP_COMPILED(__AVXVNNI__)},
    {"AVX512F", 1, 1, 16, zmm, MEGACPP_COMPILED(__AVX512F__)},
    {"AVX512CD", 1, 1, 28, zmm, MEGACPP_COMPILED(__AVX512CD__)},
    {"AVX512BW", 1, 1, 30, zmm, MEGACPP_COMPILED(__AVX512BW__)},
    {"AVX512DQ", 1, 1, 17, zmm, MEGACPP_COMPILED(__AVX512DQ__)},
    {"AVX512VL", 1, 1, 31, zmm, MEGACPP_COMPILED(__AVX512VL__)},
    {"AVX512IFMA", 1, 1, 21, zmm, MEGACPP_COMPILED(__AVX512IFMA__)},
    {"AVX512VBMI", 1, 2, 1, zmm, MEGACPP_COMPILED(__AVX512VBMI__)},
    {"AVX512VBMI2", 1, 2, 6, zmm, MEGACPP_COMPILED(__AVX512VBMI2__)},
    {"AVX512VNNI", 1, 2, 11, zmm, MEGACPP_COMPILED(__AVX512VNNI__)},
    {"AVX512BITALG", 1, 2, 12, zmm, MEGACPP_COMPILED(__AVX512BITALG__)},
    {"AVX512VPOPCNTDQ", 1, 2, 14, zmm, MEGACPP_COMPILED(__AVX512VPOPCNTDQ__)},
    {"AVX512BF16", 2, 0, 5, zmm, MEGACPP_COMPILED(__AVX512BF16__)},
    {"AVX512FP16", 1, 3, 23, zmm, MEGACPP_COMPILED(__AVX512FP16__)},
};
#undef MEGACPP_COMPILED
#undef MEGACPP_TEXT_OF
constexpr int instruction_set_count = sizeof instruction_sets / sizeof instruction_sets[0];

constexpr instruction_mask compiled_mask() {
  instruction_mask mask = 0;
  for (int i = 0; i < instruction_set_count; ++i)
    if (instruction_sets[i].compiled) mask |= instruction_mask{1} << i;
  return mask;
}

} // namespace detail

/// The extensions that the including unit was compiled to use (-march). The constant differs from
/// unit to unit.
constexpr instruction_mask compiled_instruction_sets = detail::compiled_mask();

#if defined(__x86_64__)
namespace detail {

__attribute__((target("no-sse3,no-bmi,no-bmi2,no-lzcnt,no-movbe,no-popcnt,no-adx"))) inline void
cpuid(std::uint32_t leaf, std::uint32_t subleaf, std::uint32_t* regs) {
  std::uint32_t a, b, c, d;
  __asm__ volatile("cpuid" : "=a"(a), "=b"(b), "=c"(c), "=d"(d) : "a"(leaf), "c"(subleaf));
  regs[0] = a;
  regs[1] = b;
  regs[2] = c;
  regs[3] = d;
}

/// Writes the 48 characters of the processor's brand string and a terminating zero; an empty string
/// if the processor has none.
__attribute__((target("no-sse3,no-bmi,no-bmi2,no-lzcnt,no-movbe,no-popcnt,no-adx"))) inline void
processor_brand(char* text) {
  std::uint32_t regs[4];
  for (int i = 0; i < 49; ++i) text[i] = '\0';
  cpuid(0x80000000u, 0, regs);
  if (regs[0] < 0x80000004u) return;
  for (std::uint32_t leaf = 0; leaf < 3; ++leaf) {
    cpuid(0x80000002u + leaf, 0, regs);
    for (std::uint32_t i = 0; i < 16; ++i)
      text[16 * leaf + i] = static_cast<char>(regs[i / 4] >> (8 * (i % 4)));
  }
}

} // namespace detail

/// Returns the extensions that the processor has and the operating system lets programs use.
__attribute__((
    target("no-sse3,no-bmi,no-bmi2,no-lzcnt,no-movbe,no-popcnt,no-adx"))) inline instruction_mask
available_instruction_sets() {
  std::uint32_t leaves[4][4] = {}, regs[4];
  detail::cpuid(0, 0, regs);
  const std::uint32_t highest = regs[0];
  detail::cpuid(1, 0, leaves[0]);
  if (highest >= 7) {
    detail::cpuid(7, 0, leaves[1]);
    if (leaves[1][0] >= 1) detail::cpuid(7, 1, leaves[2]);
  }
  detail::cpuid(0x80000000u, 0, regs);
  if (regs[0] >= 0x80000001u) detail::cpuid(0x80000001u, 0, leaves[3]);
  std::uint32_t state = 0, state_high = 0;
  if ((leaves[0][2] >> 27) & 1u) // OSXSAVE: the program may execute xgetbv
    __asm__ volatile("xgetbv" : "=a"(state), "=d"(state_high) : "c"(0));
  instruction_mask mask = 0;
  for (int i = 0; i < detail::instruction_set_count; ++i) {
    const detail::instruction_set& s = detail::instruction_sets[i];
    if (((leaves[s.leaf][s.reg] >> s.bit) & 1u) && (state & s.state) == s.state)
      mask |= instruction_mask{1} << i;
  }
  return mask;
}
#else
inline instruction_mask available_instruction_sets() { return ~instruction_mask{0}; }
#endif

/// Returns why a program is many times slower than it could be on a processor with the `available`
/// extensions: it was compiled without optimisation, or without the vector instructions. Returns ""
/// if it is neither.
inline const char* why_slow(bool optimised, instruction_mask compiled, instruction_mask available) {
  if (!optimised)
    return "this program was compiled without optimisation and is many times slower than it could "
           "be; build it with CMAKE_BUILD_TYPE=Release, or with -O3 -march=native";
  for (int i = 0; i < detail::instruction_set_count; ++i) {
    const char* const name = detail::instruction_sets[i].name;
    const bool avx2 = name[0] == 'A' && name[1] == 'V' && name[2] == 'X' && name[3] == '2';
    if (avx2 && ((available & ~compiled) >> i & 1u) != 0)
      return "this program was compiled without the vector instructions of this processor and is "
             "several times slower than it could be; build it with -march=native";
  }
  return "";
}
/// Returns why the including unit is slow on this machine. A unit that looks for errors of memory
/// is slow on purpose, and counts as optimised.
inline const char* why_slow() {
#if defined(__OPTIMIZE__) || MEGACPP_CHECKS_MEMORY
  constexpr bool optimised = true;
#else
  constexpr bool optimised = false;
#endif
  return why_slow(optimised, compiled_instruction_sets, available_instruction_sets());
}

} // namespace mc
