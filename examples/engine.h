// What the examples of requests share: the attention layers of a model with their caches, batch metadata and workspace, and one step
// through all of them. What else an engine has (embedding, norms, MoE, sampling) is left out: a token is a row of a table of random
// hidden states, and every layer gets the same row.
#pragma once

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "strata/attention.h"
#include "strata/error.h"

namespace example {

using namespace strata;

// A request's tokens of a step: positions [computed, computed + tokens.size()). None: the request waits.
struct Scheduled {
  int64_t id = 0;
  int64_t computed = 0;
  std::vector<int32_t> tokens;
};

// Outputs of one token, of all layers: bf16 bits.
using Output = std::vector<uint16_t>;

class Engine {
 public:
  static constexpr int32_t kVocabulary = 512;

  Engine(const Checkpoint& checkpoint, const LayerOptions& options, int64_t cached_tokens,
         const Config& config = Config::from_environment())
      : limits_(options.limits), device_(open_device({}, config)) {
    const OpSet ops = default_ops();
    const auto tables = std::make_shared<RopeTables>(device_, limits_.max_model_len);
    const auto side_streams = std::make_shared<SideStreams>(device_);  // on a GPU a layer overlaps what does not wait for each other
    std::vector<std::vector<CacheGroupSpec>> groups;
    int64_t workspace_bytes = 1, topk = 1;
    for (int64_t layer : checkpoint.attention_layers()) {
      layers_.push_back(default_layers().make({.checkpoint = checkpoint,
                                               .layer = layer,
                                               .device = device_,
                                               .ops = ops,
                                               .options = options,
                                               .rope_tables = tables,
                                               .side_streams = side_streams}));
      groups.push_back(layers_.back()->cache_groups());
      workspace_bytes = std::max(workspace_bytes, layers_.back()->workspace_bytes());
      topk = std::max(topk, layers_.back()->index_topk());
    }
    const int64_t hidden_size = checkpoint.config().hidden_size;
    workspace_ = Tensor(device_, DType::u8, {workspace_bytes});
    topk_ = Tensor(device_, DType::i32, {limits_.max_num_batched_tokens, topk});
    hidden_ = Tensor(device_, DType::bf16, {limits_.max_num_batched_tokens, hidden_size});
    out_ = Tensor(device_, DType::bf16, {limits_.max_num_batched_tokens, hidden_size});
    std::mt19937 random(1);
    embedding_.resize(kVocabulary, Output(static_cast<size_t>(hidden_size)));
    for (Output& row : embedding_) {
      for (uint16_t& v : row) {  // 0.5 to 2, either sign
        const auto sign = random() & 0x8000;
        v = static_cast<uint16_t>(sign | (0x3F00 + random() % 256));
      }
    }
    pool_ = std::make_unique<PagedPool>(device_, groups, plan_pages(groups, limits_, cached_tokens));
    builder_ = std::make_unique<BatchBuilder>(device_, ops, limits_, *pool_, checkpoint.config().sliding_window);
  }

  const std::shared_ptr<Device>& device() const { return device_; }
  PagedPool& pool() { return *pool_; }
  const Batch& batch() const { return *batch_; }  // of the last step

  // Runs the tokens of a step through every layer. The outputs of each request's tokens, by its id.
  std::map<int64_t, std::vector<Output>> step(const std::vector<Scheduled>& scheduled) {
    for (const Scheduled& s : scheduled) pool_->mark_computed(s.id, s.computed);  // pages that the windows have left go back
    for (const Scheduled& s : scheduled) {
      const int64_t end = s.computed + std::ssize(s.tokens);
      if (!pool_->extend(s.id, s.computed, end)) throw Error(ErrorCode::out_of_memory, "the caches are full");
    }
    std::vector<BatchRequest> requests, ordered;
    for (const Scheduled& s : scheduled) {
      const int64_t tokens = std::ssize(s.tokens);
      requests.push_back({.seq_len = s.computed + tokens, .query_len = tokens, .block_tables = pool_->block_tables(s.id), .id = s.id});
    }
    const std::vector<int64_t> order = decode_first_order(requests, limits_.num_speculative_tokens);
    int64_t row = 0;
    for (const int64_t i : order) {
      ordered.push_back(requests[static_cast<size_t>(i)]);
      for (const int32_t token : scheduled[static_cast<size_t>(i)].tokens) {
        const Output& state = embedding_.at(static_cast<size_t>(token));
        device_->copy_from_host(hidden_.view().slice(row++, 1).data, state.data(), std::ssize(state) * 2, {});
      }
    }
    batch_ = &builder_->build(ordered);
    std::map<int64_t, std::vector<Output>> outputs;
    for (const Scheduled& s : scheduled) outputs[s.id].resize(s.tokens.size());
    for (size_t l = 0; l < layers_.size(); ++l) {
      ForwardArgs args;
      args.batch = batch_;
      args.caches = pool_->layer(static_cast<int64_t>(l));
      args.hidden = hidden_.view().slice(0, batch_->num_tokens);
      args.out = out_.view().slice(0, batch_->num_tokens);
      if (layers_[l]->index_topk() > 0) args.topk_indices = topk_.view().columns(0, layers_[l]->index_topk());
      args.workspace = workspace_of(workspace_);
      layers_[l]->forward(args);
      read(args.out, scheduled, order, outputs);
    }
    return outputs;
  }

  // The same of one request's tokens, in chunks; they are computed then.
  std::vector<Output> compute(int64_t id, int64_t computed, const std::vector<int32_t>& tokens) {
    std::vector<Output> outputs;
    for (int64_t begin = 0; begin < std::ssize(tokens);) {
      const int64_t end = std::min<int64_t>(std::ssize(tokens), begin + limits_.max_num_batched_tokens);
      const auto of_chunk = step({{.id = id, .computed = computed + begin, .tokens = {tokens.begin() + begin, tokens.begin() + end}}});
      outputs.insert(outputs.end(), of_chunk.at(id).begin(), of_chunk.at(id).end());
      begin = end;
    }
    pool_->mark_computed(id, computed + std::ssize(tokens));
    return outputs;
  }

 private:
  // Appends a layer's rows to the outputs of their tokens.
  void read(const TensorView& out, const std::vector<Scheduled>& scheduled, const std::vector<int64_t>& order,
            std::map<int64_t, std::vector<Output>>& outputs) {
    Output rows(static_cast<size_t>(out.numel()));
    device_->copy_to_host(rows.data(), out.data, out.bytes(), {});
    device_->synchronize({});
    auto next = rows.begin();
    for (const int64_t i : order) {
      for (Output& output : outputs.at(scheduled[static_cast<size_t>(i)].id)) {
        output.insert(output.end(), next, next + out.shape[1]);
        next += out.shape[1];
      }
    }
  }

  BatchLimits limits_;
  std::shared_ptr<Device> device_;
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  std::unique_ptr<PagedPool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
  const Batch* batch_ = nullptr;
  std::vector<Output> embedding_;
  Tensor workspace_, topk_, hidden_, out_;
};

// `count` tokens of a text.
inline std::vector<int32_t> text(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % Engine::kVocabulary);
  return tokens;
}
inline std::vector<int32_t> part(const std::vector<int32_t>& tokens, int64_t begin, int64_t end) {
  return {tokens.begin() + begin, tokens.begin() + end};
}

// Usage: one argument, a model's directory; `serve` says whether everything was as it should be.
template <class Serve>
int run_main(int argc, char** argv, Serve&& serve) try {
  if (argc != 2) throw Error(ErrorCode::invalid_argument, std::string("usage: ") + argv[0] + " MODEL_DIRECTORY");
  return serve(Checkpoint(argv[1])) ? 0 : 1;
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}

// Options and a config under which a token has the same bits whatever else is in its step. Attention promises that itself
// (batch_invariant, prompts read from the pages); matrix products may sum in another order where a step has another number of tokens,
// but for the reference's, which are slow.
inline LayerOptions same_bits_options(const BatchLimits& limits) {
  LayerOptions options;
  options.limits = limits;
  options.batch_invariant = true;
  options.prefill_mode = PrefillMode::paged;
  options.mla_mode = MlaMode::mqa;
  return options;
}
inline Config same_bits_config() {
  Config config = Config::from_environment();
  config.force["linear"] = config.force["grouped_linear"] = "reference";
  return config;
}

}  // namespace example
