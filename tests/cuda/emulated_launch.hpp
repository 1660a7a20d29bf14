// What nvcc's kernels are to a program on the stand-in: bodies run as emulated blocks when their
// stream comes to them, in the order of rows and of threads that chance chooses.
#pragma once

#include <cuda/blocks.hpp>
#include <cuda/stand_in.hpp>
#include <emulated_team.hpp>

#include <megacpp/exec/cuda/launch.hpp>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <typeinfo>
#include <vector>

namespace test {

/// f(team, row) for every row, by a team each, which keeps so many bytes of it in every other call.
inline void emulate(std::int64_t rows, const char* body, bool aligned, std::int64_t kept,
                    const std::function<void(const emulated_team&, std::int64_t)>& f) {
  thread_local std::map<int, emulated_block> of_threads;
  emulated_block& block = of_threads.try_emplace(blocks().threads, blocks().threads).first->second;
  block.aligned = aligned;
  // Rows in the order 0, k, 2 k, ... modulo their number.
  const std::uint64_t seed = blocks().seed++;
  block.held = seed % 2 == 0 ? kept : 0;
  std::int64_t step = static_cast<std::int64_t>(seed % static_cast<std::uint64_t>(rows)) | 1;
  while (std::gcd(step, rows) != 1) ++step;
  std::int64_t row = 0;
  for (std::int64_t i = 0; i < rows; ++i, row = (row + step) % rows) {
    const std::string wrong = block.run([&](const emulated_team& team) { f(team, row); },
                                        {turns::random, seed + static_cast<std::uint64_t>(i)});
    if (wrong.empty()) continue;
    std::fprintf(stderr, "emulated blocks: row %lld of %s: %s\n", static_cast<long long>(row), body,
                 wrong.c_str());
    std::abort();
  }
}

} // namespace test

template <class Body> int mc::launch_on_cuda(cudaStream_t on, std::int64_t rows, const Body& body) {
  stand_in::start(on, typeid(Body).name(), [rows, body] {
    test::emulate(rows, typeid(Body).name(), test::says_aligned(body),
                  test::bytes_to_keep(body, test::blocks().threads),
                  [&body](const test::emulated_team& team, std::int64_t row) { body(team, row); });
  });
  return cudaGetLastError(); // as nvcc's does
}
