// Graphs of plain operations by which cuDNN is asked for attention; the library's fused kernels
// recognise them (cuDNN developer guide, "Fused flash attention fprop" and "bprop").
//
//   P = softmax(scale Q K^T) where a query sees a key,  O = P V,
//   stats = log of the softmax's denominators
//   dV = P^T dO,  dP = dO V^T,  dS = P (dP - rowsum(dO O)) scale,  dQ = dS K,  dK = dS^T Q
#pragma once

#include <megacpp/exec/attention_source.hpp>
#include <megacpp/kernel/cuda/cudnn.hpp>

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace mc {

/// The tensors of an attention graph that the caller has. The numbers are their names in cuDNN.
enum class attention_tensor : std::int64_t {
  q = 1,
  k,
  v,
  o,
  stats, // (B, A, S) fp32
  dy,
  dq,
  dk,
  dv,
  row_sums,       // (B, A, S) fp32, of dy o
  dq_accumulator, // (B, A, S, D) fp32; not where the gradient is deterministic
  scale,          // a number on the host, as the next three
  hidden,
  one,
  window,         // int32
  query_document, // (B, S) int32, as key_document
  key_document,
};

/// A graph that is being written: tensors, and operations on them. It keeps all descriptors that it
/// makes.
class cudnn_graph {
public:
  using value = const cudnn_descriptor&;
  using extents = std::vector<std::int64_t>;

  /// Adds a tensor in memory to the graph. It begins at a multiple of `alignment` bytes.
  value stored(attention_tensor name, const extents& dims, const extents& strides,
               cudnnDataType_t type, std::int64_t alignment = 16) {
    return make(static_cast<std::int64_t>(name), dims, strides, type, false, false, alignment);
  }
  /// Adds a number on the host to the graph.
  value number(attention_tensor name, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return make(static_cast<std::int64_t>(name), {1, 1, 1, 1}, {1, 1, 1, 1}, type, false, true);
  }
  /// Adds a tensor to the graph that one operation hands to the next.
  value between(const extents& dims, const extents& strides, cudnnDataType_t type) {
    return make(next_++, dims, strides, type, true, false);
  }

  void matmul(value a, value b, value c) {
    cudnn_descriptor& how = keep(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT).finalize("a matrix product");
    operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c)
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)
        .finalize("the operation of a matrix product");
  }
  void unary(cudnnPointwiseMode_t mode, value x, value y) {
    pointwise(mode, CUDNN_DATA_FLOAT, x, nullptr, nullptr, y, -1);
  }
  void binary(cudnnPointwiseMode_t mode, value x, value b, value y,
              cudnnDataType_t arithmetic = CUDNN_DATA_FLOAT) {
    pointwise(mode, arithmetic, x, &b, nullptr, y, -1);
  }
  /// Adds an operation: y = the index of each element of x along an axis.
  void index(value x, std::int64_t axis, value y) {
    pointwise(CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, x, nullptr, nullptr, y, axis);
  }
  /// Adds an operation: y = x where the mask is true, else `other`.
  void select(value x, value other, value mask, value y) {
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, x, &other, &mask, y, -1);
  }
  void reduce(cudnnReduceTensorOp_t op, value x, value y) {
    cudnn_descriptor& how = keep(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT)
        .finalize("a reduction");
    operation(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y)
        .set(CUDNN_ATTR_OPERATION_REDUCTION_DESC, how)
        .finalize("the operation of a reduction");
  }
  void reshape(value x, value y) {
    operation(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x)
        .set(CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y)
        .finalize("a reshape");
  }

  /// Returns the finished graph for a handle, or for none where the device is given by its
  /// properties.
  cudnn_descriptor& finalized(cudnnHandle_t handle) {
    cudnn_descriptor& all = keep(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    if (handle != nullptr) all.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
    return all
        .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
             static_cast<std::int64_t>(operations_.size()), operations_.data())
        .finalize("the graph of attention");
  }
  cudnn_descriptor& keep(cudnnBackendDescriptorType_t type) {
    kept_.push_back(std::make_unique<cudnn_descriptor>(type));
    return *kept_.back();
  }

private:
  cudnn_descriptor& operation(cudnnBackendDescriptorType_t type) {
    cudnn_descriptor& d = keep(type);
    operations_.push_back(d.get());
    return d;
  }
  value make(std::int64_t name, const extents& dims, const extents& strides, cudnnDataType_t type,
             bool is_between, bool is_number, std::int64_t alignment = 16) {
    cudnn_descriptor& d = keep(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    d.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, name)
        .set(CUDNN_ATTR_TENSOR_DATA_TYPE, type)
        .set(CUDNN_ATTR_TENSOR_DIMENSIONS, dims)
        .set(CUDNN_ATTR_TENSOR_STRIDES, strides)
        .set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, alignment);
    if (is_between) d.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, true);
    if (is_number) d.set(CUDNN_ATTR_TENSOR_IS_BY_VALUE, true);
    return d.finalize("a tensor");
  }
  void pointwise(cudnnPointwiseMode_t mode, cudnnDataType_t arithmetic, value x,
                 const cudnn_descriptor* b, const cudnn_descriptor* t, value y, std::int64_t axis) {
    cudnn_descriptor& how = keep(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, arithmetic);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    how.finalize("a function of elements");
    cudnn_descriptor& d = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (t != nullptr) d.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
    d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y).finalize("the operation of a function");
  }

  std::int64_t next_ = 1000; ///< the name of the next tensor between operations
  std::vector<cudnnBackendDescriptor_t> operations_;
  std::vector<std::unique_ptr<cudnn_descriptor>> kept_;
};

namespace detail {

/// Writes the graphs of one shape. Tensors are (B, A, S, D) for cuDNN, whatever their strides: the
/// caller's tensors have the heads of a token side by side.
class attention_writer {
public:
  attention_writer(cudnn_graph& g, const fused_attention_shape& s) : g_(g), s_(s) {}

  void forward() {
    value q = stored(attention_tensor::q, heads_, of_heads_),
          k = stored(attention_tensor::k, keys_across_, of_keys_across_),
          v = stored(attention_tensor::v, key_heads_, of_keys_),
          o = stored(attention_tensor::o, heads_, of_heads_), stats = stored_stats();
    value scale = g_.number(attention_tensor::scale);
    value product = score(), scaled = score();
    g_.matmul(q, k, product);
    g_.binary(CUDNN_POINTWISE_MUL, product, scale, scaled);
    value seen = masked(scaled);
    value top = row(), less = score(), power = score(), sum = row(), log = row();
    g_.reduce(CUDNN_REDUCE_TENSOR_MAX, seen, top);
    g_.binary(CUDNN_POINTWISE_SUB, seen, top, less);
    g_.unary(CUDNN_POINTWISE_EXP, less, power);
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
    g_.unary(CUDNN_POINTWISE_LOG, sum, log);
    g_.binary(CUDNN_POINTWISE_ADD, top, log, stats);
    value p = g_.between(scores_, by_row_, CUDNN_DATA_BFLOAT16);
    g_.binary(CUDNN_POINTWISE_DIV, power, sum, p);
    g_.matmul(p, v, o);
  }

  void gradient(bool deterministic) {
    value q = stored(attention_tensor::q, heads_, of_heads_),
          k = stored(attention_tensor::k, keys_across_, of_keys_across_),
          v = stored(attention_tensor::v, keys_across_, of_keys_across_),
          o = stored(attention_tensor::o, heads_, of_heads_),
          dy = stored(attention_tensor::dy, heads_, of_heads_),
          dq = stored(attention_tensor::dq, heads_, of_heads_),
          dk = stored(attention_tensor::dk, key_heads_, of_keys_),
          dv = stored(attention_tensor::dv, key_heads_, of_keys_), stats = stored_stats(),
          row_sums = g_.stored(attention_tensor::row_sums, rows_, of_rows_, CUDNN_DATA_FLOAT);
    value scale = g_.number(attention_tensor::scale), one = g_.number(attention_tensor::one);

    value both = g_.between(heads_, of_heads_, CUDNN_DATA_FLOAT), sums = row();
    g_.binary(CUDNN_POINTWISE_MUL, dy, o, both);
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, both, sums);
    g_.binary(CUDNN_POINTWISE_MUL, sums, one, row_sums);

    value product = score(), scaled = score(), less = score();
    g_.matmul(q, k, product);
    g_.binary(CUDNN_POINTWISE_MUL, product, scale, scaled);
    g_.binary(CUDNN_POINTWISE_SUB, scaled, stats, less);
    value seen = masked(less), p = score(), p_across = across();
    g_.unary(CUDNN_POINTWISE_EXP, seen, p);
    g_.reshape(p, p_across);
    to_key_heads(p_across, dy, dv);

    value dp = score(), centred = score(), times_p = score(), ds = score(), ds_across = across();
    g_.matmul(dy, v, dp);
    g_.binary(CUDNN_POINTWISE_SUB, dp, row_sums, centred);
    g_.binary(CUDNN_POINTWISE_MUL, centred, p, times_p);
    g_.binary(CUDNN_POINTWISE_MUL, times_p, scale, ds);
    g_.reshape(ds, ds_across);
    to_key_heads(ds_across, q, dk);

    value keys = g_.between(key_heads_, of_keys_, CUDNN_DATA_BFLOAT16);
    g_.reshape(k, keys);
    if (deterministic) return g_.matmul(ds, keys, dq);
    value sum = g_.stored(attention_tensor::dq_accumulator, heads_, dense_, CUDNN_DATA_FLOAT);
    g_.matmul(ds, keys, sum);
    g_.unary(CUDNN_POINTWISE_IDENTITY, sum, dq);
  }

private:
  using value = cudnn_graph::value;
  using extents = cudnn_graph::extents;

  value stored(attention_tensor name, const extents& dims, const extents& strides) {
    return g_.stored(name, dims, strides, CUDNN_DATA_BFLOAT16);
  }
  /// Returns the tensor of stats. A plan for some of the sequences may begin at any row of fp32, so
  /// the tensor is aligned to one number.
  value stored_stats() {
    return g_.stored(attention_tensor::stats, rows_, of_rows_, CUDNN_DATA_FLOAT, sizeof(float));
  }
  value score() { return g_.between(scores_, by_row_, CUDNN_DATA_FLOAT); }
  value across() { return g_.between(scores_, by_column_, CUDNN_DATA_BFLOAT16); }
  value row() { return g_.between(rows_, of_rows_, CUDNN_DATA_FLOAT); }
  value integers() { return g_.between(scores_, by_row_, CUDNN_DATA_INT32); }
  value truths() { return g_.between(scores_, by_row_, CUDNN_DATA_BOOLEAN); }
  /// Returns the scores where a query sees a key, and the number that stands for minus infinity
  /// elsewhere.
  value masked(value all) {
    value none = g_.number(attention_tensor::hidden);
    value scores = s_.packed ? of_one_document(all, none) : all;
    value query = integers(), key = integers(), behind = truths(), causal = score();
    g_.index(scores, 2, query);
    g_.index(scores, 3, key);
    g_.binary(CUDNN_POINTWISE_CMP_GE, query, key, behind, CUDNN_DATA_BOOLEAN);
    g_.select(scores, none, behind, causal);
    if (s_.window == 0) return causal;
    value window = g_.number(attention_tensor::window, CUDNN_DATA_INT32);
    value row = integers(), column = integers(), reach = integers(), near = truths(),
          seen = score();
    g_.index(causal, 2, row);
    g_.index(causal, 3, column);
    g_.binary(CUDNN_POINTWISE_ADD, column, window, reach, CUDNN_DATA_INT32);
    g_.binary(CUDNN_POINTWISE_CMP_GT, reach, row, near, CUDNN_DATA_BOOLEAN);
    g_.select(causal, none, near, seen);
    return seen;
  }
  /// Returns the scores whose query and key are of one document. cuDNN compares numbers that exist
  /// for each score: the numbers of queries and of keys are spread by adding each to a 0.
  value of_one_document(value scores, value none) {
    value query = g_.stored(attention_tensor::query_document, {B, 1, S, 1}, {S, 1, 1, 1},
                            CUDNN_DATA_INT32, sizeof(std::int32_t)),
          key = g_.stored(attention_tensor::key_document, {B, 1, 1, S}, {S, 1, 1, 1},
                          CUDNN_DATA_INT32, sizeof(std::int32_t));
    value index = integers(), zero = integers(), of_query = integers(), of_key = integers(),
          same = truths(), seen = score();
    g_.index(scores, 3, index);
    g_.binary(CUDNN_POINTWISE_SUB, index, index, zero, CUDNN_DATA_INT32);
    g_.binary(CUDNN_POINTWISE_ADD, zero, query, of_query, CUDNN_DATA_INT32);
    g_.binary(CUDNN_POINTWISE_ADD, zero, key, of_key, CUDNN_DATA_INT32);
    g_.binary(CUDNN_POINTWISE_CMP_EQ, of_query, of_key, same, CUDNN_DATA_BOOLEAN);
    g_.select(scores, none, same, seen);
    return seen;
  }
  /// Adds operations: sum = x^T y of all heads, summed over the heads that share a key head.
  void to_key_heads(value x_across, value y, value sum) {
    if (s_.heads == s_.kv_heads) return g_.matmul(x_across, y, sum);
    value of_heads = g_.between(heads_, dense_, CUDNN_DATA_BFLOAT16);
    g_.matmul(x_across, y, of_heads);
    g_.reduce(CUDNN_REDUCE_TENSOR_ADD, of_heads, sum);
  }

  cudnn_graph& g_;
  fused_attention_shape s_;
  const std::int64_t B = s_.sequences, S = s_.tokens, A = s_.heads, K = s_.kv_heads,
                     D = s_.head_dim;
  const extents scores_{B, A, S, S}, by_row_{A * S * S, S*S, S, 1},
      by_column_{A * S * S, S*S, 1, S};
  const extents rows_{B, A, S, 1}, of_rows_{A * S, S, 1, 1};
  const extents heads_{B, A, S, D}, of_heads_{S * A * D, D, A*D, 1}, dense_{A * S * D, S*D, D, 1};
  const extents key_heads_{B, K, S, D}, of_keys_{S * K * D, D, K*D, 1};
  const extents keys_across_{B, K, D, S}, of_keys_across_{S * K * D, D, 1, K*D};
};

} // namespace detail

/// Writes the graph of attention of a shape. `deterministic`: the gradient adds nothing in an order
/// that varies.
inline void write_attention(cudnn_graph& g, const fused_attention_shape& s, bool deterministic) {
  detail::attention_writer w(g, s);
  if (s.gradient) w.gradient(deterministic);
  else w.forward();
}

} // namespace mc
