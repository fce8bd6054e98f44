// oneDNN next to the library's own threads.
#pragma once

#include <omp.h>

namespace strata::cpu {

// While it lives, what the calling thread asks of oneDNN is done by that thread alone. oneDNN would have a team of OpenMP threads, which
// spin against ours between its calls; so the backend cuts products into tasks itself (core/thread_team.h). oneDNN takes the size of its
// team from OpenMP's per-thread setting, both when it makes a primitive and when it runs one.
class OneDnnAlone {
 public:
  OneDnnAlone() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneDnnAlone() { omp_set_num_threads(before_); }
  OneDnnAlone(const OneDnnAlone&) = delete;
  OneDnnAlone& operator=(const OneDnnAlone&) = delete;

 private:
  int before_;
};

}  // namespace strata::cpu
