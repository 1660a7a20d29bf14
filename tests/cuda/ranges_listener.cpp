// A tool that listens to ranges of NVTX, as Nsight Systems does: a library that a program loads because
// NVTX_INJECTION64_PATH names it. It writes the ranges of the domain megacpp to the file that
// MEGACPP_RANGES names, a line each, which begins with the number of the thread:
//
//   0 + forward(layer 1) of 3     a range begins, with a number
//   0 + gelu at gpt.hpp:80        without
//   0 -                           the one that began last ends
//   0 = gelu at gpt.hpp:80        a name is registered
#include <nvtx3/nvToolsExt.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string>

#include <fcntl.h>
#include <unistd.h>

namespace {

int file = -1;

/// One call for a line, so that those of several threads do not mix.
void tell(const std::string& what) {
  static std::atomic<int> threads{0};
  static thread_local const int me = threads++;
  const std::string line = std::to_string(me) + " " + what + "\n";
  if (write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
}

// Of other domains, which are nullptr, nothing is told.
nvtxDomainHandle_t create(const char* name) {
  static char ours;
  if (std::strcmp(name, "megacpp") != 0) return nullptr;
  return reinterpret_cast<nvtxDomainHandle_t>(&ours);
}
nvtxStringHandle_t registered(nvtxDomainHandle_t domain, const char* name) {
  if (domain != nullptr) tell(std::string("= ") + name);
  return reinterpret_cast<nvtxStringHandle_t>(new std::string(name)); // as long as the program
}
int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  if (domain == nullptr) return 0;
  std::string line = "+ ";
  line += *reinterpret_cast<const std::string*>(range->message.registered);
  if (range->payloadType == NVTX_PAYLOAD_TYPE_INT64)
    line += " of " + std::to_string(range->payload.llValue);
  tell(line);
  return 0;
}
int pop(nvtxDomainHandle_t domain) {
  if (domain != nullptr) tell("-");
  return 0;
}

template <class F> NvtxFunctionPointer as_pointer(F* f) {
  return reinterpret_cast<NvtxFunctionPointer>(f);
}

} // namespace

extern "C" [[gnu::visibility("default")]] int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t tables) {
  const char* const to = std::getenv("MEGACPP_RANGES");
  if (to == nullptr) return 0;
  file = open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  const auto* const calls =
      static_cast<const NvtxExportTableCallbacks*>(tables(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable of_domains = nullptr;
  unsigned count = 0;
  if (file < 0 || calls == nullptr ||
      calls->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &of_domains, &count) == 0 ||
      count <= NVTX_CBID_CORE2_DomainCreateA)
    return 0;
  *of_domains[NVTX_CBID_CORE2_DomainCreateA] = as_pointer(&create);
  *of_domains[NVTX_CBID_CORE2_DomainRegisterStringA] = as_pointer(&registered);
  *of_domains[NVTX_CBID_CORE2_DomainRangePushEx] = as_pointer(&push);
  *of_domains[NVTX_CBID_CORE2_DomainRangePop] = as_pointer(&pop);
  return 1;
}
