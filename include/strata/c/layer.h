// Attention layers: bf16 hidden states in, bf16 hidden states out.
#ifndef STRATA_C_LAYER_H
#define STRATA_C_LAYER_H

#include "strata/c/batch.h"
#include "strata/c/checkpoint.h"
#include "strata/c/communicator.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Format of indexer queries and keys.
typedef int32_t strata_indexer_format;
enum {
  STRATA_INDEXER_FP8 = 0,    // e4m3 with one scale per vector of 128 (V4 6.3)
  STRATA_INDEXER_MXFP4 = 1,  // e2m1 with one scale per 32 values (V4 6.4); V4 only
  STRATA_INDEXER_NONE = 2    // unquantised bf16
};

// How prefill tokens of V4 and of sparse MLA layers read their keys. Both modes read the same cached values (V4 13). They differ in the
// order of sums and in rounding softmax probabilities to bf16, by at most 5e-4 of the output's norm (docs/numerics.md).
// Where an MLA layer may gather, the workspace includes max_model_len * (kv_lora_rank + qk_rope_head_dim) bf16 values for the rows.
typedef int32_t strata_prefill_mode;
enum {
  STRATA_PREFILL_AUTOMATIC = 0,  // selects by a rule measured on the device
  STRATA_PREFILL_GATHERED = 1,   // dequantise and gather to a bf16 workspace, then attend
  STRATA_PREFILL_PAGED = 2       // attend to the paged caches directly
};

// The form in which a dense MLA layer attends. As functions of exact numbers both forms are equal (MLA 7 and 8). With bf16 weights their
// outputs differ by roundings to bf16, by 5e-3 of their norm. With FP8 weights and quantised activations mha quantises the latent before
// kv_b_proj and mqa does not; outputs then differ by 6e-2 (MLA 17, docs/numerics.md). Against the reference backend in the same mode both
// are within 1.2e-2. Sparse layers always use mqa.
typedef int32_t strata_mla_mode;
enum {
  STRATA_MLA_AUTOMATIC = 0,  // decode requests use mqa, prefill requests mha
  STRATA_MLA_MHA = 1,        // keys and values expanded per head (192/128): new tokens from memory, earlier rows from the cache in chunks.
                             // The host decides the number of chunks, so a captured graph is valid for its own step only.
  STRATA_MLA_MQA = 2         // absorbed queries over the latent cache (576/512)
};

// kv_format of strata_layer_options: the family's default, V4 STRATA_KV_FP8_DS_MLA_V4, MLA STRATA_KV_BF16.
#define STRATA_KV_FAMILY_DEFAULT (-1)

// Options that a layer is made with. A layer refuses options of another family that change results, and ignores those that only say how
// results are computed.
typedef struct strata_layer_options {
  size_t struct_size;                 // sizeof(strata_layer_options)
  const strata_batch_limits* limits;  // of the builder whose batches the layer gets; required
  // Format of the cache of the attention's keys, or STRATA_KV_FAMILY_DEFAULT. V4 also accepts bf16 and fp8_tensor; MLA also fp8_tensor and
  // fp8_ds_mla.
  strata_kv_format kv_format;
  strata_indexer_format indexer_format;  // of the indexer's queries and keys, and of the cache of its keys
  int32_t hadamard;                      // 1: apply the Hadamard transform to indexer queries and keys (V4 10.5)
  int32_t fp8_output;                    // V4: 1: quantise the attention output to FP8 before wo_a (V4 15)
  int32_t quantize_activations;          // 1: quantise activations before FP8 weights (V4 5.2); 0: bf16 activations
  strata_prefill_mode prefill_mode;      // V4 and sparse MLA layers
  strata_mla_mode mla_mode;              // dense MLA layers
  // MLA mha: rows of earlier context that are expanded at once; 0: 4096. Bounds the workspace; never changes a result (MLA 7.1).
  int64_t context_chunk_rows;
  int32_t kv_scale_ue8m0;    // 1: fp8_ds_mla: write power-of-two scales (MLA 9.1)
  int32_t rotary_embedding;  // MLA: 0 for models without a rotary embedding
  // 1: a request's attention has the same bits alone and in any batch. With STRATA_PREFILL_PAGED or STRATA_MLA_MQA the bits are also the
  // same in chunks of any size. Matrix products are not covered: their order of sums may depend on the number of tokens in the step.
  int32_t batch_invariant;
  int32_t tp_rank;  // this rank, in [0, tp_size)
  int32_t tp_size;  // the number of tensor-parallel ranks
} strata_layer_options;
// The family's kv_format, quantize_activations 1, rotary_embedding 1, rank 0 of 1, and otherwise zeros.
static inline strata_layer_options strata_layer_options_default(void) {
  strata_layer_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.kv_format = STRATA_KV_FAMILY_DEFAULT;
  options.quantize_activations = 1;
  options.rotary_embedding = 1;
  options.tp_size = 1;
  return options;
}

// The cache groups of a layer, without loading the layer: for planning an engine's memory. At most `capacity` specs are written; where
// capacity > 0, specs[0].struct_size is given (strata_cache_group_spec_default() sets it) and holds for all of them. *count (may be null)
// is their number, at most STRATA_NUM_CACHE_GROUPS. options->limits is required; its numbers are not checked here. Errors, for options the
// same as of strata_layer_create:
// - STRATA_UNSUPPORTED: a model that this library has no layers for; a kv_format of another family (V4 with STRATA_KV_FP8_DS_MLA); MLA: a
// kv_format, indexer_format, mla_mode or size that its layers do not take.
// - STRATA_INVALID_ARGUMENT: a layer that the model does not have; a number that is no enumerator or flag; a tp_size that does not
// divide heads and o_groups; a tp_rank outside [0, tp_size); fp8_output of MLA; kv_scale_ue8m0 without STRATA_KV_FP8_DS_MLA;
// rotary_embedding 0 of V4.
STRATA_API strata_status strata_cache_groups_of_layer(strata_model_config config, const strata_layer_options* options, int64_t layer,
                                                      strata_cache_group_spec* specs, int64_t capacity, int64_t* count) STRATA_NOEXCEPT;

// Constant tables on the device, shared by all layers of a model: rotary tables are large and equal for most layers. One call runs at a
// time for each set of tables, strata_layer_create with it included. Errors: STRATA_INVALID_ARGUMENT for max_positions outside [1, 2^24].
STRATA_API strata_status strata_rope_tables_create(strata_device device, int64_t max_positions, strata_rope_tables* tables) STRATA_NOEXCEPT;
// Gives the handle back. Layers that were made with the tables keep them. Work on streams that reads the tables may go on.
STRATA_API strata_status strata_rope_tables_destroy(strata_rope_tables tables) STRATA_NOEXCEPT;
// The rotary table of a model's layer: f32 [max_positions, R], row p is cos(p*f[0..R/2)), then sin(p*f[0..R/2)); built on the first call.
// The memory is valid until the tables and the layers made with them are destroyed.
STRATA_API strata_status strata_rope_tables_get(strata_rope_tables tables, strata_model_config config, int64_t layer,
                                                strata_tensor_view* table) STRATA_NOEXCEPT;
// i32 [max_positions + 1], element n is n: device-side lengths for values known on the host, without a copy. Valid as above.
STRATA_API strata_status strata_rope_tables_numbers(strata_rope_tables tables, strata_tensor_view* numbers) STRATA_NOEXCEPT;
// Bytes of the tables built so far.
STRATA_API strata_status strata_rope_tables_allocated_bytes(strata_rope_tables tables, int64_t* bytes) STRATA_NOEXCEPT;

// Side streams, on which layers run work concurrently with the caller's stream, and their events. One set serves all layers of a model,
// because layers run one after the other: one forward at a time uses a set. On a CPU there are none, and all work runs in order.
STRATA_API strata_status strata_side_streams_create(strata_device device, strata_side_streams* streams) STRATA_NOEXCEPT;
// Gives the handle back. Layers that were made with the streams keep them. The last owner waits for the work of the side streams.
STRATA_API strata_status strata_side_streams_destroy(strata_side_streams streams) STRATA_NOEXCEPT;
// 1 where work on the side streams can run concurrently with the caller's stream.
STRATA_API strata_status strata_side_streams_concurrent(strata_side_streams streams, int32_t* concurrent) STRATA_NOEXCEPT;

// What a layer is made from.
typedef struct strata_layer_params {
  size_t struct_size;                   // sizeof(strata_layer_params)
  strata_checkpoint checkpoint;         // has the layer's weights
  int64_t layer;                        // its number; MTP layer j is num_hidden_layers + j
  strata_device device;                 // weights are loaded here
  const strata_layer_options* options;  // required
  strata_rope_tables rope_tables;       // on `device`; at least limits.max_model_len positions
  strata_communicator communicator;     // of the options' rank and size; null: `out` is the rank's partial sum
  strata_side_streams side_streams;     // of `device`; null: all work runs in order on the call's stream
} strata_layer_params;
// A struct of zeros but struct_size.
static inline strata_layer_params strata_layer_params_default(void) {
  strata_layer_params params;
  memset(&params, 0, sizeof params);
  params.struct_size = sizeof params;
  return params;
}
// Loads a layer of a supported model. The layer keeps what it needs alive: device, tables, communicator and side streams. The checkpoint
// may be destroyed afterwards. Errors: STRATA_UNSUPPORTED for a model without layers here, and for options and shapes that no
// implementation takes; STRATA_INVALID_ARGUMENT for params that contradict themselves or the model (strata_cache_groups_of_layer says which
// options give which of the two); STRATA_INVALID_FILE for weights that are missing or malformed; STRATA_OUT_OF_MEMORY.
STRATA_API strata_status strata_layer_create(const strata_layer_params* params, strata_layer* layer) STRATA_NOEXCEPT;
// Gives the handle back, and the weights when no call uses them. Work of its forwards may go on: the memory of the weights is not used
// again before that work is done. A graph that captured a forward must not be launched afterwards. The last owner of side streams waits for
// their work, the last owner of the device for all work of the device.
STRATA_API strata_status strata_layer_destroy(strata_layer layer) STRATA_NOEXCEPT;

// What a layer is. `kind` is valid until the layer is destroyed.
typedef struct strata_layer_info {
  size_t struct_size;       // sizeof(strata_layer_info)
  int64_t layer_index;      // the layer's number in the model; MTP layer j is num_hidden_layers + j
  int32_t compress_ratio;   // 1, 4 or 128; MLA: 1
  const char* kind;         // "window", "c4", "c128", "mla", "mla_sparse"
  int64_t hidden_size;      // width of the hidden states
  int64_t num_heads;        // query heads of this rank
  int64_t index_topk;       // 0: the layer attends to every position and needs no topk_indices
  int64_t weight_bytes;     // device memory of the weights, derived tables included
  int64_t workspace_bytes;  // workspace that is enough for every forward within the limits
} strata_layer_info;
// A struct of zeros but struct_size.
static inline strata_layer_info strata_layer_info_default(void) {
  strata_layer_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  return info;
}
// Fills *info, whose struct_size is given, as strata_layer_info_default() sets it.
STRATA_API strata_status strata_layer_get_info(strata_layer layer, strata_layer_info* info) STRATA_NOEXCEPT;
// Caches that forward needs, as strata_cache_groups_of_layer states them, with its arguments.
STRATA_API strata_status strata_layer_cache_groups(strata_layer layer, strata_cache_group_spec* specs, int64_t capacity,
                                                   int64_t* count) STRATA_NOEXCEPT;

// Arguments of strata_layer_forward. T is num_tokens of the batch, H the number of query heads of this rank.
// Alignment on CUDA: hidden, out and the taps begin at a multiple of the largest power of two, up to 16, that divides all their strides in
// bytes except the last dimension's.
// Views, caches and workspace must not overlap, except that `out` may be `hidden` itself. Only the overlap of `out` and `hidden` is
// checked.
typedef struct strata_forward_args {
  size_t struct_size;          // sizeof(strata_forward_args)
  strata_batch_builder batch;  // the builder, whose last step is the batch; required, except in a dummy run
  // 1: a forward of a rank that has no requests: `batch` is null, no cache is accessed, `out` becomes zero and takes part in the all-reduce
  // (V4 16). Only `stream` and the shape of `hidden` are used besides.
  int32_t dummy_run;
  // The layer's caches, every group of strata_layer_cache_groups: of a pool, or the engine's own.
  strata_pool pool;                         // the pool that has them; null: the fields below
  int64_t pool_layer;                       // the layer's number in the pool; not read without a pool
  const strata_paged_cache* const* caches;  // by group [num_caches]: the group's pages; null: the layer does not have the group
  int64_t num_caches;                       // 0 with a pool
  strata_tensor_view hidden;                // bf16 [T, hidden_size], already normalised by the block's norm
  strata_tensor_view out;  // bf16 [T, hidden_size], contiguous; written last, so it may be `hidden` itself. Rows of padding become 0
  // Top-k selection: i32 [max_num_batched_tokens, index_topk], one buffer shared by all layers. Required for layers with index_topk > 0.
  // With skip_topk, and in V3.2 layers without an indexer of their own, the layer reads the stored rows instead of selecting. It still
  // inserts its keys. The caller guarantees valid rows: entries ascend, each is below the token's number of candidates, and -1 fills the
  // rest.
  strata_tensor_view topk_indices;
  int32_t skip_topk;                   // 1: read the stored rows of topk_indices instead of selecting
  strata_tensor_view llama_4_scaling;  // f32 [T], MLA only: factor of each token's query after the rotation; absent: none (MLA 6.4)
  // Optional outputs: the rotated queries, and the attention output (V4: before the inverse rotation). Absent: kept in the workspace.
  strata_tensor_view q_tap;         // bf16 [T, H, D]: V4 512, MLA P + R = 192
  strata_tensor_view attn_out_tap;  // bf16 [T, H, D]: V4 512, MLA V = 128
  void* workspace;                  // memory of the device, aligned to 256. One per concurrent forward
  int64_t workspace_bytes;          // its size: at least workspace_bytes of strata_layer_info
  strata_stream stream;             // of the layer's device; null: the default stream
} strata_forward_args;
// A struct of zeros but struct_size.
static inline strata_forward_args strata_forward_args_default(void) {
  strata_forward_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  return args;
}
// Enqueues the layer's work on the stream and returns; on a CPU the work is done on return. `args` may be freed on return. The memory of
// its views, of the engine's own caches and of the workspace must stay valid until the stream has finished the work. Layer, pool and
// builder may be destroyed before (their destroy functions say what that waits for). The builder's next build must come after the work on
// its stream. A batch of no tokens is allowed. Errors: STRATA_INVALID_ARGUMENT (views, caches or a batch that do not fit the layer) or
// STRATA_WORKSPACE_TOO_SMALL before anything is written; STRATA_DEVICE_FAILURE; the status of a communicator's function. Texts begin with
// the layer, "layer 3 (c4)". They name the request concerned, or all requests of the step, where the batch has ids. Threads: one call at a
// time per layer, and per set of layers that share side streams. Other layers may run on other threads and streams, each with its own
// workspace.
STRATA_API strata_status strata_layer_forward(strata_layer layer, const strata_forward_args* args) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
