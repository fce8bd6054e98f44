// The loop of an inference engine around Strata: load the attention layers, allocate paged caches, and serve requests by continuous
// batching. Prompts are prefilled in chunks together with requests that decode; finished requests give their pages back.
//
//   example_engine_loop MODEL_DIRECTORY        one that `strata synthesize` made, say
#include <cinttypes>
#include <deque>

#include "engine.h"

namespace {

using namespace example;

struct Request {
  int64_t id = 0;
  int64_t prompt = 0;           // tokens
  std::vector<int32_t> tokens;  // of the prompt, and those that sampling will add
  int64_t computed = 0;         // tokens whose keys are in the caches
  int64_t scheduled = 0;        // tokens of the step
  int64_t total() const { return std::ssize(tokens); }
};

// FNV-1a over the two bytes of each value, the low one first.
uint64_t hash(uint64_t seed, const Output& output) {
  for (const uint16_t value : output) {
    seed = (seed ^ (value & 0xFFu)) * 0x100000001B3u;
    seed = (seed ^ static_cast<uint64_t>(value >> 8)) * 0x100000001B3u;
  }
  return seed;
}

bool serve(const Checkpoint& checkpoint) {
  const BatchLimits limits{.max_num_batched_tokens = 128, .max_num_seqs = 4, .max_model_len = 512, .num_speculative_tokens = 0};
  const int64_t cached_tokens = 1024;
  Engine engine(checkpoint, {.limits = limits}, cached_tokens);
  std::deque<Request> waiting, running;
  for (const int64_t prompt : {250, 60, 400, 5, 130, 300}) {
    waiting.push_back({.id = prompt, .prompt = prompt, .tokens = text(prompt + 12, static_cast<uint32_t>(prompt))});
  }
  std::printf("step  decode tokens  prefill tokens  longest context\n");
  int64_t reserved = 0;                    // positions that the running requests will hold
  uint64_t outputs = 0xCBF29CE484222325u;  // hash of all outputs
  for (int step = 0; !waiting.empty() || !running.empty(); ++step) {
    while (!waiting.empty() && std::ssize(running) < limits.max_num_seqs && reserved + waiting.front().total() <= cached_tokens) {
      reserved += waiting.front().total();
      engine.pool().add_request(waiting.front().id);
      running.push_back(waiting.front());
      waiting.pop_front();
    }
    int64_t budget = limits.max_num_batched_tokens;
    std::vector<Scheduled> scheduled;
    for (Request& r : running) {  // a chunk of the prompt, or one token, or none where the budget is spent
      r.scheduled = std::min(budget, std::max<int64_t>(r.prompt - r.computed, 1));
      budget -= r.scheduled;
      scheduled.push_back({.id = r.id, .computed = r.computed, .tokens = part(r.tokens, r.computed, r.computed + r.scheduled)});
    }
    const auto outputs_of = engine.step(scheduled);
    for (const Request& r : running) {
      for (const Output& output : outputs_of.at(r.id)) outputs = hash(outputs, output);
    }
    const Batch& batch = engine.batch();
    std::printf("%4d  %13d  %14d  %15d\n", step, static_cast<int>(batch.num_decode_tokens), static_cast<int>(batch.num_prefill_tokens),
                static_cast<int>(batch.max_seq_len));
    for (Request& r : running) {
      r.computed += r.scheduled;
      if (r.computed < r.total()) continue;
      reserved -= r.total();
      engine.pool().remove_request(r.id);
    }
    std::erase_if(running, [](const Request& r) { return r.computed >= r.total(); });
  }
  std::printf("outputs: %016" PRIx64 "\n", outputs);
  return true;
}

}  // namespace

int main(int argc, char** argv) { return run_main(argc, argv, serve); }
