// The checks of bench/gpu/rows_*.cpp, with blocks that are emulated on the CPU in the place of the
// CUDA device. An emulated block adds as a CUDA block does, so that what passes here is within its
// bounds there; where a check could not see a wrong result, it fails here.
#define BOOST_TEST_MODULE emulated_gpu
#include <boost/test/unit_test.hpp>

#include <emulated_team.hpp>

#include "../../bench/gpu/rows.hpp"

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/kernel/rows/bodies.hpp>

#include <map>
#include <string>

namespace {

bool last_row_is_missing = false; // a fault that is seeded
std::string found;                // by a block: threads that wait at different barriers

} // namespace

namespace gpu {

mc::memory_space& memory() { return mc::host_memory::of_process(); }
std::int64_t cache_bytes() { return 0; }
double milliseconds(const std::function<void(int)>&, int) { return 0; }

bool approximates() { return false; }
void require_launch(int) {}
void finish() {
  const std::string sentence = std::exchange(found, "");
  if (!sentence.empty()) throw mc::error(mc::exit_code::internal, sentence);
}

} // namespace gpu

template <class Body> int mc::launch_on_cuda(CUstream_st*, std::int64_t rows, const Body& body) {
  static std::map<int, test::emulated_block> blocks;
  const auto [threads, held] = mc::team_for(body);
  test::emulated_block& block = blocks.try_emplace(threads, threads).first->second;
  block.aligned = test::says_aligned(body);
  block.held = held > 0 ? test::bytes_to_keep(body, threads) : 0;
  const test::turns order{test::turns::random, static_cast<std::uint64_t>(rows)};
  const std::int64_t all = last_row_is_missing ? rows - 1 : rows;
  for (std::int64_t row = 0; row < all && found.empty(); ++row)
    found = block.run([&](const test::emulated_team& team) { body(team, row); }, order);
  return 0;
}

#define MEGACPP_BODY(...) \
  template int mc::launch_on_cuda(CUstream_st*, std::int64_t, const __VA_ARGS__&);
#include <every_body.inc>

namespace {

void rows(gpu::report& r, std::span<const gpu::sizes> sizes) {
  r.part("rows", 1e6, [&] {
    gpu::norms(r, sizes), gpu::elements(r, sizes), gpu::optimizer(r, sizes);
    gpu::losses(r, sizes), gpu::experts(r, sizes), gpu::attention_by_rows(r, sizes);
  });
}

} // namespace

BOOST_AUTO_TEST_CASE(blocks_leave_what_a_core_leaves) {
  gpu::report r("", {}, [] {});
  rows(r, gpu::checked_sizes);
  BOOST_TEST(r.end() == 0);
  BOOST_TEST(r.passed() > 500);
}

BOOST_AUTO_TEST_CASE(a_missing_row_is_seen_by_every_check) {
  last_row_is_missing = true;
  for (const gpu::sizes& s : {gpu::checked_sizes[0], gpu::checked_sizes[1]}) {
    gpu::report r("", {}, [] {});
    rows(r, {&s, 1});
    BOOST_TEST(r.end() == 1);
    BOOST_TEST(r.passed() == 0);
  }
  last_row_is_missing = false;
}

// A part whose time is over begins nothing, and says so once.
BOOST_AUTO_TEST_CASE(parts_end_in_time) {
  gpu::report r("", {}, [] {});
  int begun = 0;
  r.part("no time", 0, [&] {
    for (int i = 0; i < 3; ++i)
      r.check("check", [&]() -> gpu::figures { return ++begun, gpu::figures{}; });
  });
  BOOST_TEST(begun == 0);
  BOOST_TEST(r.failed() == 1);
}

// After a check that fails and takes the device with it, nothing else begins.
BOOST_AUTO_TEST_CASE(a_lost_device_ends_the_checks) {
  gpu::report r("", {}, [] { throw mc::error(mc::exit_code::internal, "it is gone"); });
  int begun = 0;
  const auto fails = [&]() -> gpu::figures {
    ++begun;
    throw mc::error(mc::exit_code::internal, "a kernel failed");
  };
  for (const char* part : {"one", "two"}) {
    r.part(part, 1e6, [&] { r.check("a", fails), r.check("b", fails); });
  }
  BOOST_TEST(begun == 1);
  BOOST_TEST(r.end() == 1);
}
