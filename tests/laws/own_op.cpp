// The op, the layer and the family of examples/using-the-headers, which docs/writing-an-op.md and
// docs/writing-a-model.md explain: values, gradients, both executors, layouts.
#define BOOST_TEST_MODULE own_op
#include <boost/test/unit_test.hpp>

#include "../../examples/using-the-headers/own_run.hpp"
#include "directions.hpp"

#define MEGACPP_EXPECT_ERROR
#define MEGACPP_INTERPRETED
#include "../compile_fail/forgotten_copy.cpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/laws/soundness.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>

#include <limits>

#include <second_device.hpp>

using namespace mc;

/// A kernel of cached attention for the second device that only code of the host could run, so the
/// device has none.
template <> struct mc::kernel_on<&mc::op::cached_attention, mc_test::second_device> {
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c);
};
/// A kernel of attention that is the second device's own.
template <> struct mc::kernel_on<&mc::op::attention, mc_test::second_device> {
  using elements = mc::element_list<float>;
  template <class, class Call> static void run(Call& c) {
    c.lane().for_rows(1, [](const auto&, std::int64_t) {});
  }
};

namespace {

const cores host;

// [kernels]
/// The library's kernels and those of own_op.hpp.
kernel_table<cpu> own_kernels() {
  kernel_table<cpu> t = kernel_table<cpu>::all();
  t.add<&own::op::squared_relu>();
  t.add<&own::op::squared_relu_grad>();
  t.add<&own::op::squared_relu_grad_add>();
  return t;
}
// [/kernels]

constexpr own::decoder tiny() {
  return {.layers = 3,
          .hidden = 24,
          .heads = 2,
          .ffn = 21,
          .adapter = 3,
          .vocabulary = 29,
          .window = 4,
          .positions = 16};
}

template <class Precision> struct tiny_run {
  static constexpr own::decoder model = tiny();
  static constexpr mc::layout layout{};
  static constexpr batching batch{.micro = 2, .sequence = 11};
  using precision = Precision;
};

/// A model with a weight that is used as it is and computed on, so that two gradients collect for
/// it.
struct computed : gpt {
  constexpr computed() {
    layers = 2, hidden = 16, heads = 2, ffn = 12, vocabulary = 29, positions = 16, std = 0.3;
  }
  constexpr var block(context& c, int /*kind*/, var x) const {
    const var w = weight(c, "up", "weight", {{dim::ffn, ffn}, hidden_extent()},
                         on(axis::tp, S(dim::ffn)), normal_weights(std));
    const var m = to(layer_norm(c, "norm", x, bias, eps), axis::tp, R);
    const var up = linear(m, w) + linear(m, gelu(w));
    return x + row_parallel(c, "down", up, 1, hidden_extent(), bias, std);
  }
};

struct sequences {
  std::vector<std::int32_t> tokens, labels;
  explicit sequences(int n) {
    for (int i = 0; i < n; ++i)
      tokens.push_back(i * 5 % 29), labels.push_back(i % 7 == 3 ? -100 : (i * 5 + 5) % 29);
  }
  batch_view view() const { return {tokens.data(), labels.data()}; }
};

// [train]
/// Losses and gradient norms of a few steps, then the weights.
std::vector<double> train(const program_view& p, int threads) {
  cpu device(product_type::widened, threads);
  session run(p, device, purpose::training);
  run.weights().initialise(1);
  run.numbers().learning_rate = 1e-2, run.numbers().clip = 1;
  const sequences data(22);
  std::vector<double> out;
  for (int i = 0; i < 5; ++i) {
    const step_result r = run.step(data.view());
    out.push_back(r.loss.mean());
    out.push_back(r.norm);
  }
  for (std::int64_t i = 0; i < run.weights().total(); ++i) out.push_back(run.weights().weight(i));
  return out;
}
// [/train]

template <class Precision> void agree() {
  using run = tiny_run<Precision>;
  const auto compiled = train(compiled_program<run>("tiny"), 1);
  // [interpreter]
  const interpreted_program<own::decoder> program(
      run::model, {.batch = run::batch, .precision = Precision::policy}, "tiny", own_kernels());
  // [/interpreter]
  // [agree]
  BOOST_TEST((compiled == train(program.view(), 1)));
  BOOST_TEST((compiled == train(program.view(), 2)));
  BOOST_TEST(compiled[8] < 0.8 * compiled[0]);
  // [/agree]
}

template <class T> void compare_with_reference(std::int64_t n, double tolerance) {
  std::mt19937_64 random(static_cast<std::uint64_t>(n));
  std::normal_distribution<double> normal;
  std::vector<T> x, dy, y(static_cast<std::size_t>(n)), dx(y.size());
  for (std::int64_t i = 0; i < n; ++i)
    x.push_back(convert<T>(normal(random))), dy.push_back(convert<T>(normal(random)));
  for_blocks(host, n, own::squared_relu_block<T>{n, x.data(), nullptr, nullptr, y.data()});
  for_blocks(host, n, own::squared_relu_block<T>{n, x.data(), dy.data(), nullptr, dx.data()});
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double h = std::max(0.0, convert<double>(x[i])), g = convert<double>(dy[i]);
    BOOST_TEST(std::abs(convert<double>(y[i]) - h * h) <= tolerance * h * h);
    BOOST_TEST(std::abs(convert<double>(dx[i]) - 2 * g * h) <= tolerance * std::abs(2 * g * h));
  }
  // The fused form rounds where the gradient and the sum would, and may take over the memory of d.
  std::vector<T> d = y;
  for_blocks(host, n, own::squared_relu_block<T>{n, x.data(), dy.data(), d.data(), d.data()});
  for (std::size_t i = 0; i < x.size(); ++i)
    BOOST_TEST(convert<double>(d[i]) ==
               convert<double>(
                   convert<T>(convert<accumulator_t<T>>(dx[i]) + convert<accumulator_t<T>>(y[i]))));
}

} // namespace

BOOST_AUTO_TEST_CASE(against_plain_loops) {
  for (std::int64_t n : {1, 7, 16, 33, 5000}) {
    compare_with_reference<float>(n, 0x1p-23);
    compare_with_reference<bf16>(n, 0x1p-8);
    compare_with_reference<double>(n, 0x1p-52);
  }
  const float x[]{std::numeric_limits<float>::quiet_NaN(), -1.0f};
  float y[2];
  for_blocks(host, 2, own::squared_relu_block<float>{2, x, nullptr, nullptr, y});
  BOOST_TEST(std::isnan(y[0]));
  BOOST_TEST(y[1] == 0.0f);
}

// A saved state names every number of its model, above all those that do not show in shapes.
BOOST_AUTO_TEST_CASE(numbers_of_the_family) {
  BOOST_TEST(numbers_of(tiny()).size() == 8u + 4u);
  const auto value = [](own::decoder m, const std::string& name) {
    for (const model_number& n : numbers_of(m))
      if (n.name == name) return n.value;
    return -1.0;
  };
  own::decoder other = tiny();
  other.window = 5, other.eps = 1e-5, other.theta = 1e6;
  for (const char* name : {"window", "eps", "theta"})
    BOOST_TEST(value(tiny(), name) != value(other, name), name);
}

// Gradients are those of the loss, and ranks compute what one rank does.
BOOST_AUTO_TEST_CASE(soundness) {
  // [soundness]
  const own::decoder small{.layers = 4,
                           .hidden = 16,
                           .heads = 2,
                           .ffn = 12,
                           .adapter = 4,
                           .vocabulary = 29,
                           .window = 4,
                           .positions = 16};
  const laws::verdict found = laws::soundness(small, {.micro = 2, .sequence = 12}, own_kernels());
  for (const std::string& sentence : found.broken) BOOST_TEST(false, sentence);
  for (const std::string& layout : found.refused) BOOST_TEST(false, layout);
  // [/soundness]
  BOOST_TEST(found.gradients.size() == 2u + 4 * 10);
  BOOST_TEST(found.equal.size() == laws::usual_trials(false).size());
}

namespace {

/// The op x^2 with an error that an author may make: the gradient lacks the factor 2, or a square
/// is taken as linear, so that squares of the addends of a pending sum are added up.
struct square_in : input_names<square_in> {
  static constexpr name<0> x{};
  static constexpr name<1> dy{};
};
struct square_out : output_names<square_out> {
  static constexpr name<0> y{};
};
template <bool Factor, bool Nonlinear> struct square_op {
  static constexpr void grad_rule(inference& c) { // x, dy
    c.floats({0, 1}), c.alike(1, 0), c.declare(c.in(0));
    if (Nonlinear) place_output(c, 0, algebra::product, {0, 1});
    else place_output(c, 0, algebra::product, {1}); // the other half of the same claim
  }
  static constexpr void rule(inference& c) { // x
    c.floats({0}), c.declare(c.in(0));
    place_output(c, 0, Nonlinear ? algebra::nonlinear : algebra::sum, {0});
  }
  static constexpr op_info grad{
      .name = "square_grad", .rule = &grad_rule, .operands = named<square_in, square_out>};
  static constexpr void adjoint(backward& d, const node& n) {
    const value_id dy = d.of(n.out[0]), x = n.in[0];
    if (dy >= 0 && d.wants(x)) d.give(x, d.b.emit(grad, {x, dy}, n.line), n.line);
  }
  static constexpr op_info square{.name = "square",
                                  .rule = &rule,
                                  .adjoint = &adjoint,
                                  .operands = named<square_in, square_out>};
  struct kernel { // x, [dy]
    template <class T, class Call> static void run(Call& c) {
      const T *x = c.in(square_in::x), *dy = c.in(square_in::dy);
      for (std::int64_t i = 0; i < c.size(square_in::x); ++i)
        c.out(square_out::y)[i] = dy == nullptr ? x[i] * x[i] : (Factor ? 2 : 1) * x[i] * dy[i];
    }
  };
};
using square = square_op<true, true>;
using without_factor = square_op<false, true>;
using as_if_linear = square_op<true, false>;

/// A model that squares what its block adds to the stream, before it is summed over tp if the rule
/// allows it.
template <class Op> struct squaring : gpt {
  constexpr squaring() {
    layers = 2, hidden = 8, heads = 2, ffn = 8, vocabulary = 16, positions = 8, std = 0.3;
  }
  constexpr var block(context& c, int kind, var x) const {
    const var h = gpt::block(c, kind, x);
    const var w = weight(c, "own", "weight", {hidden_extent(), {dim::ffn, ffn}},
                         on(axis::tp, S(dim::ffn)), normal_weights(std));
    const var up = column_parallel(c, "up", to(rms_norm(c, "own_norm", h, eps), axis::tp, R),
                                   {{dim::ffn, ffn}}, false, std);
    const var y = linear(up, w);
    const var sum = std::is_same_v<Op, as_if_linear> ? y : to(y, axis::tp, c.stream);
    const var z{sum.b, sum.b->emit(Op::square, {sum.id}, here())};
    return h + (std::is_same_v<Op, as_if_linear> ? to(z, axis::tp, c.stream) : z);
  }
};
template <class Op> laws::verdict of_square() {
  kernel_table<cpu> kernels = kernel_table<cpu>::all();
  kernels.add<&Op::square, double>(), kernels.add<&Op::grad, double>();
  return laws::soundness(squaring<Op>{}, {.micro = 2, .sequence = 8}, kernels,
                         {{{.tp = 2}}, {{.tp = 3}}, {{.tp = 2, .pp = 2}, 2}});
}

} // namespace
template <> struct mc::kernel_of<&square::square> : square::kernel {};
template <> struct mc::kernel_of<&square::grad> : square::kernel {};
template <> struct mc::kernel_of<&without_factor::square> : without_factor::kernel {};
template <> struct mc::kernel_of<&without_factor::grad> : without_factor::kernel {};
template <> struct mc::kernel_of<&as_if_linear::square> : as_if_linear::kernel {};
template <> struct mc::kernel_of<&as_if_linear::grad> : as_if_linear::kernel {};

BOOST_AUTO_TEST_CASE(soundness_finds_what_an_author_forgets) {
  const auto tells = [](const std::vector<std::string>& sentences, const std::string& words) {
    return std::any_of(sentences.begin(), sentences.end(),
                       [&](const std::string& s) { return s.find(words) != std::string::npos; });
  };
  const laws::verdict right = of_square<square>();
  for (const std::string& sentence : right.broken) BOOST_TEST(false, sentence);
  BOOST_TEST((right.equal == std::vector<std::string>{"tp 2", "tp 2, pp 2, dp 2"}));
  BOOST_TEST((right.refused.size() == 1u && tells(right.refused, "tp 3: MEGA-S001")));

  const laws::verdict factor = of_square<without_factor>();
  BOOST_TEST(tells(factor.broken, "The gradient of layers.1.own.weight"));
  BOOST_TEST(tells(factor.gradients, "ln_f.weight")); // behind the op

  const laws::verdict linear = of_square<as_if_linear>();
  BOOST_TEST(linear.gradients.size() == right.gradients.size());
  BOOST_TEST(linear.broken.size() == 2u, (linear.refused.empty() ? "" : linear.refused[0]));
  BOOST_TEST(tells(linear.broken, "Under tp 2 "));
}

// The gradient that the epilogue derives is added to the collected one, once in each step.
BOOST_AUTO_TEST_CASE(a_weight_may_be_computed_on) {
  const interpreted_program<computed> program(
      computed{}, {.batch = {2, 11}, .precision = dtype::f64}, "computed");
  cpu device(product_type::automatic, 1);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(3);
  const sequences data(22);
  const auto* g = reinterpret_cast<const double*>(run.weights().gradients());
  auto* w = reinterpret_cast<double*>(run.weights().weights());
  const auto gradients = [&] { return std::vector<double>(g, g + run.weights().total()); };
  run.gradients(data.view());
  const std::vector<double> once = gradients();
  run.gradients(data.view());
  BOOST_TEST((gradients() == once));
  std::mt19937_64 random(13);
  int tensors = 0;
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    if (r.name.find("up.weight") == std::string::npos) return;
    const auto first = static_cast<std::size_t>(r.offset);
    const auto d = directional::unit_direction(random, static_cast<std::size_t>(r.count.n));
    const std::vector<double> kept(w + first, w + first + d.size());
    const double quotient = directional::central_difference(
        [&](double t) {
          for (std::size_t i = 0; i < d.size(); ++i) w[first + i] = kept[i] + t * d[i];
          return run.evaluate(data.view()).sum;
        },
        5e-4);
    std::copy(kept.begin(), kept.end(), w + first);
    double derived = 0, norm = 0;
    for (std::size_t i = 0; i < d.size(); ++i)
      derived += g[first + i] * d[i], norm += g[first + i] * g[first + i];
    BOOST_TEST(std::abs(quotient - derived) <= 1e-6 * std::sqrt(norm));
    ++tensors;
  });
  BOOST_TEST(tensors == 2);
}

BOOST_AUTO_TEST_CASE(compiled_and_interpreted) {
  agree<fp32>();
  agree<bf16_mixed>();
}

BOOST_AUTO_TEST_CASE(an_op_without_a_kernel_is_named) {
  using program = interpreted_program<own::decoder>;
  BOOST_CHECK_EXCEPTION(program(tiny(), {.batch = {2, 11}}, "tiny"), error, [](const error& e) {
    const std::string what = e.what();
    return e.code() == exit_code::mismatch && what.find("MEGA-B001") != std::string::npos &&
           what.find("squared_relu") != std::string::npos;
  });
}

// A device that runs no code of the host has the kernels that start bodies, and kernels of its own.
// For an op whose kernel is code of the host, the table says that there is none.
BOOST_AUTO_TEST_CASE(a_device_has_the_kernels_that_it_can_run) {
  kernel_table<mc_test::second_device> t;
  t.add<&mc::op::gelu>(), t.add<&mc::op::attention>(), t.add<&mc::op::attention_grad>();
  t.add<&mc::op::cached_attention>(), t.add<&mc::op::embedding_grad>();
  BOOST_TEST(t.find(&mc::op::gelu, dtype::bf16).run != nullptr);
  BOOST_TEST(t.find(&mc::op::embedding_grad, dtype::bf16).run != nullptr);
  BOOST_TEST(t.find(&mc::op::attention, dtype::f32).run != nullptr);
  BOOST_CHECK_THROW(t.find(&mc::op::attention, dtype::bf16), error); // it is for float alone
  BOOST_TEST(t.find(&mc::op::attention_grad, dtype::f32).run != nullptr);
  BOOST_CHECK_EXCEPTION(t.find(&mc::op::cached_attention, dtype::f32), error, [](const error& e) {
    return std::string(e.what()).find(
               "MEGA-B001: the interpreter has no kernel of "
               "cached_attention for f32 on this device") == 0;
  });
}

// A fault at run time is the sentence that the compiler would print, with the line and the file.
BOOST_AUTO_TEST_CASE(a_fault_is_one_sentence) {
  using program = interpreted_program<mlp>;
  BOOST_CHECK_EXCEPTION(
      program(mlp{small()}, {.ranks = tensor_parallel(2), .batch = {2, 16}}, "mlp"), error,
      [](const error& e) {
        BOOST_TEST(std::string(e.what()) ==
                   "MEGA-P004 at forgotten_copy.cpp:16, linear(layer_norm@19, mlp.up.weight) over "
                   "tp: an operand is invariant where another is sharded, so its gradient would "
                   "never be summed: convert it with to(x, axis, R)");
        return e.code() == exit_code::mismatch;
      });
}

// The op's result stands beside its operand: the gradient of one is added to that of the other. The
// compiler compares the fused node with its members (MEGA-P019).
BOOST_AUTO_TEST_CASE(the_gradient_is_added_to_another) {
  for (const bool twice : {false, true}) {
    builder b{mesh::one_rank()};
    const var x = b.parameter("", "x", dtype::f64, {{dim::batch, 2}, {dim::ffn, 5}}, {}, {}),
              u = gelu(x), y = own::squared_relu(u);
    b.g.outputs[0] = (twice ? y + u : y).id;
    const graph g = after_passes(b.g, {.backward = true});
    BOOST_TEST((g.wrong.code == fault::none));
    int fused = 0;
    for (int i = 0; i < g.node_count; ++i)
      fused += g.at_node(i).op == &own::op::squared_relu_grad_add;
    BOOST_TEST(fused == (twice ? 1 : 0));
  }
}

// The same block is sound under every layout that fits it, and a layout that does not fit is
// refused.
namespace {

/// A model with a gain that each use of the tied parameter gathers first.
struct gathered_gain : gpt {
  constexpr var gain(context& c, bool tied) const {
    parameter_info p = ones();
    p.tied = tied;
    const var g = weight(c, "gain", "weight", {hidden_extent()}, on(axis::tp, S(dim::hidden)), p);
    return to(to(g, axis::tp, I), axis::tp, beside(c.stream));
  }
  constexpr var stem(context& c, var tokens) const {
    return rms_norm(gpt::stem(c, tokens), gain(c, false), eps);
  }
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, rms_norm(x, gain(c, true), eps));
  }
};

} // namespace

// The fault is reported before the plans are made, which have no place for the gathered gradient.
BOOST_AUTO_TEST_CASE(a_tied_use_that_is_gathered_is_told_so) {
  using program = interpreted_program<gathered_gain>;
  BOOST_CHECK_EXCEPTION(
      program(gathered_gain{small()}, {.ranks = tensor_parallel(2), .batch = {2, 16}}, "tied"),
      error, [](const error& e) {
        const std::string what = e.what();
        BOOST_TEST(what.find("MEGA-P002") == 0u, what);
        BOOST_TEST(what.find("tied(gain.weight) over tp") != std::string::npos, what);
        return e.code() == exit_code::mismatch;
      });
}

BOOST_AUTO_TEST_CASE(layouts) {
  const auto verdict = [](const layout& l) {
    for (int kind = -1; kind <= own::decoder::kinds; ++kind) {
      const part_kind part = kind < 0                      ? part_kind::stem
                             : kind == own::decoder::kinds ? part_kind::loss
                                                           : part_kind::block;
      const graph g =
          derived_graph(forward_graph(own::decoder{}, {.ranks = l, .batch = {2, 128}}, part, kind));
      if (g.wrong.code != fault::none) return g.wrong.code;
    }
    return fault::none;
  };
  for (int tp : {1, 2, 4})
    for (int cp : {1, 2, 4})
      for (bool sequence : {false, true}) {
        if (sequence && tp == 1) continue;
        BOOST_TEST_CONTEXT("tp " << tp << ", cp " << cp << ", sequence parallel " << sequence)
        BOOST_TEST(static_cast<int>(verdict({.tp = tp, .cp = cp, .sequence_parallel = sequence})) ==
                   0);
      }
  BOOST_TEST((verdict({.tp = 3}) == fault::S001));
  BOOST_TEST((verdict({.pp = 5}) == fault::C002));
}
