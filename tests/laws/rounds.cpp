// Experts compared with plain loops in double, whatever tokens choose; rounds of rows compared with
// all rows at once; the bias that balances.
#define BOOST_TEST_MODULE rounds
#include <boost/test/unit_test.hpp>

#include "directions.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/nn/experts.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>

#include <algorithm>
#include <numeric>

using namespace mc;
using mc::directional::small_graph;

namespace {

constexpr int experts = 5, chosen = 2, width = 6, inner = 7;

/// The router's rows decide where tokens go: they point at one expert or the other.
enum class skew { none, one_empty, all_to_one };

struct mixture {
  int tokens, rows;
  skew how = skew::none;
  bool normalise = true;
  double capacity = 0;
  int then = 0;          ///< rows a round of a second mixture with these weights
  bool computed = false; ///< the gate is the sum of the stored one and of up
  int times() const { return then > 0 ? 2 : 1; }
};

std::vector<std::string> names{"x", "router", "gate", "up", "down"};

small_graph built(const mixture& m, std::uint64_t seed) {
  return small_graph(
      [m](builder& b) {
        const extent B{dim::batch, 1}, Sq{dim::sequence, m.tokens}, H{dim::hidden, width},
            E{dim::expert, experts}, F{dim::ffn, inner};
        const auto parameter = [&](unsigned i, std::initializer_list<extent> dims,
                                   placement at = {}) {
          return b.parameter("p", names[i].c_str(), dtype::f64, dims, at,
                             {-1, init::normal, 1.0, true});
        };
        const auto expert = [&](unsigned i, std::initializer_list<extent> dims) {
          return to(parameter(i, dims), axis::edp, R);
        };
        var x = parameter(0, {B, Sq, H}, on(axis::dp, S(dim::batch)));
        const var router = to(parameter(1, {E, H}), axis::dp, R);
        const auto capacity =
            static_cast<std::int64_t>(std::ceil(m.capacity * m.tokens * chosen / experts));
        const var stored = expert(2, {E, F, H}), up = expert(3, {E, F, H}),
                  down = expert(4, {E, H, F});
        const var gate = m.computed ? stored + up : stored;
        for (int i = 0; i < m.times(); ++i) {
          const routing r = route(linear(x, router), {}, chosen, m.normalise);
          const expert_assignment p =
              expert_rows(r.experts, i == 0 ? m.rows : m.then, experts, capacity);
          const var rows = dispatch(x, p), w = dispatch(r.weights, p);
          const var h = swiglu(grouped_linear(rows, gate, p), grouped_linear(rows, up, p));
          x = combine(grouped_linear(scale_rows(h, w), down, p), p);
        }
        return x;
      },
      seed);
}

struct tensor {
  const double* at;
  double operator()(std::int64_t i) const { return at[i]; }
};
tensor of(small_graph& g, int parameter) {
  return {g.weights().data() + g.stores().find(0, parameter).offset};
}
void skewed(small_graph& g, skew how) {
  double* x = g.weights().data() + g.stores().find(0, 0).offset;
  double* router = g.weights().data() + g.stores().find(0, 1).offset;
  const std::int64_t n = g.stores().find(0, 0).count.n / width;
  for (std::int64_t t = 0; t < n && how != skew::none; ++t) x[t * width] = 3; // in every token
  if (how == skew::one_empty) router[3 * width] = -20;
  if (how == skew::all_to_one) router[2 * width] = 20;
}

/// Returns y of x by the equations of nn/experts.hpp, token by token; `taken`: choices of each
/// expert.
std::vector<double> mixed(small_graph& g, const mixture& m, const std::vector<double>& x,
                          std::vector<int>& taken) {
  const tensor router = of(g, 1), gate = of(g, 2), up = of(g, 3), down = of(g, 4);
  const auto capacity = static_cast<int>(std::ceil(m.capacity * m.tokens * chosen / experts));
  taken.assign(experts, 0);
  std::vector<double> y(x.size(), 0);
  for (int t = 0; t < m.tokens; ++t) {
    const double* of_token = x.data() + t * width;
    std::vector<double> p(experts);
    double sum = 0;
    for (int e = 0; e < experts; ++e) {
      double l = 0;
      for (int h = 0; h < width; ++h) l += of_token[h] * router(e * width + h);
      p[static_cast<unsigned>(e)] = std::exp(l), sum += p[static_cast<unsigned>(e)];
    }
    for (double& q : p) q /= sum;
    std::vector<int> order(experts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return p[static_cast<unsigned>(a)] > p[static_cast<unsigned>(b)];
    });
    double of_chosen = 0;
    for (int j = 0; j < chosen; ++j)
      of_chosen += p[static_cast<unsigned>(order[static_cast<unsigned>(j)])];
    for (int j = 0; j < chosen; ++j) {
      const int e = order[static_cast<unsigned>(j)];
      if (m.capacity > 0 && taken[static_cast<unsigned>(e)] == capacity) continue;
      ++taken[static_cast<unsigned>(e)];
      const double w = p[static_cast<unsigned>(e)] / (m.normalise ? of_chosen : 1.0);
      for (int f = 0; f < inner; ++f) {
        double a = 0, u = 0;
        for (int h = 0; h < width; ++h) {
          const double of_up = up((e * inner + f) * width + h);
          a += (gate((e * inner + f) * width + h) + (m.computed ? of_up : 0)) * of_token[h];
          u += of_up * of_token[h];
        }
        const double act = w * a / (1 + std::exp(-a)) * u;
        for (int h = 0; h < width; ++h)
          y[static_cast<unsigned>(t * width + h)] += down((e * width + h) * inner + f) * act;
      }
    }
  }
  return y;
}
/// Returns sum_t,h y_th dy_th; `load`: choices of each expert in the last mixture.
double plain(small_graph& g, const mixture& m, const std::vector<double>& dy,
             std::vector<int>& load) {
  std::vector<double> x(dy.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = of(g, 0)(static_cast<std::int64_t>(i));
  for (int i = 0; i < m.times(); ++i) x = mixed(g, m, x, load);
  return std::inner_product(x.begin(), x.end(), dy.begin(), 0.0);
}

const std::vector<mixture> mixtures{{1, 2},
                                    {1, 1},
                                    {12, 24},
                                    {12, 24, skew::one_empty},
                                    {12, 24, skew::all_to_one},
                                    {12, 24, skew::none, false},
                                    {12, 5},
                                    {12, 7, skew::one_empty},
                                    {12, 1, skew::all_to_one},
                                    {13, 9, skew::all_to_one, false},
                                    {12, 24, skew::none, true, 0.8},
                                    {12, 24, skew::all_to_one, true, 0.5},
                                    {12, 4, skew::all_to_one, false, 0.6},
                                    {12, 24, skew::none, true, 0, 24},
                                    {12, 5, skew::none, true, 0, 6},
                                    {12, 24, skew::none, true, 0, 5},
                                    {12, 5, skew::none, true, 0, 24},
                                    {12, 3, skew::none, false, 0.8, 4},
                                    {12, 24, skew::none, true, 0, 0, true},
                                    {12, 5, skew::none, true, 0, 7, true}};

} // namespace

BOOST_AUTO_TEST_CASE(a_mixture_is_what_plain_loops_say) {
  for (const mixture& m : mixtures)
    BOOST_TEST_CONTEXT(m.tokens << " tokens, rounds of " << m.rows << ", skew "
                                << static_cast<int>(m.how) << ", capacity " << m.capacity
                                << ", then rounds of " << m.then) {
      small_graph g = built(m, 3);
      skewed(g, m.how);
      std::vector<int> load;
      const double got = g.forward(), want = plain(g, m, g.cotangent(), load);
      BOOST_TEST(std::abs(got - want) <= 1e-12 * (std::abs(want) + 1));
      if (m.how == skew::one_empty && m.times() == 1) BOOST_TEST(load[3] == 0);
      if (m.how == skew::all_to_one && m.capacity == 0) BOOST_TEST(load[2] == m.tokens);
    }
}

BOOST_AUTO_TEST_CASE(gradients_are_slopes_whatever_tokens_choose) {
  for (const mixture& m : mixtures)
    BOOST_TEST_CONTEXT(m.tokens << " tokens, rounds of " << m.rows << ", skew "
                                << static_cast<int>(m.how) << ", capacity " << m.capacity
                                << ", then rounds of " << m.then) {
      small_graph g = built(m, 5);
      skewed(g, m.how);
      double global = 0;
      const auto all = g.compare(8, 1e-5); // the step changes no token's choice
      for (const auto& c : all) global = std::max(global, c.norm);
      for (const auto& c : all)
        BOOST_TEST((c.worst <= 1e-6 * c.norm || c.worst <= 1e-9 * global),
                   c.name << ": " << c.worst << " of " << c.norm);
      BOOST_TEST(global > 0);
    }
}

namespace {

constexpr qwen3_moe small{.layers = 3,
                          .hidden = 24,
                          .heads = 4,
                          .kv_heads = 2,
                          .head_dim = 6,
                          .ffn = 20,
                          .expert_ffn = 16,
                          .experts = 8,
                          .experts_per_token = 3,
                          .vocabulary = 29,
                          .positions = 32,
                          .mlp_only = {1},
                          .aux_loss = 0.1};

struct gradients_of_one {
  loss_sum loss;
  std::vector<double> gradients;
};

/// Returns the loss and gradients of one micro-batch in rounds of `rows` rows.
gradients_of_one stepped(const qwen3_moe& m, int rows, recompute again) {
  const interpreted_program<qwen3_moe> program(
      m, {.batch = {2, 32, false, rows}, .precision = dtype::f64, .recompute_policy = again},
      "rounds");
  cpu device(product_type::automatic, 2);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(4);
  std::vector<std::int32_t> tokens, labels;
  for (int i = 0; i < 64; ++i) tokens.push_back(i * 11 % 29), labels.push_back((i * 11 + 11) % 29);
  gradients_of_one r;
  r.loss = run.gradients(batch_view{tokens.data(), labels.data()});
  const auto* g = reinterpret_cast<const double*>(run.weights().gradients());
  r.gradients.assign(g, g + run.weights().total());
  return r;
}

} // namespace

BOOST_AUTO_TEST_CASE(rounds_give_what_all_rows_at_once_give) {
  for (recompute again : {recompute::none, recompute::selective, recompute::full}) {
    const gradients_of_one whole = stepped(small, 0, again);
    double norm = 0;
    for (double g : whole.gradients) norm += g * g;
    for (int rows : {191, 64, 50, 7}) {
      const gradients_of_one r = stepped(small, rows, again);
      double difference = 0;
      for (std::size_t i = 0; i < r.gradients.size(); ++i)
        difference += std::pow(r.gradients[i] - whole.gradients[i], 2);
      BOOST_TEST(std::sqrt(difference) <= 1e-12 * std::sqrt(norm), name_of(again)
                                                                       << ", rounds of " << rows);
      BOOST_TEST(std::abs(r.loss.sum - whole.loss.sum) <= 1e-12 * whole.loss.sum);
      BOOST_TEST(std::abs(r.loss.side - whole.loss.side) <= 1e-12 * whole.loss.side);
    }
  }
}

namespace {

/// A model with two mixtures in a block, each with its own rounds.
struct twice : qwen3 {
  constexpr var block(context& c, int /*kind*/, var x) const {
    const expert_sizes s{.experts = {dim::expert, 5}, .ffn = {dim::ffn, 7}, .per_token = 2};
    const var y = x + mixture_of_experts(c, {"a", "a.gate", "a.up", "a.down"},
                                         rms_norm(c, "a.norm", x, eps), s, 0.3);
    return y + mixture_of_experts(c, {"b", "b.gate", "b.up", "b.down"},
                                  rms_norm(c, "b.norm", y, eps), s, 0.3);
  }
};
constexpr twice two_mixtures() {
  twice m;
  m.layers = 2, m.hidden = 12, m.heads = 2, m.kv_heads = 1, m.head_dim = 6, m.ffn = 8,
  m.vocabulary = 29;
  return m;
}
template <class Precision, mc::recompute Again> struct run_of {
  static constexpr twice model = two_mixtures();
  static constexpr mc::layout layout{};
  static constexpr batching batch{.micro = 2, .sequence = 12, .expert_rows = 9};
  using precision = Precision;
  static constexpr auto recompute = Again;
};

/// Returns the losses, norms and weights of three steps.
std::vector<double> trained(const program_view& p) {
  cpu device(product_type::widened, 1);
  session run(p, device, purpose::training);
  run.weights().initialise(1);
  run.numbers().learning_rate = 1e-2, run.numbers().clip = 1;
  std::vector<std::int32_t> tokens, labels;
  for (int i = 0; i < 24; ++i) tokens.push_back(i * 11 % 29), labels.push_back((i * 11 + 11) % 29);
  const std::vector<batch_view> micros(2, {tokens.data(), labels.data()});
  std::vector<double> all;
  for (int i = 0; i < 3; ++i) {
    const step_result r = run.step(micros);
    all.insert(all.end(), {r.loss.sum, r.norm});
  }
  for (std::int64_t i = 0; i < run.weights().total(); ++i) all.push_back(run.weights().weight(i));
  return all;
}
template <class Precision, mc::recompute Again> void agree() {
  using run = run_of<Precision, Again>;
  const interpreted_program<twice> program(
      run::model, {.batch = run::batch, .precision = Precision::policy, .recompute_policy = Again},
      "twice");
  const std::vector<double> compiled = trained(compiled_program<run>("twice"));
  BOOST_TEST((compiled == trained(program.view())));
  BOOST_TEST(compiled[4] < compiled[0]);
}

} // namespace

BOOST_AUTO_TEST_CASE(compiled_rounds_have_the_bits_of_interpreted_ones) {
  agree<fp32, mc::recompute::none>();
  agree<bf16_mixed, mc::recompute::selective>();
}

// A perfectly even load gives the load-balancing loss its least value, its coefficient, as in
// Switch Transformers: if the router's weights are zero, p is 1 / E everywhere.
BOOST_AUTO_TEST_CASE(the_balance_of_even_probabilities_is_its_coefficient) {
  qwen3_moe m = small;
  const interpreted_program<qwen3_moe> program(m, {.batch = {2, 32}, .precision = dtype::f64},
                                               "even");
  cpu device(product_type::automatic, 1);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(4);
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    for (std::int64_t i = 0; r.local_name == "mlp.gate.weight" && i < r.count.n; ++i)
      run.weights().set_weight(r.offset + i, 0);
  });
  std::vector<std::int32_t> tokens(64, 3), labels(64, 4);
  const loss_sum l = run.gradients(batch_view{tokens.data(), labels.data()});
  BOOST_TEST(std::abs(l.side / l.count - 2 * m.aux_loss) <= 1e-12); // two layers have experts
}

namespace {

// The bias moves against the sign of the load, and by nothing else. The stored weight, by which
// tokens are routed, follows its master.
void check_bias(dtype type) {
  qwen3_moe m = small;
  m.bias_rate = 0.25, m.aux_loss = 0;
  const interpreted_program<qwen3_moe> program(m, {.batch = {2, 32}, .precision = type}, "bias");
  cpu device(product_type::automatic, 1);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(4);
  run.numbers().learning_rate = 0;
  std::vector<std::int32_t> tokens, labels(64, 4);
  for (int i = 0; i < 64; ++i) tokens.push_back(i * 11 % 29);
  std::vector<std::vector<double>> loads;
  for (int steps = 0; steps < 3; ++steps) {
    const batch_view batch{tokens.data(), labels.data()};
    run.gradients(batch);
    std::vector<double> before;
    std::vector<double> load;
    const auto each = [&](auto f) {
      for_each_parameter(program.view(), [&](const parameter_ref& r) {
        for (std::int64_t i = 0;
             r.local_name == "mlp.gate.e_score_correction_bias" && i < r.count.n; ++i)
          f(r.offset + i);
      });
    };
    each([&](std::int64_t i) {
      before.push_back(run.weights().weight(i));
      load.push_back(stores::get(run.weights().gradients(), run.weights().precision().master, i));
    });
    double sum = 0, uneven = 0;
    for (double x : load) sum += x, uneven += std::abs(x);
    BOOST_TEST(std::abs(sum) < 1e-9);
    loads.push_back({uneven});
    run.step(batch);
    std::size_t k = 0;
    each([&](std::int64_t i) {
      const double sign = (load[k] > 0) - (load[k] < 0);
      BOOST_TEST(run.weights().weight(i) == before[k] - 0.25 * sign);
      BOOST_TEST(stores::get(run.weights().weights(), type, i) == run.weights().weight(i));
      ++k;
    });
    BOOST_TEST(k == 16u);
  }
  BOOST_TEST(loads[0][0] > 0);
}

} // namespace

BOOST_AUTO_TEST_CASE(the_bias_steps_towards_an_even_load) {
  for (dtype t : {dtype::f64, dtype::f32, dtype::bf16})
    BOOST_TEST_CONTEXT(name_of(t)) check_bias(t);
}
