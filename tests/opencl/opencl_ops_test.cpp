// Cases of every op with every OpenCL implementation, forced by name, against the reference. `strata check --device opencl:0` runs all of
// them. Batch-invariant attention.
#include <map>
#include <string>
#include <vector>

#include "ops/batch_invariance_tests.h"
#include "strata/op_set.h"
#include "testkit/cases/registry.h"

namespace strata {
namespace {

const OpSet& ops() {
  static const OpSet set = default_ops();
  return set;
}

bool is_opencl(const std::string& implementation) { return implementation.starts_with("opencl/"); }

// The ops that have an OpenCL implementation.
std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for_each_op(ops(), [&](const auto& op) {
    for (const auto& implementation : op.implementations()) {
      if (!is_opencl(implementation.name)) continue;
      names.push_back(op.name());
      return;
    }
  });
  return names;
}

// At most `count` of an op's cases, evenly spaced in its list. Heavy cases, and those of Tags::gpu, take too long on a CPU.
std::vector<const testkit::AnyCase*> sample(const std::string& op, size_t count) {
  static const testkit::CaseList all = testkit::all_cases();
  std::vector<const testkit::AnyCase*> cases;
  for (const auto& c : all) {
    if (c->op() == op && c->tags().test && !c->tags().heavy && !c->tags().gpu) cases.push_back(c.get());
  }
  if (cases.size() <= count) return cases;
  std::vector<const testkit::AnyCase*> result;
  for (size_t i = 0; i < count; ++i) result.push_back(cases[i * cases.size() / count]);
  return result;
}

class OpenClOps : public test::DeviceTest, public testing::WithParamInterface<std::string> {
 protected:
  OpenClOps() : DeviceTest({DeviceKind::opencl, 0}) {}

  // No case fails, and at least one passes.
  void check(size_t count, const testkit::CheckOptions& options) {
    std::map<std::string, int> passed;
    for (const testkit::AnyCase* c : sample(GetParam(), count)) {
      const auto run = c->start_check(ops(), options);
      for (const std::string& name : c->implementations(ops())) {
        if (!is_opencl(name)) continue;
        const testkit::CheckResult result = run->run(device_, name);
        if (result.outcome == testkit::Outcome::passed) ++passed[name];
        EXPECT_NE(result.outcome, testkit::Outcome::failed) << result.message;
      }
    }
    EXPECT_FALSE(passed.empty()) << GetParam() << ": no case passes on " << device_->description();
  }
};

TEST_P(OpenClOps, AgreeWithTheReference) { check(40, {}); }

TEST_P(OpenClOps, TakeMemoryOfAnyAlignment) { check(10, {.offset = 8}); }

INSTANTIATE_TEST_SUITE_P(Ops, OpenClOps, testing::ValuesIn(op_names()), [](const auto& op) { return op.param; });

constexpr DeviceId kOpenCl{DeviceKind::opencl, 0};
INSTANTIATE_TEST_SUITE_P(OpenCl, DecodeInvariance,
                         testing::Values(DecodeShape{kOpenCl, 6, 1, 128, 130, KvFormat::fp8_ds_mla_v4},
                                         DecodeShape{kOpenCl, 4, 2, 200, 0, KvFormat::fp8_ds_mla}),
                         decode_shape_name);
INSTANTIATE_TEST_SUITE_P(OpenCl, PrefillInvariance,
                         testing::Values(PrefillShape{kOpenCl, 20, 150, 6, 512, 100}, PrefillShape{kOpenCl, 12, 150, 6, 576, 130}),
                         prefill_shape_name);

}  // namespace
}  // namespace strata
