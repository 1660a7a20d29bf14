// Matrix products of the CPU device: how they are executed. product/tiling.hpp prepares them.
//
// Threads take tiles from a counter. A tile is one call of oneDNN or Eigen on one thread for each
// prepared sum block, first to last. Where rows come in segments (sequences), the tiles of as many
// segments as have room for their copies run together, and a weight gradient adds up the segments
// in order. Forward products of up to 4 rows (decode) read W directly, each row apart from the
// others; an engine may be asked to do so for any number of rows.
#pragma once

#include <megacpp/io/signals.hpp>
#include <megacpp/product/pack.hpp>
#include <megacpp/product/tiling.hpp>

#include <algorithm>
#include <atomic>

namespace mc {

inline product::extent3 product::extents(std::int64_t rows) const {
  const std::int64_t M = rows < 0 ? shape_.M : rows;
  switch (shape_.kind) {
  case product_kind::forward: return {M, shape_.N, shape_.K};
  case product_kind::input_gradient: return {M, shape_.K, shape_.N};
  case product_kind::weight_gradient: return {shape_.N, shape_.K, M};
  }
  return {};
}

/// Returns where a segment of an operand begins in the form that tiles read. Copies of equal
/// segments stand one after another, each as if it stood alone; segments of other sizes have one
/// copy.
inline const std::byte* product::segment_start(const operand& o, const std::byte* first,
                                               const segment_range& from,
                                               const segment_place& p) const {
  if (o.row_bytes == 0) return first;
  if (o.copied == copying::whole && from.rows == nullptr)
    return first + static_cast<std::size_t>(p.index) * o.copy_bytes;
  return first + p.begin * o.read_bytes;
}

/// Computes one tile of the output: of a forward product or an input gradient in one segment, of a
/// weight gradient as the sum over all segments in order.
inline product_status product::compute_tile(std::int64_t index, int thread, std::int64_t row_tiles,
                                            const segment_range& from) const {
  segment_place p = place_of(from, 0, 0);
  // Neighbouring tiles share the operand that a tile repacks, so that it is still in the core's
  // cache.
  const std::int64_t nc = columns_.count(p.e.n);
  const bool across = a_.cell_transposed();
  std::int64_t row = across ? index / nc : index % row_tiles;
  const std::int64_t column = across ? index % nc : index / row_tiles;
  for (;; p = place_of(from, p.index + 1, p.begin + rows_of(p.e))) {
    if (summed()) {
      const product_status status = compute_tile(row, column, p, thread, from);
      if (status != product_status::done || p.index + 1 == from.segments) return status;
    } else {
      const std::int64_t tiles = rows_.count(p.e.m);
      if (row < tiles) return compute_tile(row, column, p, thread, from);
      row -= tiles;
    }
  }
}

inline product_status product::compute_tile(std::int64_t row_tile, std::int64_t column_tile,
                                            const segment_place& p, int thread,
                                            const segment_range& from) const {
  const extent3& e = p.e;
  const auto row = rows_.at(row_tile, e.m);
  const auto column = columns_.at(column_tile, e.n);
  const std::int64_t i0 = row.begin, j0 = column.begin;
  std::byte* const own = from.workspace + static_cast<std::size_t>(thread) * thread_bytes_;
  std::byte* const block_a = own + tile_bytes_;
  std::byte* const block_b = block_a + a_.block_bytes();
  std::byte* const scratch = block_b + b_.block_bytes();
  const std::byte* const a = segment_start(a_, from.a, from, p);
  const std::byte* const b = segment_start(b_, from.b, from, p);
  const std::int64_t first_row = summed() ? 0 : p.begin;
  std::byte* const target = from.out + ((first_row + i0) * ldc_ + j0) * size_of(shape_.out);
  const std::byte* const bias_at = from.bias ? from.bias + j0 * size_of(cell_type_) : nullptr;
  const std::int64_t m = rows_.sizes[row.size], n = columns_.sizes[column.size];
  const std::int64_t sum_blocks = sum_blocks_.count(e.k);
  for (std::int64_t c = 0; c < sum_blocks; ++c) {
    const auto sum_block = sum_blocks_.at(c, e.k);
    const std::int64_t k0 = sum_block.begin, k = sum_blocks_.sizes[sum_block.size];
    const product_cell& cell = cell_of(row.size, column.size, sum_block.size, c > 0);
    const product_status status = cell.execute(
        thread, block(a_, a, block_a, i0, k0, m, k), block(b_, b, block_b, k0, j0, k, n),
        c == 0 && !shape_.scaled ? bias_at : nullptr, tiled_ ? own : target, scratch);
    if (status != product_status::done) return status;
  }
  if (tiled_) round(own, target, m, n, from.scales, shape_.scaled ? bias_at : nullptr);
  return product_status::done;
}

/// Writes a tile of sums to its place in the product's output.
inline void product::round(const std::byte* tile, std::byte* target, std::int64_t m, std::int64_t n,
                           const product_scales& scales, const std::byte* bias) const {
  with_float_type(cell_type_, [&]<class T>(T) {
    with_float_type(shape_.out, [&]<class Out>(Out) {
      using A = accumulator_t<T>;
      if constexpr (std::is_same_v<A, double> == std::is_same_v<Out, double>)
        detail::round_tile(reinterpret_cast<const A*>(tile), columns_.sizes[0],
                           reinterpret_cast<Out*>(target), ldc_, m, n, shape_.accumulate,
                           factor_of<A>(scales), reinterpret_cast<const T*>(bias));
    });
  });
}

/// Makes this thread's range of the plain copy of an operand of (rows, columns), or of a block
/// of it.
inline void product::copy(const operand& o, const std::byte* from, std::byte* copied,
                          std::int64_t rows, std::int64_t columns, int thread, int threads) const {
  const auto run = [&](auto type) {
    using T = decltype(type);
    const auto* const in = reinterpret_cast<const T*>(from);
    auto* const to = reinterpret_cast<accumulator_t<T>*>(copied);
    if (o.transposed) {
      detail::transpose(in, o.stride, to, o.copy_stride, columns, rows, thread, threads);
    } else {
      detail::copy_rows(in, o.stride, to, o.copy_stride, rows, columns, thread, threads);
    }
  };
  with_float_type(shape_.a, run); // both operands have this type
}

/// Returns where a tile reads a block of an operand; makes the block's copy first if blocks are
/// copied.
inline const std::byte* product::block(const operand& o, const std::byte* from, std::byte* copied,
                                       std::int64_t row, std::int64_t column, std::int64_t rows,
                                       std::int64_t columns) const {
  if (o.copied == copying::whole)
    return from + (row * o.copy_stride + column) * size_of(cell_type_);
  from += (o.transposed ? column * o.stride + row : row * o.stride + column) * size_of(shape_.a);
  if (o.copied == copying::none) return from;
  copy(o, from, copied, rows, columns, 0, 1);
  return copied;
}

inline void product::compute_apart(const extent3& e, const segment_range& from, int most) const {
  const int threads = threads_for(e.m * e.n * e.k, most);
  with_float_type(shape_.a, [&]<class T>(T) {
    with_float_type(shape_.out, [&]<class Out>(Out) {
      if constexpr (std::is_same_v<Out, T> || std::is_same_v<Out, accumulator_t<T>>)
        parallel_pieces(threads, [&](int thread) {
          detail::dot_rows(
              reinterpret_cast<const T*>(from.a), a_.stride, reinterpret_cast<const T*>(from.b),
              reinterpret_cast<const T*>(from.bias), reinterpret_cast<Out*>(from.out), ldc_, e.m,
              e.n, e.k, factor_of<accumulator_t<T>>(from.scales), thread, threads);
        });
    });
  });
}

/// Returns the addresses of all segments of a call, in the workspace of its lane.
inline product::segment_range product::range_of(const product_call& c) const {
  const lane_room room = c.on.room();
  if (room.workspace < workspace_bytes())
    throw error(exit_code::internal, "A matrix product that needs a workspace of " +
                                         std::to_string(workspace_bytes()) +
                                         " bytes was started on a lane that has " +
                                         std::to_string(room.workspace) + ".");
  if (shape_.scaled && (c.scales.a == nullptr || c.scales.b == nullptr))
    throw error(exit_code::internal,
                "A matrix product prepared with scales was started without the scale of an "
                "operand: give both.");
  return {.a = static_cast<const std::byte*>(c.a),
          .b = static_cast<const std::byte*>(c.b),
          .bias = static_cast<const std::byte*>(shape_.bias ? c.bias : nullptr),
          .out = static_cast<std::byte*>(c.out),
          .workspace = c.on.workspace(),
          .scales = c.scales};
}

inline void product::execute(const product_call& c) const {
  const std::int64_t rows = c.rows;
  if (shape_.dynamic_rows ? rows < 0 || rows > shape_.M : rows >= 0 && rows != shape_.M)
    throw error(exit_code::internal, "A matrix product prepared for " + std::to_string(shape_.M) +
                                         " rows was given " + std::to_string(rows) + ".");
  const auto n = static_cast<std::int32_t>(rows);
  segment_range from = range_of(c);
  from.rows = shape_.dynamic_rows ? &n : nullptr;
  auto e = segment_extents(rows);
  if (e.m == 0 || e.k == 0) return;
  const int threads = std::min(engine_->threads_, thread_count());
  if (apart(e.m)) {
    e.m *= shape_.segments();
    return compute_apart(e, from, threads);
  }
  for (std::int64_t segment = 0; segment < shape_.segments(); segment += from.segments) {
    from.segments = std::min(at_once_, shape_.segments() - segment);
    compute_segments(from, segment == 0, threads);
  }
}

inline void product::execute_segments(const product_call& c,
                                      std::span<const std::int32_t> all) const {
  const std::int32_t* const rows = all.data();
  const std::int64_t segments = std::ssize(all);
  segment_range from = range_of(c);
  if (!shape_.dynamic_rows || shape_.bias || shape_.scaled)
    throw error(exit_code::internal,
                "A matrix product prepared for a fixed number of rows, or with "
                "a bias or scales, was given segments.");
  for (std::int64_t p = 0; p < segments; ++p)
    if (rows[p] < 0 || rows[p] > shape_.M)
      throw error(exit_code::internal, "A matrix product prepared for " + std::to_string(shape_.M) +
                                           " rows was given a segment of " +
                                           std::to_string(rows[p]) + ".");
  const int threads = std::min(engine_->threads_, thread_count());
  bool first = true;
  for (std::int64_t end = 0; end < segments;) {
    // Segments run together as far as their copies have room, or if they have few rows, which are
    // computed apart.
    from.rows = rows + end;
    std::int64_t total = rows[end++];
    const bool few = apart(total);
    while (end < segments && (rows[end] == 0 || apart(rows[end]) == few) &&
           (few || total + rows[end] <= shape_.M))
      total += rows[end++];
    from.segments = rows + end - from.rows;
    if (total == 0) continue;
    if (few) {
      const auto e = segment_extents(total);
      compute_apart(e, from, threads);
      from.a += e.m * a_.row_bytes;
      from.out += e.m * ldc_ * size_of(shape_.out);
    } else {
      compute_segments(from, first, threads);
      first = false;
    }
  }
}

/// Makes the copies that the tiles of some segments read, runs the tiles, and moves `from` behind
/// the segments. Copies that all segments share are made with the `first` of them.
inline void product::compute_segments(segment_range& from, bool first, int threads) const {
  segment_range read = from;
  segment_place end = place_of(from, 0, 0);
  std::int64_t row_tiles = rows_.count(end.e.m);
  for (std::int64_t p = 1; p < from.segments; ++p) {
    end = place_of(from, p, end.begin + rows_of(end.e));
    if (!summed()) row_tiles += rows_.count(end.e.m);
  }
  const std::int64_t total = end.begin + rows_of(end.e);
  std::byte* const copies =
      from.workspace + static_cast<std::size_t>(engine_->threads_) * thread_bytes_;
  std::byte* const copy_a = copies;
  std::byte* const copy_b = copy_a + copies_of(a_);
  std::byte* const copy_bias = copy_b + copies_of(b_);
  const bool wide_bias = from.bias && widened_;
  const bool whole_a = a_.copied == copying::whole;
  const bool whole_b = b_.copied == copying::whole && (b_.row_bytes != 0 || first);
  if (whole_a || whole_b || (wide_bias && first)) {
    const std::int64_t each = from.rows ? total : rows_of(end.e); // number of rows of one copy
    const auto e = segment_extents(from.rows ? total : -1);
    parallel_pieces(threads, [&](int thread) {
      for (std::int64_t r = 0, p = 0; r < total; r += each, ++p) {
        const auto of = [&](const operand& o, const std::byte* at) { return at + r * o.row_bytes; };
        const auto to = [&](const operand& o, std::byte* at) {
          return at + static_cast<std::size_t>(p) * o.copy_bytes;
        };
        if (whole_a) copy(a_, of(a_, from.a), to(a_, copy_a), e.m, e.k, thread, threads);
        if (whole_b && (p == 0 || b_.row_bytes != 0))
          copy(b_, of(b_, from.b), to(b_, copy_b), e.k, e.n, thread, threads);
      }
      if (wide_bias && first) {
        detail::copy_rows(reinterpret_cast<const bf16*>(from.bias), end.e.n,
                          reinterpret_cast<float*>(copy_bias), end.e.n, 1, end.e.n, thread,
                          threads);
      }
    });
  }
  if (whole_a) read.a = copy_a;
  if (b_.copied == copying::whole) read.b = copy_b;
  if (wide_bias) read.bias = copy_bias;
  const std::int64_t tiles = row_tiles * columns_.count(end.e.n);
  std::atomic<std::int64_t> next{0};
  std::atomic<product_status> ended{product_status::done};
  const int team = static_cast<int>(std::min<std::int64_t>(threads, tiles));
  const signals_held held; // workers always hold signals
  const one_openmp_thread library;
  parallel_pieces(team, [&](int thread) {
    for (std::int64_t t = next.fetch_add(1); t < tiles; t = next.fetch_add(1))
      if (const product_status status = compute_tile(t, thread, row_tiles, read);
          status != product_status::done)
        ended = status;
  });
  if (ended == product_status::no_memory)
    throw error(exit_code::memory,
                "no memory is left for a matrix product; use a smaller micro-batch or sequence, or "
                "raise the limits on memory (ulimit -v)");
  if (ended != product_status::done)
    throw error(exit_code::internal,
                "oneDNN failed in a matrix product; report this with the output of describe.");
  from.a += total * a_.row_bytes;
  from.b += total * b_.row_bytes;
  if (!summed()) from.out += total * ldc_ * size_of(shape_.out);
}

} // namespace mc
