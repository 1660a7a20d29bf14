// Comparison of derived gradients with central differences, in double, by the interpreter's
// kernels.
#pragma once

#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <kernels.hpp>

namespace mc::directional {

/// Returns the derivative of f at 0 by the five-point central difference, whose error is O(h^4).
inline double central_difference(const std::function<double(double)>& f, double h) {
  return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h);
}

inline std::vector<double> unit_direction(std::mt19937_64& random, std::size_t n) {
  std::normal_distribution<double> normal;
  std::vector<double> d(n);
  double norm = 0;
  for (double& x : d) x = normal(random), norm += x * x;
  for (double& x : d) x /= std::sqrt(norm);
  return d;
}

/// The result of comparing the gradient of one tensor.
struct comparison {
  std::string name;
  double worst = 0; ///< largest |difference quotient - <gradient, direction>| over the directions
  double norm = 0;  ///< norm of the tensor's gradient
};

/// A small graph whose parameters are its differentiable inputs. Its output y (any dims) becomes
/// the scalar <y, dy> for a random dy; dy is 1 if y is a scalar.
class small_graph {
public:
  small_graph(const std::function<var(builder&)>& build, std::uint64_t seed, bool fuse = false) {
    builder b{mesh{}};
    b.g.outputs[0] = build(b).id;
    graph g = derived_graph(b.g);
    if (fuse) g = fused(g);
    g = in_regions(g);
    if (g.wrong.code != fault::none)
      throw std::runtime_error(std::string(code_of(g.wrong.code)) + " " + g.wrong.what.c_str());
    stores_ = make_registry(std::array<const graph*, 1>{&g}, std::array{1});
    part_ = std::make_unique<interpreted_part<cpu>>(g, 0, kernel_table<cpu>::all());
    prepared_.resize(static_cast<unsigned>(part_->g.node_count));
    part_->view().prepare(part_->view(), device_, prepared_.data(), true);
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    weights_.resize(static_cast<std::size_t>(stores_.total));
    gradients_.resize(weights_.size());
    for (double& w : weights_) w = normal(random);
    const value& y = part_->g.at(part_->g.outputs[0]);
    y_.resize(static_cast<std::size_t>(local_size(mesh{}, y).n));
    dy_.resize(y_.size(), 1.0);
    if (y.rank > 0)
      for (double& d : dy_) d = normal(random);
    saved_.resize(static_cast<std::size_t>(part_->plan.saved + 64));
    working_.resize(static_cast<std::size_t>(part_->plan.working + 64));
    mirrors_.resize(static_cast<std::size_t>(part_->plan.mirrored + 64));
    device_.main_lane().reserve({part_->view().scratch_bytes(part_->view(), device_, true),
                                 device_.products().workspace_bytes()});
  }

  void feed(mc::feed f, std::vector<std::int32_t> x, int slot = 0) {
    integers_.push_back({{f, slot}, std::move(x)});
  }
  std::vector<double>& weights() { return weights_; }
  const registry& stores() const { return stores_; }
  const std::vector<double>& cotangent() const { return dy_; }
  const graph& g() const { return part_->g; }

  double forward() {
    frame f = make_frame();
    part_->view().run(part_->view(), phase::forward, device_, f, prepared_.data());
    const value_id out = part_->g.outputs[0];
    const double* y = reinterpret_cast<const double*>(
        resolve(part_->plan.at[static_cast<unsigned>(out)], f, 0, 8));
    double sum = 0;
    for (std::size_t i = 0; i < y_.size(); ++i) sum += y[i] * dy_[i];
    return sum;
  }
  const std::vector<double>& backward() {
    std::fill(gradients_.begin(), gradients_.end(), 0.0);
    forward();
    frame f = make_frame();
    part_->view().run(part_->view(), backward_pass, device_, f, prepared_.data());
    return gradients_;
  }

  /// Compares every parameter's gradient in `directions` random unit directions.
  std::vector<comparison> compare(int directions, double h = 1e-3) {
    std::mt19937_64 random(7);
    const std::vector<double> gradient = backward();
    std::vector<comparison> all;
    for (int i = 0; i < part_->g.parameter_count; ++i) {
      const registry::entry& e = stores_.find(0, i);
      const value& v = part_->g.at(part_->g.parameters[static_cast<unsigned>(i)].v);
      comparison c{std::string(v.scope) + "." + v.name};
      const auto first = static_cast<std::size_t>(e.offset),
                 n = static_cast<std::size_t>(e.count.n);
      for (std::size_t k = 0; k < n; ++k) c.norm += gradient[first + k] * gradient[first + k];
      c.norm = std::sqrt(c.norm);
      for (int k = 0; k < directions; ++k) {
        const auto d = unit_direction(random, n);
        const std::vector<double> kept = weights_;
        const double quotient = central_difference(
            [&](double t) {
              for (std::size_t j = 0; j < n; ++j) weights_[first + j] = kept[first + j] + t * d[j];
              return forward();
            },
            h);
        weights_ = kept;
        double derived = 0;
        for (std::size_t j = 0; j < n; ++j) derived += gradient[first + j] * d[j];
        c.worst = std::max(c.worst, std::abs(quotient - derived));
      }
      all.push_back(c);
    }
    return all;
  }

private:
  frame make_frame() {
    frame f;
    f.stores = &stores_;
    f.base[static_cast<unsigned>(space::weights)] = reinterpret_cast<std::byte*>(weights_.data());
    f.base[static_cast<unsigned>(space::gradients)] =
        reinterpret_cast<std::byte*>(gradients_.data());
    f.base[static_cast<unsigned>(space::saved)] = aligned_start(saved_);
    f.base[static_cast<unsigned>(space::working)] = aligned_start(working_);
    f.base[static_cast<unsigned>(space::mirror)] = aligned_start(mirrors_);
    f.base[static_cast<unsigned>(space::stream_out)] = reinterpret_cast<std::byte*>(y_.data());
    input_addresses& in = inputs_.emplace(part_->g);
    in.set(feed::d_output, dy_.data());
    in.set(feed::d_output, &one_, 1);
    in.set(feed::seed, &seed_), in.set(feed::step, &step_);
    for (const auto& i : integers_) in.set(i.first.first, i.second.data(), i.first.second);
    f.input = in.data();
    f.constants = &constants_, f.on = &device_.main_lane(), f.mirrored = &mirrored_;
    f.ranks = &ranks_;
    return f;
  }
  static std::byte* aligned_start(std::vector<std::byte>& v) {
    const auto at = reinterpret_cast<std::uintptr_t>(v.data());
    return v.data() + (64 - at % 64) % 64;
  }

  cpu device_{product_type::automatic, 1};
  mirror_event mirrored_{device_.make_event()};
  std::unique_ptr<interpreted_part<cpu>> part_;
  registry stores_;
  std::vector<prepared_node> prepared_;
  std::vector<double> weights_, gradients_, y_, dy_;
  std::vector<std::byte> saved_, working_, mirrors_;
  std::vector<std::pair<std::pair<mc::feed, int>, std::vector<std::int32_t>>> integers_;
  std::optional<input_addresses> inputs_;
  run_constants constants_;
  std::int64_t seed_ = 5, step_ = 0;
  self ranks_{plane::ranks};
  double one_ = 1;
};

} // namespace mc::directional
