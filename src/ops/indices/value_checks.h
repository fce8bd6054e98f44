// Checks of values and of layouts that several ops share. Values are checked where the host can read them; on other devices the caller
// guarantees them.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/check.h"
#include "core/unread_host.h"

namespace strata::ops {

// Slots and workspace rows are stored as i32.
inline constexpr int64_t kMaxIndices = int64_t{std::numeric_limits<int32_t>::max()} + 1;

// A view of no elements may have no memory.
inline bool host_visible(const TensorView& v) { return v.present() && is_readable(v.device) && (v.data != nullptr || v.numel() == 0); }

// No element is stored twice, because ops write rows in any order and from several threads.
void check_output(ParamCheck& c, std::string_view name, const TensorView& out);

// A scale that was not set is 0; no model has a scale that is not positive.
inline void check_positive(ParamCheck& c, std::string_view name, float value) {
  c.require(std::isfinite(value) && value > 0.0f, "{} must be positive and finite, is {}", name, value);
}

// The epsilon added to a mean before its root.
inline void check_eps(ParamCheck& c, float eps, std::string_view name = "eps") {
  c.require(std::isfinite(eps) && eps >= 0.0f, "{} must be finite and not negative, is {}", name, eps);
}

// Blocks [first, end) of the request of token t have an entry in the table, and every such entry is a page in [0, num_pages).
void check_blocks(ParamCheck& c, int64_t t, const TensorView& token_to_req, const TensorView& block_table, int64_t first, int64_t end,
                  int64_t num_pages, std::string_view name = "block_table");

// positions i64 [T], token_to_req i32 [T], is_valid_token u8 [T] or absent, block_table i32 [R, max_blocks], page_size > 0.
struct PagedTokens {
  const TensorView& positions;
  const TensorView& token_to_req;
  const TensorView& is_valid_token;
  const TensorView& block_table;
  int32_t page_size;

  void check_views(ParamCheck& c) const;
  bool host_visible() const;
  bool valid(int64_t t) const { return !is_valid_token.present() || is_valid_token.ptr<uint8_t>()[t] != 0; }
  // Throws for a negative position.
  int64_t position(ParamCheck& c, int64_t t) const;
};

}  // namespace strata::ops
