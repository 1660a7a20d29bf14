// The check that a prepared attention of a library passes before it is trusted, as products pass
// theirs (exec/product_check.hpp): versions of libraries have computed wrong numbers for single
// shapes.
//
// The library computes the whole shape once on numbers of the check's own. All results must be
// written and finite, nothing beside them may change, and the results for the first key head of the
// first sequence and for the last key head of the last sequence must be those that the tiled
// kernels of the host compute in fp32 (kernel/attention_forward.hpp). The scores have a standard
// deviation of 2, so that a query that sees one key too many or too few shows in lse, which is
// fp32.
//
// Packed sequences have documents of many lengths, from one token on. One document is in two pieces
// with others between them, and the last document ends with its sequence. Documents' numbers differ
// by less than fp32 tells apart, and their borders differ by sequence. In every second sequence the
// last token is a document of its own with a score of about -150: where a mask was applied, cuDNN
// has taken the columns behind the last one for scores of 0, whose e^(0 - lse) is infinite then
// (github.com/pytorch/pytorch/issues/196678).
//
// The library rounds to bf16: P and dS before it multiplies them, O before its product with dy, and
// the terms of dK and dV of each head before it adds them up. So an element may be wrong by 2^-8 of
// itself and 2^-8 (o) or 2^-6 (gradients) of the largest element of its head, or of the terms of dq
// and dk where these cancel.
#pragma once

#include <megacpp/exec/attention_source.hpp>
#include <megacpp/exec/cpu.hpp>
#include <megacpp/kernel/attention_backward.hpp>
#include <megacpp/kernel/attention_forward.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

namespace mc {

class attention_check {
public:
  /// Lays out the memory of a check. For a gradient, the check computes o and lse first, by the
  /// same library.
  explicit attention_check(const fused_attention_shape& s) : s_(s) {
    const std::int64_t of_q = s.heads * s.head_dim, of_k = s.kv_heads * s.head_dim;
    const auto place = [&](array& a, bool is_there, std::int64_t per_sequence, dtype type) {
      if (!is_there) return;
      a = {bytes_ + guard, per_sequence, type};
      bytes_ = tiled::ceil_to(a.begin + s.sequences * a.bytes(), guard) + guard;
    };
    place(q_, true, s.tokens * of_q, dtype::bf16);
    place(k_, true, s.tokens * of_k, dtype::bf16);
    place(v_, true, s.tokens * of_k, dtype::bf16);
    place(o_, true, s.tokens * of_q, dtype::bf16);
    place(lse_, true, s.tokens * s.heads, dtype::f32);
    place(dy_, s.gradient, s.tokens * of_q, dtype::bf16);
    place(dq_, s.gradient, s.tokens * of_q, dtype::bf16);
    place(dk_, s.gradient, s.tokens * of_k, dtype::bf16);
    place(dv_, s.gradient, s.tokens * of_k, dtype::bf16);
    place(documents_, s.packed, s.tokens, dtype::i32);
  }

  /// Returns the bytes of device memory that the check of an attention needs.
  std::int64_t bytes() const { return bytes_; }

  /// Starts the computation of a shape's results: (forward, gradient). Both calls lack scratch.
  /// Returns false if it could not be started.
  using run_attention =
      std::function<bool(const fused_attention_call&, const fused_attention_grad_call&)>;
  std::string fault(device& on, std::byte* memory, const run_attention& run) const {
    on.fill(memory, 0xff, bytes_);
    for (std::int64_t b = 0; b < s_.sequences; ++b)
      for (const array* a : {&q_, &k_, &v_, &dy_})
        if (a->there()) on.write(memory + a->at(b), input(*a, b).data(), a->bytes());
    for (std::int64_t b = 0; s_.packed && b < s_.sequences; ++b)
      on.write(memory + documents_.at(b), documents(b).data(), documents_.bytes());
    const auto at = [&](const array& a) { return memory + a.begin; };
    attention_documents of;
    if (s_.packed) of.queries = of.keys = reinterpret_cast<const std::int32_t*>(at(documents_));
    lane& l = on.main_lane();
    if (!run({l, nullptr, at(q_), at(k_), at(v_), at(o_), at(lse_), of},
             {l, nullptr, at(dy_), at(q_), at(k_), at(v_), at(o_), at(lse_), at(dq_), at(dk_),
              at(dv_), of}))
      return "fails";
    l.finish();
    for (const array* a : {&o_, &dq_, &dk_, &dv_, &lse_})
      if (a->there() && !is_written(on, memory, *a)) return "leaves results that are no numbers";
    if (!guards_are_whole(on, memory)) return "writes beside its results";
    std::string wrong = fault_of_head(on, memory, 0, 0);
    if (wrong.empty() && s_.sequences * s_.kv_heads > 1)
      wrong = fault_of_head(on, memory, s_.sequences - 1, s_.kv_heads - 1);
    return wrong;
  }

private:
  static constexpr std::int64_t guard = 256; // bytes on each side of an array

  /// An array in the check's memory, with so many elements for each sequence.
  struct array {
    std::int64_t begin = -1, elements = 0;
    dtype type = dtype::bf16;
    bool there() const { return begin >= 0; }
    std::int64_t bytes() const { return elements * size_of(type); } ///< bytes of a sequence
    std::int64_t at(std::int64_t sequence) const { return begin + sequence * bytes(); }
  };

  double most_of_q() const {
    return 6 / (s_.score_scale() * std::sqrt(static_cast<double>(s_.head_dim)));
  }
  /// Returns the documents of a packed sequence, by their numbers.
  std::vector<std::int32_t> documents(std::int64_t sequence) const {
    const std::int64_t S = s_.tokens, one = 3 * S / 8 + sequence, again = 5 * S / 8,
                       then = 3 * S / 4;
    constexpr std::int32_t first = 1 << 30;
    std::vector<std::int32_t> x;
    for (std::int64_t t = 0; t < S; ++t) {
      std::int64_t document = 0; // document 0: tokens before `one`, and from `again` to `then`
      if (t == S - 1 && last_is_alone(sequence)) document = 1;
      else if (t >= then) document = 2;
      else if (t >= one && t < again) // documents of 1, 3, 5, ... tokens
        document = 3 + static_cast<std::int64_t>(std::sqrt(static_cast<double>(t - one)));
      x.push_back(first + static_cast<std::int32_t>(document));
    }
    return x;
  }
  static bool last_is_alone(std::int64_t sequence) { return sequence % 2 == 0; }

  /// Returns numbers that look random, the same for the same array and sequence: up to 1 in
  /// magnitude, and q so large that scores have the deviation of 2. Where the last token is a
  /// document, its queries are its keys times a number that makes its scores about -150.
  std::vector<bf16> input(const array& a, std::int64_t sequence) const {
    std::vector<bf16> x = random(a, sequence);
    if (&a != &q_ || !s_.packed || !last_is_alone(sequence)) return x;
    const std::vector<bf16> k = random(k_, sequence);
    const std::int64_t D = s_.head_dim, group = s_.heads / s_.kv_heads;
    const double times = -450 / (s_.score_scale() * static_cast<double>(D));
    for (std::int64_t i = 0; i < s_.heads * D; ++i) {
      const std::int64_t key = i / D / group * D + i % D;
      const bf16 of = k[static_cast<std::size_t>((s_.tokens - 1) * s_.kv_heads * D + key)];
      x[static_cast<std::size_t>((s_.tokens - 1) * s_.heads * D + i)] =
          bf16(static_cast<float>(times * double{static_cast<float>(of)}));
    }
    return x;
  }
  std::vector<bf16> random(const array& a, std::int64_t sequence) const {
    const double most = &a == &q_ ? most_of_q() : 1;
    std::vector<bf16> x(static_cast<std::size_t>(a.elements));
    const auto key = static_cast<std::uint64_t>(a.at(sequence));
    constexpr std::int64_t piece = 1 << 16;
    parallel_for((a.elements + piece - 1) / piece, [&](std::int64_t p) {
      for (std::int64_t i = p * piece; i < a.elements && i < (p + 1) * piece; ++i) {
        std::uint64_t n = (key + static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15u;
        n ^= n >> 29, n *= 0xbf58476d1ce4e5b9u, n ^= n >> 32;
        const double unit = static_cast<double>(n >> 11) * 0x1p-52 - 1;
        x[static_cast<std::size_t>(i)] = bf16(static_cast<float>(most * unit));
      }
    });
    return x;
  }
  template <class T> static std::vector<T> read(device& on, const std::byte* memory, const array& a,
                                                std::int64_t sequence) {
    std::vector<T> x(static_cast<std::size_t>(a.elements));
    on.read(x.data(), memory + a.at(sequence), a.bytes());
    return x;
  }
  bool is_written(device& on, const std::byte* memory, const array& a) const {
    const auto finite = [](auto x) { return std::isfinite(convert<double>(x)); };
    for (std::int64_t b = 0; b < s_.sequences; ++b) {
      bool all = true;
      if (a.type == dtype::bf16) {
        const auto x = read<bf16>(on, memory, a, b);
        all = std::all_of(x.begin(), x.end(), finite);
      } else {
        const auto x = read<float>(on, memory, a, b);
        all = std::all_of(x.begin(), x.end(), finite);
      }
      if (!all) return false;
    }
    return true;
  }
  bool guards_are_whole(device& on, const std::byte* memory) const {
    std::array<unsigned char, guard> x{};
    for (const array* a : {&q_, &k_, &v_, &o_, &lse_, &dy_, &dq_, &dk_, &dv_, &documents_}) {
      if (!a->there()) continue;
      for (const std::int64_t first : {a->begin - guard, a->at(s_.sequences)}) {
        on.read(x.data(), memory + first, guard);
        if (std::any_of(x.begin(), x.end(), [](unsigned char c) { return c != 0xff; }))
          return false;
      }
    }
    return true;
  }

  /// Returns columns [first, first + count) of the rows of a sequence, as fp32.
  std::vector<float> columns(const std::vector<bf16>& x, std::int64_t stride, std::int64_t first,
                             std::int64_t count) const {
    std::vector<float> y;
    y.reserve(static_cast<std::size_t>(s_.tokens * count));
    for (std::int64_t t = 0; t < s_.tokens; ++t)
      for (std::int64_t d = 0; d < count; ++d)
        y.push_back(static_cast<float>(x[static_cast<std::size_t>(t * stride + first + d)]));
    return y;
  }
  /// Compares results. `least` is the size of the terms that an array's elements are sums of: terms
  /// are rounded even where all sums are small, so the bound is never less than that of such terms.
  static std::string differing(const char* name, const std::vector<float>& got,
                               const std::vector<float>& want, double roundings, double least) {
    double most = least;
    for (const float w : want) most = std::max(most, std::fabs(double{w}));
    for (std::size_t i = 0; i < want.size(); ++i) {
      const double w = want[i], near = 0x1p-8 * (std::fabs(w) + roundings * most);
      if (!(std::fabs(got[i] - w) <= near)) return std::string("computes ") + name + " wrong";
    }
    return {};
  }

  /// Checks the results of one key head of a sequence, and of the query heads that read it. Returns
  /// what is wrong.
  std::string fault_of_head(device& on, const std::byte* memory, std::int64_t b,
                            std::int64_t kv) const {
    const std::int64_t S = s_.tokens, D = s_.head_dim, group = s_.heads / s_.kv_heads;
    const std::int64_t of_q = s_.heads * D, of_k = s_.kv_heads * D;
    const auto queries = [&](const std::vector<bf16>& x) {
      return columns(x, of_q, kv * group * D, group * D);
    };
    const auto keys = [&](const std::vector<bf16>& x) { return columns(x, of_k, kv * D, D); };
    const auto q = queries(input(q_, b)), k = keys(input(k_, b)), v = keys(input(v_, b));
    std::vector<float> o(q.size()), lse(static_cast<std::size_t>(group * S));
    const attention_shape shape{std::int64_t{1}, S, S, group, std::int64_t{1}, D};
    attention_visibility see;
    see.scale = s_.score_scale(), see.window = s_.window;
    std::vector<std::int32_t> of;
    if (s_.packed) of = documents(b), see.query_document = see.key_document = of.data();
    const cores threads;
    const int many = on.threads();
    std::vector<std::byte> scratch(
        static_cast<std::size_t>(std::max(attention_forward_bytes<float>(shape, many),
                                          attention_backward_bytes<float>(shape, many))));
    const auto rows_of = [D](auto& x, std::int64_t heads) {
      return head_rows<std::remove_reference_t<decltype(x[0])>>{x.data(), heads * D};
    };
    attention_forward<float>(shape, see, rows_of(q, group), rows_of(k, 1), rows_of(v, 1),
                             rows_of(o, group), lse.data(), {scratch.data(), many, threads});
    const auto got = read<float>(on, memory, lse_, b);
    for (std::int64_t i = 0; i < group * S; ++i) {
      const double want = lse[static_cast<std::size_t>(i)],
                   is = got[static_cast<std::size_t>(kv * group * S + i)];
      if (!(std::fabs(is - want) <= 1e-4 + 1e-5 * std::fabs(want))) return "computes lse wrong";
    }
    std::string wrong = differing("o", queries(read<bf16>(on, memory, o_, b)), o, 1, 0);
    if (!wrong.empty() || !s_.gradient) return wrong;
    const auto dy = queries(input(dy_, b));
    // An element of dS is the difference of two numbers of size `terms`, which are rounded before.
    // So the errors of dq and dk are in proportion to `terms`, even where the difference is small.
    // A query of a short document multiplies the errors by a probability near 1, and no gradient
    // need be larger.
    const double terms =
        s_.score_scale() * std::sqrt(static_cast<double>(D)) / (s_.packed ? 4 : 16);
    std::vector<float> dq(q.size()), dk(k.size()), dv(v.size());
    attention_backward<float>(shape, see, rows_of(dy, group), rows_of(q, group), rows_of(k, 1),
                              rows_of(v, 1), rows_of(o, group), lse.data(), rows_of(dq, group),
                              rows_of(dk, 1), rows_of(dv, 1), {scratch.data(), many, threads});
    wrong = differing("dq", queries(read<bf16>(on, memory, dq_, b)), dq, 4, terms);
    if (wrong.empty())
      wrong = differing("dk", keys(read<bf16>(on, memory, dk_, b)), dk, 4, terms * most_of_q());
    if (wrong.empty()) wrong = differing("dv", keys(read<bf16>(on, memory, dv_, b)), dv, 4, 0);
    return wrong;
  }

  fused_attention_shape s_;
  array q_, k_, v_, o_, lse_, dy_, dq_, dk_, dv_, documents_;
  std::int64_t bytes_ = 0;
};

} // namespace mc
