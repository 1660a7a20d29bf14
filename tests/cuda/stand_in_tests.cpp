// The stand-in of CUDA's runtime itself: what it keeps back, what it finds, what it says.
#define BOOST_TEST_MODULE cuda_stand_in
#include <boost/test/unit_test.hpp>

#include <cuda/stand_in.hpp>
#include <unit/child.hpp>

#include <csignal>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <vector>

namespace {

void well(cudaError_t e) { BOOST_REQUIRE(e == cudaSuccess); }

/// A device with two streams, an event, 100 bytes of its own and 100 of pinned memory.
struct device {
  cudaStream_t a{}, b{};
  cudaEvent_t event{};
  void *of_device{}, *of_host{};
  explicit device(std::uint64_t seed = 1, std::size_t bytes = 1 << 20) {
    stand_in::begin({.bytes = bytes, .seed = seed});
    well(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
    well(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
    well(cudaEventCreateWithFlags(&event, cudaEventDefault));
    well(cudaMalloc(&of_device, 100));
    well(cudaHostAlloc(&of_host, 100, cudaHostAllocDefault));
  }
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  ~device() {
    (void)cudaFree(of_device), (void)cudaFreeHost(of_host);
    (void)cudaEventDestroy(event);
    (void)cudaStreamDestroy(a), (void)cudaStreamDestroy(b);
  }
  unsigned char* device_bytes() const { return static_cast<unsigned char*>(of_device); }
  unsigned char* host_bytes() const { return static_cast<unsigned char*>(of_host); }
};

/// What a child that does f says when it ends by SIGABRT.
std::string said_by(const std::function<void()>& f) {
  const test::ended_child child = test::child_of([&] { return f(), 0; });
  BOOST_TEST(WIFSIGNALED(child.status));
  BOOST_TEST(WTERMSIG(child.status) == SIGABRT);
  return child.said;
}
void is_in(const std::string& part, const std::string& all) {
  BOOST_TEST(all.find(part) != std::string::npos, part << " is not in: " << all);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_copy_is_there_when_somebody_has_waited) {
  const device d;
  well(cudaMemsetAsync(d.of_device, 7, 100, d.a));
  well(cudaMemcpyAsync(d.of_host, d.of_device, 100, cudaMemcpyDeviceToHost, d.a));
  BOOST_TEST(d.host_bytes()[0] == 0xff);
  well(cudaStreamSynchronize(d.a));
  BOOST_TEST(d.host_bytes()[0] == 7);
  BOOST_TEST(d.host_bytes()[99] == 7);
  BOOST_TEST(stand_in::count().done == 2);
}

BOOST_AUTO_TEST_CASE(pinned_memory_is_read_late_and_other_memory_at_once) {
  const device d;
  unsigned char pageable[100];
  std::memset(pageable, 1, 100), std::memset(d.of_host, 1, 100);
  void* other = nullptr;
  well(cudaMalloc(&other, 100));
  well(cudaMemcpyAsync(d.of_device, pageable, 100, cudaMemcpyHostToDevice, d.a));
  well(cudaMemcpyAsync(other, d.of_host, 100, cudaMemcpyHostToDevice, d.a));
  std::memset(pageable, 2, 100), std::memset(d.of_host, 2, 100);
  unsigned char of_pageable = 0, of_pinned = 0;
  // Memory of the host that is not pinned is written when the call returns.
  well(cudaMemcpyAsync(&of_pageable, d.of_device, 1, cudaMemcpyDeviceToHost, d.a));
  well(cudaMemcpyAsync(&of_pinned, other, 1, cudaMemcpyDeviceToHost, d.a));
  BOOST_TEST(of_pageable == 1);
  BOOST_TEST(of_pinned == 2);
  well(cudaFree(other));
}

BOOST_AUTO_TEST_CASE(streams_go_on_in_any_order_but_behind_events) {
  std::set<std::string> orders, ordered;
  for (std::uint64_t seed = 1; seed <= 50; ++seed)
    for (const bool with_event : {false, true}) {
      const device d(seed);
      std::string done;
      stand_in::start(d.a, "one", [&] { done += '1'; });
      stand_in::start(d.a, "two", [&] { done += '2'; });
      well(cudaEventRecord(d.event, d.a));
      if (with_event) well(cudaStreamWaitEvent(d.b, d.event, 0));
      stand_in::start(d.b, "three", [&] { done += '3'; });
      well(cudaDeviceSynchronize());
      (with_event ? ordered : orders).insert(done);
    }
  BOOST_TEST(orders.size() == 3);
  BOOST_TEST(ordered.size() == 1);
  BOOST_TEST(ordered.contains("123"));
}

BOOST_AUTO_TEST_CASE(an_event_comes_as_often_as_it_was_recorded) {
  const device d;
  int done = 0;
  well(cudaEventSynchronize(d.event)); // nobody has recorded it
  for (int i = 1; i <= 3; ++i) {
    stand_in::start(d.a, "work", [&] { ++done; });
    well(cudaEventRecord(d.event, d.a));
  }
  well(cudaEventSynchronize(d.event));
  BOOST_TEST(done == 3);
  cudaEvent_t later = nullptr;
  well(cudaEventCreateWithFlags(&later, cudaEventDefault));
  well(cudaEventRecord(later, d.a));
  well(cudaEventSynchronize(later));
  float milliseconds = -1;
  well(cudaEventElapsedTime(&milliseconds, d.event, later));
  BOOST_TEST(milliseconds >= 0);
  well(cudaEventDestroy(later));
}

BOOST_AUTO_TEST_CASE(what_is_wrong_ends_the_process_by_name) {
  const device d;
  is_in("the host looks at memory of the device", said_by([&] { d.device_bytes()[0] = 1; }));
  is_in("written beyond the end", said_by([&] {
          stand_in::start(d.a, "too far", [&] { d.device_bytes()[100] = 1; });
          (void)cudaStreamSynchronize(d.a);
        }));
  is_in("too far", said_by([&] {
          stand_in::start(d.a, "too far", [&] { d.device_bytes()[4096] = 1; });
          (void)cudaStreamSynchronize(d.a);
        }));
  is_in("is left", said_by([&] { stand_in::begin({}); }));
}

BOOST_AUTO_TEST_CASE(memory_that_was_given_back_is_closed) {
  const device d;
  void* p = nullptr;
  well(cudaMalloc(&p, 64));
  stand_in::start(d.a, "the last use", [p] { std::memset(p, 1, 64); });
  well(cudaFree(p)); // waits
  is_in("a use too late", said_by([&] {
          stand_in::start(d.a, "a use too late", [p] { std::memset(p, 1, 64); });
          (void)cudaStreamSynchronize(d.a);
        }));
  BOOST_TEST(cudaFree(p) == cudaErrorInvalidValue);
}

BOOST_AUTO_TEST_CASE(calls_fail_as_they_are_told_to) {
  const device d;
  stand_in::fail("cudaMemsetAsync", cudaErrorInvalidValue, 1);
  well(cudaMemsetAsync(d.of_device, 0, 100, d.a));
  BOOST_TEST(cudaMemsetAsync(d.of_device, 0, 100, d.a) == cudaErrorInvalidValue);
  BOOST_TEST(cudaGetLastError() == cudaErrorInvalidValue);
  BOOST_TEST(cudaGetLastError() == cudaSuccess);
  well(cudaMemsetAsync(d.of_device, 0, 100, d.a));
  void* p = nullptr;
  BOOST_TEST(cudaMalloc(&p, std::size_t{1} << 20) == cudaErrorMemoryAllocation);
  BOOST_TEST(cudaMemsetAsync(d.of_device, 0, 101, d.a) == cudaErrorInvalidValue);
  BOOST_TEST(cudaMemcpyAsync(d.of_host, d.of_host, 1, cudaMemcpyDeviceToHost, d.a) ==
             cudaErrorInvalidValue);
  BOOST_TEST(cudaMemsetAsync(d.of_device, 0, 1, nullptr) == cudaErrorInvalidResourceHandle);
}

BOOST_AUTO_TEST_CASE(a_lost_device_stays_lost) {
  const test::ended_child child = test::child_of([] {
    device d;
    stand_in::lose_device(1);
    (void)cudaMemsetAsync(d.of_device, 0, 100, d.a);
    (void)cudaMemsetAsync(d.of_device, 0, 100, d.a);
    const bool lost = cudaStreamSynchronize(d.a) == cudaErrorLaunchFailure &&
                      cudaMemsetAsync(d.of_device, 0, 100, d.a) == cudaErrorLaunchFailure &&
                      cudaGetLastError() == cudaErrorLaunchFailure &&
                      cudaGetLastError() == cudaErrorLaunchFailure;
    return lost ? 0 : 1;
  });
  BOOST_TEST(child.status == 0);
}
