#include "testkit/harness/paging.h"

#include <algorithm>
#include <limits>

namespace strata::testkit {

std::string name_of(const std::vector<RequestShape>& requests) {
  std::string name;
  int entries = 0;
  for (size_t i = 0, next = 0; i < requests.size(); i = next) {
    if (++entries > 12) return name + "-and" + std::to_string(requests.size() - i);
    const auto same = [&](const RequestShape& r) { return r.seq_len == requests[i].seq_len && r.query_len == requests[i].query_len; };
    while (next < requests.size() && same(requests[next])) ++next;
    name += "-" + std::to_string(requests[i].query_len) + "of" + std::to_string(requests[i].seq_len);
    if (next > i + 1) name += "x" + std::to_string(next - i);
  }
  return name;
}

StepTokens make_tokens(const std::vector<RequestShape>& requests, int64_t padding) {
  StepTokens tokens;
  for (size_t r = 0; r < requests.size(); ++r) {
    for (int64_t i = 0; i < requests[r].query_len; ++i) {
      tokens.positions.push_back(requests[r].seq_len - requests[r].query_len + i);
      tokens.token_to_req.push_back(static_cast<int32_t>(r));
      tokens.valid.push_back(1);
    }
  }
  for (int64_t i = 0; i < padding; ++i) {
    tokens.positions.push_back(0);
    tokens.token_to_req.push_back(0);
    tokens.valid.push_back(0);
  }
  return tokens;
}

std::vector<int64_t> Paging::all_slots() const { return last_slots(std::numeric_limits<int64_t>::max()); }

std::vector<int64_t> Paging::last_slots(int64_t count) const {
  std::vector<int64_t> slots;
  for (size_t r = 0; r < rows.size(); ++r) {
    for (int64_t row = std::max<int64_t>(0, rows[r] - std::min(count, rows[r])); row < rows[r]; ++row) {
      slots.push_back(slot(static_cast<int64_t>(r), row));
    }
  }
  return slots;
}

TensorView Paging::table(Inputs& in, Padding padding) const {
  return in.values(DType::i32, {static_cast<int64_t>(rows.size()), max_blocks}, blocks, padding);
}

Paging make_paging(Rng& rng, int32_t page_size, std::vector<int64_t> rows, int64_t spare_pages, int64_t spare_blocks) {
  Paging paging;
  paging.page_size = page_size;
  paging.rows = std::move(rows);
  const auto pages_of = [&](int64_t n) { return (n + page_size - 1) / page_size; };
  for (int64_t n : paging.rows) {
    paging.num_pages += pages_of(n);
    paging.max_blocks = std::max(paging.max_blocks, pages_of(n));
  }
  paging.num_pages += spare_pages;
  paging.max_blocks += spare_blocks;
  paging.blocks.assign(paging.rows.size() * static_cast<size_t>(paging.max_blocks), std::numeric_limits<int32_t>::max());
  const std::vector<int32_t> pages = rng.permutation(paging.num_pages);
  size_t next = 0;
  for (size_t r = 0; r < paging.rows.size(); ++r) {
    for (int64_t b = 0; b < pages_of(paging.rows[r]); ++b) {
      paging.blocks[r * static_cast<size_t>(paging.max_blocks) + static_cast<size_t>(b)] = pages[next++];
    }
  }
  return paging;
}

std::vector<int64_t> distinct_slots(Rng& rng, int64_t count, int64_t num_slots) {
  const std::vector<int32_t> order = rng.permutation(num_slots);
  return {order.begin(), order.begin() + count};
}

std::vector<int64_t> map_slots(Inputs& in, int64_t tokens, int64_t num_slots, double skipped, TensorView& slot_mapping) {
  std::vector<int64_t> slots = distinct_slots(in.rng(), tokens, num_slots), written;
  for (int64_t& slot : slots) {
    if (in.rng().chance(skipped)) {
      slot = in.rng().chance(0.5) ? -1 : -7;
    } else {
      written.push_back(slot);
    }
  }
  slot_mapping = in.i64(slots);
  return written;
}

}  // namespace strata::testkit
