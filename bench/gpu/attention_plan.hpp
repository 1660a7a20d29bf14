// Causal attention by cuDNN's backend C API: graphs of plain operations that its fused kernels
// recognise (cuDNN developer guide, "Fused flash attention fprop" and "bprop").
//
//   P = softmax(scale Q K^T) below the diagonal,  O = P V,  stats = log of the softmax's denominators
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(dO O)) scale,  dQ = dS K,  dK = dS^T Q
//
// Q, K and V are columns of one matrix, a row a token: (B T, (A + 2 K) D) bf16.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace gpu {

/// B sequences of T tokens, A heads and K key heads of D.
struct attention_shape {
  std::int64_t sequences, tokens, heads, key_heads, head_dim;
  std::int64_t packed() const { return (heads + 2 * key_heads) * head_dim; }
  std::int64_t rows() const { return sequences * tokens; }
};

/// Names of a graph's tensors. attention_plan::run is given a pointer for each that it has.
enum class tensor : std::int64_t {
  q = 1,
  k,
  v,
  o,
  stats, // (B, A, T) fp32
  d_o,
  d_q,
  d_k,
  d_v,
  row_sums,        // (B, A, T) fp32, of dO O
  d_q_accumulator, // (B, A, T, D) fp32; not where the backward is deterministic
  scale,           // these three are numbers on the host
  minus_infinity,
  one,
};

struct binding {
  tensor name;
  void* pointer;
};

/// Throws mc::error with what cuDNN says, unless the call succeeded.
void require(cudnnStatus_t status, const char* call);

/// A descriptor of the backend API.
class descriptor {
public:
  explicit descriptor(cudnnBackendDescriptorType_t type);
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() { (void)cudnnBackendDestroyDescriptor(d_); }

  descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  std::int64_t count, const void* values);
  descriptor& set(cudnnBackendAttributeName_t name, std::int64_t value);
  descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values);
  descriptor& set(cudnnBackendAttributeName_t name, bool value);
  descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value);
  descriptor& set(cudnnBackendAttributeName_t name, const descriptor& value);
  descriptor& finalize(const char* what);
  cudnnBackendDescriptor_t get() const { return d_; }

private:
  cudnnBackendDescriptor_t d_ = nullptr;
};

/// An executable plan, on a device: that of the handle or, where the handle is null, the one that
/// `properties` describe, for which it can be made but not run.
class attention_plan {
public:
  enum kind { forward, backward, deterministic_backward };
  attention_plan(kind of, const attention_shape& shape, cudnnHandle_t handle,
                 const descriptor* properties = nullptr);

  std::int64_t workspace_bytes() const { return workspace_; }
  /// Starts it on the handle's stream. Numbers on the host are read before this returns.
  void run(const std::vector<binding>& tensors, void* workspace) const;

private:
  cudnnHandle_t handle_;
  std::vector<std::unique_ptr<descriptor>> kept_;
  std::unique_ptr<descriptor> plan_;
  std::int64_t workspace_ = 0;
};

} // namespace gpu
