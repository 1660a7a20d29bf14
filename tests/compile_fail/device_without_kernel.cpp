// expect-error: MEGA-B001
// expect-text: embedding_grad(
//
// A second device, which starts bodies and has memory of its own: ops whose kernels are host code
// have none on it. Host compilers only: the kernels of the CPU are no CUDA.
#include "one_layer.hpp"

#include <megacpp/exec/cpu.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;

struct second_lane : lane {
  using lane::lane;
  template <class F> void launch(const node&, F f) const { f(); }
  template <class Body> void for_rows(std::int64_t rows, Body body) const {
    for (std::int64_t row = 0; row < rows; ++row) body(core_team{}, row);
  }
  int threads() const { return 1; }
  void fill(std::byte*, std::uint8_t, std::int64_t) override;
  void write(std::byte*, const void*, std::int64_t) override;
  void mirror(std::byte*, const std::byte*, std::int64_t) override;
  void record(event&) override;
  void wait(event&) override;
};
struct second_device : in_host_memory<device> {
  using lane_type = second_lane;
  int threads() const override { return 1; }
  memory_space& mirrored() override { return *this; }
  product_source& products() override;
  lane& main_lane() override;
  std::unique_ptr<lane> make_lane() override;
  std::unique_ptr<event> make_event() override;
  std::int64_t table_bytes() const override { return 0; }
  static constexpr std::int64_t most_workspace(const product_shape&, int) { return 0; }
  template <class T, class F> const T* table(std::vector<double>, std::int64_t, F);
};

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{};
#ifdef MEGACPP_EXPECT_ERROR
  using device = second_device;
#else
  using device = mc::cpu;
#endif
};
const program_view program_of_run = compiled_program<run>("run");
