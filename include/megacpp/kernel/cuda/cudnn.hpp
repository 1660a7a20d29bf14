// The handles and descriptors of cuDNN's backend C API as values that own them, and its status
// codes as errors.
#pragma once

#include <megacpp/io/error.hpp>

#include <cudnn.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

static_assert(CUDNN_VERSION >= 90600, "megacpp's attention needs cuDNN 9.6 or later");

namespace mc {

/// Throws mc::error with the `call` and cuDNN's message unless the call succeeded.
inline void require_cudnn(cudnnStatus_t status, const std::string& call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char more[1024] = "";
  cudnnGetLastErrorString(more, sizeof more);
  throw error(exit_code::internal, call + ": " + cudnnGetErrorString(status) +
                                       (more[0] != 0 ? std::string(", ") + more : std::string()));
}

/// A descriptor of the backend API. Its attributes are set before it is finalised.
class cudnn_descriptor {
public:
  explicit cudnn_descriptor(cudnnBackendDescriptorType_t type) {
    require_cudnn(cudnnBackendCreateDescriptor(type, &d_), "cudnnBackendCreateDescriptor");
  }
  cudnn_descriptor(const cudnn_descriptor&) = delete;
  cudnn_descriptor& operator=(const cudnn_descriptor&) = delete;
  ~cudnn_descriptor() { (void)cudnnBackendDestroyDescriptor(d_); }

  cudnn_descriptor& set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                        std::int64_t count, const void* values) {
    const cudnnStatus_t status = cudnnBackendSetAttribute(d_, name, type, count, values);
    if (status != CUDNN_STATUS_SUCCESS)
      require_cudnn(status, "cudnnBackendSetAttribute " + std::to_string(static_cast<int>(name)));
    return *this;
  }
  cudnn_descriptor& set(cudnnBackendAttributeName_t name, std::int64_t value) {
    return set(name, CUDNN_TYPE_INT64, 1, &value);
  }
  cudnn_descriptor& set(cudnnBackendAttributeName_t name, const std::vector<std::int64_t>& values) {
    return set(name, CUDNN_TYPE_INT64, static_cast<std::int64_t>(values.size()), values.data());
  }
  cudnn_descriptor& set(cudnnBackendAttributeName_t name, bool value) {
    return set(name, CUDNN_TYPE_BOOLEAN, 1, &value);
  }
  cudnn_descriptor& set(cudnnBackendAttributeName_t name, cudnnDataType_t value) {
    return set(name, CUDNN_TYPE_DATA_TYPE, 1, &value);
  }
  cudnn_descriptor& set(cudnnBackendAttributeName_t name, const cudnn_descriptor& value) {
    return set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.d_);
  }
  cudnn_descriptor& finalize(const char* what) {
    const cudnnStatus_t status = cudnnBackendFinalize(d_);
    if (status != CUDNN_STATUS_SUCCESS)
      require_cudnn(status, std::string("cudnnBackendFinalize of ") + what);
    return *this;
  }
  cudnnBackendDescriptor_t get() const { return d_; }

private:
  cudnnBackendDescriptor_t d_ = nullptr;
};

/// A handle of cuDNN on the current device.
class cudnn_handle {
public:
  cudnn_handle() = default; ///< no handle
  static cudnn_handle make() {
    cudnn_handle h;
    const cudnnStatus_t status = cudnnCreate(&h.h_);
    if (status != CUDNN_STATUS_SUCCESS)
      throw error(exit_code::machine,
                  std::string("cuDNN cannot be opened (") + cudnnGetErrorString(status) +
                      "): free memory of the device, or give a machine with another driver");
    return h;
  }
  cudnn_handle(cudnn_handle&& o) noexcept : h_(std::exchange(o.h_, nullptr)) {}
  cudnn_handle& operator=(cudnn_handle&& o) noexcept {
    std::swap(h_, o.h_);
    return *this;
  }
  ~cudnn_handle() {
    if (h_ != nullptr) (void)cudnnDestroy(h_);
  }
  cudnnHandle_t get() const { return h_; }

private:
  cudnnHandle_t h_ = nullptr;
};

} // namespace mc
