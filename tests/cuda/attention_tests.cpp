// Attention of kernel/cuda/cudnn_attention.hpp over the stand-in of cuDNN: what its graphs say, the check
// that it passes, and what is left to bodies.
#define BOOST_TEST_MODULE cuda_attention
#include <boost/test/unit_test.hpp>

#include <cuda/machine.hpp>

#include <megacpp/kernel/attention.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/run/call.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
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
constexpr fused_attention_shape packed(fused_attention_shape s) {
  s.packed = true;
  return s;
}

/// The operands of an attention on a device, and what it makes of them. Scores have a deviation of
/// about 2.
class operands {
public:
  operands(cuda& on, const fused_attention_shape& s, const std::vector<std::int32_t>& documents)
      : on_(on), s_(s), documents_(documents) {
    const auto q = static_cast<std::size_t>(s.sequences * s.tokens * s.heads * s.head_dim),
               k = q / static_cast<std::size_t>(s.heads / s.kv_heads);
    const std::size_t bytes[] = {2 * q, 2 * k, 2 * k, 2 * q, 2 * q,
                                 4 * q, 2 * q, 2 * k, 2 * k, 4 * documents.size()};
    std::int64_t all = 0;
    for (std::size_t i = 0; i < at_.size(); ++i)
      at_[i] = all, all += static_cast<std::int64_t>(bytes[i] + 255) / 256 * 256;
    memory_ = arena(on, all, "operands", "nothing");
    std::uint64_t n = 1;
    for (std::size_t i = 0; i < 4; ++i) {
      std::vector<bf16> x(bytes[i] / 2);
      for (bf16& e : x) {
        n = n * 6364136223846793005u + 1442695040888963407u;
        const double unit = static_cast<double>(n >> 11) * 0x1p-52 - 1;
        e = bf16(static_cast<float>((i == 0 ? 6 : 1) * unit));
        read_[i].push_back(double{static_cast<float>(e)});
      }
      on.write(at(i), x.data(), static_cast<std::int64_t>(bytes[i]));
    }
    on.write(at(9), documents.data(), static_cast<std::int64_t>(bytes[9]));
    on.main_lane().reserve({.scratch = on.attention()->scratch(s)});
  }

  /// Whether an attention and its gradient make of them what loops in double do.
  void compare(const fused_attention& forward, const fused_attention& gradient) {
    lane& l = on_.main_lane();
    const auto* const numbers = reinterpret_cast<const std::int32_t*>(at(9));
    const attention_documents of{numbers, numbers};
    forward.execute(fused_attention_call{l, l.scratch(), at(0), at(1), at(2), at(4), at(5), of});
    gradient.execute(fused_attention_grad_call{l, l.scratch(), at(3), at(0), at(1), at(2), at(4),
                                               at(5), at(6), at(7), at(8), of});
    l.finish();
    for (const std::size_t i : {4u, 6u, 7u, 8u})
      read_[i].assign(read_[i == 7 || i == 8 ? 1 : 0].size(), 0);
    for (std::int64_t b = 0; b < s_.sequences; ++b)
      for (std::int64_t h = 0; h < s_.heads; ++h) head(b, h);
    for (const std::size_t i : {4u, 6u, 7u, 8u}) {
      std::vector<bf16> got(read_[i].size());
      on_.read(got.data(), at(i), static_cast<std::int64_t>(2 * got.size()));
      const double most =
          std::fabs(*std::ranges::max_element(read_[i], {}, [](double x) { return std::fabs(x); }));
      double off = 0;
      for (std::size_t e = 0; e < got.size(); ++e)
        off = std::max(off, std::fabs(static_cast<float>(got[e]) - read_[i][e]));
      BOOST_TEST(off <= 0x1p-6 * most, "array " << i << " is wrong by " << off << " of " << most);
    }
  }

private:
  std::byte* at(std::size_t i) const { return memory_.data() + at_[i]; }
  double* token(std::size_t array, std::int64_t t, std::int64_t head, std::int64_t heads) {
    return read_[array].data() + (t * heads + head) * s_.head_dim;
  }
  void head(std::int64_t b, std::int64_t h) {
    const std::int64_t D = s_.head_dim, first = b * s_.tokens;
    const auto query = [&](std::size_t array, std::int64_t t) {
      return token(array, t, h, s_.heads);
    };
    const auto key = [&](std::size_t array, std::int64_t t) {
      return token(array, t, h / (s_.heads / s_.kv_heads), s_.kv_heads);
    };
    const auto dot = [&](const double* x, const double* y) {
      double sum = 0;
      for (std::int64_t d = 0; d < D; ++d) sum += x[d] * y[d];
      return sum;
    };
    const auto add = [&](double* to, double times, const double* x) {
      for (std::int64_t d = 0; d < D; ++d) to[d] += times * x[d];
    };
    for (std::int64_t t = first; t < first + s_.tokens; ++t) {
      std::vector<std::pair<std::int64_t, double>> seen; // keys, and their probabilities
      double sum = 0;
      for (std::int64_t j = first; j <= t; ++j)
        if ((s_.window == 0 || j > t - s_.window) &&
            documents_[static_cast<std::size_t>(j)] == documents_[static_cast<std::size_t>(t)])
          seen.emplace_back(j, std::exp(s_.score_scale() * dot(query(0, t), key(1, j))));
      for (const auto& [j, p] : seen) sum += p;
      for (auto& [j, p] : seen) p /= sum, add(query(4, t), p, key(2, j));
      const double mean = dot(query(3, t), query(4, t));
      for (const auto& [j, p] : seen) {
        const double ds = s_.score_scale() * p * (dot(query(3, t), key(2, j)) - mean);
        add(key(8, j), p, query(3, t)), add(query(6, t), ds, key(1, j));
        add(key(7, j), ds, query(0, t));
      }
    }
  }

  cuda& on_;
  fused_attention_shape s_;
  std::vector<std::int32_t> documents_;
  arena memory_;
  std::array<std::int64_t, 10> at_{}; // q, k, v, dy, o, lse, dq, dk, dv, documents
  std::array<std::vector<double>, 9> read_;
};

} // namespace

// Each that is prepared has passed its check, which compares it with the kernels of the host.
BOOST_AUTO_TEST_CASE(graphs_say_attention) {
  for (const fused_attention_shape& s :
       {shape_of(2, 24, 2, 2, 16), shape_of(1, 33, 4, 2, 8), shape_of(3, 17, 3, 1, 24),
        shape_of(2, 40, 2, 2, 8, 7), shape_of(1, 9, 4, 1, 8, 1), shape_of(2, 1, 2, 1, 8),
        packed(shape_of(2, 24, 2, 2, 16)), packed(shape_of(1, 64, 4, 2, 64)),
        packed(shape_of(3, 41, 3, 1, 24)), packed(shape_of(2, 40, 2, 2, 8, 7)),
        packed(shape_of(2, 1, 2, 1, 8)), packed(shape_of(9, 2, 1, 1, 8)),
        packed(shape_of(3, 5, 4, 4, 16))}) {
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

// The library is asked where every token sees itself, and not where an op of somebody's makes documents.
BOOST_AUTO_TEST_CASE(documents_that_are_fed_are_for_the_library) {
  builder b{mesh(layout{})};
  b.packed = true;
  const extent B{dim::batch, 2}, S{dim::sequence, 8}, A{dim::heads, 2}, D{dim::head_dim, 8};
  const auto ints = [&](feed from, integer_kind kind, const char* name) {
    return b.integers(from, kind, name, {B, S}, {}, 0);
  };
  context c;
  c.b = &b, c.precision = dtype::bf16;
  c.order = ints(feed::order, integer_kind::order, "order");
  c.all_order = ints(feed::all_order, integer_kind::order, "all_order");
  c.documents = ints(feed::documents, integer_kind::documents, "documents");
  c.all_documents = ints(feed::all_documents, integer_kind::documents, "all_documents");
  const auto heads = [&](feed from, const char* name) {
    return b.input(from, name, dtype::bf16, {B, S, A, D}, {});
  };
  const var q = heads(feed::stream, "q"), k = heads(feed::key_cache, "k"),
            v = heads(feed::value_cache, "v");
  const var o = context_parallel_attention(c, q, k, v, {});
  BOOST_TEST_REQUIRE((b.g.wrong.code == fault::none));
  const auto why_not = [](graph g, value_id n) {
    const memory_plan nowhere{};
    const dynamic_node<cuda> of({}, g, nowhere, 0, g.at_node(g.at(n).producer));
    const char* const why =
        mc::detail::why_not_fused<bf16, op::attention_in>(dynamic_call<cuda, bf16>(of));
    return std::string(why == nullptr ? "" : why);
  };
  BOOST_TEST(why_not(b.g, o.id) == "");
  for (const value_id of : {c.documents.id, c.all_documents.id}) {
    graph made = b.g;
    made.values[static_cast<unsigned>(of)].from = feed::none;
    BOOST_TEST(why_not(made, o.id) ==
               "its documents are not those of the batch, so that a token need not see itself");
  }
}

// A query sees a key if their numbers are equal, whatever the numbers are and whatever lies between
// them, and whatever was packed in the call before.
BOOST_AUTO_TEST_CASE(documents_are_told_apart_by_their_numbers) {
  constexpr std::int32_t least = std::numeric_limits<std::int32_t>::min();
  for (const fused_attention_shape& s : {shape_of(2, 40, 4, 2, 8), shape_of(3, 33, 2, 2, 16, 7)}) {
    test::machine_with_device machine;
    cudnn_attention& of = static_cast<cudnn_attention&>(*machine.device().attention());
    const fused_attention *const forward = of.prepare(packed(forward_of(s))), *const gradient =
                                                                                  of.prepare(
                                                                                      packed(s));
    BOOST_TEST_REQUIRE((forward != nullptr && gradient != nullptr));
    for (int kind = 0; kind < 5; ++kind) {
      std::vector<std::int32_t> documents;
      for (std::int32_t i = 0; i < s.sequences * s.tokens; ++i) {
        const auto b = static_cast<std::int32_t>(i / s.tokens),
                   t = static_cast<std::int32_t>(i % s.tokens);
        documents.push_back(kind == 0   ? b // one
                            : kind == 1 ? i // of one token each
                            : kind == 2 ? (t < 9 + b    ? 0
                                           : t < 10 + b ? 1
                                           : t < 32     ? 2
                                                        : 3)
                            : kind == 3
                                ? least + (t < 20 ? 1 : 0) // numbers that fp32 takes for one
                                : (1 << 30) - t * t % 5);  // in turn
      }
      operands(machine.device(), packed(s), documents).compare(*forward, *gradient);
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
  for (const auto& s : {shape_of(6, 20, 4, 2, 8), shape_of(6, 17, 3, 3, 8),
                        packed(shape_of(6, 20, 4, 2, 8)), packed(shape_of(6, 17, 3, 3, 8))})
    for (const bool deterministic : {true, false})
      for (const std::int64_t room : {1, 40'000, 80'000, 150'000, 250'000, 1 << 20}) {
        cudnn_attention of(machine.device(), deterministic, nullptr, room);
        BOOST_TEST((of.prepare(s) != nullptr));
        for (const std::string& why : of.left()) BOOST_ERROR(why);
        fused_attention_shape one = s;
        one.sequences = 1;
        BOOST_TEST(of.scratch(s) <=
                   std::max(room, cuda::ranges_of_attention(one, deterministic).end));
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

// Some versions of cuDNN score the columns behind the last one 0 where a mask was applied. The check
// asks for scores at which that shows.
BOOST_AUTO_TEST_CASE(columns_behind_the_last_one_count_for_nothing) {
  const auto s = packed(shape_of(1, 64, 4, 2, 64));
  test::machine_with_device machine;
  const std::string dq = std::to_string(static_cast<int>(attention_tensor::dq));
  for (const char* const engine : {" 1", " 2"})
    stand_in::fail("columns " + dq + engine, cudaErrorUnknown);
  cudnn_attention of(machine.device());
  BOOST_TEST((of.prepare(forward_of(s)) != nullptr));
  BOOST_TEST((of.prepare(s) == nullptr));
  BOOST_TEST_REQUIRE(of.left().size() == 1u);
  BOOST_TEST(of.left().front().find("cuDNN leaves results that are no numbers (the gradient of 1 x "
                                    "64 tokens with 4 heads of 64 and 2 of keys, packed)") !=
                 std::string::npos,
             of.left().front());
}

BOOST_AUTO_TEST_CASE(a_library_that_cannot_be_opened_leaves_all_to_bodies) {
  test::machine_with_device machine;
  stand_in::fail("cudnnCreate", cudaErrorUnknown);
  cudnn_attention of(machine.device());
  BOOST_TEST((of.prepare(forward_of(shape_of(1, 12, 2, 2, 8))) == nullptr));
  BOOST_TEST(of.left().front().find("cuDNN cannot be opened") != std::string::npos);
  BOOST_TEST(of.describe() == "by own tiles");
}

BOOST_AUTO_TEST_CASE(an_old_library_leaves_all_to_bodies) {
  for (const std::size_t version : {90500u, 90600u}) {
    stand_in::begin({.cudnn = version});
    cuda on(0, 1, [](cuda&) { return cuda_libraries{}; });
    static std::string told;
    told.clear();
    cudnn_attention of(on, true, [](std::string_view text) { told += text; });
    BOOST_TEST((of.prepare(forward_of(shape_of(1, 12, 2, 2, 8))) != nullptr) == (version == 90600));
    BOOST_TEST((told.find("since cuDNN 9.5.0 is older than 9.6, which is needed") !=
                std::string::npos) == (version == 90500),
               told);
    BOOST_TEST(of.describe() ==
               (version == 90600 ? "by cuDNN 9.6.0, deterministic" : "by own tiles"));
  }
}

// Whether others have taken memory must not decide what computes, and so the bits.
BOOST_AUTO_TEST_CASE(a_check_without_memory_ends_the_run) {
  test::machine_with_device machine;
  stand_in::fail("cudaMalloc", cudaErrorMemoryAllocation);
  cudnn_attention of(machine.device());
  try {
    (void)of.prepare(forward_of(shape_of(1, 12, 2, 2, 8)));
    BOOST_ERROR("nothing was refused");
  } catch (const error& e) {
    BOOST_TEST((e.code() == exit_code::memory));
    BOOST_TEST(std::string(e.what()).find("for the check of an attention") != std::string::npos,
               e.what());
  }
}
