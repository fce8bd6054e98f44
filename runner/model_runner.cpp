#include "runner/model_runner.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include <algorithm>

#include "core/check.h"

namespace strata::runner {
namespace {

constexpr int64_t kFillerRequest = int64_t{1} << 60;

// Matrices in the file's order are freed once they are packed. Their memory goes back before the next layer, the caches and the workspace
// are allocated, so that the peak is what the runner states.
void return_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace

ModelRunner::ModelRunner(const Checkpoint& checkpoint, const std::vector<int64_t>& layers, std::shared_ptr<Device> device, const OpSet& ops,
                         const LayerRegistry& registry, RunnerOptions options)
    : device_(std::move(device)), options_(std::move(options)), stream_(device_) {
  const BatchLimits& limits = options_.layer.limits;
  rope_tables_ = std::make_shared<RopeTables>(device_, limits.max_model_len);
  if (options_.overlap) side_streams_ = std::make_shared<SideStreams>(device_);
  std::vector<std::vector<CacheGroupSpec>> groups;
  int64_t workspace = 0;
  int64_t topk = 0;
  for (int64_t number : layers) {
    layers_.push_back(registry.make({.checkpoint = checkpoint,
                                     .layer = number,
                                     .device = device_,
                                     .ops = ops,
                                     .options = options_.layer,
                                     .rope_tables = rope_tables_,
                                     .communicator = options_.communicator,
                                     .side_streams = side_streams_}));
    kv_scales_.push_back(checkpoint.kv_scale(number));
    return_free_memory();
    groups.push_back(layers_.back()->cache_groups());
    workspace = std::max(workspace, layers_.back()->workspace_bytes());
    topk = std::max(topk, layers_.back()->index_topk());
  }
  std::map<CacheGroup, int64_t> pages = plan_pages(groups, limits, options_.total_positions);
  if (options_.shuffle_pages) {
    for (auto& [group, count] : pages) count = 2 * count + limits.max_num_seqs;  // of the filler requests below
  }
  pool_ = std::make_unique<PagedPool>(device_, groups, pages, options_.fill);
  builder_ = std::make_unique<BatchBuilder>(device_, ops, limits, *pool_, checkpoint.config().sliding_window);
  workspace_ = Tensor(device_, DType::u8, {workspace});
  if (topk > 0) topk_ = Tensor(device_, DType::i32, {limits.max_num_batched_tokens, topk});
  if (options_.fill) device_->fill(workspace_.view().data, *options_.fill, workspace, {});
  if (options_.shuffle_pages) {
    // Requests of one position each take pages; every second one stays, so that later tables are full of holes.
    for (int64_t i = 0; i < 64; ++i) pool_->add_request(kFillerRequest + i);
    int64_t filled = 0;
    while (filled < 64 && pool_->extend(kFillerRequest + filled, 0, 1 + static_cast<int64_t>((options_.seed + filled) % 5))) ++filled;
    for (int64_t i = 0; i < 64; ++i) {
      if (i % 2 == 0 || i >= limits.max_num_seqs) pool_->remove_request(kFillerRequest + i);
    }
  }
  device_->synchronize({});
}

// With a fill byte the pool overwrites the pages it takes back, on the default stream: not while a step reads them, and not while the next
// one writes them.
void ModelRunner::wait_for_steps() {
  if (options_.fill) device_->synchronize(stream());
}
void ModelRunner::wait_for_fills() {
  if (options_.fill) device_->synchronize({});
}

void ModelRunner::add_request(int64_t id) {
  pool_->add_request(id);
  positions_[id] = 0;
}

void ModelRunner::remove_request(int64_t id) {
  wait_for_steps();
  pool_->remove_request(id);
  wait_for_fills();
  positions_.erase(id);
}

const Batch& ModelRunner::begin_step(std::span<const StepRequest> requests, BatchPadding padding) {
  step_.assign(requests.begin(), requests.end());
  std::vector<BatchRequest> batch;
  wait_for_steps();
  const auto extend = [&](int64_t id, int64_t num_tokens) {
    const int64_t position = positions_.at(id);
    if (!pool_->extend(id, position, position + num_tokens)) {
      fail(ErrorCode::out_of_memory, "request {}: no free pages for positions {} to {}", id, position, position + num_tokens);
    }
  };
  for (const auto& [id, position] : positions_) extend(id, 0);  // pages that the windows have left go back
  for (const StepRequest& r : step_) extend(r.id, r.num_tokens);
  wait_for_fills();
  for (const StepRequest& r : step_) {
    BatchRequest& entry = batch.emplace_back();
    entry.query_len = r.num_tokens;
    entry.seq_len = positions_.at(r.id) + r.num_tokens;
    entry.block_tables = pool_->block_tables(r.id);
    entry.id = r.id;
  }
  batch_ = &builder_->build(batch, padding, stream());
  return *batch_;
}

void ModelRunner::run_layer(size_t l, const TensorView& hidden, const TensorView& out, const ForwardArgs& extras) {
  ForwardArgs args = extras;
  args.batch = batch_;
  args.caches = pool_->layer(static_cast<int64_t>(l));
  for (PagedCache& cache : args.caches.caches) {
    if (cache.format == KvFormat::fp8_tensor) cache.scale = kv_scales_[l];
  }
  args.hidden = hidden;
  args.out = out;
  if (layers_[l]->index_topk() > 0) args.topk_indices = topk_.view().columns(0, layers_[l]->index_topk());
  if (args.stream.handle == nullptr) args.stream = stream();
  args.workspace = workspace_of(workspace_);
  layers_[l]->forward(args);
}

void ModelRunner::end_step() {
  for (const StepRequest& r : step_) positions_.at(r.id) += r.num_tokens;
  step_.clear();
}

int64_t ModelRunner::weight_bytes() const {
  int64_t bytes = rope_tables_->allocated_bytes();
  for (const auto& layer : layers_) bytes += layer->weight_bytes();
  return bytes;
}

int64_t ModelRunner::workspace_bytes() const {
  return workspace_.allocated_bytes() + topk_.allocated_bytes() + builder_->allocated_bytes();
}

}  // namespace strata::runner
