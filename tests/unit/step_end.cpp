// What the end of a step does with its numbers: it tells the norm, and updates nothing where the
// norm or the summed loss is not finite.
#define BOOST_TEST_MODULE step_end
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/self.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/interpreted_part.hpp>

#include <cmath>
#include <limits>
#include <memory>

using namespace mc;

namespace {

constexpr double infinite = std::numeric_limits<double>::infinity(),
                 not_a_number = std::numeric_limits<double>::quiet_NaN();

/// The update of a block with experts whose loads are balanced, all of whose gradients are `slope`.
struct end {
  struct told {
    double norm, broken;
    bool changed; ///< a weight, a master or a moment
  };
  registry stores;
  kernel_table<cpu> kernels;
  cpu device{product_type::automatic, 1};

  end() {
    qwen3_moe m;
    m.layers = 1, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
    m.vocabulary = 64, m.expert_ffn = 24, m.experts = 4, m.experts_per_token = 2, m.positions = 64;
    m.bias_rate = 1e-3;
    const auto block =
        std::make_unique<graph>(forward_graph(m, {.batch = {2, 16}}, part_kind::block, 0));
    stores = make_registry(std::array<const graph*, 1>{block.get()}, std::array{1});
    kernels.add<&op::add_total, double>();
    kernels.add<&op::clip_factor, double>();
    kernels.add<&op::sum_of_squares, float>();
    kernels.add<&op::adamw, float>();
    kernels.add<&op::balance_step, float>();
    kernels.add<&op::add, double>();
  }

  told run(double loss, double tokens, float slope) {
    interpreted_part<cpu> part(update_graph(stores, mesh{}, dtype::f32), 0, kernels);
    std::vector<prepared_node> slots(static_cast<std::size_t>(part.g.node_count));
    part.view().prepare(part.view(), device, slots.data(), true);
    double totals[step_totals]{};
    totals[static_cast<int>(step_total::whole_loss)] = loss;
    totals[static_cast<int>(step_total::whole_tokens)] = tokens;
    const std::int64_t steps = 2;
    const double rate = 1e-2;
    const auto size = static_cast<std::size_t>(stores.total);
    std::vector<float> gradient(size, slope), master(size, 0.5f), first(size, 0.25f),
        second(size, 1.0f);
    input_addresses in(part.g);
    in.set(feed::step, &steps), in.set(feed::learning_rate, &rate);
    for (int t = 0; t < step_totals; ++t) in.set(feed::total, totals + t, t);
    for (int k = 0; k < stores.bucket_count; ++k) {
      const std::int64_t at = stores.buckets[static_cast<unsigned>(k)].offset;
      in.set(feed::gradient, gradient.data() + at, k), in.set(feed::master, master.data() + at, k);
      in.set(feed::weight, master.data() + at, k);
      in.set(feed::first_moment, first.data() + at, k);
      in.set(feed::second_moment, second.data() + at, k);
    }
    const std::vector<float> before[] = {master, first, second};
    std::vector<double> working(static_cast<std::size_t>(part.plan.working / 8 + 8)),
        derived(static_cast<std::size_t>(part.plan.derived / 8 + 8));
    const run_constants constants;
    lane& on = device.main_lane();
    on.reserve({.scratch = part.view().scratch_bytes(part.view(), device, true)});
    frame f;
    f.on = &on;
    f.set(space::working, reinterpret_cast<std::byte*>(working.data()));
    f.set(space::derived, reinterpret_cast<std::byte*>(derived.data()));
    f.input = in.data(), f.constants = &constants, f.ranks = &self::ranks();
    for (const phase p : {phase::prologue, phase::forward, phase::epilogue})
      part.view().run(part.view(), p, device, f, slots.data());
    return {totals[static_cast<int>(step_total::norm)],
            totals[static_cast<int>(step_total::broken)],
            master != before[0] || first != before[1] || second != before[2]};
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_step_is_applied_where_loss_and_norm_are_finite) {
  end e;
  const auto elements = [&] {
    std::int64_t n = 0; // of what has a gradient, not a load
    for (int k = 0; k < e.stores.bucket_count; ++k)
      if (const auto& g = e.stores.buckets[static_cast<unsigned>(k)];
          g.update == update_rule::adamw)
        n += g.count;
    return static_cast<double>(n);
  };
  const end::told sound = e.run(3, 7, 0.5f);
  BOOST_TEST(std::abs(sound.norm - 0.5 * std::sqrt(elements()) / 7) <= 1e-12 * sound.norm);
  BOOST_TEST(sound.broken == 0);
  BOOST_TEST(sound.changed);
  for (const double loss : {infinite, -infinite, not_a_number}) {
    const end::told t = e.run(loss, 7, 0.5f);
    BOOST_TEST(t.norm == sound.norm);
    BOOST_TEST((t.broken == 0 && !t.changed));
  }
  for (const float slope :
       {std::numeric_limits<float>::infinity(), static_cast<float>(not_a_number)}) {
    const end::told t = e.run(3, 7, slope);
    BOOST_TEST((!std::isfinite(t.norm) && t.broken == 0 && !t.changed));
  }
  for (const float slope : {0.0f, 0.5f}) { // no token had a label; blocks may have their own losses
    const end::told empty = e.run(0, 0, slope);
    BOOST_TEST((!std::isfinite(empty.norm) && empty.broken == 0 && !empty.changed));
  }
}
