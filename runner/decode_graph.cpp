#include "runner/decode_graph.h"

#include <algorithm>
#include <bit>

namespace strata::runner {

DecodeGraphs::DecodeGraphs(ModelRunner& runner, int64_t max_requests, int64_t max_model_len)
    : runner_(runner), max_requests_(max_requests), max_model_len_(max_model_len) {
  for (size_t l = 0; l < runner.num_layers(); ++l) {
    for (std::vector<Tensor>* tensors : {&hidden_, &out_}) {
      tensors->emplace_back(runner.device(), DType::bf16, std::initializer_list<int64_t>{max_requests, runner.layer(l).hidden_size()});
      // Rows of padding tokens are computed like others: on numbers.
      runner.device()->fill(tensors->back().view().data, 0, tensors->back().allocated_bytes(), runner.stream());
    }
  }
}

DecodeGraphs::~DecodeGraphs() {
  for (const auto& [tokens, graph] : graphs_) runner_.device()->destroy_graph(graph);
}

bool DecodeGraphs::supported(const std::shared_ptr<Device>& device) {
  const OwnedStream stream(device);
  try {
    device->destroy_graph(device->capture(stream.get(), [] {}));
    return true;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::unsupported) return false;
    throw;
  }
}

BatchPadding DecodeGraphs::padding(int64_t num_requests) const {
  const auto padded = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(num_requests)));
  const int64_t size = std::min(padded, max_requests_);
  return {.num_tokens = size, .num_requests = size, .max_seq_len = max_model_len_};
}

bool DecodeGraphs::run() {
  const int64_t tokens = runner_.batch().num_tokens;
  if (const auto found = graphs_.find(tokens); found != graphs_.end()) {
    runner_.device()->launch(found->second, runner_.stream());
    return true;
  }
  run_layers();
  graphs_.emplace(tokens, runner_.device()->capture(runner_.stream(), [&] { run_layers(); }));
  return false;
}

void DecodeGraphs::run_layers() {
  const int64_t tokens = runner_.batch().num_tokens;
  for (size_t l = 0; l < runner_.num_layers(); ++l) runner_.run_layer(l, hidden(l).slice(0, tokens), out(l).slice(0, tokens));
}

size_t DecodeGraphs::allocated_bytes() const {
  size_t bytes = 0;
  for (const Tensor& t : hidden_) bytes += 2 * t.allocated_bytes();
  return bytes;
}

}  // namespace strata::runner
