// A matrix product that cuBLASLt computes on a CUDA device. Any C++ compiler that finds CUDA's
// headers compiles this header.
//
// cuBLASLt counts by columns: it takes a matrix (r, c) that is stored by rows for the transposed
// matrix (c, r) that is stored by columns. So with X, W and Y stored by rows it computes
//
//   forward          Y^T (N, M)  = W X^T        A = W, transposed   B = X
//   input gradient   dX^T (K, M) = W^T dY^T     A = W               B = dY
//   weight gradient  dW^T (K, N) += X^T dY      A = X               B = dY, transposed
//
// Sums of fp32 and bf16 operands are taken in fp32 and rounded once; those of fp64 in fp64.
// Operands of fp32 are multiplied as they are or, on request, rounded to TF32 first.
//
// A way is an algorithm of cuBLASLt. The way to compute a product is chosen once, so that a rerun
// has the same bits: the first way that passes the check of exec/product_check.hpp. The way of a
// product table is tried first, where there is one, then the library's proposals in their order.
// For dynamic rows, a way is checked with the most rows, with one row and with an odd number of
// rows. It computes other numbers of rows, too, where the library says that it can. A segment of a
// shape (product_shape::segment) is a product of its own.
//
// A product may end in GELU in its tanh form, or in GELU's slope (product_end). The library
// computes the end from the sum before the sum is rounded. Where no way with the end passes its
// check, the product is prepared without it, and a kernel computes the rest.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/cuda/side_by_side.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/product/cuda/cublaslt_handles.hpp>
#include <megacpp/product/cuda/device_check.hpp>
#include <megacpp/product/cuda/product_table.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The end of messages where no way of cuBLASLt can be used: the remedy.
inline constexpr const char* other_version = ": install another version of cuBLASLt";
/// A way to compute a product by cuBLASLt, for messages about its check.
struct product_way {
  int number = 0, of = 1; ///< number of the way, and how many the library proposes; 0 of 1: chosen
  bool of_table = false;
  bool known = true; ///< the library says that it can compute the product in this way

  std::string text() const {
    if (of_table) return "the product table's way";
    return "way " + std::to_string(number + 1) + " of " + std::to_string(of);
  }
};

/// A product that cuBLASLt computes. Several threads may execute it.
class cublaslt_product final : public prepared_product {
public:
  /// Checks the product of so many rows in the current way. Returns what the way does wrong, as a
  /// verb with an object; "" if it may be trusted.
  using way_check =
      std::function<std::string(const cublaslt_product&, std::int64_t rows, const product_way&)>;

  /// Makes a product; prepare() must come next. Throws mc::error for a shape that cuBLASLt does not
  /// compute. `tuned` must outlive the product, which may use one of its ways.
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
    if (s.scaled || s.sum_block != 0 || s.panel != 0)
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
    // The library adds a bias of the output's type, but none to fp64; a body adds other biases.
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
      set_bias(reinterpret_cast<const void*>(std::uintptr_t{bias_alignment})); // alignment
    }
  }
  /// Returns true if the library is asked for the end of a product: all operands have one type, the
  /// rows of Z begin where the library wants them, and a forward product has a bias, by which the
  /// check lifts its sums.
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

  /// Chooses the way for the most rows and, where rows are dynamic, checks it with one row and with
  /// an odd number of rows, too. Returns why there is no way; "" if there is one.
  std::string prepare() {
    const std::int64_t most = rows_of_segment();
    const std::scoped_lock lock(mutex_);
    std::string why;
    const way* const first = choose(most, layouts_of(most), why);
    if (first == nullptr) return why;
    chosen_ = first->algorithm, of_table_ = first->of_table;
    if (!shape_.dynamic_rows) return {};
    for (const std::int64_t rows : {std::int64_t{1}, (most / 2) | 1}) {
      if (rows >= most || ways_.contains(rows)) continue;
      way w = layouts_of(rows);
      if (!serves(w, chosen_)) continue; // the way for these rows is checked when it is chosen
      w.algorithm = chosen_;
      ways_.emplace(rows, std::move(w));
      if (check_(*this, rows, {.of_table = of_table_}).empty()) continue;
      ways_.erase(rows);
      if (choose(rows, layouts_of(rows), why) == nullptr) return why;
    }
    return {};
  }
  /// Returns true if the most rows of the product are computed in the way of the product table.
  bool of_table() const { return of_table_; }

  // The next functions serve code that measures ways, instead of prepare().
  // Returns the ways in which the library proposes to compute the most rows: at most `most`, best
  // guess first.
  std::vector<cublasLtMatmulAlgo_t> proposals(int most) const {
    return proposals(layouts_of(rows_of_segment()), most);
  }
  /// Sets the algorithm by which the most rows of the product are computed, checked or not.
  void take(const cublasLtMatmulAlgo_t& algorithm) {
    const std::scoped_lock lock(mutex_);
    const std::int64_t rows = rows_of_segment();
    way w = layouts_of(rows);
    w.algorithm = chosen_ = algorithm;
    ways_.clear(), ways_.emplace(rows, std::move(w));
  }
  /// Returns what the algorithm that was set does wrong, as way_check does.
  std::string fault(const product_way& of) const { return check_(*this, rows_of_segment(), of); }

  /// Returns the shape of the product that a check with so many rows computes.
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
  /// Executes at most so many segments of the product, from the first on.
  void execute(const product_call& c, std::int64_t most) const {
    const std::int64_t rows = shape_.dynamic_rows ? c.rows : shape_.M,
                       segment = apart_ || shape_.segment != 0 ? rows_of_segment() : rows;
    require_rows(rows);
    if (segment > 0 && rows % segment != 0)
      refuse("has segments of " + std::to_string(segment) + " rows, and was given " +
             std::to_string(rows));
    place at(c);
    for (std::int64_t i = 0; segment > 0 && i < std::min(most, rows / segment); ++i)
      execute_rows(c, at, segment), advance(at, segment);
  }
  void execute_segments(const product_call& c, std::span<const std::int32_t> rows) const override {
    if (!shape_.dynamic_rows || shape_.bias)
      refuse("was prepared for a fixed number of rows, or with a bias, and was given segments");
    place at(c);
    for (const std::int32_t n : rows) {
      require_rows(n);
      if (n > 0) execute_rows(c, at, n), advance(at, n);
    }
  }
  /// Executes the products of all groups, on streams side by side.
  void execute_groups(const product_call& c, std::span<const std::int32_t> rows) const override {
    side_by_side together(static_cast<cuda_lane&>(c.on));
    for_groups(c, rows, [&](const product_call& of, std::span<const std::int32_t> segments) {
      together.next(), execute_segments(of, segments);
    });
  }

private:
  /// The addresses of the operands and the output of a segment.
  struct place {
    explicit place(const product_call& c)
        : a(static_cast<const std::byte*>(c.a)),
          b(static_cast<const std::byte*>(c.b)),
          z(static_cast<const std::byte*>(c.kept != nullptr ? c.kept : c.slopes_at)),
          out(static_cast<std::byte*>(c.out)) {}
    const std::byte *a, *b, *z;
    std::byte* out;
  };
  /// A way to compute so many rows of a product: the layouts of the operands and the algorithm.
  struct way {
    cublaslt_layout a, b, d;
    cublasLtMatmulAlgo_t algorithm{};
    bool of_table = false;
  };

  /// Returns the bytes of workspace that a call of the product may use: a lane's or a branch's.
  std::int64_t most_workspace() const {
    return cuda::product_workspace / (shape_.groups > 0 ? cuda_lane::most_branches : 1);
  }
  bool forward() const { return shape_.kind == product_kind::forward; }
  bool summed() const { return shape_.kind == product_kind::weight_gradient; }
  std::int64_t rows_of_segment() const {
    return apart_ ? 1 : shape_.segment != 0 ? shape_.segment : shape_.M;
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
  /// Returns true if the product writes, or reads, a Z beside its result.
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
  /// Returns the ways that the library proposes, best guess first. Planned buffers and parameters
  /// begin at multiples of 64 bytes. An expert's weight begins a multiple of the weight's bytes
  /// behind the first expert's, and a row begins a multiple of the row stride behind the first row:
  /// alignment() returns the alignment of both.
  std::vector<cublasLtMatmulAlgo_t> proposals(const way& w, int most) const {
    const cublaslt_preference wish = make_cublaslt_preference(
        most_workspace(), {alignment_of_b(), alignment_of_a(), alignment_of_out()});
    std::vector<cublasLtMatmulAlgo_t> all;
    for (const auto& one : cublaslt_proposals(handle_, description_, w.a, w.b, w.d, wish, most))
      all.push_back(one.algo);
    return all;
  }
  /// Returns the largest power of two, at most 64, that divides the bytes of so many elements. An
  /// address that is a multiple of these bytes behind an address of that alignment has the
  /// alignment, too.
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
  /// Returns the first way that passes its check, the table's before the library's proposals; or
  /// null, and sets `why`.
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
  /// Returns the way for so many rows: the way of the most rows, where it serves fewer rows, too.
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

  void execute_rows(const product_call& c, const place& at, std::int64_t rows) const {
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
      // The first operand is the weight, or the X of a weight gradient.
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

  static constexpr std::uint32_t bias_alignment = 64; ///< bytes: the alignment of parameters
  static constexpr std::int64_t z_multiple = 8;       ///< stride of Z: a multiple of this
  static constexpr std::uint32_t z_alignment = 16;    ///< bytes: alignment of bf16 rows of Z
  static constexpr int most_proposals = 8;
  cublasLtHandle_t handle_;
  way_check check_;
  std::span<const tuned_product> tuned_;
  bool tf32_;  ///< fp32 operands are rounded to TF32
  bool apart_; ///< each row is a product of its own, whose bits do not depend on other rows
  cublaslt_description description_;
  bool bias_behind_ = false;                 ///< a body adds the bias
  cublasLtMatmulAlgo_t chosen_{};            ///< the algorithm for the most rows
  bool of_table_ = false;                    ///< the algorithm is from the product table
  mutable std::recursive_mutex mutex_;       ///< guards the description and the ways
  mutable std::map<std::int64_t, way> ways_; ///< ways by their number of rows
};

} // namespace mc
