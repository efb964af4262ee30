// What waits: threads of the system in a futex, fibers by giving their turn to others.
//
// A fiber is a CUDA thread with a stack of its own that one thread of the system enters in turn with the others.

#ifndef CUDA_ON_HOST_FIBERS_H_
#define CUDA_ON_HOST_FIBERS_H_

#include <linux/futex.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <vector>

#include "cuda_on_host.h"

namespace cuda_on_host {

using Word = std::atomic<std::uint32_t>;

const std::size_t kFiberStackBytes = 1 << 17;

class Fibers;
inline thread_local Fibers* fibers = nullptr;  // those that this thread of the system runs

// One CUDA thread that runs in turn with others.
struct Fiber {
  ucontext_t beginning;
  jmp_buf resume;
  bool begun = false, ended = false;
  Word* word = nullptr;  // waits until the word has another value
  std::uint32_t value = 0;
  void* stack = nullptr;
  Self* own = nullptr;
  std::function<void()> body;
};

inline std::mutex stack_mutex;
inline std::vector<void*> free_stacks;

inline void* take_stack() {
  const std::lock_guard<std::mutex> lock(stack_mutex);
  if (free_stacks.empty()) {
    void* stack =
        mmap(nullptr, kFiberStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) abort();
    mprotect(stack, 4096, PROT_NONE);
    return stack;
  }
  void* stack = free_stacks.back();
  free_stacks.pop_back();
  return stack;
}

// Runs fibers in turn until all have ended.
class Fibers {
 public:
  void add(std::function<void()> body) {
    fibers_.emplace_back(new Fiber);
    Fiber& fiber = *fibers_.back();
    fiber.body = std::move(body);
    fiber.stack = take_stack();
    getcontext(&fiber.beginning);
    fiber.beginning.uc_stack.ss_sp = fiber.stack;
    fiber.beginning.uc_stack.ss_size = kFiberStackBytes;
    fiber.beginning.uc_link = nullptr;
    makecontext(&fiber.beginning, &Fibers::begin, 0);
  }

  // The order of the fibers changes from round to round, so that results which depend on it differ.
  void run() {
    fibers = this;
    const std::size_t count = fibers_.size();
    std::size_t left = count, stride = 1;
    std::uint32_t random = 12345;
    while (left > 0) {
      random = random * 1664525u + 1013904223u;
      std::size_t i = (random >> 8) % count;
      do stride = (stride + 2 + (random >> 20) % 64) % (2 * count + 1) | 1;
      while (std::gcd(stride, count) != 1);
      for (std::size_t n = 0; n < count; ++n, i = (i + stride) % count) {
        Fiber& fiber = *fibers_[i];
        if (fiber.ended || (fiber.word && fiber.word->load(std::memory_order_acquire) == fiber.value)) continue;
        enter(fiber);
        if (fiber.ended) --left;
      }
    }
    fibers = nullptr;
    const std::lock_guard<std::mutex> lock(stack_mutex);
    for (auto& fiber : fibers_) free_stacks.push_back(fiber->stack);
  }

  // Called in a fiber: lets the others run, at least until `word`, if there is one, differs from `value`.
  __attribute__((noinline)) void pause(Word* word, std::uint32_t value) {
    Fiber& fiber = *running_;
    fiber.word = word;
    fiber.value = value;
    fiber.own = self;
    if (!_setjmp(fiber.resume)) _longjmp(between_, 1);
  }

 private:
  static void begin() {
    Fiber& fiber = *fibers->running_;
    fiber.body();
    fiber.ended = true;
    _longjmp(fibers->between_, 1);
  }

  __attribute__((noinline)) void enter(Fiber& fiber) {
    if (_setjmp(between_)) return;
    running_ = &fiber;
    self = fiber.own;
    if (fiber.begun) _longjmp(fiber.resume, 1);
    fiber.begun = true;
    setcontext(&fiber.beginning);
  }

  jmp_buf between_;
  Fiber* running_ = nullptr;
  std::vector<std::unique_ptr<Fiber>> fibers_;
};

inline void sleep_while(Word& word, std::uint32_t value) {
  while (word.load(std::memory_order_acquire) == value) {
    if (fibers)
      fibers->pause(&word, value);
    else
      syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
  }
}

inline void wake_all(Word& word) {
  if (!fibers) syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 0x7fffffff, nullptr, nullptr, 0);
}

inline void give_turn() {
  if (fibers)
    fibers->pause(nullptr, 0);
  else
    sched_yield();
}

}  // namespace cuda_on_host

#endif  // CUDA_ON_HOST_FIBERS_H_
