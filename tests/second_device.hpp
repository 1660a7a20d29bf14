// A second device for compilers alone: it starts bodies and has memory of its own, and runs no code
// of the host. No object of it is ever made.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/graph/graph.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace mc_test {

struct second_lane : mc::lane {
  using lane::lane;
  template <class F> void launch(const mc::node&, F f) const { f(); }
  template <class Body> void for_rows(std::int64_t rows, Body body) const {
    for (std::int64_t row = 0; row < rows; ++row) body(mc::core_team{}, row);
  }
  int threads() const { return 1; }
  int slabs() const { return 1; }
  void sort(std::uint64_t*, std::int64_t, int, int, std::byte*) const {}
  void fill(std::byte*, std::uint8_t, std::int64_t) override;
  void write(std::byte*, const void*, std::int64_t) override;
  void mirror(std::byte*, const std::byte*, std::int64_t) override;
  void record(mc::event&) override;
  void wait(mc::event&) override;
};
struct second_device : mc::in_host_memory<mc::device> {
  using lane_type = second_lane;
  int threads() const override { return 1; }
  mc::memory_space& mirrored() override { return *this; }
  mc::product_source& products() override;
  mc::lane& main_lane() override;
  std::unique_ptr<mc::lane> make_lane() override;
  std::unique_ptr<mc::event> make_event() override;
  std::int64_t table_bytes() const override { return 0; }
  static constexpr std::int64_t most_workspace(const mc::product_shape&, int) { return 0; }
  static constexpr std::int64_t sort_bytes(std::int64_t) { return 0; }
  template <class T, class F> const T* table(std::vector<double>, std::int64_t, F);
};

} // namespace mc_test
