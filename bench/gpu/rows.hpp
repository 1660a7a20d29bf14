// Checks of row bodies: that they compute the same on the device as on the CPU, and how fast.
#pragma once

#include "approximations.hpp"
#include "arrays.hpp"
#include "device.hpp"
#include "report.hpp"

#include <megacpp/exec/launch.hpp>

#include <span>
#include <string>

namespace gpu {

/// The extents from which the arrays of all bodies follow. Bodies with an extent of zero are left
/// out.
struct sizes {
  const char* name;
  bool timed;              // measure the speed, not the results
  std::int64_t tokens;     // T
  std::int64_t hidden;     // H
  std::int64_t ffn;        // F
  std::int64_t heads;      // A
  std::int64_t half;       // D / 2
  std::int64_t vocabulary; // V
  std::int64_t padded;     // columns of logits, with padding
  std::int64_t rows;       // rows of logits at a time
  std::int64_t experts;    // E
  int choices;             // experts that a token chooses
};

/// The sizes at which results are checked: one element; rows below a group of 16 bytes; rows that
/// do not begin at a multiple of 16 bytes; more rows than are added up at once; the models; and a
/// row as wide as a vocabulary.
inline constexpr sizes checked_sizes[] = {
    {"one-element", false, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1},
    {"narrow", false, 3, 7, 5, 3, 3, 7, 11, 3, 7, 3},
    {"unaligned", false, 5, 769, 1031, 3, 33, 1001, 1031, 5, 129, 8},
    {"many-rows", false, 300, 24, 40, 2, 8, 24, 32, 300, 16, 2},
    {"gpt2-124m", false, 4, 768, 3072, 12, 32, 50257, 50304, 2, 128, 8},
    {"qwen3-8b", false, 2, 4096, 12288, 32, 64, 151936, 151936, 1, 128, 8},
    {"vocabulary-wide", false, 1, 151936, 151936, 1, 75968, 151936, 151936, 1, 151936, 8}};

/// The sizes of micro-batches of models, at which speed is measured. Arrays are tens of megabytes;
/// data that fit a cache have copies that take turns.
inline constexpr sizes timed_sizes[] = {
    {"gpt2-124m", true, 16384, 768, 3072, 12, 32, 50257, 50304, 1024, 0, 0},
    {"qwen3-8b", true, 4096, 4096, 12288, 32, 64, 151936, 151936, 512, 0, 0},
    {"qwen3-30b-a3b", true, 8192, 2048, 768, 0, 0, 0, 0, 0, 128, 8}};

/// Checks all bodies of a kind, on float and bf16.
void norms(report& r, std::span<const sizes> all);
void elements(report& r, std::span<const sizes> all);
void optimizer(report& r, std::span<const sizes> all);
void losses(report& r, std::span<const sizes> all);
void experts(report& r, std::span<const sizes> all);
void attention_by_rows(report& r, std::span<const sizes> all);

template <class T> inline constexpr const char* name_of_type = mc::name_of(mc::dtype_of<T>);

/// Memory of the device, which is released with the object.
class device_block {
public:
  explicit device_block(std::int64_t bytes)
      : of_(memory(), bytes, "the arrays of a check", "a smaller micro-batch") {}
  std::byte* data() const { return of_.data(); }

private:
  mc::arena of_;
};

/// Returns the bound of results that the device approximates: so many ulps of fp32 of their size or
/// of `magnitude`. A device that does not approximate must have the same bits.
inline bound approximated(double ulps, double magnitude = 0) {
  if (!approximates()) return same_bits;
  return {.roundings = 1, .steps = 2 * ulps, .magnitude = magnitude};
}

/// Checks that make(place), a body over these arrays, has the same results on the device as on the
/// CPU. If the sizes are timed, measures it instead: the bytes that have to move, by the time of a
/// call.
template <class Make> void run(report& r, const char* body, const char* type, const sizes& m,
                               const arrays& a, std::int64_t rows, Make make) {
  r.check(std::string(body) + " " + type + " " + m.name, [&]() -> figures {
    std::vector<std::byte> block(static_cast<std::size_t>(a.bytes()));
    a.prepare(block.data());
    const int copies = m.timed ? copies_beyond_cache(a.moved()) : 1;
    const device_block device(copies * a.bytes());
    for (int k = 0; k < copies; ++k)
      memory().write(device.data() + k * a.bytes(), block.data(), a.bytes());
    const auto at = [&](int k) { return make(place{device.data() + k * a.bytes()}); };
    if (m.timed) {
      const double ms = milliseconds([&](int k) { launch(rows, at(k)); }, copies);
      const double rate = static_cast<double>(a.moved()) / ms / 1e9;
      return {{"ms", ms}, {"TB/s", rate}, {"of_copy", rate / r.fact("copy_TB/s")}};
    }
    launch(rows, at(0));
    finish();
    const mc::cores cores;
    mc::for_rows(cores, rows, make(place{block.data()}));
    std::vector<std::byte> seen(block.size());
    memory().read(seen.data(), device.data(), a.bytes());
    if (const std::string fault = a.compare(seen.data(), block.data()); !fault.empty())
      throw mc::error(mc::exit_code::internal, fault);
    return {};
  });
}

} // namespace gpu
