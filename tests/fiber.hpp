// A fiber: a function with a stack of its own, which runs piece by piece on the thread that resumes
// it.
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

// swapcontext sets the signal mask by a system call at every switch, which takes longer than the
// work of a fiber between two switches. Sanitizers know no other way.
#if defined(__x86_64__) && !defined(MEGACPP_FIBERS_ANNOTATED) && !defined(MEGACPP_SANITIZED)
#define MEGACPP_FIBERS_SWITCH 1
#endif

namespace test {

#if defined(MEGACPP_FIBERS_SWITCH)
/// Switches from the stack of the caller, whose position is stored in `from`, to a stack that was
/// left in the same way. The six registers that a call must preserve (System V ABI, AMD64, 3.2.1)
/// are kept on the stack; the control words of floating point are not switched.
[[gnu::naked, gnu::noinline]] inline void switch_stacks(void** /*from*/, void* /*to*/) {
  asm volatile(
      "pushq %rbp\n\tpushq %rbx\n\tpushq %r12\n\tpushq %r13\n\tpushq %r14\n\tpushq %r15\n\t"
      "movq %rsp, (%rdi)\n\tmovq %rsi, %rsp\n\t"
      "popq %r15\n\tpopq %r14\n\tpopq %r13\n\tpopq %r12\n\tpopq %rbx\n\tpopq %rbp\n\tret");
}
#endif

/// A fiber cannot be copied or moved, because its context holds addresses of itself.
class fiber {
public:
  fiber() : stack_(new std::byte[stack_bytes]) { ::getcontext(&own_); }
  fiber(const fiber&) = delete;
  fiber& operator=(const fiber&) = delete;
  ~fiber() { clean(); }

  /// Makes resume() run f, which must not throw. A function that ran before is dropped, without
  /// calling destructors.
  void start(std::function<void()> f) {
    clean();
    f_ = std::move(f);
#if defined(MEGACPP_FIBERS_SWITCH)
    // The stack looks as switch_stacks leaves one: six registers and the address to return to. Here
    // it is the first function, whose frame lies as if it had been called (a stack is aligned to 16
    // bytes before a call).
    auto** const top = reinterpret_cast<void**>(stack_.get() + stack_bytes) - 1;
    top[0] = nullptr; // no function returns there
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
    own_.uc_stack = {}; // otherwise every switch would clear red zones
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

  /// Returns to the function that resumed the fiber. It is called on the fiber.
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
  static constexpr std::size_t stack_bytes = std::size_t{1} << 18; // only touched pages take memory
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

  // Clears the red zones of frames that were dropped.
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
    me.pause(); // the function has ended; start() sets another one
#endif
#if defined(MEGACPP_FIBERS_ANNOTATED)
    __sanitizer_start_switch_fiber(nullptr, me.caller_stack_, me.caller_bytes_);
#endif
  }
};

} // namespace test
