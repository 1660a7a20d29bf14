// A function with a stack of its own that runs piece by piece on the thread that resumes it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include <ucontext.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MEGACPP_FIBERS_ANNOTATED 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define MEGACPP_FIBERS_ANNOTATED 1
#endif
#if defined(MEGACPP_FIBERS_ANNOTATED)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// swapcontext has the system set the mask of signals at every switch, which takes longer than what a
// fiber does between two of them. Sanitizers know that one alone.
#if defined(__x86_64__) && !defined(MEGACPP_FIBERS_ANNOTATED) && !defined(MEGACPP_SANITIZED)
#define MEGACPP_FIBERS_SWITCH 1
#endif

namespace test {

#if defined(MEGACPP_FIBERS_SWITCH)
/// Leaves the stack of the caller, whose place goes to `from`, for one that was left so before. The six
/// registers that a call must preserve (System V ABI, AMD64, 3.2.1) lie on it; control words of
/// floating point are not switched.
[[gnu::naked, gnu::noinline]] inline void switch_stacks(void** /*from*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
      "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
      "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}
#endif

/// Not copied nor moved: a context holds addresses of itself.
class fiber {
public:
  fiber() : stack_(new std::byte[stack_bytes]) { ::getcontext(&own_); }
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;
  ~fiber() { clean(); }

  /// From here on resume() runs f, which must not throw. What ran before is left where it stood,
  /// without destructors.
  void start(std::function<void()> f) {
    clean();
    f_ = std::move(f);
#if defined(MEGACPP_FIBERS_SWITCH)
    // As switch_stacks leaves it: six registers and where it returns to, here the first function,
    // whose frame lies as if it had been called (the stack is aligned to 16 bytes before a call).
    auto** const top = reinterpret_cast<void**>(stack_.get() + stack_bytes) - 1;
    top[0] = nullptr; // to which nobody returns
    top[-1] = reinterpret_cast<void*>(&fiber::enter);
    std::fill(top - 7, top - 1, nullptr);
    at_ = top - 7;
    return;
#endif
    own_.uc_stack.ss_sp = stack_.get();
    own_.uc_stack.ss_size = stack_bytes;
    own_.uc_link = &caller_;
    ::makecontext(&own_, &fiber::enter, 0);
#if defined(MEGACPP_FIBERS_ANNOTATED)
    own_.uc_stack = {}; // or every switch would clear the red zones of this stack
#endif
  }

  /// Runs f up to its next pause, or to its end.
  void resume() {
    entered_ = this;
#if defined(MEGACPP_FIBERS_ANNOTATED)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack_.get(), stack_bytes);
    ::swapcontext(&caller_, &own_);
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#elif defined(MEGACPP_FIBERS_SWITCH)
    switch_stacks(&caller_at_, at_);
#else
    ::swapcontext(&caller_, &own_);
#endif
  }

  /// On the fiber: back to whoever resumed it.
  void pause() {
#if defined(MEGACPP_FIBERS_ANNOTATED)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, caller_stack_, caller_bytes_);
    ::swapcontext(&own_, &caller_);
    __sanitizer_finish_switch_fiber(fake, &caller_stack_, &caller_bytes_);
#elif defined(MEGACPP_FIBERS_SWITCH)
    switch_stacks(&at_, caller_at_);
#else
    ::swapcontext(&own_, &caller_);
#endif
  }

private:
  static constexpr std::size_t stack_bytes = std::size_t{1} << 18; // touched pages count alone
  static inline fiber* entered_ = nullptr;

  std::unique_ptr<std::byte[]> stack_;
  std::function<void()> f_;
  ucontext_t own_{}, caller_{};
#if defined(MEGACPP_FIBERS_SWITCH)
  void *at_ = nullptr, *caller_at_ = nullptr;
#endif
#if defined(MEGACPP_FIBERS_ANNOTATED)
  const void* caller_stack_ = nullptr;
  std::size_t caller_bytes_ = 0;
#endif

  // Frames that were left have red zones still.
  void clean() {
#if defined(MEGACPP_FIBERS_ANNOTATED)
    ASAN_UNPOISON_MEMORY_REGION(stack_.get(), stack_bytes);
#endif
  }

  static void enter() {
    fiber& me = *entered_;
#if defined(MEGACPP_FIBERS_ANNOTATED)
    __sanitizer_finish_switch_fiber(nullptr, &me.caller_stack_, &me.caller_bytes_);
#endif
    me.f_();
#if defined(MEGACPP_FIBERS_SWITCH)
    me.pause(); // for good: start() makes another beginning
#endif
#if defined(MEGACPP_FIBERS_ANNOTATED)
    __sanitizer_start_switch_fiber(nullptr, me.caller_stack_, me.caller_bytes_);
#endif
  }
};

} // namespace test
