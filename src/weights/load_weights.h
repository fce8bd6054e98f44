// Loads the weights of one layer from a checkpoint to a device: only this rank's shard, checked against the config's shapes.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "strata/checkpoint.h"
#include "strata/op_set.h"
#include "strata/tensor.h"

namespace strata {

// Rows or columns [begin, begin + count) of a full tensor.
struct Shard {
  int64_t begin = 0;
  int64_t count = -1;  // -1: to the end
};

// The form of an FP8 matrix on the device. A bf16 matrix stays bf16.
enum class WeightForm : uint8_t {
  automatic,   // the form that the op's list of implementations prefers on this device; fp8 when there is no difference
  fp8,         // e4m3 with f32 block scales, as in the file
  dequantize,  // bf16: exact with power-of-two scales (V4 4.2), rounded once with others
};

// A matrix of the file, the shard of it to load, and the layer's calls of the linear op with it.
struct LinearRequest {
  int64_t n = 0;  // rows (output features) of the full tensor
  int64_t k = 0;  // columns (input features) of the full tensor
  Shard rows{};
  Shard columns{};
  int64_t groups = 0;  // 0: for the linear op. >= 1: for the grouped op, number of groups in the rows of the shard
  WeightForm form = WeightForm::automatic;
  ActivationFormat activation = ActivationFormat::bf16;  // grouped op: an fp8 format means that x is e4m3 with scales
  DType output = DType::bf16;                            // of y: bf16 or f32
  bool shares_device = false;                            // LinearWeight::shares_device
  bool pack = true;  // convert to the layout that the selected implementation prefers, if it has one, and free the row-major copy
};

// One tensor, or a shard of one, of a matrix that is stacked by rows.
struct FusedPart {
  std::string name;  // without ".weight"
  int64_t n = 0;     // rows of the full tensor
  Shard rows{};
  bool transposed = false;  // stack the transpose of the shard: its columns are the rows of the result, which is then bf16
};

// Not movable once made: LinearParams points to `weight`.
struct LoadedLinear {
  LinearWeight weight;
  Tensor storage;         // bf16 or e4m3 [rows, columns]; empty when packed
  Tensor scale_storage;   // e4m3 only, f32; empty when packed
  Tensor packed_storage;  // empty when not packed

  LoadedLinear() = default;
  LoadedLinear(const LoadedLinear&) = delete;
  LoadedLinear& operator=(const LoadedLinear&) = delete;
  size_t allocated_bytes() const { return storage.allocated_bytes() + scale_storage.allocated_bytes() + packed_storage.allocated_bytes(); }
};

// Every function throws invalid_file, naming tensor, expected and actual value, when the file does not have what the caller wants, and
// unsupported when no implementation of the linear op takes the matrix. Names are official suffixes ("wq_a", "attn_sink",
// "indexer.compressor.norm.weight").
struct WeightLoader {
  const Checkpoint& checkpoint;
  int64_t layer;
  std::shared_ptr<Device> device;
  const OpSet& ops;

  // A tensor of BF16, F16 or F32 values, none of them NaN, widened to f32 [shape...]. Rank 1 or 2; the shard is of dimension 0.
  Tensor load_f32(std::string_view suffix, std::initializer_list<int64_t> shape, Shard shard = {}) const;
  // The same for a vector: norm weights, attention sinks.
  Tensor load_vector_f32(std::string_view suffix, int64_t length, Shard shard = {}) const { return load_f32(suffix, {length}, shard); }

  // `name` without ".weight": "wq_b". BF16, F16 and F32 matrices become bf16; F8_E4M3 needs its block scales.
  std::unique_ptr<LoadedLinear> load_linear(std::string_view name, const LinearRequest& request) const;
  // Stacks the rows of several matrices of k columns: [wq_a ; wkv], [wkv ; wgate]. request.n and request.rows are ignored. If FP8 and other
  // matrices are mixed, the result is bf16.
  std::unique_ptr<LoadedLinear> load_fused_linear(const std::vector<FusedPart>& parts, const LinearRequest& request) const;
};

}  // namespace strata
