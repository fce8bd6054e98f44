// What a model's attention layers take of a device, counted without loading their weights.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "strata/attention.h"

namespace strata::runner {

struct PlannedKind {
  int64_t layers = 0;
  int64_t weight_bytes = 0;
  int64_t workspace_bytes = 0;  // of the layer that takes most
};

// Bytes of one rank: what ModelRunner allocates within the same limits, caches apart.
struct PlannedMemory {
  std::map<std::string, PlannedKind> kinds;  // by AttentionLayer::kind()
  int64_t rope_table_bytes = 0;
  int64_t layer_workspace_bytes = 0;  // one for all layers
  int64_t topk_bytes = 0;             // the buffer of selected positions
  int64_t metadata_bytes = 0;         // of a step, on the device

  int64_t weight_bytes() const;
  int64_t workspace_bytes() const { return layer_workspace_bytes + topk_bytes + metadata_bytes; }
};

// Layers that take the same bytes.
struct AlikeLayers {
  int64_t layer = 0;  // one of them
  int64_t count = 1;
};

class PlannedModel {
 public:
  // The layers that the checkpoint has tensors of, in the types that it has.
  PlannedModel(Checkpoint checkpoint, std::shared_ptr<Device> device);
  // All layers of a config, those that predict further tokens included, in the types of the official checkpoints.
  PlannedModel(const ModelConfig& config, std::shared_ptr<Device> device);
  PlannedModel(PlannedModel&&) noexcept;
  ~PlannedModel();

  const ModelConfig& config() const;
  // Its tensors may have no values: for layers on device() alone.
  const Checkpoint& checkpoint() const { return *checkpoint_; }
  // A PlanningDevice.
  const std::shared_ptr<Device>& device() const { return device_; }
  const std::vector<int64_t>& layers() const { return layers_; }
  // Cache groups of each of layers().
  std::vector<std::vector<CacheGroupSpec>> cache_groups(const LayerOptions& options) const;
  // Makes every layer, so it refuses what a run would refuse.
  PlannedMemory memory(const LayerOptions& options) const;
  // Groups of layers that take the same weights and workspace with these options, for plans of many limits.
  std::vector<AlikeLayers> alike(const LayerOptions& options) const;
  // The same as memory(options), from one layer of each group.
  PlannedMemory memory(const LayerOptions& options, const std::vector<AlikeLayers>& groups) const;

 private:
  struct Shapes;
  std::vector<AlikeLayers> each_alone() const;
  template <class F>
  int64_t make_layers(const LayerOptions& options, const std::vector<AlikeLayers>& groups, F&& f) const;

  std::unique_ptr<Shapes> shapes_;  // null: a checkpoint with tensors
  std::unique_ptr<Checkpoint> checkpoint_;
  std::shared_ptr<Device> device_;
  std::vector<int64_t> layers_;
};

}  // namespace strata::runner
