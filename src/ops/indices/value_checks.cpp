#include "ops/indices/value_checks.h"

#include <array>
#include <utility>

namespace strata::ops {

void check_output(ParamCheck& c, std::string_view name, const TensorView& out) {
  if (!out.present() || out.numel() == 0) return;
  std::array<int, kMaxRank> order{};  // dimensions from the smallest stride to the largest: views may be permuted
  for (int i = 0; i < out.rank; ++i) order[i] = i;
  for (int i = 1; i < out.rank; ++i) {
    for (int j = i; j > 0 && out.stride[order[j]] < out.stride[order[j - 1]]; --j) std::swap(order[j], order[j - 1]);
  }
  int64_t span = 1;  // elements from the first to one past the last, over the dimensions seen before
  for (int i = 0; i < out.rank; ++i) {
    const int d = order[i];
    if (out.shape[d] == 1) continue;
    c.require(out.stride[d] >= span, "{} must have a stride of at least {} in dimension {} so that rows do not overlap, is {}", name, span,
              d, out);
    span += (out.shape[d] - 1) * out.stride[d];
  }
}

void check_blocks(ParamCheck& c, int64_t t, const TensorView& token_to_req, const TensorView& block_table, int64_t first, int64_t end,
                  int64_t num_pages, std::string_view name) {
  if (first >= end) return;
  const int64_t request = token_to_req.ptr<int32_t>()[t];
  c.require(request >= 0 && request < block_table.shape[0], "token_to_req[{}] must be in [0, {}), is {}", t, block_table.shape[0], request);
  c.require(end <= block_table.shape[1], "{} must have at least {} blocks for token {} of request {}, has {}", name, end, t, request,
            block_table.shape[1]);
  const int32_t* pages = block_table.row<int32_t>(request);
  for (int64_t block = first; block < end; ++block) {
    c.require(pages[block] >= 0 && pages[block] < num_pages, "{}[{}, {}] must be in [0, {}) (token {} needs it), is {}", name, request,
              block, num_pages, t, pages[block]);
  }
}

void PagedTokens::check_views(ParamCheck& c) const {
  c.view("positions", positions, DType::i64, {kAny});
  const int64_t tokens = positions.shape[0];
  c.view("token_to_req", token_to_req, DType::i32, {tokens});
  c.optional("is_valid_token", is_valid_token, DType::u8, {tokens});
  c.view("block_table", block_table, DType::i32, {kAny, kAny});
  c.require(page_size > 0, "page_size must be positive, is {}", page_size);
}

bool PagedTokens::host_visible() const {
  return ops::host_visible(positions) && ops::host_visible(token_to_req) && ops::host_visible(block_table) &&
         (!is_valid_token.present() || ops::host_visible(is_valid_token));
}

int64_t PagedTokens::position(ParamCheck& c, int64_t t) const {
  const int64_t p = positions.ptr<int64_t>()[t];
  c.require(p >= 0, "positions[{}] must not be negative, is {}", t, p);
  c.require(p < std::numeric_limits<int64_t>::max(), "positions[{}] must be below 2^63 - 1, is {}", t, p);  // p + 1 is a length
  return p;
}

}  // namespace strata::ops
