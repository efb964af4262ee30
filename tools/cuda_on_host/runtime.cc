// Runs kernels on the host.
//
// A team is what has to run at once: a block, a cluster, or the whole grid of a cooperative launch. Each CUDA thread of
// a team is either a thread of the system, so that sanitizers see real races, or a fiber, a hundred times faster at
// barriers. The threads of a team run one part of the grid after another.

#include "runtime.h"

#include <chrono>
#include <condition_variable>
#include <system_error>
#include <thread>

#include "team.h"

namespace cuda_on_host {
namespace {

using Clock = std::chrono::steady_clock;

const unsigned kFullMask = 0xffffffffu;
const std::chrono::seconds kLeftToStop(5);

// One launch. It is never given back while a thread of it might still run.
struct Run {
  explicit Run(const CudaOnHostLaunch& asked) : launch(asked) {}

  CudaOnHostLaunch launch;
  Failure failure;
  std::vector<std::unique_ptr<Team>> teams;
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t working = 0;
};

// Starts a thread of the system for each job; nobody joins it, since it may be busy for ever. Between two starts nothing is
// received from those that have begun, lest a sanitizer takes them for ordered.
void start(Run* run, std::vector<std::function<void()>> jobs) {
  run->working = jobs.size();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    try {
      std::thread([run, job = std::move(jobs[i])] {
        job();
        const std::lock_guard<std::mutex> lock(run->mutex);
        if (--run->working == 0) run->ended.notify_all();
      }).detach();
    } catch (const std::system_error&) {
      run->failure.report(text("the launch needs %zu threads at once; the system gives %zu", jobs.size(), i));
      const std::lock_guard<std::mutex> lock(run->mutex);
      run->working -= jobs.size() - i;
      return;
    }
  }
}

// Waits for the end. False if some threads did not come back.
bool watch(Run& run, std::chrono::duration<double> patience) {
  std::uint64_t seen = 0;
  Clock::time_point since = Clock::now(), failed_at{};
  std::unique_lock<std::mutex> lock(run.mutex);
  while (!run.ended.wait_for(lock, std::chrono::milliseconds(50), [&run] { return run.working == 0; })) {
    std::uint64_t progress = 0;
    for (auto& team : run.teams) progress += team->progress.load(std::memory_order_relaxed);
    if (progress != seen) {
      seen = progress;
      since = Clock::now();
    }
    if (!run.failure.happened() && Clock::now() - since > patience) {
      std::string report;
      for (auto& team : run.teams) report += team->waiting();
      const std::string what = text("no barrier was passed and no thread returned for %g s:", patience.count());
      run.failure.report(what + report);
    }
    if (!run.failure.happened()) continue;
    if (failed_at == Clock::time_point{}) failed_at = Clock::now();
    for (auto& team : run.teams) team->stop();
    if (Clock::now() - failed_at > kLeftToStop) return false;
  }
  return true;
}

std::mutex launching;

}  // namespace

__thread Self* self = nullptr;

int wait_block(Place place, Reduction reduction, int value) {
  Thread& thread = current();
  thread.fenced = false;  // a fence covers what its own thread has seen, and the barrier brings more
  const int reduced = thread.block->barrier.meet(thread, place, true, reduction, value);
  return reduction == Reduction::kAnd ? reduced >> 1 & 1 : reduced & 1;
}

const Shown* meet_warp(Place place, unsigned mask, std::uint64_t bits) {
  Thread& thread = current();
  Warp& warp = *thread.warp;
  if (mask != kFullMask)
    thread.team->fail(
        text("%s: %s has mask %#x; only whole warps can meet", name_of(thread).c_str(), name_of(place).c_str(), mask));
  // A lane is one meeting ahead of another at most: two sets of values suffice.
  Shown* shown = warp.shown[++thread.warp_meetings & 1];
  shown[thread.lane] = {bits, thread.warp_meetings};
  warp.barrier.meet(thread, place, true);
  return shown;
}

void wait_cluster(Place place) {
  Thread& thread = current();
  thread.team->clusters[thread.block->cluster]->meet(thread, place, false);
}

unsigned char* shared_memory_of_rank(void* own, unsigned rank) {
  Thread& thread = current();
  Block& block = *thread.block;
  const std::ptrdiff_t offset = static_cast<unsigned char*>(own) - block.shared;
  if (rank >= thread.team->launch->cluster || offset < 0 ||
      offset > static_cast<std::ptrdiff_t>(thread.team->launch->shared_bytes))
    thread.team->fail(text("%s: map_shared_rank(offset %td, rank %u) of %u bytes in a cluster of %u",
                           name_of(thread).c_str(), offset, rank, thread.team->launch->shared_bytes,
                           thread.team->launch->cluster));
  return thread.team->blocks[block.cluster * thread.team->launch->cluster + rank]->shared + offset;
}

namespace {

// What the eight bytes of an mbarrier hold: bytes that have still to come, arrivals that have, of how many, and the parity of
// the phase; the rest is a mark.
struct Phase {
  int bytes;
  unsigned pending, blocks, parity;
};
const Wide kMark = 0x33;

Phase phase_of(Wide word) {
  if (word >> 57 != kMark) current().team->fail(name_of(current()) + ": an mbarrier that has not been initialised");
  return {static_cast<int>(static_cast<std::uint32_t>(word)), static_cast<unsigned>(word >> 32 & 0xfff),
          static_cast<unsigned>(word >> 44 & 0xfff), static_cast<unsigned>(word >> 56 & 1)};
}
Wide word_of(const Phase& phase) {
  return kMark << 57 | Wide(phase.parity) << 56 | Wide(phase.blocks) << 44 | Wide(phase.pending) << 32 |
         static_cast<std::uint32_t>(phase.bytes);
}

// An arrival publishes what its thread has done, but two arrivals are not ordered.
void count_at(Wide* at, int bytes, unsigned arrivals) {
  Thread& thread = current();
  Wide before = __atomic_load_n(at, __ATOMIC_RELAXED), after = 0;
  do {
    Phase phase = phase_of(before);
    if (arrivals > phase.pending)
      thread.team->fail(name_of(thread) + ": an arrival at an mbarrier whose phase has all of its arrivals");
    phase.pending -= arrivals;
    phase.bytes += bytes;
    if (phase.bytes <= -(1 << 20) || phase.bytes >= 1 << 20)
      thread.team->fail(name_of(thread) + ": an mbarrier counts 2^20 bytes or more");
    if (phase.pending == 0 && phase.bytes == 0) phase = {0, phase.blocks, phase.blocks, phase.parity ^ 1};
    after = word_of(phase);
  } while (!__atomic_compare_exchange_n(at, &before, after, false, __ATOMIC_RELEASE, __ATOMIC_RELAXED));
  thread.team->progress.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

void start_arrivals(Wide* own, unsigned blocks) {
  __atomic_store_n(own, word_of({0, blocks, blocks, 0}), __ATOMIC_RELAXED);
}

void arrive(Wide* at, unsigned bytes) {
  count_at(at, static_cast<int>(bytes), 1);
}

// A store may arrive at once, or as late as somebody waits for it. Where fibers run, every second one does the latter; threads
// of the system do the former, and a sanitizer sees who reads too early.
void store_async(void* to, const void* value, unsigned bytes, Wide* arrivals) {
  Thread& thread = current();
  const unsigned alignment = bytes < 16 ? bytes : 16;
  if ((bytes != 4 && bytes != 8 && bytes % 16 != 0) || bytes > sizeof Late().bytes ||
      reinterpret_cast<std::uintptr_t>(to) % alignment != 0)
    thread.team->fail(text("%s: st.async of %u bytes to %p", name_of(thread).c_str(), bytes, to));
  if (fibers && (++thread.team->stores * 2654435761u >> 31) != 0) {
    thread.team->late.push_back({to, {}, bytes, arrivals});
    memcpy(thread.team->late.back().bytes, value, bytes);
    return;
  }
  memcpy(to, value, bytes);
  count_at(arrivals, -static_cast<int>(bytes), 0);
}

// The same of copies: some are made at once, others as late as the thread waits for them.
void copy_async(void* to, const void* from, unsigned bytes) {
  Thread& thread = current();
  const auto place = reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  if ((bytes != 4 && bytes != 8 && bytes != 16) || place % bytes != 0)
    thread.team->fail(text("%s: cp.async of %u bytes from %p to %p", name_of(thread).c_str(), bytes, from, to));
  if (fibers && (++thread.copies_started * 2654435761u >> 31) != 0)
    thread.copies.push_back({to, from, bytes, thread.copy_groups});
  else
    memcpy(to, from, bytes);
}
void end_copies() { ++current().copy_groups; }
void wait_for_copies(unsigned left) {
  Thread& thread = current();
  std::vector<Copy> later;
  for (const Copy& copy : thread.copies) {
    if (copy.group + left < thread.copy_groups)
      memcpy(copy.to, copy.from, copy.bytes);
    else
      later.push_back(copy);
  }
  thread.copies.swap(later);
}

void await_arrivals(Place place, Wide* own, unsigned parity) {
  Thread& thread = current();
  std::vector<Late>& late = thread.team->late;
  thread.waits(place);
  while (true) {
    for (std::size_t i = late.size(); i-- > 0;) {
      if (late[i].arrivals != own) continue;
      const Late store = late[i];
      late.erase(late.begin() + static_cast<std::ptrdiff_t>(i));
      memcpy(store.to, store.bytes, store.count);
      count_at(own, -static_cast<int>(store.count), 0);
    }
    if (phase_of(__atomic_load_n(own, __ATOMIC_ACQUIRE)).parity != parity) break;
    rest(20);
  }
  thread.waits_at.store(nullptr, std::memory_order_relaxed);
}

unsigned cluster_rank() {
  return current().block->rank;
}

void fence() {
  Thread& thread = current();
#ifndef __SANITIZE_THREAD__
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
  // ThreadSanitizer knows no fences. What atomic operations have read before becomes received here, and what stands
  // before the fence is published by those that follow.
  for (const volatile void* address : thread.touched)
    if (address) (void)__atomic_load_n(static_cast<const volatile unsigned*>(address), __ATOMIC_ACQUIRE);
  thread.fenced = true;
}

int order_of_atomic(const volatile void* address) {
  Thread& thread = current();
  if (thread.team->failure->happened()) throw Stop();
  // A loop that waits for another thread must let it run.
  if (++thread.touches % 32 == 0) give_turn();
  thread.touched[thread.touches % 4] = address;
  return thread.fenced;
}

void rest(unsigned nanoseconds) {
  if (current().team->failure->happened()) throw Stop();
  if (fibers) return fibers->pause(nullptr, 0);
  std::this_thread::sleep_for(std::chrono::nanoseconds(nanoseconds < 20000 ? 20000 : nanoseconds));
}

}  // namespace cuda_on_host

extern "C" int cuda_on_host_launch(const CudaOnHostLaunch* launch, char* message, std::uint64_t capacity) {
  using namespace cuda_on_host;
  const std::lock_guard<std::mutex> lock(launching);
  const std::uint64_t blocks = static_cast<std::uint64_t>(launch->grid_x) * launch->grid_y;
  const unsigned at_once = launch->cooperative ? static_cast<unsigned>(blocks) : launch->cluster;
  const std::uint64_t parts = blocks / at_once;
  // The copy lives as long as the threads that look at it.
  Run* run = new Run(*launch);
  run->launch.together = static_cast<std::uint32_t>(parts < launch->together ? parts : launch->together);
  std::vector<std::function<void()>> jobs;
  for (unsigned slot = 0; slot < run->launch.together; ++slot) {
    run->teams.emplace_back(new Team);
    Team* team = run->teams.back().get();
    team->build(&run->launch, &run->failure, slot, at_once);
    team->start(static_cast<unsigned long long>(slot) * at_once);
    if (launch->fibers) jobs.emplace_back([team] { team->run_in_turn(); });
    for (unsigned i = 0; i < team->threads.size() && !launch->fibers; ++i)
      jobs.emplace_back([team, i] { team->run(i); });
  }
  start(run, std::move(jobs));
  const bool back = watch(*run, std::chrono::duration<double>(launch->patience));
  const bool failed = run->failure.happened();
  if (failed) {
    const std::string what = run->failure.message() + (back ? "" : "\n  some threads never stopped");
    snprintf(message, capacity, "%s", what.c_str());
  }
  if (back) delete run;
  return failed ? 1 : 0;
}

unsigned char (*cuda_on_host_shared_memory())
    [] { return reinterpret_cast<unsigned char (*)[]>(cuda_on_host::current().block->shared); }
