// Kernels on one rank's shard of every operand: the kernels of a rank compute the same as the plain
// loops, and all ranks together compute the same as one rank, both one rank after another and as
// threads that exchange values. Then parts of models longer than 64 rows, in every type; masks of
// dropout.
//
//   laws_kernels_on_ranks [boost options] -- [graphs [first seed]]
#define BOOST_TEST_MODULE kernels_on_ranks
#include "model_law.hpp"
#include "node_kernel.hpp"

#include <megacpp/comm/threads.hpp>
#include <megacpp/graph/letters.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <iostream>
#include <set>

using namespace mc;
using namespace mc::laws;

namespace {

node_kernel& kernel() {
  static node_kernel one;
  return one;
}

int runs = 1; ///< runs of every kernel; threads share its rows in another way each time

/// Runs a node by its kernel, and compares the result with the plain loops on the same operands.
void by_kernel(node_task& t) {
  std::array<array, max_inputs> exact; // operands as the kernel's type stores them
  for (unsigned k = 0; k < max_inputs; ++k) {
    if (t.n.in[k] < 0) continue;
    for (double x : *t.inputs[k]) exact[k].push_back(rounded(x, t.g.at(t.n.in[k]).type));
    t.inputs[k] = &exact[k];
  }
  plain::all().at(t.n.op)(t);
  for (int a = 0; a < axes; ++a)
    kernel().rank[static_cast<unsigned>(a)] = t.w.coordinate(t.rank, axis(a));
  kernel().place(t.g, t.n);
  for (int k = 0; k < runs; ++k) {
    kernel().run(t.g, t.n, [&](unsigned i) -> const array& { return exact[i]; });
    for (unsigned i = 0; i < max_outputs; ++i) {
      if (t.n.out[i] < 0 || t.g.at(t.n.out[i]).is == role::scratch) continue;
      const std::string wrong = kernel().difference(t.g, t.n, i, t.outputs[i]);
      need(wrong.empty(),
           (std::string(t.n.op->name) + " on rank " + std::to_string(t.rank) + ": " + wrong)
               .c_str());
    }
  }
  for (unsigned i = 0; i < max_outputs; ++i)
    if (t.n.out[i] >= 0 && t.g.at(t.n.out[i]).is != role::scratch)
      t.outputs[i] = kernel().get(t.g, t.n.out[i]);
}
const implementations& kernels() {
  static const implementations table = [] {
    implementations all = plain::all();
    for (auto& [op, f] : all)
      if (f != nullptr) f = &by_kernel; // redistributions move values between ranks
    return all;
  }();
  return table;
}

/// A dim that is cut by an axis of unknown size is a rank's own (plan/boxes.hpp), as batches are: a
/// kernel cannot tell where the rank's elements lie in the whole.
bool every_rank_knows_its_part(const graph& g) {
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    for (int k = 0; k < v.rank; ++k)
      for (int a = 0; a < axes; ++a)
        if (const dim d = v.dims[static_cast<unsigned>(k)].d;
            d != dim::batch && !g.ranks.sized(axis(a)) && v.at[axis(a)].is_shard(d))
          return false;
  }
  return true;
}

int argument(int k, int otherwise) {
  const auto& suite = boost::unit_test::framework::master_test_suite();
  return suite.argc > k ? std::atoi(suite.argv[k]) : otherwise;
}

/// Calls f(sample, seed) for `graphs` random graphs with their gradients, drawn from seeds from
/// `first_seed` on.
template <class F> void for_each_random_graph(int graphs, int first_seed, const F& f) {
  int drawn = 0;
  for (auto seed = static_cast<std::uint64_t>(first_seed); drawn < graphs; ++seed) {
    const auto s = std::make_unique<sample>();
    random_graph random(seed, {}, *s);
    if (!random.draw() || !draw_single(*s)) continue;
    const auto output = static_cast<std::size_t>(s->output);
    if (derive(s->meshed, s->meshed.values[output], s->of_meshed) != fault::none ||
        derive(s->single, s->single.values[output], s->of_single) != fault::none)
      continue;
    const graph& g = s->meshed.b.g;
    if (!every_rank_knows_its_part(g)) continue;
    ++drawn;
    f(*s, seed);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(random_graphs_on_any_mesh) {
  for_each_random_graph(argument(1, 200), argument(2, 100000), [](sample& s, std::uint64_t seed) {
    const graph& g = s.meshed.b.g;
    comparison against(s, seed, kernels());
    for (const graph& one : {g, fused(g)})
      if (one.wrong.code == fault::none) BOOST_TEST(against.difference(one) == "", "seed " << seed);
  });
}

namespace {

/// Returns the mesh of a world, with the expert mesh folded over its ranks.
mesh whole_mesh(const world& w) {
  mesh m = mesh_of(w);
  if (!w.folded) m.size[static_cast<unsigned>(axis::edp)] = w.ranks() / w.of(axis::pp);
  return m;
}
/// Returns the rank of a world at a communicator's coordinates.
std::size_t rank_at(const world& w, const communicator& c) {
  int r = 0;
  for (int a = 0; a < (w.folded ? static_cast<int>(axis::edp) : axes); ++a)
    if (w.size[static_cast<unsigned>(a)] > 1)
      r += c.coordinate()[static_cast<unsigned>(a)] * w.stride(axis(a));
  return static_cast<std::size_t>(r);
}

/// Runs a step on ranks that are threads: every node by its kernel, which exchanges values through
/// the communicator of a program.
void run_as_threads(machine& m, const laws::feeds& given, int micros) {
  static std::vector<std::unique_ptr<node_kernel>> kernels;
  const auto count = static_cast<std::size_t>(m.w.ranks());
  while (kernels.size() < count) kernels.push_back(std::make_unique<node_kernel>(1));
  for (int i = 0; i < m.g.value_count; ++i)
    if (const value& v = m.g.at(static_cast<value_id>(i)); v.is == role::gradient)
      m.stores[v.grad_of].resize(count);
  thread_ranks ranks(whole_mesh(m.w), std::chrono::seconds(60));
  const auto execute = [&](const node& n, std::size_t r, communicator& c) {
    const auto operand = [&](unsigned k) -> const array& { return m.of(n.in[k])[r]; };
    if (n.op == &op::add_total) {
      m.held[static_cast<std::size_t>(n.in[0])][r][0] += operand(1)[0];
      return;
    }
    node_kernel& k = *kernels[r];
    k.rank = c.coordinate(), k.ranks = &c;
    k.place(m.g, n);
    k.run(m.g, n, operand);
    for (const value_id v : n.out)
      if (v >= 0 && m.g.at(v).is != role::scratch) m.give(v, static_cast<int>(r), k.get(m.g, v));
  };
  const auto phases = [&](std::initializer_list<phase> list) {
    ranks.run([&](communicator& c) {
      cpu device(product_type::widened, 1); // whose memory all kernels' is
      const auto others = c.make_ranks(device);
      for (const phase p : list)
        for (int i = 0; i < m.g.node_count; ++i)
          if (m.g.at_node(i).when == p) execute(m.g.at_node(i), rank_at(m.w, c), *others);
    });
  };
  m.take(given, 0);
  phases({phase::prologue});
  for (int k = 0; k < micros; ++k) {
    m.forget();
    m.take(given, static_cast<std::size_t>(k));
    phases({phase::forward, phase::input_gradient, phase::weight_gradient, phase::stream_gradient});
    m.after_micro_batch.push_back(m.held);
  }
  m.forget();
  phases({phase::epilogue});
}

} // namespace

// Tests the kernels of a session on its communicator, before and after fusion, over every axis of
// both meshes, with ranks that meet in every exchange.
BOOST_AUTO_TEST_CASE(random_graphs_on_ranks_that_are_threads) {
  const int graphs = argument(1, 150);
  int over[axes]{};
  for_each_random_graph(graphs, argument(2, 200000), [&](sample& s, std::uint64_t seed) {
    const graph& g = s.meshed.b.g;
    for (int a = 0; a < axes; ++a) over[a] += s.ranks.size[static_cast<unsigned>(a)] > 1;
    comparison against(s, seed, plain::all(), &run_as_threads);
    const graph one = seed % 2 == 0 ? fused(g) : g;
    if (one.wrong.code == fault::none) BOOST_TEST(against.difference(one) == "", "seed " << seed);
  });
  std::cout << graphs << " random graphs on ranks that are threads, over";
  for (int a = 0; a < axes; ++a) {
    std::cout << " " << name_of(static_cast<axis>(a)) << " " << over[a];
    if (graphs >= 150) BOOST_TEST(over[a] > 5, name_of(static_cast<axis>(a)));
  }
  std::cout << "\n";
}

namespace {

/// Returns the results of a step of one part of a model on one rank, with random weights, and with
/// tokens and labels that repeat.
template <class Model>
std::string step_of(const Model& m, setup s, part_kind part, dtype t, std::uint64_t seed) {
  s.precision = t;
  const graph forward = forward_graph(m, s, part, 0);
  std::string all;
  for (const graph& g : {derived_graph(forward), in_regions(fused(derived_graph(forward)))}) {
    if (g.wrong.code != fault::none) return describe(g);
    world one;
    machine run(one, g, kernels());
    laws::feeds f;
    for (int i = 0; i < g.value_count; ++i) {
      const value& v = g.at(static_cast<value_id>(i));
      if (v.producer >= 0 || (v.is != role::parameter && v.is != role::input)) continue;
      array x;
      for (std::int64_t k = 0; k < logical_size(one, g.ranks, v); ++k) {
        const double y =
            scrambled(seed, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(k));
        if (v.differentiable()) x.push_back(rounded(v.rank == 0 ? 1 : y, v.type));
        else if (v.holds == integer_kind::positions || v.holds == integer_kind::order)
          x.push_back(static_cast<double>(k % s.batch.sequence));
        else if (v.holds == integer_kind::documents)
          x.push_back(static_cast<double>(k % s.batch.sequence / 7));
        else
          x.push_back(v.from == feed::labels && y > 0.5 ? -1
                                                        : std::floor((y + 1) / 2 * m.vocabulary));
      }
      f.logical[static_cast<value_id>(i)] = {x};
    }
    try {
      run.run(f, 1);
    } catch (const mismatch& e) {
      all += std::string(e.what()) + "\n";
    }
  }
  return all;
}

} // namespace

// Two sequences of 200 tokens: a loss is computed 128 rows at a time, and a router's counts are
// added in pieces of as many. The vocabulary is so wide that threads share such a piece.
BOOST_AUTO_TEST_CASE(sequences_longer_than_a_block_of_rows) {
  static_assert(op::max_logit_rows < 200 && 200 % op::max_logit_rows != 0);
  qwen3_moe m;
  m.layers = 1, m.hidden = 8, m.heads = 2, m.kv_heads = 1, m.head_dim = 4, m.expert_ffn = 6;
  m.experts = 5, m.experts_per_token = 2, m.vocabulary = 1003, m.positions = 200;
  m.aux_loss = 0.3, m.router_z_loss = 0.02, m.window = 30, m.z_loss = 0.01;
  runs = 16;
  for (dtype t : {dtype::f64, dtype::f32, dtype::bf16})
    for (part_kind part : {part_kind::stem, part_kind::block, part_kind::loss})
      BOOST_TEST(step_of(m, {.batch = {2, 200, false, 1 << 10}}, part, t, 3) == "", name_of(t));
  runs = 1;
}

namespace {

/// Returns the result of a dropout of p = 1/2 on ones.
array mask_of(std::int64_t salt, std::uint64_t seed, std::int64_t step, int layer, bool dropping) {
  builder b{mesh(layout{})};
  const extent B{dim::batch, 1}, Sq{dim::sequence, 40}, H{dim::hidden, 25};
  dropout(b.input(feed::stream, "x", dtype::f32, {B, Sq, H}, {}),
          b.input(feed::token_keys, "keys", dtype::i32, {B, Sq}, {}), 0.5, salt);
  static node_kernel k;
  k.constants.dropping = dropping, k.layer = layer;
  array operands[] = {
      array(40 * 25, 1.0), {}, {static_cast<double>(seed)}, {static_cast<double>(step)}};
  for (int i = 0; i < 40; ++i) operands[1].push_back(i);
  const node& n = b.g.at_node(0);
  k.place(b.g, n);
  k.run(b.g, n, [&](unsigned i) -> const array& { return operands[i]; });
  return k.get(b.g, n.out[0]);
}

} // namespace

// Masks of two steps, layers, salts or seeds are independent: half of their elements differ. The
// same numbers give the same mask; an evaluation has none.
BOOST_AUTO_TEST_CASE(every_dropout_of_every_step_has_a_mask_of_its_own) {
  std::vector<array> masks;
  for (std::uint64_t seed : {1u, 2u})
    for (std::int64_t step : {0, 1, 2, 100000})
      for (int layer : {-1, 0, 1, 40})
        for (std::int64_t salt : {0, 1, 255}) {
          masks.push_back(mask_of(salt, seed, step, layer, true));
          BOOST_TEST((masks.back() == mask_of(salt, seed, step, layer, true)));
        }
  for (std::size_t i = 0; i < masks.size(); ++i)
    for (std::size_t j = 0; j < i; ++j) {
      int differ = 0;
      for (std::size_t k = 0; k < masks[i].size(); ++k) differ += masks[i][k] != masks[j][k];
      if (differ < 400 || differ > 600) // 500 +- 16
        BOOST_ERROR("masks " << j << " and " << i << " differ in " << differ << " of 1000");
    }
  BOOST_TEST((mask_of(0, 1, 3, 0, false) == array(1000, 1.0)));
}

// The mask of heads, or of widths, that several ranks share is a shard of the whole mask.
BOOST_AUTO_TEST_CASE(masks_of_heads_lie_as_the_heads_do) {
  const extent B{dim::batch, 2}, Sq{dim::sequence, 4}, A{dim::heads, 6}, D{dim::head_dim, 4};
  for (dim cut : {dim::heads, dim::head_dim}) {
    world w;
    w.size[static_cast<unsigned>(axis::cp)] = w.size[static_cast<unsigned>(axis::tp)] = 2;
    builder b{mesh(layout{.tp = 2, .cp = 2})};
    placement of_keys, of_x;
    of_keys[axis::cp] = of_x[axis::cp] = S(dim::sequence), of_keys[axis::tp] = R;
    of_x[axis::tp] = S(cut);
    const var x = b.input(feed::stream, "x", dtype::f64, {B, Sq, A, D}, of_x),
              keys = b.input(feed::token_keys, "keys", dtype::i32, {B, Sq}, of_keys);
    const var y = dropout(x, keys, 0.5, 3);
    BOOST_TEST_REQUIRE((b.g.wrong.code == fault::none), describe(b.g));
    laws::feeds f;
    f.logical[x.id] = {array(2 * 4 * 6 * 4, 1.0)};
    f.logical[keys.id] = {{0, 1, 2, 3, 4, 5, 6, 7}};
    machine run(w, b.g, kernels());
    BOOST_CHECK_NO_THROW(run.run_forward(f));
    bool copies = true;
    const array mask = run.logical(y.id, copies);
    std::array<std::set<array>, 2> halves; // of the heads: no half repeats the other
    for (std::size_t i = 0; i < mask.size(); i += 12)
      halves[i / 12 % 2].insert({mask.begin() + static_cast<std::ptrdiff_t>(i),
                                 mask.begin() + static_cast<std::ptrdiff_t>(i + 12)});
    for (const array& a : halves[0]) BOOST_TEST(halves[1].count(a) == 0u);
  }
}

namespace {

/// Compares what the kernel decodes, in fp32, and leaves what the plain loops give.
void decoded_by_kernel(node_task& t) {
  node_task by{t};
  by_kernel(by);
  plain::nf4_decode(t);
}
/// Checks the kernels of a block whose linear layers are in NF4, on every rank of a layout. Returns
/// how many of its nodes decode.
template <class Model> int decodes(const Model& m, const layout& l, int dp) {
  const lora adapter{.rank = 2, .alpha = 4, .base = base_storage::nf4};
  const auto s = drawn(m, l, dp, part_kind::block, false, 0, 0, adapter);
  const graph g = s->meshed.b.g;
  s->of_meshed = s->of_single = gradients::none();
  implementations ops = kernels();
  ops[&op::nf4_decode] = &decoded_by_kernel;
  comparison against(*s, 1, ops);
  const std::string wrong = against.forward_difference(g);
  BOOST_TEST(wrong == "", wrong << ", tp " << l.tp << " ep " << l.ep);
  int count = 0;
  for (int i = 0; i < g.node_count; ++i) count += g.at_node(i).op == &op::nf4_decode;
  return count;
}

} // namespace

// The matrix of 64 by 640 elements has 640 blocks, the first 320 of them in two nested blocks; of
// each of its rows a rank has half, and the second half of blocks of the one of 640 by 64.
BOOST_AUTO_TEST_CASE(weights_in_nf4_are_decoded_as_of_whole_matrices) {
  qwen3 m;
  m.layers = 1, m.hidden = 64, m.heads = 16, m.kv_heads = 2, m.head_dim = 8, m.ffn = 64 * 10;
  m.vocabulary = 11, m.positions = 24;
  BOOST_TEST(decodes(m, {}, 1) == 7);
  BOOST_TEST(decodes(m, {.tp = 2, .sequence_parallel = true}, 1) == 7);
  BOOST_TEST(decodes(m, {.tp = 2, .cp = 2}, 1) == 7);
  qwen3_moe e;
  e.layers = 1, e.hidden = 64, e.heads = 16, e.kv_heads = 2, e.head_dim = 8;
  e.expert_ffn = 64 * 6, e.experts = 4, e.experts_per_token = 2, e.vocabulary = 11;
  e.positions = 24;
  BOOST_TEST(decodes(e, {.tp = 2, .ep = 1, .etp = 2}, 1) == 7);
  BOOST_TEST(decodes(e, {.tp = 2, .ep = 2, .etp = 1}, 1) == 7);
}
