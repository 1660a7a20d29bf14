// expect-error: MEGA-M001
// expect-text: training needs
//
// Training that plans more memory than the run says a device has.
#include <megacpp/preset/models.hpp>
#include <megacpp/run/program.hpp>

using namespace mc;

struct run {
  static constexpr gpt model = preset::gpt2_124m;
  static constexpr mc::layout layout{};
  static constexpr batching batch{4, 1024};
  using precision = bf16_mixed;
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr std::int64_t device_memory = 2_GiB;
#else
  static constexpr std::int64_t device_memory = 16_GiB;
#endif
};
static_assert(program<run>::ok);
