// The matrix products of the CPU device as their users see them: prepared products, and the engine
// that owns them. Users include product/product.hpp, which also brings the definitions.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/exec/product_check.hpp>
#include <megacpp/exec/product_source.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/product/eigen.hpp>
#include <megacpp/threads/openmp.hpp>
#include <megacpp/threads/parallel.hpp>
#if defined(MEGACPP_WITH_ONEDNN)
#include <megacpp/product/onednn.hpp>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

/// An extent that is cut into full steps and a rest. `sizes` descend; sizes[0] is the step, and the
/// rest has each of the other sizes at most once.
struct cut {
  std::vector<std::int64_t> sizes;

  cut() = default;
  cut(std::int64_t extent, std::int64_t step, bool dynamic) {
    step = std::min(step, extent);
    sizes.push_back(step);
    if (dynamic) {
      const auto below = std::bit_ceil(static_cast<std::uint64_t>(step)) / 2;
      for (auto s = static_cast<std::int64_t>(below); s > 0; s /= 2) sizes.push_back(s);
    } else if (extent % step) {
      sizes.push_back(extent % step);
    }
  }
  struct segment {
    std::int64_t begin = 0;
    std::size_t size = 0; // index into sizes
  };
  std::int64_t count(std::int64_t extent) const {
    std::int64_t n = extent / sizes[0];
    std::int64_t rest = extent % sizes[0];
    for (std::size_t i = 1; i < sizes.size(); ++i)
      if (rest >= sizes[i]) ++n, rest -= sizes[i];
    return n;
  }
  segment at(std::int64_t index, std::int64_t extent) const {
    const std::int64_t full = extent / sizes[0];
    if (index < full) return {index * sizes[0], 0};
    segment s{full * sizes[0], 0};
    for (std::size_t i = 1; i < sizes.size(); ++i) {
      if (extent - s.begin < sizes[i]) continue;
      if (index-- == full) return {s.begin, i};
      s.begin += sizes[i];
    }
    return s;
  }
};

constexpr std::size_t aligned(std::size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

struct aligned_delete {
  void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t(4096)); }
};

} // namespace detail

class product_engine;

/// A prepared matrix product. Products of one lane share its workspace, so one runs at a time.
class product : public prepared_product {
public:
  /// Executes the product. It allocates nothing itself; each of its `cell_calls(rows)` library
  /// calls may make a few small allocations.
  void execute(const product_call& c) const override;
  void execute_segments(const product_call& c, std::span<const std::int32_t> rows) const override;

  /// Returns the number of library calls of one execute.
  std::int64_t cell_calls(std::int64_t rows = -1) const {
    const auto e = segment_extents(rows);
    if (apart(e.m)) return 0;
    return shape_.segments() * rows_.count(e.m) * columns_.count(e.n) * sum_blocks_.count(e.k);
  }
  /// Returns the bytes of workspace that the product's copies of operands and tiles take.
  std::int64_t workspace_bytes() const;
  /// Returns true if bf16 operands are widened to fp32 before they are multiplied.
  bool widened() const { return widened_; }

private:
  friend class product_engine;
  struct extent3 {
    std::int64_t m = 0, n = 0, k = 0; // extents of the output and of the sum
  };
  /// The form in which tiles read an operand: the operand itself, a plain copy of all of it that is
  /// made before the tiles, or plain copies of its blocks that each tile makes.
  enum class copying : std::uint8_t { none, whole, block };
  struct operand {
    bool transposed = false; // stored with the sum's index first (A), last (B)
    copying copied = copying::none;
    std::int64_t stride = 0, copy_stride = 0;
    std::size_t copy_bytes = 0;
    // Bytes from a row of a segment to the next: of the operand, and of the form that tiles read;
    // 0: the operand is W, which all segments share.
    std::int64_t row_bytes = 0, read_bytes = 0;

    std::int64_t cell_stride() const { return copied == copying::none ? stride : copy_stride; }
    bool cell_transposed() const { return transposed && copied == copying::none; }
    std::size_t whole_bytes() const { return copied == copying::whole ? copy_bytes : 0; }
    std::size_t block_bytes() const { return copied == copying::block ? copy_bytes : 0; }
  };
  /// Returns the bytes of the copies of an operand that are read by segments that run together.
  std::size_t copies_of(const operand& o) const {
    return o.row_bytes != 0 ? static_cast<std::size_t>(at_once_) * o.whole_bytes()
                            : o.whole_bytes();
  }
  /// Consecutive segments: the addresses of their operands and output, and their numbers of rows;
  /// null: the shape has the number of rows.
  struct segment_range {
    const std::byte *a = nullptr, *b = nullptr, *bias = nullptr;
    std::byte *out = nullptr, *workspace = nullptr;
    const std::int32_t* rows = nullptr;
    std::int64_t segments = 0;
    product_scales scales{};
  };
  /// Returns the factor by which a sum is multiplied: the product of its operands' scales.
  template <class A> A factor_of(const product_scales& s) const {
    return shape_.scaled ? static_cast<A>(*s.a) * static_cast<A>(*s.b) : A(1);
  }
  segment_range range_of(const product_call& c) const;
  /// The place of one segment: its number, its first row among all rows, its extents.
  struct segment_place {
    std::int64_t index = 0, begin = 0;
    extent3 e;
  };
  extent3 extents(std::int64_t rows) const;
  /// Returns the extents of the product of one segment; a shape without segments is one.
  extent3 segment_extents(std::int64_t rows) const {
    return extents(shape_.segment ? shape_.segment : rows);
  }
  /// Returns true if rows are computed apart (detail::dot_rows): few rows, whose time is that of
  /// reading W once, or all rows, if the engine was asked for it.
  bool apart(std::int64_t rows) const;
  void compute_apart(const extent3& e, const segment_range& from, int most) const;
  void round(const std::byte* tile, std::byte* target, std::int64_t m, std::int64_t n,
             const product_scales& scales, const std::byte* bias) const;
  void copy(const operand& o, const std::byte* from, std::byte* copied, std::int64_t rows,
            std::int64_t columns, int thread, int threads) const;
  const std::byte* block(const operand& o, const std::byte* from, std::byte* copied,
                         std::int64_t row, std::int64_t column, std::int64_t rows,
                         std::int64_t columns) const;
  segment_place place_of(const segment_range& from, std::int64_t index, std::int64_t begin) const {
    return {index, begin, segment_extents(from.rows ? from.rows[index] : -1)};
  }
  /// Returns true if the sum is over rows; else rows are rows of the output.
  bool summed() const { return shape_.kind == product_kind::weight_gradient; }
  std::int64_t rows_of(const extent3& e) const { return summed() ? e.k : e.m; }
  const std::byte* segment_start(const operand& o, const std::byte* first,
                                 const segment_range& from, const segment_place& p) const;
  product_status compute_tile(std::int64_t index, int thread, std::int64_t row_tiles,
                              const segment_range& from) const;
  product_status compute_tile(std::int64_t row_tile, std::int64_t column_tile,
                              const segment_place& p, int thread, const segment_range& from) const;
  void compute_segments(segment_range& from, bool first, int threads) const;
  const product_cell& cell_of(std::size_t row, std::size_t column, std::size_t sum_block,
                              bool later) const {
    const std::size_t i =
        (row * columns_.sizes.size() + column) * sum_blocks_.sizes.size() + sum_block;
    return *cells_[2 * i + (later ? 1 : 0)];
  }

  product_engine* engine_ = nullptr;
  operand a_, b_;
  std::int64_t ldc_ = 0;
  bool widened_ = false;
  bool tiled_ = false; // a tile's sum is kept apart, then scaled and rounded into the output
  dtype cell_type_ = dtype::f32;
  detail::cut rows_, columns_, sum_blocks_;
  std::vector<const product_cell*> cells_;
  // Workspace: per thread [tile][block of A][block of B][scratch], then the copies of A, B and
  // bias.
  std::size_t tile_bytes_ = 0, thread_bytes_ = 0, bias_bytes_ = 0;
  std::int64_t at_once_ = 1; // number of segments whose copies are in the workspace together
};

/// The source of matrix products of the CPU: it owns the library and every prepared product.
class product_engine : public product_source {
public:
  struct options {
    product_type type = product_type::automatic; // type of products with bf16 operands
    int threads = 0;                             // number of threads; 0: the calling thread's
    bool eigen_only = false;                     // leaves oneDNN out even where it was found
    bool sizes_alone = false; // prepares products that only say how much workspace they need
    product_rows rows = product_rows::together;               // rows of forward products
    std::shared_ptr<const product_library> library = nullptr; // null: oneDNN, where it was found
    void (*tell)(std::string_view) = nullptr; // is called for the first tile that fails its check
  };

  product_engine() : product_engine(options{}) {}
  explicit product_engine(const options& o)
      : type_(o.type),
        threads_(o.threads > 0 ? o.threads : thread_count()),
        sizes_alone_(o.sizes_alone),
        rows_(o.rows),
        tell_(o.tell),
        library_(o.library) {
    if (o.eigen_only) library_.reset();
#if defined(MEGACPP_WITH_ONEDNN)
    else if (!library_ && onednn_products::usable())
      library_ = std::make_shared<onednn_products>(threads_);
#endif
    eigen_only_ = library_ == nullptr;
    if (eigen_only_) type_ = product_type::widened;
  }
  product_engine(const product_engine&) = delete;
  product_engine& operator=(const product_engine&) = delete;

  const product& prepare(const product_shape& asked) override {
    product_shape s = asked; // no library here computes an end
    s.ends_in = product_end::sum;
    if (const product* p = find(s)) return *p;
    auto made = make(s);
    workspace_bytes_ = std::max(workspace_bytes_, made->workspace_bytes());
    products_.push_back(std::move(made));
    return *products_.back();
  }
  /// Returns the prepared product of a shape, or null. It allocates nothing.
  const product* find(const product_shape& s) const noexcept {
    for (const auto& p : products_)
      if (p->shape_ == s) return p.get();
    return nullptr;
  }

  void lend(std::byte* memory, std::int64_t bytes) override {
    lent_ = memory, lent_bytes_ = static_cast<std::size_t>(bytes), lent_used_ = 0;
  }
  std::int64_t take_back() override {
    lent_ = nullptr, lent_bytes_ = 0;
    return static_cast<std::int64_t>(std::exchange(lent_used_, 0));
  }
  const product_checks& checks() const override { return checks_; }
  std::vector<product_shape> shapes() const override {
    std::vector<product_shape> all;
    for (const auto& p : products_) all.push_back(p->shape());
    return all;
  }
  std::int64_t workspace_bytes() const override { return workspace_bytes_; }
  std::size_t products() const { return products_.size(); }
  int threads() const { return threads_; }

  product_type type() override {
    if (type_ == product_type::automatic) measure();
    return type_;
  }

  std::string describe(dtype storage = dtype::f32) override {
    const bool eigen = storage == dtype::f64 || eigen_only_;
    std::string text = eigen ? eigen_.name() : library();
    if (storage == dtype::bf16) {
      const bool widened = type() == product_type::widened;
      text += widened ? ", bf16 storage with widened fp32 products" : ", bf16 products";
      if (ratio_ > 0) {
        const long tenths = std::lround(ratio_ * 10);
        text +=
            " (measured " + std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + "x)";
      }
    }
    if (const std::size_t n = checks_.refused.size(); n > 0)
      text += ", but for " + std::to_string(n) + " of " + std::to_string(checks_.checked) +
              " kinds of tiles, which it computes wrong, by " + eigen_.name();
    return text;
  }

private:
  friend class product;
  std::string library() const { return library_ ? library_->name() : eigen_.name(); }
  std::unique_ptr<product> make(const product_shape& s);
  bool make_cells(product& p);
  void make_copies(product& p) const;
  const product_cell* cell(const product_cell_shape& s);
  using own_memory = std::unique_ptr<std::byte, detail::aligned_delete>;
  static own_memory allocated(std::size_t bytes, const char* what) {
    try {
      return own_memory(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(4096))));
    } catch (const std::bad_alloc&) {
      throw error(exit_code::memory, std::string(what) + ", " + std::to_string(bytes) +
                                         " bytes, could not be reserved; use a smaller "
                                         "micro-batch.");
    }
  }
  std::string fault_of(const product_cell& c, const product_cell_shape& s);
  void refuse(const product_cell_shape& s, const std::string& fault);
  void measure();

  product_type type_;
  double ratio_ = 0; // time of the other type over that of the chosen type
  int threads_;
  bool eigen_only_ = false, sizes_alone_;
  product_rows rows_;
  void (*tell_)(std::string_view);
  std::shared_ptr<const product_library> library_; // is asked before Eigen; null: only Eigen
  eigen_products eigen_;
  product_checks checks_;
  std::byte* lent_ = nullptr;
  std::size_t lent_bytes_ = 0, lent_used_ = 0;
  std::vector<std::pair<product_cell_shape, std::unique_ptr<product_cell>>> cells_;
  std::vector<std::unique_ptr<product>> products_;
  std::int64_t workspace_bytes_ = 0; ///< workspace of the product that needs the most
};

inline std::int64_t product::workspace_bytes() const {
  return static_cast<std::int64_t>(static_cast<std::size_t>(engine_->threads_) * thread_bytes_ +
                                   copies_of(a_) + copies_of(b_) + bias_bytes_);
}
inline bool product::apart(std::int64_t rows) const {
  return shape_.kind == product_kind::forward && !shape_.sum_block && !shape_.panel &&
         (rows <= 4 || engine_->rows_ == product_rows::apart);
}

} // namespace mc
