// cuDNN without a device: the functions of its backend API that kernel/cuda calls. A plan computes the
// graph that it was made of as it is written, operation by operation, in double; what a tensor stores
// as bf16 is rounded, and integers that are to be computed with in fp32 are. So a graph that says
// something else than attention computes something else.
//
// It proposes two engines, whose plans want as much workspace as those of cuDNN 9.19 for an H200.
#include "stand_in.hpp"

#include <cudnn.h>
#include <megacpp/kernel/cuda/attention_graph.hpp>
#include <megacpp/num/dtype.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct cudnnContext {
  cudaStream_t on = nullptr;
};

namespace {

using std::int64_t;
using place = std::array<int64_t, 4>;

struct descriptor {
  cudnnBackendDescriptorType_t type;
  bool final = false;
  std::map<int, std::vector<std::byte>> attributes;

  bool has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  template <class V> std::vector<V> all(cudnnBackendAttributeName_t name) const {
    const auto at = attributes.find(name);
    if (at == attributes.end()) return {};
    std::vector<V> v(at->second.size() / sizeof(V));
    if (!v.empty()) std::memcpy(v.data(), at->second.data(), v.size() * sizeof(V));
    return v;
  }
  template <class V> V one(cudnnBackendAttributeName_t name, V otherwise = {}) const {
    const auto at = attributes.find(name);
    if (at == attributes.end() || at->second.size() < sizeof(V)) return otherwise;
    V v;
    std::memcpy(&v, at->second.data(), sizeof v);
    return v;
  }
  const descriptor& of(cudnnBackendAttributeName_t name) const {
    return *one<const descriptor*>(name);
  }
};
const descriptor& known(cudnnBackendDescriptor_t d) { return *static_cast<const descriptor*>(d); }

std::size_t size_of(cudnnBackendAttributeType_t t) {
  switch (t) {
  case CUDNN_TYPE_BOOLEAN: return sizeof(bool);
  case CUDNN_TYPE_INT64:
  case CUDNN_TYPE_VOID_PTR:
  case CUDNN_TYPE_HANDLE:
  case CUDNN_TYPE_BACKEND_DESCRIPTOR: return 8;
  default: return 4; // enumerations
  }
}

/// A tensor of a graph.
struct tensor {
  int64_t name;
  cudnnDataType_t type;
  place dims, strides;
  bool is_between, is_number;
  int64_t alignment; // bytes

  explicit tensor(const descriptor& d)
      : name(d.one<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID)),
        type(d.one<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE)),
        is_between(d.one<bool>(CUDNN_ATTR_TENSOR_IS_VIRTUAL)),
        is_number(d.one<bool>(CUDNN_ATTR_TENSOR_IS_BY_VALUE)),
        alignment(d.one<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT)) {
    const auto n = d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
               s = d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    for (std::size_t i = 0; i < 4; ++i) dims[i] = n.at(i), strides[i] = s.at(i);
  }
  int64_t size() const { return dims[0] * dims[1] * dims[2] * dims[3]; }
  int64_t offset(const place& at) const {
    int64_t n = 0;
    for (std::size_t i = 0; i < 4; ++i) n += at[i] * strides[i];
    return n;
  }
  /// Elements from the first to the last.
  int64_t extent() const {
    return offset({dims[0] - 1, dims[1] - 1, dims[2] - 1, dims[3] - 1}) + 1;
  }
};

/// The numbers of a tensor, in the order of its dims.
struct numbers {
  place dims;
  std::vector<double> x;
  /// The number at a place of a tensor that this one is spread over: of extents that are smaller,
  /// equally many places share one.
  double at(const place& p, const place& of) const {
    int64_t i = 0;
    for (std::size_t k = 0; k < 4; ++k) i = i * dims[k] + shared(k, p[k], of[k]);
    return x.data()[i];
  }
  int64_t shared(std::size_t k, int64_t p, int64_t of) const {
    return dims[k] == of ? p : p * dims[k] / of;
  }
};
template <class F> void each_place(const place& dims, F f) {
  place p;
  for (p[0] = 0; p[0] < dims[0]; ++p[0])
    for (p[1] = 0; p[1] < dims[1]; ++p[1])
      for (p[2] = 0; p[2] < dims[2]; ++p[2])
        for (p[3] = 0; p[3] < dims[3]; ++p[3]) f(p);
}
double rounded(double x, cudnnDataType_t type) {
  switch (type) {
  case CUDNN_DATA_BFLOAT16: return static_cast<float>(mc::bf16(static_cast<float>(x)));
  case CUDNN_DATA_FLOAT: return static_cast<float>(x);
  default: return x;
  }
}

/// A graph that is computed on arrays.
class computed {
public:
  /// `wrong` gives the tensors of which one number is computed wrong, `unwritten` those of which it is
  /// not written, `beside` those behind which a number is, `columns` those to whose last number 0 times
  /// e^(0 - lse) is added, as of a column behind the last one.
  struct faults {
    std::set<int64_t> wrong, unwritten, beside, columns;
  };
  computed(const descriptor& graph, std::map<int64_t, void*> arrays, faults of)
      : operations_(graph.all<const descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)),
        arrays_(std::move(arrays)),
        faults_(std::move(of)) {
    // Numbers of the host are read now.
    for (const descriptor* op : operations_)
      for (const auto& [name, bytes] : op->attributes)
        if (const auto* d = tensor_of(bytes)) {
          const tensor t(*d);
          if (t.is_number && !values_.contains(d)) values_[d] = {t.dims, {number(t)}};
        }
  }
  /// Whether each array is there, and those of the device begin where the graph says.
  bool has_all_arrays() const {
    bool all = true;
    for (const descriptor* op : operations_)
      for (const auto& [name, bytes] : op->attributes)
        if (const auto* d = tensor_of(bytes)) {
          const tensor t(*d);
          if (t.is_between) continue;
          const auto at = arrays_.find(t.name);
          all = all && at != arrays_.end() &&
                (t.is_number || reinterpret_cast<std::uintptr_t>(at->second) %
                                        static_cast<std::uintptr_t>(t.alignment) ==
                                    0);
        }
    return all;
  }
  void run() {
    for (const descriptor* op : operations_) {
      switch (op->type) {
      case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: matmul(*op); break;
      case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: pointwise(*op); break;
      case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR: reduce(*op); break;
      default: reshape(*op); break;
      }
    }
  }

private:
  /// An operation's attributes are descriptors.
  static const descriptor* tensor_of(const std::vector<std::byte>& bytes) {
    const descriptor* d;
    std::memcpy(&d, bytes.data(), sizeof d);
    return d->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR ? d : nullptr;
  }
  double number(const tensor& t) const {
    const void* const p = arrays_.at(t.name);
    return t.type == CUDNN_DATA_INT32 ? *static_cast<const std::int32_t*>(p)
                                      : double{*static_cast<const float*>(p)};
  }
  const numbers& value(const descriptor& d) {
    const auto [at, is_new] = values_.try_emplace(&d);
    if (!is_new) return at->second;
    const tensor t(d);
    numbers& n = at->second;
    n.dims = t.dims, n.x.reserve(static_cast<std::size_t>(t.size()));
    const void* const p = arrays_.at(t.name);
    each_place(t.dims, [&](const place& at) {
      const int64_t i = t.offset(at);
      n.x.push_back(t.type == CUDNN_DATA_BFLOAT16
                        ? double{static_cast<float>(static_cast<const mc::bf16*>(p)[i])}
                    : t.type == CUDNN_DATA_INT32
                        ? static_cast<double>(static_cast<const std::int32_t*>(p)[i])
                        : double{static_cast<const float*>(p)[i]});
    });
    return n;
  }
  /// Gives a tensor its numbers, f(place) each.
  template <class F> void give(const descriptor& d, const F& f) {
    const tensor t(d);
    numbers n{t.dims, {}};
    n.x.reserve(static_cast<std::size_t>(t.size()));
    each_place(t.dims, [&](const place& at) { n.x.push_back(rounded(f(at), t.type)); });
    if (!t.is_between) {
      void* const p = arrays_.at(t.name);
      const auto write = [&](int64_t i, double x) {
        const auto narrow = static_cast<float>(x);
        if (t.type == CUDNN_DATA_BFLOAT16) static_cast<mc::bf16*>(p)[i] = mc::bf16(narrow);
        else static_cast<float*>(p)[i] = narrow;
      };
      if (faults_.wrong.contains(t.name)) n.x.back() += 1;
      if (faults_.columns.contains(t.name)) {
        const auto* const lse = static_cast<const float*>(
            arrays_.at(static_cast<int64_t>(mc::attention_tensor::stats)));
        n.x.back() += double{0 * std::exp(-lse[t.dims[0] * t.dims[1] * t.dims[2] - 1])};
      }
      std::size_t k = 0;
      each_place(t.dims, [&](const place& at) {
        const bool last = ++k == n.x.size();
        if (!last || !faults_.unwritten.contains(t.name)) write(t.offset(at), n.x[k - 1]);
      });
      if (faults_.beside.contains(t.name)) write(t.extent(), 0);
    }
    values_[&d] = std::move(n);
  }

  void matmul(const descriptor& op) {
    const descriptor& to = op.of(CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    const numbers& a = value(op.of(CUDNN_ATTR_OPERATION_MATMUL_ADESC));
    const numbers& b = value(op.of(CUDNN_ATTR_OPERATION_MATMUL_BDESC));
    const tensor c(to);
    const int64_t n = a.dims[3];
    give(to, [&](const place& p) {
      const auto batch = [&](const numbers& of) {
        return of.x.data() +
               (of.shared(0, p[0], c.dims[0]) * of.dims[1] + of.shared(1, p[1], c.dims[1])) *
                   of.dims[2] * of.dims[3];
      };
      const double *const x = batch(a) + p[2] * n, *const y = batch(b) + p[3];
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += x[k] * y[k * c.dims[3]];
      return sum;
    });
  }
  void pointwise(const descriptor& op) {
    const descriptor& how = op.of(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    const auto mode = how.one<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
    const descriptor& to = op.of(CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    const tensor y(to);
    const auto axis = static_cast<std::size_t>(how.one<int64_t>(CUDNN_ATTR_POINTWISE_AXIS));
    if (mode == CUDNN_POINTWISE_GEN_INDEX)
      return give(to, [&](const place& p) { return static_cast<double>(p.at(axis)); });
    const numbers& x = value(op.of(CUDNN_ATTR_OPERATION_POINTWISE_XDESC));
    const numbers* const b = op.has(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)
                                 ? &value(op.of(CUDNN_ATTR_OPERATION_POINTWISE_BDESC))
                                 : nullptr;
    const numbers* const t = op.has(CUDNN_ATTR_OPERATION_POINTWISE_TDESC)
                                 ? &value(op.of(CUDNN_ATTR_OPERATION_POINTWISE_TDESC))
                                 : nullptr;
    const auto arithmetic = how.one<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC);
    give(to, [&](const place& p) {
      const double v = rounded(x.at(p, y.dims), arithmetic),
                   w = b != nullptr ? rounded(b->at(p, y.dims), arithmetic) : 0;
      switch (mode) {
      case CUDNN_POINTWISE_ADD: return v + w;
      case CUDNN_POINTWISE_SUB: return v - w;
      case CUDNN_POINTWISE_MUL: return v * w;
      case CUDNN_POINTWISE_DIV: return v / w;
      case CUDNN_POINTWISE_EXP: return std::exp(v);
      case CUDNN_POINTWISE_LOG: return std::log(v);
      case CUDNN_POINTWISE_IDENTITY: return v;
      case CUDNN_POINTWISE_CMP_EQ: return v == w ? 1.0 : 0.0;
      case CUDNN_POINTWISE_CMP_GE: return v >= w ? 1.0 : 0.0;
      case CUDNN_POINTWISE_CMP_GT: return v > w ? 1.0 : 0.0;
      case CUDNN_POINTWISE_BINARY_SELECT: return t->at(p, y.dims) != 0 ? v : w;
      default: return std::numeric_limits<double>::quiet_NaN();
      }
    });
  }
  /// Sums, or takes the maximum, over what lies at one place of the result.
  void reduce(const descriptor& op) {
    const descriptor& how = op.of(CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    const bool adds =
        how.one<cudnnReduceTensorOp_t>(CUDNN_ATTR_REDUCTION_OPERATOR) == CUDNN_REDUCE_TENSOR_ADD;
    const numbers& x = value(op.of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC));
    const descriptor& to = op.of(CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    const tensor y(to);
    numbers all{y.dims, std::vector<double>(static_cast<std::size_t>(y.size()),
                                            adds ? 0 : -std::numeric_limits<double>::infinity())};
    std::size_t i = 0;
    each_place(x.dims, [&](const place& p) {
      int64_t k = 0;
      for (std::size_t d = 0; d < 4; ++d) k = k * y.dims[d] + p[d] * y.dims[d] / x.dims[d];
      double& at = all.x[static_cast<std::size_t>(k)];
      at = adds ? at + x.x[i] : std::max(at, x.x[i]);
      ++i;
    });
    give(to, [&](const place& p) { return all.at(p, y.dims); });
  }
  /// The same memory, with other extents and strides.
  void reshape(const descriptor& op) {
    const descriptor& from = op.of(CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    const descriptor& to = op.of(CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    const numbers& x = value(from);
    const tensor of(from), y(to);
    std::vector<double> memory(static_cast<std::size_t>(of.extent()));
    std::size_t i = 0;
    each_place(of.dims,
               [&](const place& p) { memory[static_cast<std::size_t>(of.offset(p))] = x.x[i++]; });
    give(to, [&](const place& p) { return memory.at(static_cast<std::size_t>(y.offset(p))); });
  }

  std::vector<const descriptor*> operations_;
  std::map<int64_t, void*> arrays_;
  faults faults_;
  std::map<const descriptor*, numbers> values_;
};

/// What cuDNN 9.19 asks for: dS of all scores, and dk and dv of all heads where they share keys.
int64_t workspace_of(const descriptor& graph) {
  int64_t most = 256;
  for (const descriptor* op : graph.all<const descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    if (op->type == CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR) {
      const tensor x(op->of(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
          y(op->of(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
      if (y.dims[3] > 1) most += x.size() * 2;
    }
    if (op->type != CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR) continue;
    const tensor a(op->of(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
        c(op->of(CUDNN_ATTR_OPERATION_MATMUL_CDESC));
    const bool makes_dq = a.dims[2] == a.dims[3] && a.type == CUDNN_DATA_FLOAT;
    if (makes_dq && !c.is_between && c.type == CUDNN_DATA_BFLOAT16)
      most += a.dims[0] * a.dims[1] * ((a.dims[2] + 63) / 64 * 64) *
              ((a.dims[3] + 127) / 128 * 128) * 2;
  }
  return most;
}

/// Whether what it says is what this one knows.
bool is_whole(const descriptor& d) {
  switch (d.type) {
  case CUDNN_BACKEND_TENSOR_DESCRIPTOR: {
    const auto n = d.all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
               s = d.all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
    return n.size() == 4 && s.size() == 4 && d.has(CUDNN_ATTR_TENSOR_UNIQUE_ID) &&
           d.has(CUDNN_ATTR_TENSOR_DATA_TYPE) && d.has(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT) &&
           std::ranges::all_of(n, [](int64_t x) { return x > 0; });
  }
  case CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: {
    const auto all = d.all<const descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
    return !all.empty() && std::ranges::all_of(all, [](const auto* op) { return op->final; });
  }
  case CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR:
    return d.has(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  default: return true;
  }
}

/// The attributes with which an engine says what it is.
constexpr auto graph_of_engine = CUDNN_ATTR_ENGINE_OPERATION_GRAPH,
               number_of_engine = CUDNN_ATTR_ENGINE_GLOBAL_INDEX;
/// Whether a call was asked to fail; "plan 1" is one of the first engine.
bool fails(const char* call) { return stand_in::entered(call) != cudaSuccess; }
bool fails(const std::string& call, const descriptor& engine) {
  return fails((call + " " + std::to_string(engine.one<int64_t>(number_of_engine) + 1)).c_str());
}
template <class V> void put(descriptor& d, cudnnBackendAttributeName_t name, const V& v) {
  auto& bytes = d.attributes[name];
  bytes.resize(sizeof v);
  std::memcpy(bytes.data(), &v, sizeof v);
}

} // namespace

extern "C" {

std::size_t cudnnGetVersion() {
  const std::size_t version = stand_in::has().cudnn;
  return version != 0 ? version : CUDNN_VERSION;
}
const char* cudnnGetErrorString(cudnnStatus_t s) {
  return s == CUDNN_STATUS_SUCCESS ? "success" : "CUDNN_STATUS of the stand-in";
}
void cudnnGetLastErrorString(char* text, std::size_t most) {
  if (most > 0) text[0] = 0;
}
cudnnStatus_t cudnnCreate(cudnnHandle_t* h) {
  if (fails("cudnnCreate")) return CUDNN_STATUS_NOT_INITIALIZED;
  *h = new cudnnContext;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnDestroy(cudnnHandle_t h) {
  delete h;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnSetStream(cudnnHandle_t h, cudaStream_t on) {
  h->on = on;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                           cudnnBackendDescriptor_t* d) {
  *d = new descriptor{type, false, {}};
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<descriptor*>(d);
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count,
                                       const void* values) {
  auto& d = *static_cast<descriptor*>(to);
  if (d.final || count < 1) return CUDNN_STATUS_BAD_PARAM;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
    for (int64_t i = 0; i < count; ++i)
      if (const auto of = static_cast<const cudnnBackendDescriptor_t*>(values)[i];
          d.type != CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && !known(of).final)
        return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  auto& bytes = d.attributes[name];
  bytes.resize(static_cast<std::size_t>(count) * size_of(type));
  std::memcpy(bytes.data(), values, bytes.size());
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t of) {
  auto& d = *static_cast<descriptor*>(of);
  if (d.final || !is_whole(d)) return CUDNN_STATUS_BAD_PARAM;
  if (d.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    const descriptor& engine = d.of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (fails("plan", engine)) return CUDNN_STATUS_NOT_SUPPORTED;
    int64_t bytes = workspace_of(engine.of(graph_of_engine));
    if (fails("workspace", engine)) bytes += 4096;
    put(d, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, bytes);
  }
  d.final = true;
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const from,
                                       cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t /*type*/, int64_t most,
                                       int64_t* count, void* values) {
  const descriptor& d = known(from);
  if (!d.final) return CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED;
  if (name == CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE && most == 1) {
    *static_cast<int64_t*>(values) = d.one<int64_t>(name);
    *count = 1;
    return CUDNN_STATUS_SUCCESS;
  }
  if (name != CUDNN_ATTR_ENGINEHEUR_RESULTS) return CUDNN_STATUS_NOT_SUPPORTED;
  constexpr int64_t engines = 2;
  *count = engines;
  for (int64_t i = 0; i < std::min(most, engines); ++i) {
    auto& engine = *static_cast<descriptor*>(static_cast<cudnnBackendDescriptor_t*>(values)[i]);
    put(engine, graph_of_engine, &d.of(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
    put(engine, number_of_engine, i);
    engine.final = true;
  }
  return CUDNN_STATUS_SUCCESS;
}
cudnnStatus_t cudnnBackendExecute(cudnnHandle_t h, cudnnBackendDescriptor_t of,
                                  cudnnBackendDescriptor_t pack) {
  const descriptor &plan = known(of), &given = known(pack);
  if (!plan.final || !given.final || h->on == nullptr) return CUDNN_STATUS_BAD_PARAM;
  const descriptor& engine = plan.of(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  if (fails("execute", engine)) return CUDNN_STATUS_EXECUTION_FAILED;
  const auto names = given.all<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = given.all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  std::map<int64_t, void*> arrays;
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto address = reinterpret_cast<std::uintptr_t>(pointers.at(i));
    if (pointers[i] == nullptr || address % 4 != 0) return CUDNN_STATUS_BAD_PARAM;
    arrays[names[i]] = pointers[i];
  }
  computed::faults faults;
  for (const auto& [name, at] : arrays) {
    const auto asked = [&](const std::string& what) {
      return fails(what + " " + std::to_string(name), engine);
    };
    if (asked("wrong")) faults.wrong.insert(name);
    if (asked("unwritten")) faults.unwritten.insert(name);
    if (asked("beside")) faults.beside.insert(name);
    if (asked("columns")) faults.columns.insert(name);
  }
  const auto all =
      std::make_shared<computed>(engine.of(graph_of_engine), std::move(arrays), std::move(faults));
  auto* const workspace =
      static_cast<std::byte*>(given.one<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE));
  const auto bytes =
      static_cast<std::size_t>(plan.one<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE));
  if (!all->has_all_arrays() || workspace == nullptr) return CUDNN_STATUS_BAD_PARAM;
  stand_in::start(h->on, "attention of cuDNN", [=] {
    std::memset(workspace, 0xa5, bytes); // of this call alone
    computed(*all).run();                // a graph does this again
  });
  return CUDNN_STATUS_SUCCESS;
}

} // extern "C"
