// Attention that a library of the device computes, in one kernel for all scores of a head. The
// library prepares an attention once for its shape, and starts it many times. A kernel asks for it
// where its node has a form of attention that libraries know, and starts bodies elsewhere.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

class lane;

/// The causal attention (op/attention.hpp) of bf16. The queries and keys of each sequence stand at
/// 0, 1, ..., S-1. Operands are dense: q (B, S, A, D), k and v (B, S, K, D).
struct fused_attention_shape {
  std::int64_t sequences = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0; ///< B, S, A, K, D
  std::int64_t window = 0; ///< a query sees no key this far or farther back; 0: sees them all
  double scale = 0;        ///< factor of the scores; 0: D^-1/2
  bool gradient = false;   ///< true: computes dq, dk and dv from dy; false: computes o and lse
  bool apart = false;      ///< a sequence has the same bits whatever the number of sequences
  bool packed = false;     ///< a query sees keys of its own document only; else all keys are

  double score_scale() const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  friend constexpr bool operator==(const fused_attention_shape&,
                                   const fused_attention_shape&) = default;
};

/// Numbers of documents of a packed attention, (B, S) i32 each: a query and a key with equal
/// numbers are of one document, whatever lies between them. A token has the same number as a query
/// and as a key.
struct attention_documents {
  const std::int32_t *queries = nullptr, *keys = nullptr;
};
/// A call of a forward attention: the lane that it runs on, as many bytes of scratch as
/// attention_source::scratch() returns, and its operands. lse is (B, A, S) fp32.
struct fused_attention_call {
  lane& on;
  std::byte* scratch;
  const void *q, *k, *v;
  void *o, *lse;
  attention_documents documents = {};
};
/// A call of an attention's gradient, which reads the results of the forward call.
struct fused_attention_grad_call {
  lane& on;
  std::byte* scratch;
  const void *dy, *q, *k, *v, *o, *lse;
  void *dq, *dk, *dv;
  attention_documents documents = {};
};

/// A prepared attention. Its shape says which of the two calls it takes.
class fused_attention {
public:
  virtual ~fused_attention() = default;
  virtual void execute(const fused_attention_call& c) const = 0;
  virtual void execute(const fused_attention_grad_call& c) const = 0;
};

/// The library that a device takes fused attention from.
class attention_source {
public:
  /// Makes a source. `tell` is called for the first attention that bodies compute because of a
  /// fault of the library.
  explicit attention_source(void (*tell)(std::string_view) = nullptr) : tell_(tell) {}
  attention_source(const attention_source&) = delete;
  attention_source& operator=(const attention_source&) = delete;
  virtual ~attention_source() = default;

  /// Finds or prepares the attention of a shape. Returns nullptr where the library has no attention
  /// that computes correctly within the planned scratch; the reason was given to leave() then.
  virtual const fused_attention* prepare(const fused_attention_shape& s) = 0;
  /// Returns the bytes of scratch that are planned for an attention of a shape.
  virtual std::int64_t scratch(const fused_attention_shape& s) const = 0;
  /// Lends device memory, with nothing in it yet, to the checks of attentions that are prepared
  /// from now on. Without it, or where it is too small, a check reserves memory of its own and
  /// releases it at once.
  virtual void lend(std::byte* memory, std::int64_t bytes) = 0;
  /// Takes the lent memory back. Returns how many bytes from its beginning the checks have written.
  virtual std::int64_t take_back() = 0;
  /// Returns the most bytes of memory, other than the host's, that checks of the prepared
  /// attentions take, as product_source does.
  virtual std::int64_t check_bytes() const { return 0; }

  /// Notes a reason why bodies compute an attention. A reason that lies with the library, and not
  /// with the program, is a fault; `tell` is called for the first fault.
  void leave(std::string_view why, bool is_fault) {
    std::string text =
        "attention is computed by megacpp's own tiles, and not by a library, since " +
        std::string(why);
    if (std::find(left_.begin(), left_.end(), text) != left_.end()) return;
    if (is_fault && tell_ != nullptr && !std::exchange(told_, true)) tell_(text);
    left_.push_back(std::move(text));
  }
  /// Returns a sentence for each reason why bodies compute attention, for people.
  const std::vector<std::string>& left() const { return left_; }
  /// Returns, for people, who computes the prepared attentions.
  std::string describe() const {
    if (library_.empty()) return "by own tiles";
    return "by " + library_ + (left_.empty() ? "" : ", in part by own tiles");
  }

protected:
  /// Notes that a library computes a prepared attention. `library` says, for people, its name and
  /// version, and whether gradients have the same bits in each run.
  void computes(std::string library) { library_ = std::move(library); }

private:
  void (*tell_)(std::string_view);
  bool told_ = false;
  std::string library_; ///< the library that computes attention; "": none does
  std::vector<std::string> left_;
};

} // namespace mc
