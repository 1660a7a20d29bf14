// The registry has every parameter of a run once, with its place in the flat stores. Weights, main
// gradients, masters and moments have the same offsets. A bucket of parameters has the same
// placement and is updated alike. It is contiguous over all layers, so that reductions, norms, ZeRO
// shards and the optimizer work on ranges of one array.
//
// ZeRO 1 (Rajbhandari et al. 2020): ranks that have the same weights and read other tokens share
// the masters and moments of a bucket, and each keeps those of its share alone. Such a bucket has
// parameters of one part, unless stages share it. The share is cut from each of its layers, so that
// the weights of a layer can be gathered alone. Layers are padded to equal shares when the number
// of ranks is known.
//
// Frozen buckets lie behind all others. They have weights alone: no main gradients, no masters and
// no moments. Behind them lie buckets of parameters that are stored in several arrays, whose
// elements are bytes.
//
// All uses of a parameter add to one gradient where these gradients are sums over the same ranks
// and no sum has to be taken apart. Else a tied use collects its gradient apart, behind all others.
// The end of the step makes both sums over the same ranks, and adds the tied one to that of the
// declaration. It is so where one part uses the parameter in another state, where the declaration's
// gradient is finished at the end of the passes, and under numerics::batch_invariant, since a sum
// to which head and stem add in turn depends on the size of a micro-batch.
//
// Pipeline stages hold different layers, so ranges are shards over pp, except for tied parameters,
// which several stages hold. Each stage whose parts use one holds it, and its uses collect a
// gradient there; the gradient is a pending sum over pp. Parameters that the same parts use are one
// bucket, so a stage holds all of the bucket or nothing.
#pragma once

#include <megacpp/plan/names.hpp>
#include <megacpp/plan/roles.hpp>

#include <span>
#include <stdexcept>

namespace mc {

inline constexpr int max_entries = 160, max_buckets = 24;
/// The number of 64-bit integers in an origin. The origin of a parameter of a layer has its offset
/// in the bucket, its number of elements and its key, and for each of four dims the extent of the
/// whole, the extent of the rank's box, and the first element of that.
inline constexpr std::int64_t numbers_of_origin = 3 + 3 * max_rank;
/// The alignment of entries in elements: 256 bytes of f32. Arrays of an encoded parameter are
/// aligned to as many bytes.
inline constexpr std::int64_t entry_alignment = 64;
constexpr std::int64_t aligned_elements(std::int64_t n) {
  return (n + entry_alignment - 1) / entry_alignment * entry_alignment;
}

struct registry {
  struct entry {
    int part = 0;            ///< number of the part: 0 stem, 1 ... kinds blocks, kinds + 1 head
    int parameter = 0;       ///< index of the parameter in its graph
    std::int64_t offset = 0; ///< offset of the first layer, in elements
    std::int64_t stride = 0; ///< elements from one layer of the kind to the next
    local_count count;
    const parameter_encoding* encoding = nullptr; ///< its encoding; null: one array of `count`
    /// The offset of each array of the encoding, and behind the last one the end.
    std::int64_t arrays[max_arrays + 1]{};
    int bucket = 0;
    bool tied = false;         ///< shares the offset of another entry
    int declared = -1;         ///< for a tied one: the entry of the declaration
    std::int64_t gradient = 0; ///< elements, in the main gradients: `offset`, or its own
    axis_set apart{}; ///< axes over which this gradient is a sum, and those of other uses are not
  };
  struct bucket {
    placement at{};
    bool decay = false;
    bool frozen = false; ///< training never updates the bucket
    update_rule update = update_rule::adamw;
    double rate = 0;                    ///< size of a step of update_rule::balance
    bool shared = false;                ///< several stages hold the bucket
    axis_set pending{};                 ///< axes over which gradients are pending sums
    axis_set scattered{};               ///< of these: axes over which masters are shared
    std::int64_t offset = 0, count = 0; ///< range in elements, padding between entries included
    std::int64_t share = 0;             ///< elements whose masters a rank has
    std::int64_t states = 0;            ///< offset of its masters and moments, in elements
    bool counted = true;                ///< this stage counts the bucket in the norm
    bool of_bytes = false;              ///< its parameters are encoded, as bytes
    std::int64_t origins = 0;           ///< number of its parameters, one for each layer
    int part = -1;                      ///< only part whose parameters are in it; -1: any part
    std::int64_t layers = 1;            ///< number of layers of that part, all of one length

    /// Returns the number of stripes of the range: stretches of one length, in each of which a rank
    /// has a share.
    constexpr std::int64_t stripes() const { return part < 0 || layers == 0 ? 1 : layers; }
  };
  entry entries[max_entries]{};
  bucket buckets[max_buckets]{};
  int entry_count = 0, bucket_count = 0;
  std::int64_t total = 0;     ///< elements of the weights, without encoded ones
  std::int64_t encoded = 0;   ///< bytes of encoded weights, behind the others
  dtype type = dtype::f32;    ///< element type of the weights
  std::int64_t trained = 0;   ///< elements of the weights that training updates, which come first
  std::int64_t gradients = 0; ///< elements of main gradients: `trained`, and those of tied uses
  std::int64_t states = 0;    ///< elements of the masters, and of each moment
  fault_record wrong{};

  int part_count = 0;
  std::int16_t
      first[max_entries + 1]{}; ///< first entry of each part; behind the last part, the end

  /// Returns where array k of an encoded entry begins for a layer: its offset in the weights, in
  /// bytes.
  constexpr std::int64_t address(const entry& e, int k, int layer) const {
    return aligned_elements(total) * size_of(type) + e.offset + layer * e.stride + e.arrays[k];
  }
  /// Returns the bytes of the weights.
  constexpr std::int64_t weight_bytes() const {
    return encoded == 0 ? total * size_of(type) : aligned_elements(total) * size_of(type) + encoded;
  }
  /// Returns the elements of its bucket that a layer of an entry takes; if it is encoded, the
  /// bytes.
  static constexpr std::int64_t taken(const entry& e) {
    return e.encoding != nullptr ? e.arrays[e.encoding->count] : aligned_elements(e.count.n);
  }

  /// Returns the entry of a parameter of a part. Throws std::out_of_range if there is none.
  constexpr const entry& find(int part, int parameter) const {
    if (part < 0 || part >= part_count || parameter < 0 ||
        parameter >= first[part + 1] - first[part])
      throw std::out_of_range("the registry has no such parameter of such a part");
    return entries[first[part] + parameter];
  }
};

/// Returns the number of ranks that share a range over some axes; axes of unknown size count as
/// one.
constexpr int shares_of(const mesh& ranks, axis_set over) {
  int n = 1;
  for (int a = 0; a < axes; ++a)
    if (const auto one = static_cast<axis>(a); over.has(one) && ranks.sized(one))
      n *= ranks.of(one);
  return n;
}
/// Returns the number of elements of a layer, padded so that it divides into aligned shares.
constexpr std::int64_t padded_to_shares(std::int64_t n, int shares) {
  const std::int64_t line = entry_alignment * shares;
  return (n + line - 1) / line * line;
}

namespace detail {
/// Returns whether a part declares the parameter with the name of `v` in files, or ties to it.
/// Parameters of blocks have a name for each layer, so only tied ones count there.
constexpr bool uses(std::span<const graph* const> parts, std::size_t part, const value& v) {
  const bool block = part > 0 && part + 1 < parts.size();
  const graph& g = *parts[part];
  for (int i = 0; i < g.parameter_count; ++i)
    if ((g.parameters[i].tied || !block) && same_name(g.at(g.parameters[i].v), v)) return true;
  return false;
}
/// Returns whether the same parts use two parameters of these names.
constexpr bool used_alike(std::span<const graph* const> parts, const value& v, const value& o) {
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (uses(parts, p, v) != uses(parts, p, o)) return false;
  return true;
}
/// Returns whether one of these layers uses the parameter of this name.
constexpr bool held(std::span<const graph* const> parts, std::span<const int> layers,
                    const value& v) {
  for (std::size_t p = 0; p < layers.size(); ++p)
    if (layers[p] > 0 && uses(parts, p, v)) return true;
  return false;
}
/// Returns whether other parts, too, use a parameter of a part.
constexpr bool is_shared(std::span<const graph* const> parts, std::size_t part,
                         const parameter_info& info, const value& v) {
  if (info.tied) return true;
  for (std::size_t p = 0; p < parts.size(); ++p)
    if (p != part && uses(parts, part, v) && uses(parts, p, v)) return true;
  return false;
}
/// Returns whether a parameter belongs to bucket x. The sharded axes count, and levels do not,
/// since they do not change what is reduced. Decay and the rule of update do not count for a frozen
/// bucket.
constexpr bool same_bucket(const registry::bucket& x, const placement& at, const parameter_info& p,
                           bool shared, axis_set pending) {
  const bool updated_alike = x.decay == p.decay && x.update == p.update && x.rate == p.rate;
  bool same = x.frozen == p.frozen && (p.frozen || updated_alike) && x.shared == shared &&
              x.pending == pending && x.of_bytes == (p.encoding != nullptr);
  for (unsigned a = 0; a < static_cast<unsigned>(axes); ++a)
    same = same && (x.at.at[a].s == state::shard) == (at.at[a].s == state::shard);
  return same;
}
/// Returns the axes over which the gradient of a parameter is a pending sum when its part is done.
constexpr axis_set pending_axes(const graph& g, const parameter_info& p) {
  axis_set over = p.pending;
  for (int a = 0; p.tied && p.gradient >= 0 && a < axes; ++a)
    if (g.at(p.gradient).at.at[a] == partial) over = over.with(static_cast<axis>(a));
  return over;
}
/// Returns the axes over which the gradients of all uses of a parameter are pending sums.
constexpr axis_set pending_axes(std::span<const graph* const> parts, const parameter_info& p,
                                const value& v, axis_set over) {
  for (std::size_t k = 0; k < parts.size(); ++k) {
    const graph& g = *parts[k];
    const bool block = k > 0 && k + 1 < parts.size();
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& o = g.parameters[i];
      if ((o.tied || !block) && (o.tied || p.tied) && same_name(g.at(o.v), v))
        over = over.also_in(pending_axes(g, o));
    }
  }
  return over;
}
/// Returns whether the gradient of a parameter is complete when the passes of its part are done.
constexpr bool collects(const graph& g, const parameter_info& p) {
  return p.gradient < 0 || g.at(p.gradient).is == role::gradient;
}
constexpr void refuse(registry& r, fault f, const value& v, const parameter_info& info,
                      int over = -1, const char* why = "") {
  if (r.wrong.code != fault::none) return;
  r.wrong.code = f;
  r.wrong.line = info.line;
  r.wrong.what << (info.tied ? "tied(" : "parameter(") << v.scope << "." << v.name << ")";
  if (over >= 0) r.wrong.what << " over " << name_of(static_cast<axis>(over));
  r.wrong.what << why;
}
/// Refuses a tied use of a parameter that neither the stem nor the head declares. The message names
/// a parameter of theirs with the same dims.
constexpr void refuse_unknown_tie(registry& r, std::span<const graph* const> parts, const value& v,
                                  const parameter_info& info) {
  const bool first = r.wrong.code == fault::none;
  refuse(r, fault::C008, v, info);
  for (int j = 0; first && j < r.entry_count; ++j) {
    const registry::entry& e = r.entries[j];
    const graph& g = *parts[static_cast<unsigned>(e.part)];
    const value& w = g.at(g.parameters[e.parameter].v);
    if (e.tied || (e.part > 0 && e.part + 1 < static_cast<int>(parts.size())) || !v.same_dims(w))
      continue;
    r.wrong.what << "; of its dims there is " << w.scope << "." << w.name;
    return;
  }
}
} // namespace detail

/// Makes the registry of a model or of one pipeline stage. `parts` are the graphs of stem, block
/// kinds and head, of training after its passes. `layers[i]` is the number of layers of part i, in
/// the model or on the stage, and `before[i]` their number on earlier stages. A stage has a copy of
/// a parameter that it uses and another stage declares, in the order of the declarations. All
/// stages have the same buckets, whose ranges may be empty. `ranks` is the mesh; axes of unknown
/// size count as one rank.
constexpr registry make_registry(std::span<const graph* const> parts, std::span<const int> layers,
                                 int zero = 0, const mesh& ranks = {},
                                 std::span<const int> before = {}) {
  registry r;
  r.wrong = fault_of_names(parts);
  if (parts.size() > max_entries && r.wrong.code == fault::none)
    r.wrong.code = fault::S004, r.wrong.what << "more than 160 parts";
  if (parts.size() > max_entries) return r;
  r.part_count = static_cast<int>(parts.size());
  const value* named[max_buckets]{}; // one parameter of each bucket
  const bool staged = !parts.empty() && !parts.front()->ranks.trivial(axis::pp);
  // Finds or makes the bucket of an entry. Returns false where there are too many buckets.
  const auto assign = [&](registry::entry& e) {
    const auto p = static_cast<unsigned>(e.part);
    const graph& g = *parts[p];
    const parameter_info& info = g.parameters[e.parameter];
    const value& v = g.at(info.v);
    const bool shared = staged && detail::is_shared(parts, p, info, v);
    placement at = v.at;
    if (staged && !shared) at[axis::pp] = shard(dim::elements);
    const axis_set own = detail::pending_axes(g, info);
    axis_set pending =
        detail::is_shared(parts, p, info, v) ? detail::pending_axes(parts, info, v, own) : own;
    e.apart = own.without(pending);
    if (shared && !info.frozen) pending = pending.with(axis::pp);
    const auto of_another_part = [&](const registry::bucket& x) {
      return x.part >= 0 && x.part != e.part && !e.tied; // a tied one lies where it is declared
    };
    int k = 0;
    while (k < r.bucket_count && !(detail::same_bucket(r.buckets[k], at, info, shared, pending) &&
                                   !of_another_part(r.buckets[k]) &&
                                   (!shared || detail::used_alike(parts, *named[k], v))))
      ++k;
    if (k == max_buckets) {
      detail::refuse(r, fault::S004, v, info, -1,
                     ": more than 24 ways of storing and updating parameters, under ZeRO those of "
                     "each part");
      return false;
    }
    if (k == r.bucket_count) {
      r.buckets[k] = {at, info.decay, info.frozen, info.update, info.rate, shared, pending};
      if (info.frozen)
        r.buckets[k] = {
            .at = at, .frozen = true, .shared = shared, .of_bytes = info.encoding != nullptr};
      if (zero > 0 && info.update == update_rule::adamw && !info.frozen)
        r.buckets[k].scattered = pending.also_in(replica_axes);
      if (!r.buckets[k].scattered.empty() && !shared) {
        r.buckets[k].part = e.part;
        r.buckets[k].layers = layers[p];
      }
      named[k] = &v;
      ++r.bucket_count;
    }
    e.bucket = k;
    return true;
  };
  for (unsigned p = 0; p < parts.size(); ++p) {
    const graph& g = *parts[p];
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& info = g.parameters[i];
      const value& v = g.at(info.v);
      if (r.entry_count == max_entries) {
        detail::refuse(r, fault::S004, v, info, -1, ": more than 160 parameters in all parts");
        return r;
      }
      registry::entry& e = r.entries[r.entry_count++];
      e.part = static_cast<int>(p), e.parameter = i, e.tied = info.tied;
      e.count = local_size(g.ranks, v), e.encoding = info.encoding;
      if (e.encoding == nullptr) r.type = v.type;
      for (int k = 0; e.encoding != nullptr && k < e.encoding->count; ++k)
        e.arrays[k + 1] =
            e.arrays[k] + aligned_elements(local_bytes(g.ranks, g.at(info.arrays[k])));
      if (!e.tied && !assign(e)) return r;
    }
    r.first[p + 1] = static_cast<std::int16_t>(r.entry_count);
  }
  for (int i = 0; i < r.entry_count; ++i)
    if (r.entries[i].tied && !assign(r.entries[i])) return r;
  for (int step = 0; step < 3 * r.bucket_count;
       ++step) { // trained buckets, frozen ones, those of bytes
    const int k = step % r.bucket_count;
    registry::bucket& bucket = r.buckets[k];
    if (bucket.frozen + bucket.of_bytes != step / r.bucket_count) continue;
    std::int64_t& end = bucket.of_bytes ? r.encoded : r.total;
    const int shares = shares_of(ranks, bucket.scattered);
    bucket.offset = end;
    for (unsigned p = 0; p < parts.size(); ++p) {
      std::int64_t within = 0;
      for (int i = 0; i < r.entry_count; ++i) {
        registry::entry& e = r.entries[i];
        if (e.part != static_cast<int>(p) || e.bucket != k || e.tied) continue;
        e.offset = end + within;
        within += registry::taken(e);
      }
      if (bucket.part >= 0) within = padded_to_shares(within, shares);
      for (int i = 0; i < r.entry_count; ++i) {
        registry::entry& e = r.entries[i];
        if (e.part != static_cast<int>(p) || e.bucket != k || e.tied) continue;
        e.stride = within;
        bucket.origins += bucket.shared ? detail::held(parts, layers, *named[k]) : layers[p];
      }
      end += within * (bucket.shared ? detail::held(parts, layers, *named[k]) : layers[p]);
    }
    bucket.count = padded_to_shares(end - bucket.offset, shares);
    end = bucket.offset + bucket.count;
    bucket.states = r.states;
    if (!bucket.frozen) {
      bucket.share = bucket.count / shares;
      r.states += bucket.share, r.trained = r.total;
    }
    bucket.counted = !bucket.shared || !detail::held(parts, before, *named[k]);
  }
  r.gradients = r.trained;
  int ties = 0;
  for (int i = 0; i < r.entry_count; ++i) {
    registry::entry& e = r.entries[i];
    e.gradient = e.offset;
    if (!e.tied) continue;
    const graph& g = *parts[static_cast<unsigned>(e.part)];
    const parameter_info& info = g.parameters[e.parameter];
    const value& v = g.at(info.v);
    bool found = false;
    for (int j = 0; j < r.entry_count && !found; ++j) {
      const registry::entry& o = r.entries[j];
      const bool in_block = o.part > 0 && o.part + 1 < static_cast<int>(parts.size());
      if (o.tied || in_block) continue; // every layer of a block has a parameter of its own
      const graph& h = *parts[static_cast<unsigned>(o.part)];
      const parameter_info& declared = h.parameters[o.parameter];
      const value& w = h.at(declared.v);
      if (!same_name(v, w)) continue;
      found = true;
      e.declared = j;
      e.offset = e.gradient = o.offset;
      const bool own = (!staged && g.sums == numerics::batch_invariant) || e.apart != o.apart ||
                       !detail::collects(h, declared);
      if (!info.frozen && own && layers[static_cast<unsigned>(e.part)] > 0) {
        e.gradient = r.gradients;
        r.gradients += aligned_elements(e.count.n);
        if (++ties > max_feed_inputs)
          detail::refuse(r, fault::S004, v, info, -1, ": more than 8 tied uses");
      }
      if (!v.same_dims(w)) detail::refuse(r, fault::S003, v, info);
      for (int a = 0; a < axes; ++a)
        if (const auto one = static_cast<axis>(a);
            v.at.at[a] != w.at.at[a] ||
            r.buckets[e.bucket].pending.has(one) != r.buckets[o.bucket].pending.has(one))
          detail::refuse(r, fault::P002, v, info, a);
      if (v.type != w.type || !info.declares_alike(declared))
        detail::refuse(r, fault::C004, v, info);
      e.bucket = o.bucket;
    }
    if (!found) detail::refuse_unknown_tie(r, parts, v, info);
  }
  for (int i = 0; i < r.entry_count; ++i) {
    const registry::entry& e = r.entries[i];
    const graph& g = *parts[static_cast<unsigned>(e.part)];
    const parameter_info& info = g.parameters[e.parameter];
    if (!e.tied && !e.apart.empty() && ++ties > max_feed_inputs)
      detail::refuse(r, fault::S004, g.at(info.v), info, -1, ": more than 8 tied uses");
  }
  return r;
}

/// Calls f(tied entry of the registry, its number) for every one that collects a gradient of its
/// own.
template <class F> constexpr void for_each_tie(const registry& r, F f) {
  int k = 0;
  for (int i = 0; i < r.entry_count; ++i)
    if (const registry::entry& e = r.entries[i]; e.gradient != e.offset) f(e, k++);
}

/// Calls f(entry, its number) for every declaration whose gradient is a sum over more ranks than
/// those of its other uses, on a stage that has it. The numbers follow those of the tied entries.
template <class F> constexpr void for_each_apart(const registry& r, F f) {
  int k = 0;
  for_each_tie(r, [&](const registry::entry&, int) { ++k; });
  for (int i = 0; i < r.entry_count; ++i)
    if (const registry::entry& e = r.entries[i];
        !e.tied && !e.apart.empty() && r.buckets[e.bucket].count > 0)
      f(e, k++);
}

/// Returns the number of parameters of a model, without padding and with tied ones once.
constexpr std::int64_t count_parameters(std::span<const graph* const> parts,
                                        std::span<const int> layers) {
  std::int64_t total = 0;
  for (unsigned p = 0; p < parts.size(); ++p)
    for (int i = 0; i < parts[p]->parameter_count; ++i) {
      const parameter_info& info = parts[p]->parameters[i];
      if (info.tied) continue;
      total += unpadded_size(parts[p]->at(info.v), info).n * layers[p];
    }
  return total;
}

} // namespace mc
