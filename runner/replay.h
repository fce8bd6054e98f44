// Recorded runs of DeepSeek's reference code: layerL.seqS.{x, out, num_prefill, q, attn_out, topk} and layerL.seqS.exact_index.{out,
// attn_out, topk} (tests/golden/README.md). Replays the inputs and says how far the outputs are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runner/model_runner.h"

namespace strata::runner {

enum class TopkSource { own, recorded };

struct ReplayOptions {
  LayerOptions layer;    // formats and modes; the limits are set from the cases
  bool together = true;  // all sequences of a layer in one ragged batch, or one after the other
  int64_t chunk = 0;     // prefill tokens per step; 0: the recorded prefill in one step
  TopkSource topk = TopkSource::own;
  bool exact_index = false;  // compare with exact_index.* (unquantised indexer), where recorded
  bool shuffle_pages = false;
  bool poison = false;
  int64_t pad_tokens = 0;     // extra padding tokens and requests in every step
  int64_t max_model_len = 0;  // the layers' at least, whatever the cases need
  int64_t only_layer = -1;
};

struct ReplayResult {
  int64_t layer = 0;
  int64_t sequence = 0;
  std::string kind;
  bool chooses = false;  // the layer has an indexer, or attends to another layer's selection
  int64_t num_tokens = 0;
  std::string expected;  // "out" or "exact_index.out"
  double out_error = 0;  // ||out - expected|| / ||expected||
  double q_error = -1;   // -1: not recorded
  double attn_out_error = -1;
  double topk_agreement = -1;  // share of equal entries over rows with more candidates than top-k; -1: no such row
  std::vector<float> out;      // [num_tokens, hidden]
};

std::vector<ReplayResult> replay(const Checkpoint& checkpoint, const SafetensorsFile& cases, const std::shared_ptr<Device>& device,
                                 const OpSet& ops, const LayerRegistry& registry, const ReplayOptions& options,
                                 const std::function<void(double)>& progress = nullptr);

}  // namespace strata::runner
