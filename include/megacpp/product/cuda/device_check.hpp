// The check of exec/product_check.hpp on a CUDA device: it computes a prepared product there and
// compares the result, before a run trusts that product.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/exec/cuda/side_by_side.hpp>
#include <megacpp/exec/product_check.hpp>
#include <megacpp/exec/product_source.hpp>
#include <megacpp/io/clock.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace mc {

namespace detail {

/// Returns a description of a product, for people.
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
/// Returns the shape of what a check computes: the product `s`, but with so many rows.
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

/// Checks prepared products on a CUDA device, and counts the checks.
class device_check {
public:
  explicit device_check(cuda& on) : on_(on) {}

  /// Lends device memory to checks, as product_source::lend does.
  void lend(std::byte* memory, std::int64_t bytes) {
    lent_ = memory, lent_bytes_ = bytes, lent_used_ = 0;
  }
  std::int64_t take_back() {
    lent_ = nullptr, lent_bytes_ = 0;
    return std::exchange(lent_used_, 0);
  }
  /// Returns the bytes of device memory that a check takes, lent or reserved.
  static std::int64_t bytes_of(const product_check& check) {
    return static_cast<std::int64_t>((check.bytes() + 255) / 256 * 256);
  }
  /// The checks so far. The caller of fault_of counts the check, and adds what failed.
  product_checks found;

  /// Runs a check by execute(call); the call's `kept` is a Z. Returns what is wrong; "" if the
  /// product may be trusted.
  template <class F> std::string fault_of(const product_check& check, F execute) {
    const stopwatch watch;
    auto& l = static_cast<cuda_lane&>(on_.main_lane());
    // The lane has no branches during the check: a product of experts may look for a way for a new
    // number of rows while other products run beside it.
    const back_in_order alone(l);
    const std::int64_t bytes = bytes_of(check);
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
      } catch (const error&) { // a way that cannot be started fails
        (void)cudaGetLastError();
        return false;
      }
      l.finish();
      in_library += call.seconds();
      on_.read(room.data(), memory, bytes);
      return true;
    });
    found.seconds += watch.seconds() - in_library;
    found.library_seconds += in_library;
    return fault;
  }

private:
  cuda& on_;
  std::byte* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0, lent_used_ = 0;
};

} // namespace mc
