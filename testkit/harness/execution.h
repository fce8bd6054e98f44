// What running a case needs on any device, whatever the op: a guarded workspace, and looking at memory afterwards.
#pragma once

#include <string>
#include <vector>

#include "testkit/harness/case.h"

namespace strata::testkit {

// A workspace of exactly the required bytes, filled with poison, between guard bytes that must stay unchanged.
class GuardedWorkspace {
 public:
  GuardedWorkspace(std::shared_ptr<Device> device, int64_t bytes);
  Workspace get() const { return workspace_; }
  // Nothing, or which guard was overwritten.
  std::string check() const;

 private:
  std::shared_ptr<Device> device_;
  Tensor memory_;
  Workspace workspace_;
};

// Host copies of every allocation of a run, taken after it.
class Snapshot {
 public:
  explicit Snapshot(const Inputs& inputs);

  HostArray array(const TensorView& view) const;
  // The cache with its data in this snapshot.
  PagedCache cache(const PagedCache& cache) const;
  // Bytes that no output owns and that the run changed: a line, or nothing.
  std::string stray_writes(const std::vector<Output>& outputs) const;

 private:
  struct Place {
    size_t block = 0;
    size_t offset = 0;
  };
  Place find(const void* data) const;

  const Inputs& inputs_;
  std::vector<std::vector<std::byte>> blocks_;
};

// A device of the same id that has no memory: views on it have shapes and null data, as workspace queries do.
std::shared_ptr<Device> shape_only_device(const Device& like);

// Compares the results of two runs of a case. `want` is the reference's, on the host. Returns nothing, or lines.
std::string compare_runs(const Inputs& got_inputs, const std::vector<Output>& got, const Inputs& want_inputs,
                         const std::vector<Output>& want);

}  // namespace strata::testkit
