// What is said of a mistake in a model: the number and its range, and the model's own line.
#define BOOST_TEST_MODULE sentences
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/op/rope.hpp>
#include <megacpp/plan/parts.hpp>

#include <peak.hpp>

#include <cstdio>
#include <limits>
#include <string>

using namespace mc;

namespace {

struct small : gpt {
  constexpr small() {
    layers = 2, hidden = 16, heads = 4, ffn = 32, vocabulary = 64, positions = 32;
  }
};
template <class Model> fault_record fault_of(const Model& m, part_kind part = part_kind::block) {
  return derived_graph(forward_graph(m, {.batch = {2, 16}}, part, 0)).wrong;
}
std::string said(const fault_record& f) {
  return std::string(code_of(f.code)) + " " + f.what.c_str();
}
template <class F> struct with_block : small {
  F f;
  explicit with_block(F g) : f(g) {}
  constexpr var block(context& c, int /*kind*/, var x) const { return f(c, x); }
};
/// A final norm of another width than the head's table.
struct narrow : small {
  static constexpr int line = __LINE__ + 3;
  constexpr var final_norm(context& c, var x) const {
    const var w = weight(c, "w", "weight", {{dim::ffn, 8}, hidden_extent()}, {}, ones());
    return linear(x, w);
  }
};
template <class F> std::string said_of(F f) { return said(fault_of(with_block<F>(f))); }

} // namespace

// An input of one's own is there only where the run feeds one, and as it is fed.
BOOST_AUTO_TEST_CASE(an_input_that_nobody_feeds_is_named) {
  const auto with = [](feed from, integer_kind kind, std::int64_t below = 0,
                       std::int64_t more = 0) {
    return said_of([=](context& c, var x) {
      const value v = c.positions.type();
      const extent longer{dim::sequence, v.dims[1].n + more};
      c.b->integers(from, kind, "mine", {v.dims[0], longer}, v.at, below);
      return gelu(x);
    });
  };
  using enum integer_kind;
  BOOST_TEST(with(feed::tokens, tokens, 64) == " ");
  BOOST_TEST(with(feed::tokens, indices, 80) == " ");
  BOOST_TEST(with(feed::positions, positions) == " ");
  BOOST_TEST(with(feed::all_order, order) == " ");
  for (const feed f :
       {feed::none, feed::labels, feed::documents, feed::last, feed::slots, feed::key_cache,
        feed::total, feed::gradient, feed::weight, feed::d_output, feed::declared_gradient})
    BOOST_TEST(with(f, indices) == "MEGA-S011 input(mine): nothing feeds it to this part");
  const std::string other =
      "MEGA-S011 input(mine): what is fed has other dims, places, elements or bounds";
  BOOST_TEST(with(feed::tokens, tokens, 63) == other);
  BOOST_TEST(with(feed::tokens, tokens, 64, 1) == other);
  BOOST_TEST(with(feed::tokens, experts, 64) == other);
  BOOST_TEST(with(feed::token_keys, token_keys, 64) == other);
  const auto lying = [](dtype t, bool whole) {
    return said_of([=](context& c, var x) {
      const value v = c.positions.type();
      c.b->input(feed::tokens, "mine", t, {v.dims[0], v.dims[1]}, whole ? placement{} : v.at);
      return gelu(x);
    });
  };
  BOOST_TEST(lying(dtype::i32, false) == " ");
  BOOST_TEST(lying(dtype::i32, true) == other);
  BOOST_TEST(lying(dtype::f32, false) == other);
  const auto floats = [](feed from, int slot = 0) {
    return said_of([=](context& c, var x) {
      const value v = x.type();
      return gelu(x + c.b->input(from, "mine", c.precision.activation,
                                 {v.dims[0], v.dims[1], v.dims[2]}, v.at, 7, slot));
    });
  };
  BOOST_TEST(floats(feed::tokens) == other);
  for (const feed f : {feed::weight, feed::stream, feed::key_cache, feed::gradient})
    BOOST_TEST(floats(f) == "MEGA-S011 input(mine): nothing feeds it to this part");
  BOOST_TEST(floats(feed::tokens, 1) == "MEGA-S011 input(mine): nothing feeds it to this part");
}

BOOST_AUTO_TEST_CASE(two_caches_of_one_slot_are_refused) {
  const auto with = [](int first, int second, int next) {
    const auto block = [=](context& c, var x) {
      const value v = c.positions.type();
      const auto cache = [&](feed from, const char* name, int slot) {
        c.b->input(from, name, c.precision.activation,
                   {v.dims[0], {dim::sequence, c.room}, {dim::elements, 3}}, v.at, 7, slot);
      };
      cache(feed::key_cache, "mine", first), cache(feed::value_cache, "beside", first);
      cache(feed::key_cache, "another", second);
      c.caches = next;
      const extent A{dim::heads, 2}, D{dim::head_dim, 8};
      const attention_sizes s{A, {dim::kv_heads, 2}, D};
      const var q = column_parallel(c, "q", x, {A, D}, false, 0.1),
                k = kv_projection(c, "k", x, s, false, 0.1);
      return x + row_parallel(c, "o", context_parallel_attention(c, q, k, k, {}), 2,
                              x.type().back(), false, 0.1);
    };
    const setup s = for_generation({}, 2, 1, 16);
    return said(forward_graph(with_block<decltype(block)>(block), s, part_kind::block, 0).wrong);
  };
  const std::string taken = ": another cache has its number: give it c.caches and add one to that";
  BOOST_TEST(with(0, 1, 2) == " ");
  BOOST_TEST(with(6, 5, 7) == " ");
  BOOST_TEST(with(0, 0, 1) == "MEGA-C006 input(another)" + taken);
  BOOST_TEST(with(0, 1, 0) == "MEGA-C006 input(key_cache)" + taken);
  for (const int slot : {-1, max_feed_inputs})
    BOOST_TEST(with(0, slot, 1) == "MEGA-C006 input(another): there is none in generation");
}

// Nothing orders two nodes that write one cache, or one that reads it and one that writes.
BOOST_AUTO_TEST_CASE(what_an_op_writes_into_is_a_cache_of_its_own) {
  enum class keeps : std::uint8_t { two_caches, keys_as_values, of_both, read_elsewhere };
  const auto with = [](keeps how) {
    const auto block = [=](context& c, var x) {
      const extent A{dim::heads, 2}, D{dim::head_dim, 8};
      const var q = column_parallel(c, "q", x, {A, D}, false, 0.1),
                k = kv_projection(c, "k", x, {A, {dim::kv_heads, 2}, D}, false, 0.1);
      const auto cache = [&](feed from) { return cache_like(c, from, "kept", k, 7); };
      const var keys = cache(feed::key_cache);
      const var values = how == keeps::keys_as_values ? keys : cache(feed::value_cache);
      ++c.caches;
      var o = cached_attention(q, k, k, keys, values, c.slots, {}, 8);
      if (how == keeps::of_both)
        o = o + cached_attention(q, k, k, keys, cache(feed::value_cache), c.slots, {}, 9);
      if (how == keeps::read_elsewhere) gelu(keys);
      return x + row_parallel(c, "o", o, 2, x.type().back(), false, 0.1);
    };
    const setup s = for_generation({}, 2, 1, 16);
    return said(forward_graph(with_block<decltype(block)>(block), s, part_kind::block, 0).wrong);
  };
  const std::string shared =
      "MEGA-C006 cached_attention(kept): it writes into a cache that is "
      "another operand too: each has one of its own";
  BOOST_TEST(with(keeps::two_caches) == " ");
  for (const keeps how : {keeps::keys_as_values, keeps::of_both, keeps::read_elsewhere})
    BOOST_TEST(with(how) == shared);
  const auto written = [](context&, var x) {
    constexpr auto rule = [](inference& r) {
      r.declare(r.in(0)), place_output(r, 0, algebra::product, {0});
    };
    static constexpr op_info keep{.name = "keep", .rule = rule, .writes_operands = 1};
    return gelu(var{x.b, x.b->emit(keep, {x.id}, 0)});
  };
  BOOST_TEST(said_of(written) ==
             "MEGA-S011 keep(x): it writes into an operand, as it may into "
             "caches of generation alone");
}

BOOST_AUTO_TEST_CASE(numbers_are_written_as_printf_writes_them) {
  for (const double x : {0.0,
                         1.0,
                         -3.0,
                         300.0,
                         0.1,
                         1.5,
                         -0.25,
                         1e-5,
                         2.5e-4,
                         0.99999,
                         3.14159265358979,
                         123456.0,
                         99999.95,
                         1e-30,
                         1e30,
                         1.25e-9,
                         6.02214e23,
                         0.0001,
                         0.00001234,
                         1e15,
                         12345.678,
                         2e-320})
    for (const double sign : {1.0, -1.0}) {
      char wanted[64];
      std::snprintf(wanted, sizeof wanted, "%.6g", sign * x);
      const std::string written = text<160>{}.decimal(sign * x).c_str();
      BOOST_TEST(std::strtod(written.c_str(), nullptr) == std::strtod(wanted, nullptr), written);
      BOOST_TEST(written.size() <= 24u);
    }
  BOOST_TEST(text<160>{}.decimal(0.1).c_str() == std::string("0.1"));
  BOOST_TEST(text<160>{}.decimal(-1.5).c_str() == std::string("-1.5"));
  BOOST_TEST(text<160>{}.decimal(12345.678).c_str() == std::string("12345.7"));
  BOOST_TEST(text<160>{}.decimal(1e-30).c_str() == std::string("1e-30"));
  BOOST_TEST(text<160>{}.decimal(1e30).c_str() == std::string("1e30"));
  BOOST_TEST(text<160>{}.decimal(0.9999999).c_str() == std::string("1"));
  BOOST_TEST(text<160>{}.decimal(1e-5).c_str() == std::string("1e-5"));
  BOOST_TEST(text<160>{}.decimal(0.00025).c_str() == std::string("0.00025"));
  BOOST_TEST(text<160>{}.decimal(std::numeric_limits<double>::infinity()).c_str() ==
             std::string("inf"));
  BOOST_TEST(text<160>{}.decimal(-std::numeric_limits<double>::infinity()).c_str() ==
             std::string("-inf"));
  BOOST_TEST(text<160>{}.decimal(std::numeric_limits<double>::quiet_NaN()).c_str() ==
             std::string("nan"));
}

BOOST_AUTO_TEST_CASE(a_number_out_of_range_is_named_with_its_range) {
  const auto dropped = [](double p, int salt) {
    return said_of([=](context& c, var x) {
      return x + mc::dropout(x, to(c.token_keys, axis::tp, c.stream), p, salt);
    });
  };
  BOOST_TEST(dropped(0.1, 300) == "MEGA-C001 dropout(x): salt is 300, not in 0 ... 255");
  BOOST_TEST(dropped(0.1, -1) == "MEGA-C001 dropout(x): salt is -1, not in 0 ... 255");
  BOOST_TEST(dropped(1.5, 0) ==
             "MEGA-C001 dropout(x): probability is 1.5, not at least 0 and below 1");
  BOOST_TEST(said_of([](context& c, var x) {
               return x + rms_norm(x, weight(c, "g", "weight", {x.type().back()}, {}, ones()), 0);
             }) == "MEGA-C001 rms_norm(x): eps is 0, not above 1e-30 and below 1e30");
  qwen3_moe m;
  m.layers = 1, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  m.vocabulary = 64, m.expert_ffn = 24, m.experts = 4, m.experts_per_token = 2, m.positions = 64,
  m.window = -3;
  BOOST_TEST(said(fault_of(m)).find(": window is -3, not 0 (none) or a number of tokens") !=
             std::string::npos);
  m.window = 0, m.router_z_loss = 1e30;
  BOOST_TEST(
      said(fault_of(m)).find(": the coefficient of z is 1e30, not at least 0 and below 1e30") !=
      std::string::npos);
}

BOOST_AUTO_TEST_CASE(numbers_of_experts_are_named_with_their_range) {
  const auto mixed = [](auto set) {
    return said_of([=](context& c, var x) {
      expert_sizes s{.experts = {dim::expert, 4}, .ffn = {dim::ffn, 24}, .per_token = 2};
      set(s);
      return x + mixture_of_experts(c, {"r", "g", "u", "d"}, x, s, 0.1);
    });
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  const auto says = [](const std::string& text, const std::string& what) {
    BOOST_TEST(text.starts_with("MEGA-C001 "), text);
    BOOST_TEST(text.find(what) != std::string::npos, text);
  };
  BOOST_TEST(mixed([](expert_sizes&) {}) == " ");
  for (const double balance : {0.0, 0.1}) {
    const std::string none = mixed([=](expert_sizes& s) { s.per_token = 0, s.balance = balance; });
    says(none, ": the number of experts a token is 0, not positive and within the experts");
  }
  BOOST_TEST(!mixed([](expert_sizes& s) { s.experts.n = 0, s.capacity = 1; }).empty());
  says(mixed([](expert_sizes& s) { s.balance = -1; }),
       ": the coefficient of balance is -1, not at least 0 and below 1e30");
  says(mixed([](expert_sizes& s) { s.balance = nan; }), ": the coefficient of balance is nan, not");
  says(mixed([](expert_sizes& s) { s.z_loss = -1; }), ": the coefficient of z is -1, not");
  says(mixed([](expert_sizes& s) { s.z_loss = nan; }), ": the coefficient of z is nan, not");
  for (const double capacity : {-1.0, nan, 1e300})
    says(mixed([=](expert_sizes& s) { s.capacity = capacity; }),
         std::string(": capacity is ") + text<160>{}.decimal(capacity).c_str() +
             ", not at least 0 (none) and below 1e30");
  // so many times its share of the 64 choices, a part of one as one more, and all at most
  for (const auto& [capacity, taken] :
       {std::pair{0.0, 0}, {1e-9, 1}, {1.0, 16}, {1.01, 17}, {4.0, 64}, {5.0, 64}, {1e29, 64}}) {
    const auto block = [capacity = capacity](context& c, var x) {
      const expert_sizes s{
          .experts = {dim::expert, 4}, .ffn = {dim::ffn, 24}, .per_token = 2, .capacity = capacity};
      return x + mixture_of_experts(c, {"r", "g", "u", "d"}, x, s, 0.1);
    };
    const graph g =
        forward_graph(with_block<decltype(block)>(block), {.batch = {2, 16}}, part_kind::block, 0);
    BOOST_TEST(said(g.wrong) == " ");
    for (int i = 0; i < g.node_count; ++i)
      if (const node& n = g.at_node(i); n.op == &op::expert_rows)
        BOOST_TEST(n.attr.as<op::expert_rows_attributes>().capacity == taken, capacity);
  }
  for (const double rate : {-1.0, nan, 1e300})
    says(mixed([=](expert_sizes& s) { s.bias_rate = rate; }),
         std::string("parameter(r.e_score_correction_bias): rate is ") +
             text<160>{}.decimal(rate).c_str() + ", not at least 0 and below 1e30");
}

BOOST_AUTO_TEST_CASE(initial_weights_that_are_no_numbers_are_refused) {
  for (const double std : {-1.0, std::numeric_limits<double>::quiet_NaN(), 1e300})
    BOOST_TEST(said_of([=](context& c, var x) {
                 const extent H = x.type().back();
                 return x + linear(x, weight(c, "w", "weight", {{dim::ffn, 16}, H}, {},
                                             normal_weights(std)));
               }) == std::string("MEGA-C001 parameter(w.weight): std is ") +
                         text<160>{}.decimal(std).c_str() + ", not at least 0 and below 1e30");
}

BOOST_AUTO_TEST_CASE(linear_layers_have_as_many_dims_as_they_take) {
  const auto with = [](std::initializer_list<extent> out, int summed) {
    return said_of([=](context& c, var x) {
      const var u = column_parallel(c, "u", x, out, true, 0.1);
      return x + row_parallel(c, "d", u, summed, x.type().back(), true, 0.1);
    });
  };
  const extent A{dim::heads, 2}, D{dim::head_dim, 3};
  BOOST_TEST(with({A}, 1) == " ");
  BOOST_TEST(with({A, D}, 2) == " ");
  const std::string dims = "MEGA-C001 column_parallel(x): the number of its dims is ";
  BOOST_TEST(with({}, 1) == dims + "0, not 1 or 2");
  BOOST_TEST(with({A, D, {dim::elements, 3}}, 2) == dims + "3, not 1 or 2");
  for (const int summed : {-1, 0, 3, 4, 5})
    BOOST_TEST(said_of([=](context& c, var x) {
                 return x + row_parallel(c, "d", x, summed, x.type().back(), false, 0.1);
               }) == "MEGA-C001 row_parallel(x): the number of summed dims is " +
                         std::to_string(summed) + ", not 1 or 2 of what it is given");
  BOOST_TEST(said_of([](context& c, var x) {
               const var flat =
                   c.b->parameter("f", "w", c.precision.weight, {x.type().back()}, {}, ones());
               return x + row_parallel(c, "d", flat, 2, x.type().back(), false, 0.1);
             }) ==
             "MEGA-C001 row_parallel(f.w): the number of summed dims is 2, not 1 or 2 of "
             "what it is given");
}

// What is wrong with an extent is all that is said, also where rules divide by it.
BOOST_AUTO_TEST_CASE(an_extent_of_none_is_the_one_thing_wrong) {
  for (const std::int64_t heads : {0, -2})
    BOOST_TEST(said_of([=](context& c, var x) {
                 const extent A{dim::heads, 4}, D{dim::head_dim, 4};
                 const var q = column_parallel(c, "q", x, {A, D}, false, 0.1),
                           k = column_parallel(c, "k", x, {{dim::kv_heads, heads}, D}, false, 0.1);
                 return x + row_parallel(c, "o", context_parallel_attention(c, q, k, k, {}), 2,
                                         x.type().back(), false, 0.1);
               }) == "MEGA-S001 parameter(k.weight: kv_heads " + std::to_string(heads) +
                         " over 1 ranks)");
}

BOOST_AUTO_TEST_CASE(valid_rows_are_some_of_the_rows) {
  const auto with = [](std::int64_t valid) {
    return said_of([=](context& c, var x) {
      const extent H = x.type().back();
      parameter_info info = normal_weights(0.1);
      info.valid_rows = valid;
      const extent F{dim::ffn, 16};
      const var u = linear(x, weight(c, "w", "weight", {F, H}, {}, info));
      return x + linear(u, weight(c, "d", "weight", {H, F}, {}, ones()));
    });
  };
  const auto others = [](const char* n) {
    return std::string("MEGA-C001 parameter(w.weight): valid_rows is ") + n +
           ", not 0 (all) or some of its rows";
  };
  BOOST_TEST(with(17) == others("17"));
  BOOST_TEST(with(-1) == others("-1"));
  for (const std::int64_t n : {0, 16}) BOOST_TEST(with(n) == " ");
  BOOST_TEST(with(15) ==
             "MEGA-S010 linear(w.weight): it reads all rows, of which the valid ones "
             "alone are kept in files");
}

BOOST_AUTO_TEST_CASE(an_op_has_the_operands_and_outputs_that_a_node_holds) {
  const auto made = [](auto op, int operands) {
    return said_of([=](context& c, var x) {
      static constexpr op_info own = op();
      node n;
      n.op = &own;
      for (unsigned k = 0; k < static_cast<unsigned>(operands); ++k) n.in[k] = x.id;
      return var{c.b, c.b->emit(n)};
    });
  };
  static constexpr auto one = [](inference& r) {
    r.declare(r.in(0)), place_output(r, 0, algebra::product, {0});
  };
  BOOST_TEST(made([] { return op_info{.name = "own", .rule = one}; }, 0) == "MEGA-S008 own()");
  BOOST_TEST(made([] { return op_info{.name = "own", .rule = one, .typed_by = 1}; }, 1) ==
             "MEGA-S008 own()");
  BOOST_TEST(made([] { return op_info{.name = "own", .rule = one, .typed_by = 99}; }, 1) ==
             "MEGA-S008 own()");
  BOOST_TEST(made([] { return op_info{.name = "own", .rule = nullptr}; }, 1) == "MEGA-S008 own()");
  static constexpr auto none = [](inference&) {};
  BOOST_TEST(made([] { return op_info{.name = "own", .rule = none}; }, 1) == "MEGA-S008 own()");
  static constexpr auto six = [](inference& r) {
    for (int k = 0; k < max_outputs + 1; ++k) r.declare(r.in(0));
  };
  BOOST_TEST(made([] { return op_info{.name = "own", .rule = six}; }, 1) == "MEGA-S004 own(x)");
  BOOST_TEST(said_of([](context& c, var x) {
               static constexpr op_info own{.name = "own", .rule = one};
               const value_id v = x.id;
               return var{c.b, c.b->emit(own, {v, v, v, v, v, v, v, v, v, v, v}, 0)};
             }) == "MEGA-S004 own(x)");
}

// How many replicas there are is known when a run starts; two sums have no product of their sums.
BOOST_AUTO_TEST_CASE(what_cannot_be_cut_or_multiplied_is_named) {
  const auto with = [](auto f) {
    const auto block = [=](context& c, var x) {
      const var u = column_parallel(c, "u", to(x, axis::tp, R), {{dim::ffn, 32}}, false, 0.1);
      const var w = weight(c, "d", "weight", {x.type().back(), {dim::ffn, 32}},
                           on(axis::tp, S(dim::ffn)), normal_weights(0.1));
      return f(c, x, linear(u, w)); // the last one a sum over tp
    };
    const setup s{.ranks = {.tp = 2}, .batch = {2, 16}};
    return said(forward_graph(with_block<decltype(block)>(block), s, part_kind::block, 0).wrong);
  };
  BOOST_TEST(with([](context& c, var x, var y) {
               const var w =
                   c.b->parameter("w", "weight", c.precision.weight, {x.type().back()}, {}, ones());
               to(w, axis::dp, S(dim::hidden));
               return x + to(y, axis::tp, I);
             }) == "MEGA-P011 to(w.weight) over dp");
  BOOST_TEST(with([](context&, var x, var y) {
               constexpr auto rule = [](inference& r) {
                 r.declare(r.in(0)), place_output(r, 0, algebra::product, {0, 1});
               };
               static constexpr op_info times{.name = "times", .rule = rule};
               return x + to(var{y.b, y.b->emit(times, {y.id, y.id}, 0)}, axis::tp, I);
             }).find("MEGA-P005 times(") == 0u);
}

// Of a pending maximum each rank has a number of its own: an op takes the maximum once it is
// reduced, in fp32, and no gradient passes through it, since no sum over ranks gives it.
BOOST_AUTO_TEST_CASE(a_pending_maximum_is_reduced_before_it_is_used) {
  using namespace mc_test;
  const auto with = [](const op_info& op, auto reduced, dtype t = dtype::f32) {
    return said(graph_with_peak(op, t, reduced).wrong);
  };
  const auto gathered = [](var m) { return to(m, axis::tp, R); };
  BOOST_TEST(with(peak, gathered) == " ");
  BOOST_TEST(with(peak, [](var m) { return m; }).find("MEGA-P005 divided(peak@0, ") == 0u);
  BOOST_TEST(with(peak, [](var m) { return gelu(m); }).find("MEGA-P005 gelu(peak@0) over tp") ==
             0u);
  BOOST_TEST(with(peak, [](var m) { return to(m + m, axis::tp, R); }).find("MEGA-P005 +(") == 0u);
  BOOST_TEST(with(peak, gathered, dtype::bf16).find("MEGA-S007 to(peak@0)") == 0u);
  BOOST_TEST(with(peak, [](var m) {
               return to(m, axis::tp, P);
             }).find("MEGA-P003 to(peak@0) over tp") == 0u);
  BOOST_TEST(with(trained_peak, gathered).find("MEGA-P023 gradient(peak@0) over tp") == 0u);
}

// Gathered over cp, the sequence is still in the order in which the ranks have its chunks.
BOOST_AUTO_TEST_CASE(an_op_along_the_sequence_needs_its_natural_order) {
  const auto with = [](layout l) {
    const auto block = [](context&, var x) {
      constexpr auto rule = [](inference& r) {
        r.floats({0}), r.rank(0, 3), r.declare(r.in(0));
        place_output(r, 0, algebra::product, {0}, {dim::sequence});
      };
      static constexpr op_info shifted{.name = "shifted", .rule = rule};
      const var all = to(x, axis::cp, R);
      return x + to(var{x.b, x.b->emit(shifted, {all.id}, 0)}, axis::cp, S(dim::sequence));
    };
    const setup s{.ranks = l, .batch = {2, 16}};
    return said(forward_graph(with_block<decltype(block)>(block), s, part_kind::block, 0).wrong);
  };
  BOOST_TEST(with({}) == " ");
  BOOST_TEST(with({.cp = 2}).find("MEGA-P012 shifted(") == 0u);
}

// Rows that no file has must not learn, nor be read as if they had.
BOOST_AUTO_TEST_CASE(a_padded_table_is_read_by_rows_alone) {
  const auto on_four = [](auto read) { // 6 words in 8 rows
    const auto block = [=](context& c, var x) {
      const var table = vocabulary_table(c, "aux", 6, x.type().back(), 0.1, false);
      return x + read(c, x, table);
    };
    return said(
        derived_graph(forward_graph(with_block<decltype(block)>(block),
                                    {.ranks = {.tp = 4}, .batch = {2, 16}}, part_kind::block, 0))
            .wrong);
  };
  const std::string all = ": it reads all rows, of which the valid ones alone are kept in files";
  BOOST_TEST(on_four([](context& c, var x, var table) {
               c.add_side_loss(vocabulary_loss(x, table, c.positions, 6, 0).sum);
               return gelu(x);
             }).find("MEGA-S010 vocabulary_partial(x, positions)") == 0u); // 32 positions
  BOOST_TEST(on_four([](context&, var x, var table) {
               gelu(table);
               return gelu(x);
             }) == "MEGA-S010 gelu(aux.weight)" + all);
}

// A family says it in words of its own; what is not a number is none of its range.
BOOST_AUTO_TEST_CASE(a_contradiction_is_also_what_is_not_a_number) {
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  for (double qwen3_moe::*number : {&qwen3_moe::aux_loss, &qwen3_moe::router_z_loss,
                                    &qwen3_moe::bias_rate, &qwen3_moe::capacity}) {
    qwen3_moe m;
    BOOST_TEST(m.contradiction() == nullptr);
    m.*number = nan;
    BOOST_TEST(m.contradiction() != nullptr);
  }
  small m;
  m.dropout = nan;
  BOOST_TEST(m.contradiction() != nullptr);
}

BOOST_AUTO_TEST_CASE(what_a_family_says_of_itself_is_checked_first) {
  struct other : small {
    extent stream{dim::hidden, 16};
    const char* why = nullptr;
    constexpr extent hidden_extent() const { return stream; }
    constexpr const char* contradiction() const { return why; }
  };
  other m;
  BOOST_TEST(said(fault_of(m)) == " ");
  for (const extent& e : {extent{dim::hidden, 8}, extent{dim::sequence, 16}, extent{dim::ffn, 16},
                          extent{dim::hidden, 16, order::balanced}}) {
    m.stream = e;
    BOOST_TEST(said(fault_of(m)) == "MEGA-C001 hidden_extent() is not {dim::hidden, hidden}");
  }
  m.why = "";
  BOOST_TEST(said(fault_of(m)) == "MEGA-C001 contradiction() is an empty text, not null");
  m.why = "why";
  BOOST_TEST(said(fault_of(m)) == "MEGA-C001 why");
  small deep;
  deep.layers = max_layers;
  BOOST_TEST(said(fault_of(deep)) == " ");
  deep.layers = 1'000'000;
  BOOST_TEST(said(fault_of(deep)) == "MEGA-C001 layers is 1000000, more than 512");
}

BOOST_AUTO_TEST_CASE(what_the_head_is_given_is_refused_on_the_line_of_the_model) {
  for (const part_kind part : {part_kind::loss, part_kind::logits}) {
    const fault_record f = forward_graph(narrow{}, {.batch = {2, 16}}, part, 0).wrong;
    BOOST_TEST((f.code == fault::S003), said(f));
    BOOST_TEST(f.line.number == narrow::line);
    BOOST_TEST(std::string(f.line.file_name()) == "sentences.cpp");
  }
}

BOOST_AUTO_TEST_CASE(a_value_beyond_counting_is_refused) {
  const auto wide = [](std::int64_t n) {
    return said_of([=](context& c, var x) {
      const extent F{dim::ffn, n};
      const var w = weight(c, "w", "weight", {F, x.type().back()}, {}, normal_weights(0.1));
      return linear(gelu(linear(x, w)), weight(c, "d", "weight", {x.type().back(), F}, {}, ones()));
    });
  };
  BOOST_TEST(wide(64) == " ");
  BOOST_TEST(wide(std::int64_t{3} << 42) ==
             "MEGA-S004 linear(its output: more than 2^48 elements)");
  for (const std::int64_t n : {std::int64_t{1} << 45, std::int64_t{1} << 60, std::int64_t{1} << 62})
    BOOST_TEST(wide(n) == "MEGA-S004 parameter(w.weight: more than 2^48 elements)");
}

// A rule of one's own may declare anything.
BOOST_AUTO_TEST_CASE(what_a_rule_declares_is_held_to_what_inputs_are) {
  using declares = void (*)(inference&);
  const auto with = [](declares rule, layout ranks = {.tp = 2}) {
    const op_info info{.name = "own", .rule = rule, .outputs_without_gradient = 1};
    const auto block = [&](context& c, var x) {
      c.b->emit(info, {x.id}, 7);
      return gelu(x);
    };
    return said(forward_graph(with_block<decltype(block)>(block),
                              {.ranks = ranks, .batch = {2, 16}}, part_kind::block, 0)
                    .wrong);
  };
  BOOST_TEST(with([](inference& c) { c.declare(c.in(0)), c.declare_scratch(0); }) == " ");
  BOOST_TEST(with([](inference& c) {
               c.declare(c.in(0).type, {{dim::ffn, 8}}).at[axis::tp] = S(dim::ffn);
             }) == " ");
  BOOST_TEST(with([](inference& c) {
               c.declare(c.in(0).type, {{dim::ffn, 7}}).at[axis::tp] = S(dim::ffn);
             }) == "MEGA-S001 own(its output: ffn 7 over 2 ranks; 1 or 7 divide it)");
  BOOST_TEST(with(
                 [](inference& c) {
                   value& v = c.declare(c.in(0).type, {{dim::ffn, 6}});
                   v.at[axis::tp] = v.at[axis::cp] = S(dim::ffn);
                 },
                 {.tp = 2, .cp = 2}) ==
             "MEGA-S001 own(its output: ffn 6 over 4 ranks; 3 or 6 divide it)");
  for (const std::int64_t n : {-4096, 0}) {
    static std::int64_t rows;
    rows = n;
    BOOST_TEST(with([](inference& c) {
                 c.declare(c.in(0).type, {{dim::rows, rows}});
               }) == "MEGA-S001 own(its output: rows " + std::to_string(n) + " over 1 ranks)");
  }
  BOOST_TEST(with([](inference& c) { c.declare(c.in(0)), c.declare_scratch(-5); }) ==
             "MEGA-S001 own(its output: elements -5 over 1 ranks)");
  BOOST_TEST(with([](inference& c) { c.declare(c.in(0)).at[axis::tp] = S(dim::expert); }) ==
             "MEGA-S003 own(its output: no expert)");
  BOOST_TEST(with([](inference& c) {
               c.declare(c.in(0).type, {{dim::ffn, 8}, {dim::rows, 2}, {dim::ffn, 3}});
             }).find("MEGA-S003 own(its output: ffn twice") == 0u);
  BOOST_TEST(with([](inference& c) { c.declare(c.in(0)).at[axis::pp] = R; }, {.pp = 2}) ==
             "MEGA-P018 own(its output) over pp");
}

// The stream's neighbours, and what adds up losses, read another type.
BOOST_AUTO_TEST_CASE(a_part_that_gives_another_type_is_refused) {
  struct wide : small {
    static constexpr var widened(var v) {
      return {v.b, v.b->emit(op::cast, {v.id}, 0, op::cast_attributes{dtype::f64})};
    }
    constexpr var stem(context& c, var tokens) const { return widened(gpt::stem(c, tokens)); }
    constexpr var block(context& c, int /*kind*/, var x) const {
      return widened(layer_norm(c, "n", x, false, 1e-5));
    }
    constexpr var final_norm(context& c, var x) const { return widened(gpt::final_norm(c, x)); }
    constexpr var head_table(context& c) const { return widened(gpt::head_table(c)); }
  };
  for (const auto& [part, name] : {std::pair{part_kind::stem, "stem"},
                                   {part_kind::block, "block"},
                                   {part_kind::loss, "loss"}}) {
    const std::string wrong = said(fault_of(wide{}, part));
    BOOST_TEST(wrong.find(std::string("MEGA-S007 ") + name + "(") == 0u, wrong);
  }
  const auto with_side_loss = [&](auto as) {
    return said_of([=](context& c, var x) {
      const var table = vocabulary_table(c, "aux", 64, x.type().back(), 0.1, false);
      c.add_side_loss(as(vocabulary_loss(x, table, c.positions, 64, 0).sum));
      return layer_norm(c, "n", x, false, 1e-5);
    });
  };
  BOOST_TEST(with_side_loss([](var v) { return v; }) == " ");
  BOOST_TEST(with_side_loss(&wide::widened).find("MEGA-S007 side loss(") == 0u);
  BOOST_TEST(with_side_loss([](var) { return var{}; }) == "MEGA-S008 side loss(): it has no value");
  BOOST_TEST(said_of([](context& c, var x) { // nor is it as large as the stream
               c.add_side_loss(gelu(x));
               return gelu(x);
             })
                 .find("MEGA-S003 side loss(gelu@") == 0u);
}

// The stage before waits for a cotangent of the stream.
BOOST_AUTO_TEST_CASE(a_block_that_leaves_the_stream_is_refused) {
  BOOST_TEST(said_of([](context& c, var x) {
               const value v = c.positions.type();
               const var tokens = c.b->integers(feed::tokens, integer_kind::indices, "mine",
                                                {v.dims[0], v.dims[1]}, v.at, 64);
               return embedding(tokens, weight(c, "t", "weight",
                                               {{dim::elements, 64}, x.type().back()}, {}, ones()));
             }) == "MEGA-P010 cotangent(x)");
}

BOOST_AUTO_TEST_CASE(a_part_that_gives_nothing_is_refused) {
  const std::string none = ": it gives no value";
  BOOST_TEST(said_of([](context&, var) { return var{}; }) == "MEGA-S008 block()" + none);
  struct no_norm : small {
    constexpr var final_norm(context&, var) const { return {}; }
  };
  struct no_table : small {
    constexpr var head_table(context&) const { return {}; }
  };
  for (const part_kind head : {part_kind::loss, part_kind::logits}) {
    BOOST_TEST(said(fault_of(no_norm{}, head)) == "MEGA-S008 final_norm()" + none);
    BOOST_TEST(said(fault_of(no_table{}, head)) == "MEGA-S008 head_table()" + none);
  }
  BOOST_TEST(said_of([](context&, var x) { return x; }) == "MEGA-S009 block(x)");
}

BOOST_AUTO_TEST_CASE(a_parameter_that_only_others_use_is_told_so) {
  struct shared : small {
    constexpr var stem(context& c, var tokens) const {
      weight(c, "all", "weight", {hidden_extent()}, {}, ones());
      return gpt::stem(c, tokens);
    }
  };
  const fault_record f = fault_of(shared{}, part_kind::stem);
  BOOST_TEST(said(f) == "MEGA-P010 gradient(all.weight)");
  BOOST_TEST(std::string(sentence_of(f.code)).find("nothing in the part") != std::string::npos);
}

// Rounds begin at a dispatch and end at a combine, however a model writes what is in between.
BOOST_AUTO_TEST_CASE(what_reads_rows_runs_in_rounds) {
  const auto built = [](auto f) {
    const auto block = [=](context& c, var x) {
      const extent E{dim::expert, 4}, F{dim::ffn, 8}, H = x.type().back();
      const var router = weight(c, "r", "weight", {E, H}, {}, normal_weights(0.1));
      const routing r = route(linear(x, router), {}, 2, true);
      const expert_assignment p = expert_rows(r.experts, 5, 4, 0);
      const var u = expert_weight(c, "u", {E, F, H}, 0.1),
                d = expert_weight(c, "d", {E, H, F}, 0.1);
      const auto expert = [=](const expert_assignment& q) {
        const var rows = gelu(grouped_linear(dispatch(x, q), u, q));
        return combine(grouped_linear(rows, d, q), q);
      };
      return x + f(c, x, p, expert);
    };
    return forward_graph(with_block<decltype(block)>(block), {.batch = {2, 16}}, part_kind::block,
                         0);
  };
  const graph whole = built([=](context&, var x, const expert_assignment& p, auto expert) {
    const graph& g = x.b->g;
    BOOST_TEST(g.region_count == 0);
    const var y = expert(p);
    BOOST_TEST(g.region_count == 1);
    return y;
  });
  BOOST_TEST((whole.wrong.code == fault::none), said(whole.wrong));
  std::string inside;
  for (int i = 0; i < whole.node_count; ++i)
    if (whole.at_node(i).region == 0) inside += std::string(whole.at_node(i).op->name) + " ";
  BOOST_TEST(inside == "dispatch grouped_linear gelu grouped_linear combine ");
  graph given = whole; // what each round has anew
  for (int i = 0; i < given.node_count; ++i)
    if (given.at_node(i).op == &op::gelu) given.side_loss = given.at_node(i).out[0];
  given.wrong = verify_nodes(given);
  BOOST_TEST(said(given.wrong).find("MEGA-P016 gelu(") == 0u, said(given.wrong));
  const graph two = built([=](context&, var x, const expert_assignment& p, auto expert) {
    const expert_assignment other = expert_rows(p.experts, 7, 4, 0);
    return combine(dispatch(x, other), other) + expert(p);
  });
  BOOST_TEST((two.wrong.code == fault::none), said(two.wrong));
  BOOST_TEST(two.region_count == 2);
  const auto of_others = [&](bool rows) { // which rows of which experts these are says their plan
    return built([=](context& c, var x, const expert_assignment& p, auto) {
      const extent E{dim::expert, 4}, F{dim::ffn, 8}, H = x.type().back();
      const expert_assignment other = expert_rows(p.experts, 7, 4, 0);
      const var d = dispatch(x, other);
      if (rows) return combine(d, p);
      const var up = expert_weight(c, "up", {E, F, H}, 0.1),
                down = expert_weight(c, "down", {E, H, F}, 0.1);
      return combine(grouped_linear(grouped_linear(d, up, p), down, other), other);
    });
  };
  BOOST_TEST(said(of_others(true).wrong).find("MEGA-P016 combine(") == 0u);
  BOOST_TEST(said(of_others(false).wrong).find("MEGA-P016 grouped_linear(") == 0u);
}

// A graph has room for so many mixtures. An expert's weight may be computed: the sum of its
// gradient over the rounds then goes on behind them.
BOOST_AUTO_TEST_CASE(regions_are_counted_and_end_before_their_sums_are_read) {
  const auto passed = [](dtype t, auto f) {
    const auto block = [=](context& c, var x) {
      const var router =
          weight(c, "r", "weight", {{dim::expert, 4}, x.type().back()}, {}, normal_weights(0.1));
      return x + f(c, x, router);
    };
    const graph d =
        derived_graph(forward_graph(with_block<decltype(block)>(block),
                                    {.batch = {2, 16}, .precision = t}, part_kind::block, 0));
    return after_passes(d, {.backward = true}, deriving_passes);
  };
  const auto in_a_row = [&](int mixtures) {
    return passed(dtype::f32, [=](context&, var x, var router) {
      const routing r = route(linear(x, router), {}, 2, true);
      for (int i = 0; i < mixtures; ++i) {
        const expert_assignment p = expert_rows(r.experts, 5, 4, 0);
        x = combine(scale_rows(dispatch(x, p), dispatch(r.weights, p)), p);
      }
      return x;
    });
  };
  BOOST_TEST(said(in_a_row(max_regions).wrong) == " ");
  BOOST_TEST(in_a_row(max_regions).region_count == max_regions);
  BOOST_TEST(said(in_a_row(max_regions + 1).wrong).find("MEGA-S004 region(") == 0u);

  for (const dtype t : {dtype::f32, dtype::bf16}) {
    const auto computed = [](context& c, var x, var router) {
      const extent E{dim::expert, 4}, H = x.type().back(), F{dim::ffn, 8};
      const routing r = route(linear(x, router), {}, 2, true);
      const expert_assignment p = expert_rows(r.experts, 5, 4, 0);
      const var rows = scale_rows(dispatch(x, p), dispatch(r.weights, p));
      const var u = expert_weight(c, "u", {E, F, H}, 0.1),
                d = expert_weight(c, "d", {E, H, F}, 0.1);
      return combine(grouped_linear(grouped_linear(rows, u + u, p), d, p), p);
    };
    BOOST_TEST(said(passed(t, computed).wrong) == " "); // once a step
    const auto block = [=](context& c, var x) {
      return computed(
          c, x,
          weight(c, "r", "weight", {{dim::expert, 4}, x.type().back()}, {}, normal_weights(0.1)));
    };
    graph anew = forward_graph(with_block<decltype(block)>(block),
                               {.batch = {2, 16}, .precision = t}, part_kind::block, 0);
    for (int i = 0; i < anew.node_count; ++i) anew.at_node(i).when = phase::forward;
    const graph d = derived_graph(anew); // with every micro-batch
    BOOST_TEST(said(after_passes(d, {.backward = true}, deriving_passes).wrong) == " ");
  }
}

// The host reads one i32, of which it gets a copy when a node has made it.
BOOST_AUTO_TEST_CASE(trips_are_a_number) {
  static constexpr auto rule = [](inference& c) { c.declare(c.in(0)); };
  static constexpr op_info count{.name = "count", .rule = rule};
  const auto counted_by = [](dtype t, std::int64_t n, bool made = true) {
    builder b{mesh::one_rank()};
    const var x = b.parameter("", "x", t, {{dim::elements, n}}, {}, {});
    const value_id trips = made ? b.emit(count, {x.id}, 0) : x.id;
    b.region_of_trips(trips, 0);
    return said(b.g.wrong);
  };
  BOOST_TEST(counted_by(dtype::i32, 1) == " ");
  BOOST_TEST(counted_by(dtype::i32, 1, false) == "MEGA-S007 region(x)");
  BOOST_TEST(counted_by(dtype::i32, 2) == "MEGA-S007 region(count@0)");
  BOOST_TEST(counted_by(dtype::f32, 1) == "MEGA-S007 region(count@0)");
}

// What is asked for anew in each trip is not computed once a step.
BOOST_AUTO_TEST_CASE(nodes_of_regions_are_not_hoisted) {
  builder b{mesh::one_rank()};
  const extent B{dim::batch, 1}, Sq{dim::sequence, 8}, H{dim::hidden, 4}, E{dim::expert, 2};
  const var x = b.parameter("", "x", dtype::f32, {B, Sq, H}, {}, {}),
            router = b.parameter("", "router", dtype::f32, {E, H}, {}, {});
  const routing r = route(linear(x, router), {}, 1, true);
  const expert_assignment p = expert_rows(r.experts, 5, E.n, 0);
  b.g.outputs[0] = combine(scale_rows(dispatch(x, p), dispatch(r.weights, p)), p).id;
  hoist(b.g);
  for (int i = 0; i < b.g.node_count; ++i) {
    const node& n = b.g.at_node(i);
    const bool seen = n.op == &op::expert_rows; // by the host, once a micro-batch
    BOOST_TEST(((n.when == phase::prologue) == (n.region < 0 && !seen)), n.op->name);
  }
  BOOST_TEST(said(in_regions(b.g).wrong) == " ");
}

// One mixture may follow another, of the same choices or of its own; they cannot stand in each
// other.
BOOST_AUTO_TEST_CASE(rounds_of_two_mixtures_do_not_mix) {
  const auto passed = [](auto f) {
    const auto block = [=](context& c, var x) {
      const var router =
          weight(c, "r", "weight", {{dim::expert, 4}, x.type().back()}, {}, normal_weights(0.1));
      const routing r = route(linear(x, router), {}, 2, true);
      const auto rows = [=](var y, const expert_assignment& p) {
        return scale_rows(dispatch(y, p), dispatch(r.weights, p));
      };
      return x + f(x, expert_rows(r.experts, 5, 4, 0), expert_rows(r.experts, 5, 4, 0), rows);
    };
    const graph d = derived_graph(
        forward_graph(with_block<decltype(block)>(block), {.batch = {2, 16}}, part_kind::block, 0));
    return said(after_passes(d, {.backward = true}, deriving_passes).wrong);
  };
  const std::string behind = passed([](var x, expert_assignment p, expert_assignment q, auto rows) {
    return combine(rows(combine(rows(x, p), p), q), q);
  });
  BOOST_TEST(behind == " ");
  const std::string beside = passed([](var x, expert_assignment p, expert_assignment q, auto rows) {
    const var a = rows(x, p), b = rows(x, q);
    return combine(a, p) + combine(b, q);
  });
  BOOST_TEST(beside == " ");
  const std::string of_both = passed([](var x, expert_assignment p, expert_assignment q,
                                        auto rows) { return combine(rows(x, p) + rows(x, q), p); });
  BOOST_TEST(of_both.find("MEGA-P016 +(") == 0u, of_both);
  const std::string inside = passed([](var x, expert_assignment p, expert_assignment q, auto rows) {
    const var a = rows(x, p), b = dispatch(combine(rows(x, q), q), p);
    return combine(a + b, p);
  });
  BOOST_TEST(inside == " "); // the rounds of q are done before those of p begin
  const std::string of_itself =
      passed([](var x, expert_assignment p, expert_assignment, auto rows) {
        return combine(rows(x, p) + dispatch(combine(rows(x, p), p), p), p);
      });
  BOOST_TEST(of_itself.find("MEGA-P016 dispatch(combine") == 0u, of_itself);
  const std::string of_each_other =
      passed([](var x, expert_assignment p, expert_assignment q, auto rows) {
        const var a = rows(x, p), b = rows(x, q);
        const var c = dispatch(combine(a, p), q), d = dispatch(combine(b, q), p);
        return combine(c, q) + combine(d, p);
      });
  BOOST_TEST(of_each_other.find("MEGA-P016 ") == 0u, of_each_other);
}
