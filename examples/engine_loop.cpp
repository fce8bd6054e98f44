// The loop of an inference engine around Strata: load the attention layers, allocate paged caches, and serve requests by continuous
// batching. Prompts are prefilled in chunks beside requests that decode; finished requests give their pages back. What an engine has
// besides (embedding, norms, MoE, sampling) is left out: every layer gets the same random hidden states.
//
//   example_engine_loop MODEL_DIRECTORY        one that `strata synthesize` made, say
#include <algorithm>
#include <cstdio>
#include <deque>
#include <random>
#include <vector>

#include "strata/attention.h"
#include "strata/error.h"

namespace {

using namespace strata;

struct Request {
  int64_t id = 0;
  int64_t prompt = 0, total = 0;  // tokens
  int64_t computed = 0;           // tokens whose keys are in the caches
  int64_t scheduled = 0;          // tokens of the step
};

// The attention layers of a model with what they share: caches, batch metadata, workspace.
class Engine {
 public:
  Engine(const Checkpoint& checkpoint, const BatchLimits& limits, int64_t cached_tokens) : limits_(limits) {
    LayerOptions options;
    options.limits = limits;
    const OpSet ops = default_ops();
    const auto tables = std::make_shared<RopeTables>(device_, limits.max_model_len);
    const auto lanes = std::make_shared<Lanes>(device_);  // on a GPU a layer overlaps what does not wait for each other
    std::vector<std::vector<CacheGroupSpec>> groups;
    size_t workspace_bytes = 1;
    int64_t topk = 1;
    for (int64_t layer : checkpoint.attention_layers()) {
      layers_.push_back(default_layers().make({.checkpoint = checkpoint,
                                               .layer = layer,
                                               .device = device_,
                                               .ops = ops,
                                               .options = options,
                                               .rope_tables = tables,
                                               .lanes = lanes}));
      groups.push_back(layers_.back()->cache_groups());
      workspace_bytes = std::max(workspace_bytes, layers_.back()->workspace_bytes());
      topk = std::max(topk, layers_.back()->index_topk());
    }
    const int64_t hidden_size = checkpoint.config().hidden_size;
    workspace_ = Tensor(device_, DType::u8, {static_cast<int64_t>(workspace_bytes)});
    topk_ = Tensor(device_, DType::i32, {limits.max_num_batched_tokens, topk});
    hidden_ = Tensor(device_, DType::bf16, {limits.max_num_batched_tokens, hidden_size});
    out_ = Tensor(device_, DType::bf16, {limits.max_num_batched_tokens, hidden_size});
    std::mt19937 random(1);
    std::vector<uint16_t> values(static_cast<size_t>(hidden_.view().numel()));
    for (uint16_t& v : values) v = static_cast<uint16_t>((random() & 0x8000) | (0x3F00 + random() % 256));  // bf16 of 0.5 to 2, either sign
    device_->copy_from_host(hidden_.view().data, values.data(), hidden_.allocated_bytes(), {});

    pool_ = std::make_unique<PagedPool>(device_, groups, plan_pages(groups, limits, cached_tokens));
    builder_ = std::make_unique<BatchBuilder>(device_, ops, limits, *pool_, checkpoint.config().sliding_window);
  }

  PagedPool& pool() { return *pool_; }

  // Runs the scheduled tokens of all requests through every layer.
  const Batch& step(const std::deque<Request>& running) {
    std::vector<BatchRequest> requests, ordered;
    for (const Request& r : running) {
      if (r.scheduled == 0) continue;
      requests.push_back({.seq_len = r.computed + r.scheduled, .query_len = r.scheduled, .block_tables = pool_->block_tables(r.id)});
    }
    for (int64_t i : decode_first_order(requests, limits_.num_speculative_tokens)) ordered.push_back(requests[static_cast<size_t>(i)]);
    const Batch& batch = builder_->build(ordered);
    for (size_t l = 0; l < layers_.size(); ++l) {
      ForwardArgs args;
      args.batch = &batch;
      args.caches = pool_->layer(l);
      args.hidden = hidden_.view().slice(0, batch.num_tokens);
      args.out = out_.view().slice(0, batch.num_tokens);
      if (layers_[l]->index_topk() > 0) args.topk_indices = topk_.view().columns(0, layers_[l]->index_topk());
      args.workspace = workspace_of(workspace_);
      layers_[l]->forward(args);
    }
    device_->synchronize({});
    return batch;
  }

 private:
  BatchLimits limits_;
  std::shared_ptr<Device> device_ = open_device({}, Config::from_environment());
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  std::unique_ptr<PagedPool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
  Tensor workspace_, topk_, hidden_, out_;
};

void serve(const Checkpoint& checkpoint) {
  const BatchLimits limits{.max_num_batched_tokens = 128, .max_num_seqs = 4, .max_model_len = 512, .num_speculative_tokens = 0};
  const int64_t cached_tokens = 1024;
  Engine engine(checkpoint, limits, cached_tokens);
  std::deque<Request> waiting, running;
  for (const int64_t prompt : {250, 60, 400, 5, 130, 300}) waiting.push_back({.id = prompt, .prompt = prompt, .total = prompt + 12});
  std::printf("step  decode tokens  prefill tokens  longest context\n");
  int64_t reserved = 0;  // positions that the running requests will hold
  for (int step = 0; !waiting.empty() || !running.empty(); ++step) {
    while (!waiting.empty() && static_cast<int64_t>(running.size()) < limits.max_num_seqs &&
           reserved + waiting.front().total <= cached_tokens) {
      reserved += waiting.front().total;
      engine.pool().add_request(waiting.front().id);
      running.push_back(waiting.front());
      waiting.pop_front();
    }
    for (const Request& r : running) engine.pool().extend(r.id, r.computed, r.computed);  // pages behind the windows go back
    int64_t budget = limits.max_num_batched_tokens;
    for (Request& r : running) {  // a chunk of the prompt, or one token
      r.scheduled = std::min(budget, std::max<int64_t>(r.prompt - r.computed, 1));
      budget -= r.scheduled;
      if (!engine.pool().extend(r.id, r.computed, r.computed + r.scheduled)) throw Error(ErrorCode::out_of_memory, "the caches are full");
    }
    const Batch& batch = engine.step(running);
    std::printf("%4d  %13d  %14d  %15d\n", step, static_cast<int>(batch.num_decode_tokens), static_cast<int>(batch.num_prefill_tokens),
                static_cast<int>(batch.max_seq_len));
    for (Request& r : running) {
      r.computed += r.scheduled;
      if (r.computed < r.total) continue;
      reserved -= r.total;
      engine.pool().remove_request(r.id);
    }
    std::erase_if(running, [](const Request& r) { return r.computed >= r.total; });
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw Error(ErrorCode::invalid_argument, "usage: example_engine_loop MODEL_DIRECTORY");
  serve(Checkpoint(argv[1]));
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
