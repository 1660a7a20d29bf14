// The flat stores of one rank. Weights and main grads have the offsets of the registry; behind the
// main grads lie those of further uses of tied parameters. Masters and moments have these offsets,
// too, unless ranks share them (ZeRO): then a rank holds its share of each layer of each bucket of
// parameters, one behind the other.
#pragma once

#include <megacpp/checkpoint/finite.hpp>
#include <megacpp/comm/group.hpp>
#include <megacpp/exec/host_memory.hpp>
#include <megacpp/num/random.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <map>
#include <numbers>
#include <span>
#include <string>
#include <vector>

namespace mc {

/// A parameter of one layer, as the stores hold it.
struct parameter_ref {
  std::string name;         ///< "scope.name" in stem and head, "layers.<i>.scope.name" in blocks
  std::string local_name;   ///< "scope.name"
  int layer = -1;           ///< number of the layer; -1 outside the blocks
  const value* v = nullptr; ///< value with its dims and placement
  const parameter_info* info = nullptr;
  const mesh* ranks = nullptr; ///< mesh over which v is placed
  std::int64_t offset = 0;     ///< first element, in weights and main grads
  local_count count;           ///< number of elements of this rank
  int bucket = 0;              ///< bucket of parameters that are updated alike, by its
                               ///< number in the registry
  bool copied = false;         ///< an earlier stage has the parameter, too
  const part_view* part = nullptr;
  int index = 0; ///< index of the layer among those of its part
};

/// Calls f(parameter_ref) once for every parameter of the stores, in the order of the model and
/// without tied ones. A pipeline stage's copy of another stage's parameter comes where that one is
/// declared. For an encoded parameter, `offset` is its entry's, in bytes.
template <class F> void for_each_parameter(const program_view& p, F f) {
  const auto visit = [&](const part_view& part, int layer, int index, bool copies = false) {
    for (int i = 0; i < part.g->parameter_count; ++i) {
      const parameter_info& info = part.g->parameters[static_cast<unsigned>(i)];
      const registry::entry& e = p.stores->find(part.index, i);
      const registry::bucket& bucket = p.stores->buckets[static_cast<unsigned>(e.bucket)];
      if (info.tied || (copies && (!bucket.shared || bucket.count == 0))) continue;
      parameter_ref r;
      r.v = &part.g->at(info.v), r.info = &info, r.ranks = &part.g->ranks, r.layer = layer;
      r.local_name = std::string(r.v->scope) + "." + r.v->name;
      r.name = layer < 0 ? r.local_name : "layers." + std::to_string(layer) + "." + r.local_name;
      r.offset = e.offset + index * e.stride, r.count = e.count, r.bucket = e.bucket;
      r.copied = !bucket.counted, r.part = &part, r.index = index;
      f(r);
    }
  };
  const layout one{}, &of = p.stage < 0 ? one : p.numbers.ranks;
  const int stage = std::max(p.stage, 0);
  if (stage > 0) visit(p.part(0), -1, 0, true);
  for_each_use(
      p.layers, p.kinds(), of, stage, [&](int l) { return p.kind_of[static_cast<unsigned>(l)]; },
      [&](const part_use& u) {
        visit(p.part(u.part), u.layer < p.layers ? u.layer : -1, u.index);
      });
  if (stage + 1 < of.pp) visit(p.head(), -1, 0, true);
}

/// Calls f(parameter_ref, element type) for every array of the stores. An encoded parameter has
/// several arrays, such as "scope.name.codes", each placed as the parameter is; the offset is in
/// elements of the array's own type from the beginning of the weights.
template <class F> void for_each_array(const program_view& p, F f) {
  for_each_parameter(p, [&](const parameter_ref& r) {
    const parameter_encoding* const encoding = r.info->encoding;
    if (encoding == nullptr) return f(r, p.numbers.precision.weight);
    const int number = static_cast<int>(r.info - r.part->g->parameters);
    const registry::entry& e = p.stores->find(r.part->index, number);
    for (int k = 0; k < encoding->count; ++k) {
      parameter_ref a = r;
      const stored_array& array = encoding->arrays[k];
      a.name += std::string(".") + array.name, a.local_name += std::string(".") + array.name;
      a.v = &r.part->g->at(r.info->arrays[k]);
      a.offset = p.stores->address(e, k, r.index) / size_of(array.type);
      a.count = local_size(r.part->g->ranks, *a.v);
      f(a, array.type);
    }
  });
}

/// Returns the first parameter of a model that is encoded, on any rank; null: there is none.
inline const parameter_info* encoded_parameter(const program_view& p) {
  for (int i = 0; i <= p.kinds() + 1; ++i)
    for (int k = 0; k < p.part(i).g->parameter_count; ++k)
      if (const parameter_info& info = p.part(i).g->parameters[static_cast<unsigned>(k)];
          info.encoding != nullptr)
        return &info;
  return nullptr;
}

/// A selection from the stores: weights (and main grads), or masters and moments (`states`); all
/// elements that a rank holds, or its `own`, of which each logical element has one rank; all
/// parameters, or `frozen` ones alone.
struct store_side {
  bool states = false, own = false, frozen = false;
};
/// A store: elements of one type, and the selection that it holds.
struct store_source {
  std::byte* data = nullptr;
  dtype type = dtype::f32;
  store_side what{};
};

class stores {
public:
  /// `at`: the coordinate of the rank that owns the stores, on the mesh `ranks`. The memory space
  /// `in` must outlive them.
  stores(const program_view& p, bool training, const coordinates& at = {},
         memory_space& in = host_memory::of_process(), const mesh& ranks = mesh::one_rank())
      : program_(&p), in_(&in), at_(at), precision_(p.numbers.precision), total_(p.stores->total) {
    for_each_array(p, [&](const parameter_ref& r, dtype) { held_.emplace(r.name, r); });
    constexpr const char* smaller = "a smaller model";
    const std::int64_t states = p.stores->states;
    for (int k = 0; k < p.stores->bucket_count; ++k) {
      const registry::bucket& bucket = p.stores->buckets[static_cast<unsigned>(k)];
      if (bucket.share < bucket.count)
        number_[static_cast<unsigned>(k)] = number_in_group(ranks, bucket.scattered, at);
    }
    const auto reserve = [&](std::int64_t elements, dtype t, const char* what) {
      return arena(in, elements * size_of(t), what, smaller);
    };
    weights_ = arena(in, p.stores->weight_bytes(), "weights", smaller);
    if (!training) return;
    gradients_ = reserve(p.stores->gradients, precision_.main_gradient, "main grads");
    mastered_ = !precision_.updates_weights();
    if (mastered_) masters_ = reserve(states, precision_.master, "master weights");
    first_ = reserve(states, precision_.moment, "first moments");
    second_ = reserve(states, precision_.moment, "second moments");
    if (precision_.narrows_moments()) make_origins(p, smaller);
  }

  const program_view& program() const { return *program_; }
  /// The registry, which says where each parameter lies.
  const registry& entries() const { return *program_->stores; }
  const coordinates& coordinate() const { return at_; }
  /// Returns the boxes of a parameter that this rank holds.
  boxes boxes_of(const parameter_ref& r) const { return {*r.ranks, *r.v, at_}; }
  const precision_policy& precision() const { return precision_; }
  std::int64_t total() const { return total_; }
  std::byte* weights() const { return weights_.data(); }
  std::byte* gradients() const { return gradients_.data(); }
  void clear_gradients() const { in_->fill(gradients(), 0, gradients_.size()); }
  std::byte* masters() const {
    return precision_.updates_weights() ? weights_.data() : masters_.data();
  }
  std::byte* first_moments() const { return first_.data(); }
  std::byte* second_moments() const { return second_.data(); }
  std::int64_t bytes() const {
    return weights_.size() + gradients_.size() + masters_.size() + first_.size() + second_.size() +
           origins_.size();
  }

  /// Gives the update graph the addresses of the values that it reads and writes in these stores.
  void set_addresses(input_addresses& update) const {
    const std::int64_t main = size_of(precision_.main_gradient);
    const registry& r = entries();
    for_each_tie(r, [&](const registry::entry& e, int k) {
      update.set(feed::declared_gradient, gradients() + e.offset * main, k);
      update.set(feed::tied_gradient, gradients() + e.gradient * main, k);
    });
    for_each_apart(r, [&](const registry::entry& e, int k) {
      update.set(feed::declared_gradient, gradients() + e.offset * main, k);
    });
    update.each([&](const value& v, std::byte*& at) {
      if (!is_store(v.from)) return;
      const auto k = static_cast<unsigned>(v.feed_index);
      const registry::bucket& bucket = r.buckets[k];
      bool share = false; // the input is this rank's share, not the whole range
      for (int a = 0; a < axes; ++a)
        share = share || (bucket.scattered.has(static_cast<axis>(a)) &&
                          v.at.at[static_cast<unsigned>(a)].s == state::shard);
      const std::int64_t begin =
          bucket.offset + (share ? number_[k] * bucket.share / bucket.stripes() : 0);
      const std::int64_t size = size_of(type_of_store(precision_, v.from));
      switch (v.from) {
      case feed::gradient: at = gradients() + begin * size; return;
      case feed::weight: at = weights() + begin * size; return;
      case feed::master:
        at = mastered_ ? masters_.data() + bucket.states * size : weights() + begin * size;
        return;
      case feed::first_moment: at = first_moments() + bucket.states * size; return;
      case feed::second_moment: at = second_moments() + bucket.states * size; return;
      case feed::origin:
        at = origins_.data() + origins_begin_[k] * numbers_of_origin * size;
        return;
      default: return;
      }
    });
  }
  /// The elements of a parameter that this rank holds. The parameter may come from another rank's
  /// program, or from that of all stages.
  class held_elements {
  public:
    /// Calls f(at, i, n) for each stretch of the logical elements [from, to) that this rank holds:
    /// the n elements from `at` on are the elements from i on of the store.
    template <class F> void each_contiguous(global_count from, global_count to, F f) const {
      if (mine_ == nullptr) return;
      held_.each_contiguous_within(from, to, [&](local_count i, global_count at, std::int64_t n) {
        const std::int64_t begin = mine_->offset + i.n;
        if (!states_) return f(at, begin, n);
        of_->each_state(begin, n, [&](std::int64_t first, std::int64_t state, std::int64_t count) {
          f(global_count{at.n + first - begin}, state, count);
        });
      });
    }

  private:
    friend class stores;
    const stores* of_ = nullptr;
    const parameter_ref* mine_ = nullptr; ///< null: this rank holds no element
    boxes held_;
    bool states_ = false;
  };
  held_elements held(const parameter_ref& of, store_side what) const {
    held_elements part;
    const auto mine = held_.find(of.name);
    if (mine == held_.end() || (what.own && !answers_for(mine->second, what.states)) ||
        (what.frozen && !mine->second.info->frozen))
      return part;
    part.of_ = this, part.mine_ = &mine->second, part.states_ = what.states;
    part.held_ = boxes_of(mine->second);
    return part;
  }

  /// Returns the stores that files keep, with this rank's own elements: masters if they lie apart
  /// from the weights, and then the weights of frozen parameters, which have no masters.
  std::vector<store_source> kept() const {
    if (!mastered_) return {{weights(), precision_.weight, {.own = true}}};
    return {{masters_.data(), precision_.master, {.states = true, .own = true}},
            {weights(), precision_.weight, {.own = true, .frozen = true}}};
  }

  /// Calls f(i, at, n) for those of n weights from `first` on whose masters and moments this rank
  /// holds: the n weights from i on have their masters and moments at `at`.
  template <class F> void each_state(std::int64_t first, std::int64_t n, F f) const {
    const registry& r = entries();
    for (int k = 0; k < r.bucket_count; ++k) {
      const registry::bucket& bucket = r.buckets[static_cast<unsigned>(k)];
      if (bucket.share == 0 || first + n <= bucket.offset || first >= bucket.offset + bucket.count)
        continue;
      // Each layer has a stretch of the share.
      const std::int64_t run = bucket.share / bucket.stripes(),
                         layer = bucket.count / bucket.stripes();
      std::int64_t i = std::max<std::int64_t>(0, (first - bucket.offset) / layer);
      for (; i < bucket.stripes() && bucket.offset + i * layer < first + n; ++i) {
        const std::int64_t begin =
                               bucket.offset + i * layer + number_[static_cast<unsigned>(k)] * run,
                           from = std::max(first, begin), to = std::min(first + n, begin + run);
        if (from < to) f(from, bucket.states + i * run + from - begin, to - from);
      }
    }
  }

  /// Returns elements [first, end) of a store of type t, in memory that the host sees; nothing if
  /// there is no such store.
  host_accessor seen(std::byte* store, dtype t, std::int64_t first, std::int64_t end,
                     bool changing = false) const {
    const std::int64_t size = size_of(t);
    return {*in_, store == nullptr ? nullptr : store + first * size, (end - first) * size,
            changing};
  }

  /// Reads or writes an element of a store in double. The host must see the store.
  static double get(const std::byte* store, dtype t, std::int64_t i) {
    return with_float_type(
        t, [&]<class T>(T) { return convert<double>(reinterpret_cast<const T*>(store)[i]); });
  }
  static void set(std::byte* store, dtype t, std::int64_t i, double x) {
    with_float_type(t, [&]<class T>(T) { reinterpret_cast<T*>(store)[i] = convert<T>(x); });
  }
  /// Converts n elements at `from` to the elements from `first` on of `to`. The host must see both.
  static void convert_run(const std::byte* from, dtype t, std::byte* to, dtype u,
                          std::int64_t first, std::int64_t n) {
    if (t == u) {
      std::copy_n(from, n * size_of(t), to + first * size_of(t));
      return;
    }
    with_float_type(t, [&]<class From>(From) {
      with_float_type(u, [&]<class To>(To) {
        std::transform(reinterpret_cast<const From*>(from), reinterpret_cast<const From*>(from) + n,
                       reinterpret_cast<To*>(to) + first, [](From x) { return convert<To>(x); });
      });
    });
  }
  /// Returns the master value of a weight, which training updates, if this rank holds it, else the
  /// weight.
  double weight(std::int64_t i) const {
    double x = element(weights(), precision_.weight, i);
    if (mastered_)
      each_state(i, 1, [&](std::int64_t, std::int64_t at, std::int64_t) {
        x = element(masters(), precision_.master, at);
      });
    return x;
  }
  void set_weight(std::int64_t i, double x) { set_weights(i, {&x, 1}); }
  /// Sets weights from the first one on, and their masters.
  void set_weights(std::int64_t first, std::span<const double> x) {
    put(weights(), precision_.weight, first, x);
    if (!mastered_) return;
    each_state(first, std::ssize(x), [&](std::int64_t i, std::int64_t at, std::int64_t n) {
      put(masters(), precision_.master, at,
          x.subspan(static_cast<std::size_t>(i - first), static_cast<std::size_t>(n)));
    });
  }
  /// Returns an element of a store.
  double element(const std::byte* store, dtype t, std::int64_t i) const {
    std::byte one[sizeof(double)];
    in_->read(one, store + i * size_of(t), size_of(t));
    return get(one, t, 0);
  }
  /// Writes the bytes of a store of type t from element `first` on.
  void put_bytes(std::byte* store, dtype t, std::int64_t first, std::span<const std::byte> bytes) {
    in_->write(store + first * size_of(t), bytes.data(), std::ssize(bytes));
  }

  /// Sets one matrix of an encoded parameter, given whole, as far as this rank holds it: its number
  /// among the parameter's matrices, and its elements.
  void set_matrix(const parameter_ref& r, std::int64_t number, std::span<const float> x) {
    const parameter_encoding& encoding = *r.info->encoding;
    std::vector<float> scratch(x.size() / static_cast<std::size_t>(encoding.block));
    const std::int64_t matrices = global_size(*r.v).n / std::ssize(x);
    std::vector<std::byte> made[max_arrays];
    std::byte* to[max_arrays]{};
    const graph& g = *r.part->g;
    const auto elements = [&](int k) { return global_size(g.at(r.info->arrays[k])).n / matrices; };
    for (int k = 0; k < encoding.count; ++k) {
      made[k].resize(static_cast<std::size_t>(elements(k) * size_of(encoding.arrays[k].type)));
      to[k] = made[k].data();
    }
    encoding.encode_matrix(x, scratch, to);
    const std::span<const std::byte> arrays[max_arrays] = {made[0], made[1], made[2]};
    put_matrix(r, number, std::ssize(x), arrays);
  }
  /// Sets such a matrix of so many elements by its arrays.
  void put_matrix(const parameter_ref& r, std::int64_t number, std::int64_t elements,
                  std::span<const std::span<const std::byte>> arrays) {
    const parameter_encoding& encoding = *r.info->encoding;
    const std::int64_t matrices = global_size(*r.v).n / elements;
    for (std::size_t k = 0; k < static_cast<std::size_t>(encoding.count); ++k) {
      const stored_array& array = encoding.arrays[k];
      const auto at = held_.find(r.name + "." + array.name);
      if (at == held_.end()) continue;
      const std::int64_t size = size_of(array.type), each = global_size(*at->second.v).n / matrices,
                         first = number * each;
      held(at->second, {})
          .each_contiguous(
              {first}, {first + each}, [&](global_count of, std::int64_t i, std::int64_t n) {
                put_bytes(weights(), array.type, i,
                          arrays[k].subspan(static_cast<std::size_t>((of.n - first) * size),
                                            static_cast<std::size_t>(n * size)));
              });
    }
  }

  /// Names the first element of a parameter whose weight or moment is not finite:
  /// "layers.0.mlp.up.weight[3] is inf". Empty if all are finite.
  std::string nonfinite() const {
    return first_nonfinite_of({{"", weights(), precision_.weight},
                               {"the master of ", masters(), precision_.master},
                               {"the first moment of ", first_moments(), precision_.moment},
                               {"the second moment of ", second_moments(), precision_.moment}});
  }
  /// Names the first weight that is not finite, as nonfinite() does.
  std::string nonfinite_weight() const {
    return first_nonfinite_of({{"", weights(), precision_.weight}});
  }

  /// Initialises the weights: each is a function of (seed, parameter name, logical element),
  /// independent of the layout. Normal values come by Box and Muller from 53-bit uniforms.
  void initialise(std::uint64_t seed) { initialise(seed, false); }
  /// Initialises the factors of an adapter alone, whose model is loaded.
  void initialise_added(std::uint64_t seed) { initialise(seed, true); }
  /// Sets the rows that pad a parameter to zero.
  void clear_padding() {
    for_each_parameter(*program_, [&](const parameter_ref& r) {
      const global_count valid = unpadded_size(*r.v, *r.info);
      if (valid == global_size(*r.v) || r.info->encoding != nullptr) return;
      boxes_of(r).each_contiguous(
          {}, r.count, [&](local_count first, global_count at, std::int64_t n) {
            const std::int64_t padding = std::clamp<std::int64_t>(valid.n - at.n, 0, n),
                               begin = r.offset + first.n + padding;
            clear(weights(), precision_.weight, begin, n - padding);
            if (!mastered_) return;
            each_state(begin, n - padding,
                       [&](std::int64_t, std::int64_t state, std::int64_t count) {
                         clear(masters(), precision_.master, state, count);
                       });
          });
    });
  }

private:
  static constexpr std::int64_t block = most_in_block; ///< elements that a thread initialises at a
                                                       ///< time

  /// Writes the table of origins: for each bucket of parameters, which elements of which parameters
  /// it has, in their order.
  void make_origins(const program_view& p, const char* remedy) {
    const registry& r = entries();
    std::int64_t all = 0;
    for (int k = 0; k < r.bucket_count; ++k) {
      origins_begin_[static_cast<unsigned>(k)] = all;
      if (!r.buckets[static_cast<unsigned>(k)].frozen)
        all += r.buckets[static_cast<unsigned>(k)].origins;
    }
    std::vector<std::array<std::int64_t, numbers_of_origin>> made(static_cast<std::size_t>(all));
    std::array<std::int64_t, max_buckets> next = origins_begin_;
    for_each_parameter(p, [&](const parameter_ref& of) {
      const registry::bucket& bucket = r.buckets[static_cast<unsigned>(of.bucket)];
      if (bucket.frozen) return;
      auto& row = made.at(static_cast<std::size_t>(next[static_cast<unsigned>(of.bucket)]++));
      row[0] = of.offset - bucket.offset, row[1] = of.count.n;
      row[2] = static_cast<std::int64_t>(hash(of.name));
      for (int d = 0; d < max_rank; ++d) { // the last dims; missing ones have one element
        const int i = d - (max_rank - of.v->rank);
        const stretch_of_dim s =
            i < 0 ? stretch_of_dim{0, 1} : stretch_of(*of.ranks, *of.v, i, at_);
        const std::size_t at = 3 + 3 * static_cast<std::size_t>(d);
        row[at] = i < 0 ? 1 : of.v->dims[i].n, row[at + 1] = s.count, row[at + 2] = s.first;
      }
    });
    for (int k = 0; k < r.bucket_count; ++k) {
      const registry::bucket& bucket = r.buckets[static_cast<unsigned>(k)];
      const std::int64_t begin = origins_begin_[static_cast<unsigned>(k)],
                         end = next[static_cast<unsigned>(k)];
      if (end - begin != (bucket.frozen ? 0 : bucket.origins))
        throw error(exit_code::internal, "a bucket of the registry has " +
                                             std::to_string(end - begin) + " parameters, not " +
                                             std::to_string(bucket.origins));
      std::sort(made.begin() + begin, made.begin() + end);
    }
    const auto bytes = static_cast<std::int64_t>(made.size() * sizeof made[0]);
    origins_ = arena(*in_, bytes, "the places of moments", remedy);
    in_->write(origins_.data(), made.data(), bytes);
  }

  /// Encodes x as the elements from `first` on of this rank's part of a parameter. x is whole
  /// blocks of the encoding.
  void encode(const parameter_ref& r, std::int64_t first, std::span<const double> x) {
    const parameter_encoding& encoding = *r.info->encoding;
    const graph& g = *r.part->g;
    const registry::entry& e =
        entries().find(r.part->index, static_cast<int>(r.info - g.parameters));
    const std::int64_t blocks = std::ssize(x) / encoding.block, begin = first / encoding.block;
    std::vector<std::byte> made[max_arrays];
    std::int64_t each[max_arrays]{};
    for (int k = 0; k < encoding.count; ++k) {
      each[k] = local_bytes(g.ranks, g.at(r.info->arrays[k])) / (r.count.n / encoding.block);
      made[k].resize(static_cast<std::size_t>(blocks * each[k]));
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      std::byte* to[max_arrays]{};
      for (int k = 0; k < encoding.count; ++k) to[k] = made[k].data() + b * each[k];
      encoding.encode(x.data() + b * encoding.block, to);
    }
    for (int k = 0; k < encoding.count; ++k)
      in_->write(weights() + entries().address(e, k, r.index) + begin * each[k], made[k].data(),
                 blocks * each[k]);
  }

  /// Returns whether this rank is the one that answers for a parameter: of the ranks that hold the
  /// same elements, the one with coordinate 0 on all axes that do not tell them apart.
  bool answers_for(const parameter_ref& r, bool states) const {
    if (r.copied) return false;
    axis_set cut;
    for (int a = 0; a < axes; ++a)
      if (const auto one = static_cast<axis>(a); r.v->at[one].s == state::shard)
        cut = cut.with(one);
    const registry::bucket& bucket = entries().buckets[static_cast<unsigned>(r.bucket)];
    if (states && bucket.share < bucket.count)
      cut = axis_set::of_bits(cut.bits | bucket.scattered.bits);
    const axis_set all = cut.meets(expert_axes) ? expert_axes : dense_axes;
    for (int a = 0; a < axes; ++a)
      if (const auto one = static_cast<axis>(a);
          all.has(one) && !cut.has(one) && at_[static_cast<unsigned>(a)] != 0)
        return false;
    return true;
  }

  /// Writes elements of a store from `first` on.
  void put(std::byte* store, dtype t, std::int64_t first, std::span<const double> x) {
    std::byte some[block * sizeof(double)];
    for (std::int64_t i = 0, n = 0; i < std::ssize(x); i += n) {
      n = std::min(block, std::ssize(x) - i);
      for (std::int64_t k = 0; k < n; ++k) set(some, t, k, x[static_cast<std::size_t>(i + k)]);
      in_->write(store + (first + i) * size_of(t), some, n * size_of(t));
    }
  }
  void clear(std::byte* store, dtype t, std::int64_t first, std::int64_t n) {
    in_->fill(store + first * size_of(t), 0, n * size_of(t));
  }

  struct named_store {
    const char* of;
    std::byte* data; ///< null: the rank has no such store
    dtype type;
  };
  std::string first_nonfinite_of(std::initializer_list<named_store> list) const {
    std::string found;
    for_each_array(*program_, [&](const parameter_ref& r, dtype type) {
      for (named_store s : list) {
        if (r.info->encoding != nullptr) { // encoded: its arrays of numbers lie beside the weights
          if (s.data != weights() || !value{.type = type}.differentiable()) continue;
          s.type = type;
        }
        if (s.data == nullptr || !found.empty()) continue;
        const auto look = [&](std::int64_t first, std::int64_t begin, std::int64_t n) {
          const host_accessor here = seen(s.data, s.type, begin, begin + n);
          const auto wrong = first_nonfinite_in_parallel(
              {here.data(), static_cast<std::size_t>(n * size_of(s.type))}, storage_of(s.type));
          if (!wrong || !found.empty()) return;
          const double x = get(here.data(), s.type, *wrong);
          const global_count at = boxes_of(r)[{first - r.offset + *wrong}];
          found = std::string(s.of) + r.name + "[" + std::to_string(at.n) + "] is " +
                  (std::isnan(x) ? "nan"
                   : x > 0       ? "inf"
                                 : "-inf");
        };
        if (s.data == weights()) look(r.offset, r.offset, r.count.n);
        else each_state(r.offset, r.count.n, look);
      }
    });
    return found;
  }
  static std::uint64_t hash(const std::string& s) { // FNV-1a
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return h;
  }
  void initialise(std::uint64_t seed, bool added_alone) {
    for_each_parameter(*program_, [&](const parameter_ref& r) {
      if (added_alone && !r.info->added) return;
      const std::uint64_t key = random_key(seed, hash(r.name));
      if (r.info->encoding != nullptr && r.info->encoding->encode_matrix != nullptr)
        return initialise_matrices(r, key);
      const global_count valid = unpadded_size(*r.v, *r.info);
      const boxes held = boxes_of(r);
      const std::int64_t piece = r.info->encoding != nullptr
                                     ? block / r.info->encoding->block * r.info->encoding->block
                                     : block;
      parallel_for((r.count.n + piece - 1) / piece, [&](std::int64_t b) {
        double x[block]{};
        const std::int64_t begin = b * piece, end = std::min(r.count.n, begin + piece);
        held.each_contiguous(
            {begin}, {end}, [&](local_count first, global_count at, std::int64_t n) {
              for (std::int64_t i = 0; i < n; ++i) {
                double& y = x[first.n - begin + i];
                y = at.n + i >= valid.n
                        ? 0
                        : initial_number(*r.info, key, static_cast<std::uint64_t>(at.n + i));
              }
            });
        const std::span<const double> made(x, static_cast<std::size_t>(end - begin));
        if (r.info->encoding != nullptr) encode(r, begin, made);
        else set_weights(r.offset + begin, made);
      });
    });
  }

  /// Initialises a parameter whose matrices are encoded as a whole.
  void initialise_matrices(const parameter_ref& r, std::uint64_t key) {
    const std::int64_t all = global_size(*r.v).n,
                       matrices = r.v->dims[0].d == dim::expert ? r.v->dims[0].n : 1,
                       n = all / matrices;
    std::vector<float> x(static_cast<std::size_t>(n));
    for (std::int64_t m = 0; m < matrices; ++m) {
      parallel_for((n + block - 1) / block, [&](std::int64_t b) {
        for (std::int64_t i = b * block; i < std::min(n, (b + 1) * block); ++i)
          x[static_cast<std::size_t>(i)] = static_cast<float>(
              initial_number(*r.info, key, static_cast<std::uint64_t>(m * n + i)));
      });
      set_matrix(r, m, x);
    }
  }
  /// Returns initial number i of a parameter.
  static double initial_number(const parameter_info& info, std::uint64_t key, std::uint64_t i) {
    switch (info.how) {
    case init::ones: return 1;
    case init::normal: return info.std * gaussian(key, i);
    case init::uniform: return info.std * uniform_number(key, i);
    default: return 0;
    }
  }

  /// Returns standard normal number i of a key; a pair of uniforms gives two of them.
  static double gaussian(std::uint64_t key, std::uint64_t i) {
    const auto w = philox(key, i / 2);
    const auto uniform53 = [](std::uint32_t hi, std::uint32_t lo) {
      return (static_cast<double>((std::uint64_t{hi} << 21) | (lo >> 11)) + 0.5) * 0x1p-53;
    };
    const double r = std::sqrt(-2 * std::log(uniform53(w[0], w[1]))),
                 a = 2 * std::numbers::pi * uniform53(w[2], w[3]);
    return i % 2 == 0 ? r * std::cos(a) : r * std::sin(a);
  }

  /// Returns uniform number i of a key, whose mean is 0 and whose variance is 1.
  static double uniform_number(std::uint64_t key, std::uint64_t i) {
    const auto w = philox(key, i / 2);
    const std::uint32_t hi = w[i % 2 * 2], lo = w[i % 2 * 2 + 1];
    const double u = (static_cast<double>((std::uint64_t{hi} << 21) | (lo >> 11)) + 0.5) * 0x1p-53;
    return std::numbers::sqrt3 * (2 * u - 1);
  }

  const program_view* program_;
  memory_space* in_;
  coordinates at_;
  precision_policy precision_;
  bool mastered_ = false; ///< masters lie apart from weights; a rank may hold none
  std::int64_t total_;
  std::map<std::string, parameter_ref> held_;      ///< parameters that this rank holds, by name
  std::array<std::int64_t, max_buckets> number_{}; ///< this rank's number among those that share a
                                                   ///< bucket
  arena weights_, gradients_, masters_, first_, second_, origins_;
  std::array<std::int64_t, max_buckets> origins_begin_{}; ///< index of the first origin of each
                                                          ///< bucket
};

} // namespace mc
