// Attention layers: bf16 hidden states in, bf16 hidden states out.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "strata/batch.h"
#include "strata/cache.h"
#include "strata/checkpoint.h"
#include "strata/op_set.h"
#include "strata/parallel.h"
#include "strata/side_streams.h"

// All names of the library.
namespace strata {

// Format of indexer queries and keys.
enum class IndexerFormat : uint8_t {
  fp8,    // e4m3 with one scale per vector of 128 (V4 6.3)
  mxfp4,  // e2m1 with one scale per 32 values (V4 6.4); V4 only
  none,   // unquantised bf16
};

// How prefill tokens of V4 and of sparse MLA layers read their keys. Both modes read the same cached values (V4 13). They differ in the
// order of sums and in rounding softmax probabilities to bf16, by at most 5e-4 of the output's norm (docs/numerics.md).
// Where an MLA layer may gather, the workspace includes max_model_len * (kv_lora_rank + qk_rope_head_dim) bf16 values for the rows.
enum class PrefillMode : uint8_t {
  automatic,  // selects by a rule measured on the device
  gathered,   // dequantise and gather to a bf16 workspace, then attend
  paged,      // attend to the paged caches directly
};

// The form in which a dense MLA layer attends. As functions of exact numbers both forms are equal (MLA 7 and 8). With bf16 weights their
// outputs differ by roundings to bf16, by 5e-3 of their norm. With FP8 weights and quantised activations mha quantises the latent before
// kv_b_proj and mqa does not; outputs then differ by 6e-2 (MLA 17, docs/numerics.md). Against the reference backend in the same mode both
// are within 1.2e-2.
// Sparse layers always use mqa.
enum class MlaMode : uint8_t {
  automatic,  // decode requests use mqa, prefill requests mha
  mha,        // keys and values expanded per head (192/128): new tokens from memory, earlier rows from the cache in chunks.
              // The host decides the number of chunks, so a captured graph is valid for its own step only.
  mqa,        // absorbed queries over the latent cache (576/512)
};

// Options that a layer is made with. A layer refuses options of another family that change results, and ignores those that only say how
// results are computed.
struct LayerOptions {
  BatchLimits limits;  // of the builder whose batches the layer gets
  // Format of the cache of the attention's keys. Absent: the family's default, V4 fp8_ds_mla_v4, MLA bf16. V4 also accepts bf16 and
  // fp8_tensor; MLA also fp8_tensor and fp8_ds_mla.
  std::optional<KvFormat> kv_format{};
  IndexerFormat indexer_format = IndexerFormat::fp8;  // of the indexer's queries and keys, and of the cache of its keys
  bool hadamard = false;                              // apply the Hadamard transform to indexer queries and keys (V4 10.5)
  bool fp8_output = false;                            // V4: quantise the attention output to FP8 before wo_a (V4 15)
  bool quantize_activations = true;                   // quantise activations before FP8 weights (V4 5.2); false: bf16 activations
  PrefillMode prefill_mode = PrefillMode::automatic;  // V4 and sparse MLA layers
  MlaMode mla_mode = MlaMode::automatic;              // dense MLA layers
  // MLA mha: rows of earlier context that are expanded at once; 0: 4096. Bounds the workspace; never changes a result (MLA 7.1).
  int64_t context_chunk_rows = 0;
  bool kv_scale_ue8m0 = false;   // fp8_ds_mla: write power-of-two scales (MLA 9.1)
  bool rotary_embedding = true;  // MLA: false for models without a rotary embedding
  // A request's attention has the same bits alone and in any batch. With PrefillMode::paged or MlaMode::mqa the bits are also the same in
  // chunks of any size. Matrix products are not covered: their order of sums may depend on the number of tokens in the step.
  bool batch_invariant = false;
  int tp_rank = 0;  // this rank, in [0, tp_size)
  int tp_size = 1;  // the number of tensor-parallel ranks
};

// The cache groups of layer `layer`, without loading the layer: for planning an engine's memory. Throws unsupported for a family that this
// library has no layers for.
[[nodiscard]] std::vector<CacheGroupSpec> cache_groups_of_layer(const ModelConfig& config, const LayerOptions& options, int64_t layer);

// Arguments of AttentionLayer::forward. T is Batch::num_tokens, H the number of query heads of this rank.
// Alignment on CUDA: hidden, out and the taps begin at a multiple of the largest power of two, up to 16, that divides all their strides in
// bytes except the last dimension's.
// Views, caches and workspace must not overlap, except that `out` may be `hidden` itself. Only the overlap of `out` and `hidden` is
// checked.
struct ForwardArgs {
  const Batch* batch = nullptr;  // required, except in a dummy run
  // A forward of a rank that has no requests: `batch` is null, no cache is accessed, `out` becomes zero and takes part in the all-reduce
  // (V4 16). Only `stream` and the shape of `hidden` are used besides.
  bool dummy_run = false;
  LayerCaches caches{};  // of this layer, every group of cache_groups()
  TensorView hidden{};   // bf16 [T, hidden_size], already normalised by the block's norm
  TensorView out{};      // bf16 [T, hidden_size], contiguous; written last, so it may be `hidden` itself. Rows of padding become 0
  // Top-k selection: i32 [max_num_batched_tokens, index_topk], one buffer shared by all layers. Required for layers with index_topk() > 0.
  // With skip_topk, and in V3.2 layers without an indexer of their own, the layer reads the stored rows instead of selecting. It still
  // inserts its keys. The caller guarantees valid rows: entries ascend, each is below the token's number of candidates, and -1 fills the
  // rest.
  TensorView topk_indices{};
  bool skip_topk = false;        // read the stored rows of topk_indices instead of selecting
  TensorView llama_4_scaling{};  // f32 [T], MLA only: factor of each token's query after the rotation; absent: none (MLA 6.4)
  // Optional outputs: the rotated queries, and the attention output (V4: before the inverse rotation). Absent: kept in the workspace.
  TensorView q_tap{};         // bf16 [T, H, D]: V4 512, MLA P + R = 192
  TensorView attn_out_tap{};  // bf16 [T, H, D]: V4 512, MLA V = 128
  // At least workspace_bytes() bytes, aligned to 256. One per concurrent forward.
  Workspace workspace{};
  Stream stream{};  // of the layer's device
};

// One loaded attention layer. Made by LayerRegistry::make; owns its weights on the device.
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  // The layer's number in the model; MTP layer j is num_hidden_layers + j.
  virtual int64_t layer_index() const = 0;
  virtual int32_t compress_ratio() const = 0;  // 1, 4 or 128; MLA: 1
  virtual std::string kind() const = 0;        // "window", "c4", "c128", "mla", "mla_sparse"
  virtual int64_t hidden_size() const = 0;     // width of the hidden states
  virtual int64_t num_heads() const = 0;       // query heads of this rank
  virtual int64_t index_topk() const = 0;      // 0: the layer attends to every position and needs no topk_indices
  // Caches that forward needs, as cache_groups_of_layer() states them.
  [[nodiscard]] virtual std::vector<CacheGroupSpec> cache_groups() const = 0;
  [[nodiscard]] virtual int64_t weight_bytes() const = 0;  // device memory of the weights, derived tables included
  // Workspace that is enough for every forward within the limits.
  [[nodiscard]] virtual int64_t workspace_bytes() const = 0;
  // Enqueues the layer's work on args.stream and returns; on a CPU the work is done on return. `args` may be destroyed on return. The
  // memory of its views, the batch and the layer must stay valid until the stream has finished the work. A batch of no tokens is allowed.
  // Throws invalid_argument (views, caches or a batch that do not fit the layer) or workspace_too_small before anything is written;
  // device_failure. Messages begin with the layer, "layer 3 (c4)". They name the request concerned, or all requests of the step, where the
  // batch has ids (BatchRequest::id).
  // Threads: one call at a time per layer, and per set of layers that share side streams. Other layers may run on other threads and
  // streams, each with its own workspace.
  virtual void forward(const ForwardArgs& args) = 0;
};

// Constant tables on the device, shared by all layers of a model: rotary tables are large and equal for most layers. Not thread-safe.
class RopeTables {
 public:
  // Throws invalid_argument for a null device and max_positions outside [1, 2^24].
  RopeTables(std::shared_ptr<Device> device, int64_t max_positions);
  // The device of the tables.
  const std::shared_ptr<Device>& device() const { return device_; }
  // Rows of every table: positions [0, max_positions).
  int64_t max_positions() const { return max_positions_; }
  // f32 [max_positions, config.dim]: build_rope_table(config), built on the first call. The memory lives as long as this object.
  [[nodiscard]] TensorView get(const RopeConfig& config);
  // i32 [max_positions + 1], element n is n: device-side lengths for values known on the host, without a copy.
  [[nodiscard]] TensorView numbers();
  // Bytes of the tables built so far.
  [[nodiscard]] int64_t allocated_bytes() const;

 private:
  std::shared_ptr<Device> device_;
  int64_t max_positions_;
  std::vector<std::pair<RopeConfig, Tensor>> tables_;
  Tensor numbers_;
};

// What a layer is made from. The references must stay valid until make() returns; the layer shares ownership of the rest.
struct LayerContext {
  const Checkpoint& checkpoint;                  // has the layer's weights
  int64_t layer = 0;                             // its number; MTP layer j is num_hidden_layers + j
  std::shared_ptr<Device> device{};              // weights are loaded here
  const OpSet& ops;                              // copied by the layer
  const LayerOptions& options;                   // copied by the layer
  std::shared_ptr<RopeTables> rope_tables{};     // on `device`; at least limits.max_model_len positions
  std::shared_ptr<Communicator> communicator{};  // of the options' rank and size; null: `out` is the rank's partial sum
  std::shared_ptr<SideStreams> side_streams{};   // null: all work runs in order on the call's stream
};

// Makers of layers, keyed by the config's architecture, else by its model_type. A registry is a value: callers may add their own layers.
class LayerRegistry {
 public:
  // Makes the layer of a context. Throws as make() does.
  using Maker = std::function<std::unique_ptr<AttentionLayer>(const LayerContext&)>;
  // Replaces an earlier maker of the same name. Throws invalid_argument for an empty name or maker.
  void register_layer(const std::string& architecture, Maker maker);
  // Throws unsupported, listing the known names, for an architecture without a maker; invalid_argument for unknown names in Config::force
  // (check_forced). The library's layers also throw invalid_argument for a context that contradicts itself or the model, unsupported for
  // options and shapes that no implementation takes, invalid_file for weights that are missing or malformed, out_of_memory.
  [[nodiscard]] std::unique_ptr<AttentionLayer> make(const LayerContext& context) const;
  // Architectures and model_types that have a maker.
  std::vector<std::string> names() const;

 private:
  std::vector<std::pair<std::string, Maker>> makers_;
};
// The layers of supported_models().
[[nodiscard]] LayerRegistry default_layers();

}  // namespace strata
