// mc::cuda over the stand-in: the contract of memory, lanes and events (exec/device.hpp), and what a
// machine lacks, in one sentence.
#define BOOST_TEST_MODULE cuda_device
#include <boost/test/unit_test.hpp>

#include <cuda/stand_in.hpp>

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/cuda/side_by_side.hpp>
#include <megacpp/exec/launch.hpp>
#include <megacpp/graph/operand.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace {

/// For devices that compute no product.
mc::cuda_libraries none(mc::cuda&) { return {}; }

/// A device of a stand-in that begins with it.
struct opened {
  explicit opened(const stand_in::machine& m = {}) { stand_in::begin(m); }
};
struct opened_device : opened, mc::cuda {
  explicit opened_device(const stand_in::machine& m = {}) : opened(m), cuda(0, 1, none) {}
};

std::vector<std::int32_t> counted(std::size_t n, std::int32_t from = 0) {
  std::vector<std::int32_t> x(n);
  std::iota(x.begin(), x.end(), from);
  return x;
}
template <class T> std::int64_t bytes_of(const std::vector<T>& x) {
  return static_cast<std::int64_t>(x.size() * sizeof(T));
}
std::vector<std::int32_t> read(const mc::device& from, const std::byte* p, std::size_t n) {
  std::vector<std::int32_t> x(n);
  from.read(x.data(), p, bytes_of(x));
  return x;
}

/// The sentence of the error that f throws, with its code.
template <class F> std::string error_of(mc::exit_code code, F f) {
  try {
    f();
  } catch (const mc::error& e) {
    BOOST_TEST(static_cast<int>(e.code()) == static_cast<int>(code));
    return e.what();
  }
  BOOST_ERROR("nothing was thrown");
  return "";
}
void is_in(const std::string& part, const std::string& all) {
  BOOST_TEST(all.find(part) != std::string::npos, part << " is not in: " << all);
}

constexpr std::int64_t branch_room = 1 << 20;
/// A device whose main lane has room for products.
struct branching_device : opened_device {
  explicit branching_device(const stand_in::machine& m = {}) : opened_device(m) {
    lane().reserve({.workspace = branch_room});
  }
  mc::cuda_lane& lane() { return static_cast<mc::cuda_lane&>(main_lane()); }
  /// Products run on the lane's own stream, in the whole workspace.
  void is_in_order() {
    const auto at = lane().for_product();
    BOOST_TEST(at.on == lane().stream());
    BOOST_TEST(at.workspace == lane().workspace());
    BOOST_TEST(at.bytes == branch_room);
  }
};

struct named_op {
  const char* name;
};
struct named_line {
  int number;
  const char* file_name() const { return "model.hpp"; }
};
/// As the graph's nodes are for a launch.
struct named_node {
  const named_op* op;
  named_line line;
};

} // namespace

BOOST_AUTO_TEST_CASE(reserved_memory_is_zero_and_given_back) {
  opened_device d;
  {
    const mc::arena a(d, 4096, "a test", "nothing");
    BOOST_TEST(read(d, a.data(), 1024) == std::vector<std::int32_t>(1024),
               boost::test_tools::per_element());
    BOOST_TEST(stand_in::count().reserved == 4096);
  }
  BOOST_TEST(stand_in::count().reserved == 0);
}

// Sizes below, at and beyond what the staging takes at once, in turn, so that it goes round.
BOOST_AUTO_TEST_CASE(what_is_written_may_change_at_once) {
  opened_device d;
  const std::size_t largest = std::size_t{5} << 20; // numbers: 20 MiB
  const mc::arena a(d, static_cast<std::int64_t>(largest) * 4, "a test", "nothing");
  for (const std::size_t n : {std::size_t{1}, std::size_t{1000}, std::size_t{1} << 20, largest,
                              std::size_t{3} << 19, std::size_t{7}, std::size_t{1} << 20}) {
    std::vector<std::int32_t> x = counted(n, static_cast<std::int32_t>(n));
    d.write(a.data(), x.data(), bytes_of(x));
    std::fill(x.begin(), x.end(), -1);
    BOOST_TEST((read(d, a.data(), n) == counted(n, static_cast<std::int32_t>(n))));
  }
}

// CUDA reads and writes pinned memory when it comes to it.
BOOST_AUTO_TEST_CASE(memory_of_the_host_may_be_pinned) {
  opened_device d;
  const mc::arena a(d, 64, "a test", "nothing"), pinned(d.mirrored(), 64, "a test", "nothing");
  auto* const x = reinterpret_cast<std::int32_t*>(pinned.data());
  x[5] = 1;
  d.write(a.data(), x, 64);
  x[5] = 2;
  d.read(x, a.data(), 64);
  BOOST_TEST(x[5] == 1);
}

BOOST_AUTO_TEST_CASE(small_writes_do_not_wait_for_the_device) {
  opened_device d;
  const mc::arena a(d, 1 << 16, "a test", "nothing");
  const std::vector<std::int32_t> x = counted(16);
  d.main_lane().finish();
  const std::int64_t before = stand_in::count().waits;
  for (std::int64_t i = 0; i < 1000; ++i) d.write(a.data() + i * 64, x.data(), 64);
  BOOST_TEST(stand_in::count().waits == before);
  BOOST_TEST(read(d, a.data() + 999 * 64, 16) == x, boost::test_tools::per_element());
}

BOOST_AUTO_TEST_CASE(fills_and_writes_are_done_in_order) {
  opened_device d;
  const mc::arena a(d, 64, "a test", "nothing");
  const std::vector<std::int32_t> x = counted(16, 1);
  d.write(a.data(), x.data(), 64);
  d.fill(a.data() + 4, 0, 8);
  d.write(a.data() + 8, x.data(), 4);
  std::vector<std::int32_t> expected = x;
  expected[1] = 0, expected[2] = 1;
  BOOST_TEST(read(d, a.data(), 16) == expected, boost::test_tools::per_element());
  d.fill(a.data(), 0, 0); // nothing is nothing
  d.write(a.data(), x.data(), 0);
}

BOOST_AUTO_TEST_CASE(a_view_that_changes_is_put_back) {
  opened_device d;
  const mc::arena a(d, 64, "a test", "nothing");
  BOOST_TEST(!d.host_sees());
  for (const bool changing : {false, true}) {
    const mc::host_accessor seen(d, a.data(), 64, changing);
    reinterpret_cast<std::int32_t*>(seen.data())[3] = 5;
  }
  BOOST_TEST(read(d, a.data(), 16)[3] == 5);
}

BOOST_AUTO_TEST_CASE(a_mirror_is_there_behind_its_event) {
  opened_device d;
  const mc::arena a(d, 64, "a test", "nothing"), there(d.mirrored(), 64, "a mirror", "nothing");
  const auto seen = [&] { return reinterpret_cast<const std::int32_t*>(there.data())[15]; };
  const auto e = d.make_event();
  e->wait(); // nobody has recorded it
  BOOST_TEST(e->reached() == 0);
  const std::vector<std::int32_t> x = counted(16);
  d.write(a.data(), x.data(), 64);
  d.main_lane().mirror(there.data(), a.data(), 64);
  d.main_lane().record(*e);
  BOOST_TEST(seen() == 0);
  e->wait();
  BOOST_TEST(seen() == 15);
}

// Lanes are ordered by events alone; without the wait some order of theirs is found to be wrong.
BOOST_AUTO_TEST_CASE(lanes_are_ordered_by_events) {
  int wrong[2] = {};
  for (const bool waits : {false, true})
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      opened_device d({.seed = seed});
      const mc::arena a(d, 8, "a test", "nothing");
      const auto other = d.make_lane();
      const auto e = d.make_event();
      const std::vector<std::int32_t> x = counted(2, 1);
      d.main_lane().finish();
      d.main_lane().write(a.data(), x.data(), 4);
      d.main_lane().record(*e);
      if (waits) other->wait(*e);
      other->copy(a.data() + 4, a.data(), 4);
      other->finish();
      wrong[waits] += read(d, a.data() + 4, 1)[0] != 1;
    }
  BOOST_TEST(wrong[false] > 0);
  BOOST_TEST(wrong[true] == 0);
}

// Each branch has a stream and a part of the workspace of its own; a fifth is the first again.
BOOST_AUTO_TEST_CASE(branches_share_nothing) {
  branching_device d;
  mc::cuda_lane& lane = d.lane();
  const cudaStream_t own = lane.stream();
  constexpr int most = mc::cuda_lane::most_branches;
  d.is_in_order();
  for (int again = 0; again < 2; ++again) {
    {
      mc::side_by_side together(lane);
      std::set<cudaStream_t> streams{own};
      std::vector<mc::cuda_lane::product_place> places;
      for (int k = 0; k < most; ++k) {
        together.next();
        places.push_back(lane.for_product());
        streams.insert(places.back().on);
        BOOST_TEST(lane.for_product().on == places.back().on);
      }
      BOOST_TEST(std::ssize(streams) == most + 1);
      std::sort(places.begin(), places.end(),
                [](const auto& a, const auto& b) { return a.workspace < b.workspace; });
      const std::byte* end = lane.workspace();
      for (const auto& p : places) {
        BOOST_TEST((p.workspace >= end && p.bytes == branch_room / most));
        end = p.workspace + p.bytes;
      }
      BOOST_TEST((end <= lane.workspace() + branch_room));
      const auto last = lane.for_product();
      together.next();
      const auto first = lane.for_product();
      BOOST_TEST(first.on != last.on);
      BOOST_TEST(first.workspace == lane.workspace());
      BOOST_TEST(streams.contains(first.on));
    }
    d.is_in_order();
  }
  BOOST_TEST(stand_in::count().streams == 1 + most);
  const auto leave_in_the_middle = [&] {
    mc::side_by_side together(lane);
    together.next();
    throw mc::error(mc::exit_code::internal, "a test");
  };
  BOOST_CHECK_THROW(leave_in_the_middle(), mc::error);
  d.is_in_order();
}

// Branches wait for what was started before, and what is started later waits for them: without that
// some order of theirs is found to be wrong.
BOOST_AUTO_TEST_CASE(branches_are_done_between_what_is_before_and_behind) {
  constexpr int products = 6;
  for (const bool leaves : {false, true})
    for (std::uint64_t seed = 1; seed <= 30; ++seed) {
      branching_device d({.seed = seed});
      mc::cuda_lane& lane = d.lane();
      const mc::arena a(d, 4, "a test", "nothing"), b(d, products * 4, "a test", "nothing"),
          c(d, products * 4, "a test", "nothing");
      const std::int32_t one = 1;
      lane.write(a.data(), &one, 4);
      try {
        mc::side_by_side together(lane);
        for (int k = 0; k < products; ++k) {
          together.next();
          BOOST_TEST_REQUIRE(cudaMemcpyAsync(b.data() + 4 * k, a.data(), 4,
                                             cudaMemcpyDeviceToDevice,
                                             lane.for_product().on) == cudaSuccess);
        }
        if (leaves) throw mc::error(mc::exit_code::internal, "a test");
      } catch (const mc::error&) {
      }
      lane.copy(c.data(), b.data(), products * 4);
      BOOST_TEST(read(d, c.data(), products) == std::vector<std::int32_t>(products, 1),
                 boost::test_tools::per_element());
    }
}

BOOST_AUTO_TEST_CASE(a_lane_with_branches_takes_products_alone) {
  branching_device d;
  mc::cuda_lane& lane = d.lane();
  const mc::arena a(d, 4096, "a test", "nothing"), pinned(d.mirrored(), 64, "a test", "nothing");
  const auto e = d.make_event();
  std::array<float, 16> x{};
  auto* const at = reinterpret_cast<float*>(a.data());
  const auto refuses = [&](const char* what, const std::function<void()>& f) {
    BOOST_TEST_CONTEXT(what) {
      const std::int64_t before = stand_in::count().started;
      is_in("on a lane whose branches it would not wait for: end side_by_side before it",
            error_of(mc::exit_code::internal, f));
      BOOST_TEST(stand_in::count().started == before);
    }
  };
  const std::int64_t reserved = stand_in::count().reserved;
  for (const bool one : {false, true}) {
    mc::side_by_side together(lane);
    if (one) together.next();
    refuses("fill", [&] { lane.fill(a.data(), 0, 64); });
    refuses("write", [&] { lane.write(a.data(), x.data(), 64); });
    refuses("mirror", [&] { lane.mirror(pinned.data(), a.data(), 64); });
    refuses("copy", [&] { lane.copy(a.data(), a.data() + 64, 64); });
    refuses("reduce", [&] {
      const void* const parts[] = {a.data(), a.data() + 64};
      lane.reduce(mc::reduction::sum, mc::dtype::f32, parts, a.data(), 16);
    });
    refuses("record", [&] { lane.record(*e); });
    refuses("wait", [&] { lane.wait(*e); });
    refuses("finish", [&] { lane.finish(); });
    refuses("reserve", [&] { lane.reserve({}); });
    refuses("for_rows", [&] {
      mc::for_blocks(lane, 16, mc::rows::add_block<float>{16, at, at + 16, at + 32});
    });
    refuses("sort",
            [&] { lane.sort(reinterpret_cast<std::uint64_t*>(a.data()), 8, 0, 3, a.data() + 64); });
    refuses("branch_out", [&] { const mc::side_by_side within(lane); });
    refuses("stream", [&] { (void)lane.stream(); });
    refuses("the device's reserve", [&] { const mc::arena b(d, 64, "a test", "nothing"); });
    refuses("the device's read", [&] { d.read(x.data(), a.data(), 64); });
    if (!one)
      is_in("a product was started before the first branch of its lane: call next_branch()",
            error_of(mc::exit_code::internal, [&] { (void)lane.for_product(); }));
    BOOST_TEST(lane.branched());
  }
  BOOST_TEST(stand_in::count().reserved == reserved);
  d.is_in_order();
  is_in("a branch was asked for of a lane that has none: call branch_out()",
        error_of(mc::exit_code::internal, [&] { lane.next_branch(); }));
}

// What a library has to do in order between products that run side by side.
BOOST_AUTO_TEST_CASE(a_lane_with_branches_comes_back_in_order) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    branching_device d({.seed = seed});
    mc::cuda_lane& lane = d.lane();
    const mc::arena a(d, 16, "a test", "nothing");
    const auto copy = [&](int to, int from) {
      BOOST_TEST_REQUIRE(cudaMemcpyAsync(a.data() + 4 * to, a.data() + 4 * from, 4,
                                         cudaMemcpyDeviceToDevice,
                                         lane.for_product().on) == cudaSuccess);
    };
    const std::int32_t one = 1;
    lane.write(a.data(), &one, 4);
    {
      mc::side_by_side together(lane);
      together.next(), together.next();
      copy(1, 0);
      {
        const mc::back_in_order meanwhile(lane);
        d.is_in_order();
        lane.copy(a.data() + 8, a.data() + 4, 4);
      }
      BOOST_TEST(lane.branched());
      copy(3, 2);
    }
    BOOST_TEST(read(d, a.data(), 4) == std::vector<std::int32_t>(4, 1),
               boost::test_tools::per_element());
    const mc::back_in_order nothing_to_do(lane);
    d.is_in_order();
  }
}

// All branches are there, or none.
BOOST_AUTO_TEST_CASE(branches_that_cannot_be_made_leave_a_lane_as_it_was) {
  branching_device d;
  const auto before = stand_in::count();
  for (const char* const call : {"cudaStreamCreateWithFlags", "cudaEventCreateWithFlags"})
    for (int after = 0; after < mc::cuda_lane::most_branches; ++after) {
      stand_in::fail(call, cudaErrorMemoryAllocation, after);
      is_in(call, error_of(mc::exit_code::internal, [&] { const mc::side_by_side all(d.lane()); }));
      d.is_in_order();
      BOOST_TEST(stand_in::count().streams == before.streams);
      BOOST_TEST(stand_in::count().events == before.events);
    }
  (void)cudaGetLastError();
  mc::side_by_side together(d.lane());
  for (int k = 0; k < mc::cuda_lane::most_branches; ++k) {
    together.next();
    BOOST_TEST(d.lane().for_product().on != nullptr);
  }
}

BOOST_AUTO_TEST_CASE(a_moment_that_orders_work_tells_no_time) {
  branching_device d;
  for (const mc::moment_use what : {mc::moment_use::order, mc::moment_use::time}) {
    const mc::cuda_moment first(what), second(what);
    first.record(d.lane().stream()), second.record(d.lane().stream());
    second.wait();
    if (what == mc::moment_use::time) BOOST_TEST(second.since(first) >= 0);
    else
      is_in("cudaEventElapsedTime",
            error_of(mc::exit_code::internal, [&] { (void)second.since(first); }));
  }
}

BOOST_AUTO_TEST_CASE(times_are_those_of_the_device_in_the_hosts_clock) {
  opened_device d;
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  const auto first = d.make_event(), second = d.make_event();
  const std::int64_t before = mc::monotonic_nanoseconds(), unsure = 50'000'000;
  std::int64_t spent = 0; // by the device's clock alone
  const auto told = [&](std::int64_t by_work) {
    // CUDA's milliseconds are a float: within a second after the moment from which they count they
    // are off by less than 100 ns.
    const std::int64_t begin = mc::monotonic_nanoseconds(), rounding = 100 + (by_work >> 22);
    lane.record(*first);
    stand_in::start(lane.stream(), "work", [=] { stand_in::spend(by_work); });
    lane.record(*second);
    const std::int64_t one = first->reached(), two = second->reached(),
                       after = mc::monotonic_nanoseconds();
    BOOST_TEST(one >= before + spent - unsure);
    spent += by_work;
    BOOST_TEST(two <= after + spent + unsure);
    BOOST_TEST(two - one >= by_work - rounding);
    BOOST_TEST(two - one <= by_work + (after - begin) + rounding);
  };
  told(300'123'456);
  told(10'000'000'000'000);
  told(300'000); // hours later a float of all milliseconds would have no part of one
}

BOOST_AUTO_TEST_CASE(a_table_is_made_once) {
  opened_device d;
  int made = 0;
  const auto table = [&](double number) {
    return d.table(mc::of_type<float>, {number}, 100, [&](float* x) {
      ++made;
      for (int i = 0; i < 100; ++i) x[i] = static_cast<float>(i * number);
    });
  };
  const float* const t = table(2);
  BOOST_TEST(table(2) == t);
  BOOST_TEST(table(3) != t);
  BOOST_TEST(made == 2);
  BOOST_TEST(d.table_bytes() == 800);
  std::vector<float> seen(100);
  d.read(seen.data(), reinterpret_cast<const std::byte*>(t), 400);
  BOOST_TEST(seen[99] == 198);
}

BOOST_AUTO_TEST_CASE(a_body_runs_when_its_lane_comes_to_it) {
  opened_device d;
  const std::int64_t n = 10000;
  const mc::arena a(d, n * 4, "a test", "nothing"), b(d, n * 4, "a test", "nothing"),
      c(d, n * 4, "a test", "nothing");
  std::vector<float> x(n), y(n), sum(n), expected(n);
  for (std::size_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(i), y[i] = 1 / (1 + x[i]), expected[i] = x[i] + y[i];
  d.write(a.data(), x.data(), n * 4), d.write(b.data(), y.data(), n * 4);
  const auto at = [](const mc::arena& m) { return reinterpret_cast<float*>(m.data()); };
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  mc::for_blocks(lane, n, mc::rows::add_block<float>{n, at(a), at(b), at(c)});
  mc::for_blocks(lane, 0, mc::rows::add_block<float>{0, at(a), at(b), at(c)});
  d.fill(a.data(), 0, n * 4); // behind it
  d.read(sum.data(), c.data(), n * 4);
  BOOST_TEST((sum == expected));
}

// A lane that sums by parts starts a body for each part of each slab, in just so much scratch as it
// says, and has the bits of a core: of more columns than a slab has at most, and of two sequences.
BOOST_AUTO_TEST_CASE(sums_over_rows_have_the_bits_of_a_core) {
  opened_device on;
  const mc::rows::summed_rows rows(260, 130);
  const std::int64_t width = 1100, n = rows.count * width;
  std::vector<float> dy(static_cast<std::size_t>(n)), start(static_cast<std::size_t>(width));
  std::uint64_t state = 7;
  const auto draw = [&] {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<float>(static_cast<std::int64_t>(state) >> 20) * 0x1p-40f;
  };
  std::generate(dy.begin(), dy.end(), draw), std::generate(start.begin(), start.end(), draw);
  std::vector<float> want = start, got = start;
  const mc::cores host;
  mc::rows::bias_gradient(host, rows, width, dy.data(), want.data());
  const auto bytes = [](const std::vector<float>& x) { return std::ssize(x) * 4; };
  const std::int64_t room = mc::rows::bytes_of_partials<mc::cuda_lane, float>(rows, width);
  BOOST_TEST(room == 6 * width * 4);
  const mc::arena x(on, bytes(dy), "a test", "none"), grad(on, bytes(start), "a test", "none"),
      sums(on, room, "a test", "none");
  on.write(x.data(), dy.data(), bytes(dy)), on.write(grad.data(), start.data(), bytes(start));
  auto& lane = static_cast<mc::cuda_lane&>(on.main_lane());
  const std::int64_t before = stand_in::count().started;
  mc::rows::bias_gradient(lane, rows, width, reinterpret_cast<const float*>(x.data()),
                          reinterpret_cast<float*>(grad.data()), sums.data());
  BOOST_TEST(stand_in::count().started == before + 2);
  on.read(got.data(), grad.data(), bytes(got));
  BOOST_TEST((got == want));
}

// Who asks for a number gets it; else the processes of a machine take its devices in turn.
BOOST_AUTO_TEST_CASE(devices_are_taken_in_turn) {
  const opened machine({.devices = 3});
  const auto taken = [](int number, int place) {
    const mc::cuda_choice c = mc::cuda::choice(number, place);
    return std::pair(c.ordinal, c.spread_over);
  };
  BOOST_TEST((taken(-1, 0) == std::pair(0, 3)));
  BOOST_TEST((taken(-1, 2) == std::pair(2, 3)));
  BOOST_TEST((taken(-1, 7) == std::pair(1, 3)));
  BOOST_TEST((taken(2, 0) == std::pair(2, 1)));
  is_in("there is no device 3: 3 are visible, numbers 0 to 2",
        error_of(mc::exit_code::usage, [&] { (void)taken(3, 0); }));
  const mc::cuda second(1, 1, none);
  BOOST_TEST(second.name() == "device 1 (stand-in)");
}

BOOST_AUTO_TEST_CASE(what_a_machine_lacks_is_one_sentence) {
  const auto make = [](int ordinal = 0) { return [=] { const mc::cuda d(ordinal, 1, none); }; };
  stand_in::begin({.devices = 0});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  is_in(
      "CUDA finds no device to run on (no CUDA-capable device is detected); give a machine with a "
      "GPU and its driver, or build the program with device=cpu",
      error_of(mc::exit_code::machine, make()));
  for (const char* const hidden : {"", "7"}) {
    ::setenv("CUDA_VISIBLE_DEVICES", hidden, 1);
    is_in(
        "CUDA finds no device to run on (no CUDA-capable device is detected), and "
        "CUDA_VISIBLE_DEVICES is \"" +
            std::string(hidden) +
            "\", which hides those that it does not name: unset it, or name a device that "
            "`nvidia-smi -L` lists",
        error_of(mc::exit_code::machine, make()));
  }
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  stand_in::begin({.devices = 2});
  make()(); // the thread chooses anew
  stand_in::fail("cudaSetDevice", cudaErrorDevicesUnavailable);
  is_in(
      "device 1 is not available (cudaErrorDevicesUnavailable), as where one process alone may "
      "compute on it, and another one does: end that one, choose another device by --device, or "
      "let its administrator set the compute mode to Default",
      error_of(mc::exit_code::machine, make(1)));
  stand_in::begin({});
  stand_in::fail("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  is_in("the driver of the GPU is missing, or older than CUDA ",
        error_of(mc::exit_code::machine, make()));
  stand_in::begin({});
  is_in("there is no device 1: one is visible, number 0 (CUDA_VISIBLE_DEVICES chooses them)",
        error_of(mc::exit_code::usage, make(1)));
  stand_in::begin({.devices = 4});
  is_in("there is no device -1: 4 are visible, numbers 0 to 3",
        error_of(mc::exit_code::usage, make(-1)));
}

BOOST_AUTO_TEST_CASE(each_device_chooses_itself) {
  stand_in::begin({.devices = 2});
  mc::cuda a(0, 1, none), b(1, 1, none);
  BOOST_TEST(stand_in::current_device() == 1);
  const auto e = a.make_event();
  BOOST_TEST(stand_in::current_device() == 0);
  const mc::arena of_b(b, 64, "a test", "nothing");
  BOOST_TEST(stand_in::current_device() == 1);
  const auto other = a.make_lane();
  BOOST_TEST(stand_in::current_device() == 0);
  // What is written waits for events of the device that it is written to.
  const mc::arena of_a(a, 64, "a test", "nothing"), again(b, 64, "a test", "nothing");
  const std::vector<std::int32_t> x = counted(16);
  for (int i = 0; i < 3; ++i) {
    b.write(of_b.data(), x.data(), 64);
    a.write(of_a.data(), x.data(), 64);
    BOOST_TEST(read(a, of_a.data(), 16) == x, boost::test_tools::per_element());
  }
  b.make_current();
  BOOST_TEST(a.room()->of == "device 0");
  BOOST_TEST(stand_in::current_device() == 0);
}

BOOST_AUTO_TEST_CASE(memory_that_is_not_there_is_one_sentence) {
  opened_device d({.bytes = std::size_t{64} << 20});
  const std::string said = error_of(mc::exit_code::memory, [&] {
    const mc::arena a(d, std::int64_t{100} << 20, "weights", "a smaller model");
  });
  is_in(
      "cannot reserve 100 MiB of device 0 for weights, which has 64 MiB left: use a smaller model "
      "or a device with more memory",
      said);
  BOOST_TEST(cudaGetLastError() == cudaSuccess); // the error is told once
  const mc::arena a(d, 1 << 20, "weights", "a smaller model");
  stand_in::fail("cudaHostAlloc", cudaErrorMemoryAllocation);
  is_in("cannot pin 1 MiB of the host for mirrors: use nothing or a machine with more memory",
        error_of(mc::exit_code::memory,
                 [&] { const mc::arena b(d.mirrored(), 64, "mirrors", "nothing"); }));
}

// Numbers whose lower bits are in order, in all that is reserved beside them and no more.
BOOST_AUTO_TEST_CASE(a_lane_sorts_by_the_bits_that_it_is_told) {
  opened_device d;
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  constexpr int lower = 10, upper = 5;
  std::vector<std::uint64_t> numbers;
  for (std::uint64_t i = 0; i < 1000; ++i) numbers.push_back(i * 2654435761u % 32 << lower | i);
  const std::int64_t bytes = bytes_of(numbers), n = std::ssize(numbers);
  const mc::arena a(d, bytes, "a test", "nothing"),
      room(d, mc::cuda::sort_bytes(n), "a test", "nothing");
  d.write(a.data(), numbers.data(), bytes);
  lane.sort(reinterpret_cast<std::uint64_t*>(a.data()), n, lower, upper, room.data());
  std::vector<std::uint64_t> sorted(numbers.size());
  d.read(sorted.data(), a.data(), bytes);
  std::sort(numbers.begin(), numbers.end());
  BOOST_TEST((sorted == numbers));
  stand_in::fail("sort_on_cuda", cudaErrorMemoryAllocation);
  is_in("this version of CUB sorts 1000 numbers in " + std::to_string(mc::cuda::sort_bytes(n) + 1) +
            " bytes, and " + std::to_string(mc::cuda::sort_bytes(n)) + " are planned",
        error_of(mc::exit_code::memory, [&] {
          lane.sort(reinterpret_cast<std::uint64_t*>(a.data()), n, lower, upper, room.data());
        }));
}

namespace {

/// Two arrays of numbers, the first of which grows by the second.
struct sums {
  static constexpr std::int64_t n = 5000;
  mc::arena a, b;
  explicit sums(mc::cuda& d) : a(d, n * 4, "a test", "nothing"), b(d, n * 4, "a test", "nothing") {
    d.write(b.data(), std::vector<float>(n, 1).data(), n * 4);
  }
  static float* at(const mc::arena& m) { return reinterpret_cast<float*>(m.data()); }
  void grow(mc::cuda_lane& lane) const {
    mc::for_blocks(lane, n, mc::rows::add_block<float>{n, at(a), at(b), at(a)});
  }
  std::vector<float> read(const mc::cuda& d) const {
    std::vector<float> x(n);
    d.read(x.data(), a.data(), n * 4);
    return x;
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(kept_work_is_started_without_its_function) {
  opened_device d;
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  const sums x(d);
  int asked = 0;
  {
    std::unique_ptr<mc::lane::kept_work> work;
    for (int i = 0; i < 5; ++i) lane.start_kept(work, [&] { ++asked, x.grow(lane), x.grow(lane); });
    BOOST_TEST((x.read(d) == std::vector<float>(sums::n, 10)));
    BOOST_TEST(asked == 2); // by itself, and for the graph
    BOOST_TEST(lane.graphs_started() == 4);
  }
  BOOST_TEST(stand_in::count().graphs == 0);
}

// What a graph would repeat wrongly, or cannot do, is started by its function each time.
BOOST_AUTO_TEST_CASE(work_that_no_graph_can_have_is_started_by_its_function) {
  opened_device d;
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  const sums x(d);
  const float one = 1;
  const auto event = d.make_event();
  std::unique_ptr<mc::arena> more;
  const std::function<void()> all[] = {
      [&] { lane.write(x.b.data(), &one, 4); }, [&] { lane.record(*event); },
      [&] { lane.wait(*event); }, [&] { lane.finish(); },
      [&] { more = std::make_unique<mc::arena>(d, 64, "a test", "nothing"); }};
  for (const auto& cannot : all) {
    std::unique_ptr<mc::lane::kept_work> work;
    d.fill(x.a.data(), 0, sums::n * 4);
    int asked = 0;
    for (int i = 0; i < 3; ++i) lane.start_kept(work, [&] { ++asked, x.grow(lane), cannot(); });
    BOOST_TEST(asked == 4); // by itself, in vain for a graph, and by itself again
    BOOST_TEST((x.read(d) == std::vector<float>(sums::n, 3)));
  }
  BOOST_TEST(lane.graphs_started() == 0);
}

// Of too many nodes, or where CUDA has no room for a graph: nothing of that is left for later calls.
BOOST_AUTO_TEST_CASE(work_of_which_no_graph_is_made_goes_on) {
  opened_device d;
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  const sums x(d);
  for (const char* call : {"cudaStreamBeginCapture", "cudaGraphGetNodes", "cudaGraphInstantiate",
                           "cudaGraphUpload", ""}) {
    std::unique_ptr<mc::lane::kept_work> work;
    d.fill(x.a.data(), 0, sums::n * 4);
    int asked = 0;
    for (int i = 0; i < 3; ++i) {
      if (i == 1 && *call != 0) stand_in::fail(call, cudaErrorMemoryAllocation);
      lane.start_kept(work, [&] {
        ++asked, x.grow(lane);
        for (int more = 0; more < 17000 && *call == 0; ++more)
          lane.copy(x.b.data(), x.b.data() + 8, 4);
      });
      BOOST_TEST(cudaGetLastError() == cudaSuccess);
    }
    BOOST_TEST((x.read(d) == std::vector<float>(sums::n, 3)), call);
    BOOST_TEST(asked == (std::string(call) == "cudaStreamBeginCapture" ? 3 : 4));
  }
  BOOST_TEST(lane.graphs_started() == 0);
  BOOST_TEST(stand_in::count().graphs == 0);
}

BOOST_AUTO_TEST_CASE(a_device_may_keep_no_work) {
  opened_device d;
  d.keep_work(false);
  BOOST_TEST(!d.main_lane().keeps_work());
}

BOOST_AUTO_TEST_CASE(a_device_that_is_lost_in_a_graph_is_named) {
  opened_device d;
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  const sums x(d);
  std::unique_ptr<mc::lane::kept_work> work;
  for (int i = 0; i < 2; ++i) lane.start_kept(work, [&] { x.grow(lane); });
  lane.finish();
  stand_in::lose_device(0);
  lane.start_kept(work, [] { BOOST_ERROR("the function was asked again"); });
  is_in(
      "cudaStreamSynchronize behind a graph of kernels, which --no-cuda-graphs starts one by one: "
      "cudaErrorLaunchFailure",
      error_of(mc::exit_code::internal, [&] { lane.finish(); }));
}

BOOST_AUTO_TEST_CASE(a_device_that_is_lost_is_named_with_the_node_before) {
  opened_device d;
  const mc::arena a(d, 64, "a test", "nothing");
  auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
  lane.finish();
  const named_op op{"rms_norm"};
  const named_node n{&op, {17}};
  stand_in::lose_device(0);
  lane.launch(n, [&] { lane.fill(a.data(), 0, 64); });
  is_in(
      "cudaStreamSynchronize behind the kernel of rms_norm at model.hpp:17: "
      "cudaErrorLaunchFailure, "
      "unspecified launch failure",
      error_of(mc::exit_code::internal, [&] { lane.finish(); }));
}

// Kernels go wrong long after they were launched: the node that was launched last is named, unless a
// launch waits for its kernel.
BOOST_AUTO_TEST_CASE(a_launch_that_waits_names_the_node_that_went_wrong) {
  for (const bool blocking : {false, true}) {
    opened_device d({.blocking = blocking});
    auto& lane = static_cast<mc::cuda_lane&>(d.main_lane());
    const sums x(d);
    lane.finish();
    const named_op op{"rms_norm"};
    const named_node all[] = {{&op, {17}}, {&op, {18}}, {&op, {19}}};
    stand_in::lose_device(1); // in the second one
    is_in(blocking ? "the launch of a kernel behind the kernel of rms_norm at model.hpp:18: "
                   : "cudaStreamSynchronize behind the kernel of rms_norm at model.hpp:19: ",
          error_of(mc::exit_code::internal, [&] {
            for (const named_node& n : all) lane.launch(n, [&] { x.grow(lane); });
            lane.finish();
          }));
  }
}
