// Attention layers: hidden states in, hidden states out.
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

namespace strata {

enum class IndexerFormat : uint8_t { fp8, mxfp4, none };  // none: unquantised (bf16) indexer queries and keys

// How prefill tokens of V4 and of sparse MLA layers read their keys. The result is the same (V4 13): of the same cached values, up to the
// order of sums and the rounding of attention's probabilities to bf16, at most 5e-4 of the output's norm (docs/numerics.md). Where rows of
// an MLA request may be gathered, max_model_len * (kv_lora_rank + qk_rope_head_dim) bf16 of the workspace are theirs.
enum class PrefillMode : uint8_t {
  automatic,  // the device's measured rule
  gathered,   // dequantise and gather to a bf16 workspace, then attend
  paged,      // attend to the paged caches directly
};

// In which form a dense MLA layer attends. The result is the same (MLA 7 and 8) as a function of exact numbers, and with bf16 weights up to
// roundings to bf16: outputs are 5e-3 of their norm apart. With FP8 weights and quantised activations mha quantises the latent before
// kv_b_proj and mqa does not: 6e-2 apart (MLA 17, docs/numerics.md). Against the reference backend in the same mode both are within 1.2e-2.
// Sparse layers always take mqa.
enum class MlaMode : uint8_t {
  automatic,  // decode requests mqa, prefill requests mha
  mha,        // expanded keys and values per head (192/128): new tokens from memory, earlier ones from the cache in chunks whose number
              // the host decides: no graph of such a step is good for another
  mqa,        // absorbed queries over the latent cache (576/512)
};

// Of another family's options those that change results are refused; those that say how they are computed are of no account.
struct LayerOptions {
  BatchLimits limits;
  // Of the attention's keys. Absent: the family's own, V4 fp8_ds_mla_v4, MLA bf16. V4 takes bf16 and fp8_tensor too, MLA fp8_tensor and
  // fp8_ds_mla.
  std::optional<KvFormat> kv_format{};
  IndexerFormat indexer_format = IndexerFormat::fp8;
  bool hadamard = false;             // rotate indexer queries and keys (V4 10.5)
  bool fp8_output = false;           // V4: quantise the attention output to FP8 before wo_a (V4 15)
  bool quantize_activations = true;  // FP8 weights take FP8 activations (V4 5.2); false: bf16 activations
  PrefillMode prefill_mode = PrefillMode::automatic;
  MlaMode mla_mode = MlaMode::automatic;
  // MLA mha: rows of earlier context that are expanded at once; 0: 4096. Bounds the workspace, changes no result (MLA 7.1).
  int64_t context_chunk_rows = 0;
  bool kv_scale_ue8m0 = false;   // fp8_ds_mla: write power-of-two scales (MLA 9.1)
  bool rotary_embedding = true;  // MLA: false for models without one
  // A request's attention has the same bits alone and in a batch and, with PrefillMode::paged or MlaMode::mqa, in chunks of any size. Of
  // the matrix products around it that is not promised: they may sum in another order where a step has another number of tokens.
  bool batch_invariant = false;
  int tp_rank = 0;
  int tp_size = 1;
};

// The cache groups of layer `layer`, without loading it: what an engine plans its memory with. Throws unsupported for families without
// layers here.
[[nodiscard]] std::vector<CacheGroupSpec> cache_groups_of_layer(const ModelConfig& config, const LayerOptions& options, int64_t layer);

// On CUDA hidden, out and the taps begin at a multiple of the largest power of two, up to 16, that divides their strides in bytes but the
// last dimension's. No two of views, caches and workspace overlap, but for `out`, which may be `hidden` itself; only between these two it
// is checked.
struct ForwardArgs {
  const Batch* batch = nullptr;  // required, except in a dummy run
  // A forward of a rank that has no requests: `batch` is null, no cache is touched, `out` becomes zero and takes part in the all-reduce
  // (V4 16). Of the rest only `hidden`, for its shape, and `stream` are used.
  bool dummy_run = false;
  LayerCaches caches{};
  TensorView hidden{};  // bf16 [T, hidden_size], already normalised by the block's norm
  TensorView out{};     // bf16 [T, hidden_size], contiguous; may be `hidden` itself: it is written last. Rows of padding become 0
  // i32 [max_num_batched_tokens, index_topk], one buffer for all layers, for layers with index_topk() > 0. With skip_topk, and in V3.2
  // layers that have no indexer of their own, the layer reads the rows that are there instead of selecting. Keys are written all the same.
  // Entries that are read are the caller's promise: ascending, each below the token's number of candidates, -1 behind.
  TensorView topk_indices{};
  bool skip_topk = false;
  TensorView llama_4_scaling{};  // f32 [T], MLA only: multiplies each token's query after the rotation; absent: none (MLA 6.4)
  // Where to leave the rotated queries and the attention output (V4: before the inverse rotation); absent: in the workspace.
  TensorView q_tap{};         // bf16 [T, H, D]: V4 512, MLA P + R = 192
  TensorView attn_out_tap{};  // bf16 [T, H, D]: V4 512, MLA V = 128
  Workspace workspace{};
  Stream stream{};
};

class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;
  virtual int64_t layer_index() const = 0;
  virtual int32_t compress_ratio() const = 0;  // 1, 4, 128; MLA: 1
  virtual std::string kind() const = 0;        // "window", "c4", "c128", "mla", "mla_sparse"
  virtual int64_t hidden_size() const = 0;
  virtual int64_t num_heads() const = 0;   // of this rank
  virtual int64_t index_topk() const = 0;  // 0: attends to everything, needs no topk_indices
  [[nodiscard]] virtual std::vector<CacheGroupSpec> cache_groups() const = 0;
  [[nodiscard]] virtual int64_t weight_bytes() const = 0;  // device memory held, tables included
  // Bytes that every forward within the limits can run with.
  [[nodiscard]] virtual int64_t workspace_bytes() const = 0;
  // Puts the layer's work on args.stream and returns; on a CPU it is done then. args may go; what their views point to, the batch and the
  // layer itself stay until the stream has reached the work. Throws invalid_argument (views, caches, batch that do not fit the layer) or
  // workspace_too_small before anything is written, device_failure; what the library throws begins with "layer 3 (c4)", and names the
  // request that it is about, or those of the step, where the batch has their ids (BatchRequest::id). One call of a layer, and of layers
  // that share side streams, at a time; other layers may run on other threads and streams, with workspaces of their own. A batch of no
  // tokens is fine.
  virtual void forward(const ForwardArgs& args) = 0;
};

// Rotary tables are large and equal for most layers: one cache of device constants per model. Not for several threads at once.
class RopeTables {
 public:
  // Throws invalid_argument for a null device and max_positions outside [1, 2^24].
  RopeTables(std::shared_ptr<Device> device, int64_t max_positions);
  const std::shared_ptr<Device>& device() const { return device_; }
  int64_t max_positions() const { return max_positions_; }
  // f32 [max_positions, config.dim]: build_rope_table of the config, made on the first call. The memory lives as long as this object.
  [[nodiscard]] TensorView get(const RopeConfig& config);
  // i32 [max_positions + 1]: 0, 1, 2, ... Lengths on the device that the host chose, without a copy: element n is n.
  [[nodiscard]] TensorView numbers();
  [[nodiscard]] int64_t allocated_bytes() const;

 private:
  std::shared_ptr<Device> device_;
  int64_t max_positions_;
  std::vector<std::pair<RopeConfig, Tensor>> tables_;
  Tensor numbers_;
};

// References need to live until the layer is made; the rest the layer shares.
struct LayerContext {
  const Checkpoint& checkpoint;
  int64_t layer = 0;
  std::shared_ptr<Device> device{};
  const OpSet& ops;
  const LayerOptions& options;
  std::shared_ptr<RopeTables> rope_tables{};     // on `device`, at least limits.max_model_len positions
  std::shared_ptr<Communicator> communicator{};  // of the options' rank and size; null: the rank's partial sum is left in `out`
  std::shared_ptr<SideStreams> side_streams{};   // null: everything runs on the stream of the call, in order
};

// Makers of layers by the config's architecture (or, failing that, model_type). Open to callers: a registry is a value, not a global.
class LayerRegistry {
 public:
  using Maker = std::function<std::unique_ptr<AttentionLayer>(const LayerContext&)>;
  // Replaces an earlier one of the same name. Throws invalid_argument for an empty name or maker.
  void register_layer(const std::string& architecture, Maker maker);
  // Throws unsupported listing the known names, invalid_argument for names in Config::force that are not known (check_forced). The layers
  // here throw invalid_argument for a context that contradicts itself or the model,
  // unsupported for options and shapes that no implementation takes, invalid_file for weights that are missing or cannot be, out_of_memory.
  [[nodiscard]] std::unique_ptr<AttentionLayer> make(const LayerContext& context) const;
  std::vector<std::string> names() const;

 private:
  std::vector<std::pair<std::string, Maker>> makers_;
};
[[nodiscard]] LayerRegistry default_layers();

}  // namespace strata
