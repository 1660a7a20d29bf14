// The kernel of one node on one rank. Every operand and output has an allocation of its own, so
// that AddressSanitizer finds an access to one element too many.
#pragma once

#include "plain_loss.hpp"

#include <megacpp/comm/self.hpp>
#include <megacpp/num/random.hpp>
#include <megacpp/product/cpu_products.hpp>

#include <cstdlib>
#include <memory>

#include <kernels.hpp>

namespace mc::laws {

inline double rounded(double x, dtype t) {
  switch (t) {
  case dtype::f64: return x;
  case dtype::f32: return static_cast<double>(static_cast<float>(x));
  case dtype::bf16: return convert<double>(convert<bf16>(static_cast<float>(x)));
  default: return static_cast<double>(std::llround(x));
  }
}

/// Memory of exactly the bytes of one value.
class bytes {
public:
  explicit bytes(std::int64_t n) : size_(static_cast<std::size_t>(n)) {
    void* p = nullptr;
    if (posix_memalign(&p, 64, size_) != 0) throw std::bad_alloc();
    data_.reset(static_cast<std::byte*>(p));
    fill(0xff); // a NaN of every type
  }
  std::byte* data() const { return data_.get(); }
  void fill(int x) { std::memset(data_.get(), x, size_); }
  bool operator==(const bytes& o) const {
    return size_ == o.size_ && std::memcmp(data(), o.data(), size_) == 0;
  }
  void set(const array& x, dtype t) {
    for (std::size_t i = 0; i < x.size(); ++i) switch (t) {
      case dtype::f64: put(i, x[i]); break;
      case dtype::f32: put(i, static_cast<float>(x[i])); break;
      case dtype::bf16: put(i, convert<bf16>(static_cast<float>(x[i]))); break;
      case dtype::i64: put(i, static_cast<std::int64_t>(x[i])); break;
      case dtype::u8: put(i, static_cast<std::uint8_t>(std::int64_t(x[i]))); break;
      default: put(i, static_cast<std::int32_t>(x[i])); break;
      }
  }
  array get(std::int64_t n, dtype t) const {
    array x;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) switch (t) {
      case dtype::f64: x.push_back(at<double>(i)); break;
      case dtype::f32: x.push_back(static_cast<double>(at<float>(i))); break;
      case dtype::bf16: x.push_back(convert<double>(at<bf16>(i))); break;
      case dtype::i64: x.push_back(static_cast<double>(at<std::int64_t>(i))); break;
      default: x.push_back(at<std::int32_t>(i)); break;
      }
    return x;
  }

private:
  struct release {
    void operator()(std::byte* p) const { std::free(p); }
  };
  template <class T> void put(std::size_t i, T x) {
    std::memcpy(data_.get() + i * sizeof(T), &x, sizeof(T));
  }
  template <class T> T at(std::size_t i) const {
    T x;
    std::memcpy(static_cast<void*>(&x), data_.get() + i * sizeof(T), sizeof(T));
    return x;
  }
  std::size_t size_;
  std::unique_ptr<std::byte, release> data_;
};

/// A memory space that reserves exactly the size that is asked for, so that a sanitizer finds
/// accesses beyond it.
class exact_memory final : public in_host_memory<memory_space> {
public:
  std::byte* reserve(std::int64_t n, const char*, const char*) override {
    return static_cast<std::byte*>(std::memset(::operator new(static_cast<std::size_t>(n)), 0xff,
                                               static_cast<std::size_t>(n)));
  }
  void release(std::byte* p, std::int64_t) override { ::operator delete(p); }
};

/// The device that runs a node, and the memory of the node's values.
class node_kernel {
public:
  run_constants constants{.clip = plain::clip_at};
  coordinates rank{};
  communicator* ranks = &self::ranks();
  int layer = 0;

  explicit node_kernel(int threads = 2) : device_(product_type::widened, threads) {}

  /// Makes memory for the operands and outputs of this node.
  void place(const graph& g, const node& n) {
    held_.clear(), inputs_.clear();
    const auto add = [&](value_id v) {
      if (v < 0 || held_.count(v) != 0) return;
      const auto slot = static_cast<std::int64_t>(held_.size());
      const bytes& x = held_.emplace(v, bytes(local_bytes(g.ranks, g.at(v)))).first->second;
      plan_->at[static_cast<unsigned>(v)] = {space::input, slot};
      inputs_.resize(held_.size());
      inputs_.back() = x.data(), frame_.input = inputs_.data();
    };
    for (value_id v : n.in) add(v);
    for (value_id v : n.out) add(v);
  }
  /// Lets `out` use the memory of `in` from now on, and returns its former memory.
  bytes take_over(value_id out, value_id in) {
    plan_->at[static_cast<unsigned>(out)] = plan_->at[static_cast<unsigned>(in)];
    bytes was = std::move(held_.at(out));
    held_.at(out) = bytes(1);
    return was;
  }
  /// Runs the node. `operand(k)` is the data of operand k; outputs that accumulate start at zero.
  template <class F> void run(const graph& g, const node& n, F operand) {
    for (value_id v : n.out)
      if (v >= 0) held_.at(v).fill(n.op->accumulates ? 0 : 0xff);
    for (unsigned k = 0; k < max_inputs; ++k)
      if (n.in[k] >= 0) held_.at(n.in[k]).set(operand(k), g.at(n.in[k]).type);
    const kernel_table<cpu>::functions f = kernels_.find(n.op, type_of_node(g, n));
    prepared_node slot;
    frame_.constants = &constants, frame_.ranks = ranks, frame_.coordinate = rank,
    frame_.layer = layer;
    dynamic_node<cpu> c({&device_, &frame_, &slot}, g, *plan_, 0, n);
    if (f.prepare != nullptr) f.prepare(c);
    mirror_seen(g, n);
    cpu_lane on(memory_);
    frame_.on = &on;
    on.reserve({f.scratch_bytes != nullptr ? f.scratch_bytes(c) : 0,
                device_.products().workspace_bytes()});
    f.run(c);
  }
  const bytes& at(value_id v) const { return held_.at(v); }
  array get(const graph& g, value_id v) const {
    return at(v).get(local_size(g.ranks, g.at(v)).n, g.at(v).type);
  }
  /// Returns how output k differs from the expected values; "" if it does not.
  std::string difference(const graph& g, const node& n, unsigned k, const array& want) const {
    const array got = get(g, n.out[k]);
    if (want.size() != got.size()) return "the plain loops give another size";
    double most = 0;
    for (double y : want)
      if (std::isfinite(y)) most = std::max(most, std::abs(y));
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!(want[i] == got[i] || std::abs(want[i] - got[i]) <= tolerance(g, n) * (1 + most)))
        return "output " + std::to_string(k) + "[" + std::to_string(i) + "] is " +
               std::to_string(got[i]) + ", not " + std::to_string(want[i]);
    return "";
  }

private:
  /// Copies an operand that the kernel reads on the host to its mirror.
  void mirror_seen(const graph& g, const node& n) {
    plan_->mirror_count = 0;
    if (n.op->seen < 0) return;
    const value_id v = n.in[static_cast<unsigned>(n.op->seen)];
    const std::int64_t size = local_bytes(g.ranks, g.at(v)), at = aligned_bytes(size),
                       room = n.op->host_room != nullptr ? n.op->host_room(g, n) : 0;
    plan_->mirrors[plan_->mirror_count++] = {v, 0, at, room};
    mirror_ = std::make_unique<bytes>(at + room);
    std::memcpy(mirror_->data(), held_.at(v).data(), static_cast<std::size_t>(size));
    frame_.set(space::mirror, mirror_->data());
  }
  /// Returns the tolerance, relative to the largest element.
  static double tolerance(const graph& g, const node& n) {
    dtype coarsest = dtype::f64;
    for (value_id v : n.in)
      if (v >= 0 && g.at(v).differentiable()) coarsest = std::max(coarsest, g.at(v).type);
    for (value_id v : n.out)
      if (v >= 0 && g.at(v).differentiable()) coarsest = std::max(coarsest, g.at(v).type);
    return coarsest == dtype::f64 ? 1e-11 : coarsest == dtype::f32 ? 2e-5 : 2e-2;
  }

  cpu device_;
  exact_memory memory_;
  kernel_table<cpu> kernels_ = kernel_table<cpu>::all();
  std::map<value_id, bytes> held_;
  std::unique_ptr<bytes> mirror_;
  std::unique_ptr<memory_plan> plan_ = std::make_unique<memory_plan>();
  frame frame_;
  std::vector<std::byte*> inputs_;
};

} // namespace mc::laws
