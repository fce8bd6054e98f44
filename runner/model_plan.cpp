#include "runner/model_plan.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "checkpoint/tensor_plan.h"
#include "core/check.h"
#include "core/planning_device.h"

namespace strata::runner {

int64_t PlannedMemory::weight_bytes() const {
  int64_t bytes = rope_table_bytes;
  for (const auto& [name, kind] : kinds) bytes += kind.weight_bytes;
  return bytes;
}

// Tensors without values. The loader reads the scales of FP8 matrices alone: whether all are powers of two decides which implementations
// take a matrix.
struct PlannedModel::Shapes {
  std::vector<std::byte> scales;
  std::vector<StoredTensor> tensors;

  explicit Shapes(const ModelConfig& config) {
    size_t most = 1;
    for (PlannedTensor& tensor : plan_tensors(config)) {
      if (tensor.content == PlannedTensor::Content::scales) most = std::max(most, tensor.stored.bytes);
      tensors.push_back(std::move(tensor.stored));
    }
    constexpr uint8_t kE8m0One = 127;
    scales.assign(most, std::byte{kE8m0One});
    if (config.family == ModelFamily::deepseek_mla) {
      const float scale = config.scale_ue8m0 ? 1.0f : 0.75f;
      scales.resize((most + sizeof(scale) - 1) / sizeof(scale) * sizeof(scale));
      for (size_t at = 0; at < scales.size(); at += sizeof(scale)) std::memcpy(&scales[at], &scale, sizeof(scale));
    }
    for (StoredTensor& tensor : tensors) tensor.data = scales.data();
  }
};

PlannedModel::PlannedModel(Checkpoint checkpoint, std::shared_ptr<Device> device)
    : checkpoint_(std::make_unique<Checkpoint>(std::move(checkpoint))),
      device_(std::make_shared<PlanningDevice>(std::move(device))),
      layers_(checkpoint_->attention_layers()) {}

PlannedModel::PlannedModel(const ModelConfig& config, std::shared_ptr<Device> device)
    : shapes_(std::make_unique<Shapes>(config)),
      checkpoint_(std::make_unique<Checkpoint>(config, shapes_->tensors)),
      device_(std::make_shared<PlanningDevice>(std::move(device))),
      layers_(checkpoint_->attention_layers()) {}

PlannedModel::PlannedModel(PlannedModel&&) noexcept = default;
PlannedModel::~PlannedModel() = default;

const ModelConfig& PlannedModel::config() const { return checkpoint_->config(); }

std::vector<std::vector<CacheGroupSpec>> PlannedModel::cache_groups(const LayerOptions& options) const {
  std::vector<std::vector<CacheGroupSpec>> groups;
  for (const int64_t layer : layers_) groups.push_back(cache_groups_of_layer(config(), options, layer));
  return groups;
}

// Calls f(layer, count) with one layer of each group, made with the options; returns the bytes of their rotary tables.
template <class F>
int64_t PlannedModel::make_layers(const LayerOptions& options, const std::vector<AlikeLayers>& groups, F&& f) const {
  const OpSet ops = default_ops();
  const LayerRegistry registry = default_layers();
  const auto rope_tables = std::make_shared<RopeTables>(device_, options.limits.max_model_len);
  const auto side_streams = std::make_shared<SideStreams>(device_);
  for (const AlikeLayers& group : groups) {
    f(*registry.make({.checkpoint = *checkpoint_,
                      .layer = group.layer,
                      .device = device_,
                      .ops = ops,
                      .options = options,
                      .rope_tables = rope_tables,
                      .side_streams = side_streams}),
      group.count);
  }
  return rope_tables->allocated_bytes();
}

std::vector<AlikeLayers> PlannedModel::each_alone() const {
  std::vector<AlikeLayers> groups;
  for (const int64_t layer : layers_) groups.push_back({layer, 1});
  return groups;
}

std::vector<AlikeLayers> PlannedModel::alike(const LayerOptions& options) const {
  std::map<std::tuple<std::string, int64_t, int64_t>, AlikeLayers> groups;
  make_layers(options, each_alone(), [&](const AttentionLayer& layer, int64_t) {
    AlikeLayers& group =
        groups.try_emplace({layer.kind(), layer.weight_bytes(), layer.workspace_bytes()}, AlikeLayers{layer.layer_index(), 0})
            .first->second;
    group.count += 1;
  });
  std::vector<AlikeLayers> result;
  result.reserve(groups.size());
  for (const auto& [bytes, group] : groups) result.push_back(group);
  return result;
}

PlannedMemory PlannedModel::memory(const LayerOptions& options) const { return memory(options, each_alone()); }

PlannedMemory PlannedModel::memory(const LayerOptions& options, const std::vector<AlikeLayers>& layer_groups) const {
  PlannedMemory memory;
  int64_t topk = 0;
  memory.rope_table_bytes = make_layers(options, layer_groups, [&](const AttentionLayer& layer, int64_t count) {
    PlannedKind& kind = memory.kinds[layer.kind()];
    const int64_t workspace = layer.workspace_bytes();
    kind.layers += count;
    kind.weight_bytes += count * layer.weight_bytes();
    kind.workspace_bytes = std::max(kind.workspace_bytes, workspace);
    memory.layer_workspace_bytes = std::max(memory.layer_workspace_bytes, workspace);
    topk = std::max(topk, layer.index_topk());
  });
  memory.topk_bytes = options.limits.max_num_batched_tokens * topk * static_cast<int64_t>(sizeof(int32_t));

  std::vector<CacheGroupSpec> specs;
  for (const std::vector<CacheGroupSpec>& of_layer : cache_groups(options)) {
    for (const CacheGroupSpec& spec : of_layer) {
      if (std::none_of(specs.begin(), specs.end(), [&](const CacheGroupSpec& known) { return known.group == spec.group; }))
        specs.push_back(spec);
    }
  }
  const std::vector<int64_t> no_pages(specs.size(), 0);  // their number takes no memory here
  const BatchBuilder builder(device_, default_ops(), options.limits, specs, no_pages, config().sliding_window);
  memory.metadata_bytes = builder.allocated_bytes();
  return memory;
}

}  // namespace strata::runner
