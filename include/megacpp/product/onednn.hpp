// Tiles of matrix products by oneDNN's matmul primitive, through the C API: 2.x (Debian 12)
// and 3.x.
//
// Every primitive is created and executed for one thread, and this library's own loop runs the
// tiles in parallel: the bits of oneDNN's own parallel products are not a function of the shape
// alone (measured, 2.6.3 fp32: 1 and 2 threads agreed on 11 shapes, but the weight gradient of 3000
// rows, 96 x 80, differs at 4; and a primitive made for one thread gives other bits when run on
// two). Each execute makes 5 to 8 mallocs of 300 bytes in all inside oneDNN 2.6 (its argument map;
// up to 9 counted in 3.2), with the scratchpad given by the caller. dnnl_sgemm is as fast, but
// allocates its packing buffers in every call: 0.15 to 39 MB.
#pragma once

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/exec/product_shape.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/threads/openmp.hpp>

#include <dnnl.h>

#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace mc {

namespace onednn {

/// Returns the errno with which the system refuses memory that is writable and executable, into
/// which oneDNN compiles its kernels; 0 if it grants it.
inline int no_memory_for_code() {
  const auto bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const page =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno;
  const int problem = ::mprotect(page, bytes, PROT_READ | PROT_WRITE | PROT_EXEC) == 0 ? 0 : errno;
  ::munmap(page, bytes);
  return problem;
}

inline void check(dnnl_status_t status, const char* what) {
  if (status == dnnl_out_of_memory)
    throw error(exit_code::memory, std::string("oneDNN has no memory left for ") + what +
                                       "; use a smaller micro-batch or sequence.");
  if (status == dnnl_success) return;
  if (const int problem = no_memory_for_code())
    throw error(
        exit_code::memory,
        std::string("oneDNN compiles its kernels into memory that is writable and "
                    "executable, which the system refuses (") +
            std::strerror(problem) +
            "); allow it (MemoryDenyWriteExecute=no of a systemd unit, execmem of SELinux)");
  throw error(exit_code::internal, std::string("oneDNN failed (status ") +
                                       std::to_string(static_cast<int>(status)) + ") in " + what +
                                       "; report this with the output of describe.");
}

struct release {
  void operator()(dnnl_engine_t p) const { dnnl_engine_destroy(p); }
  void operator()(dnnl_stream_t p) const { dnnl_stream_destroy(p); }
  void operator()(dnnl_memory_t p) const { dnnl_memory_destroy(p); }
  void operator()(dnnl_primitive_t p) const { dnnl_primitive_destroy(p); }
  void operator()(dnnl_primitive_desc_t p) const { dnnl_primitive_desc_destroy(p); }
  void operator()(dnnl_primitive_attr_t p) const { dnnl_primitive_attr_destroy(p); }
  void operator()(dnnl_post_ops_t p) const { dnnl_post_ops_destroy(p); }
};
template <class Handle> using handle = std::unique_ptr<std::remove_pointer_t<Handle>, release>;

constexpr dnnl_data_type_t type_of(dtype t) { return t == dtype::bf16 ? dnnl_bf16 : dnnl_f32; }

/// The descriptor of a matrix of rows x columns with any two strides. oneDNN 2 has descriptors as
/// values, oneDNN 3 as handles.
class descriptor {
public:
  descriptor(dtype t, std::int64_t rows, std::int64_t columns, std::int64_t row_stride,
             std::int64_t column_stride) {
    const dnnl_dims_t dims = {rows, columns}, strides = {row_stride, column_stride};
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_memory_desc_create_with_strides(&md_, 2, dims, type_of(t), strides), "a descriptor");
#else
    check(dnnl_memory_desc_init_by_strides(&md_, 2, dims, type_of(t), strides), "a descriptor");
#endif
  }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
#if DNNL_VERSION_MAJOR >= 3
  ~descriptor() { dnnl_memory_desc_destroy(md_); }
  const_dnnl_memory_desc_t get() const { return md_; }
#else
  ~descriptor() = default;
  const dnnl_memory_desc_t* get() const { return &md_; }
#endif

private:
  dnnl_memory_desc_t md_ = {};
};

/// Returns the matmul of a tile; null when oneDNN has none for these types on this processor.
inline handle<dnnl_primitive_desc_t> matmul(dnnl_engine_t engine, const descriptor& a,
                                            const descriptor& b, const descriptor* bias,
                                            const descriptor& c, dtype output, bool accumulate) {
  dnnl_primitive_attr_t attr = nullptr;
  check(dnnl_primitive_attr_create(&attr), "attributes");
  const handle<dnnl_primitive_attr_t> attributes(attr);
  check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "attributes");
  if (accumulate) {
    dnnl_post_ops_t ops = nullptr;
    check(dnnl_post_ops_create(&ops), "post-ops");
    const handle<dnnl_post_ops_t> owner(ops);
#if DNNL_VERSION_MAJOR >= 3
    check(dnnl_post_ops_append_sum(ops, 1.0f, 0, type_of(output)), "post-ops");
#else
    static_cast<void>(output);
    check(dnnl_post_ops_append_sum(ops, 1.0f), "post-ops");
#endif
    check(dnnl_primitive_attr_set_post_ops(attr, ops), "post-ops");
  }
  dnnl_primitive_desc_t pd = nullptr;
#if DNNL_VERSION_MAJOR >= 3
  const dnnl_status_t status = dnnl_matmul_primitive_desc_create(
      &pd, engine, a.get(), b.get(), bias ? bias->get() : nullptr, c.get(), attr);
#else
  dnnl_matmul_desc_t desc = {};
  check(dnnl_matmul_desc_init(&desc, a.get(), b.get(), bias ? bias->get() : nullptr, c.get()),
        "a product's descriptor");
  const dnnl_status_t status = dnnl_primitive_desc_create(&pd, &desc, attr, engine, nullptr);
#endif
  if (status == dnnl_unimplemented) return {};
  check(status, "the creation of a product");
  return handle<dnnl_primitive_desc_t>(pd);
}

class cell final : public product_cell {
public:
  cell(const product_cell_shape& s, dnnl_engine_t engine,
       const std::vector<handle<dnnl_stream_t>>& streams)
      : streams_(&streams) {
    const one_openmp_thread tiles; // the primitive is created for one thread
    const descriptor a(s.type, s.m, s.k, s.a_transposed ? 1 : s.lda, s.a_transposed ? s.lda : 1);
    const descriptor b(s.type, s.k, s.n, s.b_transposed ? 1 : s.ldb, s.b_transposed ? s.ldb : 1);
    const descriptor c(s.output, s.m, s.n, s.ldc, 1);
    const descriptor bias(s.type, 1, s.n, s.n, 1);
    const auto pd = matmul(engine, a, b, s.bias ? &bias : nullptr, c, s.output, s.accumulate);
    if (!pd) return;
    dnnl_primitive_t p = nullptr;
    check(dnnl_primitive_create(&p, pd.get()), "the creation of a product");
    primitive_.reset(p);
    const auto scratch = dnnl_primitive_desc_query_md(pd.get(), dnnl_query_scratchpad_md, 0);
    scratch_bytes_ = dnnl_memory_desc_get_size(scratch);
    const auto memory = [&](auto md) {
      dnnl_memory_t m = nullptr;
      check(dnnl_memory_create(&m, md, engine, DNNL_MEMORY_NONE), "a memory object");
      return handle<dnnl_memory_t>(m);
    };
    threads_.reserve(streams.size());
    for (std::size_t i = 0; i < streams.size(); ++i) {
      threads_.push_back({memory(a.get()), memory(b.get()), memory(c.get()),
                          s.bias ? memory(bias.get()) : nullptr,
                          scratch_bytes_ ? memory(scratch) : nullptr});
    }
  }

  bool valid() const { return primitive_ != nullptr; }
  std::size_t scratch_bytes() const override { return scratch_bytes_; }

  product_status execute(int thread, const void* a, const void* b, const void* bias, void* c,
                         void* scratch) const override {
    const auto& s = threads_[static_cast<std::size_t>(thread)];
    dnnl_exec_arg_t args[5];
    int count = 0;
    dnnl_status_t status = dnnl_success;
    const auto add = [&](int name, const handle<dnnl_memory_t>& memory, const void* data) {
      if (!memory || status != dnnl_success) return;
      // oneDNN's handles are not const, but sources are only read.
      status = dnnl_memory_set_data_handle(memory.get(), const_cast<void*>(data));
      args[count++] = {name, memory.get()};
    };
    try { // the function is of C, but allocations in it throw
      add(DNNL_ARG_SRC, s.a, a);
      add(DNNL_ARG_WEIGHTS, s.b, b);
      add(DNNL_ARG_DST, s.c, c);
      add(DNNL_ARG_BIAS, s.bias, bias);
      add(DNNL_ARG_SCRATCHPAD, s.scratch, scratch);
      const dnnl_stream_t stream = (*streams_)[static_cast<std::size_t>(thread)].get();
      if (status == dnnl_success)
        status = dnnl_primitive_execute(primitive_.get(), stream, count, args);
    } catch (const std::bad_alloc&) {
      status = dnnl_out_of_memory;
    }
    return status == dnnl_success         ? product_status::done
           : status == dnnl_out_of_memory ? product_status::no_memory
                                          : product_status::failed;
  }

private:
  struct memory_of_thread {
    handle<dnnl_memory_t> a, b, c, bias, scratch;
  };
  const std::vector<handle<dnnl_stream_t>>* streams_;
  handle<dnnl_primitive_t> primitive_;
  std::size_t scratch_bytes_ = 0;
  std::vector<memory_of_thread> threads_;
};

} // namespace onednn

/// Tiles of f32 and bf16 products; make returns null for types that oneDNN does not have on this
/// processor.
class onednn_products final : public product_library {
public:
  explicit onednn_products(int threads) {
    dnnl_engine_t e = nullptr;
    onednn::check(dnnl_engine_create(&e, dnnl_cpu, 0), "the creation of its engine");
    engine_.reset(e);
    for (int i = 0; i < threads; ++i) {
      dnnl_stream_t s = nullptr;
      onednn::check(dnnl_stream_create(&s, e, dnnl_stream_default_flags),
                    "the creation of a stream");
      streams_.emplace_back(s);
    }
  }
  onednn_products(const onednn_products&) = delete;
  onednn_products& operator=(const onednn_products&) = delete;

  /// Returns false for a matrix of one column whose rows have a distance, since oneDNN 3 ignores
  /// the distance (3.7.2, the kernels for AVX-512, f32 and bf16: a result of one column, a
  /// transposed A of one column; 2.6.3 is right).
  bool serves(const product_cell_shape& s) const override { return major_ < 3 || !has_column(s); }
  static bool has_column(const product_cell_shape& s) {
    const auto column = [](std::int64_t rows, std::int64_t columns, std::int64_t stride) {
      return columns == 1 && rows > 1 && stride > 1;
    };
    return column(s.m, s.n, s.ldc) ||
           (s.a_transposed ? column(s.k, s.m, s.lda) : column(s.m, s.k, s.lda)) ||
           (s.b_transposed ? column(s.n, s.k, s.ldb) : column(s.k, s.n, s.ldb));
  }
  std::unique_ptr<product_cell> make(const product_cell_shape& s) const override {
    if (s.type == dtype::f64) return nullptr;
    require_room("the code of matrix products");
    auto made = std::make_unique<onednn::cell>(s, engine_.get(), streams_);
    if (!made->valid()) return nullptr;
    return made;
  }
  /// Returns true if this build of oneDNN can be held to one thread a tile: it has no threads, or
  /// those of an OpenMP runtime that is found. A pool of its own (TBB) would split tiles by the
  /// pool's size and compete with this library's threads for the cores.
  static bool usable() {
    const unsigned runtime = dnnl_version()->cpu_runtime;
    return runtime == DNNL_RUNTIME_SEQ ||
           (runtime == DNNL_RUNTIME_OMP && openmp_runtime::of_process().present());
  }
  std::string name() const override {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." +
           std::to_string(v->patch);
  }

private:
  int major_ = dnnl_version()->major;
  onednn::handle<dnnl_engine_t> engine_;
  std::vector<onednn::handle<dnnl_stream_t>> streams_;
};

} // namespace mc
