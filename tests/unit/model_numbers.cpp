// The numbers of models as they reach the graph, against closed forms: coefficients of the router's
// losses, what an expert takes, how weights of experts are divided, initial standard deviations,
// which layers are of which kind, what a dropout is told apart by, and the angles of stretched RoPE.
#define BOOST_TEST_MODULE model_numbers
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/llama.hpp>
#include <megacpp/model/qwen2.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/run/view.hpp>

#include <array>
#include <cmath>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

using namespace mc;

namespace {

constexpr qwen3_moe mixture() {
  qwen3_moe m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  m.expert_ffn = 24, m.experts = 8, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 64;
  return m;
}
template <class Model>
std::unique_ptr<graph> built(const Model& m, const setup& s, part_kind part, int kind = 0) {
  auto g = std::make_unique<graph>(forward_graph(m, s, part, kind));
  BOOST_TEST_REQUIRE((g->wrong.code == fault::none), g->wrong.what.c);
  return g;
}
std::vector<const node*> nodes_of(const graph& g, const op_info& op) {
  std::vector<const node*> found;
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).op == &op) found.push_back(&g.at_node(i));
  return found;
}
const node& the_node(const graph& g, const op_info& op) {
  const auto found = nodes_of(g, op);
  BOOST_TEST_REQUIRE(found.size() == 1u);
  return *found[0];
}
std::string name_of(const graph& g, const parameter_info& p) {
  return std::string(g.at(p.v).scope) + "." + g.at(p.v).name;
}

} // namespace

namespace {
enum class shape { narrow = 2, wide = 5 };
/// One that derives has its base's members and its own.
struct striped : gpt {
  std::array<int, 3> windows{4, 0, 9};
  double factors[2][2]{{1, 2}, {3, 4}};
  shape of = shape::wide;
  static constexpr auto members =
      gpt::members + member_list<&striped::windows, &striped::factors, &striped::of>{};
};
struct named_again : gpt {
  int heads = 3;
  static constexpr auto members = gpt::members + member_list<&named_again::heads>{};
};
struct unlisted : gpt {
  bool twice = false;
};
template <class Model> std::string told(const Model& m) {
  std::ostringstream text;
  for (const model_number& n : numbers_of(m)) text << n.name << "=" << n.value << " ";
  return text.str();
}
} // namespace

// Files know a member by the name that it has in the source.
BOOST_AUTO_TEST_CASE(members_under_their_names) {
  gpt m;
  m.layers = 1, m.hidden = 2, m.heads = 3, m.ffn = 4, m.vocabulary = 5, m.positions = 6;
  m.bias = false, m.tied = true, m.eps = 0.5, m.dropout = 0.25, m.std = 0.125, m.z_loss = 8;
  const std::string own =
      "layers=1 hidden=2 heads=3 ffn=4 vocabulary=5 positions=6 bias=0 tied=1 "
      "eps=0.5 dropout=0.25 std=0.125 z_loss=8 ";
  BOOST_TEST(told(m) == own);
  BOOST_TEST(told(striped{m}) == own +
                                     "windows[0]=4 windows[1]=0 windows[2]=9 factors[0][0]=1 "
                                     "factors[0][1]=2 factors[1][0]=3 factors[1][1]=4 of=5 ");
  BOOST_TEST(told(named_again{m}) == own + "heads=3 ");
  // A struct of members is told where it says anything.
  llama l;
  BOOST_TEST(told(l).find("rope_theta=500000 std=0.02 ") != std::string::npos, told(l));
  l.rope_scaling = {rope_type::llama3, 8, 8192, 1, 4};
  BOOST_TEST(told(l).find("rope_theta=500000 rope_scaling.type=2 rope_scaling.factor=8 "
                          "rope_scaling.original=8192 rope_scaling.slow=1 rope_scaling.fast=4 "
                          "rope_scaling.attention=0 rope_scaling.truncated=1 std=0.02 ") !=
                 std::string::npos,
             told(l));
}

// A list is a second mention of the members: where it lacks one, the struct is larger than it says,
// and a program is refused (MEGA-C005).
BOOST_AUTO_TEST_CASE(a_list_has_all_members) {
  static_assert(gpt::members.size() == sizeof(gpt));
  static_assert(llama::members.size() == sizeof(llama));
  static_assert(qwen2::members.size() == sizeof(qwen2));
  static_assert(qwen3::members.size() == sizeof(qwen3));
  static_assert(rope_stretch::members.size() == sizeof(rope_stretch));
  static_assert(qwen3_moe::members.size() == sizeof(qwen3_moe));
  static_assert(striped::members.size() == sizeof(striped));
  static_assert(unlisted::members.size() < sizeof(unlisted));
  static_assert(member_list<&qwen3_moe::layers, &qwen3_moe::hidden>::size() == 2 * sizeof(int));
  static_assert(member_list<&gpt::bias, &gpt::eps>::size() == 2 * sizeof(double));
}

// Fedus et al. 2022, equation 4, for k experts a token, as Megatron-LM and transformers have it:
// a E / (k N^2) sum_e c_e sum_t p_te over N tokens, of which one N divides the sum over tokens with
// the loss and E / k N stands in the op, as k N are the choices that it counts; z sum_t lse_t^2 (Zoph et al. 2022, equation 5) is divided by it alone.
BOOST_AUTO_TEST_CASE(coefficients_of_the_router) {
  for (const bool per_sequence : {false, true})
    for (const layout& l : {layout{}, layout{.tp = 2}, layout{.cp = 2}, layout{.cp = 2, .ep = 2}}) {
      qwen3_moe m = mixture();
      m.aux_loss = 0.01, m.router_z_loss = 0.003, m.aux_per_sequence = per_sequence;
      const auto g = built(m, {.ranks = l, .batch = {3, 16}}, part_kind::block);
      const node& n = the_node(*g, op::router_loss);
      BOOST_TEST(n.attr.as<op::router_loss_attributes>().balance == 0.01);
      BOOST_TEST(n.attr.as<op::router_loss_attributes>().z == 0.003);
    }
}

// capacity times the average number of choices an expert, rounded up.
BOOST_AUTO_TEST_CASE(what_an_expert_takes) {
  const auto taken = [](double capacity, std::int64_t experts, std::int64_t choices) {
    expert_sizes s;
    s.experts = {dim::expert, experts}, s.capacity = capacity;
    return detail::expert_capacity(s, choices);
  };
  BOOST_TEST(taken(0, 8, 100) == 0); // all
  BOOST_TEST(taken(1, 8, 64) == 8);
  BOOST_TEST(taken(1, 8, 65) == 9);
  BOOST_TEST(taken(1.25, 8, 64) == 10);
  BOOST_TEST(taken(1.25, 8, 66) == 11); // 10.3125
  BOOST_TEST(taken(0.01, 8, 64) == 1);
  BOOST_TEST(taken(2, 3, 10) == 7); // 6.67
  qwen3_moe m = mixture();
  m.capacity = 1.1;
  const auto g = built(m, {.batch = {3, 16}}, part_kind::block);
  BOOST_TEST(the_node(*g, op::expert_rows).attr.as<op::expert_rows_attributes>().capacity ==
             14); // 96 choices, 13.2
}

BOOST_AUTO_TEST_CASE(weights_of_experts_are_divided_where_the_model_says_so) {
  for (const bool norm : {false, true}) {
    qwen3_moe m = mixture();
    m.norm_topk = norm;
    const auto g = built(m, {.batch = {2, 16}}, part_kind::block);
    const node& n = the_node(*g, op::route);
    BOOST_TEST(n.attr.as<op::route_attributes>().choices == 2);
    BOOST_TEST(n.attr.as<op::route_attributes>().normalise == norm);
  }
}

// transformers: (layer + 1) % decoder_sparse_step == 0 and not in mlp_only_layers.
BOOST_AUTO_TEST_CASE(layers_with_experts) {
  const auto pattern = [](int step, layer_set mlp_only) {
    qwen3_moe m = mixture();
    m.sparse_step = step, m.mlp_only = mlp_only;
    std::string s;
    for (int l = 0; l < 6; ++l) s += m.kind_of(l) == 0 ? 'e' : '-';
    return s;
  };
  BOOST_TEST(pattern(1, {}) == "eeeeee");
  BOOST_TEST(pattern(2, {}) == "-e-e-e");
  BOOST_TEST(pattern(3, {}) == "--e--e");
  BOOST_TEST(pattern(1, {0, 4}) == "-eee-e");
  BOOST_TEST(pattern(2, {0, 3}) == "-e---e");
}

// Radford et al. 2019: weights of the projections back to the stream are scaled by 1 / sqrt(N) for
// N residual layers, which are two a block.
BOOST_AUTO_TEST_CASE(initial_weights_of_gpt) {
  gpt m;
  m.layers = 8, m.hidden = 16, m.heads = 4, m.ffn = 32, m.vocabulary = 64, m.positions = 32;
  m.std = 0.02;
  for (const part_kind part : {part_kind::stem, part_kind::block}) {
    const auto g = built(m, {.batch = {2, 16}}, part);
    int back = 0;
    for (int i = 0; i < g->parameter_count; ++i) {
      const parameter_info& p = g->parameters[static_cast<unsigned>(i)];
      const std::string name = name_of(*g, p);
      if (p.how != init::normal) continue;
      const bool to_stream = name == "attn.proj.weight" || name == "mlp.proj.weight";
      back += to_stream;
      BOOST_TEST(p.std == (to_stream ? 0.02 / std::sqrt(16.) : 0.02),
                 boost::test_tools::tolerance(1e-12));
    }
    BOOST_TEST(back == (part == part_kind::block ? 2 : 0));
  }
}

BOOST_AUTO_TEST_CASE(dropouts_of_a_graph_have_a_salt_each) {
  gpt m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.ffn = 32, m.vocabulary = 64, m.positions = 32;
  m.dropout = 0.1;
  const auto g = built(m, {.batch = {2, 16}}, part_kind::block);
  const auto dropouts = nodes_of(*g, op::dropout);
  BOOST_TEST_REQUIRE(dropouts.size() == 2u);
  BOOST_TEST((dropouts[0]->attr != dropouts[1]->attr));
  m.dropout = 0;
  BOOST_TEST(nodes_of(*built(m, {.batch = {2, 16}}, part_kind::block), op::dropout).empty());
}

BOOST_AUTO_TEST_CASE(elementary_functions_of_constants) {
  static_assert(natural_log(1) == 0 && exponential(0) == 1 && square_root(64) == 8);
  static_assert(floor_of(-0.5) == -1 && ceiling_of(-0.5) == 0 && floor_of(3) == 3 &&
                ceiling_of(3) == 3 && floor_of(2.7) == 2 && ceiling_of(2.2) == 3);
  double worst = 0;
  for (int i = 0; i < 20000; ++i) {
    const double y = -40 + i * 0.004 + 1e-7, x = std::exp(y);
    worst = std::max(worst, std::abs(exponential(y) / x - 1));
    worst = std::max(worst, std::abs(natural_log(x) - y) / std::max(1.0, std::abs(y)));
    worst = std::max(worst, std::abs(square_root(x) / std::sqrt(x) - 1));
  }
  BOOST_TEST(worst < 1e-15);
}

namespace {

/// The definitions, written down once more: of linear in position interpolation (Chen et al. 2023),
/// of llama3 in Meta's code of Llama 3.1 by wavelengths, of yarn in its paper (Peng et al. 2023) as
/// transformers has it, by pairs.
double defined(const rope_stretch& s, double theta, int D, double positions, int i) {
  const double w = std::pow(theta, -2.0 * i / D), slowed = w / s.factor, pi = std::acos(-1.0);
  const double original = s.original > 0 ? s.original : positions;
  switch (s.type) {
  case rope_type::unscaled: return w;
  case rope_type::linear: return slowed;
  case rope_type::llama3: {
    const double length = 2 * pi / w;
    if (length > original / s.slow) return slowed;
    if (length < original / s.fast) return w;
    const double smooth = (original / length - s.slow) / (s.fast - s.slow);
    return (1 - smooth) * slowed + smooth * w;
  }
  case rope_type::yarn: {
    const auto pair = [&](double turns) {
      return D * std::log(original / (turns * 2 * pi)) / (2 * std::log(theta));
    };
    double low = pair(s.fast), high = pair(s.slow);
    if (s.truncated) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, D - 1.0);
    if (low == high) high += 0.001;
    const double ramp = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
    return slowed * ramp + w * (1 - ramp);
  }
  }
  return 0;
}

constexpr rope_stretch scalings[] = {
    {},
    {rope_type::linear, 4},
    {rope_type::llama3, 8, 8192, 1, 4},
    {rope_type::llama3, 32, 8192, 1, 4},
    {rope_type::llama3, 2.5, 8, 0.5, 1.5},
    {rope_type::yarn, 4, 32768},
    {rope_type::yarn, 4, 0},
    {rope_type::yarn, 40, 4096, 1, 32, 1, false},
    {rope_type::yarn, 3, 8}, // all pairs turn less than once
    {rope_type::yarn, 3, 1 << 30, 0.25, 6},
};

// Of a model that a compiler makes a program of they are constants.
constexpr op::rope_attributes llama3_1 =
    rope_angles(5e5, {rope_type::llama3, 8, 8192, 1, 4}, 128, 131072);
static_assert(op::inverse_frequency(llama3_1, 0, 64) == 1);
static_assert(op::inverse_frequency(llama3_1, 63, 64) < 1.0 / 5e5 / 6);

} // namespace

BOOST_AUTO_TEST_CASE(inverse_frequencies_are_as_defined) {
  int kept = 0, slowed = 0, between = 0;
  for (const rope_stretch& s : scalings)
    for (const double theta : {1e4, 5e5, 1e6, 1e7})
      for (const int D : {2, 6, 64, 128}) {
        const op::rope_attributes a = rope_angles(theta, s, D, 40960);
        for (int i = 0; i < D / 2; ++i) {
          const double w = op::inverse_frequency(a, i, D / 2),
                       want = defined(s, theta, D, 40960, i), first = std::pow(theta, -2.0 * i / D);
          BOOST_TEST(std::abs(w / want - 1) < 2e-14, static_cast<int>(s.type)
                                                         << " " << theta << " " << D << " pair "
                                                         << i << ": " << w << ", not " << want);
          const double part = want / first;
          ++(part > 0.999 ? kept : part < 1.001 / s.factor ? slowed : between);
        }
      }
  BOOST_TEST((kept > 100 && slowed > 100 && between > 50), kept << " " << slowed << " " << between);
}

// Whatever a family is called, its rotations have the model's angles and its scores the scale.
BOOST_AUTO_TEST_CASE(stretched_angles_reach_the_graph) {
  const auto check = [](auto m) {
    m.layers = 1, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
    m.vocabulary = 64, m.positions = 64;
    for (const rope_stretch& s : scalings) {
      m.rope_scaling = s;
      BOOST_TEST((m.contradiction() == nullptr));
      const auto g = built(m, {.batch = {2, 16}}, part_kind::block);
      const auto turns = nodes_of(*g, op::rope);
      BOOST_TEST(turns.size() == 2u);
      const op::rope_attributes want = rope_angles(m.rope_theta, s, 16, 64);
      for (const node* n : turns) BOOST_TEST((n->attr == attributes(want)));
      const double m2 = s.type != rope_type::yarn ? 1
                        : s.attention > 0         ? s.attention * s.attention
                                                  : std::pow(0.1 * std::log(s.factor) + 1, 2);
      const double scale = the_node(*g, op::attention).attr.template as<attention_options>().scale;
      BOOST_TEST(std::abs((scale > 0 ? scale : 0.25) - m2 * 0.25) < 1e-15);
    }
  };
  check(llama{}), check(qwen2{}), check(qwen3{}),
      check(qwen3_moe{.expert_ffn = 8, .experts = 4, .experts_per_token = 2});
}

BOOST_AUTO_TEST_CASE(a_stretch_that_says_nothing_sound_is_a_contradiction) {
  const auto wrong = [](const rope_stretch& s, double theta = 1e4) {
    llama m;
    m.rope_scaling = s, m.rope_theta = theta;
    const char* why = m.contradiction();
    return std::string(why == nullptr ? "" : why);
  };
  BOOST_TEST(wrong({rope_type::linear, 0.5}).find("factor") != std::string::npos);
  BOOST_TEST(wrong({rope_type::llama3, 8, 8192, 4, 4}).find("below .fast") != std::string::npos);
  BOOST_TEST(wrong({rope_type::yarn, 8, -1}).find("original") != std::string::npos);
  BOOST_TEST(wrong({rope_type::yarn, 8}, 1).find("rope_theta") != std::string::npos);
  BOOST_TEST(wrong({rope_type::yarn, 8}) == "");
}
