// For every op and for two tiny models, in double: the derived gradient of every parameter tensor
// is compared with the central difference of the loss in eight random unit directions, and must
// agree within 1e-6 of the gradient's norm. If a tensor's gradient is exactly zero, the bound is
// 1e-10 of the global norm.
#define BOOST_TEST_MODULE directions
#include <boost/test/unit_test.hpp>

#include "directions.hpp"

#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>

using namespace mc;
using mc::directional::small_graph;

namespace {

constexpr int directions = 8;
constexpr extent B{dim::batch, 2}, Sq{dim::sequence, 7}, H{dim::hidden, 5}, A{dim::heads, 4},
    K{dim::kv_heads, 2}, D{dim::head_dim, 6}, F{dim::ffn, 9}, V{dim::vocabulary, 11};

var parameter(builder& b, const char* name, std::initializer_list<extent> dims) {
  return b.parameter("p", name, dtype::f64, dims, {}, {-1, init::normal, 1.0, true});
}
var integers(builder& b, feed f, integer_kind kind, const char* name, std::int64_t below = 0) {
  return b.integers(f, kind, name, {B, Sq}, {}, below);
}
var positions_of(builder& b) {
  return integers(b, feed::positions, integer_kind::positions, "positions", Sq.n);
}
var labels_of(builder& b, std::int64_t words = V.n) {
  return integers(b, feed::labels, integer_kind::labels, "labels", words);
}

std::vector<std::int32_t> counted(int rows, int columns) {
  std::vector<std::int32_t> x;
  for (int i = 0; i < rows * columns; ++i) x.push_back(i % columns);
  return x;
}

void check(small_graph& g, const char* what) {
  double global = 0;
  const auto all = g.compare(directions);
  for (const auto& c : all) global = std::max(global, c.norm);
  for (const auto& c : all) {
    BOOST_TEST_CONTEXT(what << " " << c.name << ": gradient norm " << c.norm
                            << ", worst difference " << c.worst)
    BOOST_TEST((c.worst <= 1e-6 * c.norm || c.worst <= 1e-10 * global));
    BOOST_TEST(c.norm > 0);
  }
}
void check(const char* what, const std::function<var(builder&)>& build) {
  for (bool fuse : {false, true}) {
    small_graph g(build, 1, fuse);
    std::vector<std::int32_t> ids{3, 0, 10, 3, 5, 3, 1, 9, 9, 2, 4, 7, 0, 10},
        labels{1, -100, 2, 10, 0, 5, 5, 3, -1, 9, 8, 7, 6, 4};
    g.feed(feed::tokens, ids);
    g.feed(feed::labels, labels);
    g.feed(feed::positions, counted(2, 7)), g.feed(feed::order, counted(2, 7));
    g.feed(feed::documents, {0, 0, 0, 1, 1, 2, 2, 0, 1, 1, 1, 1, 1, 1});
    std::vector<std::int32_t> keys;
    for (int i = 0; i < 14; ++i) keys.push_back(100 + i);
    g.feed(feed::token_keys, keys);
    check(g, what);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(linear_layers) {
  check("linear", [](builder& b) {
    return linear(parameter(b, "x", {B, Sq, H}), parameter(b, "w", {A, D, H}));
  });
  check("linear with bias", [](builder& b) {
    return linear(parameter(b, "x", {B, Sq, H}), parameter(b, "w", {A, D, H}),
                  parameter(b, "bias", {A, D}));
  });
  check("linear over two dims, then bias", [](builder& b) {
    return add_bias(linear(parameter(b, "x", {B, Sq, A, D}), parameter(b, "w", {H, A, D})),
                    parameter(b, "bias", {H}));
  });
  for (const bool biased : {false, true})
    check("gelu between linears", [biased](builder& b) {
      const var bias = biased ? parameter(b, "bias", {F}) : var{};
      const var z = linear(parameter(b, "x", {B, Sq, H}), parameter(b, "u", {F, H}), bias);
      return linear(gelu(z), parameter(b, "v", {A, D, F}));
    });
  check("one input, three products", [](builder& b) {
    const var x = gelu(parameter(b, "x", {B, Sq, H}));
    return (linear(x, parameter(b, "u", {F, H})) + linear(x, parameter(b, "v", {F, H}))) +
           linear(x, parameter(b, "w", {F, H}));
  });
}

// A weight that a block computes: from parameters alone (once a step, in the prologue) and from the
// stream (in every micro-batch). Both gradients collect in sums that must start at zero.
BOOST_AUTO_TEST_CASE(computed_weights) {
  check("gelu of a weight", [](builder& b) {
    return linear(parameter(b, "x", {B, Sq, H}), gelu(parameter(b, "w", {F, H})));
  });
  check("a computed gain", [](builder& b) {
    return rms_norm(parameter(b, "x", {B, Sq, H}), gelu(parameter(b, "gain", {H})), 1e-3);
  });
}

BOOST_AUTO_TEST_CASE(elementwise) {
  check("add", [](builder& b) {
    return parameter(b, "x", {B, Sq, H}) + parameter(b, "y", {B, Sq, H});
  });
  check("x + x", [](builder& b) {
    const var x = parameter(b, "x", {B, Sq, H});
    return x + x;
  });
  check("scale", [](builder& b) { return scale(parameter(b, "x", {B, Sq, H}), -1.7); });
  check("gelu tanh", [](builder& b) { return gelu(parameter(b, "x", {B, Sq, H})); });
  check("gelu exact", [](builder& b) {
    return gelu(parameter(b, "x", {B, Sq, H}), gelu_form::exact);
  });
  check("swiglu", [](builder& b) {
    return swiglu(parameter(b, "gate", {B, Sq, F}), parameter(b, "up", {B, Sq, F}));
  });
  check("dropout", [](builder& b) {
    return dropout(parameter(b, "x", {B, Sq, H}),
                   integers(b, feed::token_keys, integer_kind::token_keys, "keys"), 0.4, 3);
  });
  check("repeat", [](builder& b) { return repeat(parameter(b, "w", {K, D, H}), 3); });
}

BOOST_AUTO_TEST_CASE(norms) {
  check("rms_norm", [](builder& b) {
    return rms_norm(parameter(b, "x", {B, Sq, H}), parameter(b, "gain", {H}), 1e-3);
  });
  check("layer_norm", [](builder& b) {
    return layer_norm(parameter(b, "x", {B, Sq, H}), parameter(b, "gain", {H}),
                      parameter(b, "bias", {H}), 1e-3);
  });
  check("layer_norm without bias", [](builder& b) {
    return layer_norm(parameter(b, "x", {B, Sq, H}), parameter(b, "gain", {H}), {}, 1e-3);
  });
  check("residual and rms_norm", [](builder& b) {
    const var s = gelu(parameter(b, "x", {B, Sq, H})) + parameter(b, "a", {B, Sq, H});
    return s + rms_norm(s, parameter(b, "gain", {H}), 1e-3);
  });
  check("residual and layer_norm", [](builder& b) {
    const var s = gelu(parameter(b, "x", {B, Sq, H})) + parameter(b, "a", {B, Sq, H});
    return s + layer_norm(s, parameter(b, "gain", {H}), parameter(b, "bias", {H}), 1e-3);
  });
}

BOOST_AUTO_TEST_CASE(attentions) {
  const auto attend = [](builder& b, extent kv, attention_options o, bool documents) {
    const var places = integers(b, feed::order, integer_kind::order, "order", Sq.n);
    attention_masks m{places, places, {}, {}};
    if (documents)
      m.q_document = m.k_document =
          integers(b, feed::documents, integer_kind::documents, "documents");
    return attention(parameter(b, "q", {B, Sq, A, D}), parameter(b, "k", {B, Sq, kv, D}),
                     parameter(b, "v", {B, Sq, kv, D}), m, o);
  };
  check("multi-head", [&](builder& b) { return attend(b, {dim::kv_heads, 4}, {}, false); });
  check("grouped-query", [&](builder& b) { return attend(b, K, {}, false); });
  check("multi-query, scaled", [&](builder& b) {
    return attend(b, {dim::kv_heads, 1}, {.scale = 0.3}, false);
  });
  check("window", [&](builder& b) { return attend(b, K, {.window = 3}, false); });
  check("packed documents", [&](builder& b) { return attend(b, K, {}, true); });
  check("not causal", [&](builder& b) { return attend(b, K, {.causal = false}, false); });
  check("rope", [](builder& b) {
    return rope(parameter(b, "x", {B, Sq, A, D}), positions_of(b), 100.0);
  });
  check("rope, stretched", [](builder& b) {
    return rope(parameter(b, "x", {B, Sq, A, D}), positions_of(b),
                op::rope_attributes{100, 1, 4, op::rope_ramp::pair, 3, -1});
  });
}

BOOST_AUTO_TEST_CASE(ends) {
  check("embedding", [](builder& b) {
    return embedding(integers(b, feed::tokens, integer_kind::tokens, "tokens", V.n),
                     parameter(b, "table", {V, H}));
  });
  for (double z : {0.0, 0.01})
    check("vocabulary loss", [z](builder& b) {
      const var labels = labels_of(b);
      return cross_entropy(vocabulary_partial(parameter(b, "x", {B, Sq, H}),
                                              parameter(b, "w", {V, H}), labels, 11),
                           labels, z)
          .sum;
    });
  check("frozen weight", [](builder& b) {
    const var w = b.parameter("q", "w", dtype::f64, {F, H}, {}, {-1, init::normal, 1.0, true});
    return linear(parameter(b, "x", {B, Sq, H}), w);
  });
}

BOOST_AUTO_TEST_CASE(padded_vocabulary_takes_no_part) {
  small_graph g(
      [](builder& b) {
        const var labels = labels_of(b, 8), x = parameter(b, "x", {B, Sq, H}),
                  w = parameter(b, "w", {V, H});
        return cross_entropy(vocabulary_partial(x, w, labels, 8), labels, 0).sum;
      },
      1);
  g.feed(feed::labels, {1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6});
  const auto gradient = g.backward();
  const std::int64_t w = g.stores().find(0, 1).offset;
  double words = 0;
  for (std::int64_t i = 0; i < 8 * 5; ++i)
    words += std::abs(gradient[static_cast<std::size_t>(w + i)]);
  BOOST_TEST(words > 0);
  for (std::int64_t i = 8 * 5; i < 11 * 5; ++i)
    BOOST_TEST(gradient[static_cast<std::size_t>(w + i)] == 0.0);
}

namespace {

/// `h`: the step of the difference. If the model has experts, it must be so small that no token
/// changes its choice.
template <class Model>
void check_model(const Model& m, setup s, const char* what, double h = 2e-3) {
  s.precision = dtype::f64;
  interpreted_program<Model> program(m, s, what);
  cpu device(product_type::automatic, 1);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(3);
  const int n = s.batch.micro * s.batch.sequence;
  std::vector<std::int32_t> tokens, labels, documents;
  std::mt19937_64 random(11);
  for (int i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int>(random() % static_cast<unsigned>(m.vocabulary)));
    labels.push_back(i % 5 == 3 ? -100
                                : static_cast<int>(random() % static_cast<unsigned>(m.vocabulary)));
    documents.push_back(i % s.batch.sequence * 3 / s.batch.sequence);
  }
  // Weights have the size that training gives them, not the initial one, so that every path carries
  // gradient.
  auto* w = reinterpret_cast<double*>(run.weights().weights());
  for (std::int64_t i = 0; i < run.weights().total(); ++i)
    w[i] += 0.2 * std::sin(static_cast<double>(i) * 0.7);
  const batch_view batch{tokens.data(), labels.data(), 0, nullptr,
                         s.batch.packed ? documents.data() : nullptr};
  run.gradients(batch);
  std::vector<double> gradient(static_cast<std::size_t>(run.weights().total()));
  std::memcpy(gradient.data(), run.weights().gradients(), gradient.size() * sizeof(double));
  double global = 0;
  for (double x : gradient) global += x * x;
  global = std::sqrt(global);
  std::mt19937_64 draw(13);
  int tensors = 0;
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    const auto first = static_cast<std::size_t>(r.offset),
               count = static_cast<std::size_t>(r.count.n);
    double norm = 0;
    for (std::size_t i = 0; i < count; ++i) norm += gradient[first + i] * gradient[first + i];
    norm = std::sqrt(norm);
    for (int k = 0; k < directions; ++k) {
      const auto d = mc::directional::unit_direction(draw, count);
      std::vector<double> kept(w + r.offset, w + r.offset + r.count.n);
      const double quotient = mc::directional::central_difference(
          [&](double t) {
            for (std::size_t i = 0; i < count; ++i) w[first + i] = kept[i] + t * d[i];
            const loss_sum l = run.evaluate(batch, true);
            return l.sum + l.side;
          },
          h);
      std::copy(kept.begin(), kept.end(), w + r.offset);
      double derived = 0;
      for (std::size_t i = 0; i < count; ++i) derived += gradient[first + i] * d[i];
      const double difference = std::abs(quotient - derived);
      BOOST_TEST_CONTEXT(what << " " << r.name << ": gradient norm " << norm << ", difference "
                              << difference)
      BOOST_TEST((difference <= 1e-6 * norm || difference <= 1e-10 * global));
    }
    ++tensors;
  });
  BOOST_TEST(tensors > 10);
}

} // namespace

namespace {

/// A family whose weights are computed: from parameters alone, by several ops, and used twice.
struct computed : gpt {
  static constexpr int kinds = 1;
  constexpr var block(context& c, int /*kind*/, var x) const {
    const extent h = hidden_extent(), f{dim::ffn, ffn};
    const var p = weight(c, "p", "weight", {f, h}, {}, normal_weights(0.3));
    const var q = weight(c, "q", "weight", {f, h}, {}, normal_weights(0.3));
    const var w = gelu(p) + q; // in the prologue
    const var gain = weight(c, "norm", "weight", {h}, {}, ones());
    const var u = linear(rms_norm(x, gain, 1e-5), w) + linear(x, p);
    return x + linear(swiglu(u, u), weight(c, "down", "weight", {h, f}, {}, normal_weights(0.3)));
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_family_with_computed_weights) {
  computed m;
  m.layers = 2, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = 17, m.positions = 9;
  check_model(m, {.batch = {2, 9}}, "computed weights");
}

namespace {

/// A head whose table is computed, with nothing between the last block and the loss.
struct factored_head : gpt {
  constexpr var final_norm(context& /*c*/, var x) const { return x; }
  constexpr var head_table(context& c) const {
    const extent narrow{dim::ffn, 5}, rows = vocabulary_rows(c, vocabulary);
    const var a = weight(c, "a", "weight", {rows, narrow}, {}, normal_weights(0.3)),
              b = weight(c, "b", "weight", {hidden_extent(), narrow}, {}, normal_weights(0.3));
    return linear(gelu(a), b);
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_family_with_a_computed_table_and_no_final_norm) {
  factored_head m;
  m.layers = 2, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = 17, m.positions = 9;
  check_model(m, {.batch = {2, 9}}, "computed table, no final norm");
}

namespace {

/// A model whose blocks add terms to the stream that do not depend on it: the stream's cotangent
/// passes through unchanged.
struct shifted : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
    return x + position_embedding(c, "shift", {dim::position, positions}, hidden_extent(), 0.3);
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_family_whose_blocks_hand_the_cotangent_on) {
  shifted m;
  m.layers = 8, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = 17, m.positions = 9;
  check_model(m, {.batch = {2, 9}}, "shifted stream");
  check_model(m, {.batch = {2, 9}, .recompute_policy = recompute::full},
              "shifted stream, full recompute");
}

namespace {

/// A GPT with losses of their own in every part, two of them in a block. All of them join the one
/// loss.
struct side_losses : gpt {
  static constexpr int kinds = 1;
  constexpr void predict(context& c, const char* scope, var x, var labels) const {
    const var table = vocabulary_table(c, scope, vocabulary, hidden_extent(), std, false);
    c.add_side_loss(vocabulary_loss(x, table, labels, vocabulary, 0).sum);
  }
  constexpr var stem(context& c, var tokens) const {
    const var x = gpt::stem(c, tokens);
    predict(c, "of_stem", x, tokens);
    return x;
  }
  constexpr var block(context& c, int kind, var x) const {
    predict(c, "of_input", x, c.positions);
    const var y = gpt::block(c, kind, x);
    predict(c, "of_output", y, c.positions);
    return y;
  }
  constexpr var final_norm(context& c, var x) const {
    predict(c, "of_head", x, c.positions);
    return gpt::final_norm(c, x);
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_family_with_side_losses_in_every_part) {
  side_losses m;
  m.layers = 2, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = 17, m.positions = 9;
  check_model(m, {.batch = {2, 9}}, "side losses");
  check_model(m, {.batch = {2, 9}, .recompute_policy = recompute::full},
              "side losses, full recompute");
}
BOOST_AUTO_TEST_CASE(tiny_gpt) {
  const gpt m{.layers = 2, .hidden = 12, .heads = 3, .ffn = 20, .vocabulary = 17, .positions = 9};
  check_model(m, {.batch = {2, 9}}, "gpt");
  gpt dropped = m;
  dropped.dropout = 0.2, dropped.tied = false, dropped.bias = false, dropped.z_loss = 0.01;
  check_model(dropped, {.batch = {2, 9}}, "gpt with dropout and z-loss, untied, without biases");
}
// An evaluation drops nothing: a model with dropout has the loss of the same model without.
BOOST_AUTO_TEST_CASE(evaluation_drops_nothing) {
  const auto loss = [](double dropout, bool dropping) {
    gpt m{.layers = 2, .hidden = 12, .heads = 3, .ffn = 20, .vocabulary = 17, .positions = 9};
    m.dropout = dropout;
    const interpreted_program<gpt> program(m, {.batch = {2, 9}, .precision = dtype::f64},
                                           "dropout");
    cpu device(product_type::automatic, 1);
    session run(program.view(), device, purpose::training);
    run.weights().initialise(3);
    std::vector<std::int32_t> tokens, labels;
    for (int i = 0; i < 18; ++i) tokens.push_back(i * 5 % 17), labels.push_back((i * 5 + 5) % 17);
    return run.evaluate(batch_view{tokens.data(), labels.data()}, dropping).sum;
  };
  BOOST_TEST(loss(0.3, false) == loss(0, false));
  BOOST_TEST(loss(0.3, true) != loss(0, true));
}
BOOST_AUTO_TEST_CASE(tiny_qwen3) {
  const qwen3 m{.layers = 2,
                .hidden = 12,
                .heads = 4,
                .kv_heads = 2,
                .head_dim = 6,
                .ffn = 20,
                .vocabulary = 17,
                .positions = 16,
                .rope_theta = 100};
  check_model(m, {.batch = {2, 9}}, "qwen3");
  check_model(m, {.batch = {2, 9, true}, .recompute_policy = recompute::full},
              "qwen3, packed, full recompute");
  qwen3 windowed = m;
  windowed.window = 3, windowed.tied = false;
  check_model(windowed, {.batch = {2, 9}, .recompute_policy = recompute::selective},
              "qwen3, sliding window, untied, selective recompute");
}

BOOST_AUTO_TEST_CASE(tiny_qwen3_moe) {
  qwen3_moe m{.layers = 3,
              .hidden = 12,
              .heads = 4,
              .kv_heads = 2,
              .head_dim = 6,
              .ffn = 20,
              .expert_ffn = 7,
              .experts = 5,
              .experts_per_token = 2,
              .vocabulary = 17,
              .positions = 16,
              .mlp_only = {1},
              .aux_loss = 0.3,
              .rope_theta = 100};
  check_model(m, {.batch = {2, 9}}, "qwen3_moe", 1e-4);
  m.norm_topk = false, m.router_z_loss = 0.05, m.aux_per_sequence = true, m.shared_ffn = 6;
  check_model(m, {.batch = {2, 9, true}, .recompute_policy = recompute::full},
              "qwen3_moe, shared expert, packed, full recompute", 1e-4);
  check_model(m, {.batch = {2, 9, false, 8}, .recompute_policy = recompute::selective},
              "qwen3_moe in five rounds, selective recompute", 1e-4);
  m.capacity = 0.7;
  check_model(m, {.batch = {2, 9}}, "qwen3_moe with a capacity", 1e-4);
}
