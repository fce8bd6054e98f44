// Bytes to limits, cache groups and steps. A builder must refuse with strata::Error exactly the steps that are none, and all others must
// come out as the definitions say (tests/unit/batch_oracle.h).
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "strata/error.h"
#include "unit/batch_oracle.h"

namespace {

using namespace strata;

class Bytes {
 public:
  Bytes(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  uint8_t next() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  // In [low, high], now and then something that nobody expects.
  int64_t value(int64_t low, int64_t high) {
    const uint8_t kind = next();
    if (kind == 0xFF) {
      static constexpr int64_t kOdd[] = {-1, 0, INT32_MAX, int64_t{1} << 31, INT64_MIN, INT64_MAX, 1 << 20, -128};
      return kOdd[next() % std::size(kOdd)];
    }
    return low + (kind | next() << 8) % (high - low + 1);
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

// Values that a constructor must refuse are fine here; sizes that would only exhaust the fuzzer's memory are not.
int32_t narrow(int64_t v) { return static_cast<int32_t>(std::clamp<int64_t>(v, INT32_MIN, INT32_MAX)); }
int64_t small(int64_t v, int64_t most) { return v > most ? most : v; }

oracle::Model model_from(Bytes& in) {
  static constexpr int32_t kRatio[kNumCacheGroups] = {1, 4, 4, 1, 1, 128, 1, 1, 1};
  static constexpr int64_t kReach[kNumCacheGroups] = {0, 0, 0, 8, 8, 0, 128, 0, 0};
  oracle::Model m;
  m.limits.max_num_batched_tokens = small(in.value(1, 64), 64);
  m.limits.max_num_seqs = small(in.value(1, 6), 6);
  m.limits.max_model_len = small(in.value(1, 600), 600);
  m.limits.num_speculative_tokens = narrow(in.value(0, 4));
  m.window = small(in.value(1, 140), 1000);
  for (size_t g = 0; g < kNumCacheGroups; ++g) {
    const uint8_t choice = in.next();
    if (choice % 4 == 0) continue;
    CacheGroupSpec spec{.group = static_cast<CacheGroup>(choice == 0xFF ? in.next() : g), .row_dim = 1, .page_bytes = 1 << 20};
    spec.page_size = narrow(in.value(1, 70));
    spec.ratio = choice == 0xFE ? in.next() : kRatio[g];
    const int64_t reach = g == 0 ? std::max<int64_t>(m.window, 0) : kReach[g];
    spec.retained = choice % 4 == 1 || reach == 0 ? 0 : choice % 4 == 2 ? reach : in.value(reach - 2, reach + 20);
    m.groups.push_back(spec);
    m.num_pages.push_back(in.value(1, 40));
  }
  if (in.next() == 0xFF) m.num_pages.push_back(1);
  return m;
}

struct Step {
  std::vector<std::array<std::vector<int32_t>, kNumCacheGroups>> tables;
  std::vector<BatchRequest> requests;
  BatchPadding padding;
};

Step step_from(Bytes& in, const oracle::Model& m) {
  Step step;
  const size_t count = in.next() % 8;
  step.tables.resize(count);
  int64_t tokens = 0;
  for (size_t r = 0; r < count; ++r) {
    BatchRequest request;
    request.seq_len = in.value(0, m.limits.max_model_len);
    const int64_t most = std::clamp<int64_t>(std::min(request.seq_len, m.limits.max_num_batched_tokens - tokens), 0, 600);
    request.query_len = in.value(0, in.next() % 4 == 0 ? most : std::min<int64_t>(most, 5));
    if (request.query_len >= 0 && request.query_len <= 600) tokens += request.query_len;
    for (size_t g = 0; g < m.groups.size(); ++g) {
      const CacheGroup group = m.groups[g].group;
      std::vector<int32_t>& table = step.tables[r][static_cast<size_t>(group)];
      const int64_t seq_len = std::clamp<int64_t>(request.seq_len, 0, 600);
      const uint8_t change = in.next();
      const int64_t entries = m.groups[g].pages_for(seq_len) + (change % 16 == 0 ? in.next() % 4 - 2 : 0);
      table.resize(static_cast<size_t>(std::max<int64_t>(entries, 0)));
      uint32_t state = change;
      for (int32_t& page : table) {
        state = state * 1664525u + 1013904223u;
        page = static_cast<int32_t>((state >> 8) % static_cast<uint32_t>(std::clamp<int64_t>(m.num_pages[g], 1, 1 << 20)));
      }
      if (change % 16 == 1 && !table.empty()) table[in.next() % table.size()] = narrow(in.value(-1, m.num_pages[g] > 0 ? 40 : 0));
      request.block_tables[group] = table;
    }
    step.requests.push_back(request);
  }
  if (in.next() % 2 == 0) step.padding.num_tokens = in.value(0, 64);
  if (in.next() % 2 == 0) step.padding.num_requests = in.value(0, 6);
  return step;
}

void expect(bool condition, const std::string& message) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_batch: %s\n", message.c_str());
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::shared_ptr<Device> device = oracle::one_thread();
  static const OpSet ops = default_ops();
  Bytes in(data, size);
  const oracle::Model m = model_from(in);
  std::unique_ptr<BatchBuilder> builder;
  try {
    builder = std::make_unique<BatchBuilder>(device, ops, m.limits, m.groups, m.num_pages, m.window);
  } catch (const Error&) {
    return 0;
  }
  for (int i = 0; i < 3; ++i) {
    const Step step = step_from(in, m);
    const bool valid = oracle::is_valid_step(m, step.requests, step.padding);
    try {
      const Batch& batch = builder->build(step.requests, step.padding);
      expect(valid, "a step that is none was built");
      const std::string difference = oracle::compare(batch, m, step.requests, step.padding);
      expect(difference.empty(), difference);
    } catch (const Error& e) {
      expect(!valid && e.code() == ErrorCode::invalid_argument, std::string("a step was refused: ") + e.what());
    }
    if (in.empty()) break;
  }
  return 0;
}
