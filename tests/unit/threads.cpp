// Threads that compute: every piece of a region once, however many threads there are and whatever
// else the machine does. And signals that come meanwhile: every kind of product and a training run
// under interval timers and stop requests give the bits of an undisturbed one.
#define BOOST_TEST_MODULE threads
#include <boost/test/unit_test.hpp>

#include <megacpp/io/signals.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <ctime>
#include <functional>
#include <limits>
#include <thread>
#include <vector>

#include <poll.h>
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

#include <busy_cores.hpp>
#include <kernels.hpp>
#include <scratch.hpp>

#include "child.hpp"

using namespace mc;

namespace {

std::atomic<long> delivered{0};
extern "C" void count_delivery(int) { ++delivered; }

/// While it lives, signals come from outside: SIGALRM and SIGPROF from timers, SIGUSR1, SIGINT and
/// SIGTERM from another thread, which sends them to the process and to the computing thread in turn.
class storm {
public:
  storm() : computing_(::pthread_self()) {
    struct sigaction action {};
    action.sa_handler = count_delivery; // for good: the last one may be on its way at the end
    action.sa_flags = SA_RESTART;
    for (const int number : numbers) ::sigaction(number, &action, nullptr);
    set_timers(300);
    sender_ = std::thread([this] {
      for (int i = 0; !end_; ++i) {
        const int number = numbers[i % 3];
        if (i / 3 % 2 == 0) ::kill(::getpid(), number);
        else ::pthread_kill(computing_, number);
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    });
  }
  storm(const storm&) = delete;
  storm& operator=(const storm&) = delete;
  ~storm() {
    end_ = true;
    sender_.join();
    set_timers(0);
  }

private:
  static constexpr int numbers[] = {SIGUSR1, SIGINT, SIGTERM, SIGALRM, SIGPROF};
  static void set_timers(int microseconds) {
    const itimerval every{{0, microseconds}, {0, microseconds}};
    ::setitimer(ITIMER_REAL, &every, nullptr);
    ::setitimer(ITIMER_PROF, &every, nullptr);
  }

  pthread_t computing_;
  std::atomic<bool> end_{false};
  std::thread sender_;
};

/// f(), again and again until so many signals were taken.
void until_delivered(long n, const std::function<void()>& f) {
  const storm signals;
  const long first = delivered;
  do f();
  while (delivered - first < n);
}

std::vector<std::byte> numbers(dtype t, std::int64_t n, std::uint64_t key) {
  std::vector<std::byte> bytes(static_cast<std::size_t>(n * size_of(t)));
  for (std::int64_t i = 0; i < n; ++i) {
    const double x =
        static_cast<double>((static_cast<std::uint64_t>(i) * 0x9e3779b97f4a7c15u + key) >> 40) *
            0x1p-23 -
        1;
    if (t == dtype::f64) reinterpret_cast<double*>(bytes.data())[i] = x;
    else if (t == dtype::f32) reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(x);
    else reinterpret_cast<bf16*>(bytes.data())[i] = bf16(static_cast<float>(x));
  }
  return bytes;
}

/// One product of a shape on operands of its own; parts of given rows if there are any.
class one_product {
public:
  one_product(product_source& source, const product_shape& s, std::vector<std::int32_t> rows)
      : made_(&source.prepare(s)), rows_(std::move(rows)) {
    lane_->reserve({.workspace = source.workspace_bytes()});
    std::int64_t m = s.M;
    if (!rows_.empty()) m *= std::ssize(rows_);
    const bool gradient = s.kind == product_kind::weight_gradient;
    const std::int64_t wide = std::max(s.N, s.K);
    a_ = numbers(s.a, m * wide, 1);
    b_ = numbers(s.b, gradient ? m * wide : s.N * s.K, 2);
    bias_ = numbers(s.b, s.N, 3);
    out_.resize(static_cast<std::size_t>((gradient ? s.N * s.K : m * wide) * size_of(s.out)));
  }
  std::vector<std::byte> operator()() {
    std::memset(out_.data(), 0, out_.size());
    if (rows_.empty())
      made_->execute({.on = *lane_,
                      .a = a_.data(),
                      .b = b_.data(),
                      .bias = bias_.data(),
                      .out = out_.data(),
                      .rows = made_->shape().dynamic_rows ? made_->shape().M - 1 : -1});
    else
      made_->execute_segments({.on = *lane_, .a = a_.data(), .b = b_.data(), .out = out_.data()},
                              rows_);
    return out_;
  }

private:
  const prepared_product* made_;
  std::unique_ptr<cpu_lane> lane_ = std::make_unique<cpu_lane>();
  std::vector<std::int32_t> rows_;
  std::vector<std::byte> a_, b_, bias_, out_;
};

/// Regions of all sizes; whether each piece was done exactly once, by its region's function.
bool every_piece_once(int regions) {
  std::vector<std::atomic<int>> times(70);
  for (int r = 0; r < regions; ++r) {
    const int pieces = r * 7 % 71;
    parallel_pieces(pieces, [&](int piece) { times[static_cast<std::size_t>(piece)] += r + 1; });
    for (int i = 0; i < 70; ++i)
      if (times[static_cast<std::size_t>(i)].exchange(0) != (i < pieces ? r + 1 : 0)) return false;
  }
  return true;
}

/// Where a thread that takes SIGUSR2 stands still until it is let go.
std::atomic<bool> held{false}, standing{false};
extern "C" void stand_still(int) {
  standing = true;
  while (held) ::poll(nullptr, 0, 1);
  standing = false;
}

} // namespace

BOOST_AUTO_TEST_CASE(every_piece_of_a_region_is_done_once) {
  for (const int threads : {1, 2, 3, 16}) {
    set_thread_count(threads);
    BOOST_TEST(thread_count() == threads);
    BOOST_TEST(every_piece_once(threads > 2 ? 2000 : 20000), threads << " threads");
    for (const std::int64_t n : {0, 1, 2, 5, 63, 10007}) {
      std::vector<int> seen(static_cast<std::size_t>(n));
      parallel_for(n, [&](std::int64_t i) { ++seen[static_cast<std::size_t>(i)]; });
      BOOST_TEST((seen == std::vector<int>(static_cast<std::size_t>(n), 1)));
    }
  }
}

BOOST_AUTO_TEST_CASE(workers_take_part) {
  set_thread_count(2);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1)); // they sleep by now
    std::atomic<int> begun{0}, met{0};
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    parallel_pieces(2, [&](int) { // each waits for the other
      ++begun;
      while (begun != 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
      met += begun == 2;
    });
    BOOST_TEST_REQUIRE(met == 2);
  }
}

// Between regions they take no processor from whatever else runs.
BOOST_AUTO_TEST_CASE(idle_workers_sleep) {
  const auto used = [] {
    struct timespec now {};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
  };
  set_thread_count(2);
  parallel_pieces(2, [](int) {});
  std::this_thread::sleep_for(std::chrono::milliseconds(5)); // they look for more for a while
  const auto before = used();
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  BOOST_TEST(((used() - before) < std::chrono::milliseconds(6)));
}

BOOST_AUTO_TEST_CASE(a_region_within_a_region_is_done_by_the_thread_that_comes_to_it) {
  set_thread_count(3);
  std::atomic<int> inner{0}, elsewhere{0};
  parallel_for(40, [&](std::int64_t) {
    const pthread_t mine = ::pthread_self();
    parallel_for(25, [&](std::int64_t) {
      ++inner;
      if (::pthread_equal(mine, ::pthread_self()) == 0) ++elsewhere;
    });
  });
  BOOST_TEST(inner == 40 * 25);
  BOOST_TEST(elsewhere == 0);
}

BOOST_AUTO_TEST_CASE(threads_that_call_have_workers_of_their_own) {
  set_thread_count(2);
  std::atomic<int> good{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&good, i] {
      set_thread_count(1 + i);
      good += every_piece_once(500) && thread_count() == 1 + i;
    });
  good += every_piece_once(500);
  for (std::thread& t : callers) t.join();
  BOOST_TEST(good == 5);
  BOOST_TEST(thread_count() == 2);
}

BOOST_AUTO_TEST_CASE(a_child_that_forks_computes_alone) {
  set_thread_count(3);
  BOOST_TEST(every_piece_once(100));
  BOOST_TEST(test::in_child([] {
               bool good = every_piece_once(100); // the workers stayed behind
               set_thread_count(2);
               good = good && every_piece_once(100);
               return good ? 0 : 1;
             }) == 0);
}

BOOST_AUTO_TEST_CASE(little_work_wakes_nobody) {
  BOOST_TEST(threads_for(0, 4) == 1);
  BOOST_TEST(threads_for(48 * 64, 4) == 1);
  BOOST_TEST(threads_for(128 * 128, 2) == 2);
  BOOST_TEST(threads_for(std::numeric_limits<std::int64_t>::max(), 4) == 4);
}

BOOST_AUTO_TEST_CASE(regions_of_any_number_of_pieces) {
  for (const int threads : {1, 2, 5}) {
    set_thread_count(threads);
    for (const int pieces : {65534, 65535, 65536, 65537, 131070, 200'001}) {
      std::vector<std::atomic<int>> times(static_cast<std::size_t>(pieces));
      parallel_pieces(pieces, [&](int piece) { ++times[static_cast<std::size_t>(piece)]; });
      BOOST_TEST(std::all_of(times.begin(), times.end(), [](const auto& n) { return n == 1; }),
                 pieces << " pieces, " << threads << " threads");
    }
  }
}

BOOST_AUTO_TEST_CASE(a_number_of_threads_below_one_is_refused) {
  set_thread_count(2);
  for (const int none : {0, -1, std::numeric_limits<int>::min()})
    CHECK_REFUSED(set_thread_count(none), exit_code::usage, "at least one");
  BOOST_TEST(thread_count() == 2);
  BOOST_TEST(every_piece_once(100));
}

BOOST_AUTO_TEST_CASE(a_region_keeps_the_threads_that_it_began_with) {
  set_thread_count(2);
  const pthread_t caller = ::pthread_self();
  std::atomic<int> begun{0}, own_pools{0}, inner{0}, elsewhere{0};
  std::vector<std::atomic<int>> times(40);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  parallel_pieces(40, [&](int piece) {
    ++times[static_cast<std::size_t>(piece)];
    if (++begun <= 2) // both threads come to this
      while (begun < 2 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    if (piece % 2 == 0) set_thread_count(2 + piece % 3);
    else const cpu device(product_type::widened, 3);
    own_pools += thread_count() != (::pthread_equal(caller, ::pthread_self()) != 0 ? 2 : 1);
    const pthread_t mine = ::pthread_self();
    parallel_pieces(8, [&](int) {
      ++inner;
      if (::pthread_equal(mine, ::pthread_self()) == 0) ++elsewhere;
    });
  });
  BOOST_TEST(std::all_of(times.begin(), times.end(), [](const auto& n) { return n == 1; }));
  BOOST_TEST(own_pools == 0);
  BOOST_TEST(inner == 40 * 8);
  BOOST_TEST(elsewhere == 0);
  BOOST_TEST(thread_count() == 2);
  set_thread_count(3);
  BOOST_TEST(thread_count() == 3);
  BOOST_TEST(every_piece_once(100));
}

BOOST_AUTO_TEST_CASE(no_region_waits_for_a_thread_that_does_not_run) {
  // The only worker stands still in a signal's handler, where no work of its own can reach it. A
  // region that waits for it lasts until it is let go.
  set_thread_count(2);
  struct sigaction action {};
  action.sa_handler = stand_still;
  ::sigaction(SIGUSR2, &action, nullptr);
  const pthread_t caller = ::pthread_self();
  std::atomic<int> begun{0};
  pthread_t worker{};
  parallel_pieces(2, [&](int) { // each waits for the other
    if (::pthread_equal(caller, ::pthread_self()) == 0) {
      worker = ::pthread_self();
      sigset_t one;
      ::sigemptyset(&one);
      ::sigaddset(&one, SIGUSR2);
      ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
    }
    ++begun;
    while (begun != 2) std::this_thread::yield();
  });
  held = true;
  BOOST_REQUIRE(::pthread_kill(worker, SIGUSR2) == 0);
  while (!standing) std::this_thread::yield();
  std::atomic<bool> finished{false}, let_go{false};
  std::thread patience([&] {
    for (int i = 0; i < 3000 && !finished; ++i) ::poll(nullptr, 0, 10);
    let_go = !finished;
    held = false;
  });
  const bool good = every_piece_once(500);
  const bool stood = standing;
  finished = true;
  patience.join();
  BOOST_TEST(good);
  BOOST_TEST(stood);
  BOOST_TEST(!let_go);
  BOOST_TEST(every_piece_once(500)); // and it takes part again
}

BOOST_AUTO_TEST_CASE(every_piece_is_done_once_beside_busy_threads) {
  const test::busy_cores others; // so that workers wait their turn
  set_thread_count(2);
  BOOST_TEST(every_piece_once(5000));
}

BOOST_AUTO_TEST_CASE(signals_leave_every_bit_of_every_kind_of_product) {
  for (const int threads : {1, 2}) {
    std::vector<std::unique_ptr<cpu>> devices;
    std::vector<one_product> products;
    for (const product_type how : {product_type::widened, product_type::bf16})
      for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) {
        if (how == product_type::bf16 && type != dtype::bf16) continue;
        devices.push_back(std::make_unique<cpu>(how, threads));
        for (const product_kind kind :
             {product_kind::forward, product_kind::input_gradient, product_kind::weight_gradient})
          for (int variant = 0; variant < 5; ++variant) {
            // 192 x 160 x 1024: rows of 4096 bytes are packed. The others are read as they lie.
            auto s = make_product_shape(kind, type, variant == 0 ? 48 : 192, 160,
                                        variant == 1 ? 1024 : 96);
            s.bias = kind == product_kind::forward && variant < 4;
            if (variant == 2) s.segment = 64;
            s.dynamic_rows = variant >= 3;
            try {
              products.emplace_back(devices.back()->products(), s,
                                    variant == 4 ? std::vector<std::int32_t>{70, 0, 3, 192, 131}
                                                 : std::vector<std::int32_t>());
            } catch (const error& e) { // no bf16 products on this processor
              BOOST_TEST((e.code() == exit_code::machine));
            }
          }
      }
    std::vector<std::vector<std::byte>> quiet;
    for (one_product& p : products) quiet.push_back(p());
    std::size_t wrong = 0;
    until_delivered(400, [&] {
      for (std::size_t i = 0; i < products.size(); ++i) wrong += products[i]() != quiet[i];
    });
    BOOST_TEST(wrong == 0u, threads << " threads");
  }
}

BOOST_AUTO_TEST_CASE(signals_leave_every_bit_of_a_training_run) {
  constexpr gpt model{
      .layers = 2, .hidden = 64, .heads = 4, .ffn = 256, .vocabulary = 256, .positions = 64};
  const interpreted_program<gpt> program(model, {.batch = {4, 64}}, "threads");
  std::vector<std::int32_t> tokens, labels;
  for (int i = 0; i < 256; ++i) tokens.push_back(i * 7 % 256), labels.push_back((i * 7 + 7) % 256);
  for (const int threads : {1, 2}) {
    cpu device(product_type::widened, threads);
    const auto steps = [&](int least, long signals) {
      session run(program.view(), device, purpose::training);
      run.weights().initialise(1);
      run.numbers().learning_rate = 1e-3;
      std::vector<double> losses;
      const long first = delivered;
      while (std::ssize(losses) < least || delivered - first < signals) {
        losses.push_back(run.step(batch_view{tokens.data(), labels.data()}).loss.mean());
      }
      return losses;
    };
    std::vector<double> disturbed;
    {
      const storm signals;
      disturbed = steps(1, 400);
    }
    const std::vector<double> quiet = steps(static_cast<int>(disturbed.size()), 0);
    BOOST_TEST((disturbed == quiet), threads << " threads, " << quiet.size() << " steps");
  }
}
