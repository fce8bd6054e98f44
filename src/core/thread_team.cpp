#include "core/thread_team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

namespace strata {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr int kSpins = 512;  // polls before the first yield, 10 to 30 us: gaps between the jobs of an op are shorter
constexpr int kSpinsWhenBusy = 32;
constexpr Clock::duration kYielding = 5ms;     // then a worker sleeps: longer than the gaps between the ops of a step
constexpr Clock::duration kLongYield = 100us;  // on an idle core a yield takes less than 1 us
constexpr Clock::duration kBusyTime = 100ms;   // how long a long yield is remembered

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

thread_local int t_index = 0;
thread_local bool t_in_job = false;

// Marks the calling thread as working on a job.
class InJob {
 public:
  explicit InJob(int index) : index_before_(t_index), before_(t_in_job) { t_index = index, t_in_job = true; }
  ~InJob() { t_index = index_before_, t_in_job = before_; }
  InJob(const InJob&) = delete;
  InJob& operator=(const InJob&) = delete;

 private:
  int index_before_;
  bool before_;
};

// Whether other programs compete for this machine's cores.
class Load {
 public:
  bool busy() const { return Clock::now().time_since_epoch().count() < busy_until_.load(std::memory_order_relaxed); }
  // Yields the core to any waiting thread, and notices whether one ran.
  void yield() {
    const Clock::time_point before = Clock::now();
    std::this_thread::yield();
    const Clock::time_point after = Clock::now();
    if (after - before > kLongYield) busy_until_.store((after + kBusyTime).time_since_epoch().count(), std::memory_order_relaxed);
  }

 private:
  std::atomic<Clock::rep> busy_until_{Clock::time_point::min().time_since_epoch().count()};
};

// Waits until done(): spins, then yields for at most `longest`, then stops waiting. Returns done().
template <class Done>
bool wait_awake(Load& load, Clock::duration longest, const Done& done) {
  for (int i = load.busy() ? kSpins - kSpinsWhenBusy : 0; i < kSpins; ++i) {
    if (done()) return true;
    pause();
  }
  for (const Clock::time_point begin = Clock::now(); !load.busy() && Clock::now() - begin < longest;) {
    load.yield();
    if (done()) return true;
  }
  return done();
}

// A job that threads may join. A worker sets `inside` before it checks whether the job is open. The caller closes the job before it waits
// for inside to become 0. So whatever a worker of an open job reads stays valid until it leaves.
struct alignas(128) Job {
  JobFunction work = nullptr;
  void* context = nullptr;
  int64_t count = 0;
  int threads = 0;
  alignas(128) std::atomic<int64_t> next{0};
  std::atomic<int> joined{0};
  alignas(128) std::atomic<uint32_t> inside{0};

  void work_on() {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) work(context, i);
  }
};

class Team {
 public:
  void run(int64_t count, int threads, JobFunction work, void* context) {
    const int slot = take_slot();
    if (slot < 0) return run_alone(count, work, context);
    Job& job = jobs_[slot];
    job.work = work, job.context = context, job.count = count, job.threads = threads;
    job.next.store(0, std::memory_order_relaxed);
    job.joined.store(1, std::memory_order_relaxed);
    hire(threads - 1);
    open_.fetch_or(bit(slot));
    wake(threads - 1);
    {
      const InJob in_job(0);
      job.work_on();
    }
    open_.fetch_and(~bit(slot));
    wait_for_workers(job);
    taken_.fetch_and(~bit(slot), std::memory_order_release);
  }

  static void run_alone(int64_t count, JobFunction work, void* context) {
    const InJob in_job(0);
    for (int64_t i = 0; i < count; ++i) work(context, i);
  }

 private:
  static constexpr int kJobs = 64;  // concurrent callers that get help
  static uint64_t bit(int slot) { return uint64_t{1} << slot; }

  int take_slot() {
    uint64_t taken = taken_.load(std::memory_order_relaxed);
    while (taken != ~uint64_t{0}) {
      const int slot = std::countr_one(taken);
      if (taken_.compare_exchange_weak(taken, taken | bit(slot), std::memory_order_acquire)) return slot;
    }
    return -1;
  }

  // The largest job so far decides the number of workers, if the system provides them.
  void hire(int workers) {
    if (workers_.load(std::memory_order_relaxed) >= workers) return;
    const std::lock_guard lock(mutex_);
    while (workers_.load(std::memory_order_relaxed) < workers) {
      try {
        std::thread([this, index = workers_.load(std::memory_order_relaxed)] { be_worker(index); }).detach();
      } catch (const std::system_error&) {
        return;
      }
      workers_.fetch_add(1, std::memory_order_relaxed);
    }
  }

  void wake(int workers) {
    if (sleeping_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    for (int i = std::min(workers, sleeping_.load(std::memory_order_relaxed)); i > 0; --i) wake_.notify_one();
  }

  void wait_for_workers(Job& job) {
    if (wait_awake(load_, kYielding, [&] { return job.inside.load(std::memory_order_acquire) == 0; })) return;
    for (uint32_t inside; (inside = job.inside.load(std::memory_order_acquire)) != 0;) job.inside.wait(inside, std::memory_order_acquire);
  }

  void be_worker(int index) {
    for (;;) {
      if (!wait_awake(load_, kYielding, [&] { return open_.load(std::memory_order_relaxed) != 0; })) sleep();
      if (const uint64_t open = open_.load(); open != 0) join(one_of(open, index));
    }
  }

  // Workers of different indices try different jobs first.
  static int one_of(uint64_t open, int index) {
    for (int skip = index % std::popcount(open); skip > 0; --skip) open &= open - 1;
    return std::countr_zero(open);
  }

  void sleep() {
    std::unique_lock lock(mutex_);
    sleeping_.fetch_add(1);
    wake_.wait(lock, [&] { return open_.load() != 0; });
    sleeping_.fetch_sub(1);
  }

  void join(int slot) {
    Job& job = jobs_[slot];
    job.inside.fetch_add(1);
    if ((open_.load() & bit(slot)) != 0) {
      const int index = job.joined.fetch_add(1, std::memory_order_relaxed);
      if (index + 1 >= job.threads) open_.fetch_and(~bit(slot));  // no other worker can join
      if (index < job.threads) {
        const InJob in_job(index);
        job.work_on();
        open_.fetch_and(~bit(slot));  // no work is left
      }
    }
    if (job.inside.fetch_sub(1, std::memory_order_release) == 1) job.inside.notify_one();
  }

  std::atomic<uint64_t> taken_{0};              // jobs that have a caller
  alignas(128) std::atomic<uint64_t> open_{0};  // jobs that a worker may join
  alignas(128) std::atomic<int> sleeping_{0};
  std::atomic<int> workers_{0};
  Load load_;
  std::mutex mutex_;
  std::condition_variable wake_;
  Job jobs_[kJobs];
};

// Never destroyed: workers wait in it until the process ends. A child after fork() has none of the workers, and gets its own team.
std::atomic<Team*> g_team{nullptr};

Team& team() {
  static const bool made = [] {
    g_team = new Team;
    pthread_atfork(nullptr, nullptr, [] { g_team = new Team; });
    return true;
  }();
  static_cast<void>(made);
  return *g_team.load(std::memory_order_relaxed);
}

}  // namespace

int available_cores() {
#if defined(__linux__)
  static const int cores = [] {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
    return static_cast<int>(std::thread::hardware_concurrency());
  }();
#else
  static const int cores = static_cast<int>(std::thread::hardware_concurrency());
#endif
  return std::max(cores, 1);
}

int thread_index() { return t_index; }

void run_job(int64_t count, int threads, JobFunction work, void* context) {
  if (count <= 0) return;
  threads = static_cast<int>(std::min<int64_t>(threads, count));  // more would have no work
  if (threads <= 1 || t_in_job) return Team::run_alone(count, work, context);
  team().run(count, threads, work, context);
}

}  // namespace strata
