// Attention as a library of a device computes it, in one kernel for all scores of a head: prepared
// once by shape, started many times. A kernel asks for it where the attention of its node has the
// form that libraries know, and computes by bodies of its own elsewhere.
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

/// Causal attention (op/attention.hpp) of bf16. The queries and keys of each sequence stand at 0,
/// 1, ..., S-1. Operands are dense: q (B, S, A, D), k and v (B, S, K, D).
struct fused_attention_shape {
  std::int64_t sequences = 0, tokens = 0, heads = 0, kv_heads = 0, head_dim = 0; ///< B, S, A, K, D
  std::int64_t window = 0; ///< a query sees no key this far or farther back; 0: there is none
  double scale = 0;        ///< of the scores; 0: D^-1/2
  bool gradient = false;   ///< dq, dk and dv, of dy; else o and lse
  bool apart = false;      ///< a sequence has the same bits however many others there are
  bool packed = false;     ///< a query sees keys of its own document alone; else a sequence is one

  double score_scale() const {
    return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(head_dim));
  }
  friend constexpr bool operator==(const fused_attention_shape&,
                                   const fused_attention_shape&) = default;
};

/// Numbers of documents, (B, S) i32 each, of a packed attention: a query and a key whose numbers
/// are equal are of one document, whatever lies between them. A token has one number as both.
struct attention_documents {
  const std::int32_t *queries = nullptr, *keys = nullptr;
};
/// A call of an attention: the lane that it runs on, as much scratch as attention_source::scratch()
/// says, and its operands. lse is (B, A, S) fp32.
struct fused_attention_call {
  lane& on;
  std::byte* scratch;
  const void *q, *k, *v;
  void *o, *lse;
  attention_documents documents = {};
};
/// A call of its gradient, which reads what the forward has made.
struct fused_attention_grad_call {
  lane& on;
  std::byte* scratch;
  const void *dy, *q, *k, *v, *o, *lse;
  void *dq, *dk, *dv;
  attention_documents documents = {};
};

/// A prepared attention: of its calls the one that its shape says.
class fused_attention {
public:
  virtual ~fused_attention() = default;
  virtual void execute(const fused_attention_call& c) const = 0;
  virtual void execute(const fused_attention_grad_call& c) const = 0;
};

/// Where fused attention comes from.
class attention_source {
public:
  /// `tell` hears of the first attention that a fault of the library leaves to bodies.
  explicit attention_source(void (*tell)(std::string_view) = nullptr) : tell_(tell) {}
  attention_source(const attention_source&) = delete;
  attention_source& operator=(const attention_source&) = delete;
  virtual ~attention_source() = default;

  /// The attention of a shape: found, or prepared. nullptr where the library has none that computes
  /// right in the scratch that is planned; then it has said why by leave().
  virtual const fused_attention* prepare(const fused_attention_shape& s) = 0;
  /// The bytes of scratch that are planned for a shape.
  virtual std::int64_t scratch(const fused_attention_shape& s) const = 0;
  /// Memory of the device, with nothing in it yet, in which what is prepared from now on may be
  /// checked. Where it is too small, and without it, a check has memory of its own, which it gives
  /// back at once.
  virtual void lend(std::byte* memory, std::int64_t bytes) = 0;
  /// Ends that. Returns how much of the memory's beginning the checks have written.
  virtual std::int64_t take_back() = 0;
  /// The most that a check of what was prepared takes of memory that the host does not see, as
  /// product_source has it.
  virtual std::int64_t check_bytes() const { return 0; }

  /// Notes a reason why bodies compute an attention. One that lies with the library, and not with
  /// the program, is a fault, and the first fault is told.
  void leave(std::string_view why, bool is_fault) {
    std::string text =
        "attention is computed by megacpp's own tiles, and not by a library, since " +
        std::string(why);
    if (std::find(left_.begin(), left_.end(), text) != left_.end()) return;
    if (is_fault && tell_ != nullptr && !std::exchange(told_, true)) tell_(text);
    left_.push_back(std::move(text));
  }
  /// For people: a sentence for each reason.
  const std::vector<std::string>& left() const { return left_; }
  /// For people: what computes the attention that was prepared.
  std::string describe() const {
    if (library_.empty()) return "by own tiles";
    return "by " + library_ + (left_.empty() ? "" : ", in part by own tiles");
  }

protected:
  /// Notes that a library computes an attention that was prepared. For people: `library` is its
  /// name and version, and whether gradients have the same bits in each run.
  void computes(std::string library) { library_ = std::move(library); }

private:
  void (*tell_)(std::string_view);
  bool told_ = false;
  std::string library_; ///< that computes; "": none does
  std::vector<std::string> left_;
};

} // namespace mc
