// Several ranks on one CUDA device, over the stand-in: what they exchange, lanes copy and add up, or
// it goes through the host's memory as that of processes does.
#define BOOST_TEST_MODULE cuda_ranks
#include <boost/test/unit_test.hpp>

#include <cuda/emulated_launch.hpp>
#include <cuda/machine.hpp>

#include <megacpp/comm/checking.hpp>
#include <megacpp/comm/staged_ranks.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/run/interpreter.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <kernels.hpp>
#include <laws/outcome.hpp>

using namespace mc;
using test::how;
using test::outcome;
using test::outcome_of;

namespace {

constexpr gpt small_gpt{
    .layers = 2, .hidden = 16, .heads = 2, .ffn = 24, .vocabulary = 64, .positions = 16};
constexpr qwen3 small_qwen{.layers = 2,
                           .hidden = 16,
                           .heads = 2,
                           .kv_heads = 1,
                           .head_dim = 8,
                           .ffn = 24,
                           .vocabulary = 64,
                           .positions = 16};
constexpr qwen3_moe small_moe = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 16, m.heads = 2, m.kv_heads = 2, m.head_dim = 8, m.expert_ffn = 8;
  m.experts = 4, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 16;
  m.aux_loss = 0.1, m.bias_rate = 1e-3;
  return m;
}();

/// For threads of ranks, on which Boost.Test may not check: it keeps one place of the last check for
/// all threads.
void require_way(const communicator& ranks, std::string_view expected) {
  if (ranks.way() != expected)
    throw error(exit_code::internal, std::string("ranks exchange \"") + ranks.way() + '"');
}

/// Ranks on the stand-in's one device.
struct on_one_gpu : test::on_gpu {
  static std::unique_ptr<communicator> make_ranks(communicator& hosts, device& on) {
    auto ranks = hosts.make_ranks(on);
    require_way(*ranks, ranks_of(hosts.ranks()) > 1 ? "within the device" : "");
    return ranks;
  }
};
/// The same, as ranks that are processes are.
struct through_the_host : on_one_gpu {
  static std::unique_ptr<communicator> make_ranks(communicator& hosts, device& on) {
    static cpu of_host(std::unique_ptr<product_source>(), 1);
    auto ranks = std::make_unique<staged_ranks>(hosts.make_ranks(of_host), on);
    require_way(*ranks, "through memory of the host");
    return ranks;
  }
};

constexpr how two_steps{.steps = 2};

setup with(const layout& l, dtype precision = dtype::f32) {
  setup s;
  s.ranks = l, s.batch = {.micro = 2, .sequence = 16}, s.precision = precision;
  return s;
}

/// What ranks of a layout compute on one device is what they compute on CPUs, and what one rank
/// does; through the host's memory it has the same bits.
template <class Model>
void runs_as_on_cpus(const Model& m, const setup& s, int dp, int micros, const char* name) {
  BOOST_TEST_CONTEXT(name) {
    stand_in::begin({.seed = 3});
    const outcome here = outcome_of<on_one_gpu>(m, s, dp, micros, two_steps);
    const double bar = s.precision.weight == dtype::f32 ? 2e-5 : 2e-2;
    close_to(here, outcome_of(m, s, dp, micros, two_steps), bar, name);
    stand_in::begin({.seed = 4});
    test::blocks().seed = 77;
    const outcome staged = outcome_of<through_the_host>(m, s, dp, micros, two_steps);
    BOOST_TEST((here.numbers == staged.numbers && here.weights == staged.weights),
               "through the host's memory it has other bits");
  }
}
template <class Model> void as_on_cpus(const Model& m, const layout& l, int dp, int micros,
                                       const char* name, dtype precision = dtype::f32) {
  runs_as_on_cpus(m, with(l, precision), dp, micros, name);
}

} // namespace

BOOST_AUTO_TEST_CASE(dense_layouts) {
  as_on_cpus(small_gpt, {.tp = 2, .sequence_parallel = true}, 1, 1, "tp 2, sp");
  as_on_cpus(small_gpt, {.pp = 2}, 1, 4, "pp 2");
  as_on_cpus(small_gpt, {.zero = 1}, 2, 2, "dp 2, zero 1");
  as_on_cpus(small_qwen, {.cp = 2}, 1, 1, "cp 2");
  as_on_cpus(small_gpt, {.tp = 2, .pp = 2}, 2, 4, "tp 2, pp 2, dp 2");
  as_on_cpus(small_qwen, {.cp = 2, .zero = 1}, 2, 2, "cp 2, dp 2, zero 1");
  setup alike = with({.tp = 2, .sequence_parallel = true});
  alike.sums = numerics::batch_invariant;
  runs_as_on_cpus(small_qwen, alike, 1, 1, "tp 2, sp, batch_invariant");
}
BOOST_AUTO_TEST_CASE(stages) {
  gpt four = small_gpt;
  four.layers = 4;
  as_on_cpus(four, {.pp = 2, .virtual_stages = 2}, 1, 2, "pp 2 in two chunks each");
  setup all_forward = with({.pp = 2, .schedule = &gpipe});
  all_forward.batch.micro_batches = 3;
  runs_as_on_cpus(small_gpt, all_forward, 1, 3, "pp 2, GPipe");
}
BOOST_AUTO_TEST_CASE(in_bf16) {
  as_on_cpus(small_qwen, {.tp = 2, .zero = 1}, 2, 2, "tp 2, dp 2, zero 1", dtype::bf16);
  as_on_cpus(small_qwen, {.cp = 2}, 1, 1, "cp 2", dtype::bf16); // tokens lie in balanced order
}
BOOST_AUTO_TEST_CASE(experts) {
  as_on_cpus(small_moe, {.ep = 2}, 2, 2, "ep 2");
  as_on_cpus(small_moe, {.tp = 2, .ep = 2}, 1, 1, "tp 2, ep 2");
  as_on_cpus(small_moe, {.tp = 2, .etp = 2}, 1, 1, "tp 2, etp 2");
}

// Ranks that ask a device for different exchanges end with a sentence that names both; checks leave
// the bits of others as they are.
BOOST_AUTO_TEST_CASE(exchanges_are_checked) {
  const setup s = with({.tp = 2, .sequence_parallel = true});
  const interpreted_program<gpt, cuda> p(small_gpt, s, "ranks");
  const auto losses = [&](bool checks, std::int64_t more_of_rank_1) {
    stand_in::begin({});
    std::array<double, 2> told{};
    thread_ranks(mesh_of(s.ranks, 1), std::chrono::seconds(20)).run([&](communicator& plain) {
      checked_if(checks, plain, [&](communicator& hosts) {
        const auto device = test::on_gpu::make_device();
        const auto ranks = hosts.make_ranks(*device);
        session run(p.view(), *device, purpose::training, *ranks);
        run.weights().initialise(1);
        const test::batches data(s, 0);
        told[static_cast<std::size_t>(hosts.rank())] = run.step(data.view(0)).loss.mean();
        const arena x(*device, 64, "a test", "nothing");
        ranks->run(device->main_lane(),
                   exchange::all_reduce({axis::tp}, dtype::f32, x.data(), x.data(),
                                        8 + hosts.rank() * more_of_rank_1));
        device->main_lane().finish();
      });
    });
    return told;
  };
  const auto checked = losses(true, 0);
  BOOST_TEST(checked[0] > 0);
  BOOST_TEST(checked == losses(false, 0), boost::test_tools::per_element());
  const std::string says = test::refused([&] { (void)losses(true, 4); });
  for (const char* part : {"rank 0", "rank 1", "all-reduce"})
    BOOST_TEST(says.find(part) != std::string::npos, says);
}

// A device that is lost while ranks exchange ends all of them with what the first one says.
BOOST_AUTO_TEST_CASE(a_lost_device_ends_all_ranks) {
  const layout l{.tp = 2};
  for (const int after : {40, 400, 1500}) {
    stand_in::begin({});
    const interpreted_program<gpt, cuda> p(small_gpt, with(l), "ranks");
    std::string says = "nothing";
    try {
      thread_ranks(mesh_of(l, 1), std::chrono::seconds(20)).run([&](communicator& hosts) {
        const auto device = on_one_gpu::make_device();
        const auto ranks = hosts.make_ranks(*device);
        session run(p.view(), *device, purpose::training, *ranks);
        run.weights().initialise(1);
        hosts.run(exchange::barrier(everyone));
        if (hosts.rank() == 0) stand_in::lose_device(after);
        const test::batches data(with(l), 0);
        for (;;) (void)run.step(std::vector{data.view(0)});
      });
    } catch (const error& e) {
      says = e.what();
    }
    BOOST_TEST((says.find("cudaErrorLaunchFailure") != std::string::npos ||
                says.find("CUBLAS_STATUS_EXECUTION_FAILED") != std::string::npos),
               says);
  }
}

// More ranks than a device adds up at once are refused by their number.
BOOST_AUTO_TEST_CASE(too_many_parts_are_refused) {
  stand_in::begin({});
  const auto device = on_one_gpu::make_device();
  arena x(*device, 4 * (most_reduced + 1), "a test", "none");
  const std::vector<const void*> parts(most_reduced + 1, x.data());
  lane& on = device->main_lane();
  on.reduce(reduction::sum, dtype::f32, std::span(parts).first(most_reduced), x.data(), 1);
  on.finish();
  BOOST_CHECK_EXCEPTION(on.reduce(reduction::sum, dtype::f32, parts, x.data(), 1), error,
                        [](const error& e) {
                          return e.code() == exit_code::mismatch &&
                                 std::string(e.what()).find("65 ranks add up on one device") == 0;
                        });
}
