// cuBLASLt without a device: the functions that product/cuda/cublaslt.hpp calls. Products are computed
// when their stream comes to them, by plain loops. A way serves the shape that it was proposed for and
// two of three smaller ones, so that callers have to ask. It wants the alignments that were asked for,
// and all of the workspace that it may have. GELU, and its slope, are taken of sums as they are, before
// they are rounded.
//
// Of groups it takes what NVIDIA's documents say of grouped layouts on Hopper, from version 13.4 on:
// extents, strides and addresses are read from the device's memory when the stream comes to them, and
// what is not as the documents want makes results NaN, since nobody on the host can see it.
#include "stand_in.hpp"

#include <cublasLt.h>
#include <megacpp/num/dtype.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

// CUDA's handle.
struct cublasLtContext {};

namespace {

/// What the words of CUDA's opaque structs are here.
struct layout_words {
  std::uint32_t type, mode;
  std::uint64_t rows, columns, stride;
  // Of groups: arrays in the device's memory, and whether their integers have 64 bits.
  const void *rows_at, *columns_at, *strides_at;
  std::int32_t groups;
  bool wide_extents, wide_strides;

  bool grouped() const { return mode == 2; }
};
struct description_words {
  std::uint64_t computes, scales, a_transposed, b_transposed, epilogue, bias_type;
  const void* bias;
  std::int64_t z_stride;
  const void* z; ///< what GELU is of, kept or read
};
struct wish_words {
  std::uint64_t workspace;  ///< bytes
  std::uint32_t a, b, c, d; ///< bytes at which operands begin
  std::uint64_t schemes;    ///< of sums in parts
  std::int64_t usual[3];    ///< of groups: terms of a sum, rows and columns of D
};
/// A way: for extents of D and of the sum that are at most these, in all the workspace that it may
/// have. What it does wrong is a bit of `wrong`.
struct algorithm_words {
  std::uint64_t m, n, k, types, workspace;
  std::uint32_t wrong, a, b, d;
  std::uint64_t takes; ///< its place among the machine's ways
};
/// What tests may have the first way, or the second, do wrong, by names: stand_in::fail("way 1"), or
/// "way 1 leaves GELU out".
enum mistake : std::uint32_t {
  wrong_element = 1,
  no_gelu = 2,
  by_erf = 4,
  z_of_other_rows = 8,
  no_sums = 16,       // of groups, as those that follow
  left_out = 32,      // the first one
  row_beyond = 64,    // a column too many, as the library counts: the last one again
  other_stride = 128, // D is written as if its columns followed each other
  last_term = 256     // of a sum is left out
};
std::uint32_t mistakes_of(int way) {
  const auto asked = [way](const char* what, mistake m) {
    const std::string name = "way " + std::to_string(way + 1) + what;
    return stand_in::entered(name.c_str()) != cudaSuccess ? static_cast<std::uint32_t>(m) : 0u;
  };
  return asked("", wrong_element) | asked(" leaves GELU out", no_gelu) | asked(" by erf", by_erf) |
         asked(" with Z of other rows", z_of_other_rows) | asked(" adds to nothing", no_sums) |
         asked(" leaves a group out", left_out) | asked(" writes a row too many", row_beyond) |
         asked(" takes another stride", other_stride) |
         asked(" leaves the last term out", last_term);
}
constexpr std::size_t least_workspace = 1 << 16;
constexpr std::size_t first_with_groups = 130400;

template <class Words, class Opaque> Words words_of(const Opaque& o) {
  static_assert(sizeof(Words) <= sizeof o.data && std::is_trivially_copyable_v<Words>);
  Words w;
  std::memcpy(&w, o.data, sizeof w);
  return w;
}
template <class Words, class Opaque> void put(Opaque& o, const Words& w) {
  std::memcpy(o.data, &w, sizeof w);
}
template <class Opaque, class Words> cublasStatus_t make(Opaque** to, const Words& w) {
  *to = new Opaque{};
  put(**to, w);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque> cublasStatus_t destroy(Opaque* o) {
  delete o;
  return CUBLAS_STATUS_SUCCESS;
}

template <class V> std::optional<V> value_of(const void* from, std::size_t bytes) {
  if (bytes != sizeof(V)) return {};
  V v;
  std::memcpy(&v, from, sizeof v);
  return v;
}

/// The nearest number of 11 significant bits, of two the even one.
float tf32_of(float x) {
  if (!std::isfinite(x)) return x;
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  bits += 0xfffu + (bits >> 13 & 1u);
  bits &= ~0x1fffu;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

bool adds_bias(const description_words& how) {
  return how.epilogue == CUBLASLT_EPILOGUE_BIAS || how.epilogue == CUBLASLT_EPILOGUE_GELU_BIAS ||
         how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
}

/// A product as it is to be computed.
struct computed {
  description_words how;
  layout_words a, b, d;
  double alpha, beta;
  const std::byte *from_a, *from_b;
  std::byte* to;
  algorithm_words way;
  std::byte* workspace;
  std::size_t workspace_bytes;
  std::uint64_t terms_left_out = 0;

  std::uint64_t k() const { return how.a_transposed != 0 ? a.rows : a.columns; }
  bool agrees() const {
    return d.rows == (how.a_transposed != 0 ? a.columns : a.rows) &&
           d.columns == (how.b_transposed != 0 ? b.rows : b.columns) &&
           k() == (how.b_transposed != 0 ? b.columns : b.rows) && a.stride >= a.rows &&
           b.stride >= b.rows && d.stride >= d.rows;
  }
  /// Whether the way serves it.
  bool is_served() const {
    const std::uint64_t less =
        way.m + way.n + way.k - d.rows - d.columns - k(); // one of three is not
    return agrees() && d.rows <= way.m && d.columns <= way.n && k() <= way.k && less % 3 != 1 &&
           types() == way.types;
  }
  bool has_z() const {
    return how.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS ||
           how.epilogue == CUBLASLT_EPILOGUE_DGELU;
  }
  bool z_fits() const {
    return !has_z() ||
           (how.z_stride % 8 == 0 && how.z_stride >= static_cast<std::int64_t>(d.rows) &&
            how.z != nullptr && reinterpret_cast<std::uintptr_t>(how.z) % 16 == 0);
  }
  /// What becomes of a finished sum, element (i, j) of D.
  template <class S, class Out> S end_of(S sum, std::uint64_t i, std::uint64_t j) const {
    const bool slope = how.epilogue == CUBLASLT_EPILOGUE_DGELU;
    if (!slope && how.epilogue != CUBLASLT_EPILOGUE_GELU_BIAS &&
        how.epilogue != CUBLASLT_EPILOGUE_GELU_AUX_BIAS)
      return sum;
    const auto row = (way.wrong & z_of_other_rows) != 0 ? (j + 1) % d.columns : j;
    Out* const z = static_cast<Out*>(const_cast<void*>(how.z)) + (has_z() ? i : 0) +
                   (has_z() ? row * static_cast<std::uint64_t>(how.z_stride) : 0);
    if (has_z() && !slope) *z = mc::convert<Out>(sum);
    if ((way.wrong & no_gelu) != 0) return sum;
    const double x = slope ? mc::convert<double>(*z) : static_cast<double>(sum),
                 c = 0.79788456080286536, t = std::tanh(c * (x + 0.044715 * x * x * x)),
                 cdf = std::erfc(-x * M_SQRT1_2) / 2;
    const bool erf = (way.wrong & by_erf) != 0;
    if (!slope) return static_cast<S>(erf ? x * cdf : x * (1 + t) / 2);
    const double steep = erf ? cdf + x * std::exp(-x * x / 2) * M_2_SQRTPI * M_SQRT1_2 / 2
                             : (1 + t) / 2 + x * (1 - t * t) / 2 * c * (1 + 3 * 0.044715 * x * x);
    return static_cast<S>(sum * steep);
  }
  std::uint64_t types() const {
    return std::uint64_t{a.type} | std::uint64_t{b.type} << 16 | std::uint64_t{d.type} << 32 |
           how.epilogue << 48 | std::uint64_t{d.grouped()} << 63;
  }

  /// Sums are of type S.
  template <class S, class In, class Out> void run() const {
    const auto *x = reinterpret_cast<const In*>(from_a), *y = reinterpret_cast<const In*>(from_b);
    auto* const out = reinterpret_cast<Out*>(to);
    const std::uint64_t of_x = how.a_transposed != 0 ? a.stride : 1,
                        next_x = how.a_transposed != 0 ? 1 : a.stride,
                        of_y = how.b_transposed != 0 ? 1 : b.stride,
                        next_y = how.b_transposed != 0 ? b.stride : 1;
    // It is this product's alone.
    std::memset(workspace, 0xa5, least_workspace);
    std::memset(workspace + workspace_bytes - least_workspace, 0xa5, least_workspace);
    std::vector<S> terms(k() * d.rows), sums(d.rows); // of x: (k, rows)
    const auto operand = [rounds = how.computes == CUBLAS_COMPUTE_32F_FAST_TF32](In v) {
      const S wide = mc::convert<S>(v);
      if constexpr (std::is_same_v<In, float>)
        if (rounds) return tf32_of(wide);
      return wide;
    };
    for (std::uint64_t t = 0; t < k(); ++t)
      for (std::uint64_t i = 0; i < d.rows; ++i)
        terms[t * d.rows + i] = operand(x[i * of_x + t * next_x]);
    for (std::uint64_t j = 0; j < d.columns; ++j) {
      std::fill(sums.begin(), sums.end(), S());
      S* const sum_of = sums.data(); // which is not checked at each element
      for (std::uint64_t t = 0; t < k() - terms_left_out; ++t) {
        const S factor = operand(y[j * of_y + t * next_y]);
        const S* const row = terms.data() + t * d.rows;
        for (std::uint64_t i = 0; i < d.rows; ++i) sum_of[i] += row[i] * factor;
      }
      for (std::uint64_t i = 0; i < d.rows; ++i) {
        S sum = sums[i] * static_cast<S>(alpha);
        Out& element = out[i + j * d.stride];
        if (beta != 0) sum += static_cast<S>(beta) * mc::convert<S>(element);
        if (adds_bias(how)) sum += mc::convert<S>(static_cast<const Out*>(how.bias)[i]);
        element = mc::convert<Out>(end_of<S, Out>(sum, i, j));
      }
    }
    if ((way.wrong & wrong_element) != 0) out[0] = mc::convert<Out>(mc::convert<S>(out[0]) + 1);
  }
};

/// Products of groups as they are to be computed. Operands are arrays of addresses.
struct grouped {
  computed all;

  /// What the documents of the library want that the host can see.
  bool agrees() const {
    const auto whole = [this](const layout_words& l) {
      return l.grouped() && l.groups == all.d.groups && l.rows_at != nullptr &&
             l.columns_at != nullptr && l.strides_at != nullptr;
    };
    return all.d.groups > 0 && whole(all.a) && whole(all.b) && whole(all.d) &&
           all.a.type == CUDA_R_16BF && all.how.epilogue == CUBLASLT_EPILOGUE_DEFAULT;
  }
  /// The layout of a group's matrix, as the arrays have it.
  static layout_words layout_of(const layout_words& l, std::int32_t group) {
    const auto at = [group](const void* array, bool wide) {
      return static_cast<std::uint64_t>(wide ? static_cast<const std::int64_t*>(array)[group]
                                             : static_cast<const std::int32_t*>(array)[group]);
    };
    layout_words one{};
    one.type = l.type, one.rows = at(l.rows_at, l.wide_extents);
    one.columns = at(l.columns_at, l.wide_extents), one.stride = at(l.strides_at, l.wide_strides);
    return one;
  }
  static std::byte* address(const void* array, std::int32_t group) {
    return static_cast<std::byte* const*>(array)[group];
  }
  /// Whether a group's matrix begins, and its columns do, where the documents, and the caller, say.
  static bool aligned(const layout_words& l, const void* first, std::uint32_t promised) {
    const std::uint64_t size = l.type == CUDA_R_16BF ? 2 : 4;
    return reinterpret_cast<std::uintptr_t>(first) % std::max(promised, 16u) == 0 &&
           l.rows * size % 16 == 0 && l.stride * size % 16 == 0;
  }

  template <class Out> void run(bool backwards) const {
    std::memset(all.workspace, 0xa5, least_workspace); // it is this product's alone
    for (std::int32_t i = 0; i < all.d.groups; ++i) {
      const std::int32_t g = backwards ? all.d.groups - 1 - i : i;
      if (g == 0 && (all.way.wrong & left_out) != 0) continue;
      computed one = all;
      one.way.wrong = 0;
      one.a = layout_of(all.a, g), one.b = layout_of(all.b, g), one.d = layout_of(all.d, g);
      one.from_a = address(all.from_a, g), one.from_b = address(all.from_b, g);
      one.to = address(all.to, g);
      bool sound = one.agrees() && one.d.rows > 0 && one.d.columns > 0 && one.k() > 0 &&
                   aligned(one.a, one.from_a, all.way.a) && aligned(one.b, one.from_b, all.way.b) &&
                   aligned(one.d, one.to, all.way.d);
      // Groups are computed at once: what two write is neither's.
      for (std::int32_t k = 0; k < all.d.groups; ++k)
        sound = sound && (k == g || address(all.to, k) != one.to);
      if (!sound) {
        const auto nan = std::numeric_limits<float>::quiet_NaN();
        std::fill_n(reinterpret_cast<Out*>(one.to), one.d.rows, mc::convert<Out>(nan));
        continue;
      }
      const bool last = g == all.d.groups - 1;
      if ((all.way.wrong & no_sums) != 0) one.beta = 0;
      if ((all.way.wrong & other_stride) != 0) one.d.stride = one.d.rows;
      if ((all.way.wrong & last_term) != 0 && last) one.terms_left_out = 1;
      one.run<float, mc::bf16, Out>();
      if ((all.way.wrong & row_beyond) != 0 && last) {
        const Out* const column =
            reinterpret_cast<const Out*>(one.to) + (one.d.columns - 1) * one.d.stride;
        std::copy_n(column, one.d.rows,
                    reinterpret_cast<Out*>(one.to) + one.d.columns * one.d.stride);
      }
    }
  }
};

/// f.operator()<S, In, Out>() for the types of a product, or false where there is no such product.
template <class F> bool with_types(const description_words& how, const layout_words& a,
                                   const layout_words& b, const layout_words& d, F f) {
  if (a.type != b.type) return false;
  const bool sums_64 = how.computes == CUBLAS_COMPUTE_64F && how.scales == CUDA_R_64F,
             sums_32 = (how.computes == CUBLAS_COMPUTE_32F ||
                        how.computes == CUBLAS_COMPUTE_32F_FAST_TF32) &&
                       how.scales == CUDA_R_32F;
  // The library adds a bias of the output's type to what is no fp64, and goes on with sums of one
  // type with the operands.
  if (adds_bias(how) && (sums_64 || how.bias_type != d.type)) return false;
  if (how.epilogue != CUBLASLT_EPILOGUE_DEFAULT && how.epilogue != CUBLASLT_EPILOGUE_BIAS &&
      (sums_64 || d.type != a.type))
    return false;
  if (sums_64 && a.type == CUDA_R_64F && d.type == CUDA_R_64F)
    return f.template operator()<double, double, double>(), true;
  if (!sums_32) return false;
  if (a.type == CUDA_R_32F && d.type == CUDA_R_32F)
    return f.template operator()<float, float, float>(), true;
  if (a.type != CUDA_R_16BF) return false;
  if (d.type == CUDA_R_32F) return f.template operator()<float, mc::bf16, float>(), true;
  if (d.type == CUDA_R_16BF) return f.template operator()<float, mc::bf16, mc::bf16>(), true;
  return false;
}

bool begins(const void* p, std::uint64_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

/// Terms of a sum, rows and columns of D that the library was last told to expect of groups.
std::array<std::int64_t, 3> told_of_groups{};

cublasStatus_t start_groups(const grouped& p, const void* from_c, cudaStream_t on) {
  const computed& all = p.all;
  if (!p.agrees() || from_c != all.to || all.way.types != all.types() ||
      all.way.workspace > all.workspace_bytes || !begins(all.workspace, 256))
    return CUBLAS_STATUS_INVALID_VALUE;
  static std::int64_t calls = 0;
  stand_in::start(on, "a grouped product", [p, backwards = calls++ % 2 != 0] {
    if (p.all.d.type == CUDA_R_32F) p.run<float>(backwards);
    else p.run<mc::bf16>(backwards);
  });
  return CUBLAS_STATUS_SUCCESS;
}

} // namespace

std::array<std::int64_t, 3> stand_in::usual_group() { return told_of_groups; }

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* made) {
  if (stand_in::entered("cublasLtCreate") != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *made = new cublasLtContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) {
  delete h;
  return CUBLAS_STATUS_SUCCESS;
}
std::size_t cublasLtGetVersion() { return stand_in::has().cublaslt; }
const char* cublasLtGetStatusString(cublasStatus_t s) {
  switch (s) {
  case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
  case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
  case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
  case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
  case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
  default: return "another status";
  }
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t computes,
                                        cudaDataType_t scales) {
  return make(
      d, description_words{static_cast<std::uint64_t>(computes), static_cast<std::uint64_t>(scales),
                           0, 0, CUBLASLT_EPILOGUE_DEFAULT, 0, nullptr, 0, nullptr});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return destroy(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what, const void* from,
                                              std::size_t bytes) {
  auto w = words_of<description_words>(*d);
  const auto number = value_of<std::int32_t>(from, bytes);
  const auto pointer = value_of<const void*>(from, bytes);
  const auto wide = value_of<std::int64_t>(from, bytes);
  if (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER || what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER
          ? !pointer
      : what == CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD ? !wide
                                                     : !number)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto n = static_cast<std::uint64_t>(number.value_or(0));
  switch (what) {
  case CUBLASLT_MATMUL_DESC_TRANSA: w.a_transposed = n == CUBLAS_OP_T; break;
  case CUBLASLT_MATMUL_DESC_TRANSB: w.b_transposed = n == CUBLAS_OP_T; break;
  case CUBLASLT_MATMUL_DESC_EPILOGUE: w.epilogue = n; break;
  case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: w.bias_type = n; break;
  case CUBLASLT_MATMUL_DESC_BIAS_POINTER: w.bias = *pointer; break;
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: w.z = *pointer; break;
  case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: w.z_stride = *wide; break;
  default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  put(*d, w);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type,
                                          std::uint64_t rows, std::uint64_t columns,
                                          std::int64_t stride) {
  layout_words w{};
  w.type = static_cast<std::uint32_t>(type), w.rows = rows, w.columns = columns;
  w.stride = static_cast<std::uint64_t>(stride);
  return make(l, w);
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t what,
                                                const void* from, std::size_t bytes) {
  if (stand_in::entered("cublasLtMatrixLayoutSetAttribute") != cudaSuccess)
    return CUBLAS_STATUS_INVALID_VALUE;
  auto w = words_of<layout_words>(*l);
  const auto number = value_of<std::int32_t>(from, bytes);
  const auto pointer = value_of<const void*>(from, bytes);
  const int attribute = what; // an older header has no names for the last ones
  const bool is_pointer = attribute >= 9 && attribute <= 11;
  if ((is_pointer ? !pointer : !number) ||
      (attribute >= 9 && cublasLtGetVersion() < first_with_groups))
    return CUBLAS_STATUS_INVALID_VALUE;
  switch (attribute) {
  case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: w.groups = *number; break;
  case 8: w.mode = static_cast<std::uint32_t>(*number); break;
  case 9: w.rows_at = *pointer; break;
  case 10: w.columns_at = *pointer; break;
  case 11: w.strides_at = *pointer; break;
  case 12: w.wide_extents = *number == 1; break;
  case 13: w.wide_strides = *number == 1; break;
  default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  put(*l, w);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return destroy(l); }

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  return make(p, wish_words{0, 256, 256, 256, 256, CUBLASLT_REDUCTION_SCHEME_MASK, {0, 0, 0}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return destroy(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void* from, std::size_t bytes) {
  auto w = words_of<wish_words>(*p);
  const int attribute = what; // an older header has no names for the last ones
  const bool usual = attribute >= 13 && attribute <= 15; // 64 bits, as the library has them
  const bool room = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
  const auto large = value_of<std::uint64_t>(from, bytes);
  const auto small = value_of<std::uint32_t>(from, bytes);
  if (room || usual ? !large : !small) return CUBLAS_STATUS_INVALID_VALUE;
  if (usual) {
    if (cublasLtGetVersion() < first_with_groups) return CUBLAS_STATUS_INVALID_VALUE;
    w.usual[attribute - 13] = static_cast<std::int64_t>(*large);
    put(*p, w);
    return CUBLAS_STATUS_SUCCESS;
  }
  switch (what) {
  case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: w.workspace = *large; break;
  case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: w.schemes = *small; break;
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: w.a = *small; break;
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: w.b = *small; break;
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: w.c = *small; break;
  case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: w.d = *small; break;
  default: return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  put(*p, w);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t* found, int* count) {
  computed p{};
  p.how = words_of<description_words>(*how), p.a = words_of<layout_words>(*a);
  p.b = words_of<layout_words>(*b), p.d = words_of<layout_words>(*d);
  const auto w = words_of<wish_words>(*wish);
  *count = 0;
  const bool groups = p.a.grouped() || p.b.grouped() || p.d.grouped();
  if (!(groups ? grouped{p}.agrees() : p.agrees()) || c != d) return CUBLAS_STATUS_INVALID_VALUE;
  if (groups && stand_in::entered("cuBLASLt plans groups") != cudaSuccess)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (groups) told_of_groups = {w.usual[0], w.usual[1], w.usual[2]};
  // Parts of a sum may be rounded to bf16 unless the caller says otherwise.
  const bool rounds_once =
      (w.schemes & ~std::uint64_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}) == 0;
  if (!with_types(p.how, p.a, p.b, p.d, []<class, class, class>() {}) || !p.z_fits() ||
      (p.d.type == CUDA_R_16BF && !rounds_once))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  const int ways = static_cast<int>(stand_in::has().ways.size());
  for (; *count < std::min(most, ways); ++*count) {
    const std::string name = "way " + std::to_string(*count + 1);
    found[*count] = {};
    found[*count].workspaceSize = static_cast<std::size_t>(w.workspace);
    if (w.workspace < least_workspace) return CUBLAS_STATUS_NOT_SUPPORTED;
    put(found[*count].algo,
        algorithm_words{p.d.rows, p.d.columns, p.k(), p.types(), w.workspace, mistakes_of(*count),
                        w.a, w.b, std::min(w.c, w.d), static_cast<std::uint64_t>(*count)});
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  computed p{};
  p.how = words_of<description_words>(*how), p.a = words_of<layout_words>(*a);
  p.b = words_of<layout_words>(*b), p.d = words_of<layout_words>(*d);
  p.way = words_of<algorithm_words>(*algorithm);
  *result = {};
  result->workspaceSize = static_cast<std::size_t>(p.way.workspace);
  return p.is_served() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void* alpha,
                              const void* from_a, cublasLtMatrixLayout_t a, const void* from_b,
                              cublasLtMatrixLayout_t b, const void* beta, const void* from_c,
                              cublasLtMatrixLayout_t, void* to, cublasLtMatrixLayout_t d,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                              std::size_t bytes, cudaStream_t on) {
  if (stand_in::entered("cublasLtMatmul") != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  computed p{words_of<description_words>(*how),
             words_of<layout_words>(*a),
             words_of<layout_words>(*b),
             words_of<layout_words>(*d),
             0,
             0,
             static_cast<const std::byte*>(from_a),
             static_cast<const std::byte*>(from_b),
             static_cast<std::byte*>(to),
             words_of<algorithm_words>(*algorithm),
             static_cast<std::byte*>(workspace),
             bytes};
  const bool wide = p.how.scales == CUDA_R_64F;
  p.alpha = wide ? *static_cast<const double*>(alpha) : *static_cast<const float*>(alpha);
  p.beta = wide ? *static_cast<const double*>(beta) : *static_cast<const float*>(beta);
  if (p.d.grouped()) return start_groups({p}, from_c, on);
  const bool fits = p.is_served() && p.way.workspace <= bytes;
  if (!fits || from_c != to || !begins(from_a, p.way.a) || !begins(from_b, p.way.b) ||
      !begins(to, p.way.d) || !p.z_fits() || (adds_bias(p.how) && p.how.bias == nullptr))
    return CUBLAS_STATUS_INVALID_VALUE;
  const bool known = with_types(p.how, p.a, p.b, p.d, [&]<class S, class In, class Out>() {
    const std::vector<std::int64_t> ways = stand_in::has().ways;
    const std::int64_t takes = p.way.takes < ways.size() ? ways[p.way.takes] : 0;
    stand_in::start(on, "a product", [=] { stand_in::spend(takes), p.run<S, In, Out>(); });
  });
  return known ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

} // extern "C"
