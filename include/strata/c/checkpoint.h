// Checkpoints: weights in files of the official format, or in memory.
#ifndef STRATA_C_CHECKPOINT_H
#define STRATA_C_CHECKPOINT_H

#include "strata/c/model_config.h"

#if defined(__cplusplus)
extern "C" {
#endif

// Element type of a tensor in a file: all types of safetensors, in their order, by bits.
typedef int32_t strata_stored_dtype;
enum {
  STRATA_STORED_BOOL = 0,       // "BOOL", one byte
  STRATA_STORED_F4 = 1,         // "F4": e2m1, two to a byte
  STRATA_STORED_F6_E2M3 = 2,    // "F6_E2M3"
  STRATA_STORED_F6_E3M2 = 3,    // "F6_E3M2"
  STRATA_STORED_U8 = 4,         // "U8"
  STRATA_STORED_I8 = 5,         // "I8"
  STRATA_STORED_E5M2 = 6,       // "F8_E5M2"
  STRATA_STORED_E4M3 = 7,       // "F8_E4M3"
  STRATA_STORED_E8M0 = 8,       // "F8_E8M0": a power of two
  STRATA_STORED_E4M3FNUZ = 9,   // "F8_E4M3FNUZ"
  STRATA_STORED_E5M2FNUZ = 10,  // "F8_E5M2FNUZ"
  STRATA_STORED_I16 = 11,       // "I16"
  STRATA_STORED_U16 = 12,       // "U16"
  STRATA_STORED_F16 = 13,       // "F16"
  STRATA_STORED_BF16 = 14,      // "BF16"
  STRATA_STORED_I32 = 15,       // "I32"
  STRATA_STORED_U32 = 16,       // "U32"
  STRATA_STORED_F32 = 17,       // "F32"
  STRATA_STORED_C64 = 18,       // "C64": two f32
  STRATA_STORED_F64 = 19,       // "F64"
  STRATA_STORED_I64 = 20,       // "I64"
  STRATA_STORED_U64 = 21        // "U64"
};
// The name in files: "BF16", "F8_E4M3". Null for a number that is no type. Valid as long as the library is loaded.
STRATA_API const char* strata_stored_dtype_name(strata_stored_dtype dtype) STRATA_NOEXCEPT;
// The type of a name in files. Errors: STRATA_INVALID_ARGUMENT for a name that safetensors does not define.
STRATA_API strata_status strata_stored_dtype_from_name(const char* name, strata_stored_dtype* dtype) STRATA_NOEXCEPT;

// A tensor of a checkpoint: read-only host memory, row-major.
typedef struct strata_stored_tensor {
  size_t struct_size;         // sizeof(strata_stored_tensor)
  const char* name;           // "layers.0.attn.wq_a.weight"
  strata_stored_dtype dtype;  // of every element
  int32_t rank;               // number of dimensions; 0: a scalar
  const int64_t* shape;       // [rank], elements
  const void* data;           // first byte; any alignment
  int64_t bytes;              // size of the data
} strata_stored_tensor;
// A struct of zeros but struct_size.
static inline strata_stored_tensor strata_stored_tensor_default(void) {
  strata_stored_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_size = sizeof tensor;
  return tensor;
}

// Opens a directory with config.json and model.safetensors, or with model.safetensors.index.json and its shards. Shards without attention
// tensors are not opened, and any shard may be missing: a partial download is a checkpoint of the layers that it has. options may be null.
// Errors: STRATA_INVALID_FILE for malformed files, for a shard that lacks an attention tensor which the index expects there, and for a
// model.safetensors that disagrees with an index.
STRATA_API strata_status strata_checkpoint_open(const char* directory, const strata_config_options* options,
                                                strata_checkpoint* checkpoint) STRATA_NOEXCEPT;
// A checkpoint of tensors [num_tensors] in host memory, by official names, of the layers that the caller wants. Names and shapes are
// copied. The data is not: it must stay valid until the checkpoint is destroyed and no layer is being made from it. Errors:
// STRATA_INVALID_FILE for an invalid config; STRATA_INVALID_ARGUMENT for duplicate names, sizes that contradict shape and dtype, null data.
STRATA_API strata_status strata_checkpoint_create(strata_model_config config, const strata_stored_tensor* tensors, int64_t num_tensors,
                                                  strata_checkpoint* checkpoint) STRATA_NOEXCEPT;
// Gives the handle back; the files are unmapped when no call uses them. Layers copy what they need, so layers stay valid.
STRATA_API strata_status strata_checkpoint_destroy(strata_checkpoint checkpoint) STRATA_NOEXCEPT;

// A new handle of the checkpoint's config, which the caller destroys. It may outlive the checkpoint.
STRATA_API strata_status strata_checkpoint_get_config(strata_checkpoint checkpoint, strata_model_config* config) STRATA_NOEXCEPT;
// The directory; "memory" for tensors in memory. Text, size and needed as of strata_device_description.
STRATA_API strata_status strata_checkpoint_directory(strata_checkpoint checkpoint, char* text, int64_t size,
                                                     int64_t* needed) STRATA_NOEXCEPT;
// Numbers of the layers that have attention tensors, ascending. MTP layer j is num_hidden_layers + j. At most `capacity` numbers are
// written to `layers` (capacity 0: layers may be null); *count (may be null) is how many the checkpoint has.
STRATA_API strata_status strata_checkpoint_attention_layers(strata_checkpoint checkpoint, int64_t* layers, int64_t capacity,
                                                            int64_t* count) STRATA_NOEXCEPT;
// Names of a layer's attention tensors, sorted; none for a layer without them. Capacity and count as above. The texts are valid until the
// checkpoint is destroyed.
STRATA_API strata_status strata_checkpoint_attention_names(strata_checkpoint checkpoint, int64_t layer, const char** names,
                                                           int64_t capacity, int64_t* count) STRATA_NOEXCEPT;
// Names of all tensors, sorted; for shards, those that the index lists. They follow one another in `text`, each with its zero. At most
// `size` bytes are written, the last of them a zero. *needed (may be null) is the size of all names, *count (may be null) their number.
STRATA_API strata_status strata_checkpoint_names(strata_checkpoint checkpoint, char* text, int64_t size, int64_t* needed,
                                                 int64_t* count) STRATA_NOEXCEPT;

// The tensor of a name. tensor->struct_size is given, as strata_stored_tensor_default() sets it. *found is 1 and *tensor is filled, or
// *found is 0 and *tensor stays as it is. found may be null: then an absent tensor is STRATA_INVALID_FILE. Name, shape and data of the
// result are valid until the checkpoint is destroyed. Errors: STRATA_INVALID_FILE also for a tensor of the index whose shard is missing or
// unreadable.
STRATA_API strata_status strata_checkpoint_find(strata_checkpoint checkpoint, const char* name, strata_stored_tensor* tensor,
                                                int32_t* found) STRATA_NOEXCEPT;
// The same of a layer's tensor (struct_size as above) by its official suffix ("wq_a.weight", "indexer.wq_b.scale"). Every tolerated
// spelling is tried (V4 4.1).
STRATA_API strata_status strata_checkpoint_find_in_layer(strata_checkpoint checkpoint, int64_t layer, const char* suffix,
                                                         strata_stored_tensor* tensor, int32_t* found) STRATA_NOEXCEPT;
// Advises the kernel that the tensor's pages are not needed again, so that loading does not double the resident memory. Does nothing for
// tensors in memory. Errors: STRATA_INVALID_FILE for an absent tensor.
STRATA_API strata_status strata_checkpoint_release(strata_checkpoint checkpoint, const char* name) STRATA_NOEXCEPT;
// k_scale of the layer: the scale that the checkpoint was calibrated with for per-tensor FP8 caches (strata_paged_cache.scale); 1 when
// absent. Errors: STRATA_INVALID_FILE unless k_scale is one positive number.
STRATA_API strata_status strata_checkpoint_kv_scale(strata_checkpoint checkpoint, int64_t layer, float* scale) STRATA_NOEXCEPT;

// What strata_synthesize_checkpoint writes.
typedef struct strata_synthesize_options {
  size_t struct_size;  // sizeof(strata_synthesize_options)
  int64_t num_layers;  // number of first layers to write; 0: all of the config, MTP layers included
  int32_t fp8;         // 1: FP8 weights with ue8m0 block scales where the official checkpoint has them; 0: bf16
  uint64_t seed;       // of the random weights
  // 1: replaces config.json and model.safetensors in the directory; 0: existing files are refused. A checkpoint of several files is always
  // refused.
  int32_t overwrite;
} strata_synthesize_options;
// All layers, fp8 1, seed 1, no overwriting.
static inline strata_synthesize_options strata_synthesize_options_default(void) {
  strata_synthesize_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.fp8 = 1;
  options.seed = 1;
  return options;
}
// Called about every 16 MB. A status other than STRATA_OK stops the work, and is returned as it is.
typedef strata_status (*strata_progress)(void* user, int64_t written_bytes, int64_t total_bytes);
// Writes a checkpoint in the official format with random weights, scaled so that activations keep their magnitude through a layer. options
// and progress may be null. After any error the directory's files are as before. Errors: STRATA_INVALID_ARGUMENT for a number of layers
// that the config does not have, and for a directory that has a checkpoint; STRATA_INVALID_FILE for an invalid config, and when files
// cannot be written.
STRATA_API strata_status strata_synthesize_checkpoint(strata_model_config config, const strata_synthesize_options* options,
                                                      const char* directory, strata_progress progress, void* user) STRATA_NOEXCEPT;

#if defined(__cplusplus)
}
#endif

#endif
