// The loop of an inference engine around Strata: load the attention layers, allocate paged caches, and serve requests by continuous
// batching. Prompts are prefilled in chunks beside requests that decode; when the caches are full, the youngest request gives its pages
// back and starts again later.
//
// What an engine has besides (token embedding, norms, MoE, sampling) is left out: every layer gets random hidden states.
//
//   example_engine_loop [MODEL_DIRECTORY]        without one, a small random model is made in a temporary directory
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "strata/attention.h"
#include "strata/error.h"

namespace {

using namespace strata;

struct Request {
  int64_t id = 0;
  int64_t prompt_tokens = 0;
  int64_t total_tokens = 0;
  int64_t computed = 0;   // tokens whose keys are in the caches
  int64_t scheduled = 0;  // tokens of the step
};

// The attention layers of a model with what they share: caches, batch metadata, workspace.
class Engine {
 public:
  Engine(const Checkpoint& checkpoint, const BatchLimits& limits, int64_t cached_tokens) : limits_(limits) {
    LayerOptions options;
    options.limits = limits;
    const OpSet ops = default_ops();
    const auto tables = std::make_shared<RopeTables>(device_, limits.max_model_len);
    std::vector<std::vector<CacheGroupSpec>> groups;
    size_t workspace_bytes = 1;
    int64_t topk = 1;
    for (int64_t layer : checkpoint.attention_layers()) {
      layers_.push_back(default_layers().make({checkpoint, layer, device_, ops, options, tables, nullptr, nullptr}));
      groups.push_back(layers_.back()->cache_groups());
      workspace_bytes = std::max(workspace_bytes, layers_.back()->workspace_bytes());
      topk = std::max(topk, layers_.back()->index_topk());
    }
    const int64_t hidden_size = checkpoint.config().hidden_size;
    workspace_ = Tensor(device_, DType::u8, {static_cast<int64_t>(workspace_bytes)});
    topk_ = Tensor(device_, DType::i32, {limits.max_num_batched_tokens, topk});
    hidden_ = Tensor(device_, DType::bf16, {limits.max_num_batched_tokens, hidden_size});
    out_ = Tensor(device_, DType::bf16, {limits.max_num_batched_tokens, hidden_size});

    // Groups that keep everything share `cached_tokens`; sliding ones need their window per request and the tokens of one step.
    std::map<CacheGroup, int64_t> pages;
    for (const auto& of_layer : groups) {
      for (const CacheGroupSpec& g : of_layer) {
        pages[g.group] = g.retained == 0 ? g.pages_for(cached_tokens)
                                         : limits.max_num_seqs * (g.pages_for(g.retained) + 2) + g.pages_for(limits.max_num_batched_tokens);
      }
    }
    pool_ = std::make_unique<PagedPool>(device_, groups, pages);
    std::vector<int64_t> num_pages;
    for (const CacheGroupSpec& g : pool_->groups()) num_pages.push_back(pages.at(g.group));
    builder_ = std::make_unique<BatchBuilder>(device_, ops, limits, pool_->groups(), num_pages, checkpoint.config().sliding_window);
  }

  PagedPool& pool() { return *pool_; }
  const BatchLimits& limits() const { return limits_; }

  // Runs the scheduled tokens of all requests through every layer.
  const Batch& step(const std::vector<Request*>& scheduled) {
    std::vector<BatchRequest> requests;
    for (const Request* r : scheduled) {
      BatchRequest request{.seq_len = r->computed + r->scheduled, .query_len = r->scheduled};
      for (const CacheGroupSpec& g : pool_->groups())
        request.block_tables[static_cast<size_t>(g.group)] = pool_->block_table(r->id, g.group);
      requests.push_back(request);
    }
    std::vector<BatchRequest> ordered;
    for (int64_t i : decode_first_order(requests, limits_.num_speculative_tokens)) ordered.push_back(requests[static_cast<size_t>(i)]);
    const Batch& batch = builder_->build(ordered);
    for (size_t l = 0; l < layers_.size(); ++l) {
      fill_hidden(batch.num_tokens);
      ForwardArgs args;
      args.batch = &batch;
      args.caches = pool_->layer(l);
      args.hidden = hidden_.view().slice(0, batch.num_tokens);
      args.out = out_.view().slice(0, batch.num_tokens);
      if (layers_[l]->index_topk() > 0) args.topk_indices = topk_.view().columns(0, layers_[l]->index_topk());
      args.workspace = {workspace_.view().data, workspace_.allocated_bytes()};
      layers_[l]->forward(args);
    }
    device_->synchronize({});
    return batch;
  }

 private:
  void fill_hidden(int64_t num_tokens) {
    const auto count = static_cast<size_t>(num_tokens * hidden_.view().shape[1]);
    host_.resize(count);
    std::normal_distribution<float> normal;
    for (uint16_t& value : host_) value = bf16(normal(random_));
    device_->copy_from_host(hidden_.view().data, host_.data(), count * sizeof(uint16_t), {});
  }
  static uint16_t bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return static_cast<uint16_t>(bits >> 16);
  }

  BatchLimits limits_;
  std::shared_ptr<Device> device_ = open_device({}, Config::from_environment());
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  std::unique_ptr<PagedPool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
  Tensor workspace_, topk_, hidden_, out_;
  std::vector<uint16_t> host_;
  std::mt19937 random_{1};
};

// Which requests run, oldest first, and how many tokens of each.
class Scheduler {
 public:
  Scheduler(Engine& engine, std::deque<Request> waiting) : engine_(engine), waiting_(std::move(waiting)) {}
  bool done() const { return waiting_.empty() && running_.empty(); }
  int64_t preemptions() const { return preemptions_; }

  std::vector<Request*> schedule() {
    std::vector<Request*> scheduled;
    int64_t budget = engine_.limits().max_num_batched_tokens;
    for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
      Request& r = running_[i];
      const int64_t tokens = r.computed < r.prompt_tokens ? std::min(budget, r.prompt_tokens - r.computed) : 1;
      while (i < running_.size() && !engine_.pool().extend(r.id, r.computed, r.computed + tokens)) preempt_youngest();
      if (i >= running_.size()) break;  // it was itself the youngest
      r.scheduled = tokens;
      budget -= tokens;
      scheduled.push_back(&r);
    }
    return scheduled;
  }

  // New requests join while there is room: not after one was put back, until another has finished.
  void admit() {
    while (!full_ && !waiting_.empty() && static_cast<int64_t>(running_.size()) < engine_.limits().max_num_seqs) {
      engine_.pool().add_request(waiting_.front().id);
      running_.push_back(waiting_.front());
      waiting_.pop_front();
    }
  }

  void finish_step(const std::vector<Request*>& scheduled) {
    for (Request* r : scheduled) r->computed += r->scheduled;
    for (auto r = running_.begin(); r != running_.end();) {
      if (r->computed < r->total_tokens) {
        ++r;
        continue;
      }
      engine_.pool().remove_request(r->id);
      r = running_.erase(r);
      full_ = false;
    }
  }

 private:
  void preempt_youngest() {
    if (running_.size() == 1) throw Error(ErrorCode::out_of_memory, "the caches are too small for a single request");
    Request r = running_.back();
    running_.pop_back();
    engine_.pool().remove_request(r.id);
    r.prompt_tokens = std::max(r.prompt_tokens, r.computed);  // what it has generated is prompt now
    r.computed = 0;
    waiting_.push_front(r);
    full_ = true;
    ++preemptions_;
  }

  Engine& engine_;
  std::deque<Request> waiting_, running_;
  bool full_ = false;
  int64_t preemptions_ = 0;
};

// A checkpoint with random weights, gone when the program ends.
class SmallModel {
 public:
  SmallModel() : directory_(std::filesystem::temp_directory_path() / ("strata_engine_loop_" + std::to_string(std::random_device{}()))) {
    synthesize_checkpoint(preset("v4-tiny"), {}, directory_);
  }
  ~SmallModel() {
    std::error_code ignored;
    std::filesystem::remove_all(directory_, ignored);
  }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;
  const std::filesystem::path& directory() const { return directory_; }

 private:
  std::filesystem::path directory_;
};

void serve(const Checkpoint& checkpoint) {
  Engine engine(checkpoint, {.max_num_batched_tokens = 128, .max_num_seqs = 4, .max_model_len = 512, .num_speculative_tokens = 0}, 768);
  std::deque<Request> requests;
  const int64_t prompts[] = {250, 60, 400, 5, 130, 300};
  for (int64_t id = 0; id < static_cast<int64_t>(std::size(prompts)); ++id) requests.push_back({id, prompts[id], prompts[id] + 12});
  Scheduler scheduler(engine, requests);
  std::printf("step  decode tokens  prefill tokens  longest context\n");
  for (int64_t step = 0; !scheduler.done(); ++step) {
    scheduler.admit();
    const std::vector<Request*> scheduled = scheduler.schedule();
    const Batch& batch = engine.step(scheduled);
    if (batch.num_prefill_tokens > 0 || step % 10 == 0) {
      std::printf("%4lld  %13lld  %14lld  %15lld\n", static_cast<long long>(step), static_cast<long long>(batch.num_decode_tokens),
                  static_cast<long long>(batch.num_prefill_tokens), static_cast<long long>(batch.max_seq_len));
    }
    scheduler.finish_step(scheduled);
  }
  std::printf("%zu requests served, %lld times one was put back for lack of pages\n", std::size(prompts),
              static_cast<long long>(scheduler.preemptions()));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc > 1) {
      serve(Checkpoint(argv[1]));
    } else {
      const SmallModel model;
      serve(Checkpoint(model.directory()));
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
