// Preemption: a request leaves the caches while others go on, and comes back. Either its pages are dropped and its tokens computed again,
// or the pages go to host memory and return, to other page numbers.
//
//   example_preemption MODEL_DIRECTORY     serves two requests undisturbed and both ways, and compares every output, bit by bit
#include <functional>

#include "engine.h"

namespace {

using namespace example;

enum class Way { none, recompute, swap };

constexpr int64_t kFirst = 1, kSecond = 2;
constexpr int64_t kPrompt[] = {0, 200, 150}, kDecoded = 24;

// f(data, bytes) for every page of the request's first `computed` positions that later tokens may read, in a fixed order. Each layer of a
// group has storage of its own; page numbers are shared.
void for_each_page(const PagedPool& pool, int64_t id, int64_t computed, const std::function<void(std::byte*, int64_t)>& f) {
  for (const CacheGroupSpec& spec : pool.groups()) {
    const std::vector<int32_t> table = pool.block_table(id, spec.group);
    for (int64_t block = pool.first_block(id, spec.group); block < spec.pages_for(computed); ++block) {
      for (int64_t l = 0; l < pool.num_layers(); ++l) {
        const PagedCache& cache = pool.layer(l)[spec.group];
        if (!cache.present()) continue;
        f(static_cast<std::byte*>(cache.data) + table[static_cast<size_t>(block)] * cache.page_stride, cache.page_stride);
      }
    }
  }
}

std::vector<std::byte> swap_out(Engine& engine, int64_t id, int64_t computed) {
  PagedPool& pool = engine.pool();
  // Gives back what the windows have left, so that the request holds the pages that it will be given when it returns.
  pool.mark_computed(id, computed);
  std::vector<std::byte> pages;
  for_each_page(pool, id, computed, [&](const std::byte*, int64_t bytes) { pages.resize(pages.size() + static_cast<size_t>(bytes)); });
  std::byte* next = pages.data();  // on a GPU pinned memory, Device::allocate_host, is faster
  for_each_page(pool, id, computed, [&](const std::byte* data, int64_t bytes) {
    engine.device()->copy_to_host(next, data, bytes, {});
    next += bytes;
  });
  engine.device()->synchronize({});  // before another request writes to the pages
  pool.remove_request(id);
  return pages;
}

void swap_in(Engine& engine, int64_t id, int64_t computed, const std::vector<std::byte>& pages) {
  PagedPool& pool = engine.pool();
  pool.add_request(id);
  if (!pool.extend(id, computed, computed)) throw Error(ErrorCode::out_of_memory, "the caches are full");
  const std::byte* next = pages.data();
  for_each_page(pool, id, computed, [&](std::byte* data, int64_t bytes) {
    engine.device()->copy_from_host(data, next, bytes, {});
    next += bytes;
  });
  engine.device()->synchronize({});
}

// Outputs of each request's tokens, by position.
std::map<int64_t, std::vector<Output>> serve_two(const Checkpoint& checkpoint, Way way) {
  const BatchLimits limits{.max_num_batched_tokens = 256, .max_num_seqs = 2, .max_model_len = 512};
  Engine engine(checkpoint, same_bits_options(limits), 512, same_bits_config());
  std::map<int64_t, std::vector<int32_t>> tokens;
  std::map<int64_t, std::vector<Output>> outputs;
  for (const int64_t id : {kFirst, kSecond}) {
    tokens[id] = text(kPrompt[id] + kDecoded, static_cast<uint32_t>(id));
    engine.pool().add_request(id);
    outputs[id] = engine.compute(id, 0, part(tokens[id], 0, kPrompt[id]));
  }
  // One token of each of these requests.
  const auto decode = [&](const std::vector<int64_t>& ids) {
    std::vector<Scheduled> scheduled;
    for (const int64_t id : ids) {
      const int64_t computed = std::ssize(outputs[id]);
      if (computed < std::ssize(tokens[id])) scheduled.push_back({id, computed, part(tokens[id], computed, computed + 1)});
    }
    for (auto& [id, of_request] : engine.step(scheduled)) outputs[id].push_back(of_request.front());
  };
  for (int step = 0; step < 10; ++step) decode({kFirst, kSecond});
  const int64_t computed = std::ssize(outputs[kSecond]);
  std::vector<std::byte> pages;
  if (way == Way::recompute) engine.pool().remove_request(kSecond);
  if (way == Way::swap) pages = swap_out(engine, kSecond, computed);
  if (way != Way::none) {  // the freed pages serve others
    engine.pool().add_request(99);
    engine.compute(99, 0, text(100, 99));
    for (int step = 0; step < 5; ++step) decode({kFirst});
  }
  if (way == Way::recompute) {
    engine.pool().add_request(kSecond);
    engine.compute(kSecond, 0, part(tokens[kSecond], 0, computed));
  }
  if (way == Way::swap) swap_in(engine, kSecond, computed, pages);
  if (!pages.empty()) std::printf("swapped %d tokens, %d bytes\n", static_cast<int>(computed), static_cast<int>(pages.size()));
  while (std::ssize(outputs[kSecond]) < std::ssize(tokens[kSecond])) decode({kFirst, kSecond});
  return outputs;
}

bool serve(const Checkpoint& checkpoint) {
  const auto undisturbed = serve_two(checkpoint, Way::none);
  const bool recomputed = serve_two(checkpoint, Way::recompute) == undisturbed, swapped = serve_two(checkpoint, Way::swap) == undisturbed;
  std::printf("preempted and computed again: %s\n", recomputed ? "the same bits" : "DIFFERENT");
  std::printf("preempted and swapped:        %s\n", swapped ? "the same bits" : "DIFFERENT");
  return recomputed && swapped;
}

}  // namespace

int main(int argc, char** argv) { return run_main(argc, argv, serve); }
