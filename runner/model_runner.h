// Runs a checkpoint's attention layers over paged caches, step by step: what an engine does around the library. Shared by `strata run`,
// `strata replay` and the tests.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "strata/owned_stream.h"
#include "strata/attention.h"

namespace strata::runner {

struct RunnerOptions {
  LayerOptions layer;
  int64_t total_positions = 0;    // positions of all requests together that the caches must hold at once
  bool shuffle_pages = false;     // hand out page numbers in a random order
  std::optional<uint8_t> fill{};  // byte that caches and workspace start with; 0xFF: NaN patterns
  uint64_t seed = 1;
  std::shared_ptr<Communicator> communicator;
  bool overlap = true;  // independent work of a layer on auxiliary streams, where the device has them
};

// What is new in a step for one request.
struct StepRequest {
  int64_t id = 0;
  int64_t num_tokens = 0;
};

class ModelRunner {
 public:
  // layers: layer numbers of the checkpoint.
  ModelRunner(const Checkpoint& checkpoint, const std::vector<int64_t>& layers, std::shared_ptr<Device> device, const OpSet& ops,
              const LayerRegistry& registry, RunnerOptions options);

  AttentionLayer& layer(size_t l) { return *layers_[l]; }
  size_t num_layers() const { return layers_.size(); }

  void add_request(int64_t id);
  void remove_request(int64_t id);
  // As if the positions before it had been computed: for benchmarks, whose caches hold anything there.
  void pretend_position(int64_t id, int64_t position) { positions_.at(id) = position; }
  int64_t position(int64_t id) const { return positions_.at(id); }

  // Pages and metadata of a step, in the order given. The requests' positions advance when the step ends.
  const Batch& begin_step(std::span<const StepRequest> requests, BatchPadding padding = {});
  // hidden and out: bf16 [batch.num_tokens, hidden] on the device. Runs on extras.stream, or on stream().
  void run_layer(size_t l, const TensorView& hidden, const TensorView& out, const ForwardArgs& extras = {});
  void end_step();
  // Of the step that was begun last.
  const Batch& batch() const { return *batch_; }

  const TensorView& topk_indices() const { return topk_.view(); }
  const PagedPool& pool() const { return *pool_; }
  const std::shared_ptr<Device>& device() const { return device_; }
  // What the runner's steps and their copies are put on.
  Stream stream() const { return stream_.get(); }

  int64_t weight_bytes() const;  // layers and rotary tables
  int64_t cache_bytes() const { return pool_->allocated_bytes(); }
  int64_t workspace_bytes() const;  // workspace, batch metadata and top-k buffer

 private:
  void wait_for_steps();
  void wait_for_fills();

  std::shared_ptr<Device> device_;
  RunnerOptions options_;
  std::shared_ptr<RopeTables> rope_tables_;
  std::shared_ptr<SideStreams> side_streams_;
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  std::vector<float> kv_scales_;  // of the layers' per-tensor FP8 caches
  std::unique_ptr<PagedPool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
  Tensor workspace_;
  Tensor topk_;
  std::map<int64_t, int64_t> positions_;
  std::vector<StepRequest> step_;
  const Batch* batch_ = nullptr;
  OwnedStream stream_;  // last: its work is done before what it uses goes away
};

}  // namespace strata::runner
