// Prefix caching: requests whose texts begin alike compute the common part once. Its pages go into the block tables of all of them, which
// read and never write them; a request that is never extended keeps them when the others have gone.
//
//   example_prefix_caching MODEL_DIRECTORY     serves three requests with and without the cache and compares every output, bit by bit
#include "engine.h"

namespace {

using namespace example;

struct Result {
  std::vector<std::vector<Output>> outputs;  // of each request, of the tokens after the prefix
  int64_t computed_tokens = 0;
  int64_t pages = 0;  // in use with all three requests in the caches
};

Result serve_three(const Checkpoint& checkpoint, bool cached) {
  const BatchLimits limits{.max_num_batched_tokens = 128, .max_num_seqs = 4, .max_model_len = 512};
  Engine engine(checkpoint, same_bits_options(limits), 2048, same_bits_config());
  PagedPool& pool = engine.pool();
  int64_t free_pages = 0;
  for (const CacheGroupSpec& spec : pool.groups()) free_pages += pool.free_pages(spec.group);

  // Prefixes are whole pages of every group: what is left of a common text is computed by each request.
  const std::vector<int32_t> system_prompt = text(300, 1);
  const int64_t prefix = std::ssize(system_prompt) / pool.prefix_granularity() * pool.prefix_granularity();
  constexpr int64_t kKeeper = 1000;
  Result result;
  for (const int64_t id : {1, 2, 3}) {
    std::vector<int32_t> tokens = system_prompt;
    const std::vector<int32_t> question = text(20 * id, static_cast<uint32_t>(10 + id));
    tokens.insert(tokens.end(), question.begin(), question.end());
    int64_t computed = 0;
    if (cached && id > 1) {
      pool.add_request(id, {.request = kKeeper, .positions = prefix});
      computed = prefix;
    } else {
      pool.add_request(id);
      engine.compute(id, 0, part(tokens, 0, prefix));
      result.computed_tokens += prefix;
      computed = prefix;
      if (cached) pool.add_request(kKeeper, {.request = id, .positions = prefix});  // now, before the request moves on
    }
    result.outputs.push_back(engine.compute(id, computed, part(tokens, computed, std::ssize(tokens))));
    result.computed_tokens += std::ssize(tokens) - computed;
  }
  result.pages = free_pages;
  for (const CacheGroupSpec& spec : pool.groups()) result.pages -= pool.free_pages(spec.group);
  for (const int64_t id : {3, 1, 2}) pool.remove_request(id);
  if (cached) pool.remove_request(kKeeper);  // the last one that has the pages: they are free
  for (const CacheGroupSpec& spec : pool.groups()) free_pages -= pool.free_pages(spec.group);
  if (free_pages != 0) throw Error(ErrorCode::invalid_argument, "pages are missing");
  return result;
}

bool serve(const Checkpoint& checkpoint) {
  const Result alone = serve_three(checkpoint, false), cached = serve_three(checkpoint, true);
  std::printf("             tokens computed  pages\n");
  std::printf("without      %15d  %5d\n", static_cast<int>(alone.computed_tokens), static_cast<int>(alone.pages));
  std::printf("with         %15d  %5d\n", static_cast<int>(cached.computed_tokens), static_cast<int>(cached.pages));
  const bool same = alone.outputs == cached.outputs;
  std::printf("outputs after the prefix: %s\n", same ? "the same bits" : "DIFFERENT");
  return same && cached.computed_tokens < alone.computed_tokens && cached.pages < alone.pages;
}

}  // namespace

int main(int argc, char** argv) { return run_main(argc, argv, serve); }
