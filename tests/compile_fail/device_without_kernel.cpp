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

struct second_device : in_host_memory<device> {
  int threads() const override { return 1; }
  memory_space& mirrored() override { return *this; }
  void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    read(to, from, bytes);
  }
  product_source& products() override;
  template <class F> void launch(const node&, F f) const { f(); }
  template <class Body> void for_rows(std::int64_t rows, Body body) const {
    for (std::int64_t row = 0; row < rows; ++row) body(core_team{}, row);
  }
  void await_mirror(const std::byte*) override {}
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
