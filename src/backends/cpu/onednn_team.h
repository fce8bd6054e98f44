// How many threads oneDNN's calls of this thread have.
#pragma once

#include <omp.h>

namespace strata::cpu {

// oneDNN takes the team size from OpenMP's per-thread setting, both when it makes a primitive and when it runs one.
class OneDnnTeam {
 public:
  explicit OneDnnTeam(int threads) : before_(omp_get_max_threads()) { omp_set_num_threads(threads); }
  ~OneDnnTeam() { omp_set_num_threads(before_); }
  OneDnnTeam(const OneDnnTeam&) = delete;
  OneDnnTeam& operator=(const OneDnnTeam&) = delete;

 private:
  int before_;
};

}  // namespace strata::cpu
