// The check that a prepared product passes before it is trusted. Libraries have computed wrong
// numbers for single shapes and written beside their results; nothing at run time would notice.
//
// The product is computed once on numbers of the check's own and compared by Freivalds' test
// (1977): with random numbers r, C r must be C0 r + 1 (bias r) + A (B r), row by row. This costs
// one reading of each operand instead of one product. All bytes of the check's memory that are not
// the result must be what they were.
//
// The tolerance is zero. The numbers are integers so small that every sum of them is exact in
// whatever order it is taken, and whether or not a product and a sum are rounded together:
//
//   - the result's type has all integers up to `exact`: 2^24 in f32, 2^8 in bf16; of 2^53 in f64
//     those that the test's own sums in double leave. Sums are taken in f32 where operands and
//     result are f32 or bf16, so 2^8 and 2^24 hold for these as well;
//   - each of the K products of a sum is at most `wide` in magnitude, and so are a bias and a C
//     that is added to: (K + 2) wide <= exact. One of the two factors is 1 or -1 and the other one
//     has up to log2(wide) bits, A's where k is even and B's where it is odd: an operand or a sum
//     that is rounded more coarsely than its type shows. A bf16 operand has 2^8 at most, and one
//     that the library is asked to round as much as is left of it (operand_bits);
//   - where K + 2 > exact, as in long sums that end in bf16, only every s-th product is not zero:
//     those with i + k (or k + j) = 0 modulo s, the least s with K / s + 2 <= exact. Each column
//     of A and row of B counts in some row or column of C;
//   - r is at most 2^12 in magnitude, and less where N > 2^17, so that n r exact <= 2^53: then
//     both sides are exact in double.
//
// So one wrong element is always seen, since r has no zero, unless its error is less than 2^-53 of
// the row's sum. A row with several wrong elements
// passes with a probability of about 2^-13, were their errors drawn without regard to r. C, where
// it is only written, and all that lies between and around rows are NaN.
//
// This is host memory alone. A device with memory of its own copies the check's memory there before
// it computes and all of it back afterwards.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/exec/team.hpp>

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The check of one tile, or, where a library computes whole products, of one product.
class product_check {
public:
  explicit product_check(const product_cell_shape& s) : s_(s) {
    std::size_t at = 0;
    const auto place = [&](stored& m, dtype type, bool transposed, std::int64_t rows,
                           std::int64_t columns, std::int64_t stride, std::int64_t around) {
      if (transposed) std::swap(rows, columns);
      m = {type, transposed, rows, columns, stride};
      const auto beside = static_cast<std::size_t>(around * size_of(type)) + guard;
      m.begin = aligned(at + beside);
      m.end = m.begin + static_cast<std::size_t>(((rows - 1) * stride + columns) * size_of(type));
      at = m.end + beside;
    };
    place(a_, s.type, s.a_transposed, s.m, s.k, s.lda, 0);
    place(b_, s.type, s.b_transposed, s.k, s.n, s.ldb, 0);
    place(bias_, s.type, false, 1, s.n, s.n, 0);
    place(c_, s.output, false, s.m, s.n, s.ldc, s.ldc); // a row too many is seen, too
    bytes_ = aligned(at);
  }

  /// Memory that the check needs.
  std::size_t bytes() const { return bytes_; }

  /// run(a, b, bias, c) computes the product; false: it could not. Returns what the library does
  /// wrong, as a verb with an object; nothing if it may be trusted. `room` is aligned as vectors.
  using run_product = std::function<bool(const void*, const void*, const void*, void*)>;
  std::string fault(std::byte* room, const run_product& run) const {
    fill(room);
    const std::vector<double> r = signs(), want = expected(room, r);
    const std::uint64_t before = outside(room);
    if (!run(room + a_.begin, room + b_.begin, s_.bias ? room + bias_.begin : nullptr,
             room + c_.begin))
      return "fails";
    if (outside(room) != before) return "changes what is not its result";
    std::vector<double> got(want.size());
    multiply(room, c_, r.data(), got.data());
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!(got[i] == want[i])) return "computes row " + std::to_string(i) + " wrong";
    return {};
  }

private:
  static constexpr std::size_t guard = 256; // bytes
  static constexpr std::size_t aligned(std::size_t n) { return (n + 63) / 64 * 64; }
  static constexpr int log2_up(std::int64_t n) {
    return static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n - 1)));
  }

  /// A matrix in the check's memory, as it is stored.
  struct stored {
    dtype type = dtype::f32;
    bool transposed = false;
    std::int64_t rows = 0, columns = 0, stride = 0;
    std::size_t begin = 0, end = 0;
  };
  template <class T> static T* row(std::byte* room, const stored& m, std::int64_t i) {
    return reinterpret_cast<T*>(room + m.begin) + i * m.stride;
  }

  /// The greatest magnitude of an r, and integers up to which a sum is exact in this type.
  std::int64_t largest_sign() const {
    return std::int64_t{1} << std::clamp(29 - log2_up(s_.n), 0, 12);
  }
  std::int64_t exact() const {
    switch (s_.output) {
    case dtype::bf16: return 1 << 8;
    case dtype::f64: return std::int64_t{1} << std::clamp(41 - log2_up(s_.n), 24, 41);
    default: return 1 << 24;
    }
  }
  /// One of so many products is not zero.
  std::int64_t apart() const { return (s_.k + exact() - 3) / (exact() - 2); }
  /// A power of two.
  std::uint32_t wide() const {
    const auto most = static_cast<std::uint64_t>(exact() / ((s_.k + apart() - 1) / apart() + 2));
    const int bits = s_.operand_bits != 0 ? s_.operand_bits : s_.type == dtype::bf16 ? 8 : 30;
    const std::uint64_t of_type = std::uint64_t{1} << bits;
    return static_cast<std::uint32_t>(std::bit_floor(std::min(most, of_type)));
  }

  /// A number that looks random, the same for the same place.
  static std::uint32_t mixed(std::uint64_t place) {
    auto x = static_cast<std::uint32_t>(place);
    x ^= x >> 16, x *= 0x7feb352du;
    x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
  }
  /// Integers other than zero of magnitude at most mask + 1 where (i + odd) is even, else 1 or -1.
  template <class T> static void fill_row(T* to, std::int64_t n, std::uint32_t key,
                                          std::uint32_t mask_even, std::uint32_t mask_odd) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t x = mixed(key + static_cast<std::uint64_t>(i));
      const std::uint32_t mask = (i & 1) != 0 ? mask_odd : mask_even;
      const auto magnitude = static_cast<std::int32_t>((x >> 1 & mask) + 1);
      to[i] = convert<T>(static_cast<accumulator_t<T>>((x & 1) != 0 ? -magnitude : magnitude));
    }
  }
  /// k_along: whether a stored row runs along the sum; else each is one term of it. `parity`: of
  /// the terms with wide numbers; -1: of all. Rows are pieces of at most 4096 numbers, each from a
  /// place of its own on.
  void fill(std::byte* room, const stored& m, bool k_along, int parity, bool thin) const {
    const auto period = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(4 * m.columns))), 64,
        4096);
    const std::uint32_t mask = wide() - 1;
    const std::int64_t s = apart();
    const auto of = [&](int at) { return parity < 0 || at == parity ? mask : 0u; };
    with_float_type(m.type, [&](auto type) {
      using T = decltype(type);
      std::vector<T> numbers[2]; // of even rows and of odd ones
      for (int i = 0; i < 2; ++i) {
        numbers[i].resize(static_cast<std::size_t>(period));
        fill_row(numbers[i].data(), period, mixed(m.begin + static_cast<std::uint64_t>(i)),
                 of(k_along ? 0 : i), of(k_along ? 1 : i));
      }
      for (std::int64_t i = 0; i < m.rows; ++i) {
        T* const to = row<T>(room, m, i);
        const T* const from = numbers[i & 1].data();
        std::int64_t first = mixed(static_cast<std::uint64_t>(i)) % period / 2 * 2;
        for (std::int64_t j = 0; j < m.columns; first = 0) {
          const std::int64_t n = std::min(period - first, m.columns - j);
          std::copy_n(from + first, n, to + j);
          j += n;
        }
        for (std::int64_t j = 0; thin && s > 1 && j < m.columns; ++j)
          if ((i + j) % s != 0) to[j] = T();
      }
    });
  }
  void fill(std::byte* room) const {
    std::memset(room, 0xff, bytes_);
    const bool thin_a = s_.m >= s_.n;
    fill(room, a_, !s_.a_transposed, 0, thin_a);
    fill(room, b_, s_.b_transposed, 1, !thin_a);
    if (s_.bias) fill(room, bias_, true, -1, false);
    if (s_.accumulate) fill(room, c_, true, -1, false);
  }
  std::vector<double> signs() const {
    std::vector<double> r(static_cast<std::size_t>(s_.n));
    const auto mask = static_cast<std::uint32_t>(largest_sign() - 1);
    fill_row(r.data(), s_.n, 0x5bd1e995u, mask, mask);
    return r;
  }

  /// y += M x, of M as the product sees it.
  static void multiply(std::byte* room, const stored& m, const double* x, double* y) {
    with_float_type(m.type, [&](auto type) {
      using T = decltype(type);
      for (std::int64_t i = 0; i < m.rows; ++i) {
        const T* const in = row<T>(room, m, i);
        if (m.transposed) {
          const double xi = x[i];
          core_team{}.each<double>(m.columns, [=](auto l) {
            using V = vec<double, decltype(l)::count>;
            store(y, l, load<double>(y, l) + load<double>(in, l) * V(xi));
          });
        } else {
          y[i] += core_team{}.sum<double>(
              m.columns, [=](auto l) { return load<double>(in, l) * load<double>(x, l); });
        }
      }
    });
  }
  /// C r, by plain sums.
  std::vector<double> expected(std::byte* room, const std::vector<double>& r) const {
    std::vector<double> w(static_cast<std::size_t>(s_.k)), y(static_cast<std::size_t>(s_.m));
    if (s_.bias) {
      double of_bias = 0;
      multiply(room, bias_, r.data(), &of_bias);
      std::fill(y.begin(), y.end(), of_bias);
    }
    if (s_.accumulate) multiply(room, c_, r.data(), y.data());
    multiply(room, b_, r.data(), w.data());
    multiply(room, a_, w.data(), y.data());
    return y;
  }

  /// The sum of all words that are not the result, which one changed byte changes.
  std::uint64_t outside(const std::byte* room) const {
    std::uint64_t sum = 0;
    const auto add = [&](std::size_t begin, std::size_t end) {
      for (; begin + 8 <= end; begin += 8) {
        std::uint64_t word;
        std::memcpy(&word, room + begin, 8);
        sum += word;
      }
      for (; begin < end; ++begin) sum += std::to_integer<std::uint64_t>(room[begin]);
    };
    const auto size = static_cast<std::size_t>(size_of(c_.type));
    std::size_t at = 0;
    for (std::int64_t i = 0; i < c_.rows; ++i) {
      const auto first = c_.begin + static_cast<std::size_t>(i * c_.stride) * size;
      add(at, first);
      at = first + static_cast<std::size_t>(c_.columns) * size;
    }
    add(at, bytes_);
    return sum;
  }

  product_cell_shape s_;
  stored a_, b_, bias_, c_;
  std::size_t bytes_ = 0;
};

} // namespace mc
