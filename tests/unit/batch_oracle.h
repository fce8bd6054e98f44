// What a step's metadata must be, computed from the definitions one token and one position at a time (V4 specification 9.2, 11, 12,
// 13), and whether a step is one at all. Shared by the unit tests and the fuzzer; knows nothing of src/batch.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "strata/batch.h"

namespace strata::oracle {

// Steps here are tiny: more threads would only wait for each other.
inline std::shared_ptr<Device> one_thread() {
  Config config;
  config.cpu_threads = 1;
  return open_device({}, config);
}

struct Model {
  BatchLimits limits;
  std::vector<CacheGroupSpec> groups;
  std::vector<int64_t> num_pages;
  int64_t window = 0;

  bool has(CacheGroup group) const {
    for (const CacheGroupSpec& spec : groups) {
      if (spec.group == group) return true;
    }
    return false;
  }
};

inline int64_t complete_entries(int64_t positions, int64_t ratio) {
  int64_t entries = 0;
  while ((entries + 1) * ratio <= positions) ++entries;
  return entries;
}

// The table can be followed for every row that the step may touch.
inline bool table_is_usable(const BatchRequest& r, const CacheGroupSpec& spec, int64_t num_pages) {
  const auto table = r.block_tables[spec.group];
  const int64_t oldest = spec.retained == 0 ? 0 : r.seq_len - r.query_len - spec.retained + 1;
  for (int64_t row = 0; row < complete_entries(r.seq_len, spec.ratio); ++row) {
    if (row < oldest && row / spec.page_size != oldest / spec.page_size) continue;  // in a block that the step does not reach
    const int64_t block = row / spec.page_size;
    if (block >= std::ssize(table)) return false;
    if (table[static_cast<size_t>(block)] < 0 || table[static_cast<size_t>(block)] >= num_pages) return false;
  }
  return true;
}

inline bool is_valid_step(const Model& m, const std::vector<BatchRequest>& requests, const BatchPadding& padding) {
  int64_t tokens = 0;
  for (const BatchRequest& r : requests) {
    if (r.query_len < 0 || r.seq_len < 0 || r.query_len > r.seq_len || r.seq_len > m.limits.max_model_len) return false;
    tokens += r.query_len;
  }
  const auto count = std::ssize(requests);
  if (count > m.limits.max_num_seqs || tokens > m.limits.max_num_batched_tokens) return false;
  if (padding.num_requests != 0 && (padding.num_requests < count || padding.num_requests > m.limits.max_num_seqs)) return false;
  if (padding.num_tokens != 0 && (padding.num_tokens < tokens || padding.num_tokens > m.limits.max_num_batched_tokens)) return false;
  if (padding.num_tokens > 0 && padding.num_requests == 0 && count == 0) return false;
  if (padding.max_seq_len < 0 || padding.max_seq_len > m.limits.max_model_len) return false;
  for (const BatchRequest& r : requests) {
    if (padding.max_seq_len > 0 && r.seq_len > padding.max_seq_len) return false;
  }
  for (const BatchRequest& r : requests) {
    for (size_t g = 0; g < m.groups.size(); ++g) {
      if (!table_is_usable(r, m.groups[g], m.num_pages[g])) return false;
    }
  }
  return true;
}

// Compares and remembers the first difference.
class Comparison {
 public:
  const std::string& difference() const { return difference_; }

  template <class A, class B>
  void equal(const char* name, int64_t i, A actual, B expected) {
    if (difference_.empty() && static_cast<int64_t>(actual) != static_cast<int64_t>(expected)) {
      difference_ = fmt::format("{}[{}] must be {}, is {}", name, i, static_cast<int64_t>(expected), static_cast<int64_t>(actual));
    }
  }
  template <class T>
  void vector(const char* name, const TensorView& view, const std::vector<T>& expected) {
    if (!difference_.empty()) return;
    if (!view.present() || view.rank != 1 || view.shape[0] != std::ssize(expected)) {
      difference_ = fmt::format("{} must have {} elements, is {}", name, expected.size(), view.describe());
      return;
    }
    for (size_t i = 0; i < expected.size(); ++i) equal(name, static_cast<int64_t>(i), view.ptr<T>()[i], expected[i]);
  }
  // Rows of expected values, then -1.
  void rows(const char* name, const TensorView& view, int64_t width, const std::vector<std::vector<int64_t>>& expected) {
    if (!difference_.empty()) return;
    if (!view.present() || view.rank != 2 || view.shape[0] != std::ssize(expected) || view.shape[1] != width) {
      difference_ = fmt::format("{} must be [{}, {}], is {}", name, expected.size(), width, view.describe());
      return;
    }
    for (size_t t = 0; t < expected.size(); ++t) {
      for (int64_t i = 0; i < width; ++i) {
        const int64_t want = i < std::ssize(expected[t]) ? expected[t][static_cast<size_t>(i)] : -1;
        equal(name, static_cast<int64_t>(t) * width + i, view.row<int32_t>(static_cast<int64_t>(t))[i], want);
      }
    }
  }
  void absent(const char* name, const TensorView& view) {
    if (difference_.empty() && view.present()) difference_ = fmt::format("{} must be absent, is {}", name, view.describe());
  }

 private:
  std::string difference_;
};

struct Token {
  int64_t position = 0;
  int64_t request = 0;
  bool real = false;
};

// A chunk plan is right when its chunks hold every prefill request that has tokens once and in order, fit the workspace, have the sizes
// that section 13 gives them, and could not have been longer.
inline void compare_chunks(Comparison& c, const Batch& b, const Model& m, const std::vector<BatchRequest>& requests, int32_t ratio) {
  const int64_t capacity =
      4 * ((ratio == 1 ? 0 : (m.limits.max_model_len + ratio - 1) / ratio) + m.window + m.limits.max_num_batched_tokens);
  c.equal("prefill_workspace_rows", ratio, prefill_workspace_rows(m.limits, ratio, m.window), capacity);
  const auto compressed_of = [&](int64_t r) { return ratio == 1 ? 0 : requests[static_cast<size_t>(r)].seq_len / ratio; };
  const auto gather_of = [&](int64_t r) {
    const BatchRequest& q = requests[static_cast<size_t>(r)];
    return std::min(q.seq_len, q.query_len + std::max<int64_t>(m.window - 1, 0));
  };
  int64_t next = b.num_decodes;  // first request that is in no chunk yet
  const auto skip_empty = [&] {
    while (next < std::ssize(requests) && requests[static_cast<size_t>(next)].query_len == 0) ++next;
  };
  for (const PrefillChunk& chunk : b.prefill_chunks(ratio)) {
    skip_empty();
    c.equal("chunk.first_request", ratio, chunk.first_request, next);
    c.equal("chunk.first_token", ratio, chunk.first_token, b.query_start_loc_host[static_cast<size_t>(next)]);
    int64_t tokens = 0, compressed = 0, gather = 0;
    c.equal("chunk.num_requests >= 1", ratio, chunk.num_requests >= 1, true);
    for (int64_t r = chunk.first_request; r < chunk.first_request + chunk.num_requests; ++r) {
      if (r >= std::ssize(requests)) return c.equal("last request of a chunk", ratio, r, std::ssize(requests) - 1);
      c.equal("a chunk's query_len > 0", r, requests[static_cast<size_t>(r)].query_len > 0, true);
      tokens += requests[static_cast<size_t>(r)].query_len;
      compressed = std::max(compressed, compressed_of(r));
      gather = std::max(gather, gather_of(r));
    }
    c.equal("chunk.num_tokens", ratio, chunk.num_tokens, tokens);
    c.equal("chunk.max_compressed", ratio, chunk.max_compressed, compressed);
    c.equal("chunk.max_rows", ratio, chunk.max_rows, compressed + gather);
    c.equal("chunk fits", ratio, chunk.num_requests * chunk.max_rows <= capacity, true);
    next = chunk.first_request + chunk.num_requests;
    if (next < std::ssize(requests) && requests[static_cast<size_t>(next)].query_len > 0) {
      const int64_t rows = std::max(compressed, compressed_of(next)) + std::max(gather, gather_of(next));
      c.equal("chunk is as long as it can be", ratio, (chunk.num_requests + 1) * rows > capacity, true);
    }
  }
  skip_empty();
  c.equal("requests in chunks", ratio, next, std::max<int64_t>(b.num_decodes, std::ssize(requests)));
}

// Empty when the batch (in host memory) is what the definitions say; else the first difference.
inline std::string compare(const Batch& b, const Model& m, const std::vector<BatchRequest>& requests, const BatchPadding& padding) {
  Comparison c;
  std::vector<Token> tokens;
  for (size_t r = 0; r < requests.size(); ++r) {
    for (int64_t p = requests[r].seq_len - requests[r].query_len; p < requests[r].seq_len; ++p) {
      tokens.push_back({p, static_cast<int64_t>(r), true});
    }
  }
  const auto num_actual = std::ssize(tokens);
  const int64_t num_requests = std::max<int64_t>(std::ssize(requests), padding.num_requests);
  const int64_t num_tokens = std::max<int64_t>(num_actual, padding.num_tokens);
  // A uniform step: every request, padding ones too, has the same number of decode tokens.
  int64_t uniform = 0;
  for (int64_t q = 1; q <= std::min(int64_t{1} + m.limits.num_speculative_tokens, num_tokens); ++q) {
    const bool all = std::all_of(requests.begin(), requests.end(), [&](const BatchRequest& r) { return r.query_len == q; });
    if (all && q * num_requests == num_tokens && num_requests > 0) uniform = q;
  }
  for (int64_t i = 0; num_actual + i < num_tokens; ++i) {
    tokens.push_back({.request = uniform > 0 ? std::ssize(requests) + i / uniform : 0});
  }

  // Requests and the split.
  std::vector<int32_t> query_start_loc{0}, seq_lens, gather_lens, c4_seq_lens, c128_seq_lens;
  int64_t max_query_len = 0, max_seq_len = 0;
  int64_t num_decodes = num_requests;
  for (int64_t r = 0; r < num_requests; ++r) {
    const bool real = r < std::ssize(requests);
    const BatchRequest q = real ? requests[static_cast<size_t>(r)] : BatchRequest{};
    const int64_t query_len = real ? q.query_len : uniform;
    if (num_decodes == num_requests && q.query_len > int64_t{1} + m.limits.num_speculative_tokens) num_decodes = r;
    query_start_loc.push_back(static_cast<int32_t>(query_start_loc.back() + query_len));
    seq_lens.push_back(static_cast<int32_t>(q.seq_len));
    const int64_t first_seen = std::max<int64_t>(0, q.seq_len - q.query_len - m.window + 1);
    gather_lens.push_back(static_cast<int32_t>(q.seq_len - first_seen));
    c4_seq_lens.push_back(static_cast<int32_t>(complete_entries(q.seq_len, 4)));
    c128_seq_lens.push_back(static_cast<int32_t>(complete_entries(q.seq_len, 128)));
    max_query_len = std::max(max_query_len, query_len);
    max_seq_len = std::max(max_seq_len, q.seq_len);
  }
  c.equal("num_tokens", 0, b.num_tokens, tokens.size());
  c.equal("num_actual_tokens", 0, b.num_actual_tokens, num_actual);
  c.equal("num_requests", 0, b.num_requests, num_requests);
  c.equal("num_decodes", 0, b.num_decodes, num_decodes);
  c.equal("num_prefills", 0, b.num_prefills, num_requests - num_decodes);
  c.equal("num_decode_tokens", 0, b.num_decode_tokens, query_start_loc[static_cast<size_t>(num_decodes)]);
  c.equal("num_prefill_tokens", 0, b.num_prefill_tokens, query_start_loc.back() - query_start_loc[static_cast<size_t>(num_decodes)]);
  c.equal("max_query_len", 0, b.max_query_len, max_query_len);
  c.equal("max_seq_len", 0, b.max_seq_len, padding.max_seq_len > 0 ? padding.max_seq_len : max_seq_len);
  c.vector("query_start_loc", b.query_start_loc, query_start_loc);
  c.vector("seq_lens", b.seq_lens, seq_lens);
  c.equal("query_start_loc_host", 0, b.query_start_loc_host == query_start_loc, true);
  c.equal("seq_lens_host", 0, b.seq_lens_host == seq_lens, true);

  // Tokens.
  std::vector<int64_t> positions;
  std::vector<int32_t> token_to_req, swa_lens, c4_lens, c128_lens, mla_lens;
  std::vector<uint8_t> is_valid;
  std::vector<std::vector<int64_t>> swa, c128_slots, c128_local;
  std::array<std::vector<int64_t>, kNumCacheGroups> slots;
  const auto slot_of = [&](const CacheGroupSpec& spec, const Token& t, int64_t row) {
    const auto table = requests[static_cast<size_t>(t.request)].block_tables[spec.group];
    return int64_t{table[static_cast<size_t>(row / spec.page_size)]} * spec.page_size + row % spec.page_size;
  };
  for (const Token& t : tokens) {
    positions.push_back(t.real ? t.position : 0);
    token_to_req.push_back(static_cast<int32_t>(t.request));
    is_valid.push_back(t.real ? 1 : 0);
    const int64_t seen = t.real ? t.position + 1 : 0;  // positions 0 .. p
    c4_lens.push_back(static_cast<int32_t>(complete_entries(seen, 4)));
    c128_lens.push_back(static_cast<int32_t>(complete_entries(seen, 128)));
    mla_lens.push_back(static_cast<int32_t>(seen));
    for (const CacheGroupSpec& spec : m.groups) {
      const bool completes = t.real && seen % spec.ratio == 0;
      slots[static_cast<size_t>(spec.group)].push_back(completes ? slot_of(spec, t, t.position / spec.ratio) : -1);
      if (spec.group == CacheGroup::window) {
        swa.emplace_back();
        for (int64_t p = 0; p < seen; ++p) {
          if (p > t.position - m.window) swa.back().push_back(slot_of(spec, t, p));
        }
        swa_lens.push_back(static_cast<int32_t>(swa.back().size()));
      }
      if (spec.group == CacheGroup::c128_compressed) {
        c128_slots.emplace_back();
        c128_local.emplace_back();
        for (int64_t j = 0; j < c128_lens.back(); ++j) {
          c128_slots.back().push_back(slot_of(spec, t, j));
          c128_local.back().push_back(j);
        }
      }
    }
  }
  c.vector("positions", b.positions, positions);
  c.vector("token_to_req", b.token_to_req, token_to_req);
  c.vector("is_valid_token", b.is_valid_token, is_valid);

  // What each group brings.
  for (size_t g = 0; g < kNumCacheGroups; ++g) {
    const auto group = static_cast<CacheGroup>(g);
    const std::string name(to_string(group));
    c.equal("present", static_cast<int64_t>(g), b[group].present, m.has(group));
    if (!m.has(group)) {
      c.absent((name + ".block_table").c_str(), b[group].block_table);
      c.absent((name + ".slot_mapping").c_str(), b[group].slot_mapping);
      continue;
    }
    c.vector((name + ".slot_mapping").c_str(), b[group].slot_mapping, slots[g]);
    const CacheGroupSpec& spec = b[group].spec;
    const TensorView& table = b[group].block_table;
    c.equal((name + ".block_table rows").c_str(), 0, table.shape[0], num_requests);
    c.equal((name + ".block_table columns").c_str(), 0, table.shape[1], spec.pages_for(m.limits.max_model_len));
    for (size_t r = 0; r < requests.size(); ++r) {
      const auto given = requests[r].block_tables[spec.group];
      for (int64_t row = 0; row < complete_entries(requests[r].seq_len, spec.ratio); ++row) {
        if (spec.retained > 0 && row <= requests[r].seq_len - requests[r].query_len - spec.retained) continue;
        c.equal((name + ".block_table").c_str(), static_cast<int64_t>(r), table.row<int32_t>(static_cast<int64_t>(r))[row / spec.page_size],
                given[static_cast<size_t>(row / spec.page_size)]);
      }
    }
  }
  if (m.has(CacheGroup::window)) {
    c.rows("swa_indices", b.swa_indices, m.window, swa);
    c.vector("swa_lens", b.swa_lens, swa_lens);
    c.vector("gather_lens", b.gather_lens, gather_lens);
  } else {
    c.absent("swa_indices", b.swa_indices);
    c.absent("swa_lens", b.swa_lens);
    c.absent("gather_lens", b.gather_lens);
  }
  if (m.has(CacheGroup::c4_compressed) || m.has(CacheGroup::c4_indexer)) {
    c.vector("c4_lens", b.c4_lens, c4_lens);
    c.vector("c4_seq_lens", b.c4_seq_lens, c4_seq_lens);
  } else {
    c.absent("c4_lens", b.c4_lens);
    c.absent("c4_seq_lens", b.c4_seq_lens);
  }
  if (m.has(CacheGroup::c128_compressed)) {
    int64_t width = 0;
    do {
      width += 128;
    } while (width * 128 < b.max_seq_len);
    c.rows("c128_slots", b.c128_slots, width, c128_slots);
    c.rows("c128_local", b.c128_local, width, c128_local);
    c.vector("c128_lens", b.c128_lens, c128_lens);
    c.vector("c128_seq_lens", b.c128_seq_lens, c128_seq_lens);
  } else {
    c.absent("c128_slots", b.c128_slots);
    c.absent("c128_local", b.c128_local);
    c.absent("c128_lens", b.c128_lens);
    c.absent("c128_seq_lens", b.c128_seq_lens);
  }
  if (m.has(CacheGroup::mla_indexer)) {
    c.vector("mla_lens", b.mla_lens, mla_lens);
  } else {
    c.absent("mla_lens", b.mla_lens);
  }
  for (int32_t ratio : {1, 4, 128}) compare_chunks(c, b, m, requests, ratio);
  return c.difference();
}

}  // namespace strata::oracle
