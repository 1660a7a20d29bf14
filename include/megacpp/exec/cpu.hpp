// The CPU device: bodies on threads, matrix products, tables that kernels prepare once.
#pragma once

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/exec/parallel.hpp>
#include <megacpp/io/clock.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// A moment of a thread of the host, which does what it is asked for at once.
class cpu_event final : public event {
public:
  void wait() override {}
  std::int64_t reached() override { return at_; }
  void record() { at_ = monotonic_nanoseconds(); }

private:
  std::int64_t at_ = 0;
};

/// The threads of whoever calls: what is started on them is done when the call returns.
class cpu_lane : public lane, public cores {
public:
  explicit cpu_lane(memory_space& of = host_memory::of_process()) : lane(of) {}

  template <class Node, class F> void launch(const Node& /*n*/, F f) const { f(); }

  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    host_memory::of_process().fill(to, byte, bytes);
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    host_memory::of_process().write(to, from_host, bytes);
  }
  void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    host_memory::of_process().read(to, from, bytes);
  }
  void record(event& e) override { static_cast<cpu_event&>(e).record(); }
  void wait(event& /*e*/) override {} // it has come
};

class cpu : public in_host_memory<device> {
public:
  using lane_type = cpu_lane;

  /// `threads` 0: all cores. They are the calling thread's (set_thread_count). `tell` hears once of
  /// a library that computes products wrong. Defined in product/cpu_products.hpp, which brings the
  /// libraries of the products: for the unit that makes the device, not those that hold kernels.
  explicit cpu(product_type products = product_type::automatic, int threads = 0,
               product_rows rows = product_rows::together,
               void (*tell)(std::string_view) = nullptr);

  /// Takes a source of products of the caller's own.
  cpu(std::unique_ptr<product_source> products, int threads)
      : threads_(threads), products_(std::move(products)) {
    set_thread_count(threads_);
  }

  int threads() const override { return threads_; }
  product_source& products() override { return *products_; }

  memory_space& mirrored() override { return host_memory::of_process(); }
  lane& main_lane() override { return lane_; }
  std::unique_ptr<lane> make_lane() override { return std::make_unique<cpu_lane>(*this); }
  std::unique_ptr<event> make_event() override { return std::make_unique<cpu_event>(); }

  /// A table found by the numbers that it is made of, or made by `fill(T*)` while programs are
  /// prepared.
  template <class Type, class F>
  auto table(Type, std::vector<double> key, std::int64_t count, F fill) {
    using T = typename Type::type;
    key.push_back(sizeof(T));
    auto& t = tables_[std::move(key)];
    if (t.empty()) {
      t.resize((static_cast<std::size_t>(count) * sizeof(T) + 7) / 8);
      fill(reinterpret_cast<T*>(t.data()));
    }
    return reinterpret_cast<const T*>(t.data());
  }

private:
  int threads_;
  std::unique_ptr<product_source> products_;
  std::map<std::vector<double>, std::vector<double>> tables_;
  cpu_lane lane_{*this};
};

} // namespace mc
