// A libcuda.so.1 for machines without a driver, with which cuDNN plans for a device that is described to
// it (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR): code is taken and never runs, and the names of its kernels
// are kept. What cuDNN does not need to make a plan fails.
#include <cstring>
#include <mutex>
#include <string>

namespace {
using result = int; // CUresult
constexpr result success = 0, not_supported = 801;

std::mutex mutex;
std::string names;
long libraries = 0;
} // namespace

extern "C" {

/// The kernels that were asked for since the last call, each in a line.
const char* stand_in_kernels() {
  static std::string last;
  const std::scoped_lock lock(mutex);
  last.swap(names);
  names.clear();
  return last.c_str();
}

result cuInit(unsigned) { return success; }
result cuDriverGetVersion(int* v) {
  *v = 13000;
  return success;
}
result cuDeviceGetCount(int* n) {
  *n = 1;
  return success;
}
result cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return success;
}
result cuCtxGetCurrent(void** context) {
  static char one;
  *context = &one;
  return success;
}
result cuCtxPushCurrent(void*) { return success; }
result cuCtxPopCurrent(void** context) {
  return context == nullptr ? success : cuCtxGetCurrent(context);
}
result cuLibraryLoadData(void** library, const void*, void*, void*, unsigned, void*, void*,
                         unsigned) {
  const std::scoped_lock lock(mutex);
  *library = reinterpret_cast<void*>(++libraries);
  return success;
}
result cuLibraryGetKernel(void** kernel, void* library, const char* name) {
  const std::scoped_lock lock(mutex);
  names += std::string(name) + "\n";
  *kernel = library;
  return success;
}
result cuLibraryUnload(void*) { return success; }
result cuKernelSetAttribute(int, int, void*, int) { return success; }
result cuKernelGetAttribute(int* value, int, void*, int) {
  *value = 0;
  return success;
}
result cuOccupancyMaxPotentialClusterSize(int* size, void*, void*) {
  *size = 8;
  return success;
}

#define MEGACPP_NOT_HERE(name) \
  result name() { return not_supported; }
MEGACPP_NOT_HERE(cuLaunchKernel)
MEGACPP_NOT_HERE(cuLaunchCooperativeKernel)
MEGACPP_NOT_HERE(cuLaunchKernelEx)
MEGACPP_NOT_HERE(cuLinkCreate)
MEGACPP_NOT_HERE(cuLinkCreate_v2)
MEGACPP_NOT_HERE(cuLinkAddData)
MEGACPP_NOT_HERE(cuLinkAddData_v2)
MEGACPP_NOT_HERE(cuLinkAddFile_v2)
MEGACPP_NOT_HERE(cuLinkComplete)
MEGACPP_NOT_HERE(cuLinkDestroy)
MEGACPP_NOT_HERE(cuGetErrorString)
MEGACPP_NOT_HERE(cuGetErrorName)
MEGACPP_NOT_HERE(cuCtxGetLimit)
MEGACPP_NOT_HERE(cuCtxGetDevice)
MEGACPP_NOT_HERE(cuStreamGetCtx)
MEGACPP_NOT_HERE(cuStreamSynchronize)
MEGACPP_NOT_HERE(cuLibraryLoadFromFile)
MEGACPP_NOT_HERE(cuKernelGetFunction)
MEGACPP_NOT_HERE(cuTensorMapEncodeTiled)
MEGACPP_NOT_HERE(cuTensorMapEncodeIm2col)
MEGACPP_NOT_HERE(cuOccupancyMaxActiveBlocksPerMultiprocessor)
MEGACPP_NOT_HERE(cuModuleUnload)
MEGACPP_NOT_HERE(cuModuleLoadFatBinary)
MEGACPP_NOT_HERE(cuModuleLoadDataEx)
MEGACPP_NOT_HERE(cuModuleLoadData)
MEGACPP_NOT_HERE(cuModuleGetGlobal_v2)
MEGACPP_NOT_HERE(cuModuleGetFunction)
MEGACPP_NOT_HERE(cuMemcpyDtoH_v2)
MEGACPP_NOT_HERE(cuFuncSetAttribute)
MEGACPP_NOT_HERE(cuFuncGetAttribute)
MEGACPP_NOT_HERE(cuDevicePrimaryCtxRetain)
MEGACPP_NOT_HERE(cuDevicePrimaryCtxReset)
MEGACPP_NOT_HERE(cuDevicePrimaryCtxRelease)
MEGACPP_NOT_HERE(cuDeviceGetAttribute)
MEGACPP_NOT_HERE(cuGetProcAddress)
MEGACPP_NOT_HERE(cuGetProcAddress_v2)
MEGACPP_NOT_HERE(cuGetExportTable)

} // extern "C"
