#include "stand_in.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

// CUDA's handles.
struct CUgraph_st;
struct CUevent_st {
  std::int64_t recorded = 0, come = 0; // how often
  std::int64_t at = 0;                 // nanoseconds, when it came last
  int device = 0;
  bool timed = true;
};
struct CUstream_st {
  int device = 0;
  struct work {
    std::string what;
    std::function<void()> f; // none: it waits alone
    CUevent_st* behind = nullptr;
    std::int64_t times = 0; // as often as the event has to have come
  };
  std::deque<work> queue;
  std::unique_ptr<CUgraph_st> taken; // what is started becomes a graph
};

// What has been started on a stream while it was taken, in order.
struct CUgraph_st {
  std::vector<CUstream_st::work> all;
  bool sound = true; // nothing was asked for that a graph cannot have
};
struct CUgraphExec_st {
  std::vector<CUstream_st::work> all;
};

namespace stand_in {
namespace {

thread_local int chosen = 0; // the device, by cudaSetDevice

constexpr std::size_t page = 4096;
constexpr auto beyond = std::byte{0xa5}; // what lies behind the end of reserved memory

std::size_t pages(std::size_t bytes) { return (bytes + page - 1) / page * page; }
std::int64_t spent = 0; // by work
std::int64_t now() {
  return spent + std::chrono::duration_cast<std::chrono::nanoseconds>(
                     std::chrono::steady_clock::now().time_since_epoch())
                     .count();
}

class runtime {
public:
  machine has;
  std::recursive_mutex mutex;
  counts counted;
  std::vector<std::unique_ptr<CUstream_st>> streams;
  std::vector<std::unique_ptr<CUevent_st>> events;

  void begin(const machine& m) {
    struct sigaction action = {};
    action.sa_sigaction = &on_fault;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, nullptr); // whoever runs tests may have had it meanwhile
    if (sticky_ != cudaSuccess) forget();   // a device that was lost takes nothing back
    if (counted.streams + counted.events + counted.graphs != 0 || !device_.empty() ||
        !pinned_.empty())
      end("a device begins while something of the one before is left");
    has = m, counted = {}, chance_.seed(static_cast<std::minstd_rand::result_type>(m.seed));
    fails_.clear(), mistakes_.clear(), called_.clear();
    lost_after_ = -1, sticky_ = last_ = cudaSuccess;
  }

  /// What a call of this name answers before it does anything.
  cudaError_t enter(const char* call) {
    if (sticky_ != cudaSuccess) return sticky_;
    called_[call].emplace_back();
    const auto f = fails_.find(call);
    if (f == fails_.end() || f->second.after-- > 0) return cudaSuccess;
    const cudaError_t with = f->second.with;
    fails_.erase(f);
    return told(with);
  }
  /// Whether the call of this name that has just been entered is such a mistake.
  bool is(const char* call, mistake m) {
    const auto f = mistakes_.find({call, m});
    return f != mistakes_.end() && f->second-- == 0;
  }
  void mistake_in(const std::string& call, mistake m, int after) { mistakes_[{call, m}] = after; }
  std::vector<std::string> calls(const std::string& call) const {
    const auto f = called_.find(call);
    return f == called_.end() ? std::vector<std::string>{} : f->second;
  }
  /// What the call of this name that has just been entered starts.
  void start(const char* call, cudaStream_t on, std::string what, std::function<void()> f) {
    called_[call].back() = what;
    if (!is(call, mistake::too_early)) return start(on, std::move(what), std::move(f));
    open();
    f();
    close();
  }
  void shuffle(std::uint64_t seed) {
    chance_.seed(static_cast<std::minstd_rand::result_type>(seed));
  }
  cudaError_t told(cudaError_t e) {
    if (e != cudaSuccess) last_ = e;
    return e;
  }
  cudaError_t take_last() {
    const cudaError_t e = sticky_ != cudaSuccess ? sticky_ : last_;
    last_ = cudaSuccess;
    return e;
  }
  void fail(const std::string& call, cudaError_t with, int after) { fails_[call] = {with, after}; }
  void lose(int after) { lost_after_ = after; }

  // Memory.

  std::size_t left() const {
    return has.bytes - has.taken - static_cast<std::size_t>(counted.reserved);
  }
  cudaError_t reserve(void** p, std::size_t bytes) {
    if (bytes > left()) return told(cudaErrorMemoryAllocation);
    auto* const at = map(bytes);
    std::memset(at, 0xff, bytes); // a NaN of every type
    std::memset(at + bytes, static_cast<int>(beyond), pages(bytes) - bytes);
    protect(at, bytes, PROT_NONE);
    device_[at] = bytes, counted.reserved += static_cast<std::int64_t>(bytes);
    counted.most_reserved = std::max(counted.most_reserved, counted.reserved);
    *p = at;
    return cudaSuccess;
  }
  cudaError_t release(void* p) {
    if (p == nullptr) return cudaSuccess;
    finish_all();
    const auto at = device_.find(static_cast<std::byte*>(p));
    if (at == device_.end()) return told(cudaErrorInvalidValue);
    counted.reserved -= static_cast<std::int64_t>(at->second);
    unmap(at->first, at->second); // so that a look at it later ends the process
    device_.erase(at);
    return sticky_;
  }
  cudaError_t pin(void** p, std::size_t bytes) {
    auto* const at = map(bytes);
    std::memset(at, 0xff, bytes);
    pinned_[at] = bytes, counted.pinned += static_cast<std::int64_t>(bytes);
    *p = at;
    return cudaSuccess;
  }
  cudaError_t unpin(void* p) {
    if (p == nullptr) return cudaSuccess;
    finish_all();
    const auto at = pinned_.find(static_cast<std::byte*>(p));
    if (at == pinned_.end()) return told(cudaErrorInvalidValue);
    counted.pinned -= static_cast<std::int64_t>(at->second);
    unmap(at->first, at->second);
    pinned_.erase(at);
    return sticky_;
  }
  bool of_device(const void* p, std::size_t bytes) const { return holds(device_, p, bytes); }
  bool of_pinned(const void* p, std::size_t bytes) const { return holds(pinned_, p, bytes); }

  // Work.

  void start(cudaStream_t on, std::string what, std::function<void()> f,
             CUevent_st* behind = nullptr, std::int64_t times = 0) {
    if (on->taken) {
      on->taken->all.push_back({std::move(what), std::move(f), behind, times});
      return;
    }
    ++counted.started;
    on->queue.push_back({std::move(what), std::move(f), behind, times});
  }
  bool there(cudaStream_t s) const {
    return std::ranges::any_of(streams, [s](const auto& one) { return one.get() == s; });
  }
  /// The answer to what a stream that is taken cannot have; its graph is lost.
  cudaError_t unsupported(cudaStream_t s) {
    s->taken->sound = false;
    return told(cudaErrorStreamCaptureUnsupported);
  }
  /// A stream that is taken, on which the calling thread may not ask for memory.
  cudaStream_t any_taken() const {
    const auto at =
        std::ranges::find_if(streams, [](const auto& s) { return s->taken != nullptr; });
    return at == streams.end() ? nullptr : at->get();
  }
  bool there(cudaEvent_t e) const {
    return std::ranges::any_of(events, [e](const auto& one) { return one.get() == e; });
  }

  /// Does what is started until `enough()`, which what is started must lead to.
  template <class F> cudaError_t finish(F enough) {
    ++counted.waits;
    while (sticky_ == cudaSuccess && !enough()) {
      std::vector<CUstream_st*> ready;
      for (const auto& s : streams)
        if (!s->queue.empty()) {
          const CUstream_st::work& w = s->queue.front();
          if (w.behind == nullptr || w.behind->come >= w.times) ready.push_back(s.get());
        }
      if (ready.empty()) end("streams wait for what nothing that is started leads to");
      open();
      CUstream_st& s = *ready[chance_() % ready.size()];
      CUstream_st::work w = std::move(s.queue.front());
      s.queue.pop_front();
      perform(w);
    }
    close();
    return sticky_;
  }
  void finish_all() {
    finish([&] {
      return std::ranges::all_of(streams, [](const auto& s) { return s->queue.empty(); });
    });
  }

private:
  struct failure {
    cudaError_t with;
    int after;
  };
  using blocks = std::map<std::byte*, std::size_t>;
  blocks device_, pinned_;
  std::map<std::string, failure> fails_;
  std::map<std::pair<std::string, mistake>, int> mistakes_;
  std::map<std::string, std::vector<std::string>> called_;
  int lost_after_ = -1;
  cudaError_t sticky_ = cudaSuccess, last_ = cudaSuccess;
  std::minstd_rand chance_;
  static inline std::string working_ = "nothing"; // for on_fault
  static inline bool open_ = false;

  /// Between two pages that nobody may touch.
  static std::byte* map(std::size_t bytes) {
    void* const p = ::mmap(nullptr, pages(bytes) + 2 * page, PROT_NONE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) end("the host has no memory for that of the device");
    auto* const at = static_cast<std::byte*>(p) + page;
    protect(at, bytes, PROT_READ | PROT_WRITE);
    return at;
  }
  static void unmap(std::byte* at, std::size_t bytes) {
    ::munmap(at - page, pages(bytes) + 2 * page);
  }
  static void protect(std::byte* at, std::size_t bytes, int how) {
    if (::mprotect(at, pages(bytes), how) != 0) end("mprotect fails");
  }
  static bool holds(const blocks& in, const void* p, std::size_t bytes) {
    auto* const first = static_cast<std::byte*>(const_cast<void*>(p));
    auto at = in.upper_bound(first);
    if (at == in.begin()) return false;
    --at;
    return static_cast<std::size_t>(first - at->first) + bytes <= at->second;
  }

  /// The memory of the device is open while somebody waits and work is done.
  void open() {
    if (std::exchange(open_, true)) return;
    for (const auto& [at, bytes] : device_) protect(at, bytes, PROT_READ | PROT_WRITE);
  }
  void close() {
    if (!std::exchange(open_, false)) return;
    for (const auto& [at, bytes] : device_) protect(at, bytes, PROT_NONE);
  }
  void forget() {
    for (const blocks* all : {&device_, &pinned_})
      for (const auto& [at, bytes] : *all) unmap(at, bytes);
    device_.clear(), pinned_.clear(), streams.clear(), events.clear(), counted = {};
  }

  void perform(const CUstream_st::work& w) {
    working_ = w.what;
    if (w.f) {
      if (lost_after_ == 0) {
        sticky_ = cudaErrorLaunchFailure;
        return;
      }
      if (lost_after_ > 0) --lost_after_;
      w.f();
      for (const auto& [at, bytes] : device_)
        for (std::byte* p = at + bytes; p != at + pages(bytes); ++p)
          if (*p != beyond) end("work has written beyond the end of what is reserved");
    }
    ++counted.done;
  }

  [[noreturn]] static void end(const char* why) {
    std::fprintf(stderr, "stand-in: %s (%s: %s)\n", why, open_ ? "it does" : "it did last",
                 working_.c_str());
    leave();
  }
  /// Without a handler that would go on.
  [[noreturn]] static void leave() {
    ::signal(SIGABRT, SIG_DFL);
    std::abort();
  }
  static void on_fault(int, siginfo_t* info, void*) {
    ::signal(SIGSEGV, SIG_DFL);
    std::fprintf(stderr, "stand-in: %s %p (%s: %s)\n",
                 open_ ? "work looks at an address that is not reserved,"
                       : "the host looks at memory of the device or at none,",
                 info->si_addr, open_ ? "it does" : "it did last", working_.c_str());
    leave();
  }
};

/// Whole pages of zeros are given back to the system, which makes new ones when they are needed: to
/// open and close what nobody has touched costs little.
void fill(std::byte* to, int byte, std::size_t bytes) {
  const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(to),
                       first = std::min(pages(address) - address, bytes),
                       last = std::max(first, bytes - std::min((address + bytes) % page, bytes));
  if (byte != 0 || ::madvise(to + first, last - first, MADV_DONTNEED) != 0) {
    std::memset(to, byte, bytes);
    return;
  }
  std::memset(to, 0, first);
  std::memset(to + last, 0, bytes - last);
}

runtime& here() {
  static runtime one;
  return one;
}

/// Runs f(runtime) behind the answer that a call of this name has to give.
template <class F> cudaError_t call(const char* name, F f) {
  runtime& r = here();
  const std::scoped_lock lock(r.mutex);
  if (const cudaError_t e = r.enter(name); e != cudaSuccess) return e;
  if (r.is(name, mistake::left_out)) return cudaSuccess;
  return f(r);
}

std::string bytes_of(const char* what, std::size_t bytes) {
  return std::string(what) + " of " + std::to_string(bytes) + " bytes";
}

} // namespace

void start(cudaStream_t on, std::string what, std::function<void()> f) {
  runtime& r = here();
  const std::scoped_lock lock(r.mutex);
  if (!r.there(on)) std::abort();
  if (r.enter("kernel") != cudaSuccess || r.is("kernel", mistake::left_out)) return;
  r.start("kernel", on, std::move(what), std::move(f));
  if (r.has.blocking && !on->taken) r.finish([&] { return on->queue.empty(); });
}
void begin(const machine& m) {
  const std::scoped_lock lock(here().mutex);
  here().begin(m);
}
cudaError_t entered(const char* call) {
  const std::scoped_lock lock(here().mutex);
  return here().enter(call);
}
void fail(const std::string& call, cudaError_t with, int after) {
  const std::scoped_lock lock(here().mutex);
  here().fail(call, with, after);
}
void mistake_in(const std::string& call, mistake m, int after) {
  const std::scoped_lock lock(here().mutex);
  here().mistake_in(call, m, after);
}
std::vector<std::string> calls(const std::string& call) {
  const std::scoped_lock lock(here().mutex);
  return here().calls(call);
}
void shuffle(std::uint64_t seed) {
  const std::scoped_lock lock(here().mutex);
  here().shuffle(seed);
}
void lose_device(int after) {
  const std::scoped_lock lock(here().mutex);
  here().lose(after);
}
int current_device() { return chosen; }
machine has() {
  const std::scoped_lock lock(here().mutex);
  return here().has;
}
void spend(std::int64_t nanoseconds) { spent += nanoseconds; } // work runs with the lock held
counts count() {
  const std::scoped_lock lock(here().mutex);
  return here().counted;
}

} // namespace stand_in

using stand_in::call;
using stand_in::here;
using stand_in::runtime;

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&](runtime& r) {
    *count = r.has.devices;
    return r.has.devices > 0 ? cudaSuccess : r.told(cudaErrorNoDevice);
  });
}
cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](runtime& r) {
    if (device < 0 || device >= r.has.devices) return r.told(cudaErrorInvalidDevice);
    stand_in::chosen = device;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* facts, int device) {
  return call("cudaGetDeviceProperties", [&](runtime& r) {
    if (device < 0 || device >= r.has.devices) return r.told(cudaErrorInvalidDevice);
    *facts = {};
    std::snprintf(facts->name, sizeof facts->name, "stand-in");
    facts->major = r.has.capability[0], facts->minor = r.has.capability[1];
    facts->l2CacheSize = 1 << 14;
    return cudaSuccess;
  });
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return call("cudaMemGetInfo", [&](runtime& r) {
    *total = r.has.bytes, *free = r.left();
    return cudaSuccess;
  });
}
const char* cudaGetErrorName(cudaError_t e) {
  switch (e) {
  case cudaSuccess: return "cudaSuccess";
  case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
  case cudaErrorNoDevice: return "cudaErrorNoDevice";
  case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
  case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
  case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
  case cudaErrorInsufficientDriver: return "cudaErrorInsufficientDriver";
  case cudaErrorDevicesUnavailable: return "cudaErrorDevicesUnavailable";
  case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
  case cudaErrorStreamCaptureUnsupported: return "cudaErrorStreamCaptureUnsupported";
  case cudaErrorStreamCaptureInvalidated: return "cudaErrorStreamCaptureInvalidated";
  default: return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t e) {
  switch (e) {
  case cudaErrorMemoryAllocation: return "out of memory";
  case cudaErrorNoDevice: return "no CUDA-capable device is detected";
  case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient";
  case cudaErrorLaunchFailure: return "unspecified launch failure";
  default: return "an error of the stand-in";
  }
}
cudaError_t cudaGetLastError() {
  const std::scoped_lock lock(here().mutex);
  return here().take_last();
}

cudaError_t cudaMalloc(void** p, std::size_t bytes) {
  return call("cudaMalloc", [&](runtime& r) {
    if (const cudaStream_t s = r.any_taken()) return r.unsupported(s);
    return r.reserve(p, r.is("cudaMalloc", stand_in::mistake::short_of_memory) ? bytes / 2 : bytes);
  });
}
cudaError_t cudaFree(void* p) {
  return call("cudaFree", [&](runtime& r) { return r.release(p); });
}
cudaError_t cudaHostAlloc(void** p, std::size_t bytes, unsigned) {
  return call("cudaHostAlloc", [&](runtime& r) { return r.pin(p, bytes); });
}
cudaError_t cudaFreeHost(void* p) {
  return call("cudaFreeHost", [&](runtime& r) { return r.unpin(p); });
}

cudaError_t cudaMemsetAsync(void* to, int byte, std::size_t bytes, cudaStream_t on) {
  return call("cudaMemsetAsync", [&](runtime& r) {
    if (!r.there(on)) return r.told(cudaErrorInvalidResourceHandle);
    if (!r.of_device(to, bytes)) return r.told(cudaErrorInvalidValue);
    r.start("cudaMemsetAsync", on, stand_in::bytes_of("a fill", bytes),
            [=] { stand_in::fill(static_cast<std::byte*>(to), byte, bytes); });
    return cudaSuccess;
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t on) {
  return call("cudaMemcpyAsync", [&](runtime& r) {
    if (!r.there(on)) return r.told(cudaErrorInvalidResourceHandle);
    if (on->taken && kind == cudaMemcpyHostToDevice && !r.of_pinned(from, bytes))
      return r.unsupported(on);
    const bool into = kind != cudaMemcpyDeviceToHost, of = kind != cudaMemcpyHostToDevice;
    if ((into && !r.of_device(to, bytes)) || (of && !r.of_device(from, bytes)))
      return r.told(cudaErrorInvalidValue);
    const auto copy = [=] { std::memcpy(to, from, bytes); };
    const std::string what = stand_in::bytes_of("a copy", bytes);
    if (!of && !r.of_pinned(from, bytes)) { // it is taken now
      const auto* const first = static_cast<const std::byte*>(from);
      r.start("cudaMemcpyAsync", on, what,
              [=, kept = std::vector<std::byte>(first, first + bytes)] {
                std::memcpy(to, kept.data(), bytes);
              });
      return cudaSuccess;
    }
    r.start("cudaMemcpyAsync", on, what, copy);
    // It is there when the call returns, where CUDA cannot copy to it by itself.
    if (!into && !r.of_pinned(to, bytes)) return r.finish([&] { return on->queue.empty(); });
    return cudaSuccess;
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned flags) {
  return call("cudaStreamCreateWithFlags", [&](runtime& r) {
    if (flags != cudaStreamNonBlocking) return r.told(cudaErrorInvalidValue);
    r.streams.push_back(std::make_unique<CUstream_st>());
    *s = r.streams.back().get();
    (*s)->device = stand_in::chosen;
    ++r.counted.streams;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  return call("cudaStreamDestroy", [&](runtime& r) {
    if (!r.there(s)) return r.told(cudaErrorInvalidResourceHandle);
    const cudaError_t e = r.finish([&] { return s->queue.empty(); });
    std::erase_if(r.streams, [s](const auto& one) { return one.get() == s; });
    --r.counted.streams;
    return e;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  return call("cudaStreamSynchronize", [&](runtime& r) {
    if (!r.there(s)) return r.told(cudaErrorInvalidResourceHandle);
    if (s->taken) return r.unsupported(s);
    return r.finish([&] { return s->queue.empty(); });
  });
}
cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [&](runtime& r) {
    r.finish_all();
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  return call("cudaStreamWaitEvent", [&](runtime& r) {
    if (!r.there(s) || !r.there(e)) return r.told(cudaErrorInvalidResourceHandle);
    if (s->taken) return r.unsupported(s);
    if (e->recorded > 0) r.start(s, "a wait for an event", nullptr, e, e->recorded);
    return cudaSuccess;
  });
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned flags) {
  return call("cudaEventCreateWithFlags", [&](runtime& r) {
    r.events.push_back(std::make_unique<CUevent_st>());
    *e = r.events.back().get();
    (*e)->device = stand_in::chosen;
    (*e)->timed = (flags & cudaEventDisableTiming) == 0;
    ++r.counted.events;
    return cudaSuccess;
  });
}
cudaError_t cudaEventDestroy(cudaEvent_t e) {
  return call("cudaEventDestroy", [&](runtime& r) {
    if (!r.there(e)) return r.told(cudaErrorInvalidResourceHandle);
    r.finish_all(); // what is recorded may still come
    std::erase_if(r.events, [e](const auto& one) { return one.get() == e; });
    --r.counted.events;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return call("cudaEventRecord", [&](runtime& r) {
    // An event is recorded on streams of its own device.
    if (!r.there(s) || !r.there(e) || s->device != e->device)
      return r.told(cudaErrorInvalidResourceHandle);
    if (s->taken) return r.unsupported(s);
    r.start(s, "an event", [e, times = ++e->recorded] {
      e->come = std::max(e->come, times), e->at = stand_in::now();
    });
    return cudaSuccess;
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  return call("cudaEventSynchronize", [&](runtime& r) {
    if (!r.there(e)) return r.told(cudaErrorInvalidResourceHandle);
    return r.finish([e, times = e->recorded] { return e->come >= times; });
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return call("cudaEventElapsedTime", [&](runtime& r) {
    if (!r.there(from) || !r.there(to) || from->come == 0 || to->come == 0 || !from->timed ||
        !to->timed)
      return r.told(cudaErrorInvalidResourceHandle);
    *milliseconds = static_cast<float>(to->at - from->at) * 1e-6f;
    return cudaSuccess;
  });
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode) {
  return call("cudaStreamBeginCapture", [&](runtime& r) {
    if (!r.there(s)) return r.told(cudaErrorInvalidResourceHandle);
    if (s->taken) return r.told(cudaErrorInvalidValue);
    s->taken = std::make_unique<CUgraph_st>();
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* g) {
  return call("cudaStreamEndCapture", [&](runtime& r) {
    *g = nullptr;
    if (!r.there(s)) return r.told(cudaErrorInvalidResourceHandle);
    if (!s->taken) return r.told(cudaErrorInvalidValue);
    const std::unique_ptr<CUgraph_st> taken = std::move(s->taken);
    if (!taken->sound) return r.told(cudaErrorStreamCaptureInvalidated);
    ++r.counted.graphs;
    *g = new CUgraph_st(*taken);
    return cudaSuccess;
  });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t g, cudaGraphNode_t*, std::size_t* count) {
  return call("cudaGraphGetNodes", [&](runtime&) {
    *count = g->all.size();
    return cudaSuccess;
  });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return call("cudaGraphUpload", [](runtime&) { return cudaSuccess; });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t from, unsigned long long) {
  return call("cudaGraphInstantiate", [&](runtime& r) {
    *to = new CUgraphExec_st{from->all};
    ++r.counted.graphs;
    return cudaSuccess;
  });
}
cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  return call("cudaGraphDestroy", [&](runtime& r) {
    delete g;
    --r.counted.graphs;
    return cudaSuccess;
  });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t g) {
  return call("cudaGraphExecDestroy", [&](runtime& r) {
    delete g;
    --r.counted.graphs;
    return cudaSuccess;
  });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t g, cudaStream_t s) {
  return call("cudaGraphLaunch", [&](runtime& r) {
    if (!r.there(s)) return r.told(cudaErrorInvalidResourceHandle);
    for (const CUstream_st::work& w : g->all) r.start(s, w.what, w.f, w.behind, w.times);
    return cudaSuccess;
  });
}

} // extern "C"
