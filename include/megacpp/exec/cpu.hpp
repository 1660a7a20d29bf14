// The CPU device: bodies on threads, matrix products, and tables that kernels prepare once.
#pragma once

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/exec/rank_order.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/threads/parallel.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// An event of a lane of the host, which does all work at once: the event has always come.
class cpu_event final : public event {
public:
  void wait() override {}
  std::int64_t reached() override { return at_; }
  void record() { at_ = monotonic_nanoseconds(); }

private:
  std::int64_t at_ = 0;
};

/// A lane of the host: the calling thread and its workers. Work that is started on it is done when
/// the call returns.
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
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    host_memory::of_process().read(to, from, bytes);
  }
  void reduce(reduction by, dtype t, std::span<const void* const> arrays, void* out,
              std::int64_t n) override {
    reduce_in_rank_order(by, t, arrays, out, n);
  }
  void record(event& e) override { static_cast<cpu_event&>(e).record(); }
  void wait(event& /*e*/) override {} // the event has come
  void finish() override {}           // all work is done
};

/// The limits that product/tiling.hpp keeps: bytes of an operand that is copied whole, and bytes of
/// all copies of segments together; extents of a tile of the output (rows, columns) and of a block
/// of the sum.
struct cpu_product_limits {
  static constexpr std::int64_t large_copy = 8 << 20, whole_copy = 4 * large_copy;
  static constexpr std::int64_t tile = 256, columns = 528, block = 768;
};

class cpu : public in_host_memory<device> {
public:
  using lane_type = cpu_lane;

  /// Makes a device with so many `threads` of the calling thread (set_thread_count); 0: all cores.
  /// `tell` is called once for a library that computes products wrong. product/cpu_products.hpp
  /// defines it and brings the libraries of the products: the unit that makes the device includes
  /// that header, units with kernels do not.
  explicit cpu(product_type products = product_type::automatic, int threads = 0,
               product_rows rows = product_rows::together,
               void (*tell)(std::string_view) = nullptr);

  /// Makes a device with the caller's own source of products. With `sizes_alone` the device counts
  /// the bytes of tables and does not make them.
  cpu(std::unique_ptr<product_source> products, int threads, bool sizes_alone = false)
      : threads_(threads), sizes_alone_(sizes_alone), products_(std::move(products)) {
    set_thread_count(threads_);
  }

  int threads() const override { return threads_; }
  product_source& products() override { return *products_; }

  memory_space& mirrored() override { return host_memory::of_process(); }
  lane& main_lane() override { return lane_; }
  std::unique_ptr<lane> make_lane() override { return std::make_unique<cpu_lane>(*this); }
  std::unique_ptr<event> make_event() override { return std::make_unique<cpu_event>(); }

  /// Returns a table of `count` numbers: the one that was made for the same key, or a new one that
  /// `fill(T*)` writes. Kernels ask for tables while programs are prepared.
  template <class Type, class F>
  auto table(Type, std::vector<double> key, std::int64_t count, F fill) {
    using T = typename Type::type;
    key.push_back(sizeof(T));
    auto [at, made] = tables_.try_emplace(std::move(key));
    if (made) {
      table_bytes_ += count * std::int64_t{sizeof(T)};
      if (!sizes_alone_) {
        at->second.resize((static_cast<std::size_t>(count) * sizeof(T) + 7) / 8);
        fill(reinterpret_cast<T*>(at->second.data()));
      }
    }
    return reinterpret_cast<const T*>(at->second.data());
  }
  std::int64_t table_bytes() const override { return table_bytes_; }

  static constexpr std::int64_t sort_bytes(std::int64_t /*n*/) { return 0; }
  /// Returns the most bytes of workspace that a lane needs for a product with so many threads,
  /// without canonical panels: whole copies of both operands, and for each thread a tile in fp32,
  /// blocks of both operands and 2 MiB of a library's own. Eigen takes more where it computes long
  /// sums in place of a library whose product has failed its check.
  static constexpr std::int64_t most_workspace(const product_shape& s, int threads) {
    using limits = cpu_product_limits;
    constexpr std::int64_t library = 2 << 20;
    const bool forward = s.kind == product_kind::forward,
               gradient = s.kind == product_kind::weight_gradient;
    const std::int64_t rows = s.segment != 0 ? s.segment : s.M, wide = size_of(accumulator_of(s.a)),
                       m = gradient ? s.N : rows, n = forward ? s.N : s.K,
                       k = gradient  ? rows
                           : forward ? s.K
                                     : s.N;
    const auto pages = [](std::int64_t bytes) { return (bytes + 4095) / 4096 * 4096; };
    const auto copy = [&](std::int64_t lines, std::int64_t columns) {
      return pages(lines * (columns + 32) * wide); // rows have an odd number of cache lines
    };
    const auto copies = [&](std::int64_t lines, std::int64_t columns, bool of_each_segment) {
      if (lines * columns * wide > limits::whole_copy) return std::int64_t{0}; // copied by blocks
      const std::int64_t one = copy(lines, columns),
                         all = one * (of_each_segment ? s.segments() : 1),
                         most = one < limits::large_copy ? limits::large_copy : one;
      return all < most ? all : most;
    };
    const auto at_most = [](std::int64_t x, std::int64_t most) { return x < most ? x : most; };
    const std::int64_t tile_m = at_most(m, limits::tile), tile_n = at_most(n, limits::columns),
                       block = at_most(k, limits::block),
                       of_thread = pages(tile_m * tile_n * wide) + copy(tile_m, block) +
                                   copy(block, tile_n) + library;
    return threads * of_thread + copies(m, k, true) + copies(k, n, gradient) + pages(s.N * 4);
  }

private:
  int threads_;
  bool sizes_alone_ = false;
  std::int64_t table_bytes_ = 0;
  std::unique_ptr<product_source> products_;
  std::map<std::vector<double>, std::vector<double>> tables_;
  cpu_lane lane_{*this};
};

} // namespace mc
