// Teams: the blocks that have to run at once, their threads and barriers, and what goes wrong there.

#ifndef CUDA_ON_HOST_TEAM_H_
#define CUDA_ON_HOST_TEAM_H_

#include <stdarg.h>

#include <cstdio>
#include <map>
#include <string>

#include "fibers.h"
#include "runtime.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace cuda_on_host {

const std::size_t kGuardBytes = 1024;
const std::uint64_t kUnfinished = std::uint64_t(1) << 32;
const unsigned char kGuardByte = 0xA5;

// Thrown through the kernel to end a thread of a launch that has failed.
struct Stop {};

// What has failed first, and whether anything has.
class Failure {
 public:
  bool happened() const { return happened_.load(std::memory_order_relaxed); }
  // Keeps the first message.
  void report(const std::string& message) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (happened()) return;
    message_ = message;
    happened_.store(true, std::memory_order_relaxed);
  }
  std::string message() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return message_;
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> happened_{false};
  std::string message_;
};

struct Thread;
struct Team;

// A barrier for the threads of `team` that it expects. Threads that have returned are no longer expected.
class Barrier {
 public:
  void reset(Team* team, unsigned expected) {
    const std::lock_guard<std::mutex> lock(mutex_);
    team_ = team;
    expected_ = expected;
    arrived_ = sleeping_ = 0;
    any_ = 0;
    all_ = 1;
  }
  // Waits for all others. `same_line`: all threads of a phase must come from one line. The result has 1 where any value
  // is not 0, and 2 where all are.
  int meet(Thread& thread, Place place, bool same_line, Reduction reduction = Reduction::kNone, int value = 0);
  void leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    --expected_;
    if (arrived_ > 0 && arrived_ == expected_) release();
  }
  void give_up() {
    const std::lock_guard<std::mutex> lock(mutex_);
    phase_.fetch_add(1, std::memory_order_release);
    wake_all(phase_);
  }

 private:
  void release();

  Team* team_ = nullptr;
  std::mutex mutex_;
  Word phase_{0};
  unsigned expected_ = 0, arrived_ = 0, sleeping_ = 0;
  Place first_{};
  int any_ = 0, all_ = 1;
  int reduced_[2] = {0, 0};
};

struct Warp {
  Barrier barrier;
  Shown shown[2][32];
};

struct Block {
  Team* team = nullptr;
  unsigned rank = 0;  // in its cluster
  unsigned cluster = 0;
  unsigned char* allocation = nullptr;
  unsigned char* shared = nullptr;
  std::atomic<unsigned> unfinished{0};
  Barrier barrier;
  std::vector<std::unique_ptr<Warp>> warps;
};

// An asynchronous copy that has not been made yet; `group`: how often copies had been ended before.
struct Copy {
  void* to;
  const void* from;
  unsigned bytes, group;
};

struct Thread : Self {
  Team* team = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  unsigned lane = 0, warp_meetings = 0;
  bool fenced = false;                   // whether a fence stands before the next atomic operation
  const volatile void* touched[4] = {};  // what atomic operations touched last
  unsigned touches = 0;
  std::vector<Copy> copies;
  unsigned copy_groups = 0, copies_started = 0;
  std::atomic<const char*> waits_at{nullptr}, file{nullptr};
  std::atomic<int> line{0};

  void waits(const Place& place) {
    file.store(place.file, std::memory_order_relaxed);
    line.store(place.line, std::memory_order_relaxed);
    waits_at.store(place.what, std::memory_order_relaxed);
  }
};

// An asynchronous store that has not arrived yet.
struct Late {
  void* to;
  unsigned char bytes[64];
  unsigned count;
  Wide* arrivals;
};

// The blocks that run at once, and the threads of them.
struct Team {
  const CudaOnHostLaunch* launch = nullptr;
  Failure* failure = nullptr;
  unsigned slot = 0, block_count = 0;
  std::vector<std::unique_ptr<Block>> blocks;
  std::vector<std::unique_ptr<Barrier>> clusters;
  std::vector<std::unique_ptr<Thread>> threads;
  Word turn{0};  // counts the parts of the grid that this team has begun
  // Threads that have not returned, times 2^32, plus those of them that do not sleep in a barrier. Counting is relaxed
  // where a barrier does it, lest it orders threads which the kernel does not order.
  std::atomic<std::uint64_t> counts{0};
  std::atomic<std::uint64_t> progress{0};
  std::vector<Late> late;  // where fibers run
  unsigned stores = 0;

  void build(const CudaOnHostLaunch* asked, Failure* shared_failure, unsigned own_slot, unsigned blocks_at_once);
  void start(unsigned long long first_block);
  void run(unsigned thread);
  void run_in_turn() {
    Fibers in_turn;
    for (unsigned i = 0; i < threads.size(); ++i) in_turn.add([this, i] { run(i); });
    in_turn.run();
  }
  void leave(Thread& thread);
  void stop();
  [[noreturn]] void fail(const std::string& message) {
    failure->report(message);
    stop();
    throw Stop();
  }
  void stuck() { fail("deadlock: every thread waits or has returned:" + waiting()); }
  std::string waiting() const;
  void check_guards();
  ~Team();
};

std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string text(const char* format, ...) {
  char line[600];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

inline const char* base_name(const char* path) {
  const char* slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

inline std::string name_of(const Place& place) {
  return text("%s at %s:%d", place.what, base_name(place.file), place.line);
}

inline Thread& current() {
  return static_cast<Thread&>(*self);
}

inline std::string name_of(const Thread& thread) {
  return text("block (%u, %u), thread %u", thread.block_index.x, thread.block_index.y, thread.thread_index.x);
}

inline void Barrier::release() {
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  reduced_[phase & 1] = (any_ ? 1 : 0) | (all_ ? 2 : 0);
  any_ = 0;
  all_ = 1;
  arrived_ = 0;
  team_->counts.fetch_add(sleeping_, std::memory_order_relaxed);
  sleeping_ = 0;
  team_->progress.fetch_add(1, std::memory_order_relaxed);
  phase_.store(phase + 1, std::memory_order_release);
  wake_all(phase_);
}

inline int Barrier::meet(Thread& thread, Place place, bool same_line, Reduction reduction, int value) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (team_->failure->happened()) throw Stop();
  const std::uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_ == 0) {
    first_ = place;
  } else if (same_line && (first_.line != place.line || strcmp(first_.file, place.file) != 0)) {
    const Place first = first_;
    lock.unlock();
    team_->fail(text("%s waits in %s while other threads wait in %s", name_of(thread).c_str(), name_of(place).c_str(),
                     name_of(first).c_str()));
  }
  if (reduction != Reduction::kNone) {
    any_ |= value != 0;
    all_ &= value != 0;
  }
  thread.waits(place);
  if (++arrived_ == expected_) {
    release();
  } else {
    ++sleeping_;
    if ((team_->counts.fetch_sub(1, std::memory_order_relaxed) - 1) % kUnfinished == 0) {
      lock.unlock();
      team_->stuck();
    }
  }
  lock.unlock();
  sleep_while(phase_, phase);
  if (team_->failure->happened()) throw Stop();
  thread.waits_at.store(nullptr, std::memory_order_relaxed);
  return reduced_[phase & 1];
}

inline void Team::build(const CudaOnHostLaunch* asked, Failure* shared_failure, unsigned own_slot,
                        unsigned blocks_at_once) {
  launch = asked;
  failure = shared_failure;
  slot = own_slot;
  block_count = blocks_at_once;
  for (unsigned b = 0; b < block_count; ++b) {
    blocks.emplace_back(new Block);
    Block& block = *blocks.back();
    block.team = this;
    block.rank = b % launch->cluster;
    block.cluster = b / launch->cluster;
    if (block.rank == 0) clusters.emplace_back(new Barrier);
    // Guards stand before and behind; AddressSanitizer poisons them, so that the first byte behind is out of bounds.
    void* allocation = nullptr;
    if (posix_memalign(&allocation, kGuardBytes, launch->shared_bytes + 2 * kGuardBytes) != 0) abort();
    block.allocation = static_cast<unsigned char*>(allocation);
    block.shared = block.allocation + kGuardBytes;
    for (unsigned first = 0; first < launch->block; first += 32) block.warps.emplace_back(new Warp);
    for (unsigned t = 0; t < launch->block; ++t) {
      threads.emplace_back(new Thread);
      Thread& thread = *threads.back();
      thread.team = this;
      thread.block = &block;
      thread.warp = block.warps[t / 32].get();
      thread.lane = t % 32;
      thread.thread_index = {t, 0, 0};
      thread.block_size = {launch->block, 1, 1};
      thread.grid_size = {launch->grid_x, launch->grid_y, 1};
    }
  }
}

inline void Team::start(unsigned long long first_block) {
  const unsigned block_threads = launch->block;
  for (unsigned b = 0; b < block_count; ++b) {
    Block& block = *blocks[b];
    const unsigned long long index = first_block + b;
    block.unfinished.store(block_threads);
    block.barrier.reset(this, block_threads);
    for (auto& warp : block.warps) {
      memset(warp->shown, 0, sizeof warp->shown);
      warp->barrier.reset(this, 32);
    }
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(block.allocation, launch->shared_bytes + 2 * kGuardBytes);
#endif
    memset(block.allocation, kGuardByte, kGuardBytes);
    memset(block.shared, static_cast<int>(launch->fill), launch->shared_bytes);
    memset(block.shared + launch->shared_bytes, kGuardByte, kGuardBytes);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(block.allocation, kGuardBytes);
    ASAN_POISON_MEMORY_REGION(block.shared + launch->shared_bytes, kGuardBytes);
#endif
    for (unsigned t = 0; t < block_threads; ++t) {
      Thread& thread = *threads[b * block_threads + t];
      thread.block_index = {static_cast<unsigned>(index % launch->grid_x),
                            static_cast<unsigned>(index / launch->grid_x), 0};
      thread.warp_meetings = 0;
      thread.fenced = false;
      for (const volatile void*& address : thread.touched) address = nullptr;
      thread.waits_at.store(nullptr, std::memory_order_relaxed);
    }
  }
  for (auto& barrier : clusters) barrier->reset(this, block_threads * launch->cluster);
  counts.store(static_cast<std::uint64_t>(threads.size()) * (kUnfinished + 1));
}

// The thread has returned from the kernel: nobody waits for it any more.
inline void Team::leave(Thread& thread) {
  thread.warp->barrier.leave();
  thread.block->barrier.leave();
  clusters[thread.block->cluster]->leave();
  progress.fetch_add(1, std::memory_order_relaxed);
  // A block that has ended gives its shared memory back, whatever its peers still want there.
  if (launch->cluster > 1 && thread.block->unfinished.fetch_sub(1) == 1) {
    for (const Late& store : late) {
      const std::ptrdiff_t offset = static_cast<unsigned char*>(store.to) - thread.block->shared;
      if (offset >= 0 && offset < static_cast<std::ptrdiff_t>(launch->shared_bytes))
        fail(text("%s ends while stores to the shared memory of its block are under way", name_of(thread).c_str()));
    }
    memset(thread.block->shared, kGuardByte, launch->shared_bytes);
#ifdef __SANITIZE_ADDRESS__
    ASAN_POISON_MEMORY_REGION(thread.block->shared, launch->shared_bytes);
#endif
  }
}

inline void Team::run(unsigned index) {
  const unsigned long long all_blocks = static_cast<unsigned long long>(launch->grid_x) * launch->grid_y;
  const unsigned long long step =
      static_cast<unsigned long long>(block_count) * (launch->cooperative ? 1 : launch->together);
  Thread& thread = *threads[index];
  self = &thread;
  for (unsigned long long first = static_cast<unsigned long long>(slot) * block_count; first < all_blocks;
       first += step) {
    try {
      if (failure->happened()) break;
      launch->entry(launch->slots);
      leave(thread);
      const std::uint32_t part = turn.load(std::memory_order_relaxed);
      const std::uint64_t left = counts.fetch_sub(kUnfinished + 1) - (kUnfinished + 1);
      if (left / kUnfinished > 0) {
        if (left % kUnfinished == 0) stuck();
        sleep_while(turn, part);
        continue;
      }
      // The worker that returns last prepares the next part of the grid.
      check_guards();
      if (first + step < all_blocks) start(first + step);
      turn.fetch_add(1, std::memory_order_release);
      wake_all(turn);
    } catch (const Stop&) {
      break;
    }
  }
  self = nullptr;
}

inline void Team::check_guards() {
#ifndef __SANITIZE_ADDRESS__
  for (auto& block : blocks) {
    const unsigned char* behind = block->shared + launch->shared_bytes;
    for (std::size_t i = 0; i < kGuardBytes; ++i) {
      if (block->allocation[i] != kGuardByte)
        fail(text("a thread wrote %zu bytes before the shared memory of its block", kGuardBytes - i));
      if (behind[i] != kGuardByte)
        fail(text("a thread wrote %zu bytes behind the %u bytes of shared memory of its block", i,
                  launch->shared_bytes));
    }
  }
#endif
}

// Wakes every thread; each finds that the launch has failed.
inline void Team::stop() {
  for (auto& block : blocks) {
    block->barrier.give_up();
    for (auto& warp : block->warps) warp->barrier.give_up();
  }
  for (auto& cluster : clusters) cluster->give_up();
  turn.fetch_add(1, std::memory_order_release);
  wake_all(turn);
}

// How many threads of each block wait where.
inline std::string Team::waiting() const {
  std::string report;
  unsigned reported = 0;
  for (std::size_t b = 0; b < blocks.size(); ++b) {
    std::map<std::string, unsigned> places;
    for (unsigned t = 0; t < launch->block; ++t) {
      const Thread& thread = *threads[b * launch->block + t];
      const char* what = thread.waits_at.load(std::memory_order_relaxed);
      if (what)
        ++places[name_of(
            Place{what, thread.file.load(std::memory_order_relaxed), thread.line.load(std::memory_order_relaxed)})];
    }
    if (places.empty() || ++reported > 8) continue;
    const Thread& first = *threads[b * launch->block];
    report += text("\n  block (%u, %u):", first.block_index.x, first.block_index.y);
    for (const auto& place : places)
      report += text(" %u of %u threads in %s;", place.second, launch->block, place.first.c_str());
  }
  return report.empty() ? " no thread waits in a barrier" : report;
}

inline Team::~Team() {
  for (auto& block : blocks) {
#ifdef __SANITIZE_ADDRESS__
    ASAN_UNPOISON_MEMORY_REGION(block->allocation, launch->shared_bytes + 2 * kGuardBytes);
#endif
    free(block->allocation);
  }
}

}  // namespace cuda_on_host

#endif  // CUDA_ON_HOST_TEAM_H_
