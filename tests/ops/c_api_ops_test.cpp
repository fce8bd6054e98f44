// Every op through the C API: the same bits, workspace, implementation and defaults as through C++.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ops/c_params.h"
#include "testkit/cases/registry.h"

namespace strata {
namespace {

using test::COp;
using test::ToC;

// A device of the C API, closed at the end.
class CDevice {
 public:
  CDevice() { EXPECT_EQ(strata_device_open("cpu", nullptr, &device_), STRATA_OK) << strata_last_error(); }
  ~CDevice() { EXPECT_EQ(strata_device_close(device_), STRATA_OK) << strata_last_error(); }
  CDevice(const CDevice&) = delete;
  CDevice& operator=(const CDevice&) = delete;
  operator strata_device() const { return device_; }

 private:
  strata_device device_{};
};

// The answers to a call before it runs, with the call's memory or without.
template <class Params>
void expect_same_plan(const Op<Params>& op, const Params& params, const std::shared_ptr<Device>& device, strata_device c_device,
                      bool without_memory) {
  ToC to(without_memory);
  const auto c = to_c(params, to);
  int64_t bytes = -1;
  ASSERT_EQ(COp<Params>::workspace_bytes(c_device, &c, &bytes), STRATA_OK) << strata_last_error();
  EXPECT_EQ(bytes, op.workspace_bytes(params, *device));
  const char* name = nullptr;
  ASSERT_EQ(COp<Params>::implementation(c_device, &c, &name), STRATA_OK) << strata_last_error();
  EXPECT_EQ(name, op.select(params, *device).name);
  std::string want;
  for (const Candidate& candidate : op.candidates(params, *device)) {
    want += (want.empty() ? "" : "\n") + candidate.name + ": " + (candidate.is_eligible() ? "eligible" : candidate.reason());
  }
  int64_t needed = 0;
  ASSERT_EQ(strata_op_candidates(op.name().c_str(), c_device, &c, nullptr, 0, &needed), STRATA_OK) << strata_last_error();
  EXPECT_EQ(needed, static_cast<int64_t>(want.size()) + 1);
  std::string text(static_cast<size_t>(needed), '?');
  ASSERT_EQ(strata_op_candidates(op.name().c_str(), c_device, &c, text.data(), needed, nullptr), STRATA_OK) << strata_last_error();
  EXPECT_EQ(text.c_str(), want);
}

// All calls of the op's list that are not heavy, each twice with the same inputs: the run of the reference is that of C++ here, the other
// one that of C.
template <class Params>
void expect_same_bits(const OpSet& ops, const Op<Params>& op) {
  const CDevice c_device;
  const auto device = open_device({});
  std::vector<std::string> by_cpp, by_c;
  Implementation<Params> reference;
  reference.name = "reference";
  reference.supports = [](const Params&, const Device&) { return Support::yes(); };
  reference.workspace_bytes = [&](const Params& p, const Device& d) { return op.workspace_bytes(p, d); };
  reference.fuses = [](const Params&, const Device&, std::string_view) { return true; };
  Implementation<Params> c_api = reference;
  c_api.name = "c_api";
  reference.run = [&](const Params& p, const ExecutionContext& context) {
    op(p, context);
    ToC to;
    static_cast<void>(to_c(p, to));
    by_cpp = to.memory();
  };
  c_api.run = [&](const Params& p, const ExecutionContext& context) {
    expect_same_plan(op, p, device, c_device, false);
    expect_same_plan(op, p, device, c_device, true);
    ToC to;
    const auto c = to_c(p, to);
    strata_execution execution = strata_execution_default();
    execution.workspace = context.workspace.data;
    execution.workspace_bytes = context.workspace.bytes;
    EXPECT_EQ(COp<Params>::run(c_device, &c, &execution), STRATA_OK) << strata_last_error();
    by_c = to.memory();
  };
  OpSet both = ops;
  for_each_op(both, [&](auto& each) {
    if constexpr (std::is_same_v<std::decay_t<decltype(each)>, Op<Params>>) {
      each.prepend(reference);
      each.prepend(c_api);
    }
  });
  constexpr size_t kMost = 16;  // calls of an op
  std::vector<const testkit::AnyCase*> cases;
  static const testkit::CaseList all = testkit::all_cases();
  for (const auto& c : all) {
    if (c->op() == op.name() && c->tags().test && !c->tags().heavy && !c->tags().gpu) cases.push_back(c.get());
  }
  const size_t step = (cases.size() + kMost - 1) / kMost;
  ASSERT_FALSE(cases.empty());
  int compared = 0;
  for (size_t i = 0; i < cases.size(); i += step) {
    SCOPED_TRACE(cases[i]->op() + " " + cases[i]->name());
    by_cpp.clear();
    by_c.clear();
    const testkit::CheckResult result = cases[i]->start_check(both, {})->run(device, "c_api");
    EXPECT_NE(result.outcome, testkit::Outcome::failed) << result.message;
    if (result.outcome != testkit::Outcome::passed) continue;
    EXPECT_EQ(by_c.size(), by_cpp.size());
    EXPECT_TRUE(by_c == by_cpp) << "other bits";
    compared += !by_c.empty();
  }
  EXPECT_GT(compared, 0);
}

class COps : public testing::TestWithParam<std::string> {};

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  const OpSet ops = default_ops();
  for_each_op(ops, [&](const auto& op) { names.push_back(op.name()); });
  return names;
}

TEST_P(COps, GiveTheBitsOfCpp) {
  const OpSet ops = default_ops();
  for_each_op(ops, [&](const auto& op) {
    if (op.name() == GetParam()) expect_same_bits(ops, op);
  });
}

INSTANTIATE_TEST_SUITE_P(Ops, COps, testing::ValuesIn(op_names()), [](const auto& op) { return op.param; });

TEST(COpNames, AreThoseOfForEachOp) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < strata_op_count(); ++i) names.emplace_back(strata_op_name(i));
  EXPECT_EQ(names, op_names());
  EXPECT_EQ(strata_op_name(-1), nullptr);
  EXPECT_EQ(strata_op_name(strata_op_count()), nullptr);
}

// What NAME_default() makes of a params struct is what C++ initialises it to.
template <class C, class Params>
void expect_default(const C& made, const Params& params) {
  ToC to;
  const C want = to_c(params, to);
  const auto bytes = [](const C& c) { return std::string(reinterpret_cast<const char*>(&c), sizeof c); };
  EXPECT_TRUE(bytes(made) == bytes(want));
}

TEST(COpDefaults, AreThoseOfCpp) {
  const OpSet ops = default_ops();
  for_each_op(ops, [&]<class Params>(const Op<Params>& op) {
    SCOPED_TRACE(op.name());
    expect_default(COp<Params>::make_default(), Params{});
  });
  expect_default(strata_linear_weight_default(), LinearWeight{});
  expect_default(strata_key_insert_default(), KeyInsert{});
  expect_default(strata_state_save_default(), StateSave{});
  expect_default(strata_indexer_query_prologue_default(), IndexerQueryPrologue{});
  expect_default(strata_topk_slots_default(), TopkSlots{});
  expect_default(strata_query_norm_rope_default(), QueryNormRope{});
  expect_default(strata_inverse_rope_epilogue_default(), InverseRope{});
}

}  // namespace
}  // namespace strata
