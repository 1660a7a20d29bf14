// Attributes come back from a node's words as they were given, of their own type alone.
#define BOOST_TEST_MODULE attributes
#include <boost/test/unit_test.hpp>

#include <megacpp/op/experts.hpp>
#include <megacpp/op/rope.hpp>

#include <cmath>
#include <limits>

using namespace mc;

namespace {

struct mixed_members {
  bool flag;
  std::int64_t wide;
  std::int8_t narrow;
  double real;
  dim name = dim::none;
  constexpr bool operator==(const mixed_members&) const = default;
};
struct two_members {
  std::int64_t first, second;
  constexpr bool operator==(const two_members&) const = default;
};
struct three_members {
  std::int64_t first, second, third;
  constexpr bool operator==(const three_members&) const = default;
};
struct four_members {
  std::int64_t first, second, third, fourth;
  constexpr bool operator==(const four_members&) const = default;
};
struct one_place {
  place at;
  constexpr bool operator==(const one_place&) const = default;
};

template <class A> constexpr bool comes_back(const A& a) {
  const attributes kept = a;
  return kept.are<A>() && kept.as<A>() == a && kept == attributes(a);
}

constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
static_assert(comes_back(mixed_members{true, least, -128, -0.125, dim::replicas}));
static_assert(comes_back(mixed_members{false, ~least, 127, 1e300, dim::none}));
static_assert(comes_back(two_members{1, 2}) && comes_back(three_members{1, 2, 3}));
static_assert(comes_back(four_members{1, 2, 3, 4}));
static_assert(comes_back(one_place{{state::shard, dim::replicas, 6}}));
static_assert(comes_back(one_place{partial}) && comes_back(one_place{invariant}));

} // namespace

BOOST_AUTO_TEST_CASE(every_place_comes_back) {
  for (const state s : {state::invariant, state::replicate, state::partial, state::shard})
    for (int d = 0; d <= static_cast<int>(dim::replicas); ++d)
      for (const int level : {0, 1, 6}) {
        const one_place p{{s, static_cast<dim>(d), static_cast<std::int8_t>(level)}};
        BOOST_TEST((attributes(p).as<one_place>() == p));
      }
}

BOOST_AUTO_TEST_CASE(every_number_comes_back_bit_by_bit) {
  for (const double x : {0.0, -0.0, 5e-324, -1e308, std::numeric_limits<double>::infinity()}) {
    const auto back = attributes(op::rope_attributes{x, -1}).as<op::rope_attributes>();
    BOOST_TEST(back.base == x);
    BOOST_TEST(std::signbit(back.base) == std::signbit(x));
    BOOST_TEST(back.direction == -1);
  }
  const attributes nan = op::rope_attributes{std::nan(""), 1};
  BOOST_TEST((nan == nan)); // words are compared, so that a pass may ask whether any changed
}

BOOST_AUTO_TEST_CASE(types_are_told_apart_though_their_words_agree) {
  const attributes kept = op::crossing_attributes{7};
  BOOST_TEST(kept.are<op::crossing_attributes>());
  BOOST_TEST(!kept.are<op::grouped_attributes>());
  BOOST_TEST((kept != attributes(op::grouped_attributes{7})));
  BOOST_TEST((kept != attributes(op::crossing_attributes{8})));
  BOOST_TEST((kept != attributes{}));
  BOOST_CHECK_THROW(kept.as<op::grouped_attributes>(), std::logic_error);
}

BOOST_AUTO_TEST_CASE(a_type_says_what_its_members_are) {
  using enum attribute_kind;
  const attribute_type& t = *attributes_of<mixed_members>;
  BOOST_TEST(t.count == 5);
  const attribute_kind kinds[] = {integer, integer, integer, real, named};
  for (int k = 0; k < t.count; ++k) BOOST_TEST((t.kind[k] == kinds[k]));
}
