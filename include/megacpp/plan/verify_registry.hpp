// verify_registry: checks a registry a second time, from the graphs. These and the numbers of
// layers say where each parameter of each layer lies, which parameters are updated alike, over
// which ranks gradients are sums, and what stages share. The check uses no code that makes
// registries, so that it sees their mistakes. verify_update checks the end of a step against the
// registry.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/plan/registry.hpp>

namespace mc {

namespace detail {

struct registry_verifier {
  const registry& r;
  std::span<const graph* const> parts;
  std::span<const int> layers, before;
  int zero;
  const mesh& ranks;
  fault_record wrong{};
  int copies[max_entries]{}; ///< how often the stores hold an entry: once a layer; tied: 0

  constexpr const graph& graph_of(const registry::entry& e) const {
    return *parts[static_cast<unsigned>(e.part)];
  }
  constexpr const parameter_info& info_of(const registry::entry& e) const {
    return graph_of(e).parameters[e.parameter];
  }
  constexpr const value& value_of(const registry::entry& e) const {
    return graph_of(e).at(info_of(e).v);
  }
  constexpr const registry::bucket& bucket_of(const registry::entry& e) const {
    return r.buckets[e.bucket];
  }
  constexpr bool staged() const { return !parts.front()->ranks.trivial(axis::pp); }
  constexpr int layers_of(const registry::entry& e) const {
    return layers[static_cast<unsigned>(e.part)];
  }

  [[gnu::cold]] constexpr void fail(const char* what, const registry::entry* e = nullptr) {
    if (wrong.code != fault::none) return;
    wrong.code = fault::P019;
    wrong.what << "registry";
    if (e != nullptr) {
      wrong.line = info_of(*e).line;
      wrong.what << "(" << value_of(*e).scope << "." << value_of(*e).name << ")";
    }
    wrong.what << ": " << what;
  }

  /// Returns whether e and o are one parameter of the model. Layers of blocks have parameters of
  /// their own, unless these are tied.
  constexpr bool one_parameter(const registry::entry& e, const registry::entry& o) const {
    if (&e == &o) return true;
    const auto named_alone = [&](const registry::entry& x) {
      return x.tied || x.part == 0 || x.part + 1 == static_cast<int>(parts.size());
    };
    return named_alone(e) && named_alone(o) && same_name(value_of(e), value_of(o));
  }
  /// Calls f(entry) for all entries that are one parameter with e.
  template <class F> constexpr void each_use(const registry::entry& e, F f) const {
    for (int i = 0; i < r.entry_count; ++i)
      if (one_parameter(e, r.entries[i])) f(r.entries[i]);
  }
  constexpr bool of_several_parts(const registry::entry& e) const {
    int uses = 0;
    each_use(e, [&](const registry::entry&) { ++uses; });
    return uses > 1;
  }
  /// Returns how many layers among `of` use a parameter.
  constexpr int used_in(const registry::entry& e, std::span<const int> of) const {
    int n = 0;
    each_use(e, [&](const registry::entry& o) {
      if (static_cast<std::size_t>(o.part) < of.size()) n += of[static_cast<unsigned>(o.part)];
    });
    return n;
  }
  constexpr int copies_of(const registry::entry& e) const { return copies[&e - r.entries]; }
  constexpr int count_copies(const registry::entry& e) const {
    if (e.tied) return 0;
    if (staged() && of_several_parts(e)) return used_in(e, layers) > 0 ? 1 : 0;
    return layers_of(e);
  }

  /// Returns whether the arrays of an encoded parameter lie in their order, each with room for the
  /// array that the part declares.
  constexpr bool has_arrays(const registry::entry& e) const {
    if (e.encoding != info_of(e).encoding) return false;
    for (int k = 0; e.encoding != nullptr && k < e.encoding->count; ++k) {
      const value& v = graph_of(e).at(info_of(e).arrays[k]);
      const std::int64_t bytes = local_size(graph_of(e).ranks, v).n * size_of(v.type);
      if (v.type != e.encoding->arrays[k].type || e.arrays[k] % entry_alignment != 0 ||
          e.arrays[k + 1] < e.arrays[k] + bytes || (k == 0 && e.arrays[k] != 0))
        return false;
    }
    return true;
  }
  /// Returns the elements of its bucket that a layer of an entry takes; if it is encoded, the
  /// bytes.
  static constexpr std::int64_t room_of(const registry::entry& e) {
    return e.encoding != nullptr ? e.arrays[e.encoding->count] : aligned_elements(e.count.n);
  }

  /// Checks that there is one entry for each parameter of each part, in their order, which agrees
  /// with the graph.
  constexpr bool is_complete() {
    int at = 0;
    for (std::size_t p = 0; p < parts.size(); ++p)
      for (int i = 0; i < parts[p]->parameter_count; ++i, ++at) {
        if (at >= r.entry_count) return fail("parameters of parts are missing"), false;
        const registry::entry& e = r.entries[at];
        const bool there =
            e.part == static_cast<int>(p) && e.parameter == i && at == r.first[p] + i;
        if (!there) return fail("parameters of parts are missing"), false;
        if (e.bucket < 0 || e.bucket >= r.bucket_count) return fail("no such bucket", &e), false;
        if (e.count != local_size(parts[p]->ranks, value_of(e)) || e.tied != info_of(e).tied ||
            !has_arrays(e))
          return fail("not what the part declares", &e), false;
      }
    const bool all = at == r.entry_count && r.part_count == static_cast<int>(parts.size()) &&
                     r.first[parts.size()] == at;
    if (!all) fail("parameters that no part has");
    return all;
  }
  /// Returns whether the gradient that a part leaves is a pending sum over an axis.
  constexpr bool sums_over(const registry::entry& e, axis a) const {
    const value_id v = info_of(e).gradient;
    return v >= 0 && graph_of(e).at(v).at[a] == partial;
  }
  /// Checks that the bucket of a parameter is updated and placed as the parameter is, and has the
  /// same pending sums as its gradient when the part is done.
  constexpr void belongs(const registry::entry& e) {
    const parameter_info& p = info_of(e);
    const registry::bucket& k = bucket_of(e);
    const bool alike = k.decay == p.decay && k.update == p.update && k.rate == p.rate;
    if (k.frozen != p.frozen || (!p.frozen && !alike)) fail("updated as another one", &e);
    if (k.of_bytes != (e.encoding != nullptr) || (k.of_bytes && !k.frozen))
      fail("stored as another one", &e);
    const bool shared = staged() && of_several_parts(e);
    const bool by_layers = !k.scattered.empty() && !shared;
    if (!e.tied && k.part != (by_layers ? e.part : -1))
      fail("its layers lie among those of another part", &e);
    if (!e.tied && by_layers && k.layers != layers_of(e)) fail("of other layers", &e);
    if (k.shared != shared) fail("shared by other stages than use it", &e);
    for (int a = 0; a < axes; ++a) {
      const auto one = static_cast<axis>(a);
      const bool cut = value_of(e).at[one].s == state::shard,
                 stage = one == axis::pp && staged() && !shared;
      if ((k.at[one].s == state::shard) != (cut || stage)) fail("cut over other ranks", &e);
      bool sum = sums_over(e, one);
      each_use(e, [&](const registry::entry& o) { sum = sum && sums_over(o, one); });
      if (e.apart.has(one) != (sums_over(e, one) && !sum))
        fail("apart from other uses over other ranks", &e);
      if (one == axis::pp) sum = shared && !p.frozen;
      if (k.pending.has(one) != sum) fail("its gradient is summed over other ranks", &e);
      const bool apart =
          zero > 0 && !p.frozen && p.update == update_rule::adamw && sum && replica_axes.has(one);
      if (k.scattered.has(one) != apart) fail("its states are shared by other ranks", &e);
    }
    if (k.counted != !(shared && used_in(e, before) > 0))
      fail("counted on another stage than the first that has it", &e);
  }
  /// Checks that every layer's parameter lies in the bucket, in its own place, and a tied one where
  /// it is declared.
  constexpr void lies(const registry::entry& e) {
    const registry::bucket& k = bucket_of(e);
    const int n = copies_of(e);
    const std::int64_t size = room_of(e);
    if (e.encoding == nullptr && value_of(e).type != r.type) fail("of another type", &e);
    if (k.part >= 0 && n > 0 && !e.tied) {
      const std::int64_t layer = k.count / k.layers;
      if (e.stride != layer || e.offset - k.offset + size > layer)
        fail("its layer lies outside of the bucket's layers", &e);
    }
    if (e.offset % entry_alignment != 0 || e.stride % entry_alignment != 0) fail("not aligned", &e);
    if (n > 0 && (e.offset < k.offset || e.stride < 0 || (n > 1 && e.stride < size) ||
                  e.offset + (n - 1) * e.stride + size > k.offset + k.count))
      fail("beyond its bucket", &e);
    if (e.tied) {
      bool found = false;
      each_use(e, [&](const registry::entry& o) {
        if (o.bucket != e.bucket || o.offset != e.offset)
          fail("tied to another place than it is declared in", &e);
        found = found || !o.tied;
      });
      if (!found || e.stride != 0) fail("tied to nothing", &e);
    }
    for (int i = 0; i < r.entry_count && n > 0; ++i) {
      const registry::entry& o = r.entries[i];
      if (&o == &e || o.bucket != e.bucket || copies_of(o) == 0) continue; // buckets do not overlap
      if (overlap(e, n, o, copies_of(o))) fail("where another parameter lies", &e);
    }
    if (!k.shared || e.tied) return;
    std::int64_t first = k.offset; // the offset is the same on every stage
    for (const registry::entry* o = r.entries; o != &e; ++o)
      if (!o->tied && o->bucket == e.bucket) first += room_of(*o);
    if (n > 0 && e.offset != first) fail("elsewhere than on other stages", &e);
  }
  /// Returns whether two entries overlap. Entries of one part lie side by side in each layer; those
  /// of different parts lie one behind the other.
  static constexpr bool overlap(const registry::entry& e, int n, const registry::entry& o, int m) {
    const std::int64_t size = room_of(e), other = room_of(o);
    if (e.part == o.part && n == m && n > 1) {
      if (e.stride != o.stride || e.stride <= 0) return true;
      std::int64_t apart = (o.offset - e.offset) % e.stride;
      if (apart < 0) apart += e.stride;
      return apart < size || apart + other > e.stride;
    }
    return e.offset < o.offset + (m - 1) * o.stride + other &&
           o.offset < e.offset + (n - 1) * e.stride + size;
  }
  /// Returns whether a tied use must collect its gradient apart from its declaration: else sums
  /// would depend on micro-batches, would be over other ranks, or would be written after all have
  /// been added.
  constexpr bool collects_apart(const registry::entry& e) const {
    if (!e.tied || info_of(e).frozen || layers_of(e) == 0) return false;
    bool own = !staged() && graph_of(e).sums == numerics::batch_invariant;
    each_use(e, [&](const registry::entry& o) {
      if (o.tied) return;
      const value_id v = info_of(o).gradient;
      own = own || (v >= 0 && graph_of(o).at(v).is != role::gradient);
      for (int a = 0; a < axes; ++a)
        own = own || sums_over(e, static_cast<axis>(a)) != sums_over(o, static_cast<axis>(a));
    });
    return own;
  }
  /// Checks where a gradient collects: at the offset of the weight, or behind all others.
  constexpr void collects(const registry::entry& e) {
    const bool own = collects_apart(e);
    if (!own && e.gradient != e.offset) fail("its gradient is elsewhere", &e);
    if (!own) return;
    const std::int64_t end = e.gradient + aligned_elements(e.count.n);
    if (e.gradient < r.trained || end > r.gradients || e.gradient % entry_alignment != 0)
      fail("no place for its gradient", &e);
    for (int i = 0; i < r.entry_count; ++i) {
      const registry::entry& o = r.entries[i];
      if (&o != &e && o.gradient != o.offset && o.gradient < end &&
          e.gradient < o.gradient + aligned_elements(o.count.n))
        fail("its gradient is where another one's is", &e);
    }
  }
  /// Checks the sizes of buckets and stores. A bucket is as long as the stage's parameters of it,
  /// with the padding that equal shares need. Groups lie one behind the other: first the trained
  /// ones, then the frozen ones, which have weights alone, then those of encoded parameters.
  constexpr void sizes() {
    std::int64_t total = 0, encoded = 0, trained = 0, states = 0, gradients = 0;
    for (int i = 0; i < 3 * r.bucket_count; ++i) {
      const registry::bucket& g = r.buckets[i % r.bucket_count];
      if (i / r.bucket_count != (g.of_bytes ? 2 : g.frozen ? 1 : 0)) continue;
      const int k = i % r.bucket_count;
      std::int64_t n = 0, held = 0;
      int shares = 1;
      for (int j = 0; j < r.entry_count; ++j)
        if (const registry::entry& e = r.entries[j]; e.bucket == k)
          n += room_of(e) * copies_of(e), held += copies_of(e);
      for (int a = 0; a < axes; ++a)
        if (const auto one = static_cast<axis>(a); g.scattered.has(one) && ranks.sized(one))
          shares *= ranks.of(one);
      const std::int64_t line = shares * entry_alignment, runs = g.part < 0 ? 1 : g.layers,
                         each = runs == 0 ? 0 : (n / runs + line - 1) / line * line;
      if ((runs > 0 && n % runs != 0) || g.count != each * runs ||
          g.share * shares != (g.frozen ? 0 : g.count))
        fail("a bucket has another size than its parameters");
      if (g.origins != held) fail("a bucket counts other parameters than it has");
      std::int64_t& end = g.of_bytes ? encoded : total;
      if (g.offset != end || g.states != states) fail("buckets lie in each other");
      end += g.count, states += g.share;
      if (!g.frozen) trained = total;
    }
    for (int i = 0; i < r.entry_count; ++i)
      if (const registry::entry& e = r.entries[i]; e.gradient != e.offset)
        gradients += aligned_elements(e.count.n);
    if (r.total != total || r.encoded != encoded || r.trained != trained || r.states != states ||
        r.gradients != trained + gradients)
      fail("stores have another size than the buckets");
  }
  constexpr void verify() {
    if (!is_complete()) return;
    for (int i = 0; i < r.entry_count; ++i) copies[i] = count_copies(r.entries[i]);
    sizes();
    for (int i = 0; i < r.entry_count && wrong.code == fault::none; ++i) {
      const registry::entry& e = r.entries[i];
      belongs(e), lies(e), collects(e);
    }
  }
};

} // namespace detail

/// Returns MEGA-P019 unless the registry agrees with the graphs: it has all parameters once, each
/// in its own place within a bucket of its kind, tied ones where they are declared, on every stage
/// that uses them, and each counts on the first of these stages. The arguments are those of
/// make_registry.
constexpr fault_record verify_registry(const registry& r, std::span<const graph* const> parts,
                                       std::span<const int> layers, int zero = 0,
                                       const mesh& ranks = {}, std::span<const int> before = {}) {
  detail::registry_verifier v{r, parts, layers, before, zero, ranks};
  v.verify();
  return v.wrong;
}

/// Returns the registry that make_registry makes, verified.
constexpr registry verified_registry(std::span<const graph* const> parts,
                                     std::span<const int> layers, int zero = 0,
                                     const mesh& ranks = {}, std::span<const int> before = {}) {
  registry r = make_registry(parts, layers, zero, ranks, before);
  if (r.wrong.code == fault::none) r.wrong = verify_registry(r, parts, layers, zero, ranks, before);
  return r;
}

} // namespace mc
