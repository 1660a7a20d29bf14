// An adapter on its way from one folder to another: its factors in other layouts, and merged into
// the weights of its base, W + scale B A.
#pragma once

#include <megacpp/hf/adapter.hpp>
#include <megacpp/hf/export_folder.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The factors of an adapter in a folder, in double, as the program's parameters have them: by
/// their names. Factors that the folder does not have are not there.
class adapter_values {
public:
  /// The values of B are for the scale of the program, or with `as_stored` as the folder has them.
  explicit adapter_values(const adapter_in_folder& in, bool as_stored = false) {
    std::vector<double> buffer;
    for (weights_in_folder::match m : in.matches()) {
      if (as_stored) m.factor = 1;
      for (const hf_tensor::source& p : m.ours.sources)
        if (std::vector<double>& all = by_name_[p.of.name]; all.empty())
          all.resize(static_cast<std::size_t>(global_size(*p.of.v).n));
      weights_in_folder::read(m, buffer, [&](std::int64_t first, std::span<const double> x) {
        each_run(m.ours, first, x.size(),
                 [&](std::vector<double>& all, std::int64_t i, std::int64_t element) {
                   all[static_cast<std::size_t>(i)] = x[static_cast<std::size_t>(element - first)];
                 });
      });
    }
  }

  /// Returns a factor; null if the folder does not have it.
  const std::vector<double>* find(const std::string& name) const {
    const auto at = by_name_.find(name);
    return at == by_name_.end() ? nullptr : &at->second;
  }
  /// Returns the elements of a tensor of the same adapter.
  std::vector<double> elements_of(const hf_tensor& t) {
    std::vector<double> out(static_cast<std::size_t>(t.elements()));
    each_run(t, 0, out.size(),
             [&](const std::vector<double>& all, std::int64_t i, std::int64_t element) {
               out[static_cast<std::size_t>(element)] = all[static_cast<std::size_t>(i)];
             });
    return out;
  }

private:
  /// Calls f(values of a parameter, number in it, number in the tensor) for elements of a tensor.
  template <class F> void each_run(const hf_tensor& t, std::int64_t first, std::size_t count, F f) {
    for (const hf_tensor::source& p : t.sources) {
      std::vector<double>& all = by_name_.at(p.of.name);
      p.runs(first, static_cast<std::int64_t>(count),
             [&](std::int64_t from, std::int64_t n, std::int64_t element) {
               for (std::int64_t k = 0; k < n; ++k) f(all, from + k, element + k * p.strides[2]);
             });
    }
  }
  std::map<std::string, std::vector<double>> by_name_;
};

/// Adds scale B A to the weights of an adapter's layers while they are written. What was written is
/// then compared, in double and apart from that sum: for numbers v_i of every layer, each row of
/// W' v must be W v + scale B (A v), but for the rounding of W' to its type.
class merging final : public detail::tensor_change {
public:
  merging(const program_view& p, const adapter_in_folder& in) : values_(in) {
    for (const hf_tensor& t : saved_modules(p))
      if (in.has_module(t.name))
        replaced_[t.name.substr(std::string_view("base_model.model.").size())] =
            values_.elements_of(t);
    const detail::adapter_layers layers(p);
    for (const auto& l : layers.all())
      for (const parameter_ref& b : l.second) {
        const std::vector<double>*const a = values_.find(l.first.name), *const second =
                                                                            values_.find(b.name);
        if (a == nullptr || second == nullptr) continue;
        const std::int64_t experts = l.experts ? b.v->dims[0].n : 1, r = b.v->back().n;
        const std::string name = b.name.substr(0, b.name.rfind(second_factor_name));
        layers_[name + "weight"] = {
            a->data(),
            second->data(),
            r,
            std::ssize(*a) / (experts * r),
            std::ssize(*second) / (experts * r),
            l.experts ? p.numbers.adapter.scale() : p.numbers.adapter.scale_of(l.name)};
      }
  }

  bool changes(const hf_tensor& t) const override {
    return replaced_.contains(t.name) ||
           std::ranges::any_of(
               t.sources, [&](const hf_tensor::source& p) { return layers_.contains(p.of.name); });
  }
  void change(const hf_tensor& t, std::int64_t first, std::span<double> x) override {
    if (const auto whole = replaced_.find(t.name); whole != replaced_.end())
      std::copy_n(whole->second.begin() + first, x.size(), x.begin());
    each_segment(t, first, x.size(), [&](const layer& l, rows& sums, const segment& s) {
      const double* const a = l.first + s.expert(l) * l.r * l.in + s.column;
      const double* const b = l.second + s.row * l.r;
      double before = 0;
      for (std::int64_t k = 0; k < s.count; ++k) before += x[s.at(k, first)] * probe(s.column + k);
      sums[static_cast<std::size_t>(s.row)].expected += before;
      for (std::int64_t j = 0; j < l.r; ++j) {
        const double factor = l.scale * b[j];
        for (std::int64_t k = 0; k < s.count; ++k) x[s.at(k, first)] += factor * a[j * l.in + k];
      }
    });
  }
  void written(const hf_tensor& t, std::int64_t first, std::span<const double> x) override {
    each_segment(t, first, x.size(), [&](const layer&, rows& sums, const segment& s) {
      row_sums& row = sums[static_cast<std::size_t>(s.row)];
      for (std::int64_t k = 0; k < s.count; ++k) {
        const double product = x[s.at(k, first)] * probe(s.column + k);
        row.found += product, row.rounded += std::abs(product);
      }
    });
  }
  void end(const hf_tensor& t, int bits, communicator& hosts) override {
    each_layer(t, [&](const hf_tensor::source& p, const layer& l, rows& sums) {
      static_assert(sizeof(row_sums) == 3 * sizeof(double));
      hosts.run(exchange::all_reduce(everyone, dtype::f64, sums.data(), sums.data(),
                                     3 * std::ssize(sums)));
      const std::int64_t begin = p.first.n / l.in, count = p.elements() / l.in;
      for (std::int64_t row = begin; row < begin + count; ++row) check(t, l, row, sums, bits);
      checked_ += count;
      sums_.erase(p.of.name);
    });
  }
  /// Returns how many rows of weights were compared.
  std::int64_t checked() const { return checked_; }

private:
  struct layer {
    const double *first, *second; ///< A (E, r, in) and B (E, out, r)
    std::int64_t r, in, out;
    double scale;
  };
  struct row_sums {
    double expected = 0, found = 0; ///< W v and W' v
    double rounded = 0;             ///< sum of |W'_i v_i|
  };
  using rows = std::vector<row_sums>;
  /// Elements of one row of a weight: where they lie in the weight, and in the tensor.
  struct segment {
    std::int64_t row, column, count, element, stride;

    std::int64_t expert(const layer& l) const { return row / l.out; }
    std::size_t at(std::int64_t k, std::int64_t first) const {
      return static_cast<std::size_t>(element + k * stride - first);
    }
  };
  /// Returns a number between 0.5 and 1.5 for each column.
  static double probe(std::int64_t column) {
    const auto bits = static_cast<std::uint64_t>(column + 1) * 0x9e3779b97f4a7c15u;
    return 0.5 + static_cast<double>(bits >> 11) * 0x1p-53;
  }

  /// Calls f(source, layer, its sums) for all parts of a tensor that belong to a layer.
  template <class F> void each_layer(const hf_tensor& t, F f) {
    for (const hf_tensor::source& p : t.sources) {
      const auto at = layers_.find(p.of.name);
      if (at == layers_.end()) continue;
      rows& sums = sums_[p.of.name];
      sums.resize(static_cast<std::size_t>(global_size(*p.of.v).n / at->second.in));
      f(p, at->second, sums);
    }
  }
  /// Calls f(layer, its sums, segment) for all elements of a stretch that belong to a layer.
  template <class F>
  void each_segment(const hf_tensor& t, std::int64_t first, std::size_t count, F f) {
    each_layer(t, [&](const hf_tensor::source& p, const layer& l, rows& sums) {
      p.runs(
          first, static_cast<std::int64_t>(count),
          [&](std::int64_t from, std::int64_t n, std::int64_t element) {
            for (std::int64_t k = 0, most = 0; k < n; k += most) {
              const std::int64_t column = (from + k) % l.in;
              most = std::min(n - k, l.in - column);
              f(l, sums,
                segment{(from + k) / l.in, column, most, element + k * p.strides[2], p.strides[2]});
            }
          });
    });
  }
  void check(const hf_tensor& t, const layer& l, std::int64_t row, const rows& sums, int bits) {
    const row_sums& s = sums[static_cast<std::size_t>(row)];
    const double* const a = l.first + row / l.out * l.r * l.in;
    double added = 0, largest = std::abs(s.expected);
    for (std::int64_t j = 0; j < l.r; ++j) {
      double narrow = 0;
      for (std::int64_t i = 0; i < l.in; ++i) narrow += a[j * l.in + i] * probe(i);
      const double one = l.scale * l.second[row * l.r + j] * narrow;
      added += one, largest = std::max(largest, std::abs(one));
    }
    const double least = static_cast<double>(l.in) * 0x1p-133; // of elements below the normal range
    const double most = std::ldexp(s.rounded, -bits) + 1e-11 * (s.rounded + largest) + least;
    if (!(std::abs(s.found - (s.expected + added)) <= most))
      throw error(
          exit_code::internal,
          fmt::format("row {} of tensor \"{}\" is not the sum of its weight and its adapter, "
                      "as a product with fixed numbers shows: {:.9g}, not {:.9g}; nothing "
                      "is kept of this export",
                      row, printable(t.name), s.found, s.expected + added));
  }

  adapter_values values_;
  std::map<std::string, std::vector<double>> replaced_; ///< tensors that were trained as a whole
  std::map<std::string, layer> layers_;                 ///< by the name of the weight
  std::map<std::string, rows> sums_;                    ///< by the name of the weight
  std::int64_t checked_ = 0;
};

/// Writes the adapter of a folder as another folder of PEFT, in a layout and a type. All ranks call
/// it. Throws mc::error.
inline saved_model export_adapter_folder(const adapter_in_folder& in,
                                         const std::filesystem::path& to, const program_view& p,
                                         const adapter_base& base, adapter_layout layout,
                                         std::optional<storage_type> as,
                                         communicator& hosts = self::hosts(),
                                         std::span<const extra_file> extra_files = {}) {
  const auto has = [&](const std::string& name, int number) { return in.has(name, number); };
  adapter_values values(in, true);
  detail::layers_by_name layers(p);
  layers.keep(has);
  if (layout == adapter_layout::vllm && !layers.all_experts_or_none())
    throw error(exit_code::mismatch,
                fmt::format("the adapter in {} has some of a block's matrices of experts, and vLLM "
                            "takes all or none; export it in another layout",
                            in.path()));
  if (layout == adapter_layout::vllm && !in.config().saved.empty())
    throw error(exit_code::mismatch,
                fmt::format("the adapter in {} has modules that are trained as a whole, and vLLM "
                            "takes none; export it in another layout, or merged",
                            in.path()));
  // PEFT takes the names of a dense MLP for those of experts, where a model has both
  // (peft/utils/transformers_weight_conversion.py, _convert_peft_config_moe).
  if (const std::string dense = layers.dense_beside_experts();
      layout == adapter_layout::peft && !dense.empty())
    throw error(exit_code::mismatch,
                fmt::format("the adapter in {} has {}, which PEFT 0.19.1 and later take for "
                            "matrices of experts, as other blocks have them; export it in the "
                            "layout peft-0.18 or vllm, or merged",
                            in.path(), dense));
  // The model that the adapter was trained beside stays known, whatever the command names.
  adapter_base trained_beside = in.base().is_known() ? in.base() : base;
  trained_beside.folder = base.folder;
  detail::outgoing_model m = detail::outgoing_adapter(
      written_adapter_config(p, peft_numbers(in.config()), layers, layout, base.folder),
      trained_beside);
  for (const auto& [name, text] : extra_files) m.texts[name] = text;
  const auto add = [&](const hf_tensor& t) {
    const storage_type type = as.value_or(in.type());
    m.tensors.push_back({t.name, type, t.shape, [&values, t, type](const byte_sink& out) {
                           const std::vector<double> x = values.elements_of(t);
                           const auto write = [&]<class T>(T) {
                             std::vector<T> y(x.size());
                             std::ranges::transform(x, y.begin(),
                                                    [](double v) { return convert<T>(v); });
                             out(std::as_bytes(std::span(y)));
                           };
                           if (bits_of(type) == 16) write(bf16{});
                           else if (bits_of(type) == 64) write(double{});
                           else write(float{});
                         }});
  };
  for (const adapter_tensor& t : adapter_tensors(
           p, layout,
           [&](const adapted_layer&l, std::int64_t) {
             return l.experts && layout == adapter_layout::vllm ? in.config().r
                                                                : in.config().r_of(l.whole);
           },
           has)) {
    if (!in.has(t.layer, t.number)) continue;
    // Other layouts have other names, and so patterns would mean other experts.
    const bool renamed = (layout == adapter_layout::vllm) != (in.layout() == adapter_layout::vllm);
    if (const std::string layer = in.with_own_numbers(t, true); renamed && !layer.empty())
      throw error(exit_code::mismatch,
                  fmt::format("rank_pattern or alpha_pattern of the adapter in {} gives {} numbers "
                              "of its own, which it would not have in the layout {}; export it in "
                              "another layout",
                              in.path(), layer, layout == adapter_layout::vllm ? "vllm" : "peft"));
    add(t.tensor);
  }
  for (const hf_tensor& t : saved_modules(p))
    if (in.has_module(t.name)) add(t);
  folder_writer out = hosts.rank() == 0 ? folder_writer(to.string(), adapter_kind)
                                        : folder_writer::of_another_rank();
  const saved_model saved = detail::write_model(out, std::move(m), ~std::uint64_t{0});
  out.commit();
  return saved;
}

} // namespace mc
