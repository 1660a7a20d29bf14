// Matrix products of a CUDA device, by cuBLASLt. Any C++ compiler that finds CUDA's headers reads
// this.
//
// cuBLASLt counts by columns: a matrix that lies by rows, (r, c), is to it the transposed one,
// (c, r), which lies by columns. So with X, W and Y by rows it computes
//
//   forward          Y^T (N, M)  = W X^T        A = W, transposed   B = X
//   input gradient   dX^T (K, M) = W^T dY^T     A = W               B = dY
//   weight gradient  dW^T (K, N) += X^T dY      A = X               B = dY, transposed
//
// Sums of fp32 and bf16 operands are taken in fp32 and rounded once; those of fp64 in fp64.
// Operands of fp32 are multiplied as they are or, where that is asked for, rounded to TF32.
//
// A way to compute a product is chosen once, so that a rerun has the same bits: the first one that
// passes the check of exec/product_check.hpp. The way of a product table is tried first, where
// there is one, then those that the library proposes, in their order. Where rows are dynamic, a way
// is checked with the most rows, with one and with an odd number, and computes other numbers of
// rows, too, where the library says that it can. A part of a shape (product_shape::part) is a
// product of its own.
//
// Products of groups, as those of experts, are computed by one kernel, where there is one
// (product/cuda/grouped_product.hpp) that passes its check. Otherwise each group is a product, and
// they run side by side on some streams.
//
// What a product ends in (product_end) the library computes of the sum as it is, before it is
// rounded: GELU in its tanh form, and GELU's slope. A product without a way for this that passes
// its check is prepared without it, and a kernel computes the rest.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/cuda/side_by_side.hpp>
#include <megacpp/exec/product_check.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/product/cuda/cublaslt_handles.hpp>
#include <megacpp/product/cuda/grouped_product.hpp>
#include <megacpp/product/cuda/product_table.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

constexpr cudaDataType_t cuda_type_of(dtype t) {
  return t == dtype::f64 ? CUDA_R_64F : t == dtype::f32 ? CUDA_R_32F : CUDA_R_16BF;
}

/// A product as people tell it from others.
inline std::string text_of(const product_shape& s) {
  const auto end = [](product_end e) {
    switch (e) {
    case product_end::sum: break;
    case product_end::gelu: return " with GELU";
    case product_end::gelu_kept: return " with GELU, of what is kept";
    case product_end::gelu_gradient: return " with the slope of GELU";
    }
    return "";
  };
  return std::string(s.kind == product_kind::forward ? "a forward product"
                     : s.kind == product_kind::weight_gradient
                         ? "a product for a weight gradient"
                         : "a product for an input gradient") +
         " of " + std::to_string(s.M) + " x " + std::to_string(s.N) + " x " + std::to_string(s.K) +
         " (" + name_of(s.a) + " x " + name_of(s.b) + " to " + name_of(s.out) + ")" +
         end(s.ends_in);
}
/// This is the cell that a check of a product of so many rows computes.
inline product_cell_shape checked_cell(const product_shape& s, std::int64_t rows) {
  const bool forward = s.kind == product_kind::forward,
             summed = s.kind == product_kind::weight_gradient;
  product_cell_shape c;
  c.type = s.a, c.output = s.out, c.bias = s.bias, c.ends_in = s.ends_in;
  c.accumulate = summed || s.accumulate;
  c.m = summed ? s.N : rows, c.n = forward ? s.N : s.K;
  c.k = forward ? s.K : summed ? rows : s.N;
  c.lda = forward ? s.x_row() : s.y_row(), c.a_transposed = summed;
  c.ldb = summed ? s.x_row() : s.K, c.b_transposed = forward;
  c.ldc = summed ? s.K : forward ? s.y_row() : s.x_row();
  return c;
}

} // namespace detail

/// This helps where no way of the library can be used.
inline constexpr const char* other_version = ": install another version of cuBLASLt";
/// Which way of a product is looked at.
struct product_way {
  int number = 0, of = 1; ///< of those that the library proposes for these rows; 0 of 1: chosen
  bool of_table = false;
  bool known = true; ///< the library says that it can compute so

  std::string text() const {
    if (of_table) return "the product table's way";
    return "way " + std::to_string(number + 1) + " of " + std::to_string(of);
  }
};

/// A product that cuBLASLt computes. Several threads may execute it.
class cublaslt_product final : public prepared_product {
public:
  /// Says what a way does wrong with the product of so many rows, as a verb with an object; nothing
  /// if the way may be trusted.
  using way_check =
      std::function<std::string(const cublaslt_product&, std::int64_t rows, const product_way&)>;

  /// Throws mc::error for a shape that cuBLASLt does not compute. prepare() comes next. `tuned`, of
  /// whose ways one may be its own, must outlive it.
  cublaslt_product(cublasLtHandle_t handle, const product_shape& s, product_rows rows, bool tf32,
                   way_check check, std::span<const tuned_product> tuned = {})
      : handle_(handle),
        check_(std::move(check)),
        tuned_(tuned),
        tf32_(tf32 && s.a == dtype::f32),
        apart_(rows == product_rows::apart && s.kind == product_kind::forward) {
    shape_ = s;
    if (s.a != s.b || (s.out != s.a && s.out != accumulator_of(s.a)))
      refuse(
          "has types that cuBLASLt does not multiply: give both operands one type, and the "
          "output that type or the type of its sums");
    if (s.scaled || s.chunk != 0 || s.panel != 0)
      refuse("has scales or panels, which are not asked of cuBLASLt: compute it on the CPU");
    const bool wide = s.a == dtype::f64;
    cublasLtMatmulDesc_t made = nullptr;
    const cublasComputeType_t type = wide    ? CUBLAS_COMPUTE_64F
                                     : tf32_ ? CUBLAS_COMPUTE_32F_FAST_TF32
                                             : CUBLAS_COMPUTE_32F;
    require_cublaslt(cublasLtMatmulDescCreate(&made, type, wide ? CUDA_R_64F : CUDA_R_32F),
                     "cublasLtMatmulDescCreate");
    description_.reset(made);
    if (forward()) set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T, "CUBLASLT_MATMUL_DESC_TRANSA");
    if (summed()) set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_T, "CUBLASLT_MATMUL_DESC_TRANSB");
    // The library adds a bias of the output's type, and none to fp64; then a body does.
    bias_behind_ = s.bias && (wide || s.out != s.b);
    if (bias_behind_ && (s.out != s.b || s.y_row() != s.N))
      refuse(
          "has a bias that neither cuBLASLt nor a body adds: give the output the bias' type, "
          "and rows that follow each other");
    if (!computes_end(s)) refuse("ends in what cuBLASLt is not asked for: prepare it without that");
    if (s.ends_in != product_end::sum || (s.bias && !bias_behind_))
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(), "CUBLASLT_MATMUL_DESC_EPILOGUE");
    if (has_z()) {
      const std::int64_t stride = forward() ? s.y_row() : s.x_row();
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, stride, "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD");
      set_z(reinterpret_cast<const void*>(std::uintptr_t{z_alignment}));
    }
    if (s.bias && !bias_behind_) {
      set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, detail::cuda_type_of(s.b),
          "CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE");
      set_bias(reinterpret_cast<const void*>(std::uintptr_t{bias_alignment})); // tells how aligned
    }
  }
  /// Whether the library is asked for what a product ends in: where all is of one type, rows of Z
  /// begin as it wants, and a forward product has a bias, by which the check lifts its sums.
  static bool computes_end(const product_shape& s) {
    if (s.ends_in == product_end::sum) return true;
    const bool of_one_type = s.a == s.b && s.a == s.out && s.a != dtype::f64;
    if (!of_one_type || s.dynamic_rows || s.accumulate) return false;
    switch (s.ends_in) {
    case product_end::sum: return true;
    case product_end::gelu: return s.kind == product_kind::forward && s.bias;
    case product_end::gelu_kept:
      return s.kind == product_kind::forward && s.bias && s.y_row() % z_multiple == 0;
    case product_end::gelu_gradient:
      return s.kind == product_kind::input_gradient && s.x_row() % z_multiple == 0;
    }
    return false;
  }

  /// Chooses how the most rows are computed and, where rows are dynamic, checks that way with one
  /// row, and with an odd number, too. Returns why there is no way, if there is none.
  std::string prepare() {
    const std::int64_t most = rows_of_part();
    const std::scoped_lock lock(mutex_);
    std::string why;
    const way* const first = choose(most, layouts_of(most), why);
    if (first == nullptr) return why;
    chosen_ = first->algorithm, of_table_ = first->of_table;
    if (!shape_.dynamic_rows) return {};
    for (const std::int64_t rows : {std::int64_t{1}, (most / 2) | 1}) {
      if (rows >= most || ways_.contains(rows)) continue;
      way w = layouts_of(rows);
      if (!serves(w, chosen_)) continue; // others are checked when they are chosen
      w.algorithm = chosen_;
      ways_.emplace(rows, std::move(w));
      if (check_(*this, rows, {.of_table = of_table_}).empty()) continue;
      ways_.erase(rows);
      if (choose(rows, layouts_of(rows), why) == nullptr) return why;
    }
    return {};
  }
  /// Whether the most rows are computed in the way of the table.
  bool of_table() const { return of_table_; }

  // These are for whoever measures ways, in the place of prepare().
  /// The ways in which the library proposes to compute the most rows: at most so many, best guess
  /// first.
  std::vector<cublasLtMatmulAlgo_t> proposals(int most) const {
    return proposals(layouts_of(rows_of_part()), most);
  }
  /// The most rows are computed so from now on, checked or not.
  void take(const cublasLtMatmulAlgo_t& algorithm) {
    const std::scoped_lock lock(mutex_);
    const std::int64_t rows = rows_of_part();
    way w = layouts_of(rows);
    w.algorithm = chosen_ = algorithm;
    ways_.clear(), ways_.emplace(rows, std::move(w));
  }
  /// What the way that was taken does wrong, as way_check says it.
  std::string fault(const product_way& of) const { return check_(*this, rows_of_part(), of); }

  /// What a check of so many rows computes.
  product_cell_shape checked(std::int64_t rows) const {
    product_cell_shape c = detail::checked_cell(shape_, rows);
    if (tf32_) c.operand_bits = 11;
    return c;
  }
  std::string text() const { return detail::text_of(shape_); }
  [[noreturn]] void refuse(const std::string& what, exit_code code = exit_code::internal) const {
    throw error(code, text() + " " + what);
  }

  void execute(const product_call& c) const override { execute(c, shape_.M); }
  /// At most so many of its parts, from the first on.
  void execute(const product_call& c, std::int64_t most) const {
    const std::int64_t rows = shape_.dynamic_rows ? c.rows : shape_.M,
                       part = apart_ || shape_.part != 0 ? rows_of_part() : rows;
    require_rows(rows);
    if (part > 0 && rows % part != 0)
      refuse("has parts of " + std::to_string(part) + " rows, and was given " +
             std::to_string(rows));
    place at(c);
    for (std::int64_t i = 0; part > 0 && i < std::min(most, rows / part); ++i)
      run(c, at, part), advance(at, part);
  }
  void execute_parts(const product_call& c, std::span<const std::int32_t> rows) const override {
    if (!shape_.dynamic_rows || shape_.bias)
      refuse("was prepared for a fixed number of rows, or with a bias, and was given parts");
    place at(c);
    for (const std::int32_t n : rows) {
      require_rows(n);
      if (n > 0) run(c, at, n), advance(at, n);
    }
  }
  /// Groups run side by side.
  void execute_groups(const product_call& c, std::span<const std::int32_t> rows) const override {
    side_by_side together(static_cast<cuda_lane&>(c.on));
    for_groups(c, rows, [&](const product_call& of, std::span<const std::int32_t> parts) {
      together.next(), execute_parts(of, parts);
    });
  }

private:
  /// Where operands and output of a part begin.
  struct place {
    explicit place(const product_call& c)
        : a(static_cast<const std::byte*>(c.a)),
          b(static_cast<const std::byte*>(c.b)),
          z(static_cast<const std::byte*>(c.kept != nullptr ? c.kept : c.slopes_at)),
          out(static_cast<std::byte*>(c.out)) {}
    const std::byte *a, *b, *z;
    std::byte* out;
  };
  /// How the library computes so many rows.
  struct way {
    cublaslt_layout a, b, d;
    cublasLtMatmulAlgo_t algorithm{};
    bool of_table = false;
  };

  /// The workspace of a lane, or of one of its branches.
  std::int64_t most_workspace() const {
    return cuda::product_workspace / (shape_.groups > 0 ? cuda_lane::most_branches : 1);
  }
  bool forward() const { return shape_.kind == product_kind::forward; }
  bool summed() const { return shape_.kind == product_kind::weight_gradient; }
  std::int64_t rows_of_part() const {
    return apart_ ? 1 : shape_.part != 0 ? shape_.part : shape_.M;
  }

  template <class V>
  void set(cublasLtMatmulDescAttributes_t what, const V& v, const char* name) const {
    set_cublaslt(description_, what, v, name);
  }
  void set_bias(const void* bias) const {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias, "CUBLASLT_MATMUL_DESC_BIAS_POINTER");
  }
  void set_z(const void* z) const {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, z, "CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER");
  }
  /// Whether it keeps, or reads, a Z beside its result.
  bool has_z() const {
    return shape_.ends_in == product_end::gelu_kept || shape_.ends_in == product_end::gelu_gradient;
  }
  cublasLtEpilogue_t epilogue() const {
    switch (shape_.ends_in) {
    case product_end::sum: break;
    case product_end::gelu: return CUBLASLT_EPILOGUE_GELU_BIAS;
    case product_end::gelu_kept: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case product_end::gelu_gradient: return CUBLASLT_EPILOGUE_DGELU;
    }
    return CUBLASLT_EPILOGUE_BIAS;
  }
  void require_rows(std::int64_t rows) const {
    if (rows < 0 || rows > shape_.M)
      refuse("was prepared for " + std::to_string(shape_.M) + " rows, and was given " +
             std::to_string(rows));
  }

  way layouts_of(std::int64_t rows) const {
    const product_shape& s = shape_;
    const auto of_x = [&](dtype t) {
      return make_cublaslt_layout(detail::cuda_type_of(t), s.K, rows, s.x_row());
    };
    const auto of_y = [&](dtype t) {
      return make_cublaslt_layout(detail::cuda_type_of(t), s.N, rows, s.y_row());
    };
    const auto of_w = [&](dtype t) {
      return make_cublaslt_layout(detail::cuda_type_of(t), s.K, s.N, s.K);
    };
    switch (s.kind) {
    case product_kind::forward: return {of_w(s.b), of_x(s.a), of_y(s.out)};
    case product_kind::input_gradient: return {of_w(s.b), of_y(s.a), of_x(s.out)};
    case product_kind::weight_gradient: break;
    }
    return {of_x(s.b), of_y(s.a), of_w(s.out)};
  }
  /// The ways that the library proposes, best guess first.
  std::vector<cublasLtMatmulAlgo_t> proposals(const way& w, int most) const {
    cublasLtMatmulPreference_t made = nullptr;
    require_cublaslt(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
    const cublaslt_preference wish(made);
    const auto room = static_cast<std::size_t>(most_workspace());
    require_cublaslt(cublasLtMatmulPreferenceSetAttribute(
                         made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room),
                     "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES");
    // Partial sums are those that the product is computed in, so that it is rounded once.
    const std::uint32_t schemes =
        CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    require_cublaslt(
        cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                             &schemes, sizeof schemes),
        "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK");
    // Planned buffers and parameters begin at multiples of 64 bytes. An expert's weight begins a
    // multiple of the weight's bytes behind the first expert's, and a row a multiple of the row
    // stride behind the first row: alignment() says how far both are aligned.
    const auto aligned = [&](cublasLtMatmulPreferenceAttributes_t what, std::uint32_t bytes) {
      require_cublaslt(cublasLtMatmulPreferenceSetAttribute(made, what, &bytes, sizeof bytes),
                       "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT");
    };
    aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment_of_b());
    aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment_of_a());
    aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment_of_out());
    aligned(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment_of_out());
    std::vector<cublasLtMatmulHeuristicResult_t> found(static_cast<std::size_t>(most));
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle_, description_.get(), w.a.get(), w.b.get(), w.d.get(),
                                       w.d.get(), made, most, found.data(), &count);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    require_cublaslt(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> all;
    for (int i = 0; i < count; ++i)
      if (const auto& one = found[static_cast<unsigned>(i)]; one.state == CUBLAS_STATUS_SUCCESS)
        all.push_back(one.algo);
    return all;
  }
  /// The largest power of two, at most 64, that divides the bytes of so many elements. What lies a
  /// multiple of these bytes behind an address of that alignment has the alignment, too.
  static std::uint32_t alignment(std::int64_t elements, dtype t) {
    const std::int64_t bytes = elements * size_of(t);
    return static_cast<std::uint32_t>(std::min<std::int64_t>(bytes & -bytes, 64));
  }
  std::int64_t of_w() const { return shape_.N * shape_.K; }
  std::uint32_t alignment_of_a() const {
    return alignment(forward() ? shape_.x_row() : shape_.y_row(), shape_.a);
  }
  std::uint32_t alignment_of_b() const {
    return alignment(summed() ? shape_.x_row() : of_w(), shape_.b);
  }
  std::uint32_t alignment_of_out() const {
    return alignment(summed() ? of_w() : forward() ? shape_.y_row() : shape_.x_row(), shape_.out);
  }
  bool serves(const way& w, const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t checked{};
    return cublasLtMatmulAlgoCheck(handle_, description_.get(), w.a.get(), w.b.get(), w.d.get(),
                                   w.d.get(), &algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
           checked.workspaceSize <= static_cast<std::size_t>(most_workspace());
  }
  /// The first way that passes its check, or null, and why: that of the table, then those that the
  /// library proposes.
  const way* choose(std::int64_t rows, way w, std::string& why) const {
    way& here = ways_.emplace(rows, std::move(w)).first->second;
    if (const tuned_product* const t = find_tuned(tuned_, call_of(shape_, rows), tf32_)) {
      here.algorithm = t->way, here.of_table = true;
      if (check_(*this, rows, {.of_table = true, .known = serves(here, t->way)}).empty())
        return &here;
      here.of_table = false;
    }
    const std::vector<cublasLtMatmulAlgo_t> proposed = proposals(here, most_proposals);
    if (proposed.empty()) {
      ways_.erase(rows);
      why = "is one that cuBLASLt knows no way to compute for " + std::to_string(rows) + " rows";
      return nullptr;
    }
    std::string fault;
    const int ways = static_cast<int>(proposed.size());
    for (int i = 0; i < ways; ++i) {
      here.algorithm = proposed[static_cast<unsigned>(i)];
      if (fault = check_(*this, rows, {i, ways}); fault.empty()) return &here;
    }
    ways_.erase(rows);
    why = "has no way of cuBLASLt that passes its check (the last " + fault + ")";
    return nullptr;
  }
  /// Fewer rows than the most are computed in the way of these, where it serves them.
  const way& way_of(std::int64_t rows) const {
    if (const auto at = ways_.find(rows); at != ways_.end()) return at->second;
    way w = layouts_of(rows);
    if (!serves(w, chosen_)) {
      std::string why;
      const way* const chosen = choose(rows, std::move(w), why);
      if (chosen == nullptr) refuse(why + other_version, exit_code::machine);
      return *chosen;
    }
    w.algorithm = chosen_;
    return ways_.emplace(rows, std::move(w)).first->second;
  }

  void run(const product_call& c, const place& at, std::int64_t rows) const {
    auto& on = static_cast<cuda_lane&>(c.on);
    const auto begins = [](const void* p, std::uint32_t bytes) {
      return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
    };
    const bool adds_bias = shape_.bias && !bias_behind_;
    if (!begins(at.a, alignment_of_a()) || !begins(at.b, alignment_of_b()) ||
        !begins(at.out, alignment_of_out()) || (adds_bias && !begins(c.bias, bias_alignment)))
      refuse(
          "was given an operand that begins elsewhere than a planned buffer or a row of one does: "
          "give it such memory");
    if (has_z() && (at.z == nullptr || !begins(at.z, z_alignment)))
      refuse(
          "was given no Z, or one that begins elsewhere than a planned buffer: give "
          "product_call::kept, or slopes_at, such memory");
    if (on.branched() && shape_.groups == 0)
      refuse("was started beside others: prepare it with product_shape::groups");
    {
      const std::scoped_lock lock(mutex_);
      const way& w = way_of(rows);
      if (adds_bias) set_bias(c.bias);
      if (has_z()) set_z(at.z);
      const bool adds = summed() || shape_.accumulate;
      const cuda_lane::product_place place = on.for_product();
      const float one = 1, factor = adds ? 1 : 0;
      const double wide_one = 1, wide_factor = factor;
      const bool wide = shape_.a == dtype::f64;
      // The weight is the first operand, or the weight gradient's X.
      const cublasStatus_t status = cublasLtMatmul(
          handle_, description_.get(), wide ? static_cast<const void*>(&wide_one) : &one, at.b,
          w.a.get(), at.a, w.b.get(), wide ? static_cast<const void*>(&wide_factor) : &factor,
          at.out, w.d.get(), at.out, w.d.get(), &w.algorithm, place.workspace,
          static_cast<std::size_t>(std::min(place.bytes, most_workspace())), place.on);
      if (status != CUBLAS_STATUS_SUCCESS) require_cublaslt(status, on.behind("cublasLtMatmul"));
    }
    if (shape_.bias && bias_behind_) {
      if (shape_.out == dtype::f64) add_bias<double>(on, at.out, c.bias, rows);
      else add_bias<float>(on, at.out, c.bias, rows);
    }
  }
  template <class T>
  void add_bias(cuda_lane& on, std::byte* y, const void* bias, std::int64_t rows) const {
    auto* const out = reinterpret_cast<T*>(y);
    on.for_rows(
        rows, rows::bias_add_row<T, std::int64_t>{shape_.N, out, static_cast<const T*>(bias), out});
  }
  void advance(place& at, std::int64_t rows) const {
    const bool of_y = shape_.kind != product_kind::forward;
    at.a += rows * (of_y ? shape_.y_row() : shape_.x_row()) * size_of(shape_.a);
    if (summed()) at.b += rows * shape_.x_row() * size_of(shape_.b);
    else at.out += rows * (forward() ? shape_.y_row() : shape_.x_row()) * size_of(shape_.out);
    if (has_z()) at.z += rows * (forward() ? shape_.y_row() : shape_.x_row()) * size_of(shape_.out);
  }

  static constexpr std::uint32_t bias_alignment = 64; ///< bytes: that of parameters
  static constexpr std::int64_t z_multiple = 8;       ///< elements from a row of Z to the next
  static constexpr std::uint32_t z_alignment = 16;    ///< bytes: that of a row of Z, of bf16
  static constexpr int most_proposals = 8;
  cublasLtHandle_t handle_;
  way_check check_;
  std::span<const tuned_product> tuned_;
  bool tf32_;  ///< operands are rounded
  bool apart_; ///< each row is a product, whose bits do not depend on the others
  cublaslt_description description_;
  bool bias_behind_ = false;                 ///< a body adds it
  cublasLtMatmulAlgo_t chosen_{};            ///< for the most rows
  bool of_table_ = false;                    ///< and where it is from
  mutable std::recursive_mutex mutex_;       ///< of the description and the ways
  mutable std::map<std::int64_t, way> ways_; ///< by rows
};

/// cuBLASLt on a CUDA device, which is the current one.
class cublaslt_products final : public product_source {
public:
  /// `rows`: how those of forward products are computed. `tell` hears of the first way that fails
  /// its check. `tf32`: operands of fp32 are rounded. `tuned`: of a table, for this machine.
  /// `grouped`: kernels for products of groups, which run on this device.
  explicit cublaslt_products(cuda& on, product_rows rows = product_rows::together,
                             void (*tell)(std::string_view) = nullptr, bool tf32 = false,
                             std::vector<tuned_product> tuned = {},
                             const grouped_library& grouped = {})
      : on_(on),
        rows_(rows),
        tf32_(tf32),
        tell_(tell),
        tuned_(std::move(tuned)),
        grouped_(grouped) {
    cublasLtHandle_t made = nullptr;
    if (const cublasStatus_t s = cublasLtCreate(&made); s != CUBLAS_STATUS_SUCCESS)
      throw error(exit_code::machine,
                  std::string("cuBLASLt cannot be opened (") + cublasLtGetStatusString(s) +
                      "): free memory of the device, or give a machine with another driver");
    handle_.reset(made);
  }
  const prepared_product& prepare(const product_shape& asked) override {
    product_shape s = asked;
    const bool known = std::ranges::find(without_end_, s) != without_end_.end();
    const bool asked_for = cublaslt_product::computes_end(s);
    if (!known && !asked_for) without_end_.push_back(s);
    if (known || !asked_for) s.ends_in = product_end::sum;
    for (const auto& p : products_)
      if (p->shape() == s) return *p;
    if (s.groups > 0)
      if (auto all = make_grouped(s)) return *products_.emplace_back(std::move(all));
    auto made = make(s);
    const std::string why = made->prepare();
    if (why.empty()) {
      of_table_ += made->of_table() ? 1 : 0;
      return *products_.emplace_back(std::move(made));
    }
    if (s.ends_in == product_end::sum) made->refuse(why + other_version, exit_code::machine);
    if (tell_ != nullptr && !std::exchange(told_of_end_, true))
      tell_(made->text() + " " + why +
            ": a kernel computes GELU behind it; further ones are not told");
    without_end_.push_back(s);
    return prepare(s);
  }
  /// Makes a product that is not prepared, for whoever measures its ways.
  std::unique_ptr<cublaslt_product> make(const product_shape& s) {
    on_.make_current();
    return std::make_unique<cublaslt_product>(
        handle_.get(), s, rows_, tf32_,
        [this](const cublaslt_product& p, std::int64_t rows, const product_way& way) {
          return fault_of(p, rows, way);
        },
        tuned_);
  }
  void lend(std::byte* memory, std::int64_t bytes) override {
    lent_ = memory, lent_bytes_ = bytes, lent_used_ = 0;
  }
  std::int64_t take_back() override {
    lent_ = nullptr, lent_bytes_ = 0;
    return std::exchange(lent_used_, 0);
  }
  const product_checks& checks() const override { return checks_; }
  std::vector<product_shape> shapes() const override {
    std::vector<product_shape> all;
    for (const auto& p : products_) all.push_back(p->shape());
    return all;
  }
  std::int64_t workspace_bytes() const override {
    return products_.empty() ? 0 : cuda::product_workspace;
  }
  product_type type() override { return product_type::bf16; }
  std::string describe(dtype storage) override {
    std::string text = "cuBLASLt " + dotted_version(cublasLtGetVersion());
    if (storage == dtype::f32) text += tf32_ ? ", by TF32" : ", without TF32";
    if (!tuned_.empty())
      text += ", " + std::to_string(of_table_) + " of " + std::to_string(products_.size()) +
              " products by the product table";
    if (const std::size_t n = checks_.refused.size(); n > 0)
      text += ", but for " + std::to_string(n) + " of " + std::to_string(checks_.plans) +
              " ways, which fail their check";
    if (const std::size_t n = without_end_.size(); n > 0)
      text += ", with a kernel for GELU behind " + std::to_string(n) +
              (n == 1 ? " product" : " products");
    const auto groups =
        std::ranges::count_if(products_, [](const auto& p) { return p->shape().groups > 0; });
    if (groups > 0)
      text += ", " +
              (at_once_ == groups ? std::string("products of experts")
               : at_once_ == 0    ? std::string("products of experts one by one")
                                  : std::to_string(at_once_) + " of " + std::to_string(groups) +
                                     " products of experts") +
              (at_once_ > 0 ? std::string(" at once by ") + grouped_.name : std::string());
    return text;
  }

private:
  std::string fault_of(const cublaslt_product& p, std::int64_t rows, const product_way& way) {
    ++checks_.plans;
    std::string fault = way.known ? fault_of(p, rows) : "refuses to compute";
    if (!fault.empty()) {
      const std::string& text = checks_.refused.emplace_back(
          "cuBLASLt " + fault + " in " + way.text() + " of " + p.text() + ", checked with " +
          std::to_string(rows) + " rows");
      if (tell_ != nullptr && !std::exchange(told_of_ways_, true))
        tell_(text +
              ": the next way that it proposes is tried, and further ones that fail their "
              "check are not told");
    }
    return fault;
  }
  std::string fault_of(const cublaslt_product& p, std::int64_t rows) {
    return fault_of(product_check(p.checked(rows)), [&](product_call c) {
      const bool keeps = p.shape().ends_in == product_end::gelu_kept;
      if (p.shape().dynamic_rows) c.rows = rows;
      if (!keeps) c.slopes_at = std::exchange(c.kept, nullptr);
      p.execute(c, 1);
    });
  }
  /// Runs a check of execute(call), in whose `kept` is a Z.
  template <class F> std::string fault_of(const product_check& check, F execute) {
    const stopwatch watch;
    auto& l = static_cast<cuda_lane&>(on_.main_lane());
    // A product of experts may need a way for another number of rows while others run beside it.
    const back_in_order alone(l);
    const auto bytes = static_cast<std::int64_t>((check.bytes() + 255) / 256 * 256);
    constexpr const char *what = "the check of a matrix product",
                         *remedy = "a smaller micro-batch or sequence";
    const arena room(host_memory::of_process(), bytes, what, remedy);
    arena own;
    std::byte* memory = lent_;
    if (bytes <= lent_bytes_) lent_used_ = std::max(lent_used_, bytes);
    else own = arena(on_, bytes, what, remedy), memory = own.data();
    l.reserve({.workspace = cuda::product_workspace});
    const auto there = [&](const void* x) {
      return x == nullptr ? nullptr : memory + (static_cast<const std::byte*>(x) - room.data());
    };
    double in_library = 0;
    std::string fault = check.fault(room.data(), [&](const product_check::operands& o) {
      on_.write(memory, room.data(), bytes);
      l.finish();
      const stopwatch call;
      try {
        execute({.on = l,
                 .a = there(o.a),
                 .b = there(o.b),
                 .bias = there(o.bias),
                 .out = there(o.c),
                 .kept = there(o.z)});
      } catch (const error&) { // a way that cannot be started is no way
        (void)cudaGetLastError();
        return false;
      }
      l.finish();
      in_library += call.seconds();
      on_.read(room.data(), memory, bytes);
      return true;
    });
    checks_.seconds += watch.seconds() - in_library;
    checks_.library_seconds += in_library;
    return fault;
  }

  /// The product of all groups at once, unless there is no kernel for it that passes its checks:
  /// with the shape's matrices and groups of no, one, odd and many rows; and with as many groups as
  /// the shape has, at least 65, with small matrices, since kernels look for their part in steps of
  /// some 32, and groups may have several parts.
  std::unique_ptr<grouped_product> make_grouped(const product_shape& s) {
    if (grouped_.start == nullptr || !grouped_product::computes(s)) return nullptr;
    std::vector<std::int64_t> few, all;
    for (const std::int64_t n : {1, 0, 257, 67}) few.push_back(std::min(n, s.M));
    for (std::int64_t g = 0; g < std::max<std::int64_t>(s.groups, 65); ++g)
      all.push_back(std::min<std::int64_t>(g % 5 * 7, s.M));
    product_shape small = s;
    small.N = 72, small.K = 136, small.x_stride = small.y_stride = 0;
    for (const auto& [of, rows] : {std::pair(s, few), std::pair(small, all)}) {
      ++checks_.plans;
      product_shape checked = of;
      checked.groups = std::ssize(rows);
      const grouped_product p(grouped_, checked);
      const std::vector<std::int32_t> parts(rows.begin(), rows.end());
      const std::string fault =
          fault_of(product_check(detail::checked_cell(checked, std::ranges::max(rows)), rows),
                   [&](const product_call& c) { p.execute_groups(c, parts); });
      if (fault.empty()) continue;
      const std::string& text = checks_.refused.emplace_back(
          grouped_.name + (" " + fault) + " in groups of " + detail::text_of(of) +
          ", checked with " + std::to_string(checked.groups) + " groups");
      if (tell_ != nullptr && !std::exchange(told_of_groups_, true))
        tell_(text +
              ": cuBLASLt computes these products one by one, and further kernels that fail their "
              "check "
              "are not told");
      return nullptr;
    }
    ++at_once_;
    return std::make_unique<grouped_product>(grouped_, s);
  }

  cuda& on_;
  product_rows rows_;
  bool tf32_;
  void (*tell_)(std::string_view);
  std::vector<tuned_product> tuned_;
  grouped_library grouped_;
  cublaslt_handle handle_;
  product_checks checks_;
  std::byte* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0, lent_used_ = 0;
  std::vector<std::unique_ptr<prepared_product>> products_;
  int of_table_ = 0;                       ///< products in the way of the table
  int at_once_ = 0;                        ///< products of groups that one kernel computes
  bool told_of_ways_ = false;              ///< that a way of cuBLASLt fails its check
  bool told_of_groups_ = false;            ///< that a kernel for all groups fails its check
  bool told_of_end_ = false;               ///< that no way computes what some product ends in
  std::vector<product_shape> without_end_; ///< behind which a kernel computes what they end in
};

} // namespace mc
