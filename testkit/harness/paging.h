// Requests, tokens and pages as an engine would hand them over, at random.
#pragma once

#include <string>
#include <vector>

#include "testkit/harness/inputs.h"

namespace strata::testkit {

struct RequestShape {
  int64_t seq_len = 0;  // the new tokens included
  int64_t query_len = 0;
};

// "-1of40-3of700", equal neighbours as one, "-1of40x6", and no more than twelve.
std::string name_of(const std::vector<RequestShape>& requests);

// The tokens of one step, request after request, then padding.
struct StepTokens {
  std::vector<int64_t> positions;
  std::vector<int32_t> token_to_req;
  std::vector<uint8_t> valid;
  int64_t size() const { return static_cast<int64_t>(positions.size()); }
};
StepTokens make_tokens(const std::vector<RequestShape>& requests, int64_t padding = 0);

// Block tables of several requests over one cache. Every page has one owner, and page numbers are in random order. Entries after those that
// a request needs are not pages.
struct Paging {
  int32_t page_size = 1;
  int64_t num_pages = 0;
  int64_t max_blocks = 0;
  std::vector<int64_t> rows;    // of each request
  std::vector<int32_t> blocks;  // [requests, max_blocks]

  int64_t slot(int64_t request, int64_t row) const {
    return int64_t{blocks[static_cast<size_t>(request * max_blocks + row / page_size)]} * page_size + row % page_size;
  }
  // Slots of every row of every request.
  std::vector<int64_t> all_slots() const;
  // Slots of the last rows of each request: what a sliding window still holds.
  std::vector<int64_t> last_slots(int64_t count) const;
  TensorView table(Inputs& in, Padding padding = {}) const;
};
Paging make_paging(Rng& rng, int32_t page_size, std::vector<int64_t> rows, int64_t spare_pages = 2, int64_t spare_blocks = 1);

// `count` different slots out of [0, num_slots), in random order.
std::vector<int64_t> distinct_slots(Rng& rng, int64_t count, int64_t num_slots);

// A slot_mapping of `tokens` tokens, a share of which is skipped by negative numbers. Returns the slots of the other tokens.
std::vector<int64_t> map_slots(Inputs& in, int64_t tokens, int64_t num_slots, double skipped, TensorView& slot_mapping);

}  // namespace strata::testkit
