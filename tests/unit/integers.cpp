// What the integers of a graph are, and what they are below: an op that would read its table beside
// what is there, or count something else, is refused with a sentence.
#define BOOST_TEST_MODULE integers
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/op/rope.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/plan/parts.hpp>

#include <string>

using namespace mc;

namespace {

constexpr int words = 11, longest = 40;

struct small : gpt {
  constexpr small() {
    layers = 2, hidden = 16, heads = 2, ffn = 32, vocabulary = words, positions = longest;
  }
};

/// What is said of a part, at once under every layout: whether it fits is no matter of the layout.
template <class Model> std::string said_of(const Model& m, part_kind part, bool packed = false) {
  std::string all;
  for (const layout& l : {layout{}, layout{.tp = 2}, layout{.tp = 2, .sequence_parallel = true},
                          layout{.cp = 2}, layout{.tp = 2, .cp = 2, .sequence_parallel = true}}) {
    setup s{.ranks = l, .batch = {2, 24, packed}, .recompute_policy = recompute::full};
    graph g = forward_graph(m, s, part, 0);
    if (part != part_kind::logits) g = derived_graph(g);
    std::string said;
    if (g.wrong.code != fault::none)
      said = std::string(code_of(g.wrong.code)) + " " + g.wrong.what.c_str();
    if (l.tp * l.cp == 1) all = said;
    else BOOST_TEST(said == all);
  }
  return all;
}

template <class F> struct with_block : small {
  F f;
  explicit with_block(F g) : f(g) {}
  constexpr var block(context& c, int /*kind*/, var x) const { return f(c, x); }
};
template <class F> struct with_stem : small {
  F f;
  explicit with_stem(F g) : f(g) {}
  constexpr var stem(context& c, var tokens) const { return f(c, tokens); }
  constexpr var head_table(context& c) const {
    return vocabulary_table(c, "head", words, hidden_extent(), std, false);
  }
};
template <class F> std::string block_says(F f, bool packed = false) {
  return said_of(with_block<F>(f), part_kind::block, packed);
}
template <class F> std::string stem_says(F f) { return said_of(with_stem<F>(f), part_kind::stem); }

constexpr extent H{dim::hidden, 16};
constexpr attention_sizes heads{{dim::heads, 2}, {dim::kv_heads, 2}, {dim::head_dim, 8}};

var projected(context& c, const char* scope, var x) {
  return column_parallel(c, scope, to(x, axis::tp, R), {heads.heads, heads.head_dim}, false, 0.1);
}
var back(context& c, var o, var x) { return x + row_parallel(c, "o", o, 2, H, false, 0.1); }
/// Rows of a table, on the residual stream.
var rows_of(context& c, var ids, std::int64_t rows) {
  const var t = weight(c, "t", "weight", {{dim::elements, rows}, H}, {}, normal_weights(0.1));
  return embedding(to(ids, axis::tp, c.stream), to(t, axis::tp, beside(c.stream)));
}
/// Attention whose keys come from other ranks by hand.
template <class F> std::string attention_says(F marks, bool packed = false) {
  return block_says(
      [&](context& c, var x) {
        attention_masks m;
        m.q_order = c.order, m.k_order = to(c.order, axis::cp, R);
        if (packed) m.q_document = c.documents, m.k_document = to(c.documents, axis::cp, R);
        marks(c, m);
        const var k = to(projected(c, "k", x), axis::cp, R);
        return back(c, attention(projected(c, "q", x), k, k, m, {}), x);
      },
      packed);
}

/// An op of one's own that numbers something else by the ids: their pairs, in so many buckets.
struct buckets_attributes {
  std::int64_t count;
};
template <bool Says> constexpr void buckets_rule(inference& c) { // ids
  c.ints({0});
  value& y = c.declare(c.in(0));
  if (Says) y.holds = integer_kind::indices, y.below = c.n.attr.as<buckets_attributes>().count;
  place_output(c, 0, algebra::nonlinear, {0});
}
constexpr op_info buckets_op{.name = "buckets",
                             .rule = &buckets_rule<true>,
                             .attributes = attributes_of<buckets_attributes>};
constexpr op_info silent_op{.name = "silent",
                            .rule = &buckets_rule<false>,
                            .attributes = attributes_of<buckets_attributes>};
var buckets(var ids, const op_info& op) {
  return {ids.b, ids.b->emit(op, {ids.id}, 0, buckets_attributes{7})};
}

} // namespace

BOOST_AUTO_TEST_CASE(a_table_has_a_row_for_each_of_what_it_is_read_by) {
  const auto table = [](std::int64_t rows) {
    return stem_says([=](context& c, var tokens) {
      const var t = vocabulary_table(c, "small", rows, H, 0.1, false);
      return token_embedding(c, tokens, t);
    });
  };
  BOOST_TEST(table(words) == "");
  BOOST_TEST(table(words + 3) == "");
  // a row that pads the table for two ranks is no word's
  for (const std::int64_t rows : {7, 10})
    BOOST_TEST(table(rows) ==
               "MEGA-S010 embedding(tokens, small.weight): tokens holds token ids "
               "below 11, not indices below " +
                   std::to_string(rows));
  const auto by_position = [](std::int64_t rows) {
    return block_says([=](context& c, var x) { return x + rows_of(c, c.positions, rows); });
  };
  BOOST_TEST(by_position(24) == "");
  BOOST_TEST(by_position(23) ==
             "MEGA-S010 embedding(positions, t.weight): positions holds "
             "positions below 24, not indices below 23");
  BOOST_TEST(block_says([](context& c, var x) { return x + rows_of(c, c.token_keys, 24); }) ==
             "MEGA-S010 embedding(token_keys, t.weight): token_keys holds keys of dropout, not "
             "indices below 24");
  BOOST_TEST(block_says([](context& c, var x) { return x + rows_of(c, c.documents, 24); }, true) ==
             "MEGA-S010 embedding(documents, t.weight): documents holds document numbers, not "
             "indices below 24");
}

BOOST_AUTO_TEST_CASE(rope_turns_by_positions) {
  const auto turned = [](var context::*by) {
    return block_says(
        [=](context& c, var x) {
          const var q = rope(projected(c, "q", x), c.*by, 100);
          return back(c, context_parallel_attention(c, q, q, q, {}), x);
        },
        true);
  };
  BOOST_TEST(turned(&context::positions) == "");
  const std::string keys = turned(&context::token_keys), documents = turned(&context::documents);
  BOOST_TEST(keys.find("MEGA-S010 rope(linear@") == 0u, keys);
  BOOST_TEST(keys.find("token_keys holds keys of dropout, not positions") != std::string::npos);
  BOOST_TEST(documents.find("documents holds document numbers, not positions") !=
             std::string::npos);
  const std::string ids = stem_says([](context& c, var tokens) {
    const var x = token_embedding(c, tokens, vocabulary_table(c, "e", words, H, 0.1, false));
    const var q = rope(projected(c, "q", x), tokens, 100);
    return back(c, context_parallel_attention(c, q, q, q, {}), x);
  });
  BOOST_TEST(ids.find("tokens holds token ids below 11, not positions") != std::string::npos, ids);
}

BOOST_AUTO_TEST_CASE(attention_compares_positions_and_documents) {
  BOOST_TEST(attention_says([](context&, attention_masks&) {}) == "");
  BOOST_TEST(attention_says([](context&, attention_masks&) {}, true) == "");
  const std::string without =
      attention_says([](context&, attention_masks& m) { m.q_document = m.k_document = {}; }, true);
  BOOST_TEST(without.find("MEGA-S008 attention(linear@") == 0u, without);
  const auto refused = [](const std::string& said, const char* what) {
    BOOST_TEST(said.find("MEGA-S010 attention(linear@") == 0u, said);
    BOOST_TEST(said.find(what) != std::string::npos, said);
  };
  refused(attention_says([](context& c, attention_masks& m) { m.q_order = c.token_keys; }),
          "token_keys holds keys of dropout, not places in sequences");
  refused(attention_says(
              [](context& c, attention_masks& m) { m.k_order = to(c.token_keys, axis::cp, R); }),
          "token_keys holds keys of dropout, not places in sequences");
  refused(attention_says([](context& c, attention_masks& m) { m.q_document = c.positions; }, true),
          "positions holds positions below 24, not document numbers");
  refused(attention_says(
              [](context& c, attention_masks& m) { m.k_document = to(c.positions, axis::cp, R); },
              true),
          "positions holds positions below 24, not document numbers");
}

// That integers count, so that kernels need not read them, is true of places alone, which nobody
// gives; redistributions carry it, and a graph that says otherwise is refused.
BOOST_AUTO_TEST_CASE(places_alone_count) {
  for (const layout& l : {layout{}, layout{.cp = 2}}) {
    const graph g =
        forward_graph(small(), {.ranks = l, .batch = {2, 24, true}}, part_kind::block, 0);
    int counting = 0;
    for (int i = 0; i < g.value_count; ++i) {
      const value& v = g.at(static_cast<value_id>(i));
      BOOST_TEST(v.counts == (v.holds == integer_kind::order), v.name);
      counting += v.counts;
      if (v.type != dtype::i32) continue;
      graph other = g;
      other.at(static_cast<value_id>(i)).counts = !v.counts;
      BOOST_TEST((verify_nodes(other).code != fault::none), v.name);
    }
    BOOST_TEST(counting >= 2);
    BOOST_TEST((verify_nodes(g).code == fault::none));
  }
  builder b{mesh_of({.cp = 2}, 1)};
  const var order =
      b.integers(feed::order, integer_kind::order, "order", {{dim::batch, 2}, {dim::sequence, 24}},
                 on(axis::cp, S(dim::sequence)), 24);
  BOOST_TEST(to(order, axis::cp, R).type().counts);
}

BOOST_AUTO_TEST_CASE(dropout_is_keyed_by_the_tokens_of_all_sequences) {
  BOOST_TEST(block_says([](context& c, var x) {
               return x + dropout(x, to(c.token_keys, axis::tp, c.stream), 0.1, 0);
             }) == "");
  BOOST_TEST(block_says([](context& c, var x) {
               return x + dropout(x, to(c.positions, axis::tp, c.stream), 0.1, 0);
             }) ==
             "MEGA-S010 dropout(x, positions): positions holds positions below 24, not keys "
             "of dropout");
}

BOOST_AUTO_TEST_CASE(a_loss_has_labels_within_its_words) {
  const auto loss = [](std::int64_t rows, var context::*labels) {
    return block_says([=](context& c, var x) {
      const var t = vocabulary_table(c, "aux", rows, H, 0.1, false);
      c.add_side_loss(vocabulary_loss(x, t, c.*labels, rows, 0).sum);
      return back(c, projected(c, "p", x), x);
    });
  };
  BOOST_TEST(loss(24, &context::positions) == ""); // what number a token has may be learned, too
  BOOST_TEST(loss(5, &context::positions) ==
             "MEGA-S010 vocabulary_partial(x, positions): positions holds positions below 24, not "
             "labels below 5");
  BOOST_TEST(loss(5, &context::token_keys) ==
             "MEGA-S010 vocabulary_partial(x, token_keys): token_keys holds keys of dropout, not "
             "labels below 5");
  struct short_head : small { // a row that pads it is no word
    constexpr var head_table(context& c) const {
      return vocabulary_table(c, "lm", words - 1, hidden_extent(), std, false);
    }
  };
  const std::string head = said_of(short_head{}, part_kind::loss);
  BOOST_TEST(head.find("the vocabulary is 11, not positive and within the rows of the table") !=
                 std::string::npos,
             head);
}

BOOST_AUTO_TEST_CASE(an_op_of_ones_own_says_what_its_integers_are) {
  const auto embedded = [](const op_info& op, std::int64_t rows) {
    return stem_says(
        [&op, rows](context& c, var tokens) { return rows_of(c, buckets(tokens, op), rows); });
  };
  BOOST_TEST(embedded(buckets_op, 7) == "");
  BOOST_TEST(embedded(buckets_op, 6) ==
             "MEGA-S010 embedding(buckets@0, t.weight): buckets@0 holds "
             "indices below 7, not indices below 6");
  BOOST_TEST(embedded(silent_op, 7) ==
             "MEGA-S010 embedding(silent@0, t.weight): silent@0 holds "
             "unknown integers, not indices below 7");
  // what is only compared may be anything that an op of one's own makes
  BOOST_TEST(attention_says([](context& c, attention_masks& m) {
               m.q_order = buckets(c.positions, silent_op);
               m.k_order = to(m.q_order, axis::cp, R);
             }) == "");
  BOOST_TEST(attention_says([](context& c, attention_masks& m) {
               m.q_order = buckets(c.positions, buckets_op);
             }).find("holds indices below 7, not places in sequences") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(experts_rows_and_counts_are_not_exchanged) {
  const auto mixed = [](auto change) {
    builder b{mesh::one_rank()};
    const extent B{dim::batch, 2}, S{dim::sequence, 8}, E{dim::expert, 4};
    const var x = b.input(feed::stream, "x", dtype::f32, {B, S, H}, {});
    const var experts = b.integers(feed::tokens, integer_kind::experts, "experts",
                                   {B, S, {dim::choices, 2}}, {}, E.n);
    expert_assignment p = expert_rows(experts, 64, E.n, 0, 1);
    change(p);
    dispatch(x, p, 2);
    return std::string(code_of(b.g.wrong.code)) + " " + b.g.wrong.what.c_str();
  };
  BOOST_TEST(mixed([](expert_assignment&) {}) == " ");
  BOOST_TEST(mixed([](expert_assignment& p) { p.row = p.experts; }) ==
             "MEGA-S010 dispatch(experts): experts holds numbers of experts below 4, not rows of "
             "experts");
  BOOST_TEST(mixed([](expert_assignment& p) {
               p.experts = p.row;
             }).find("holds rows of experts below 2147483647, not numbers of experts below 4") !=
             std::string::npos);
}
