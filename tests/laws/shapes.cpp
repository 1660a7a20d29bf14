// Every op on every small shape that its rule accepts: the kernel reads and writes all elements
// that exist, and no others, and computes the op's equations. Operands have allocations of their
// own, so that AddressSanitizer finds an access to one element too many.
#define BOOST_TEST_MODULE shapes
#include <boost/test/unit_test.hpp>

#include "node_kernel.hpp"
#include "plain_ops.hpp"
#include "specimens.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <iostream>
#include <random>

#if defined(MEGACPP_SANITIZED)
#include <sanitizer/common_interface_defs.h>
#endif

using namespace mc;
using namespace mc::laws;

namespace {

std::string current; ///< the specimen that runs, for a sanitizer's report

// --- specimens of every op -----------------------------------------------------------------------

/// The nodes of the models' graphs in training and generation, before and after fusion, and of a
/// few graphs for ops that models of one rank lack.
class collection {
public:
  std::vector<specimen> all;

  explicit collection(dtype t) : type(t) {
    gpt g;
    g.layers = 1, g.hidden = 8, g.heads = 2, g.ffn = 12, g.vocabulary = 11, g.positions = 6;
    g.dropout = 0.25, g.z_loss = 0.01;
    parts(g);
    g.bias = false, g.dropout = 0, g.z_loss = 0;
    parts(g);
    qwen3_moe m;
    m.layers = 2, m.hidden = 8, m.heads = 4, m.kv_heads = 2, m.head_dim = 6, m.ffn = 5;
    m.expert_ffn = 3, m.experts = 3, m.experts_per_token = 2, m.vocabulary = 11, m.positions = 6;
    m.sparse_step = 2, m.router_z_loss = 0.01, m.bias_rate = 1e-3, m.window = 3, m.z_loss = 0.01;
    parts(m);
    m.aux_per_sequence = true, m.capacity = 1, m.bias_rate = 0, m.window = 0;
    parts(m, true);
    others();
  }

private:
  dtype type;
  std::set<std::string> seen;

  void take(const graph& g) {
    if (g.wrong.code != fault::none)
      throw std::runtime_error(std::string(code_of(g.wrong.code)) + " " + g.wrong.what.c_str());
    for (int i = 0; i < g.node_count; ++i) {
      specimen s = specimen_of(g, g.at_node(i));
      if (seen.insert(s.text()).second) all.push_back(std::move(s));
    }
  }
  template <class Model> void parts(const Model& m, bool packed = false) {
    const setup train{.batch = {2, 5, packed}, .precision = type},
        cached = for_generation(train, 2, 3, 6);
    std::vector<graph> trained;
    std::vector<part_kind> kinds{part_kind::stem};
    for (int k = 0; k < Model::kinds; ++k) kinds.push_back(part_kind::block);
    kinds.push_back(part_kind::loss);
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const int kind = kinds[i] == part_kind::block ? static_cast<int>(i) - 1 : 0;
      const graph forward = forward_graph(m, train, kinds[i], kind);
      const graph derived = derived_graph(forward);
      take(derived), take(fused(derived));
      take(fused(
          forward_graph(m, cached, i + 1 < kinds.size() ? kinds[i] : part_kind::logits, kind)));
      trained.push_back(after_passes(forward, {.backward = true}));
    }
    std::vector<const graph*> pointers;
    for (const graph& g : trained) pointers.push_back(&g);
    const std::vector<int> layers(pointers.size(), 1);
    for (const int zero : {0, 1})
      take(update_graph(make_registry(pointers, layers, zero), mesh(layout{}), type));
  }
  /// Adds repeated heads, weights that are computed and used twice, and numbers that models do not
  /// use.
  void others() {
    const extent B{dim::batch, 2}, S{dim::sequence, 3}, H{dim::hidden, 4}, F{dim::ffn, 5},
        K{dim::kv_heads, 2}, A{dim::heads, 4}, D{dim::head_dim, 2};
    const auto derive = [&](auto build) {
      builder b{mesh{}};
      b.g.outputs[0] = build(b).id;
      const graph g = derived_graph(b.g);
      take(g), take(fused(g));
    };
    const auto parameter = [&](builder& b, const char* name, std::initializer_list<extent> dims) {
      return b.parameter("", name, type, dims, {}, {});
    };
    derive([&](builder& b) {
      const var x = parameter(b, "x", {B, S, H}), w = parameter(b, "w", {F, H});
      return linear(gelu(scale(x, 0.7), gelu_form::exact), repeat(w + gelu(scale(w, -1.5)), 3));
    });
    derive([&](builder& b) {
      attention_options o;
      o.causal = false, o.scale = 0.3;
      const extent keys{dim::sequence, 5};
      return attention(parameter(b, "q", {B, S, A, D}), parameter(b, "k", {B, keys, K, D}),
                       parameter(b, "v", {B, keys, K, D}), {}, o);
    });
    derive([&](builder& b) { // keys for every query head
      attention_options o;
      o.causal = false;
      return attention(parameter(b, "q", {B, S, A, D}), parameter(b, "k", {B, S, A, D}),
                       parameter(b, "v", {B, S, A, D}), {}, o);
    });
    builder b{mesh{}};
    // Matrices in NF4: rows of whole blocks, blocks of two rows, a row of more nested blocks than
    // one, and matrices of experts.
    const auto decoded = [&](const char* name, std::initializer_list<extent> dims) {
      const auto w = b.parameter("", name, nf4_encoding, dims, {}, {});
      b.emit(op::nf4_decode, {w[0].id, w[1].id, w[2].id}, 0, op::nf4_decode_attributes{type});
    };
    decoded("rows", {{dim::hidden, 3}, {dim::ffn, 128}});
    decoded("two rows", {{dim::hidden, 2}, {dim::ffn, 32}});
    decoded("nested", {{dim::ffn, 64 * 257}});
    decoded("experts", {{dim::expert, 2}, {dim::ffn, 2}, {dim::hidden, 64}});
    const var x = parameter(b, "x", {B, S, H}), y = parameter(b, "y", {B, S, H});
    b.emit(op::sum, {x.id, y.id}, 0);
    b.emit(op::accumulate, {x.id}, 0);
    for (dtype t : {dtype::f64, dtype::f32, dtype::bf16})
      b.emit(op::cast, {x.id}, 0, op::cast_attributes{t});
    for (dtype t : {dtype::i32, type})
      op::emit_redistribution(b, op::redistribute, b.input(feed::tokens, "x", t, {B, S}, {}).id,
                              axis::dp, R, 0);
    // A factor for each half of a row, and the gradient of those factors.
    const value_id halves =
        b.input(feed::adapters, "w", accumulator_of(type), {B, S, {dim::hidden, 2}}, {}).id;
    b.emit(op::scale_rows, {x.id, halves}, 0);
    b.emit(op::scale_rows_weight_grad, {x.id, y.id, halves}, 0);
    const value_id h = b.input(feed::tokens, "h", accumulator_of(type), {F}, {}).id;
    b.emit(op::add_gradient, {h, b.input(feed::labels, "g", accumulator_of(type), {F}, {}).id}, 0);
    take(b.g);
  }
};

// --- operands ------------------------------------------------------------------------------------

/// The data of a node's operands, within the limits that the op's comment gives.
struct operands_of {
  const graph& g;
  const node n;
  std::mt19937_64 random;
  std::vector<array> x = std::vector<array>(max_inputs);

  operands_of(const graph& graph_, const node& node_, std::uint64_t seed)
      : g(graph_), n(node_), random(seed) {
    for (int k = 0; k < max_inputs; ++k) {
      if (n.in[at(k)] < 0) continue;
      if (v(k).type == dtype::i32) declared(k);
      else if (!v(k).differentiable()) integers(k, -1, 2);
      else floats(k);
    }
    const op_info* const o = n.op;
    if (o == &op::dropout) integers(1, 0, 1000);
    if (o == &op::nf4_decode) integers(0, 0, 256), integers(1, 0, 256);
    if (o == &op::route || o == &op::route_grad) coarse(o == &op::route ? 0 : 1);
    if (o == &op::add_rms_norm || o == &op::add_layer_norm) coarse(0), coarse(1);
    if (o == &op::route_grad) choices(2);
    if (o == &op::expert_load) choices(0);
    if (o == &op::router_statistics) choices(1);
    if (o == &op::expert_rows) choices(0), x[1] = x[0]; // one rank has the whole micro-batch
    if (o == &op::attention) marks(3, 0, 1);
    if (o == &op::attention_grad) marks(6, 1, 2), forward_of_attention();
    if (o == &op::cached_attention) slots();
    if (o == &op::dispatch || o == &op::combine) plan_rows();
    if (o == &op::grouped_linear || o == &op::grouped_input_grad || o == &op::grouped_weight_grad)
      counts();
    if (o == &op::clip_factor || o == &op::adamw)
      for (int k = 0; k < max_inputs; ++k)
        for (double& y : x[at(k)])
          if (v(k).differentiable()) y = std::abs(y) + 0.125;
    if (o == &op::clip_factor && below(0, 2) == 0) // sets a norm below the limit
      for (std::size_t k = 2; k < max_inputs; ++k)
        for (double& y : x[k]) y /= 1024;
  }

private:
  static std::size_t at(std::int64_t k) { return static_cast<std::size_t>(k); }
  const value& v(int k) const { return g.at(n.in[at(k)]); }
  std::int64_t extent_of(int k, int i) const { return v(k).dims[at(i)].n; }
  std::int64_t size(int k) const { return local_size(g.ranks, v(k)).n; }
  std::int64_t below(std::int64_t first, std::int64_t last) {
    return first + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(last - first));
  }
  void integers(int k, std::int64_t first, std::int64_t last) {
    x[at(k)].clear();
    for (std::int64_t i = 0; i < size(k); ++i)
      x[at(k)].push_back(static_cast<double>(below(first, last)));
  }
  void floats(int k) {
    std::normal_distribution<double> normal;
    for (std::int64_t i = 0; i < size(k); ++i)
      x[at(k)].push_back(rounded(normal(random), v(k).type));
  }
  void coarse(int k) { // values that are compared or rounded are exact in every type
    for (double& y : x[at(k)]) y = static_cast<double>(below(-8, 9)) / 4;
  }
  /// Fills an operand with integers up to its bound: from 0, or from -1 if that stands for none.
  void declared(int k) {
    const bool none = v(k).holds < integer_kind::indices;
    integers(k, none ? -1 : 0, v(k).below > 0 ? v(k).below : 2);
  }
  void choices(int k) { // choices of a token, all different if there are enough
    const std::int64_t each = v(k).back().n, experts = v(k).below;
    x[at(k)].clear();
    for (std::int64_t t = 0; t < size(k) / each; ++t) {
      const std::int64_t first = below(0, experts);
      for (std::int64_t j = 0; j < each; ++j)
        x[at(k)].push_back(static_cast<double>((first + j) % experts));
    }
  }
  void marks(int ints, int q, int k) {
    const std::int64_t most = std::max(extent_of(q, 1), extent_of(k, 1));
    for (int j = 0; j < 4; ++j)
      if (n.in[at(ints + j)] >= 0) integers(ints + j, 0, j < 2 ? most : 2);
  }
  void forward_of_attention() { // o and lse that belong to q, k and v
    const auto b = std::make_unique<builder>(g.ranks);
    b->g = g;
    node f;
    f.op = &op::attention, f.attr = n.attr;
    set(f.in, {n.in[1], n.in[2], n.in[3], n.in[6], n.in[7], n.in[8], n.in[9]});
    const value_id o = b->emit(f);
    const world one;
    machine m(one, b->g, plain::all());
    for (unsigned k = 0; k < max_inputs; ++k)
      if (n.in[k] >= 0) m.held[at(n.in[k])][0] = x[k];
    m.execute(b->g.at_node(b->g.node_count - 1));
    for (int k = 0; k < 2; ++k) {
      x[at(4 + k)] = m.held[at(o + k)][0];
      for (double& y : x[at(4 + k)]) y = rounded(y, v(4 + k).type);
    }
  }
  void slots() {
    x[5].clear();
    for (std::int64_t b = 0; b < extent_of(5, 0); ++b) {
      std::int64_t next = below(0, extent_of(3, 1));
      for (std::int64_t s = 0; s < extent_of(5, 1); ++s)
        x[5].push_back(below(0, 4) == 0 || next >= extent_of(3, 1) ? -1
                                                                   : static_cast<double>(next++));
    }
  }
  void plan_rows() { // a stable counting sort; rows beyond a round are dropped
    const std::int64_t experts = extent_of(3, 1), sequences = extent_of(3, 2), all = size(1);
    choices(1);
    x[2].assign(at(all), -1), x[3].assign(at(size(3)), 0);
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t i = 0; i < all; ++i)
        if (x[1][at(i)] == static_cast<double>(e)) {
          x[2][at(i)] = static_cast<double>(next++);
          ++x[3][at(e * sequences + i / (all / sequences))];
        }
  }
  void counts() {
    std::int64_t left = extent_of(0, 0);
    for (double& c : x[2]) {
      const std::int64_t k =
          below(0, std::min(left, n.attr.as<op::grouped_attributes>().tokens) + 1);
      c = static_cast<double>(k), left -= k;
    }
  }
};

// --- running -------------------------------------------------------------------------------------

void cast(node_task& t) {
  for (std::size_t i = 0; i < t.out(0).size(); ++i)
    t.out(0)[i] = rounded(t.in(0)[i], t.g.at(t.n.out[0]).type);
}
implementations laws_of_one_rank() {
  implementations laws = plain::all();
  laws[&op::cast] = &cast;
  return laws;
}

class runner {
public:
  /// Returns the fault of the kernel of the node that `lone` has drawn; "" if it is right.
  std::string run(const lone_node& lone, std::uint64_t seed) {
    const graph& g = lone.b.g;
    const node& n = lone.made();
    const operands_of given(g, n, seed);
    const auto operand = [&](unsigned k) -> const array& { return given.x[k]; };
    kernel_.place(g, n);
    kernel_.run(g, n, operand);
    const std::string wrong = difference(g, n, given);
    if (!wrong.empty() || n.op->in_place < 0 || n.op->accumulates) return wrong;
    // The first output may take over the memory of an operand of its size.
    const value_id in = n.in[static_cast<unsigned>(n.op->in_place)], out = n.out[0];
    if (local_bytes(g.ranks, g.at(in)) != local_bytes(g.ranks, g.at(out))) return "";
    const bytes apart = kernel_.take_over(out, in);
    kernel_.run(g, n, operand);
    return apart == kernel_.at(in) ? "" : "in place it gives something else";
  }

private:
  static std::size_t at(value_id v) { return static_cast<std::size_t>(v); }

  std::string difference(const graph& g, const node& n, const operands_of& given) const {
    if (n.out[0] < 0 || n.op == &op::adamw) return ""; // it changes its operands
    if (n.op == &op::expert_rows &&
        op::local_choices(g.ranks, g.at(n.in[0])) > n.attr.as<op::expert_rows_attributes>().rows)
      return ""; // the plain loops have one round
    const world one;
    machine m(one, g, laws_);
    for (unsigned k = 0; k < max_inputs; ++k)
      if (n.in[k] >= 0) m.held[at(n.in[k])][0] = given.x[k];
    try {
      m.execute(n);
    } catch (const mismatch& e) {
      return std::string("the plain loops refuse it: ") + e.what();
    }
    for (unsigned k = 0; k < max_outputs; ++k)
      if (n.out[k] >= 0 && g.at(n.out[k]).is != role::scratch)
        if (const std::string d = kernel_.difference(g, n, k, m.held[at(n.out[k])][0]); !d.empty())
          return d;
    return "";
  }

  node_kernel kernel_;
  implementations laws_ = laws_of_one_rank();
};

/// Draws specimens near to a specimen, and specimens near to those whose operands all changed
/// alike, and runs those that the rule accepts.
class search {
public:
  static constexpr int further = 150; ///< draws beyond the nearest, for each specimen
  std::map<std::pair<const op_info*, dtype>, int> runs;
  std::set<const op_info*> of_dims; ///< ops that ran on operands with dims
  int draws = 0, wrong = 0;

  void around(const specimen& s) {
    std::vector<specimen> near;
    if (seen_.count(s.text()) == 0 && !look(s)) return report(s, "its own rule refuses it");
    change_one(s, [&](const specimen& t) { look(t); });
    change_all(s, [&](const specimen& t) {
      if (look(t)) near.push_back(t);
    });
    int left = further;
    for (std::size_t i = 0; i < near.size() && left > 0; ++i) {
      const specimen t = near[i];
      const auto next = [&](const specimen& u) { return left-- > 0 && look(u); };
      change_all(t, [&](const specimen& u) {
        if (next(u)) near.push_back(u);
      });
      change_one(t, next);
    }
  }

private:
  runner run_;
  lone_node lone_;
  std::set<std::string> seen_;
  std::map<const op_info*, int> wrong_of_;

  bool look(const specimen& s) {
    current = s.text();
    if (!seen_.insert(current).second) return false;
    ++draws;
    if (!lone_.draw(s)) return false;
    std::string how;
    try {
      how = run_.run(lone_, static_cast<std::uint64_t>(draws));
    } catch (const std::exception& e) {
      how = e.what();
    }
    if (!how.empty()) report(s, how);
    ++runs[{s.like.op, type_of_node(lone_.b.g, lone_.made())}];
    for (const form& o : s.operands)
      if (!o.dims.empty()) of_dims.insert(s.like.op);
    return true;
  }
  void report(const specimen& s, const std::string& how) {
    ++wrong;
    if (++wrong_of_[s.like.op] <= 4) BOOST_ERROR(s.text() << ": " << how);
  }
};

/// Returns the fault of an attention whose q has 4 heads and whose keys have these, cut over tp.
constexpr fault wrong_with_heads(const layout& l, extent of_keys) {
  builder b{mesh(l)};
  const auto operand = [&](const char* name, extent heads) {
    return b.parameter("", name, dtype::f32,
                       {{dim::batch, 8}, {dim::sequence, 8}, heads, {dim::head_dim, 2}},
                       l.tp > 1 ? on(axis::tp, S(heads.d)) : placement{}, {});
  };
  attention_options o;
  o.causal = false;
  b.g.outputs[0] =
      attention(operand("q", {dim::heads, 4}), operand("k", of_keys), operand("v", of_keys), {}, o)
          .id;
  return derived_graph(b.g).wrong.code;
}
static_assert(wrong_with_heads({}, {dim::heads, 4}) == fault::none);
static_assert(wrong_with_heads({.tp = 2}, {dim::heads, 4}) == fault::none);
static_assert(wrong_with_heads({.tp = 2}, {dim::kv_heads, 2}) == fault::none);
static_assert(wrong_with_heads({}, {dim::heads, 2}) == fault::S002);

} // namespace

BOOST_AUTO_TEST_CASE(every_op_on_every_small_shape_that_its_rule_accepts) {
#if defined(MEGACPP_SANITIZED)
  __sanitizer_set_death_callback([] { std::cerr << "while running " << current << "\n"; });
#endif
  search s;
  for (dtype t : {dtype::f64, dtype::f32, dtype::bf16})
    for (const specimen& x : collection(t).all) s.around(x);
  int runs = 0;
  kernel_table<cpu>::all().each([&](const op_info* op, dtype t) {
    const int n = s.runs[{op, t}];
    runs += n;
    BOOST_TEST(n >= (s.of_dims.count(op) != 0 ? 5 : 2),
               op->name << " for " << name_of(t) << " ran on " << n << " shapes");
  });
  std::cout << s.draws << " drawn, " << runs << " accepted and run\n";
  BOOST_TEST(s.wrong == 0);
}
