// Which implementation a benchmark times where none is named: the one that a caller of the op gets.
#include <gtest/gtest.h>

#include "testkit/cases/registry.h"
#include "testkit/harness/case.h"

namespace strata {
namespace {

TEST(BenchSelection, IsThatOfTheOp) {
  OpSet ops = default_ops();
  Implementation<InverseRopeParams> slow = ops.inverse_rope.implementations().back();
  slow.name = "slow";
  slow.prefers = [](const InverseRopeParams&, const Device&) { return Support::no("every other one is faster"); };
  ops.inverse_rope.prepend(slow);
  const auto device = open_device({});
  size_t timed = 0;
  for (const auto& c : testkit::all_cases()) {
    if (c->op() != "inverse_rope" || !c->tags().bench) continue;
    EXPECT_EQ(c->prepare(ops, device, "", {.share = 64}).implementation, "cpu/simd") << c->name();
    EXPECT_EQ(c->prepare(ops, device, "slow", {.share = 64}).implementation, "slow") << c->name();
    ++timed;
    break;
  }
  EXPECT_EQ(timed, 1u);
}

}  // namespace
}  // namespace strata
