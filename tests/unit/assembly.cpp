// A program is put together by one list of steps (plan/assembly.hpp): as constants and as values, for
// what is right and for what is wrong, both end alike.
#define BOOST_TEST_MODULE assembly
#include <boost/test/unit_test.hpp>

#include <megacpp/exec/cpu.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/program.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr gpt dense() {
  return {.layers = 2, .hidden = 16, .heads = 4, .ffn = 20, .vocabulary = 17, .positions = 8};
}
constexpr qwen3_moe mixture() {
  qwen3_moe m;
  m.layers = 4, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 20;
  m.expert_ffn = 8, m.experts = 6, m.experts_per_token = 2, m.vocabulary = 17, m.mlp_only = {1};
  return m;
}
constexpr setup small(layout l = {}) { return {.ranks = l, .batch = {2, 8}}; }
constexpr setup with_frozen(setup s, frozen f) {
  s.frozen = f;
  return s;
}
constexpr setup in_rounds(setup s) {
  s.batch.expert_rows = 9;
  return s;
}

/// A block that hands on what it was given in another width.
struct narrow : gpt {
  static constexpr family_name<narrow> family{"narrow"};
  constexpr var block(context& c, int kind, var x) const {
    return linear(
        gpt::block(c, kind, x),
        weight(c, "narrow", "weight", {{dim::ffn, ffn}, hidden_extent()}, {}, normal_weights(std)));
  }
};
constexpr narrow narrowed() {
  narrow m;
  static_cast<gpt&>(m) = dense();
  return m;
}

/// Its list has a pass that hands on the stream as it came in.
struct tampered : gpt {
  static constexpr family_name<tampered> family{"tampered"};
};
constexpr tampered tampered_with() {
  tampered m;
  static_cast<gpt&>(m) = dense();
  return m;
}
class tampered_list {
public:
  using step = assembly_step<tampered>;
  constexpr tampered_list() {
    for (int i = 0; i < whole_.count(); ++i) {
      all_[i] = whole_[i];
      if (std::string_view(all_[i].name) == all_passes[pass_count - 2].name) all_[i].make = &make;
    }
  }
  constexpr int count() const { return whole_.count(); }
  constexpr int hoisted() const { return whole_.hoisted(); }
  constexpr const step& operator[](int i) const { return all_[i]; }

private:
  static constexpr graph make(const assembling<tampered>& a, int number) {
    graph g = all_passes[pass_count - 2].apply(a.g(number), a.options(number));
    if (a.what(number) != part_kind::block) return g;
    for (int v = 0; v < g.value_count; ++v)
      if (g.values[v].is == role::input && g.values[v].from == feed::stream)
        g.outputs[0] = static_cast<value_id>(v);
    return g;
  }
  assembly_list<tampered> whole_{};
  step all_[64]{};
};

} // namespace
namespace mc {
template <> inline constexpr tampered_list assembly<tampered>{};
} // namespace mc
namespace {

/// What a program is of; each is a type, whose graphs are constants.
struct of_tampered {
  static constexpr tampered model = tampered_with();
  static constexpr setup numbers = small();
};
struct whole_dense {
  static constexpr gpt model = dense();
  static constexpr setup numbers = small();
};
struct whole_mixture {
  static constexpr qwen3_moe model = mixture();
  static constexpr setup numbers =
      in_rounds(small({.tp = 2, .pp = 2, .ep = 2, .etp = 2, .sequence_parallel = true, .zero = 1}));
};
struct experts_missing {
  static constexpr gpt model = dense();
  static constexpr setup numbers = small({.ep = 2});
};
struct nothing_frozen {
  static constexpr gpt model = dense();
  static constexpr setup numbers = with_frozen(small(), {"attn", "elsewhere"});
};
/// The first one that the list comes to is told.
struct two_faults {
  static constexpr gpt model = dense();
  static constexpr setup numbers = with_frozen(small({.ep = 2}), {"elsewhere"});
};
struct heads_do_not_divide {
  static constexpr gpt model = dense();
  static constexpr setup numbers = small({.tp = 3});
};
struct other_width {
  static constexpr narrow model = narrowed();
  static constexpr setup numbers = small();
};
struct no_end {
  static constexpr gpt model = dense();
  static constexpr setup numbers = small({.pp = 2, .schedule = &gpipe});
};
constexpr setup with_narrow_sums(setup s) {
  s.precision = dtype::bf16;
  s.precision.main_gradient = dtype::bf16;
  return s;
}
struct main_grads_too_narrow {
  static constexpr gpt model = dense();
  static constexpr setup numbers = with_narrow_sums(small());
};

template <class Of> using as_constants =
    mc::detail::assembled<Of, assembly<std::remove_const_t<decltype(Of::model)>>.count()>;
template <class Of> constexpr const fault_record* first_fault_of =
    detail::faults<Of, assembly<std::remove_const_t<decltype(Of::model)>>.count()>::first;

/// What the interpreter refuses it with; nothing: it does not.
template <class Of> std::string refused_now() {
  try {
    const interpreted_program<std::remove_const_t<decltype(Of::model)>, cpu> made(
        Of::model, Of::numbers, "made now");
  } catch (const error& e) {
    return e.what();
  }
  return "";
}
template <class Of> void both_refuse(const char* code) {
  constexpr const fault_record* wrong = first_fault_of<Of>;
  static_assert(wrong != nullptr);
  const std::string said = sentence_about(with_line(*wrong, Of::numbers));
  BOOST_TEST(said.find(code) != std::string::npos, said);
  BOOST_TEST(refused_now<Of>() == said);
}

bool same(const graph& a, const graph& b) {
  if (a.node_count != b.node_count || a.value_count != b.value_count) return false;
  for (int i = 0; i < a.node_count; ++i) {
    const node &x = a.at_node(i), &y = b.at_node(i);
    if (x.op != y.op || x.when != y.when || !std::ranges::equal(x.in, y.in) ||
        !std::ranges::equal(x.out, y.out))
      return false;
  }
  return true;
}
/// Every graph, and where its values lie.
template <class Of> void both_make() {
  using constants = as_constants<Of>;
  static_assert(first_fault_of<Of> == nullptr);
  const interpreted_program<std::remove_const_t<decltype(Of::model)>, cpu> made(
      Of::model, Of::numbers, "made now");
  const program_view& v = made.view();
  BOOST_TEST_REQUIRE(v.parts.size() == constants::now.graphs.size());
  for (std::size_t i = 0; i < v.parts.size(); ++i) {
    const graph& g = *constants::now.graphs[i];
    BOOST_TEST(g.node_count > 0);
    BOOST_TEST(same(*v.parts[i].g, g), "graph " << i);
    const memory_plan& p = *constants::now.plans[i];
    for (int k = 0; k < g.value_count; ++k) {
      const address &x = p.at[static_cast<unsigned>(k)],
                    &y = v.parts[i].plan->at[static_cast<unsigned>(k)];
      BOOST_TEST((x.in == y.in && x.offset == y.offset), "value " << k << " of graph " << i);
    }
  }
  BOOST_TEST(v.stores->total == constants::now.stores->total);
}

} // namespace

BOOST_AUTO_TEST_CASE(constants_and_values_are_the_same) {
  both_make<whole_dense>(), both_make<whole_mixture>();
}

BOOST_AUTO_TEST_CASE(the_first_fault_is_the_same) {
  both_refuse<experts_missing>("MEGA-C002");
  both_refuse<nothing_frozen>("MEGA-C009");
  both_refuse<two_faults>("MEGA-C002");
  both_refuse<heads_do_not_divide>("MEGA-S");
  both_refuse<other_width>("MEGA-S");
  both_refuse<no_end>("MEGA-T003");
  both_refuse<main_grads_too_narrow>("MEGA-");
  both_refuse<of_tampered>("MEGA-P019");
}

// Whatever a step makes of graphs, the verifier's checks stand behind it.
BOOST_AUTO_TEST_CASE(nothing_is_made_without_a_check) {
  const auto& list = assembly<gpt>;
  using step = assembly_step<gpt>;
  int passes = 0;
  for (int i = 0; i < list.count(); ++i) {
    bool is_pass = false;
    for (const pass& p : all_passes) is_pass = is_pass || std::string_view(p.name) == list[i].name;
    if (!is_pass) continue;
    ++passes;
    BOOST_TEST((list[i].is == step::graphs));
    for (int c = 0; c < pass_check_count; ++c) {
      BOOST_TEST_REQUIRE(i + 1 + c < list.count());
      BOOST_TEST((list[i + 1 + c].is == step::check));
      BOOST_TEST(std::string_view(list[i + 1 + c].name) == pass_checks[c].name);
    }
  }
  BOOST_TEST(passes == pass_count);
}
