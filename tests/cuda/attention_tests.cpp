// Attention of kernel/cuda/cudnn_attention.hpp over the stand-in of cuDNN: what its graphs say, the check
// that it passes, and what is left to bodies.
#define BOOST_TEST_MODULE cuda_attention
#include <boost/test/unit_test.hpp>

#include <cuda/machine.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

using namespace mc;

namespace {

constexpr fused_attention_shape shape_of(std::int64_t sequences, std::int64_t tokens,
                                         std::int64_t heads, std::int64_t kv_heads,
                                         std::int64_t head_dim, std::int64_t window = 0) {
  return {sequences, tokens, heads, kv_heads, head_dim, window, 0, true};
}
fused_attention_shape forward_of(fused_attention_shape s) {
  s.gradient = false;
  return s;
}

} // namespace

// Each that is prepared has passed its check, which compares it with the kernels of the host.
BOOST_AUTO_TEST_CASE(graphs_say_attention) {
  for (const fused_attention_shape& s :
       {shape_of(2, 24, 2, 2, 16), shape_of(1, 33, 4, 2, 8), shape_of(3, 17, 3, 1, 24),
        shape_of(2, 40, 2, 2, 8, 7), shape_of(1, 9, 4, 1, 8, 1), shape_of(2, 1, 2, 1, 8)}) {
    test::machine_with_device machine;
    for (const bool deterministic : {true, false}) {
      cudnn_attention of(machine.device(), deterministic);
      BOOST_TEST((of.prepare(s) != nullptr), "of " << s.tokens << " tokens");
      BOOST_TEST((of.prepare(forward_of(s)) != nullptr));
      BOOST_TEST(of.prepare(s) == of.prepare(s)); // found
      for (const std::string& why : of.left()) BOOST_ERROR(why);
    }
  }
}

// Where all sequences at once would take more than 1 GiB of scratch, as many are computed as have room:
// none is left out (the check sees the last one, and what is not written). Their sums may begin
// between multiples of 16 bytes.
BOOST_AUTO_TEST_CASE(few_sequences_at_a_time) {
  constexpr auto long_ones = shape_of(8, 4096, 32, 8, 128);
  static_assert(cuda::sequences_at_once(long_ones, true) == 1);
  static_assert(cuda::sequences_at_once(long_ones, false) == 4);
  static_assert(cuda::sequences_at_once(shape_of(32, 1024, 12, 12, 64), true) == 32);
  static_assert(cuda::sequences_at_once(shape_of(6, 2048, 12, 12, 64), true) == 6);
  static_assert(cuda::sequences_at_once(shape_of(12, 2048, 12, 12, 64), true) == 6);
  static_assert(cuda::most_attention_scratch(long_ones) < std::int64_t{1300} << 20);
  // Of short sequences of wide heads the gradient that is not deterministic takes more.
  constexpr auto short_ones = shape_of(4, 64, 8, 8, 128);
  static_assert(cuda::most_attention_scratch(short_ones) ==
                cuda::attention_scratch(short_ones, false));
  static_assert(cuda::attention_scratch(short_ones, true) <
                cuda::attention_scratch(short_ones, false));
  constexpr auto apart = [] {
    auto s = shape_of(32, 1024, 12, 12, 64);
    s.apart = true;
    return s;
  }();
  static_assert(cuda::sequences_at_once(apart, true) == 1);
  test::machine_with_device machine;
  for (const auto& s : {shape_of(6, 20, 4, 2, 8), shape_of(6, 17, 3, 3, 8)})
    for (const bool deterministic : {true, false})
      for (const std::int64_t room : {1, 40'000, 80'000, 1 << 20}) {
        cudnn_attention of(machine.device(), deterministic, nullptr, room);
        BOOST_TEST((of.prepare(s) != nullptr));
        for (const std::string& why : of.left()) BOOST_ERROR(why);
        BOOST_TEST(of.scratch(s) <= std::max<std::int64_t>(room, 80'000));
      }
}

BOOST_AUTO_TEST_CASE(the_next_engine_or_bodies_compute_what_one_does_wrong) {
  struct fault {
    std::string of;
    bool gradient;
    const char* says;
  };
  const auto tensor = [](const char* what, attention_tensor t) {
    return what + std::to_string(static_cast<int>(t));
  };
  using enum attention_tensor;
  for (const fault& f :
       {fault{"plan", false, "cudnnBackendFinalize of a plan of attention"},
        fault{"workspace", false, "cuDNN asks for 4352 bytes for it, and 512 are planned"},
        fault{"execute", false, "cuDNN fails"},
        fault{tensor("wrong ", o), false, "cuDNN computes o wrong"},
        fault{tensor("wrong ", stats), false, "cuDNN computes lse wrong"},
        fault{tensor("wrong ", dq), true, "cuDNN computes dq wrong"},
        fault{tensor("wrong ", dk), true, "cuDNN computes dk wrong"},
        fault{tensor("wrong ", dv), true, "cuDNN computes dv wrong"},
        fault{tensor("unwritten ", o), false, "cuDNN leaves results that are no"},
        fault{tensor("unwritten ", dv), true, "cuDNN leaves results that are no"},
        fault{tensor("beside ", stats), false, "cuDNN writes beside its results"},
        fault{tensor("beside ", dk), true, "cuDNN writes beside its results"}}) {
    auto s = shape_of(1, 12, 2, 2, 8);
    s.gradient = f.gradient;
    {
      test::machine_with_device machine;
      stand_in::fail(f.of + " 1", cudaErrorUnknown);
      cudnn_attention of(machine.device());
      BOOST_TEST((of.prepare(s) != nullptr), f.of);
      BOOST_TEST(of.left().empty());
    }
    test::machine_with_device machine;
    for (const char* const engine : {" 1", " 2"}) stand_in::fail(f.of + engine, cudaErrorUnknown);
    static std::string told;
    told.clear();
    cudnn_attention of(machine.device(), true, [](std::string_view text) { told += text; });
    BOOST_TEST((of.prepare(s) == nullptr), f.of);
    BOOST_TEST((of.prepare(s) == nullptr)); // and none is tried again
    BOOST_TEST_REQUIRE(of.left().size() == 1u);
    BOOST_TEST(of.left().front() == told);
    BOOST_TEST(told.find(std::string("attention is computed by megacpp's own tiles, and not by a "
                                     "library, since ") +
                         f.says) == 0u,
               told);
    BOOST_TEST(told.find(std::string(" (") + (f.gradient ? "the gradient of " : "") +
                         "1 x 12 tokens with 2 heads of 8 and 2 of keys)") != std::string::npos,
               told);
    BOOST_TEST(of.describe() == (f.gradient ? "by cuDNN " + dotted_version(CUDNN_VERSION) +
                                                  ", deterministic, in part by own tiles"
                                            : "by own tiles"));
  }
}

BOOST_AUTO_TEST_CASE(a_library_that_cannot_be_opened_leaves_all_to_bodies) {
  test::machine_with_device machine;
  stand_in::fail("cudnnCreate", cudaErrorUnknown);
  cudnn_attention of(machine.device());
  BOOST_TEST((of.prepare(forward_of(shape_of(1, 12, 2, 2, 8))) == nullptr));
  BOOST_TEST(of.left().front().find("cuDNN cannot be opened") != std::string::npos);
  BOOST_TEST(of.describe() == "by own tiles");
}
