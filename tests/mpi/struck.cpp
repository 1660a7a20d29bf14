// Training of which one rank, in its third step or as soon as a state has been saved, throws, is
// killed or is stopped at a place: where it reads a micro-batch, between the parts of an update, or
// in the midst of a save. Or, as `weights`, `break`, it has weights that are not numbers.
//
//   struck PLACE HOW RANK FLAG VALUE...     with mpirun as a process each, else as threads
//
// PLACE is loader, optimizer or save, HOW is throw, kill or stop; flags are those of train, without
// dashes. `struck eval - 0 FLAG VALUE...` evaluates.
#include <megacpp/comm/connect_ranks.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/trainer.hpp>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <laws/flagged_run.hpp>

using namespace mc;

namespace {

/// What happens to a rank at a place.
struct strike {
  std::string place, how, state;

  bool there(const char* here) const {
    return place == here && (state.empty() || std::filesystem::exists(state));
  }
  void at(const char* here) const {
    if (!there(here)) return;
    if (how == "throw") throw error(exit_code::data, "it has no " + place);
    std::raise(how == "kill" ? SIGKILL : SIGSTOP);
  }
};

/// One plane of a rank. Weights are gathered when replicas have updated them; blocks of a state are
/// put together.
class struck_ranks final : public communicator {
public:
  /// `weights`: of both planes the same.
  struck_ranks(communicator& below, const strike& s, std::span<float>& weights)
      : communicator(below.ranks(), below.rank(), below.moves(), below.bits()),
        to_(below),
        strike_(s),
        weights_(weights) {}
  std::unique_ptr<communicator> ranks_for(device& on) override { return to_.make_ranks(on); }
  bool in_one_process() const override { return to_.in_one_process(); }
  void give_up() noexcept override { to_.give_up(); }

private:
  ticket begin(const exchange& x, const group&, lane* on) override {
    std::fill_n(weights_.data(), weights_.size(), std::numeric_limits<float>::quiet_NaN());
    weights_ = {};
    if (x.what == collective::all_gather && x.over.has(axis::dp) && x.count > 100) {
      strike_.at("optimizer");
      if (strike_.there("weights")) // when they have been gathered
        weights_ = {static_cast<float*>(x.out), static_cast<std::size_t>(x.count)};
    }
    if (x.what == collective::all_reduce && x.type == dtype::i32 && x.count > 100)
      strike_.at("save");
    return on != nullptr ? to_.start(*on, x) : to_.start(x);
  }
  void finish(lane& on, ticket t) override { to_.wait(on, t); }
  std::size_t finish_any(std::span<const ticket> any) override { return to_.wait_any(any); }

  communicator& to_;
  const strike& strike_;
  std::span<float>& weights_;
};

constexpr gpt model{
    .layers = 2, .hidden = 32, .heads = 2, .ffn = 64, .vocabulary = 128, .positions = 32};

void run(const std::string& place, const std::string& how, int of_rank, options& o,
         process_ranks& processes) {
  if (processes.first()) processes.call("");
  else if (!processes.called()) return;
  const interpreted_program<gpt> program(
      model, {.ranks = {.zero = 1}, .batch = {.micro = 2, .sequence = 32}}, "struck");
  const program_view& p = program.view();
  const auto threads = static_cast<int>(o.machine.ranks());
  const mesh ranks = mesh_of(p.numbers.ranks, processes.several() ? processes.size() : threads);
  const std::chrono::seconds patience(o.machine.collective_timeout());
  const std::string saved = o.training.save() + "/" + step_folder_name(2);
  const strike none{}, one{place, how, place == "loader" ? "" : saved};
  const auto body = [&](communicator& c) {
    const strike& mine = c.rank() == of_rank ? one : none;
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    std::span<float> weights;
    struck_ranks hosts(c, mine, weights), ranks_of_device(*others, mine, weights);
    const planes both{hosts, ranks_of_device};
    if (place == "eval") return run_evaluation(p, evaluation_request_of(o), device, both);
    if (place != "loader")
      return trainer(p, training_request_of(p, o, ranks.of(axis::dp)), device, {}, {}, both).run();
    session steps(p, device, purpose::training, ranks_of_device);
    const std::vector<std::int32_t> tokens(64, 7);
    for (int step = 1; step <= 6; ++step)
      steps.step(2, [&](int micro, batch_view& b) {
        if (step == 3 && micro == 1) mine.at("loader");
        b = {tokens.data(), tokens.data()};
        return true;
      });
  };
  if (threads > 1) thread_ranks(ranks, patience).run(body);
  else processes.run(ranks, patience, body);
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  test::flag_values flags;
  for (int i = 4; i + 1 < argc; i += 2) flags.emplace_back(argv[i], argv[i + 1]);
  const auto joined = join_processes(start_of_this_process(), nullptr);
  process_ranks& processes = *joined;
  int code = 0;
  try {
    options o = test::options_of(flags);
    run(argv[1], argv[2], std::stoi(argv[3]), o, processes);
  } catch (const error& e) {
    std::fprintf(stderr, "%s%s\n", process_ranks::who().c_str(), e.what());
    code = static_cast<int>(e.code());
  }
  processes.end(code);
  return code;
}
