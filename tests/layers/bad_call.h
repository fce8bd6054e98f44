// Calls that a layer must refuse, with an error code and a reason, before it changes any cache.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "layer_fixture.h"

namespace strata::test {

template <class Call>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "the call must be refused: " << (parts.empty() ? "" : parts.front());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "'" << part << "' is not in: " << error.what();
    }
  }
}

struct BadCall {
  const char* name;
  ErrorCode code;
  std::vector<std::string> in_message;
  std::function<void(ForwardArgs&, Batch&)> spoil;
};

// 40 new tokens of request 1, after request 0 had 100.
inline void expect_refused(const BadCall& bad, LayerFixture& fixture) {
  fixture.prefill(0, 100);
  fixture.runner->add_request(1);
  const runner::StepRequest step[] = {{1, 40}};
  Batch batch = fixture.runner->begin_step(step);
  const Tensor workspace(fixture.device, DType::u8, {static_cast<int64_t>(fixture.runner->layer(0).workspace_bytes())});
  ForwardArgs args;
  args.batch = &batch;
  args.caches = fixture.runner->pool().layer(0);
  args.hidden = fixture.hidden.view().slice(0, 40);
  args.out = fixture.out.view().slice(0, 40);
  args.topk_indices = fixture.runner->topk_indices();
  args.workspace = workspace_of(workspace);
  bad.spoil(args, batch);
  const std::vector<std::byte> before = cache_bytes(fixture.runner->pool());
  expect_error(bad.code, bad.in_message, [&] { fixture.runner->layer(0).forward(args); });
  EXPECT_EQ(before, cache_bytes(fixture.runner->pool())) << "a refused call wrote to a cache";
}

}  // namespace strata::test
