// What the cases of index generation share: the tokens of one step and their block table.
#pragma once

#include <string>
#include <vector>

#include "testkit/harness/draw.h"
#include "testkit/harness/paging.h"

namespace strata::testkit {

struct StepShape {
  std::vector<RequestShape> requests;
  int64_t padding_tokens = 0;
  double invalid = 0;         // share of the real tokens that are marked invalid
  bool with_validity = true;  // is_valid_token is given
  int32_t page_size = 64;
  int64_t table_padding = 0;
  int32_t first_page = 0;  // added to every page number
  std::string suffix{};
};

struct Step {
  StepTokens tokens;
  Paging paging;
  TensorView positions, token_to_req, is_valid_token, block_table;
};
// Block table rows cover seq_len / ratio rows of each request.
Step make_step(Inputs& in, const StepShape& shape, int64_t ratio);
std::string name_of(const StepShape& shape);

// Steps that every index op is tested with.
std::vector<StepShape> step_tests();
StepShape random_step(Draw& draw);
// T = 1, 64, 4096 tokens: decode requests of 4096 positions, and for 4096 one prompt.
StepShape step_bench(Inputs& in, int64_t tokens);

}  // namespace strata::testkit
