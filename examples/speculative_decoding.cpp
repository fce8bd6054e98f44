// Speculative decoding: each step computes the next token of a request and several draft tokens after it. Drafts that turn out wrong are
// rejected: the next step begins at their positions, and writes over their keys and compressor states.
//
//   example_speculative_decoding MODEL_DIRECTORY     decodes two requests with and without drafts, and compares every output, bit by bit
#include "engine.h"

namespace {

using namespace example;

constexpr int32_t kDrafts = 3;
constexpr int64_t kPrompt = 100, kDecoded = 60;

struct Result {
  std::map<int64_t, std::vector<Output>> outputs;  // of each request's tokens, by position
  int steps = 0, rejected = 0;
};

// What a draft model makes of the tokens that will be sampled: the first few are right.
std::vector<int32_t> with_drafts(const std::vector<int32_t>& tokens, int64_t next, std::mt19937& random) {
  std::vector<int32_t> result = part(tokens, next, std::min<int64_t>(std::ssize(tokens), next + 1 + kDrafts));
  const size_t right = 1 + random() % (1 + kDrafts);
  for (size_t i = right; i < result.size(); ++i) result[i] = (result[i] + 1) % Engine::kVocabulary;
  return result;
}

Result serve_two(const Checkpoint& checkpoint, bool drafts) {
  const BatchLimits limits{
      .max_num_batched_tokens = 128, .max_num_seqs = 2, .max_model_len = 256, .num_speculative_tokens = drafts ? kDrafts : 0};
  Engine engine(checkpoint, same_bits_options(limits), 512, same_bits_config());
  std::map<int64_t, std::vector<int32_t>> tokens;  // the prompt, and what sampling gives after it
  Result result;
  for (const int64_t id : {1, 2}) {
    tokens[id] = text(kPrompt + kDecoded, static_cast<uint32_t>(id));
    engine.pool().add_request(id);
    result.outputs[id] = engine.compute(id, 0, part(tokens[id], 0, kPrompt));
  }
  std::mt19937 random(3);
  for (;;) {
    std::vector<Scheduled> scheduled;
    for (const auto& [id, of_request] : tokens) {
      const int64_t computed = std::ssize(result.outputs[id]);
      if (computed == std::ssize(of_request)) continue;
      scheduled.push_back({id, computed, drafts ? with_drafts(of_request, computed, random) : part(of_request, computed, computed + 1)});
    }
    if (scheduled.empty()) return result;
    const auto outputs = engine.step(scheduled);
    ++result.steps;
    for (const Scheduled& s : scheduled) {
      // A draft is accepted when it, and those before it, are what sampling gives.
      const auto sampled = tokens[s.id].begin() + s.computed;
      const int64_t accepted = std::mismatch(s.tokens.begin(), s.tokens.end(), sampled).first - s.tokens.begin();
      const auto& of_request = outputs.at(s.id);
      result.outputs[s.id].insert(result.outputs[s.id].end(), of_request.begin(), of_request.begin() + accepted);
      result.rejected += static_cast<int>(std::ssize(s.tokens) - accepted);
    }
  }
}

bool serve(const Checkpoint& checkpoint) {
  const Result plain = serve_two(checkpoint, false), drafted = serve_two(checkpoint, true);
  std::printf("one token a step: %d steps\n", plain.steps);
  std::printf("%d drafts a step:  %d steps, %d drafts rejected\n", kDrafts, drafted.steps, drafted.rejected);
  const bool same = plain.outputs == drafted.outputs;
  std::printf("outputs of the accepted tokens: %s\n", same ? "the same bits" : "DIFFERENT");
  return same && drafted.steps < plain.steps && drafted.rejected > 0;
}

}  // namespace

int main(int argc, char** argv) { return run_main(argc, argv, serve); }
