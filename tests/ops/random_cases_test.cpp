// Random cases: every op's agree with the reference, they are the same everywhere, and they find what the fixed lists miss.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <stdexcept>

#include "gpu.h"
#include "testkit/cases/registry.h"
#include "testkit/harness/typed_case.h"

namespace strata {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testkit::AnyCase;
using testkit::CaseList;
using testkit::CheckResult;
using testkit::Draw;
using testkit::Outcome;

std::vector<std::string> op_names(const OpSet& ops) {
  std::vector<std::string> names;
  for_each_op(ops, [&](const auto& op) { names.push_back(op.name()); });
  return names;
}

const AnyCase& case_of(const CaseList& list, const std::string& op) {
  const auto found = std::find_if(list.begin(), list.end(), [&](const auto& c) { return c->op() == op; });
  if (found == list.end()) throw std::runtime_error(op + " has no random case");
  return **found;
}

class RandomCases : public testing::TestWithParam<std::string> {};

// Of one seed, so that they pass today and tomorrow; `strata check --random` has all others.
TEST_P(RandomCases, EveryImplementationAgreesWithTheReference) {
  constexpr int64_t kCases = 10;
  const OpSet ops = default_ops();
  std::vector<std::shared_ptr<Device>> devices{open_device({}, Config::from_environment())};
  if (auto gpu = test::gpu_or_null()) devices.push_back(std::move(gpu));
  for (int64_t number = 0; number < kCases; ++number) {
    const CaseList list = testkit::random_cases(1, number);
    const AnyCase& c = case_of(list, GetParam());
    const auto run = c.start_check(ops, {});
    for (const auto& device : devices) {
      for (const std::string& name : c.implementations(ops)) {
        const CheckResult result = run->run(device, name);
        EXPECT_NE(result.outcome, Outcome::failed) << result.message;
      }
      EXPECT_EQ(c.check_planning(ops, device), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, RandomCases, testing::ValuesIn(op_names(default_ops())), [](const auto& op) { return op.param; });

TEST(RandomCaseList, HasOneCaseOfEveryOp) {
  const CaseList list = testkit::random_cases(5, 17);
  std::vector<std::string> ops;
  for (const auto& c : list) {
    ops.push_back(c->op());
    EXPECT_TRUE(c->tags().test);
    EXPECT_THAT(c->name(), StartsWith("random17-"));
    EXPECT_EQ(c->name().find_first_of(" '\"*$"), std::string::npos) << c->name() << " does not survive a command line";
  }
  EXPECT_THAT(ops, testing::UnorderedElementsAreArray(op_names(default_ops())));
}

TEST(RandomCaseList, IsTheSameForASeedAndANumber) {
  const auto name = [](uint64_t seed, int64_t number) { return case_of(testkit::random_cases(seed, number), "sparse_attn_decode").name(); };
  EXPECT_EQ(name(5, 17), name(5, 17));
  std::set<std::string> shapes;
  for (const uint64_t seed : {5, 6, 17}) {
    for (const int64_t number : {5, 6, 17}) shapes.insert(name(seed, number).substr(std::string("random5-").size()));
  }
  EXPECT_EQ(shapes.size(), 9U);
}

TEST(Draw, IsTheSameOnEveryPlatform) {
  Draw draw(5, 17);
  std::vector<int64_t> sizes;
  for (int i = 0; i < 6; ++i) sizes.push_back(draw.size(0, 100'000));
  EXPECT_THAT(sizes, ElementsAre(480, 257, 17, 1, 896, 64));
}

TEST(Draw, SizesReachBothEndsAndWhatIsBesideATile) {
  std::set<int64_t> seen;
  for (int64_t number = 0; number < 3000; ++number) seen.insert(Draw(1, number).size(3, 700));
  EXPECT_EQ(*seen.begin(), 3);
  EXPECT_EQ(*seen.rbegin(), 700);
  for (const int64_t n : {63, 64, 65, 127, 128, 129, 255, 256, 257}) EXPECT_TRUE(seen.contains(n)) << n;
}

TEST(Draw, RequestsStayWithinTheirLimits) {
  for (int64_t number = 0; number < 2000; ++number) {
    int64_t tokens = 0, positions = 0;
    double visible = 0;
    for (const testkit::RequestShape& r : Draw(1, number).requests({.tokens = 300, .positions = 5000, .visible = 1e5})) {
      EXPECT_GE(r.query_len, 0);
      EXPECT_LE(r.query_len, r.seq_len);
      tokens += r.query_len, positions += r.seq_len;
      visible += static_cast<double>(r.query_len * r.seq_len);
    }
    EXPECT_LE(tokens, 300);
    EXPECT_LE(positions, 2 * 5000 + 300);
    EXPECT_LE(visible, 2.2e5);
  }
}

// An implementation that leaves the last row as it was where there is one more of them than a multiple of 32, as a kernel might whose last
// block is not launched. No fixed case of topk_select has such a number of tokens.
OpSet ops_that_forget_a_row() {
  OpSet ops = default_ops();
  Implementation<TopkSelectParams> faulty = testkit::find_implementation(ops.topk_select, "reference");
  faulty.name = "faulty";
  faulty.run = [inner = faulty.run](const TopkSelectParams& p, const ExecutionContext& context) {
    const int64_t last = p.topk_indices.shape[0] - 1;
    const auto bytes = static_cast<size_t>(p.topk_indices.shape[1]) * sizeof(int32_t);
    std::vector<std::byte> before(bytes);
    const bool forget = last > 0 && last % 32 == 0;
    if (forget) std::memcpy(before.data(), p.topk_indices.row<int32_t>(last), bytes);
    inner(p, context);
    if (forget) std::memcpy(p.topk_indices.row<int32_t>(last), before.data(), bytes);
  };
  ops.topk_select.prepend(std::move(faulty));
  return ops;
}

TEST(RandomCaseList, FindsAFaultThatTheFixedCasesMiss) {
  const OpSet ops = ops_that_forget_a_row();
  const auto device = open_device({});
  for (const auto& c : testkit::all_cases()) {
    if (c->op() != "topk_select" || !c->tags().test || c->tags().heavy) continue;
    EXPECT_EQ(c->start_check(ops, {})->run(device, "faulty").outcome, Outcome::passed) << c->name();
  }
  constexpr uint64_t kSeed = 3;
  constexpr int64_t kMost = 200;
  int64_t number = 0;
  CheckResult result;
  std::string name;
  for (; number < kMost && result.outcome != Outcome::failed; ++number) {
    const CaseList list = testkit::random_cases(kSeed, number);
    name = case_of(list, "topk_select").name();
    result = case_of(list, "topk_select").start_check(ops, {.seed = kSeed})->run(device, "faulty");
  }
  ASSERT_EQ(result.outcome, Outcome::failed) << "not found in " << kMost << " cases";
  EXPECT_THAT(result.message, HasSubstr("topk_indices"));
  // What the failure says makes the same case, alone: by its number, which the name begins with, and the seed.
  EXPECT_THAT(result.message, HasSubstr("--op topk_select --case " + name + " --impl faulty --device cpu --seed 3"));
  const CaseList again = testkit::random_cases(kSeed, number - 1);
  EXPECT_EQ(case_of(again, "topk_select").name(), name);
}

}  // namespace
}  // namespace strata
