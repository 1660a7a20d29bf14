// The graphs of the end of a step. The graph of the totals sums over ranks what each has added up:
// the loss, its tokens, and the side losses of parts. The graph of the update has three phases. In
// the prologue it adds gradients of tied uses to those of their parameters, and reduces the
// gradients of each bucket of the registry in place. In the forward phase it takes one gradient
// norm over all buckets. In the epilogue it updates each bucket. Under ZeRO 1 the reduction leaves
// each rank the sum of its share of a bucket's range, which it counts and updates; then all ranks
// gather the weights.
// Pipeline stages hold different layers, so ranges are shards over pp with an equal number of
// elements; those that smaller stages lack are zero. A bucket that stages share is a pending sum
// over pp as well, to which stages without it add nothing, and counts once, on the first stage that
// has it.
#pragma once

#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/numbers.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/plan/registry.hpp>
#include <megacpp/recipe/precision.hpp>

namespace mc {

/// The ranges of a bucket at the end of a step: whole weights; gradients that are still pending
/// sums over some axes (those over which ranks share the bucket, or all); the share that a rank
/// updates; the range that counts in the norm.
enum class range : std::uint8_t { whole, unscattered, pending, share, counted };
constexpr placement placement_of(const registry::bucket& bucket, range what) {
  placement at;
  for (int a = 0; a < axes; ++a) {
    const auto one = static_cast<axis>(a);
    const bool scattered = bucket.scattered.has(one), pending = bucket.pending.has(one);
    if (bucket.at.at[a].s == state::shard) at.at[a] = shard(dim::elements);
    if (what >= range::share && scattered) at.at[a] = shard(dim::elements);
    if ((what == range::unscattered && scattered) || (what == range::pending && pending))
      at.at[a] = partial;
  }
  if (what == range::counted && bucket.shared) at[axis::pp] = shard(dim::elements);
  return at;
}
/// Returns the number of elements of a range on one rank.
constexpr std::int64_t elements_of(const registry::bucket& bucket, range what) {
  if (what == range::counted && !bucket.counted) return 0;
  return what >= range::share ? bucket.share : bucket.count;
}

/// Adds an input (layers, n) for a range of a bucket, or (n) where `layers` is 0.
constexpr var range_value(builder& b, const registry::bucket& bucket, range what, std::int64_t n,
                          feed from, const char* name, dtype t, int feed_index,
                          std::int64_t layers = 0) {
  value v;
  v.name = name, v.type = t, v.is = role::input, v.from = from,
  v.feed_index = static_cast<std::int8_t>(feed_index);
  v.at = placement_of(bucket, what);
  for (int a = 0; a < axes; ++a)
    if (v.at.at[a].s == state::shard && b.g.ranks.sized(static_cast<axis>(a)))
      n *= b.g.ranks.of(static_cast<axis>(a));
  if (layers > 0) v.dims[v.rank++] = {dim::layers, layers};
  v.dims[v.rank++] = {dim::elements, n};
  b.normalise(v, 0, "update");
  return {&b, b.add(v, 0)};
}

/// Adds an input for the range of a bucket. Where shares are cut from each layer, its first dim is
/// `layers`.
constexpr var bucket_value(builder& b, const registry::bucket& bucket, range what, feed from,
                           const char* name, dtype t, int feed_index) {
  const std::int64_t n = elements_of(bucket, what), layers = bucket.part < 0 ? 0 : bucket.layers;
  return range_value(b, bucket, what, layers > 0 ? n / layers : n, from, name, t, feed_index,
                     layers);
}
/// Returns the bucket of a parameter whose gradient is a pending sum over more axes than the
/// others'.
constexpr registry::bucket summed_further(registry::bucket bucket, axis_set over) {
  bucket.pending = axis_set::of_bits(bucket.pending.bits | over.bits);
  return bucket;
}
/// Returns the axes over which a bucket's gradients are summed for all ranks. scattered_over()
/// returns those over which each rank gets the sum of its share.
constexpr axis_set reduced_over(const mesh& ranks, const registry::bucket& bucket) {
  return of_several_ranks(ranks, bucket.pending.without(bucket.scattered));
}
constexpr axis_set scattered_over(const mesh& ranks, const registry::bucket& bucket) {
  return of_several_ranks(ranks, bucket.scattered);
}

/// Returns the type in which a bucket's gradients go from rank to rank. Loads of experts are no
/// gradients and keep their type.
constexpr dtype wire_of(const precision_policy& p, const registry::bucket& bucket) {
  return bucket.update == update_rule::balance ? p.main_gradient : p.wire;
}

/// Returns a number that is summed over a bucket's elements, complete on every rank.
constexpr var over_all_ranks(var s) {
  for (int a = 0; a < axes; ++a)
    if (s.at(static_cast<axis>(a)).s == state::partial)
      s = to(s, static_cast<axis>(a), invariant, 0);
  return s;
}

namespace detail {

/// Checks the graph of a step's end against the registry, and counts the ops that must write
/// operands.
struct update_verifier {
  graph& g;
  const registry& r;
  const mesh& ranks;
  const precision_policy& precision;
  int writes = 0;

  [[gnu::cold]] constexpr void fail(const char* what) { record(g, fault::P019, 0, what); }
  constexpr bool is(value_id v, feed f, int feed_index) const {
    return v >= 0 && g.at(v).is == role::input && g.at(v).from == f &&
           g.at(v).feed_index == feed_index;
  }
  /// Returns whether v is input `f` for `n` elements of a bucket on each rank, with its placement
  /// and the type of its store.
  constexpr bool is(value_id v, feed f, int feed_index, const registry::bucket& bucket, range what,
                    std::int64_t n, std::int64_t layers = 0) const {
    bool same = is(v, f, feed_index);
    const placement want = placement_of(bucket, what);
    for (int a = 0; same && a < axes; ++a) {
      const auto one = static_cast<axis>(a);
      const place p = g.at(v).at.at[a], w = ranks.trivial(one) ? invariant : want.at[a];
      same = p.s == w.s && (p.s != state::shard || p.is_shard(dim::elements));
      if (p.s == state::shard && ranks.sized(one)) n *= ranks.of(one);
    }
    if (!same) return false;
    const value& x = g.at(v);
    if (layers > 0 && (x.rank != 2 || x.dims[0] != extent(dim::layers, layers))) return false;
    return x.rank == (layers > 0 ? 2 : 1) && x.dims[x.rank - 1] == extent(dim::elements, n) &&
           x.type == type_of_store(precision, f);
  }
  /// Returns whether v is the range of bucket k.
  constexpr bool is(value_id v, feed f, int k, range what) const {
    const registry::bucket& bucket = r.buckets[k];
    const std::int64_t n = elements_of(bucket, what), layers = bucket.part < 0 ? 0 : bucket.layers;
    return is(v, f, k, bucket, what, layers > 0 ? n / layers : n, layers);
  }
  /// Returns the type in which gradients go from rank to rank. Loads keep their type: balance_step
  /// takes their signs.
  constexpr dtype wire(const registry::bucket& bucket) const {
    return bucket.update == update_rule::balance ? precision.main_gradient : precision.wire;
  }
  /// Returns the one node of an op in a phase for which holds(node). Fails unless there is exactly
  /// one.
  constexpr const node* one(const op_info& op, phase when, const char* what, auto holds) {
    const node* found = nullptr;
    int count = 0;
    for (int i = 0; i < g.node_count; ++i)
      if (const node& n = g.at_node(i); n.op == &op && n.when == when && holds(n))
        ++count, found = &n;
    if (count != 1) fail(what);
    return found;
  }
  /// Checks that a gradient that is a sum over more ranks than those of other uses is reduced over
  /// these once. Returns the node that reduces it; null: it needs none.
  constexpr const node* brought_together(const registry::entry& e, feed f, int k) {
    const axis_set over = of_several_ranks(ranks, e.apart);
    if (over.empty()) return nullptr;
    ++writes;
    const registry::bucket bucket = summed_further(r.buckets[e.bucket], e.apart);
    return one(op::reduce_gradient, phase::prologue, "tied gradient", [&](const node& n) {
      return is(n.in[0], f, k, bucket, range::pending, e.count.n) &&
             n.attr == attributes(op::exchange_attributes{over, precision.wire});
    });
  }
  /// Checks that a declaration's gradient becomes a sum over the ranks of its uses' sums before
  /// these are added to it.
  constexpr void bring_together(const registry::entry& e, int k) {
    // A stage that has nothing of a bucket has gradients of another bucket there.
    if (r.buckets[e.bucket].count == 0) fail("tied gradient");
    const node* reduces = brought_together(e, feed::declared_gradient, k);
    for (const node* n = g.nodes; reduces != nullptr && n < reduces; ++n)
      if (n->op == &op::add_gradient) fail("tied gradient");
  }
  /// Checks that a tied gradient is added to its parameter's gradient before that is reduced.
  constexpr void tie(const registry::entry& e, int k) {
    ++writes;
    const registry::bucket& bucket = r.buckets[e.bucket];
    const node* reduces = brought_together(e, feed::tied_gradient, k);
    const node* joins = one(op::add_gradient, phase::prologue, "tied gradient", [&](const node& n) {
      return is(n.in[0], feed::declared_gradient, k, bucket, range::pending, e.count.n) &&
             is(n.in[1], feed::tied_gradient, k, bucket, range::pending, e.count.n);
    });
    if (reduces != nullptr && joins < reduces) fail("tied gradient");
    for (const node* n = g.nodes; n < joins; ++n)
      if ((n->op == &op::reduce_gradient || n->op == &op::scatter_gradient) &&
          g.at(n->in[0]).from == feed::gradient)
        fail("tied gradient");
  }
  /// Checks that a bucket's gradients are reduced once, over all ranks that have added to them, and
  /// that its weights are gathered once where ranks share it.
  constexpr void reduce(int k) {
    const axis_set all = reduced_over(ranks, r.buckets[k]),
                   shares = scattered_over(ranks, r.buckets[k]);
    const node *reduces = nullptr, *scatters = nullptr;
    if (!all.empty()) {
      ++writes;
      reduces = one(op::reduce_gradient, phase::prologue, "gradient", [&](const node& n) {
        return is(n.in[0], feed::gradient, k, range::pending) &&
               n.attr == attributes(op::exchange_attributes{all, wire(r.buckets[k])});
      });
    }
    if (shares.empty()) return;
    writes += 2;
    scatters = one(op::scatter_gradient, phase::prologue, "gradient", [&](const node& n) {
      return is(n.in[0], feed::gradient, k, range::unscattered) &&
             is(n.in[1], feed::gradient, k, range::share) &&
             n.attr == attributes(op::exchange_attributes{shares, precision.wire});
    });
    if (reduces != nullptr && scatters != nullptr && scatters < reduces) fail("gradient");
    const node* gathers = one(op::gather_weight, phase::epilogue, "weight", [&](const node& n) {
      return is(n.in[0], feed::weight, k, range::share) &&
             is(n.in[1], feed::weight, k, range::whole) &&
             n.attr == attributes(op::exchange_attributes{shares, precision.weight});
    });
    for (const node* n = g.nodes + g.node_count; gathers != nullptr && --n > gathers;)
      if (n->op == &op::adamw && is(n->in[4], feed::weight, k)) fail("weight");
  }
  constexpr bool stores(const node& n, int k, int last) const {
    const auto store = [&](int i, feed f) { return is(n.in[i], f, k, range::share); };
    bool same = store(0, feed::gradient) && store(1, feed::master) && store(last, feed::weight);
    if (last == 4) same = same && store(2, feed::first_moment) && store(3, feed::second_moment);
    return same;
  }
  /// Checks that a bucket is updated once, by its rule, and that its number of broken blocks is
  /// reported.
  constexpr void update(int k, const node& clip, const reached& told) {
    const registry::bucket& bucket = r.buckets[k];
    ++writes;
    if (bucket.update == update_rule::balance) {
      one(op::balance_step, phase::epilogue, "update", [&](const node& n) {
        return stores(n, k, 2) && n.in[3] == clip.out[0] &&
               n.attr == attributes(op::balance_attributes{bucket.rate});
      });
      return;
    }
    const node* made = one(op::adamw, phase::epilogue, "update", [&](const node& n) {
      return stores(n, k, 4) && n.in[5] == clip.out[0] && is(n.in[6], feed::learning_rate, 0) &&
             is(n.in[7], feed::step, 0) && rounded(n, k) &&
             n.attr == attributes(op::adamw_attributes{bucket.decay, bucket.count,
                                                       scattered_over(ranks, bucket)});
    });
    if (made != nullptr && !told.needed[made->out[0]]) fail("broken blocks");
  }
  /// Returns whether moments that are rounded at random get the seed of the run and the bucket's
  /// origins.
  constexpr bool rounded(const node& n, int k) const {
    if (!precision.narrows_moments()) return n.in[8] < 0 && n.in[9] < 0;
    const registry::bucket& bucket = r.buckets[k];
    return is(n.in[8], feed::seed, 0) &&
           is(n.in[9], feed::origin, k, bucket, range::whole, bucket.origins * numbers_of_origin);
  }
  /// Checks that a bucket's gradient counts once in the norm.
  constexpr void norm(int k, const node& clip) {
    const node* squares = one(op::sum_of_squares, phase::forward, "norm", [&](const node& n) {
      return is(n.in[0], feed::gradient, k, range::counted) &&
             n.attr == attributes(op::share_attributes{scattered_over(ranks, r.buckets[k])});
    });
    if (squares == nullptr) return;
    value_id s = squares->out[0];
    int times = 1;
    for (int i = 0; i < g.node_count; ++i) { // after its reductions, added to others
      const node& n = g.at_node(i);
      const int reads = (n.in[0] == s) + (n.op == &op::add && n.in[1] == s);
      if (reads == 0 || (!n.op->redistributes && n.op != &op::add)) continue;
      times *= reads, s = n.out[0];
    }
    int last = 0;
    for (value_id v : clip.in) last += v == s;
    if (times * last != 1) fail("norm");
  }
  /// Checks that a number that every rank reads is the same on each.
  constexpr void whole(value_id v, const char* what) {
    if (v < 0) return;
    for (const place& p : g.at(v).at.at)
      if (p.s == state::partial || p.s == state::shard) fail(what);
  }
  /// Checks that a number is added to a total of its own.
  constexpr void told_as(step_total t, phase when, value_id x, const char* what) {
    ++writes;
    one(op::add_total, when, what, [&](const node& n) {
      return is(n.in[0], feed::total, static_cast<int>(t)) && n.in[1] == x && x >= 0;
    });
  }
  constexpr void verify() {
    if (g.ranks != ranks) fail("ranks");
    reached told;
    for (value_id v : g.outputs) told.need(v);
    if (const int i = told.lost(g, 0); i >= 0) fail(g.at_node(i).op->name);
    for_each_apart(r, [&](const registry::entry& e, int k) { bring_together(e, k); });
    for_each_tie(r, [&](const registry::entry& e, int k) { tie(e, k); });
    const node* clip = one(op::clip_factor, phase::forward, "norm", [&](const node& n) {
      return is(n.in[0], feed::total, static_cast<int>(step_total::whole_tokens)) &&
             is(n.in[1], feed::total, static_cast<int>(step_total::whole_loss)) &&
             n.out[1] == g.outputs[1];
    });
    if (clip == nullptr) return;
    told_as(step_total::norm, phase::forward, g.outputs[1], "norm");
    if (g.outputs[0] >= 0)
      told_as(step_total::broken, phase::epilogue, g.outputs[0], "broken blocks");
    int norms = 0; // the token count and the loss are operands, too
    for (int k = 0; k < r.bucket_count; ++k) {
      const registry::bucket& bucket = r.buckets[k];
      if (bucket.frozen) continue;
      reduce(k);
      update(k, *clip, told);
      if (bucket.update == update_rule::balance) continue; // a load of experts is no gradient
      norm(k, *clip);
      ++norms;
    }
    int operands = -2, added = 0;
    for (value_id v : clip->in) operands += v >= 0;
    for (int i = 0; i < g.node_count; ++i)
      added += g.at_node(i).op == &op::add && g.at_node(i).when == phase::forward;
    if (operands + added != norms) fail("norm"); // each is summed once
    for (int i = 0; i < g.node_count; ++i) writes -= g.at_node(i).op->writes_operands != 0;
    if (writes != 0) fail("operands that are written");
    whole(g.outputs[0], "broken blocks"), whole(g.outputs[1], "norm");
  }
};

} // namespace detail

/// Records MEGA-P019 unless the graph does all that a step's end must do. Every tied gradient is
/// added to its parameter's once. Every bucket's gradient is reduced once, counts once in the norm,
/// and is applied once, clipped, by the bucket's rule and to its stores, over their whole length
/// and with their placement on the ranks, which have all of the weights again. Nothing else is
/// written, nothing computed is lost, and every rank reports the same numbers.
constexpr void verify_update(graph& g, const registry& r, const mesh& ranks,
                             const precision_policy& precision) {
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  if (g.wrong.code == fault::none) detail::update_verifier{g, r, ranks, precision}.verify();
}

/// Records MEGA-P019 unless each pending total, and nothing else, is added once to its whole total.
constexpr void verify_totals(graph& g) {
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  int found = 0, writes = 0;
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    if (n.op->writes_operands == 0) continue;
    ++writes;
    value_id from = n.in[1]; // the total before its reductions
    while (g.at(from).producer >= 0 && g.at_node(g.at(from).producer).op->redistributes)
      from = g.at_node(g.at(from).producer).in[0];
    const value &x = g.at(from), &whole = g.at(n.in[0]);
    const bool totals = x.from == feed::total && whole.from == feed::total;
    if (totals && x.feed_index < pending_totals &&
        whole.feed_index == x.feed_index + pending_totals)
      found |= 1 << x.feed_index;
  }
  if (found != (1 << pending_totals) - 1 || writes != pending_totals)
    record(g, fault::P019, 0, "totals");
}

/// Returns the graph that sums the totals of a step over the ranks of a mesh.
constexpr graph totals_graph(const mesh& ranks) {
  builder b{ranks};
  for (const auto t : {step_total::loss, step_total::tokens, step_total::side_loss})
    add_to(reduced(t), over_all_ranks(total_input(b, t)));
  verify_totals(b.g);
  return b.g;
}

/// Returns the graph of a step's end behind the totals, for a mesh `ranks`. Its outputs are the
/// number of blocks of elements whose weights or moments the update left infinite or not a number,
/// and the norm of the mean gradient; both are totals as well. A fault of the registry becomes the
/// graph's.
constexpr graph update_graph(const registry& r, const mesh& ranks,
                             const precision_policy& precision) {
  builder b{ranks};
  b.g.wrong = r.wrong;
  if (r.wrong.code != fault::none) return b.g;
  b.when = phase::prologue;
  const auto bring_together = [&](const registry::entry& e, feed f, const char* name, int k) {
    const axis_set over = of_several_ranks(ranks, e.apart);
    if (over.empty()) return;
    const registry::bucket bucket = summed_further(r.buckets[e.bucket], e.apart);
    const value_id sums =
        range_value(b, bucket, range::pending, e.count.n, f, name, type_of_store(precision, f), k)
            .id;
    b.emit(op::reduce_gradient, {sums}, 0, op::exchange_attributes{over, precision.wire});
  };
  for_each_apart(r, [&](const registry::entry& e, int k) {
    bring_together(e, feed::declared_gradient, "declared_gradient", k);
  });
  for_each_tie(r, [&](const registry::entry& e, int k) {
    bring_together(e, feed::tied_gradient, "tied_gradient", k);
    // Both gradients are pending sums over the same axes now.
    const auto use = [&](feed f, const char* name) {
      return range_value(b, r.buckets[e.bucket], range::pending, e.count.n, f, name,
                         type_of_store(precision, f), k)
          .id;
    };
    const value_id declared = use(feed::declared_gradient, "declared_gradient");
    b.emit(op::add_gradient, {declared, use(feed::tied_gradient, "tied_gradient")}, 0);
  });
  for (int k = 0; k < r.bucket_count; ++k) {
    const auto& bucket = r.buckets[k];
    if (bucket.frozen) continue;
    const auto gradient = [&](range what) {
      return bucket_value(b, bucket, what, feed::gradient, "gradient", precision.main_gradient, k)
          .id;
    };
    if (const axis_set all = reduced_over(ranks, bucket); !all.empty())
      b.emit(op::reduce_gradient, {gradient(range::pending)}, 0,
             op::exchange_attributes{all, wire_of(precision, bucket)});
    if (const axis_set shares = scattered_over(ranks, bucket); !shares.empty()) {
      const value_id sums = gradient(range::unscattered);
      b.emit(op::scatter_gradient, {sums, gradient(range::share)}, 0,
             op::exchange_attributes{shares, precision.wire});
    }
  }
  b.when = phase::forward;
  node clip;
  clip.op = &op::clip_factor;
  clip.in[0] = total_input(b, step_total::whole_tokens).id;
  clip.in[1] = total_input(b, step_total::whole_loss).id;
  var gradients[max_buckets]{};
  int norms = 0;
  for (int k = 0; k < r.bucket_count; ++k) {
    const auto& bucket = r.buckets[k];
    if (bucket.frozen) continue;
    const auto gradient = [&](range what) {
      return bucket_value(b, bucket, what, feed::gradient, "gradient", precision.main_gradient, k);
    };
    gradients[k] = gradient(range::share);
    if (bucket.update == update_rule::balance) continue; // a load of experts is no gradient
    const var counted = bucket.shared ? gradient(range::counted) : gradients[k];
    const var squares =
        over_all_ranks({&b, b.emit(op::sum_of_squares, {counted.id}, 0,
                                   op::share_attributes{scattered_over(ranks, bucket)})});
    value_id& sum =
        clip.in[2 + norms++ % (max_inputs - 2)]; // the op has fewer inputs: several sums in one
    sum = sum < 0 ? squares.id : b.emit(op::add, {sum, squares.id}, 0);
  }
  const value_id factor = b.emit(clip);
  const value_id norm = b.g.at_node(b.g.node_count - 1).out[1];
  add_to(step_total::norm, {&b, norm});
  var broken{};
  b.when = phase::epilogue;
  for (int k = 0; k < r.bucket_count; ++k) {
    const auto& bucket = r.buckets[k];
    if (bucket.frozen) continue;
    const auto store = [&](feed f, const char* name, range what = range::share) {
      return bucket_value(b, bucket, what, f, name, type_of_store(precision, f), k).id;
    };
    if (bucket.update == update_rule::balance) {
      b.emit(
          op::balance_step,
          {gradients[k].id, store(feed::master, "master"), store(feed::weight, "weight"), factor},
          0, op::balance_attributes{bucket.rate});
      continue;
    }
    value_id seed = -1, origin = -1;
    if (precision.narrows_moments()) {
      seed = number_input(b, feed::seed).id;
      origin = range_value(b, bucket, range::whole, bucket.origins * numbers_of_origin,
                           feed::origin, "origin", type_of_store(precision, feed::origin), k)
                   .id;
    }
    const var here = over_all_ranks(
        {&b,
         b.emit(op::adamw,
                {gradients[k].id, store(feed::master, "master"),
                 store(feed::first_moment, "first_moment"),
                 store(feed::second_moment, "second_moment"), store(feed::weight, "weight"), factor,
                 number_input(b, feed::learning_rate).id, number_input(b, feed::step).id, seed,
                 origin},
                0,
                op::adamw_attributes{bucket.decay, bucket.count, scattered_over(ranks, bucket)})});
    broken = broken.id < 0 ? here : var{&b, b.emit(op::add, {broken.id, here.id}, 0)};
    if (const axis_set shares = scattered_over(ranks, bucket); !shares.empty()) {
      const value_id share = store(feed::weight, "weight");
      b.emit(op::gather_weight, {share, store(feed::weight, "weight", range::whole)}, 0,
             op::exchange_attributes{shares, precision.weight});
    }
  }
  if (broken.id >= 0) add_to(step_total::broken, broken);
  b.g.outputs = {broken.id, norm};
  verify_update(b.g, r, ranks, precision);
  return b.g;
}

} // namespace mc
