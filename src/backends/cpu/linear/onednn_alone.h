// Makes oneDNN single-threaded.
#pragma once

#include <omp.h>

namespace strata::cpu {

// During its lifetime the calling thread runs its oneDNN calls alone. oneDNN would otherwise use a team of OpenMP threads, which spin
// against Strata's threads between calls. The backend divides products into tasks itself (core/thread_team.h). oneDNN takes the size of its
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
