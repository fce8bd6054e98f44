// Decode steps of a ModelRunner as graphs: all layers captured once for a padded number of requests, then launched with whatever lengths,
// pages and requests a step has.
#pragma once

#include <map>
#include <memory>

#include "runner/model_runner.h"

namespace strata::runner {

class DecodeGraphs {
 public:
  // max_requests and max_model_len: the most a step may have.
  DecodeGraphs(ModelRunner& runner, int64_t max_requests, int64_t max_model_len);
  ~DecodeGraphs();
  DecodeGraphs(const DecodeGraphs&) = delete;
  DecodeGraphs& operator=(const DecodeGraphs&) = delete;

  static bool supported(const std::shared_ptr<Device>& device);

  // For begin_step of `num_requests` requests with one token each: sizes are powers of two, so that few graphs serve all.
  BatchPadding padding(int64_t num_requests) const;
  // bf16 [max_requests, hidden] of each layer, at addresses that stay.
  const TensorView& hidden(size_t layer) const { return hidden_[layer].view(); }
  const TensorView& out(size_t layer) const { return out_[layer].view(); }
  // The runner's step, begun with padding(), from hidden to out. The first of a size runs layer by layer, which loads the kernels, and is
  // captured afterwards; true: it was a graph's launch.
  bool run();

  size_t allocated_bytes() const;

 private:
  void run_layers();

  ModelRunner& runner_;
  int64_t max_requests_;
  int64_t max_model_len_;
  std::vector<Tensor> hidden_, out_;
  std::map<int64_t, Graph> graphs_;  // by the number of tokens
};

}  // namespace strata::runner
