#include "attention_plan.hpp"

#include <megacpp/io/error.hpp>

namespace gpu {

void require(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char more[1024] = "";
  cudnnGetLastErrorString(more, sizeof more);
  throw mc::error(mc::exit_code::internal, std::string(call) + ": " + cudnnGetErrorString(status) +
                                               (more[0] != 0 ? ", " : "") + more);
}

descriptor::descriptor(cudnnBackendDescriptorType_t type) {
  require(cudnnBackendCreateDescriptor(type, &d_), "cudnnBackendCreateDescriptor");
}
descriptor& descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                            std::int64_t count, const void* values) {
  const cudnnStatus_t status = cudnnBackendSetAttribute(d_, name, type, count, values);
  if (status != CUDNN_STATUS_SUCCESS)
    require(status, ("cudnnBackendSetAttribute " + std::to_string(static_cast<int>(name))).c_str());
  return *this;
}
descriptor& descriptor::set(cudnnBackendAttributeName_t name, std::int64_t value) {
  return set(name, CUDNN_TYPE_INT64, 1, &value);
}
descriptor& descriptor::set(cudnnBackendAttributeName_t name,
                            const std::vector<std::int64_t>& values) {
  return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
}
descriptor& descriptor::set(cudnnBackendAttributeName_t name, bool value) {
  return set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
}
descriptor& descriptor::set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
  return set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
}
descriptor& descriptor::set(cudnnBackendAttributeName_t name, const descriptor& value) {
  return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.d_);
}
descriptor& descriptor::finalize(const char* what) {
  const cudnnStatus_t status = cudnnBackendFinalize(d_);
  if (status != CUDNN_STATUS_SUCCESS)
    require(status, (std::string("cudnnBackendFinalize of ") + what).c_str());
  return *this;
}

namespace {

using std::int64_t;
using extents = std::vector<int64_t>;
constexpr cudnnDataType_t f32 = CUDNN_DATA_FLOAT, bf16 = CUDNN_DATA_BFLOAT16;

// A graph as it is written: tensors, and operations on them. What it makes, it keeps.
class graph {
public:
  using value = const descriptor&;

  // A tensor in memory.
  value stored(tensor name, const extents& dims, const extents& strides, cudnnDataType_t type) {
    return make(static_cast<int64_t>(name), dims, strides, type, false, false);
  }
  // A number on the host.
  value number(tensor name) {
    return make(static_cast<int64_t>(name), {1, 1, 1, 1}, {1, 1, 1, 1}, f32, false, true);
  }
  // What one operation hands to the next.
  value between(const extents& dims, const extents& strides, cudnnDataType_t type) {
    return make(next_++, dims, strides, type, true, false);
  }

  void matmul(value a, value b, value c) {
    descriptor& how = keep(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    how.set(CUDNN_ATTR_MATMUL_COMP_TYPE, f32).finalize("a matrix product");
    operation(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR)
        .set(CUDNN_ATTR_OPERATION_MATMUL_ADESC, a)
        .set(CUDNN_ATTR_OPERATION_MATMUL_BDESC, b)
        .set(CUDNN_ATTR_OPERATION_MATMUL_CDESC, c)
        .set(CUDNN_ATTR_OPERATION_MATMUL_DESC, how)
        .finalize("the operation of a matrix product");
  }
  void unary(cudnnPointwiseMode_t mode, value x, value y) {
    pointwise(mode, f32, x, nullptr, nullptr, y, -1);
  }
  void binary(cudnnPointwiseMode_t mode, value x, value b, value y) {
    pointwise(mode, f32, x, &b, nullptr, y, -1);
  }
  // y = x where row >= column, else `other`.
  void below_diagonal(value x, value other, const extents& dims, const extents& strides, value y) {
    value row = between(dims, strides, CUDNN_DATA_INT32);
    value column = between(dims, strides, CUDNN_DATA_INT32);
    value mask = between(dims, strides, CUDNN_DATA_BOOLEAN);
    pointwise(CUDNN_POINTWISE_GEN_INDEX, f32, x, nullptr, nullptr, row, 2);
    pointwise(CUDNN_POINTWISE_GEN_INDEX, f32, x, nullptr, nullptr, column, 3);
    pointwise(CUDNN_POINTWISE_CMP_GE, CUDNN_DATA_BOOLEAN, row, &column, nullptr, mask, -1);
    pointwise(CUDNN_POINTWISE_BINARY_SELECT, f32, x, &other, &mask, y, -1);
  }
  void reduce(cudnnReduceTensorOp_t op, value x, value y) {
    descriptor& how = keep(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    how.set(CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op)
        .set(CUDNN_ATTR_REDUCTION_COMP_TYPE, f32)
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

  std::vector<cudnnBackendDescriptor_t> operations;
  std::vector<std::unique_ptr<descriptor>> kept;

private:
  int64_t next_ = 1000; // names of what is between

  descriptor& keep(cudnnBackendDescriptorType_t type) {
    kept.push_back(std::make_unique<descriptor>(type));
    return *kept.back();
  }
  descriptor& operation(cudnnBackendDescriptorType_t type) {
    descriptor& d = keep(type);
    operations.push_back(d.get());
    return d;
  }
  value make(int64_t name, const extents& dims, const extents& strides, cudnnDataType_t type,
             bool is_between, bool is_number) {
    constexpr int64_t alignment = 16;
    descriptor& d = keep(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
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
                 const descriptor* b, const descriptor* t, value y, int64_t axis) {
    descriptor& how = keep(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode)
        .set(CUDNN_ATTR_POINTWISE_MATH_PREC, arithmetic);
    if (axis >= 0) how.set(CUDNN_ATTR_POINTWISE_AXIS, axis);
    how.finalize("a function of elements");
    descriptor& d = operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    d.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how)
        .set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) d.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
    if (t != nullptr) d.set(CUDNN_ATTR_OPERATION_POINTWISE_TDESC, *t);
    d.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y).finalize("the operation of a function");
  }
};

// Extents and strides: of scores (B, A, T, T), of a number a row (B, A, T, 1), of heads of the packed
// matrix, and of O.
struct extents_of {
  explicit extents_of(const attention_shape& s)
      : shape(s),
        scores{s.sequences, s.heads, s.tokens, s.tokens},
        by_row{s.heads * s.tokens * s.tokens, s.tokens * s.tokens, s.tokens, 1},
        by_column{by_row[0], by_row[1], 1, s.tokens},
        rows{s.sequences, s.heads, s.tokens, 1},
        of_rows{s.heads * s.tokens, s.tokens, 1, 1},
        heads{s.sequences, s.heads, s.tokens, s.head_dim},
        key_heads{s.sequences, s.key_heads, s.tokens, s.head_dim},
        keys_across{s.sequences, s.key_heads, s.head_dim, s.tokens},
        packed{s.packed() * s.tokens, s.head_dim, s.packed(), 1},
        packed_across{packed[0], packed[1], 1, packed[2]},
        out{s.heads * s.head_dim * s.tokens, s.head_dim, s.heads * s.head_dim, 1},
        dense{s.heads * s.tokens * s.head_dim, s.tokens * s.head_dim, s.head_dim, 1} {}
  attention_shape shape;
  extents scores, by_row, by_column, rows, of_rows, heads, key_heads, keys_across;
  extents packed, packed_across, out, dense;
};

void build_forward(graph& g, const extents_of& e) {
  const auto score = [&](cudnnDataType_t type) -> graph::value {
    return g.between(e.scores, e.by_row, type);
  };
  const auto row = [&]() -> graph::value { return g.between(e.rows, e.of_rows, f32); };
  graph::value q = g.stored(tensor::q, e.heads, e.packed, bf16);
  graph::value k = g.stored(tensor::k, e.keys_across, e.packed_across, bf16);
  graph::value v = g.stored(tensor::v, e.key_heads, e.packed, bf16);
  graph::value o = g.stored(tensor::o, e.heads, e.out, bf16);
  graph::value stats = g.stored(tensor::stats, e.rows, e.of_rows, f32);
  graph::value scale = g.number(tensor::scale), none = g.number(tensor::minus_infinity);
  graph::value product = score(f32), scaled = score(f32), masked = score(f32);
  g.matmul(q, k, product);
  g.binary(CUDNN_POINTWISE_MUL, product, scale, scaled);
  g.below_diagonal(scaled, none, e.scores, e.by_row, masked);
  graph::value top = row(), less = score(f32), power = score(f32), sum = row(), log = row();
  g.reduce(CUDNN_REDUCE_TENSOR_MAX, masked, top);
  g.binary(CUDNN_POINTWISE_SUB, masked, top, less);
  g.unary(CUDNN_POINTWISE_EXP, less, power);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, power, sum);
  g.unary(CUDNN_POINTWISE_LOG, sum, log);
  g.binary(CUDNN_POINTWISE_ADD, top, log, stats);
  graph::value p = score(bf16);
  g.binary(CUDNN_POINTWISE_DIV, power, sum, p);
  g.matmul(p, v, o);
}

// x^T y, of all heads, to the key heads that they share.
void to_key_heads(graph& g, const extents_of& e, graph::value across, graph::value y,
                  graph::value sum) {
  if (e.shape.heads == e.shape.key_heads) return g.matmul(across, y, sum);
  graph::value of_heads = g.between(e.heads, e.dense, bf16);
  g.matmul(across, y, of_heads);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, of_heads, sum);
}

void build_backward(graph& g, const extents_of& e, bool deterministic) {
  const auto score = [&]() -> graph::value { return g.between(e.scores, e.by_row, f32); };
  const auto across = [&]() -> graph::value { return g.between(e.scores, e.by_column, bf16); };
  graph::value q = g.stored(tensor::q, e.heads, e.packed, bf16);
  graph::value k = g.stored(tensor::k, e.keys_across, e.packed_across, bf16);
  graph::value v = g.stored(tensor::v, e.keys_across, e.packed_across, bf16);
  graph::value o = g.stored(tensor::o, e.heads, e.out, bf16);
  graph::value d_o = g.stored(tensor::d_o, e.heads, e.out, bf16);
  graph::value stats = g.stored(tensor::stats, e.rows, e.of_rows, f32);
  graph::value d_q = g.stored(tensor::d_q, e.heads, e.packed, bf16);
  graph::value d_k = g.stored(tensor::d_k, e.key_heads, e.packed, bf16);
  graph::value d_v = g.stored(tensor::d_v, e.key_heads, e.packed, bf16);
  graph::value row_sums = g.stored(tensor::row_sums, e.rows, e.of_rows, f32);
  graph::value scale = g.number(tensor::scale), none = g.number(tensor::minus_infinity);
  graph::value one = g.number(tensor::one);

  graph::value both = g.between(e.heads, e.out, f32), sums = g.between(e.rows, e.of_rows, f32);
  g.binary(CUDNN_POINTWISE_MUL, d_o, o, both);
  g.reduce(CUDNN_REDUCE_TENSOR_ADD, both, sums);
  g.binary(CUDNN_POINTWISE_MUL, sums, one, row_sums);

  graph::value product = score(), scaled = score(), less = score(), masked = score(), p = score();
  g.matmul(q, k, product);
  g.binary(CUDNN_POINTWISE_MUL, product, scale, scaled);
  g.binary(CUDNN_POINTWISE_SUB, scaled, stats, less);
  g.below_diagonal(less, none, e.scores, e.by_row, masked);
  g.unary(CUDNN_POINTWISE_EXP, masked, p);
  graph::value p_across = across();
  g.reshape(p, p_across);
  to_key_heads(g, e, p_across, d_o, d_v);

  graph::value d_p = score(), centred = score(), times_p = score(), d_s = score();
  g.matmul(d_o, v, d_p);
  g.binary(CUDNN_POINTWISE_SUB, d_p, row_sums, centred);
  g.binary(CUDNN_POINTWISE_MUL, centred, p, times_p);
  g.binary(CUDNN_POINTWISE_MUL, times_p, scale, d_s);
  graph::value d_s_across = across();
  g.reshape(d_s, d_s_across);
  to_key_heads(g, e, d_s_across, q, d_k);

  graph::value keys = g.between(e.key_heads, e.packed, bf16);
  g.reshape(k, keys);
  if (deterministic) return g.matmul(d_s, keys, d_q);
  graph::value sum = g.stored(tensor::d_q_accumulator, e.heads, e.dense, f32);
  g.matmul(d_s, keys, sum);
  g.unary(CUDNN_POINTWISE_IDENTITY, sum, d_q);
}

} // namespace

attention_plan::attention_plan(kind of, const attention_shape& shape, cudnnHandle_t handle,
                               const descriptor* properties)
    : handle_(handle) {
  graph g;
  if (of == forward) build_forward(g, extents_of(shape));
  else build_backward(g, extents_of(shape), of == deterministic_backward);
  g.kept.push_back(std::make_unique<descriptor>(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  descriptor& operations = *g.kept.back();
  if (handle != nullptr)
    operations.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  operations
      .set(CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
           static_cast<int64_t>(g.operations.size()), g.operations.data())
      .finalize("the graph of attention");

  descriptor guess(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  guess.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations)
      .set(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
  if (properties != nullptr) guess.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *properties);
  guess.finalize("the choice of engines");
  int64_t count = 0;
  require(cudnnBackendGetAttribute(guess.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
          "the number of engines for attention");
  std::vector<cudnnBackendDescriptor_t> engines;
  const std::size_t first = g.kept.size();
  for (int64_t i = 0; i < count; ++i) {
    g.kept.push_back(std::make_unique<descriptor>(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    engines.push_back(g.kept.back()->get());
  }
  require(cudnnBackendGetAttribute(guess.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, engines.data()),
          "the engines for attention");
  // The first that has a plan.
  std::string why = "cuDNN knows no engine for this attention";
  for (std::size_t i = first; i < first + static_cast<std::size_t>(count); ++i) {
    try {
      auto plan = std::make_unique<descriptor>(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
      if (handle != nullptr)
        plan->set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
      plan->set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, *g.kept[i]).finalize("a plan");
      int64_t one = 0;
      require(cudnnBackendGetAttribute(plan->get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                       CUDNN_TYPE_INT64, 1, &one, &workspace_),
              "the workspace of a plan");
      plan_ = std::move(plan);
      break;
    } catch (const mc::error& e) {
      why = e.what();
    }
  }
  if (!plan_) throw mc::error(mc::exit_code::internal, why);
  kept_ = std::move(g.kept);
}

void attention_plan::run(const std::vector<binding>& tensors, void* workspace) const {
  std::vector<int64_t> names;
  std::vector<void*> pointers;
  for (const binding& b : tensors)
    names.push_back(static_cast<int64_t>(b.name)), pointers.push_back(b.pointer);
  const auto count = static_cast<int64_t>(names.size());
  descriptor pack(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pack.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, names.data())
      .set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data())
      .set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace)
      .finalize("the arrays of attention");
  require(cudnnBackendExecute(handle_, plan_->get(), pack.get()), "cudnnBackendExecute");
}

} // namespace gpu
