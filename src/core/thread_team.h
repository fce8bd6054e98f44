// The host's threads: one team for the whole process, whose workers are shared by all callers.
//
// A caller works on its own job and never waits for a worker that has not begun. On a machine whose cores other programs keep busy, a job
// takes what the threads that got a core need. Waiting threads poll for work, then yield their core, then sleep. If a yield shows that
// others need the core, they sleep at once for a while. So an idle machine has the speed of spinning threads, and a busy one that of
// sleeping threads. (OpenMP's runtime has one policy for both, which must be chosen before the program starts.)
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace strata {

// Cores that the process may run on.
int available_cores();

// The index of this thread in its current job, in [0, threads); 0 outside jobs.
int thread_index();

// Calls work(context, i) once for every i in [0, count), on the calling thread and at most threads - 1 others; returns when all are done.
// Inside a job the calling thread does all of it. Any number of threads may call concurrently. work must not throw.
using JobFunction = void (*)(void* context, int64_t i) noexcept;
void run_job(int64_t count, int threads, JobFunction work, void* context);

// f(i) for i in [0, count). f must not throw.
template <class F>
void for_each_of(int64_t count, int threads, F&& f) {
  using Function = std::remove_reference_t<F>;
  run_job(
      count, threads, [](void* context, int64_t i) noexcept { (*static_cast<Function*>(context))(i); },
      const_cast<void*>(static_cast<const void*>(std::addressof(f))));
}

}  // namespace strata
