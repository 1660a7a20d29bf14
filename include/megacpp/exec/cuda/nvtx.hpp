// NVTX: the interface by which Nsight Systems and other tools learn of ranges of a thread. It
// consists of headers of CUDA's toolkit, which load the library that a tool names in
// NVTX_INJECTION64_PATH.
#pragma once

#include <megacpp/exec/cuda/ranges.hpp>

#include <nvtx3/nvToolsExt.h>

#include <cstdint>
#include <memory>
#include <string>

namespace mc {

/// The domain of ranges that tools show as "megacpp".
class nvtx_ranges final : public range_tool {
public:
  /// Returns the tool; nullptr where no tool listens.
  static std::unique_ptr<range_tool> listening() {
    static const nvtxDomainHandle_t domain = nvtxDomainCreateA("megacpp");
    if (domain == nullptr) return nullptr;
    return std::unique_ptr<range_tool>(new nvtx_ranges(domain));
  }
  const void* registered(const std::string& name) override {
    return nvtxDomainRegisterStringA(domain_, name.c_str());
  }
  void begin(const void* name, std::int64_t number) override {
    nvtxEventAttributes_t a{};
    a.version = NVTX_VERSION;
    a.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    a.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    a.message.registered = static_cast<nvtxStringHandle_t>(const_cast<void*>(name));
    if (number >= 0) a.payloadType = NVTX_PAYLOAD_TYPE_INT64, a.payload.llValue = number;
    nvtxDomainRangePushEx(domain_, &a);
  }
  void end() override { nvtxDomainRangePop(domain_); }

private:
  explicit nvtx_ranges(nvtxDomainHandle_t domain) : domain_(domain) {}
  nvtxDomainHandle_t domain_;
};

} // namespace mc
