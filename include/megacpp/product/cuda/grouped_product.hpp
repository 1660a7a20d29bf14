// A product of experts on a CUDA device as one call: segments of any number of rows each, by a
// library's kernel that takes arrays of extents and addresses (product/cuda/grouped.hpp).
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/product_source.hpp>
#include <megacpp/product/cuda/grouped_library.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// A product of groups that one kernel computes. The host makes the arrays of a call and writes
/// them into the beginning of the lane's workspace, in the order of the lane: they stay there until
/// the kernel has read them, since later work is done later. Segments without rows are left out, so
/// that a kernel never sees an extent of 0. Where segments of a group are added to one matrix, one
/// call has the first segment of each group, the next call the second one, and so on: two segments
/// of a call never write to the same matrix. Under numerics::fast all segments of a group are one.
class grouped_product final : public prepared_product {
public:
  grouped_product(std::shared_ptr<const grouped_kernel> by, const product_shape& s)
      : by_(std::move(by)) {
    shape_ = s;
  }
  /// Returns true if a kernel can be asked for a shape: bf16 operands whose rows begin at multiples
  /// of 16 bytes wherever the first row does, and a weight gradient of fp32.
  static bool computes(const product_shape& s) {
    const bool summed = s.kind == product_kind::weight_gradient;
    const auto aligned = [](std::int64_t elements) { return elements % 8 == 0; };
    return s.groups > 0 && s.dynamic_rows && s.a == dtype::bf16 && s.b == dtype::bf16 &&
           s.out == (summed ? dtype::f32 : dtype::bf16) && !s.scaled && !s.bias &&
           s.ends_in == product_end::sum && (summed || !s.accumulate) && s.segment == 0 &&
           s.sum_block == 0 && s.panel == 0 && aligned(s.N) && aligned(s.K) && aligned(s.x_row()) &&
           aligned(s.y_row());
  }

  /// The least number of groups with which a kernel is checked; it is checked with as many groups
  /// as its shape has, if these are more.
  static constexpr std::int64_t least_checked = 65;
  /// Returns the bytes at the beginning of a workspace that the arrays of so many segments take.
  static std::int64_t before_workspace(std::int64_t segments) {
    return (grouped_arrays::bytes(segments) + 255) / 256 * 256;
  }

  void execute(const product_call& c) const override { refuse(c); }
  void execute_segments(const product_call& c, std::span<const std::int32_t>) const override {
    refuse(c);
  }
  void execute_groups(const product_call& c, std::span<const std::int32_t> rows) const override {
    require_groups(rows);
    start(c, rows, shape_.groups);
  }

private:
  [[noreturn]] static void refuse(const product_call& c) {
    throw error(exit_code::internal, static_cast<cuda_lane&>(c.on).behind("a product was started") +
                                         " that is of groups: start it by execute_groups");
  }
  struct segment {
    std::int64_t group, first; ///< number of the segment's first row among all rows
    std::int32_t rows;
  };
  /// Starts the grouped product of segments with so many rows, in so many groups.
  void start(const product_call& c, std::span<const std::int32_t> rows, std::int64_t groups) const {
    const auto each = rows.size() / static_cast<std::size_t>(groups);
    if (shape_.sums == numerics::fast && each > 1) {
      std::vector<std::int32_t> whole(static_cast<std::size_t>(groups));
      for (std::size_t i = 0; i < rows.size(); ++i) whole[i / each] += rows[i];
      return start(c, whole, groups);
    }
    const std::size_t turns = shape_.kind == product_kind::weight_gradient ? each : 1;
    for (std::size_t turn = 0; turn < turns; ++turn) {
      std::vector<segment> segments;
      std::int64_t first = 0;
      for (std::size_t i = 0; i < rows.size(); first += rows[i++]) {
        if (rows[i] > 0 && i % turns == turn)
          segments.push_back({static_cast<std::int64_t>(i / each), first, rows[i]});
      }
      if (!segments.empty()) start(c, segments);
    }
  }
  void start(const product_call& c, std::span<const segment> segments) const {
    auto& on = static_cast<cuda_lane&>(c.on);
    for (const void* const p : {c.a, c.b, static_cast<const void*>(c.out)})
      if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0)
        throw error(exit_code::internal,
                    on.behind("a grouped product was started") +
                        " with an operand that begins elsewhere than a planned buffer: give it "
                        "such memory");
    const std::int64_t n = std::ssize(segments), bytes = grouped_arrays::bytes(n),
                       behind = before_workspace(n);
    const cuda_lane::product_place place = on.for_product();
    if (behind > place.bytes) throw too_small(on, behind, place.bytes);
    std::vector<std::byte> image(static_cast<std::size_t>(bytes));
    fill(c, segments, grouped_arrays::at(image.data(), n));
    on.write(place.workspace, image.data(), bytes);
    const std::int64_t needed = by_->start(on, place.on,
                                           {.kind = shape_.kind,
                                            .segments = n,
                                            .arrays = grouped_arrays::at(place.workspace, n),
                                            .workspace = place.workspace + behind,
                                            .bytes = place.bytes - behind});
    if (needed > place.bytes - behind) throw too_small(on, needed + behind, place.bytes);
  }
  static error too_small(const cuda_lane& on, std::int64_t needed, std::int64_t bytes) {
    return error(exit_code::internal, on.behind("a grouped product was started") + " that needs " +
                                          std::to_string(needed) + " bytes of workspace, and has " +
                                          std::to_string(bytes));
  }
  void fill(const product_call& c, std::span<const segment> segments,
            const grouped_arrays& to) const {
    const product_shape& s = shape_;
    const bool forward = s.kind == product_kind::forward,
               summed = s.kind == product_kind::weight_gradient;
    const auto at = [](const void* p, std::int64_t elements, dtype t) {
      return static_cast<const std::byte*>(p) + elements * size_of(t);
    };
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const segment& p = segments[i];
      const std::int64_t x = p.first * s.x_row(), y = p.first * s.y_row(), w = p.group * s.N * s.K;
      to.a[i] = at(c.a, forward ? x : y, s.a);
      to.b[i] = at(c.b, summed ? x : w, s.b);
      to.d[i] = const_cast<std::byte*>(at(c.out, summed ? w : forward ? y : x, s.out));
      to.a_stride[i] = forward ? s.x_row() : s.y_row();
      to.b_stride[i] = summed ? s.x_row() : s.K;
      to.d_stride[i] = summed ? s.K : forward ? s.y_row() : s.x_row();
      const auto wide = static_cast<std::int32_t>(s.N), deep = static_cast<std::int32_t>(s.K);
      to.extents[i] = summed    ? grouped_arrays::sizes{wide, deep, p.rows}
                      : forward ? grouped_arrays::sizes{p.rows, wide, deep}
                                : grouped_arrays::sizes{p.rows, deep, wide};
      to.m[i] = to.extents[i].m, to.n[i] = to.extents[i].n, to.k[i] = to.extents[i].k;
    }
  }

  std::shared_ptr<const grouped_kernel> by_;
};

} // namespace mc
