// How a product is planned (tiles, types, workspace) and executed.
#pragma once

#include <megacpp/exec/product.hpp>
#include <megacpp/exec/product_pack.hpp>

namespace mc {

namespace detail {

struct tile_size {
  std::int64_t m = 0, n = 0;
};

/// The tile of an (m,n) output with sums of k terms: at most 256 x 256, cut towards 64 x 128 while
/// there are fewer than 32 tiles, and never below 2 M multiply-adds (25 us on one core; a call
/// costs 1 to 2). Columns below 128 cost speed: only large tiles are cut to 64 of them.
constexpr tile_size tile_of(std::int64_t m, std::int64_t n, std::int64_t k) {
  const auto side = [](std::int64_t x) {
    return static_cast<std::int64_t>(
        std::bit_ceil(static_cast<std::uint64_t>(x < 256 ? x : std::int64_t{256})));
  };
  tile_size t{side(m), side(n)};
  while (((m + t.m - 1) / t.m) * ((n + t.n - 1) / t.n) < 32 && t.m * t.n * k >= 4'000'000) {
    if (t.n > 128) t.n /= 2;
    else if (t.m > 64) t.m /= 2;
    else if (t.n > 64 && t.m * t.n * k >= 8'000'000) t.n /= 2;
    else break;
  }
  return t;
}

/// The row stride of a copy: whole lines, and an odd number of them, so that rows do not fall into
/// the same sets of the cache.
constexpr std::int64_t copy_stride(std::int64_t columns) { return ((columns + 15) / 16 | 1) * 16; }

} // namespace detail

inline product::extent3 product::extents(std::int64_t rows) const {
  const std::int64_t M = rows < 0 ? shape_.M : rows;
  switch (shape_.kind) {
  case product_kind::forward: return {M, shape_.N, shape_.K};
  case product_kind::input_gradient: return {M, shape_.K, shape_.N};
  case product_kind::weight_gradient: return {shape_.N, shape_.K, M};
  }
  return {};
}

inline bool product::run_tile(std::int64_t index, int slot, const extent3& e, const std::byte* a,
                              const std::byte* b, const std::byte* bias, std::byte* out) const {
  // Neighbours share the operand that a tile repacks, so that it is still in the core's cache.
  const std::int64_t nr = rows_.count(e.m), nc = columns_.count(e.n);
  const bool across = a_.cell_transposed();
  const auto row = rows_.at(across ? index / nc : index % nr, e.m);
  const auto column = columns_.at(across ? index % nc : index / nr, e.n);
  const std::int64_t i0 = row.begin, j0 = column.begin;
  const auto bytes = [](std::int64_t elements, dtype t) { return elements * size_of(t); };
  std::byte* const own = engine_->workspace_.get() + static_cast<std::size_t>(slot) * slot_bytes_;
  std::byte* const target = out + bytes(i0 * ldc_ + j0, shape_.output);
  const std::byte* const bias_at = bias ? bias + bytes(j0, cell_type_) : nullptr;
  const std::int64_t chunks = chunks_.count(e.k);
  for (std::int64_t c = 0; c < chunks; ++c) {
    const auto chunk = chunks_.at(c, e.k);
    const std::int64_t k0 = chunk.begin;
    const std::int64_t lda = a_.cell_stride(), ldb = b_.cell_stride();
    const std::int64_t at_a = a_.cell_transposed() ? k0 * lda + i0 : i0 * lda + k0;
    const std::int64_t at_b = b_.cell_transposed() ? j0 * ldb + k0 : k0 * ldb + j0;
    const product_cell& cell = cell_of(row.size, column.size, chunk.size, c > 0);
    if (!cell.run(slot, a + bytes(at_a, cell_type_), b + bytes(at_b, cell_type_),
                  c == 0 ? bias_at : nullptr, tiled_ ? own : target, own + tile_bytes_))
      return false;
  }
  if (tiled_) {
    detail::round_tile(reinterpret_cast<const float*>(own), columns_.sizes[0],
                       reinterpret_cast<bf16*>(target), ldc_, rows_.sizes[row.size],
                       columns_.sizes[column.size], shape_.accumulate);
  }
  return true;
}

/// This slot's share of an operand of (rows, columns) into its plain copy.
template <class T> void product::copy(const operand& o, const void* from, void* copied,
                                      std::int64_t rows, std::int64_t columns, int slot,
                                      int slots) const {
  if (!o.copied) return;
  const auto* const in = static_cast<const T*>(from);
  auto* const to = static_cast<accumulator_t<T>*>(copied);
  if (o.transposed) detail::transpose(in, o.stride, to, o.copy_stride, columns, rows, slot, slots);
  else detail::copy_rows(in, o.stride, to, o.copy_stride, rows, columns, slot, slots);
}

inline void product::run_few(const extent3& e, const void* x, const void* w, const void* bias,
                             void* y, int threads) const {
  const auto run = [&](auto type, auto output) {
    using T = decltype(type);
    using Out = decltype(output);
    detail::on_slots(threads, [&](int slot, int slots) {
      detail::few_rows(static_cast<const T*>(x), a_.stride, static_cast<const T*>(w),
                       static_cast<const T*>(bias), static_cast<Out*>(y), ldc_, e.m, e.n, e.k, slot,
                       slots);
    });
  };
  if (shape_.type == dtype::f64) run(double{}, double{});
  else if (shape_.type == dtype::f32) run(float{}, float{});
  else if (shape_.output == dtype::f32) run(bf16{}, float{});
  else run(bf16{}, bf16{});
}

inline void product::execute(const void* a, const void* b, const void* bias, void* out,
                             std::int64_t rows) const {
  const auto e = extents(shape_.dynamic_rows ? rows : -1);
  if (shape_.dynamic_rows ? rows < 0 || rows > shape_.M : rows >= 0 && rows != shape_.M)
    throw error(exit_code::internal, "A matrix product prepared for " + std::to_string(shape_.M) +
                                         " rows was given " + std::to_string(rows) + ".");
  if (e.m == 0 || e.k == 0) return;
  const int threads = std::min(engine_->threads_, thread_count());
  if (few(e.m)) return run_few(e, a, b, shape_.bias ? bias : nullptr, out, threads);
  auto* const copies =
      engine_->workspace_.get() + static_cast<std::size_t>(engine_->threads_) * slot_bytes_;
  auto at_a = static_cast<const std::byte*>(a);
  auto at_b = static_cast<const std::byte*>(b);
  auto at_bias = static_cast<const std::byte*>(shape_.bias ? bias : nullptr);
  if (a_.copied || b_.copied) {
    std::byte* const copy_a = copies;
    std::byte* const copy_b = copies + a_.copy_bytes;
    std::byte* const copy_bias = copy_b + b_.copy_bytes;
    const auto run = [&](auto type) {
      using T = decltype(type);
      detail::on_slots(threads, [&](int slot, int slots) {
        copy<T>(a_, a, copy_a, e.m, e.k, slot, slots);
        copy<T>(b_, b, copy_b, e.k, e.n, slot, slots);
        if (widened_ && at_bias) {
          detail::copy_rows(static_cast<const T*>(bias), e.n,
                            reinterpret_cast<accumulator_t<T>*>(copy_bias), e.n, 1, e.n, slot,
                            slots);
        }
      });
    };
    if (shape_.type == dtype::f64) run(double{});
    else if (shape_.type == dtype::f32) run(float{});
    else run(bf16{});
    if (a_.copied) at_a = copy_a;
    if (b_.copied) at_b = copy_b;
    if (at_bias && widened_) at_bias = copy_bias;
  }
  const std::int64_t tiles = rows_.count(e.m) * columns_.count(e.n);
  std::atomic<std::int64_t> next{0};
  std::atomic<bool> good{true};
  const int team = static_cast<int>(std::min<std::int64_t>(threads, tiles));
  detail::on_slots(team, [&](int slot, int) {
    for (std::int64_t t = next.fetch_add(1); t < tiles; t = next.fetch_add(1))
      if (!run_tile(t, slot, e, at_a, at_b, at_bias, static_cast<std::byte*>(out))) good = false;
  });
  if (!good)
    throw error(exit_code::internal,
                "oneDNN failed in a matrix product; report this with the output of describe.");
}

inline const product_cell* product_engine::cell(const product_cell_shape& s) {
  for (const auto& [shape, made] : cells_)
    if (shape == s) return made.get();
  std::unique_ptr<product_cell> made;
#if defined(MEGACPP_WITH_ONEDNN)
  if (!eigen_only_) made = onednn_->make(s);
#endif
  if (!made) made = eigen_.make(s);
  if (!made) return nullptr;
  cells_.emplace_back(s, std::move(made));
  return cells_.back().second.get();
}

inline bool product_engine::make_cells(product& p) {
  const product_shape& s = p.shape_;
  const std::size_t nr = p.rows_.sizes.size(), nc = p.columns_.sizes.size();
  const std::size_t nk = p.chunks_.sizes.size();
  const auto e = p.extents(-1);
  const bool many = p.chunks_.count(e.k) > 1 || nk > 1;
  const bool adds = s.accumulate && !p.tiled_;
  std::size_t scratch = 0;
  p.cells_.assign(2 * nr * nc * nk, nullptr);
  for (std::size_t i = 0; i < nr * nc * nk * 2; ++i) {
    const bool later = i % 2 == 1;
    const std::size_t k = i / 2 % nk, c = i / 2 / nk % nc, r = i / 2 / nk / nc;
    if (later && !many) continue;
    product_cell_shape cs;
    cs.m = p.rows_.sizes[r];
    cs.n = p.columns_.sizes[c];
    cs.k = p.chunks_.sizes[k];
    cs.lda = p.a_.cell_stride();
    cs.ldb = p.b_.cell_stride();
    cs.ldc = p.tiled_ ? p.columns_.sizes[0] : p.ldc_;
    cs.a_transposed = p.a_.cell_transposed();
    cs.b_transposed = p.b_.cell_transposed();
    cs.type = p.cell_type_;
    cs.output = p.tiled_ ? dtype::f32 : s.output;
    cs.bias = s.bias && !later;
    cs.accumulate = later || adds;
    const product_cell* made = cell(cs);
    if (!made) return false;
    p.cells_[i] = made;
    scratch = std::max(scratch, made->scratch_bytes());
  }
  p.slot_bytes_ = p.tile_bytes_ + detail::aligned(scratch);
  return true;
}

inline void product_engine::make_copies(product& p) const {
  const auto e = p.extents(-1);
  const bool eigen = eigen_only_ || p.cell_type_ == dtype::f64;
  const bool canonical = p.shape_.chunk || p.shape_.panel;
  const auto bytes = [&](std::int64_t n) {
    return detail::aligned(static_cast<std::size_t>(n * size_of(p.cell_type_)));
  };
  // oneDNN repacks a transposed operand in every tile that reads it, and a plain B whose rows start
  // in one set of the first-level cache (multiples of 4096 bytes) is slow to read: from 3 tiles on
  // a copy is faster (by 5 to 20 %), below the tile's own repacking. With canonical panels the
  // choice must not depend on the number of rows. Eigen's tiles are plain only.
  const auto plan = [&](product::operand& o, std::int64_t rows, std::int64_t columns, bool is_b,
                        std::int64_t readers) {
    const bool slow = o.transposed || (is_b && o.stride % 1024 == 0);
    o.copied =
        p.widened_ ||
        (eigen ? o.transposed : p.cell_type_ == dtype::f32 && slow && (canonical || readers >= 3));
    if (!o.copied) return;
    o.copy_stride = detail::copy_stride(columns);
    o.copy_bytes = bytes(rows * o.copy_stride);
  };
  plan(p.a_, e.m, e.k, false, p.columns_.count(e.n));
  plan(p.b_, e.k, e.n, true, p.rows_.count(e.m));
  if (p.widened_ && p.shape_.bias) p.bias_bytes_ = bytes(e.n);
}

inline std::unique_ptr<product> product_engine::make(const product_shape& s) {
  const auto refuse = [](const std::string& why) {
    throw error(exit_code::internal, "A matrix product cannot be prepared: " + why + ".");
  };
  const bool gradient = s.kind == product_kind::weight_gradient;
  if (s.M < 1 || s.N < 1 || s.K < 1) refuse("its extents must be at least 1");
  if (s.x_row() < s.K || s.y_row() < s.N) refuse("a row stride is shorter than its row");
  if (s.chunk < 0 || s.panel < 0) refuse("its panels must not be negative");
  if (s.type != dtype::f32 && s.type != dtype::bf16 && s.type != dtype::f64)
    refuse("its operands must be f32, bf16 or f64");
  if (gradient ? s.output != accumulator_of(s.type)
               : s.output != s.type && !(s.type == dtype::bf16 && s.output == dtype::f32))
    refuse("its output has another type than its operands");
  if (s.bias && s.kind != product_kind::forward) refuse("only a forward product has a bias");
  if (gradient != s.accumulate && s.kind != product_kind::input_gradient)
    refuse("a forward product overwrites its output and a weight gradient accumulates");

  auto made = std::make_unique<product>();
  product& p = *made;
  p.shape_ = s;
  p.engine_ = this;
  p.a_.transposed = gradient;
  p.b_.transposed = s.kind == product_kind::forward;
  p.a_.stride = s.kind == product_kind::forward ? s.x_row() : s.y_row();
  p.b_.stride = gradient ? s.x_row() : s.K;
  p.ldc_ = s.kind == product_kind::forward ? s.y_row() : gradient ? s.K : s.x_row();
  const auto e = p.extents(-1);
  if (p.few(e.m)) return made;
  p.widened_ = s.type == dtype::bf16 && type() == product_type::widened;
  p.cell_type_ = p.widened_ ? dtype::f32 : s.type;
  auto tile = detail::tile_of(e.m, e.n, e.k);
  // The same library calls wherever rows are cut at these borders: one row panel for all layouts.
  if (s.chunk || s.panel) tile.m = product_shape::canonical_rows;
  p.rows_ = detail::cut(e.m, tile.m, s.dynamic_rows && !gradient);
  p.columns_ = detail::cut(e.n, s.panel ? s.panel : tile.n, false);
  // A sum over rows that vary is taken in chunks of at most 256 of them.
  const bool dynamic_sum = s.dynamic_rows && gradient;
  p.chunks_ = detail::cut(e.k, s.chunk ? s.chunk : dynamic_sum ? 256 : e.k, dynamic_sum);
  make_copies(p);
  p.tiled_ = s.output == dtype::bf16 && (p.widened_ || p.chunks_.count(e.k) > 1);
  if (p.tiled_) {
    p.tile_bytes_ = detail::aligned(
        static_cast<std::size_t>(p.rows_.sizes[0] * p.columns_.sizes[0]) * sizeof(float));
  }
  if (!make_cells(p)) {
    throw error(exit_code::machine, std::string("This processor has no ") + name_of(p.cell_type_) +
                                        " products in " + library() +
                                        "; choose widened products or fp32.");
  }
  return made;
}

/// Times both product types on a 128 x 512 x 512 product of each kind, after a warm-up (the first
/// call of an OpenMP team is slow), in turn, and keeps the faster by its best round: 15 to 30 ms in
/// all.
inline void product_engine::measure() {
  constexpr std::int64_t M = 128, N = 512, K = 512;
  constexpr product_kind kinds[] = {product_kind::forward, product_kind::input_gradient,
                                    product_kind::weight_gradient};
  double best[2] = {1e30, 1e30};
  const std::vector<bf16> a(static_cast<std::size_t>(N * K), bf16(0.5f));
  const std::vector<bf16> b(a);
  std::vector<float> out(static_cast<std::size_t>(N * K));
  type_ = product_type::widened;
  try {
    product_engine narrow({product_type::bf16, threads_, false});
    product_engine wide({product_type::widened, threads_, false});
    for (int round = 0; round < 7; ++round) {
      for (int i = 0; i < 2; ++i) {
        const auto start = std::chrono::steady_clock::now();
        for (const product_kind kind : kinds) {
          (i == 0 ? narrow : wide)
              .prepare(make_product_shape(kind, dtype::bf16, M, N, K))
              .execute(a.data(), b.data(), nullptr, out.data());
        }
        const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
        if (round > 1) best[i] = std::min(best[i], spent.count());
      }
    }
  } catch (const error& e) {
    if (e.code() != exit_code::machine) throw;
    return; // no bf16 products here
  }
  if (best[0] < best[1]) type_ = product_type::bf16;
  ratio_ = std::max(best[0], best[1]) / std::min(best[0], best[1]);
}

} // namespace mc
