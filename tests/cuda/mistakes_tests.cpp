// Mistakes that a program for CUDA could make are seen by those who compare numbers: a kernel, a
// copy, a fill, an event or a wait that is left out, work that does not wait for what was started
// before it, and memory that is too small. Each is made in a process of its own, once for every
// kernel and every size of a copy and a fill, and ends that process or changes a number.
#define BOOST_TEST_MODULE cuda_mistakes
#include <boost/test/unit_test.hpp>

#include <cuda/emulated_launch.hpp>
#include <cuda/machine.hpp>

#include <megacpp/preset/models.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include <kernels.hpp>

namespace {

constexpr mc::gpt dense{.layers = 2,
                        .hidden = 32,
                        .heads = 2,
                        .ffn = 64,
                        .vocabulary = 128,
                        .positions = 8,
                        .dropout = 0.1};
constexpr mc::qwen3_moe experts{.layers = 2,
                                .hidden = 32,
                                .heads = 2,
                                .kv_heads = 1,
                                .head_dim = 16,
                                .ffn = 64,
                                .expert_ffn = 16,
                                .experts = 4,
                                .experts_per_token = 2,
                                .vocabulary = 128,
                                .positions = 8};

using stand_in::mistake;
using bytes = std::vector<char>;

/// What f tells in a process of its own; nothing where it ends otherwise.
bytes told_by(const std::function<bytes()>& f) {
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]), ::close(2);
    ::alarm(60); // a wait that never ends is seen, too
    try {
      const bytes told = f();
      const bool whole =
          ::write(ends[1], told.data(), told.size()) == static_cast<ssize_t>(told.size());
      ::_exit(whole ? 0 : 1);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  ::close(ends[1]);
  bytes told;
  char piece[4096];
  for (ssize_t n = 0; (n = ::read(ends[0], piece, sizeof piece)) > 0;)
    told.insert(told.end(), piece, piece + n);
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? told : bytes{};
}
template <class T> void tell(bytes& to, const T* x, std::size_t n) {
  const auto* const at = reinterpret_cast<const char*>(x);
  to.insert(to.end(), at, at + n * sizeof(T));
}

/// Steps of two micro-batches, of which each has other tokens, another number of them that are
/// learned, another learning rate and another threshold of clipping.
template <class Model> class workload {
public:
  static constexpr int tokens = 6;

  workload(
      const Model& m, bool graphs, const std::function<void()>& before_memory = [] {},
      mc::dtype type = mc::dtype::f32, const mc::grouped_library& grouped = {},
      const stand_in::machine& has = {})
      : graphs_(graphs),
        machine_(mc::product_rows::together, false, nullptr, grouped, has),
        program_(m, {.batch = {.micro = 1, .sequence = tokens}, .precision = type}, "tiny") {
    machine_.device().keep_work(graphs);
    before_memory();
    session_ =
        std::make_unique<mc::session>(program_.view(), machine_.device(), mc::purpose::training);
    session_->weights().initialise(1);
  }
  void step() {
    std::int32_t ids[2][tokens], labels[2][tokens];
    std::vector<mc::batch_view> batches(2);
    for (int k = 0; k < 2; ++k) {
      for (int i = 0; i < tokens; ++i) { // some come twice, in no order
        ids[k][i] = (i * i * 37 + k * 5 + taken_ * 3) % 16;
        labels[k][i] = i < (taken_ + k) % 3 ? -1 : (ids[k][i] * 7 + i) % 128;
      }
      batches[static_cast<std::size_t>(k)] = {
          .tokens = ids[k], .labels = labels[k], .first_sample = 2 * taken_ + k};
    }
    ++taken_;
    session_->numbers().step = 10 * taken_;
    session_->numbers().learning_rate = 1e-2 / taken_;
    if (!graphs_) session_->numbers().clip = 0.5 / taken_; // a graph has one threshold
    const mc::step_result r = session_->step(batches);
    for (const double x :
         {r.loss.sum, r.loss.count, r.loss.side, r.norm, session_->evaluate(batches).mean()})
      tell(told_, &x, 1);
  }
  /// Losses and norms of all steps, and all weights.
  bytes told() {
    bytes all = told_;
    bytes weights(static_cast<std::size_t>(program_.view().stores->weight_bytes()));
    machine_.device().read(reinterpret_cast<std::byte*>(weights.data()),
                           session_->weights().weights(), std::ssize(weights));
    tell(all, weights.data(), weights.size());
    return all;
  }

private:
  bool graphs_;
  test::machine_with_device machine_;
  mc::interpreted_program<Model, mc::cuda> program_;
  std::unique_ptr<mc::session> session_;
  bytes told_;
  int taken_ = 0;
};

/// What calls of a name start in some work, and which of these calls do.
std::map<std::string, std::vector<int>> places(const char* call,
                                               const std::function<void()>& work) {
  const bytes told = told_by([&] {
    const std::size_t before = stand_in::calls(call).size();
    work();
    const std::vector<std::string> all = stand_in::calls(call);
    bytes words{'\n'};
    for (std::size_t i = before; i < all.size(); ++i) {
      tell(words, all[i].data(), all[i].size());
      words.push_back('\n');
    }
    return words;
  });
  BOOST_REQUIRE(!told.empty());
  std::map<std::string, std::vector<int>> of;
  int number = 0;
  for (auto at = told.begin() + 1; at != told.end(); ++number) {
    const auto end = std::find(at, told.end(), '\n');
    of[std::string(at, end)].push_back(number);
    at = end + 1;
  }
  return of;
}

/// A mistake in calls of a name, and the kinds of work of which some would be seen by nobody, since
/// what they leave is what was there. `only`: the kind that is looked at; nullptr: all.
struct case_of {
  const char* call;
  mistake what;
  std::vector<std::string> idle{};
  const char* only = nullptr;
};

/// Made in a step that comes behind others, by what a session holds since the first ones: in calls of
/// each kind of work that they start, one after the other until one is seen.
template <class Model> void steps_with_mistakes(const std::string& name, const Model& m,
                                                bool graphs, const std::vector<case_of>& cases,
                                                mc::dtype type = mc::dtype::f32,
                                                const mc::grouped_library& grouped = {},
                                                const stand_in::machine& has = {}) {
  workload<Model> w(
      m, graphs, [] {}, type, grouped, has);
  for (int i = 0; i < 3; ++i) w.step();
  const auto told = [&](std::uint64_t chance, const std::function<void()>& mistake) {
    return told_by([&] {
      stand_in::shuffle(chance);
      mistake();
      w.step();
      return w.told();
    });
  };
  const bytes right = told(1, [] {});
  BOOST_REQUIRE(!right.empty());
  for (const std::uint64_t chance : {2u, 3u, 4u})
    BOOST_TEST((told(chance, [] {}) == right), name << ": the order of streams shows");
  for (const case_of& c : cases) {
    int kinds = 0;
    for (const auto& [what, at] : places(c.call, [&] { w.step(); })) {
      if (c.only != nullptr && what != c.only) continue;
      bool seen = false;
      const std::size_t tried = what.empty() ? at.size() : 8;
      const std::size_t step = at.size() > tried ? at.size() / tried : 1;
      for (std::size_t i = 0; i < at.size() && !seen; i += step)
        for (std::uint64_t chance = 1; chance <= 2 && !seen; ++chance)
          seen = told(chance, [&, k = at[i]] { stand_in::mistake_in(c.call, c.what, k); }) != right;
      const bool idle = std::find(c.idle.begin(), c.idle.end(), what) != c.idle.end();
      BOOST_TEST(seen != idle, name << ": " << c.call << " that is "
                                    << (c.what == mistake::left_out ? "left out" : "too early")
                                    << " is seen " << (seen ? "" : "by nobody ")
                                    << "where it starts " << what);
      ++kinds;
    }
    BOOST_TEST_MESSAGE(name << ": mistakes in " << c.call << ", for " << kinds << " kinds of work");
    BOOST_TEST(kinds > 0, name << ": no call of " << c.call);
  }
}

} // namespace

// Counts of numbers that are not finite are 0 in every step, and no word has tokens in two parts of 64.
const std::vector<std::string> same_in_each_step{"N2mc4rows13count_of_onesE",
                                                 "N2mc4rows24embedding_gradient_totalIfEE",
                                                 "N2mc4rows9add_blockIdEE"};

BOOST_AUTO_TEST_CASE(in_a_step_of_a_dense_model) {
  steps_with_mistakes(
      "dense", dense, false,
      {{"kernel", mistake::left_out, same_in_each_step},
       {"kernel", mistake::too_early, same_in_each_step},
       {"cudaMemcpyAsync", mistake::left_out},
       // of the numbers of a step, before which nothing is started
       {"cudaMemcpyAsync", mistake::too_early, {"a copy of 16 bytes"}},
       // of the loss and of what flows back from it, which one chunk overwrites
       {"cudaMemsetAsync", mistake::left_out, {"a fill of 4 bytes", "a fill of 768 bytes"}}});
}
BOOST_AUTO_TEST_CASE(in_a_step_as_graphs) {
  steps_with_mistakes(
      "graphs", dense, true,
      {{"cudaGraphLaunch", mistake::left_out},
       {"cudaMemcpyAsync", mistake::left_out},
       {"cudaMemcpyAsync", mistake::too_early, {"a copy of 16 bytes", "a copy of 8 bytes"}}});
}
BOOST_AUTO_TEST_CASE(in_a_step_of_experts) {
  std::vector<std::string> left_out = same_in_each_step;
  left_out.push_back("N2mc4rows12count_roundsE");         // one
  left_out.push_back("N2mc4rows17router_square_sumIfEE"); // of a loss whose factor is 0
  std::vector<std::string> early = left_out;
  early.push_back(
      "N2mc4rows16dispatch_numbersIfEE"); // the host has waited for the counts of experts
  steps_with_mistakes(
      "experts", experts, false,
      {{"kernel", mistake::left_out, left_out},
       {"kernel", mistake::too_early, early},
       {"cudaMemcpyAsync", mistake::left_out},
       // of sums over one round, which overwrites them
       {"cudaMemsetAsync", mistake::left_out, {"a fill of 4 bytes", "a fill of 48 bytes"}},
       {"cudaEventRecord", mistake::left_out},
       {"cudaEventSynchronize", mistake::left_out},
       {"cudaStreamWaitEvent", mistake::left_out}});
}

// The arrays of products of experts that are computed at once lie in memory that the ones before have
// read from.
BOOST_AUTO_TEST_CASE(in_a_step_of_experts_at_once) {
  const char* const product = "a grouped product";
  const std::vector<case_of> cases{{"kernel", mistake::left_out, {}, product},
                                   {"kernel", mistake::too_early, {}, product},
                                   {"cudaMemcpyAsync", mistake::left_out},
                                   {"cudaMemcpyAsync", mistake::too_early}};
  steps_with_mistakes("experts at once", experts, false, cases, mc::dtype::bf16, test::cutlass);
  steps_with_mistakes("experts at once by cuBLASLt", experts, false, cases, mc::dtype::bf16, {},
                      test::with_grouped_cublaslt);
}

// Memory of every size that is reserved is written to its end.
BOOST_AUTO_TEST_CASE(in_memory_that_is_reserved) {
  const auto steps = [](int short_of) {
    workload<mc::gpt> w(dense, false, [&] {
      if (short_of >= 0) stand_in::mistake_in("cudaMalloc", mistake::short_of_memory, short_of);
    });
    w.step();
    return w.told();
  };
  const bytes right = told_by([&] { return steps(-1); });
  BOOST_REQUIRE(!right.empty());
  int all = 0; // reservations behind those of the device itself
  while (all < 100 && told_by([&] { return steps(all); }) != right) ++all;
  BOOST_TEST(all > 5);
  BOOST_TEST((told_by([&] { return steps(all + 1); }) == right), "reservation " << all);
}
