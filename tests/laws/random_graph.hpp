// Random graphs: compositions of the real ops as models have them, with random legal placements.
#pragma once

#include "drawing.hpp"
#include "plain_ops.hpp"

#include <megacpp/op/experts.hpp>
#include <megacpp/op/router.hpp>
#include <megacpp/pass/differentiate.hpp>
#include <megacpp/pass/hoist.hpp>
#include <megacpp/pass/verify.hpp>

namespace mc::laws {

/// A random graph, drawn on a mesh and on one rank.
struct sample {
  world ranks;
  drawing meshed{mesh{}}, single{mesh{}};
  std::vector<leaf> leaves;
  std::vector<step> steps;
  int output = -1; ///< index in drawing::values
  gradients of_meshed, of_single;
};

class random_graph {
public:
  random_graph(std::uint64_t seed, const substitution& swaps, sample& into)
      : random(seed), s(into) {
    choose_ranks(swaps.empty());
    choose_sizes();
    s.meshed.swaps = swaps;
  }

  /// Draws the forward graph on the mesh. Returns false if no graph came about.
  bool draw() {
    cur = stem();
    if (cur < 0) return false;
    for (int segments = static_cast<int>(1 + random.below(4)), tries = 0;
         segments > 0 && tries < 12 && room(); ++tries) {
      const int next = whole([&] { return segment(); });
      if (next < 0) continue;
      cur = next;
      --segments;
    }
    s.output = ending();
    if (s.output < 0 || s.meshed.at(s.output).producer < 0) return false;
    for (const step& t : s.steps)
      for (const operand& o : t.operands)
        if (o.value < 0) s.leaves.push_back(o.made);
    return true;
  }

private:
  random_source random;
  sample& s;
  placer_at_random place_{random, s.meshed, s.steps};
  extent B, Sq, H, A, K, D, F, V, N;
  std::int64_t valid = 0;
  int cur = -1;

  /// Chooses the ranks: sometimes with stages of a pipeline, each of which has a graph like this
  /// one, or with experts over the same ranks. `mixed` allows both.
  void choose_ranks(bool mixed) {
    int dp = 0, cp = 0, tp = 0, most = random.chance(0.15) ? 16 : 8;
    do {
      dp = static_cast<int>(1 + random.below(4)), cp = static_cast<int>(1 + random.below(4)),
      tp = static_cast<int>(1 + random.below(4));
    } while (dp * cp * tp > most || dp * cp * tp == 1);
    s.ranks.size[0] = dp, s.ranks.size[1] = cp, s.ranks.size[2] = tp;
    mesh m;
    m.size[static_cast<unsigned>(axis::dp)] = random.chance(0.75) ? 0 : dp;
    m.size[static_cast<unsigned>(axis::cp)] = cp, m.size[static_cast<unsigned>(axis::tp)] = tp;
    if (mixed && random.chance(0.35)) choose_expert_ranks(m);
    else if (mixed && random.chance(0.2)) choose_stages(m);
    s.meshed.b.g.ranks = m;
    s.meshed.dp = dp;
    s.single.b.g.ranks = mesh::one_rank();
    s.single.one_rank = true;
  }
  void choose_expert_ranks(mesh& m) {
    const int all = s.ranks.ranks();
    int ep = 0, etp = 0;
    do {
      ep = static_cast<int>(1 + random.below(4)), etp = static_cast<int>(1 + random.below(3));
    } while (all % (ep * etp) != 0);
    s.ranks.folded = true;
    const bool sized = m.sized(axis::dp);
    const auto set = [&](axis a, int n, bool known) {
      s.ranks.size[static_cast<unsigned>(a)] = n;
      m.size[static_cast<unsigned>(a)] = known ? n : 0;
    };
    set(axis::edp, all / (ep * etp), sized), set(axis::ep, ep, true), set(axis::etp, etp, true);
  }
  void choose_stages(mesh& m) {
    const int pp = static_cast<int>(2 + random.below(2));
    if (s.ranks.ranks() * pp > 16) return;
    s.ranks.size[static_cast<unsigned>(axis::pp)] = m.size[static_cast<unsigned>(axis::pp)] = pp;
  }
  std::int64_t multiple(std::int64_t low, std::int64_t high) {
    const int cp = s.ranks.of(axis::cp), tp = s.ranks.of(axis::tp);
    const std::int64_t unit =
        random.pick(std::vector<std::int64_t>{1, cp, tp, cp * tp, cp * tp, tp});
    const std::int64_t first = (low + unit - 1) / unit, last = std::max(first, high / unit);
    return unit * (first + random.below(last - first + 1));
  }
  void choose_sizes() {
    const int dp = s.ranks.of(axis::dp), cp = s.ranks.of(axis::cp), tp = s.ranks.of(axis::tp);
    B = {dim::batch,
         dp * (random.chance(0.7) ? 1 + random.below(2) : random.pick(std::vector<int>{cp, tp}))};
    const std::int64_t seq = multiple(2, 10);
    const bool balanced = cp > 1 && seq % (2 * cp) == 0 && random.chance(0.75);
    Sq = {dim::sequence, seq, balanced ? order::balanced : order::contiguous};
    H = {dim::hidden, multiple(3, 9)};
    D = {dim::head_dim, 2 * (1 + random.below(2))};
    K = {dim::kv_heads, random.chance(0.5) ? 1 + random.below(3) : multiple(1, 4)};
    A = {dim::heads, K.n * (1 + random.below(K.n > 4 ? 1 : 3))};
    if (A.n == K.n && D.n == 2) K.d = dim::heads; // as many keys as queries: both names fit
    F = {dim::ffn, multiple(3, 9)};
    V = {dim::vocabulary, multiple(5, 12)};
    N = {dim::position, multiple(seq, seq + 4)};
    valid = V.n - random.below(3);
  }
  bool room() const { return s.meshed.b.g.node_count < 64 && s.meshed.b.g.parameter_count < 24; }

  // --- operands ---
  static operand old(int drawn) {
    operand o;
    o.value = drawn;
    return o;
  }
  static operand fresh(content what, std::vector<extent> dims, std::int64_t range = 0) {
    operand o;
    o.made.what = what, o.made.dims = std::move(dims), o.made.range = range;
    return o;
  }
  bool same(const std::vector<extent>& a, const std::vector<extent>& b) const { return a == b; }
  /// Returns the indices of the leaves drawn so far with this content and these global extents.
  std::vector<int> drawn_leaves(content what, const std::vector<extent>& dims) const {
    std::vector<int> out;
    for (std::size_t v = 0; v < s.meshed.values.size(); ++v) {
      const value& x = s.meshed.at(static_cast<int>(v));
      if (x.producer >= 0 || name_of_content.count(s.meshed.values[v]) == 0) continue;
      if (name_of_content.at(s.meshed.values[v]) == what &&
          s.meshed.extents(static_cast<int>(v)) == dims)
        out.push_back(static_cast<int>(v));
    }
    return out;
  }
  std::map<value_id, content> name_of_content;
  void remember() {
    name_of_content.clear();
    std::size_t n = 0;
    for (const step& t : s.steps)
      for (const operand& o : t.operands)
        if (o.value < 0) name_of_content[s.meshed.leaves[n++]] = o.made.what;
  }
  /// Returns a parameter: a new one, an earlier one again (tied), or one computed from parameters.
  operand weight(std::vector<extent> dims) {
    remember();
    const std::vector<int> earlier = drawn_leaves(content::parameter, dims);
    if (!earlier.empty() && random.chance(0.3)) return old(random.pick(earlier));
    operand o = fresh(content::parameter, dims);
    o.made.frozen = random.chance(0.08);
    if (!random.chance(0.1)) return o;
    operand p = fresh(content::parameter, dims);
    const int sum =
        random.chance(0.7)
            ? apply({o, p}, [](const std::vector<var>& x) { return std::vector<var>{x[0] + x[1]}; })
            : apply({o}, [](const std::vector<var>& x) { return std::vector<var>{gelu(x[0])}; });
    return sum < 0 ? fresh(content::parameter, dims) : old(sum);
  }
  /// Returns integers (B, S), sometimes in the other order, which every rule must refuse.
  operand ints(content what, std::int64_t range = 0) {
    remember();
    const std::vector<int> earlier = drawn_leaves(what, {B, Sq});
    if (!earlier.empty() && random.chance(0.6)) return old(random.pick(earlier));
    extent e = Sq;
    if (Sq.o == order::balanced && random.chance(0.2)) e.o = order::contiguous;
    return fresh(what, {B, e}, range);
  }
  int apply(std::vector<operand> operands, const emission& emit) {
    return place_.apply(std::move(operands), emit);
  }
  /// Draws a whole segment, or undoes it if a step fails.
  template <class F> int whole(F f) {
    const auto mark = s.meshed.here();
    const std::size_t kept = s.steps.size();
    const int got = f();
    if (got >= 0) return got;
    s.meshed.back(mark);
    s.steps.resize(kept);
    return -1;
  }

  // --- ops ---
  int linear_(int x, std::vector<extent> dims, std::vector<extent> bias = {}) {
    if (x < 0) return -1;
    const operand w = weight(std::move(dims));
    if (bias.empty())
      return apply({old(x), w},
                   [](const std::vector<var>& v) { return std::vector<var>{linear(v[0], v[1])}; });
    return apply({old(x), w, weight(std::move(bias))}, [](const std::vector<var>& v) {
      return std::vector<var>{linear(v[0], v[1], v[2])};
    });
  }
  int add_bias_(int x, const extent& e) {
    if (x < 0) return -1;
    return apply({old(x), weight({e})},
                 [](const std::vector<var>& v) { return std::vector<var>{add_bias(v[0], v[1])}; });
  }
  int add_(int x, int y) {
    if (x < 0 || y < 0) return -1;
    return apply({old(x), old(y)},
                 [](const std::vector<var>& v) { return std::vector<var>{v[0] + v[1]}; });
  }
  int norm_(int x, const extent& last) {
    if (x < 0) return -1;
    const double eps = random.chance(0.5) ? 1e-5 : 1e-2;
    if (random.chance(0.5))
      return apply({old(x), weight({last})}, [eps](const std::vector<var>& v) {
        return std::vector<var>{rms_norm(v[0], v[1], eps)};
      });
    if (random.chance(0.3))
      return apply({old(x), weight({last})}, [eps](const std::vector<var>& v) {
        return std::vector<var>{layer_norm(v[0], v[1], var{}, eps)};
      });
    return apply({old(x), weight({last}), weight({last})}, [eps](const std::vector<var>& v) {
      return std::vector<var>{layer_norm(v[0], v[1], v[2], eps)};
    });
  }
  int embedding_(operand ids, const extent& rows) {
    return apply({std::move(ids), weight({rows, H})},
                 [](const std::vector<var>& v) { return std::vector<var>{embedding(v[0], v[1])}; });
  }
  int rope_(int x) {
    if (x < 0) return -1;
    constexpr op::rope_attributes all[] = {{100},
                                           {100, 1, 4, op::rope_ramp::frequency, 0.1, 0.9},
                                           {100, 1, 4, op::rope_ramp::pair, 3, -1}};
    return apply({old(x), ints(content::positions)},
                 [angles = all[x % 3]](const std::vector<var>& v) {
                   return std::vector<var>{rope(v[0], v[1], angles)};
                 });
  }

  // --- parts of models ---
  int stem() {
    return whole([&] {
      if (random.chance(0.35)) return embedding_(ints(content::tokens, valid), V);
      return place_.apply({fresh(content::stream, {B, Sq, H})},
                          [](const std::vector<var>& v) { return std::vector<var>{v[0]}; });
    });
  }
  int segment() {
    if (s.ranks.folded && random.chance(0.35)) return residual(experts());
    switch (random.below(11)) {
    case 10: { // a learned term with all dims of the stream, whose cotangent is passed on unchanged
      const value& x = s.meshed.at(cur);
      return apply({old(cur), weight({B, x.dims[1], H})},
                   [](const std::vector<var>& v) { return std::vector<var>{v[0] + v[1]}; });
    }
    case 0: return norm_(cur, H);
    case 1:
    case 2: return mlp();
    case 3:
    case 4:
    case 5: return attention_();
    case 6:
      return add_(cur, random.chance(0.5) ? embedding_(ints(content::positions), N)
                                          : embedding_(ints(content::tokens, valid), V));
    case 7: {
      const std::int64_t salt = random.below(3);
      return apply({old(cur), ints(content::token_keys)}, [salt](const std::vector<var>& v) {
        return std::vector<var>{dropout(v[0], v[1], 0.3, salt)};
      });
    }
    case 8: return add_bias_(cur, H);
    default: return place_.wander(place_.wander(cur));
    }
  }
  int residual(int y) {
    if (y >= 0 && random.chance(0.2)) {
      const double factor = random.chance(0.5) ? 0.5 : -1.25;
      y = apply({old(y)}, [factor](const std::vector<var>& v) {
        return std::vector<var>{scale(v[0], factor)};
      });
    }
    return y >= 0 && random.chance(0.8) ? add_(cur, y) : y;
  }

  int mlp() {
    const int x = random.chance(0.4) ? norm_(cur, H) : cur;
    const auto bias = [&](const extent& e) {
      return random.chance(0.4) ? std::vector<extent>{e} : std::vector<extent>{};
    };
    int u = linear_(x, {F, H}, bias(F));
    if (random.chance(0.2)) u = add_bias_(u, F);
    if (u < 0) return -1;
    if (random.chance(0.5)) {
      const gelu_form form = random.chance(0.5) ? gelu_form::tanh : gelu_form::exact;
      u = apply({old(u)},
                [form](const std::vector<var>& v) { return std::vector<var>{gelu(v[0], form)}; });
    } else {
      const int up = linear_(x, {F, H}, bias(F));
      if (up < 0) return -1;
      u = apply({old(u), old(up)},
                [](const std::vector<var>& v) { return std::vector<var>{swiglu(v[0], v[1])}; });
    }
    int y = linear_(u, {H, F}, bias(H));
    if (random.chance(0.3)) y = place_.wander(y);
    if (random.chance(0.3)) y = add_bias_(y, H);
    return residual(y);
  }

  /// Draws keys or values (B, S, K, D). Sometimes the projection has fewer heads, which are
  /// repeated.
  int kv(int x) {
    const std::int64_t copies = random.chance(0.3) ? K.n : 1;
    if (copies == 1) return linear_(x, {K, D, H});
    const operand w = weight({{K.d, K.n / copies}, D, H});
    const int repeated = apply({w}, [copies](const std::vector<var>& v) {
      return std::vector<var>{repeat(v[0], copies)};
    });
    if (x < 0 || repeated < 0) return -1;
    return apply({old(x), old(repeated)},
                 [](const std::vector<var>& v) { return std::vector<var>{linear(v[0], v[1])}; });
  }
  int attention_() {
    const int x = random.chance(0.4) ? norm_(cur, H) : cur;
    int q = linear_(x, {A, D, H},
                    random.chance(0.3) ? std::vector<extent>{A, D} : std::vector<extent>{});
    int k = kv(x);
    const int v = kv(x);
    if (random.chance(0.3)) q = norm_(q, D), k = norm_(k, D);
    if (random.chance(0.5)) q = rope_(q), k = rope_(k);
    if (q < 0 || k < 0 || v < 0) return -1;
    std::vector<operand> in{old(q), old(k), old(v), ints(content::order), ints(content::order)};
    const bool packed = random.chance(0.3);
    if (packed) {
      in.push_back(ints(content::documents));
      remember();
      // Queries and keys must see the same documents.
      if (in.back().value < 0) {
        const int made =
            apply({in.back()}, [](const std::vector<var>& y) { return std::vector<var>{y[0]}; });
        if (made < 0) return -1;
        in.back() = old(made);
      }
      in.push_back(in.back());
    }
    attention_options o;
    o.causal = random.chance(0.8);
    if (o.causal && random.chance(0.3)) o.window = 1 + random.below(Sq.n);
    if (random.chance(0.3)) o.scale = 0.4;
    const int y = apply(in, [o, packed](const std::vector<var>& w) {
      const attention_masks m{w[3], w[4], packed ? w[5] : var{}, packed ? w[6] : var{}};
      return std::vector<var>{attention(w[0], w[1], w[2], m, o)};
    });
    return residual(linear_(y, {H, A, D}));
  }

  /// Draws a mixture of experts: the router's choices, rows to the ranks of their experts, and
  /// back.
  int experts() {
    const int x = whole([&] { return on_one_rank_each(random.chance(0.4) ? norm_(cur, H) : cur); });
    if (x < 0) return -1;
    const std::int64_t ep = s.ranks.of(axis::ep), etp = s.ranks.of(axis::etp);
    const extent E{dim::expert, ep * (1 + random.below(3))},
        W{dim::ffn, etp * (1 + random.below(3))};
    const std::int64_t k = 1 + random.below(std::min<std::int64_t>(E.n, 3));
    const bool normalise = random.chance(0.5);
    operand router = weight({E, H});
    placement whole_of_router;
    for (const axis a : place_.live_axes()) whole_of_router[a] = R;
    place_.route(router, whole_of_router, 0.1);
    const auto matrix = [&](std::vector<extent> dims) {
      operand o = fresh(content::parameter, std::move(dims));
      o.stored[axis::ep] = S(dim::expert), o.stored[axis::etp] = S(dim::ffn);
      o.moves = {{axis::edp, R}};
      return o;
    };
    const auto emit = [=](const std::vector<var>& v) {
      const routing r = route(linear(v[0], v[1]), {}, static_cast<int>(k), normalise);
      const mesh& m = v[0].b->g.ranks; // one round takes all choices of tokens
      const std::int64_t most =
          op::local_choices(m, r.experts.type()) * m.of(axis::ep) * m.of(axis::etp);
      const expert_assignment p = expert_rows(r.experts, static_cast<int>(most), E.n, 0);
      const var rows = dispatch(v[0], p), up = grouped_linear(rows, v[2], p);
      const var h = swiglu(grouped_linear(rows, v[3], p), up);
      const var w = dispatch(r.weights, p);
      return std::vector<var>{combine(grouped_linear(scale_rows(h, w), v[4], p), p)};
    };
    const auto before = s.meshed.here();
    const step t{{old(x), router, matrix({E, W, H}), matrix({E, W, H}), matrix({E, H, W})}, emit};
    const int y = s.meshed.draw(t);
    if (s.meshed.sound()) return s.steps.push_back(t), y;
    return s.meshed.back(before), -1;
  }
  /// Cuts a drawn value so that every token is on one rank alone; returns -1 if no way was found.
  int on_one_rank_each(int x) {
    for (int attempt = 0; x >= 0 && attempt < 8; ++attempt) {
      operand o = old(x);
      for (const axis a : place_.live_axes()) {
        const place now = s.meshed.at(x).at[a];
        if (now.is_shard(dim::batch) || now.is_shard(dim::sequence)) continue;
        o.moves.push_back({a, S(random.chance(0.3) ? dim::batch : dim::sequence)});
      }
      random.shuffle(o.moves);
      const auto before = s.meshed.here();
      const step t{{o}, nullptr};
      const int got = s.meshed.draw(t);
      if (s.meshed.sound()) return s.steps.push_back(t), o.moves.empty() ? x : got;
      s.meshed.back(before);
    }
    return -1;
  }
  int loss() {
    const int x = random.chance(0.5) ? norm_(cur, H) : cur;
    if (x < 0) return -1;
    const double z = random.chance(0.5) ? 1e-2 : 0;
    const std::int64_t words = valid;
    const int part = apply({old(x), weight({V, H}), ints(content::labels, valid)},
                           [words](const std::vector<var>& v) {
                             const auto p = vocabulary_partial(v[0], v[1], v[2], words);
                             return std::vector<var>{p.local_lse, p.target};
                           });
    if (part < 0) return -1;
    remember();
    // Both halves of the loss must read the same labels.
    const std::vector<int> labels = drawn_leaves(content::labels, {B, Sq});
    if (labels.size() != 1) return -1;
    const int l = apply({old(part), old(part + 1), old(labels[0])}, [z](const std::vector<var>& v) {
      const auto r = cross_entropy({v[0], v[1]}, v[2], z);
      return std::vector<var>{r.sum, r.count};
    });
    return l < 0 ? -1 : place_.wander(l);
  }
  /// Draws attention of new tokens to caches that earlier tokens have filled.
  int cached() {
    const std::int64_t before = random.below(4);
    const extent room{dim::sequence, before + Sq.n + random.below(3)};
    attention_options o;
    if (random.chance(0.3)) o.window = 1 + random.below(Sq.n);
    const auto stream = [](std::vector<extent> e) { return fresh(content::stream, std::move(e)); };
    return apply(
        {stream({B, Sq, A, D}), stream({B, Sq, K, D}), stream({B, Sq, K, D}),
         stream({B, room, K, D}), stream({B, room, K, D}), fresh(content::slots, {B, Sq}, before)},
        [o](const std::vector<var>& x) {
          return std::vector<var>{cached_attention(x[0], x[1], x[2], x[3], x[4], x[5], o)};
        });
  }
  int ending() {
    if (random.chance(0.55)) {
      const int l = whole([&] { return loss(); });
      if (l >= 0) return l;
    }
    if (random.chance(0.3))
      whole([&] {
        operand row = fresh(content::row, {B}, Sq.n);
        row.made.indexed = s.meshed.at(cur).dims[1].o;
        return apply({old(cur), row}, [](const std::vector<var>& v) {
          return std::vector<var>{select(v[0], v[1])};
        });
      });
    if (random.chance(0.3)) whole([&] { return cached(); });
    return random.chance(0.3) ? place_.wander(cur) : cur;
  }
};

} // namespace mc::laws
