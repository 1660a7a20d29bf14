// The flat stores of one rank: weights, main grads, masters and moments share the registry's
// offsets; behind the main grads lie those of tied uses.
#pragma once

#include <megacpp/checkpoint/finite.hpp>
#include <megacpp/exec/host_memory.hpp>
#include <megacpp/num/random.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>
#include <span>
#include <string>

namespace mc {

/// One parameter of one layer, as the stores hold it.
struct parameter_ref {
  std::string name;         ///< "scope.name" in stem and head, "layers.<i>.scope.name" in blocks
  std::string local_name;   ///< "scope.name"
  int layer = -1;           ///< -1 outside the blocks
  const value* v = nullptr; ///< dims, placement
  const parameter_info* info = nullptr;
  const mesh* ranks = nullptr; ///< that v is placed over
  std::int64_t offset = 0;     ///< elements, in any of the stores
  local_count count;           ///< elements from there
};

/// f(parameter_ref) for every parameter once, tied ones left out, in the order of the model.
template <class F> void for_each_parameter(const program_view& p, F f) {
  const auto visit = [&](const part_view& part, int layer, int index) {
    for (int i = 0; i < part.g->parameter_count; ++i) {
      const parameter_info& info = part.g->parameters[static_cast<unsigned>(i)];
      if (info.tied) continue;
      const registry::entry& e = p.stores->find(part.index, i);
      parameter_ref r;
      r.v = &part.g->at(info.v), r.info = &info, r.ranks = &part.g->ranks, r.layer = layer;
      r.local_name = std::string(r.v->scope) + "." + r.v->name;
      r.name = layer < 0 ? r.local_name : "layers." + std::to_string(layer) + "." + r.local_name;
      r.offset = e.offset + index * e.stride, r.count = e.count;
      f(r);
    }
  };
  for_each_use(
      p.layers, p.kinds(), 1, 0, [&](int l) { return p.kind_of[static_cast<unsigned>(l)]; },
      [&](const part_use& u) {
        visit(p.part(u.part), u.layer < p.layers ? u.layer : -1, u.index);
      });
}

/// Throws mc::error(exit_code::mismatch) if ranks hold only parts of a parameter; `file` is what
/// one rank writes whole.
inline void require_whole(const program_view& p, const parameter_ref& r, const char* file) {
  if (boxes(*r.ranks, *r.v, {}).whole()) return;
  throw error(exit_code::mismatch, p.name + " shards the parameter " + r.name +
                                       " over ranks, and " + file +
                                       " is written by one rank: use a preset with tp, "
                                       "pp, cp and ep of 1");
}

/// The same of every parameter of a program.
inline void require_whole(const program_view& p, const char* file) {
  for_each_parameter(p, [&](const parameter_ref& r) { require_whole(p, r, file); });
}

class stores {
public:
  /// `at`: the rank whose stores they are. They lie in a memory space, which must outlive them.
  stores(const program_view& p, bool training, const coordinates& at = {},
         memory_space& in = host_memory::of_process())
      : program_(&p),
        in_(&in),
        at_(at),
        type_(p.numbers.type),
        main_(accumulator_of(type_)),
        total_(p.stores->total) {
    constexpr const char* smaller = "a smaller model";
    weights_ = arena(in, total_ * size_of(type_), "weights", smaller);
    if (!training) return;
    gradients_ = arena(in, p.stores->gradients * size_of(main_), "main grads", smaller);
    if (type_ != main_) masters_ = arena(in, total_ * size_of(main_), "master weights", smaller);
    first_ = arena(in, total_ * size_of(main_), "first moments", smaller);
    second_ = arena(in, total_ * size_of(main_), "second moments", smaller);
  }

  const program_view& program() const { return *program_; }
  const coordinates& coordinate() const { return at_; }
  /// What lies here of a parameter.
  boxes boxes_of(const parameter_ref& r) const { return {*r.ranks, *r.v, at_}; }
  dtype type() const { return type_; }
  dtype main_type() const { return main_; }
  std::int64_t total() const { return total_; }
  std::byte* weights() const { return weights_.data(); }
  std::byte* gradients() const { return gradients_.data(); }
  void clear_gradients() const { in_->fill(gradients(), 0, gradients_.size()); }
  std::byte* masters() const { return type_ == main_ ? weights_.data() : masters_.data(); }
  std::byte* first_moments() const { return first_.data(); }
  std::byte* second_moments() const { return second_.data(); }
  std::int64_t bytes() const {
    return weights_.size() + gradients_.size() + masters_.size() + first_.size() + second_.size();
  }

  /// Where what the update reads and writes of these stores lies.
  void give(input_addresses& update) const {
    const std::int64_t main = size_of(main_), type = size_of(type_);
    const registry& r = *program_->stores;
    for_each_tie(r, [&](const registry::entry& e, int k) {
      update.set(feed::declared_gradient, gradients() + e.offset * main, k);
      update.set(feed::tied_gradient, gradients() + e.gradient * main, k);
    });
    for (int k = 0; k < r.group_count; ++k) {
      const std::int64_t at = r.groups[k].offset;
      update.set(feed::gradient, gradients() + at * main, k);
      update.set(feed::master, masters() + at * main, k);
      update.set(feed::first_moment, first_moments() + at * main, k);
      update.set(feed::second_moment, second_moments() + at * main, k);
      update.set(feed::weight, weights() + at * type, k);
    }
  }

  /// Elements [first, end) of a store of type t, as the host sees them; nothing of a store that is
  /// not there.
  host_view seen(std::byte* store, dtype t, std::int64_t first, std::int64_t end,
                 bool changing = false) const {
    const std::int64_t size = size_of(t);
    return {*in_, store == nullptr ? nullptr : store + first * size, (end - first) * size,
            changing};
  }

  /// Reads or writes one element of a store in double, where the host sees it.
  static double get(const std::byte* store, dtype t, std::int64_t i) {
    switch (t) {
    case dtype::f64: return reinterpret_cast<const double*>(store)[i];
    case dtype::bf16: return static_cast<float>(reinterpret_cast<const bf16*>(store)[i]);
    default: return reinterpret_cast<const float*>(store)[i];
    }
  }
  static void set(std::byte* store, dtype t, std::int64_t i, double x) {
    switch (t) {
    case dtype::f64: reinterpret_cast<double*>(store)[i] = x; break;
    case dtype::bf16: reinterpret_cast<bf16*>(store)[i] = bf16(static_cast<float>(x)); break;
    default: reinterpret_cast<float*>(store)[i] = static_cast<float>(x); break;
    }
  }
  /// The master value of a weight, which training updates; inference has the weight alone.
  double weight(std::int64_t i) const {
    return masters_.size() != 0 || type_ == main_ ? element(masters(), main_, i)
                                                  : element(weights(), type_, i);
  }
  void set_weight(std::int64_t i, double x) { set_weights(i, {&x, 1}); }
  /// Weights from the first one on, and their masters.
  void set_weights(std::int64_t first, std::span<const double> x) {
    put(weights(), type_, first, x);
    if (masters_.size() != 0) put(masters(), main_, first, x);
  }
  /// One element of a store.
  double element(const std::byte* store, dtype t, std::int64_t i) const {
    std::byte one[sizeof(double)];
    in_->read(one, store + i * size_of(t), size_of(t));
    return get(one, t, 0);
  }
  /// Bytes of a store of main_type(), from element `first` on.
  void put_bytes(std::byte* store, std::int64_t first, std::span<const std::byte> bytes) {
    in_->write(store + first * size_of(main_), bytes.data(), std::ssize(bytes));
  }

  /// The first parameter of the model of which a weight or a moment is not finite, with the
  /// element: "layers.0.mlp.up.weight[3] is inf". Empty if all are.
  std::string nonfinite() const {
    return first_nonfinite_of({{"", weights(), type_},
                               {"the master of ", masters(), main_},
                               {"the first moment of ", first_moments(), main_},
                               {"the second moment of ", second_moments(), main_}});
  }
  /// The same of weights alone.
  std::string nonfinite_weight() const { return first_nonfinite_of({{"", weights(), type_}}); }

  /// Initial weights: a function of (seed, parameter name, logical element), whatever the layout.
  /// Normal values by Box and Muller from 53-bit uniforms.
  void initialise(std::uint64_t seed) {
    for_each_parameter(*program_, [&](const parameter_ref& r) {
      const std::uint64_t key = random_key(seed, hash(r.name));
      const global_count valid = unpadded_size(*r.v, *r.info);
      const boxes held = boxes_of(r);
      parallel_for((r.count.n + block - 1) / block, [&](std::int64_t b) {
        const auto run = [&](local_count first, global_count at, std::int64_t n) {
          double x[block];
          for (std::int64_t i = 0; i < n; ++i) {
            x[i] = r.info->how == init::ones ? 1.0 : 0.0;
            if (r.info->how == init::normal)
              x[i] = r.info->std * gaussian(key, static_cast<std::uint64_t>(at.n + i));
            if (at.n + i >= valid.n) x[i] = 0;
          }
          set_weights(r.offset + first.n, {x, static_cast<std::size_t>(n)});
        };
        held.each_run({b * block}, {std::min(r.count.n, (b + 1) * block)}, run);
      });
    });
  }
  /// Sets the rows that pad a parameter to zero.
  void clear_padding() {
    for_each_parameter(*program_, [&](const parameter_ref& r) {
      const global_count valid = unpadded_size(*r.v, *r.info);
      if (valid == global_size(*r.v)) return;
      boxes_of(r).each_run({}, r.count, [&](local_count first, global_count at, std::int64_t n) {
        const std::int64_t padding = std::clamp<std::int64_t>(valid.n - at.n, 0, n);
        clear(weights(), type_, r.offset + first.n + padding, n - padding);
        if (masters_.size() != 0)
          clear(masters(), main_, r.offset + first.n + padding, n - padding);
      });
    });
  }

private:
  static constexpr std::int64_t block = 512; ///< elements that a thread makes at a time

  /// Elements of a store from `first` on.
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
    std::byte* data; ///< null: there is none
    dtype type;
  };
  std::string first_nonfinite_of(std::initializer_list<named_store> list) const {
    std::string found;
    for_each_parameter(*program_, [&](const parameter_ref& r) {
      for (const auto& [of, data, type] : list) {
        if (data == nullptr || !found.empty()) continue;
        const host_view here = seen(data, type, r.offset, r.offset + r.count.n);
        const auto wrong = first_nonfinite_in_parallel(
            {here.data(), static_cast<std::size_t>(r.count.n * size_of(type))}, storage_of(type));
        if (!wrong) continue;
        const double x = get(here.data(), type, *wrong);
        const global_count at = boxes_of(r)[{*wrong}];
        found = std::string(of) + r.name + "[" + std::to_string(at.n) + "] is " +
                (std::isnan(x) ? "nan"
                 : x > 0       ? "inf"
                               : "-inf");
      }
    });
    return found;
  }
  static std::uint64_t hash(const std::string& s) { // FNV-1a
    std::uint64_t h = 0xcbf29ce484222325u;
    for (const char c : s) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
    return h;
  }
  /// Standard normal number i of a key; a pair of uniforms gives two.
  static double gaussian(std::uint64_t key, std::uint64_t i) {
    const auto w = philox(key, i / 2);
    const auto uniform53 = [](std::uint32_t hi, std::uint32_t lo) {
      return (static_cast<double>((std::uint64_t{hi} << 21) | (lo >> 11)) + 0.5) * 0x1p-53;
    };
    const double r = std::sqrt(-2 * std::log(uniform53(w[0], w[1]))),
                 a = 2 * std::numbers::pi * uniform53(w[2], w[3]);
    return i % 2 == 0 ? r * std::cos(a) : r * std::sin(a);
  }

  const program_view* program_;
  memory_space* in_;
  coordinates at_;
  dtype type_, main_;
  std::int64_t total_;
  arena weights_, gradients_, masters_, first_, second_;
};

} // namespace mc
