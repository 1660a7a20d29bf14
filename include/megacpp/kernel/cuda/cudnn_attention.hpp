// Attention by cuDNN on a CUDA device: execution plans of its backend C API, made from the graphs
// of kernel/cuda/attention_graph.hpp.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/kernel/cuda/attention_check.hpp>
#include <megacpp/kernel/cuda/attention_graph.hpp>

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// The engines that cuDNN proposes for one shape, best guess first, and the plan that was made of
/// one of them. They are for the device of the handle or, where the handle is null, for the device
/// that `properties` describe; a plan cannot run there.
class cudnn_plan {
public:
  cudnn_plan(const fused_attention_shape& s, bool deterministic, cudnnHandle_t handle,
             const cudnn_descriptor* properties = nullptr)
      : shape_(s), deterministic_(deterministic), handle_(handle) {
    write_attention(graph_, s, deterministic);
    const cudnn_descriptor& operations = graph_.finalized(handle);
    cudnn_descriptor guess(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    guess.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations)
        .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    if (properties != nullptr) guess.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties);
    guess.finalize("the choice of engines");
    std::int64_t count = 0;
    require_cudnn(cudnnBackendGetAttribute(guess.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                           CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
                  "the number of engines for attention");
    std::vector<cudnnBackendDescriptor_t> found;
    for (std::int64_t i = 0; i < count; ++i) {
      engines_.push_back(&graph_.keep(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
      found.push_back(engines_.back()->get());
    }
    if (count > 0)
      require_cudnn(
          cudnnBackendGetAttribute(guess.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, found.data()),
          "the engines for attention");
    engines_.resize(static_cast<std::size_t>(count));
  }

  int engines() const { return static_cast<int>(engines_.size()); }
  /// Makes the plan of an engine. Throws mc::error where the engine has none for the shape.
  void take(int engine) {
    plan_.reset();
    auto made = std::make_unique<cudnn_descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    if (handle_ != nullptr)
      made->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle_);
    made->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *engines_[static_cast<unsigned>(engine)])
        .finalize("a plan of attention");
    std::int64_t one = 0;
    require_cudnn(cudnnBackendGetAttribute(made->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                           CUDNN_TYPE_INT64, 1, &one, &workspace_),
                  "the workspace of a plan");
    plan_ = std::move(made);
  }

  /// Returns the bytes of the scratch of a call, with the workspace that cuDNN asks for.
  std::int64_t scratch() const { return places().workspace + workspace_; }
  void execute(const fused_attention_call& c) const {
    arrays all(*this, c);
    all.bind(attention_tensor::o, c.o), all.bind(attention_tensor::stats, c.lse);
    all.execute();
  }
  void execute(const fused_attention_grad_call& c) const {
    arrays all(*this, c);
    float one = 1;
    all.bind(attention_tensor::o, c.o), all.bind(attention_tensor::stats, c.lse);
    all.bind(attention_tensor::dy, c.dy), all.bind(attention_tensor::dq, c.dq);
    all.bind(attention_tensor::dk, c.dk), all.bind(attention_tensor::dv, c.dv);
    all.bind(attention_tensor::one, &one), all.bind(attention_tensor::row_sums, c.scratch);
    if (!deterministic_)
      all.bind(attention_tensor::dq_accumulator, c.scratch + places().accumulator);
    all.execute();
  }

private:
  /// The arrays of a call, bound to the tensors of the graph. cuDNN reads numbers of the host
  /// before a call returns.
  class arrays {
  public:
    template <class Call> arrays(const cudnn_plan& of, const Call& c)
        : of_(of),
          workspace_(c.scratch + of.places().workspace),
          scale_(static_cast<float>(of.shape_.score_scale())),
          window_(static_cast<std::int32_t>(of.shape_.window)) {
      bind(attention_tensor::q, c.q), bind(attention_tensor::k, c.k);
      bind(attention_tensor::v, c.v), bind(attention_tensor::scale, &scale_);
      bind(attention_tensor::hidden, &none_);
      if (window_ > 0) bind(attention_tensor::window, &window_);
      if (!of.shape_.packed) return;
      bind(attention_tensor::query_document, c.documents.queries);
      bind(attention_tensor::key_document, c.documents.keys);
    }
    void bind(attention_tensor name, const void* p) {
      names_.push_back(static_cast<std::int64_t>(name)), pointers_.push_back(p);
    }
    void execute() const {
      cudnn_descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
      const auto count = static_cast<std::int64_t>(names_.size());
      pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names_.data())
          .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers_.data())
          .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace_)
          .finalize("the arrays of attention");
      require_cudnn(cudnnBackendExecute(of_.handle_, of_.plan_->get(), pack.get()),
                    "cudnnBackendExecute");
    }

  private:
    const cudnn_plan& of_;
    void* workspace_;
    float scale_;
    /// The number that stands for minus infinity: e^none_ is 0, and a tile of nothing but hidden
    /// scores makes no NaN of it.
    float none_ = -0x1p30f;
    std::int32_t window_;
    std::vector<std::int64_t> names_;
    std::vector<const void*> pointers_;
  };
  cuda::attention_places places() const {
    return cuda::ranges_of_attention(shape_, deterministic_);
  }

  fused_attention_shape shape_;
  bool deterministic_;
  cudnnHandle_t handle_;
  cudnn_graph graph_;
  std::vector<cudnn_descriptor*> engines_; ///< the graph keeps them
  std::unique_ptr<cudnn_descriptor> plan_;
  std::int64_t workspace_ = 0;
};

/// The attention that cuDNN computes on a CUDA device, which is the current device.
class cudnn_attention final : public attention_source {
public:
  /// `deterministic`: gradients have the same bits in each run. `tell` is called for the first
  /// shape that is left to bodies. `room`: bytes of scratch up to which several sequences are
  /// computed at once.
  explicit cudnn_attention(cuda& on, bool deterministic = true,
                           void (*tell)(std::string_view) = nullptr,
                           std::int64_t room = cuda::attention_room)
      : attention_source(tell), on_(on), deterministic_(deterministic), room_(room) {}

  const fused_attention* prepare(const fused_attention_shape& s) override {
    for (const auto& p : prepared_)
      if (p->shape == s) return p->plan ? p.get() : nullptr;
    auto made = std::make_unique<one>(*this, s);
    std::string why;
    on_.make_current();
    try {
      if (cudnnGetVersion() < 90600)
        throw error(exit_code::machine, "cuDNN " + dotted_version(cudnnGetVersion()) +
                                            " is older than 9.6, which is needed");
      if (handle_.get() == nullptr) handle_ = cudnn_handle::make();
      why = choose(*made);
    } catch (const error& e) {                  // bodies compute instead
      if (e.code() == exit_code::memory) throw; // bits do not depend on others' memory
      why = e.what();
    }
    if (!why.empty()) made->plan.reset(), leave(why + " (" + text_of(s) + ")", true);
    const one& kept = *prepared_.emplace_back(std::move(made));
    if (!kept.plan) return nullptr;
    computes(text_of(dotted_version(cudnnGetVersion()), deterministic_));
    return &kept;
  }
  std::int64_t scratch(const fused_attention_shape& s) const override {
    return cuda::attention_scratch(s, deterministic_, room_);
  }
  void lend(std::byte* memory, std::int64_t bytes) override {
    lent_ = memory, lent_bytes_ = bytes, lent_used_ = 0;
  }
  std::int64_t take_back() override {
    lent_ = nullptr, lent_bytes_ = 0;
    return std::exchange(lent_used_, 0);
  }
  static std::string text_of(const std::string& version, bool deterministic) {
    return "cuDNN " + version + (deterministic ? ", deterministic" : ", not deterministic");
  }

private:
  /// The attention of one shape by cuDNN; it has no plan where cuDNN does not compute the shape.
  struct one final : fused_attention {
    one(const cudnn_attention& source, const fused_attention_shape& s) : of(source), shape(s) {}
    void execute(const fused_attention_call& c) const override {
      each(c, [&](std::int64_t tokens) {
        fused_attention_call part = c;
        part.q = after(c.q, tokens, heads()), part.o = after(c.o, tokens, heads());
        part.k = after(c.k, tokens, kv_heads()), part.v = after(c.v, tokens, kv_heads());
        part.lse = after(c.lse, tokens, shape.heads * std::int64_t{sizeof(float)});
        part.documents = after(c.documents, tokens);
        plan->execute(part);
      });
    }
    void execute(const fused_attention_grad_call& c) const override {
      each(c, [&](std::int64_t tokens) {
        fused_attention_grad_call part = c;
        part.dy = after(c.dy, tokens, heads()), part.o = after(c.o, tokens, heads());
        part.q = after(c.q, tokens, heads()), part.dq = after(c.dq, tokens, heads());
        part.k = after(c.k, tokens, kv_heads()), part.dk = after(c.dk, tokens, kv_heads());
        part.v = after(c.v, tokens, kv_heads()), part.dv = after(c.dv, tokens, kv_heads());
        part.lse = after(c.lse, tokens, shape.heads * std::int64_t{sizeof(float)});
        part.documents = after(c.documents, tokens);
        plan->execute(part);
      });
    }

    const cudnn_attention& of;
    fused_attention_shape shape;
    std::unique_ptr<cudnn_plan> plan; ///< plan for the sequences that are computed at a time

  private:
    /// Return the bytes of a token's query heads, and of its key heads.
    std::int64_t heads() const { return shape.heads * shape.head_dim * 2; }
    std::int64_t kv_heads() const { return shape.kv_heads * shape.head_dim * 2; }
    static const void* after(const void* p, std::int64_t tokens, std::int64_t bytes) {
      return static_cast<const std::byte*>(p) + tokens * bytes;
    }
    static void* after(void* p, std::int64_t tokens, std::int64_t bytes) {
      return static_cast<std::byte*>(p) + tokens * bytes;
    }
    attention_documents after(const attention_documents& d, std::int64_t tokens) const {
      if (!shape.packed) return {};
      return {d.queries + tokens, d.keys + tokens};
    }
    /// Calls f(tokens before) for each range of sequences that are computed at a time.
    template <class Call, class F> void each(const Call& c, F f) const {
      auto& on = static_cast<cuda_lane&>(c.on);
      const cudaStream_t stream = on.stream();
      const std::int64_t some = of.sequences_at_once(shape);
      const std::scoped_lock lock(of.mutex_);
      try {
        require_cudnn(cudnnSetStream(of.handle_.get(), stream), "cudnnSetStream");
        for (std::int64_t b = 0; b < shape.sequences; b += some) f(b * shape.tokens);
      } catch (const error& e) {
        throw error(e.code(), on.behind(e.what()));
      }
    }
  };

  std::int64_t sequences_at_once(const fused_attention_shape& s) const {
    return cuda::sequences_at_once(s, deterministic_, room_);
  }
  /// Makes the plan of the first engine of cuDNN that passes the check. Returns why there is none.
  std::string choose(one& to) {
    const fused_attention_shape& s = to.shape;
    const fused_attention* forward = nullptr;
    if (s.gradient) {
      fused_attention_shape before = s;
      before.gradient = false;
      forward = prepare(before);
      if (forward == nullptr) return "cuDNN does not compute its forward";
    }
    fused_attention_shape some = s;
    some.sequences = sequences_at_once(s);
    to.plan = std::make_unique<cudnn_plan>(some, deterministic_, handle_.get());
    std::string why = "cuDNN knows no engine for it";
    for (int i = 0; i < to.plan->engines(); ++i) {
      try {
        to.plan->take(i);
      } catch (const error& e) { // the next engine may have a plan
        why = e.what();
        continue;
      }
      if (to.plan->scratch() > scratch(s)) {
        why = "cuDNN asks for " + std::to_string(to.plan->scratch()) + " bytes for it, and " +
              std::to_string(scratch(s)) + " are planned";
        continue;
      }
      why = fault_of(to, forward);
      if (why.empty()) return why;
      why = "cuDNN " + why;
    }
    return why;
  }
  std::string fault_of(const one& of, const fused_attention* forward) {
    const attention_check check(of.shape);
    constexpr const char *what = "the check of an attention",
                         *remedy = "a smaller micro-batch or sequence";
    arena own;
    std::byte* memory = lent_;
    if (check.bytes() <= lent_bytes_) lent_used_ = std::max(lent_used_, check.bytes());
    else own = arena(on_, check.bytes(), what, remedy), memory = own.data();
    lane& l = on_.main_lane();
    l.reserve({.scratch = scratch(of.shape)});
    return check.fault(on_, memory, [&](fused_attention_call f, fused_attention_grad_call g) {
      f.scratch = g.scratch = l.scratch();
      try {
        if (forward != nullptr) forward->execute(f), of.execute(g);
        else of.execute(f);
      } catch (const error&) { // such an engine fails the check
        (void)cudaGetLastError();
        return false;
      }
      return true;
    });
  }
  static std::string text_of(const fused_attention_shape& s) {
    return std::string(s.gradient ? "the gradient of " : "") + std::to_string(s.sequences) + " x " +
           std::to_string(s.tokens) + " tokens with " + std::to_string(s.heads) + " heads of " +
           std::to_string(s.head_dim) + " and " + std::to_string(s.kv_heads) + " of keys" +
           (s.packed ? ", packed" : "");
  }

  cuda& on_;
  bool deterministic_;
  std::int64_t room_;
  cudnn_handle handle_;
  mutable std::mutex mutex_; ///< guards the handle
  std::byte* lent_ = nullptr;
  std::int64_t lent_bytes_ = 0, lent_used_ = 0;
  std::vector<std::unique_ptr<one>> prepared_;
};

} // namespace mc
