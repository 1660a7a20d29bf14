// The check that a prepared product passes before it is trusted. Libraries have computed wrong
// numbers for single shapes and have written beside their results, and nothing would notice at run
// time.
//
// The product is computed once on numbers of the check's own and compared by Freivalds' test
// (1977): with random numbers r, C r must be C0 r + 1 (bias r) + A (B r), row by row. This reads
// each operand once instead of computing a product. All bytes of the check's memory outside the
// result must stay as they were.
//
// The tolerance is zero. The numbers are integers so small that every sum of them is exact in
// whatever order it is taken, and whether or not a product and a sum are rounded together:
//
//   - the result's type has all integers up to `exact`: 2^24 in f32, 2^8 in bf16; in f64 as many of
//     2^53 as the test's own sums in double leave. Sums are taken in f32 where operands and result
//     are f32 or bf16, so 2^8 and 2^24 hold for these as well;
//   - each of the K products of a sum is at most `wide` in magnitude, and so are a bias and a C
//     that is added to: (K + 2) wide <= exact. One of the two factors is 1 or -1, and the other
//     factor has up to log2(wide) bits; it is A's where k is even and B's where k is odd. So the
//     check sees an operand or a sum that is rounded more coarsely than its type. A bf16 operand
//     has 2^8 at most; an operand that the library is asked to round has the bits that are left of
//     it (operand_bits);
//   - where K + 2 > exact, as in long sums that end in bf16, only every s-th product is not zero:
//     those with i + k (or k + j) = 0 modulo s, where s is the least number with
//     K / s + 2 <= exact. Each column of A and row of B counts in some row or column of C;
//   - r is at most 2^12 in magnitude, and less where N > 2^17, so that n r exact <= 2^53: both
//     sides are exact in double then.
//
// So one wrong element is always seen, since r has no zero, unless its error is less than 2^-53 of
// the row's sum. A row with several wrong elements passes with a probability of about 2^-13 if
// their errors are drawn without regard to r. The elements of C are NaN where C is only written,
// and so is all memory between and around rows.
//
// A product that goes on with its sums (product_end) is computed twice:
//
//   - once with numbers for which GELU is its operand and its slope 1, in fp32 and in bf16: sums of
//     6 and more, to which a bias lifts them, or a Z of 8 and more. This result passes the test
//     above, and a kept Z must be the same numbers;
//   - once with sums, or a Z, around 0, most of them within 4. The first time has shown the sums
//     exactly: a forward product only has another bias. In bf16 each element must be GELU of its
//     sum z within 2^-13 |z| + 2^-8 |gelu(z)|, or p gelu'(z) of its sum p within
//     2^-12 |p| + 2^-8 |p gelu'(z)|; in fp32 within 2^-18 |z|, or 2^-18 |p|; all against tanh in
//     double. A kept Z must be z. GELU by the error function is off by up to 4.7e-4, between -3
//     and -2.5 by more than the tolerance.
//
// A and the bias of a forward product hold multiples of 2^-e, not of 1, with the e that makes sums
// so small. Sums stay below a quarter of `exact`, so that the bias has room.
//
// A product of several groups, such as experts, is checked at once, in the layout of its operands:
// rows follow each other, and so do matrices. Every group is compared with numbers of its own.
//
// The check uses host memory. A device with memory of its own copies the check's memory there
// before it computes, and copies all of it back afterwards.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/vectors/team.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The check of one tile or, where a library computes whole products, of one product or of those of
/// several groups.
class product_check {
public:
  explicit product_check(const product_cell_shape& s) : product_check(s, {}) {}
  /// Makes the check of several groups. `groups` has the number of rows of each, which takes the
  /// place of m or, where A is transposed, of k; that is the most of them then. The rows of all
  /// groups follow each other in A, and in C or, where A is transposed, in B. The matrices of
  /// groups follow each other in the third operand. k must be even where neither A nor B is
  /// transposed, since every second row of B has wide numbers.
  product_check(const product_cell_shape& s, std::vector<std::int64_t> groups)
      : s_(s), groups_(std::move(groups)) {
    std::int64_t rows = 0;
    for (const std::int64_t n : groups_) rows += n;
    const bool summed = s.a_transposed, one = groups_.empty();
    const std::int64_t matrices = one ? 1 : std::ssize(groups_);
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
    const std::int64_t m = one ? s.m : rows, k = one ? s.k : rows;
    place(a_, s.type, summed, summed ? s.m : m, summed ? k : s.k, s.lda, 0);
    place(b_, s.type, s.b_transposed,
          summed           ? k
          : s.b_transposed ? s.k
                           : s.k * matrices,
          s.b_transposed ? s.n * matrices : s.n, s.ldb, 0);
    place(bias_, s.type, false, 1, s.n, s.n, 0);
    if (has_z()) place(z_, s.output, false, s.m, s.n, s.ldc, s.ldc);
    place(c_, s.output, false, summed ? s.m * matrices : m, s.n, s.ldc,
          s.ldc); // the row beyond the last is watched, too
    bytes_ = aligned(at);
  }

  /// Returns the bytes of memory that the check of a product needs.
  std::size_t bytes() const { return bytes_; }

  /// The addresses of the operands and results of a checked product.
  struct operands {
    const void *a = nullptr, *b = nullptr, *bias = nullptr;
    void *z = nullptr, *c = nullptr; ///< z: written by gelu_kept, read by gelu_gradient
  };
  /// A function that computes the checked product. It returns false if it could not.
  using product_function = std::function<bool(const operands&)>;
  /// Returns what the library does wrong, as a verb with an object; "" if the product may be
  /// trusted. `room` is aligned as vectors are.
  std::string fault(std::byte* room, const product_function& run) const {
    fill(room, true);
    const std::vector<double> r = signs(), want = expected(room, r);
    if (std::string wrong = fault_of_call(room, run); !wrong.empty()) return wrong;
    std::vector<double> got(want.size());
    multiply(room, c_, r.data(), got.data());
    for (std::size_t i = 0; i < want.size(); ++i)
      if (!(got[i] == want[i])) return "computes row " + std::to_string(i) + " wrong";
    return s_.ends_in == product_end::sum ? std::string() : fault_of_end(room, run);
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

  std::string fault_of_call(std::byte* room, const product_function& run) const {
    const std::uint64_t before = outside(room);
    if (!run({.a = room + a_.begin,
              .b = room + b_.begin,
              .bias = s_.bias ? room + bias_.begin : nullptr,
              .z = has_z() ? room + z_.begin : nullptr,
              .c = room + c_.begin}))
      return "fails";
    return outside(room) != before ? "changes what is not its result" : "";
  }

  /// GELU in its tanh form, and its slope, at z.
  struct curve {
    double value, slope;
    explicit curve(double z) {
      constexpr double linear = 0.79788456080286535588, cubic = 0.044715; // sqrt(2 / pi)
      const double t = std::tanh(linear * (z + cubic * z * z * z));
      value = z * (1 + t) / 2;
      slope = (1 + t) / 2 + z * (1 - t * t) / 2 * linear * (1 + 3 * cubic * z * z);
    }
  };
  /// Returns the curves at all numbers of bf16: these are fewer than the elements of a result.
  static std::vector<curve> curves() {
    std::vector<curve> all;
    all.reserve(1 << 16);
    for (std::uint32_t bits = 0; bits < 1 << 16; ++bits)
      all.emplace_back(convert<double>(std::bit_cast<bf16>(static_cast<std::uint16_t>(bits))));
    return all;
  }
  /// Makes the second run of a product whose first result was correct. Returns what is wrong.
  std::string fault_of_end(std::byte* room, const product_function& run) const {
    std::string wrong;
    const auto go_on = [&]<class T>(T) {
      const auto columns = static_cast<std::size_t>(c_.columns);
      std::vector<T> first(static_cast<std::size_t>(c_.rows) * columns), bias;
      for (std::int64_t i = 0; i < c_.rows; ++i) {
        const T* const c = row<T>(room, c_, i);
        if (keeps() && std::memcmp(c, row<T>(room, z_, i), columns * sizeof(T)) != 0) {
          wrong = "keeps row " + std::to_string(i) + " wrong";
          return;
        }
        std::copy_n(c, columns, first.begin() + i * c_.columns);
      }
      if (s_.bias) bias.assign(row<T>(room, bias_, 0), row<T>(room, bias_, 0) + columns);
      fill(room, false);
      wrong = fault_of_call(room, run);
      const std::vector<curve> table = sizeof(T) == 2 ? curves() : std::vector<curve>();
      for (std::int64_t i = 0; i < c_.rows && wrong.empty(); ++i)
        wrong = fault_of_row(room, i, first.data() + i * c_.columns, bias, table);
    };
    if (s_.output == dtype::bf16) go_on(bf16());
    else go_on(float());
    return wrong;
  }
  /// Returns what is wrong in a row of the second run. `first` is the row of the first run, and
  /// `bias` is the bias of that run.
  template <class T> std::string fault_of_row(std::byte* room, std::int64_t i, const T* first,
                                              const std::vector<T>& bias,
                                              const std::vector<curve>& table) const {
    const bool forward = s_.ends_in != product_end::gelu_gradient, narrow = sizeof(T) == 2;
    const T *const c = row<T>(room, c_, i), *const z = has_z() ? row<T>(room, z_, i) : nullptr,
                   *const now = s_.bias ? row<T>(room, bias_, 0) : nullptr;
    for (std::int64_t j = 0; j < c_.columns; ++j) {
      double sum = convert<double>(first[j]);
      if (now != nullptr)
        sum += convert<double>(now[j]) - convert<double>(bias[static_cast<std::size_t>(j)]);
      const auto at = convert<T>(static_cast<accumulator_t<T>>(forward ? sum : 0.0));
      const T of = forward ? at : z[j];
      if (keeps() && !(convert<double>(z[j]) == sum))
        return "keeps row " + std::to_string(i) + " wrong";
      const curve g = narrow ? table[bits_of(of)] : curve(convert<double>(of));
      const double want = forward ? g.value : sum * g.slope,
                   off = std::abs(convert<double>(c[j]) - want),
                   bound = narrow ? std::abs(sum) * (forward ? 0x1p-13 : 0x1p-12) +
                                        0x1p-8 * std::abs(want)
                                  : 0x1p-18 * std::abs(sum);
      if (!(off <= bound))
        return std::string(forward ? "computes GELU" : "computes the slope of GELU") +
               " wrong in row " + std::to_string(i);
    }
    return {};
  }
  template <class T> static std::size_t bits_of(T x) {
    if constexpr (sizeof(T) == 2) return std::bit_cast<std::uint16_t>(x);
    else return 0;
  }

  bool keeps() const { return s_.ends_in == product_end::gelu_kept; }
  bool has_z() const { return keeps() || s_.ends_in == product_end::gelu_gradient; }
  bool lifted() const { return keeps() || s_.ends_in == product_end::gelu; }

  /// The greatest magnitude of an r; and the integer up to which sums are exact in the result's
  /// type.
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
  /// Returns the bound within which sums of the check's products stay.
  std::int64_t most() const { return lifted() ? exact() / 4 : exact(); }
  /// Returns how many products of a sum there are for each one that is not zero.
  std::int64_t apart() const { return (s_.k + most() - 3) / (most() - 2); }
  std::int64_t terms() const { return (s_.k + apart() - 1) / apart(); }
  /// Returns the unit of the check's numbers in A and the bias, which are multiples of it.
  double unit() const {
    if (!lifted()) return 1;
    const double spread = wide() * std::sqrt(static_cast<double>(terms()));
    return std::exp2(-std::max(0.0, std::ceil(std::log2(spread / 2))));
  }
  /// Returns the bound of the check's wide factors: a power of two.
  std::uint32_t wide() const {
    const auto most = static_cast<std::uint64_t>(this->most() / (terms() + 2));
    const int bits = s_.operand_bits != 0 ? s_.operand_bits : s_.type == dtype::bf16 ? 8 : 30;
    const std::uint64_t of_type = std::uint64_t{1} << bits;
    return static_cast<std::uint32_t>(std::bit_floor(std::min(most, of_type)));
  }

  /// Returns a number that looks random, and is the same for the same place.
  static std::uint32_t mixed(std::uint64_t place) {
    auto x = static_cast<std::uint32_t>(place);
    x ^= x >> 16, x *= 0x7feb352du;
    x ^= x >> 15, x *= 0x846ca68bu;
    return x ^ x >> 16;
  }
  /// Fills a row with integers other than zero: of magnitude at most mask_even + 1 or mask_odd + 1,
  /// by the parity of i.
  template <class T> static void fill_row(T* to, std::int64_t n, std::uint32_t key,
                                          std::uint32_t mask_even, std::uint32_t mask_odd,
                                          accumulator_t<T> unit = 1) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint32_t x = mixed(key + static_cast<std::uint64_t>(i));
      const std::uint32_t mask = (i & 1) != 0 ? mask_odd : mask_even;
      const auto magnitude = static_cast<std::int32_t>((x >> 1 & mask) + 1);
      to[i] =
          convert<T>(static_cast<accumulator_t<T>>((x & 1) != 0 ? -magnitude : magnitude) * unit);
    }
  }
  /// Fills a matrix. k_along: a stored row runs along the sum; else each row is one term of it.
  /// `parity`: the parity of the terms with wide numbers; -1: all are wide. Rows are copied from at
  /// most 4096 numbers, each row from another place on.
  void fill(std::byte* room, const stored& m, bool k_along, int parity, bool thin,
            double unit = 1) const {
    const auto period = std::clamp<std::int64_t>(
        static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(4 * m.columns))), 64,
        4096);
    const std::uint32_t mask = wide() - 1;
    const std::int64_t s = apart();
    const auto of = [&](int at) { return parity < 0 || at == parity ? mask : 0u; };
    with_float_type(m.type, [&](auto type) {
      using T = decltype(type);
      std::vector<T> numbers[2]; // numbers of even rows and of odd rows
      for (int i = 0; i < 2; ++i) {
        numbers[i].resize(static_cast<std::size_t>(period));
        fill_row(numbers[i].data(), period, mixed(m.begin + static_cast<std::uint64_t>(i)),
                 of(k_along ? 0 : i), of(k_along ? 1 : i), static_cast<accumulator_t<T>>(unit));
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
  /// Fills all operands of the check. `first`: for the first run, whose result is the sums
  /// themselves.
  void fill(std::byte* room, bool first) const {
    std::memset(room, 0xff, bytes_);
    const bool thin_a = s_.m >= s_.n;
    fill(room, a_, !s_.a_transposed, 0, thin_a, unit());
    fill(room, b_, s_.b_transposed, 1, !thin_a);
    if (s_.bias) fill(room, bias_, true, -1, false, unit());
    if (s_.bias && lifted() && first) add(room, bias_, static_cast<double>(3 * most()) * unit());
    if (s_.accumulate) fill(room, c_, true, -1, false);
    if (s_.ends_in == product_end::gelu_gradient) fill_slopes(room, first);
  }
  /// Adds a number to all elements of a matrix.
  static void add(std::byte* room, const stored& m, double x) {
    with_float_type(m.type, [&]<class T>(T) {
      for (std::int64_t i = 0; i < m.rows; ++i)
        for (std::int64_t j = 0; j < m.columns; ++j) {
          T& at = row<T>(room, m, i)[j];
          at = convert<T>(static_cast<accumulator_t<T>>(convert<double>(at) + x));
        }
    });
  }
  /// Fills the Z of the check with numbers from 8 to 39, for the first run, or within 4 of 0.
  void fill_slopes(std::byte* room, bool first) const {
    with_float_type(z_.type, [&]<class T>(T) {
      for (std::int64_t i = 0; i < z_.rows; ++i) {
        T* const to = row<T>(room, z_, i);
        for (std::int64_t j = 0; j < z_.columns; ++j) {
          const auto x = static_cast<int>(
              mixed(z_.begin + static_cast<std::uint64_t>(i * z_.columns + j)) >> 8 & 127);
          to[j] = convert<T>(static_cast<accumulator_t<T>>(first ? 8 + x % 32 : 0) +
                             static_cast<accumulator_t<T>>(first ? 0 : x - 64) / 16);
        }
      }
    });
  }
  std::vector<double> signs() const {
    std::vector<double> r(static_cast<std::size_t>(s_.n));
    const auto mask = static_cast<std::uint32_t>(largest_sign() - 1);
    fill_row(r.data(), s_.n, 0x5bd1e995u, mask, mask);
    return r;
  }

  /// Adds M x to y, for M as the product sees it.
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
  /// Returns the expected C r of Freivalds' test, by plain sums.
  std::vector<double> expected(std::byte* room, const std::vector<double>& r) const {
    if (!groups_.empty()) return expected_of_groups(room, r);
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

  std::vector<double> expected_of_groups(std::byte* room, const std::vector<double>& r) const {
    std::vector<double> y(static_cast<std::size_t>(c_.rows));
    if (s_.accumulate) multiply(room, c_, r.data(), y.data());
    std::int64_t row = 0, matrix = 0; // first row and matrix of the group
    for (const std::int64_t n : groups_) {
      const std::int64_t of_b = s_.a_transposed ? n : s_.b_transposed ? s_.n : s_.k;
      std::vector<double> w(static_cast<std::size_t>(s_.a_transposed ? n : s_.k));
      multiply(room, some_rows(b_, s_.a_transposed ? row : matrix * of_b, of_b), r.data(),
               w.data());
      multiply(room, some_rows(a_, row, n), w.data(),
               y.data() + (s_.a_transposed ? matrix * s_.m : row));
      row += n, ++matrix;
    }
    return y;
  }
  /// Returns some of the stored rows of a matrix.
  static stored some_rows(stored m, std::int64_t first, std::int64_t rows) {
    m.begin += static_cast<std::size_t>(first * m.stride * size_of(m.type)), m.rows = rows;
    return m;
  }

  /// Returns the sum of all words of the check's memory outside the results, which any changed byte
  /// changes.
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
    std::size_t at = 0;
    const auto but_for = [&](const stored& m) {
      const auto size = static_cast<std::size_t>(size_of(m.type));
      for (std::int64_t i = 0; i < m.rows; ++i) {
        const auto first = m.begin + static_cast<std::size_t>(i * m.stride) * size;
        add(at, first);
        at = first + static_cast<std::size_t>(m.columns) * size;
      }
    };
    if (keeps()) but_for(z_);
    but_for(c_);
    add(at, bytes_);
    return sum;
  }

  product_cell_shape s_;
  std::vector<std::int64_t> groups_; ///< number of rows of each group; none: a single product
  stored a_, b_, bias_, z_, c_;      // z_ exists where has_z() is true
  std::size_t bytes_ = 0;
};

} // namespace mc
