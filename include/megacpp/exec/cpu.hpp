// The CPU device: bodies on threads, matrix products, tables that kernels prepare once.
#pragma once

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/exec/parallel.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

class cpu : public in_host_memory<device>, public host_slots {
public:
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

  template <class Node, class F> void launch(const Node& /*n*/, F f) const { f(); }

  /// body(core_team{}, row) for every row.
  template <class Body> void for_rows(std::int64_t rows, Body body) const {
    cores{}.for_rows(rows, body);
  }
  void run_slots(int slots, function f) const override { on_slots(slots, f); }

  memory_space& mirrored() override { return host_memory::of_process(); }
  void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    read(to, from, bytes);
  }
  void await_mirror(const std::byte* /*at*/) override {} // it is there at once

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
};

} // namespace mc
