// A single node: an op, its attributes and the types and dims of its operands; and nodes near to
// it, which the op's rule may accept or refuse.
#pragma once

#include "simulated_ranks.hpp"

#include <megacpp/graph/builder.hpp>

#include <bit>
#include <set>

namespace mc::laws {

/// The properties of an operand that a rule sees on one rank.
struct form {
  bool there = false;
  dtype type = dtype::f32;
  std::vector<extent> dims;
  integer_kind holds = integer_kind::unknown;
  std::int64_t below = 0;

  int find(dim d) const {
    for (std::size_t i = 0; i < dims.size(); ++i)
      if (dims[i].d == d) return static_cast<int>(i);
    return -1;
  }
};

struct specimen {
  node like; ///< node with the op and attributes
  std::vector<form> operands;

  std::string text() const {
    std::string s = like.op->name;
    for (const form& o : operands) {
      s += o.there ? std::string(" ") + name_of(o.type) + "(" : " -";
      for (const extent& e : o.dims)
        s += std::string(name_of(e.d)) + " " + std::to_string(e.n) + ",";
      if (o.there) s += ")";
      if (o.there && o.type == dtype::i32)
        s += std::string(" ") + name_of(o.holds) + " below " + std::to_string(o.below);
    }
    if (like.op->redistributes) return s; // on one rank redistributions do not differ
    for (int k = 0; k < like.attr.count(); ++k)
      s += " " + (like.attr.type->kind[k] == attribute_kind::real
                      ? std::to_string(std::bit_cast<double>(like.attr.bits[k]))
                      : std::to_string(like.attr.bits[k]));
    return s;
  }
  int count() const {
    int n = 0;
    for (std::size_t k = 0; k < operands.size(); ++k)
      if (operands[k].there) n = static_cast<int>(k) + 1;
    return n;
  }
};

inline specimen specimen_of(const graph& g, const node& n) {
  specimen s{n, std::vector<form>(max_inputs)};
  for (unsigned k = 0; k < max_inputs; ++k) {
    if (n.in[k] < 0) continue;
    const value& v = g.at(n.in[k]);
    s.operands[k] = {true, v.type, {v.dims, v.dims + v.rank}, v.holds, v.below};
    for (extent& e : s.operands[k].dims) e.o = order::contiguous;
  }
  return s;
}

/// A graph of one node on one rank, which is drawn again and again in the same memory.
struct lone_node {
  builder b{mesh{}};

  lone_node() { b.g.ranks = mesh::one_rank(); }
  const node& made() const { return b.g.at_node(0); }
  /// Returns whether the rule accepts the specimen.
  bool draw(const specimen& s) {
    b.g.node_count = b.g.value_count = 0;
    b.g.wrong = {};
    node n;
    n.op = s.like.op, n.attr = s.like.attr, n.when = s.like.when;
    for (unsigned k = 0; k < max_inputs; ++k) {
      if (!s.operands[k].there) continue;
      value v;
      v.is = role::input, v.type = s.operands[k].type;
      v.holds = s.operands[k].holds, v.below = s.operands[k].below;
      for (const extent& e : s.operands[k].dims) v.dims[static_cast<unsigned>(v.rank++)] = e;
      n.in[k] = b.add(v, 0);
    }
    b.emit(n);
    return b.g.wrong.code == fault::none;
  }
};

/// Calls f(specimen) for all specimens that differ from s by one property of one operand or by one
/// number.
template <class F> void change_one(const specimen& s, F f) {
  std::set<dim> names;
  for (const form& o : s.operands)
    for (const extent& e : o.dims) names.insert(e.d);
  names.insert(dim::copies);
  const auto with = [&](std::size_t k, const form& o) {
    specimen t = s;
    t.operands[k] = o;
    f(t);
  };
  const auto operands = static_cast<std::size_t>(s.count());
  for (std::size_t k = 0; k < operands; ++k) {
    const form& o = s.operands[k];
    with(k, {});
    if (!o.there) {
      for (std::size_t j = 0; j < operands; ++j) with(k, s.operands[j]);
      continue;
    }
    for (dtype t : {dtype::f64, dtype::f32, dtype::bf16, dtype::i32, dtype::u8})
      if (t != o.type) with(k, {true, t, o.dims});
    if (o.type == dtype::i32) {
      form p = o;
      for (int h = 0; h <= static_cast<int>(integer_kind::experts); ++h)
        for (std::int64_t n : {std::int64_t{0}, std::int64_t{1}, o.below, o.below + 1})
          p.holds = static_cast<integer_kind>(h), p.below = n, with(k, p);
    }
    for (std::size_t i = 0; i <= o.dims.size(); ++i) {
      for (dim d : names) { // one dim more
        if (o.dims.size() == max_rank || o.find(d) >= 0) continue;
        form p = o;
        p.dims.insert(p.dims.begin() + static_cast<std::ptrdiff_t>(i), extent(d, 2));
        with(k, p);
      }
      if (i == o.dims.size()) break;
      form p = o;
      p.dims.erase(p.dims.begin() + static_cast<std::ptrdiff_t>(i));
      with(k, p);
      for (std::int64_t n : {std::int64_t{1}, o.dims[i].n - 1, o.dims[i].n + 1, 2 * o.dims[i].n}) {
        p = o, p.dims[i].n = n;
        if (n > 0 && n != o.dims[i].n) with(k, p);
      }
      for (dim d : names) {
        p = o, p.dims[i].d = d;
        if (o.find(d) < 0) with(k, p);
      }
      if (i > 0) p = o, std::swap(p.dims[i], p.dims[i - 1]), with(k, p);
    }
  }
  if (operands < max_inputs) // one operand more
    for (std::size_t j = 0; j < operands; ++j) with(operands, s.operands[j]);
  const auto number = [&](int k, std::int64_t word) {
    specimen t = s;
    t.like.attr.bits[k] = word;
    if (t.like.attr != s.like.attr) f(t);
  };
  for (int k = 0; k < s.like.attr.count(); ++k) switch (s.like.attr.type->kind[k]) {
    case attribute_kind::real:
      for (double x : {-1.0, 0.0, 0.5, 1.0, 3.0, std::numeric_limits<double>::quiet_NaN(),
                       std::numeric_limits<double>::infinity()})
        number(k, std::bit_cast<std::int64_t>(x));
      break;
    case attribute_kind::integer:
      for (std::int64_t x : {-1, 0, 1, 2, 5, 300}) number(k, x);
      break;
    case attribute_kind::named: // the enumerators of a redistribution are not refused by its rule
      for (std::int64_t x : {0, 1, 2, 5})
        if (!s.like.op->redistributes) number(k, x);
      break;
    }
}

/// Calls f(specimen) for all specimens that differ from s by one change of all operands alike:
/// another extent or name of a dim, a dim less, or a dim more beside another one.
template <class F> void change_all(const specimen& s, F f) {
  std::set<dim> names;
  for (const form& o : s.operands)
    for (const extent& e : o.dims) names.insert(e.d);
  const auto each = [&](dim d, auto change) {
    specimen t = s;
    for (form& o : t.operands)
      if (const int i = o.find(d); i >= 0) change(o.dims, i);
    for (const form& o : t.operands)
      if (o.dims.size() > max_rank) return;
    f(t);
  };
  for (dim d : names) {
    for (std::int64_t n : {1, 2, 3, 8, 17})
      for (bool counted : {false, true}) {
        specimen t = s; // with the integers that count the dim
        for (form& o : t.operands) {
          if (const int i = o.find(d); i >= 0) o.dims[static_cast<std::size_t>(i)].n = n;
          if (counted && o.below > 0) o.below = n;
        }
        f(t);
      }
    each(d, [](auto& dims, int i) { dims.erase(dims.begin() + i); });
    for (dim fresh : {dim::copies, dim::batch, dim::ffn})
      if (names.count(fresh) == 0) {
        each(d, [=](auto& dims, int i) { dims[static_cast<std::size_t>(i)].d = fresh; });
        each(d, [=](auto& dims, int i) { dims.insert(dims.begin() + i, extent(fresh, 3)); });
        each(d, [=](auto& dims, int i) { dims.insert(dims.begin() + i + 1, extent(fresh, 3)); });
      }
  }
}

} // namespace mc::laws
