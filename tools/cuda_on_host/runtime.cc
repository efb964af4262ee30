// Runs kernels on the host.
//
// A team is what has to run at once: a block, a cluster, or the whole grid of a cooperative launch. Each CUDA thread of
// a team is either a thread of the system, so that sanitizers see real races, or a fiber, a hundred times faster at
// barriers. The threads of a team run one part of the grid after another.

#include "runtime.h"

#include <pthread.h>
#include <time.h>

#include "team.h"

namespace cuda_on_host {
namespace {

const unsigned kFullMask = 0xffffffffu;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
const std::size_t kStackBytes = 1 << 20;
#else
const std::size_t kStackBytes = 1 << 18;
#endif

// One launch. It is never given back while a thread of it might still run.
struct Run {
  explicit Run(const CudaOnHostLaunch& asked) : launch(asked) {}

  CudaOnHostLaunch launch;
  Failure failure;
  std::vector<std::unique_ptr<Team>> teams;
  std::atomic<unsigned> working{0};
  Word done{0};
};

struct Worker {
  Word jobs{0};
  Run* run = nullptr;
  std::function<void()> job;
};

void* work(void* argument) {
  Worker& worker = *static_cast<Worker*>(argument);
  for (std::uint32_t job = 0;; ++job) {
    sleep_while(worker.jobs, job);
    Run& run = *worker.run;
    worker.job();
    if (run.working.fetch_sub(1) == 1) {
      run.done.store(1, std::memory_order_release);
      wake_all(run.done);
    }
  }
  return nullptr;
}

std::mutex launching;
std::vector<Worker*> pool;  // workers without a job

bool grow_pool(std::size_t size) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  while (pool.size() < size) {
    Worker* worker = new Worker;
    pthread_t thread;
    if (pthread_create(&thread, &attributes, work, worker) != 0) {
      delete worker;
      break;
    }
    pool.push_back(worker);
  }
  pthread_attr_destroy(&attributes);
  return pool.size() >= size;
}

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void sleep_at_most(Word& word, std::uint32_t value, double seconds) {
  timespec time;
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_nsec = static_cast<long>(1e9 * (seconds - static_cast<double>(time.tv_sec)));
  if (word.load(std::memory_order_acquire) == value)
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, &time, nullptr, 0);
}

// Waits for the end. False if some threads did not come back.
bool watch(Run& run, double patience) {
  std::uint64_t seen = 0;
  double since = now(), failed_at = -1.0;
  while (run.done.load(std::memory_order_acquire) == 0) {
    sleep_at_most(run.done, 0, 0.05);
    std::uint64_t progress = 0;
    for (auto& team : run.teams) progress += team->progress.load(std::memory_order_relaxed);
    if (progress != seen) {
      seen = progress;
      since = now();
    }
    if (!run.failure.happened() && now() - since > patience) {
      std::string report;
      for (auto& team : run.teams) report += team->waiting();
      run.failure.report(text("no barrier was passed and no thread returned for %g s:", patience) + report);
    }
    if (!run.failure.happened()) continue;
    if (failed_at < 0.0) failed_at = now();
    for (auto& team : run.teams) team->stop();
    if (now() - failed_at > 5.0) return false;
  }
  return true;
}

}  // namespace

__thread Self* self = nullptr;

int wait_block(Place place, Reduction reduction, int value) {
  Thread& thread = current();
  thread.fenced = false;  // a fence covers what its own thread has seen, and the barrier brings more
  Barrier& barrier = thread.block->barrier;
  const std::uint32_t phase = barrier.arrive(thread, place, true, reduction, value, true);
  barrier.wait(thread, phase);
  return reduction == Reduction::kAnd ? barrier.reduced(phase) >> 1 & 1 : barrier.reduced(phase) & 1;
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
  const std::uint32_t phase = warp.barrier.arrive(thread, place, true, Reduction::kNone, 0, true);
  warp.barrier.wait(thread, phase);
  return shown;
}

void wait_grid(Place place) {
  Thread& thread = current();
  if (!thread.team->launch->cooperative) thread.team->fail(name_of(place) + " in a launch that is not cooperative");
  const std::uint32_t phase = thread.team->grid.arrive(thread, place, false, Reduction::kNone, 0, true);
  thread.team->grid.wait(thread, phase);
}

void arrive_cluster(Place place) {
  Thread& thread = current();
  if (thread.arrived_at_cluster)
    thread.team->fail(name_of(thread) + ": " + name_of(place) + " before a wait for the last arrival");
  thread.arrived_at_cluster = true;
  thread.cluster_phase =
      thread.team->clusters[thread.block->cluster]->arrive(thread, place, false, Reduction::kNone, 0, false);
}

void wait_cluster(Place place) {
  Thread& thread = current();
  if (!thread.arrived_at_cluster) thread.team->fail(name_of(thread) + ": " + name_of(place) + " without an arrival");
  Barrier& barrier = *thread.team->clusters[thread.block->cluster];
  barrier.wait_later(thread, place, thread.cluster_phase);
  thread.arrived_at_cluster = false;
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

unsigned cluster_rank() {
  return current().block->rank;
}

unsigned cluster_blocks() {
  return current().team->launch->cluster;
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
  timespec time = {0, static_cast<long>(nanoseconds < 20000 ? 20000 : nanoseconds)};
  nanosleep(&time, nullptr);
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
  if (!grow_pool(jobs.size())) {
    snprintf(message, capacity, "the launch needs %zu threads at once; the system gives %zu", jobs.size(), pool.size());
    delete run;
    return 1;
  }
  run->working.store(static_cast<unsigned>(jobs.size()));
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    pool[i]->run = run;
    pool[i]->job = std::move(jobs[i]);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    pool[i]->jobs.fetch_add(1, std::memory_order_release);
    wake_all(pool[i]->jobs);
  }
  const bool back = watch(*run, launch->patience);
  const bool failed = run->failure.happened();
  if (failed) {
    const std::string what = run->failure.message() + (back ? "" : "\n  some threads never stopped");
    snprintf(message, capacity, "%s", what.c_str());
  }
  if (back) {
    delete run;
  } else {
    pool.clear();  // its workers may be busy for ever
  }
  return failed ? 1 : 0;
}

unsigned char (*cuda_on_host_shared_memory())
    [] { return reinterpret_cast<unsigned char (*)[]>(cuda_on_host::current().block->shared); }
