// Every case of every op with every implementation, forced by name, against the reference.
#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "backends/cpu/cpu_device.h"
#include "gpu.h"
#include "testkit/cases/registry.h"

namespace strata {
namespace {

const testkit::CaseList& all() {
  static const testkit::CaseList list = testkit::all_cases();
  return list;
}

const OpSet& ops() {
  static const OpSet set = default_ops();
  return set;
}

// The CPU as it is, and capped at every lower instruction set that this machine makes a difference for; and a GPU where there is one.
struct CappedDevice {
  std::shared_ptr<Device> device;
  bool capped = false;
};
const std::vector<CappedDevice>& devices() {
  static const std::vector<CappedDevice> list = [] {
    const Config base = Config::from_environment();
    std::vector<CappedDevice> result{{open_device({}, base), false}};
    const CpuIsa best = cpu::isa_of(*result.front().device);
    for (const CpuIsa isa : {CpuIsa::avx512_bf16, CpuIsa::avx512, CpuIsa::avx2, CpuIsa::portable}) {
      if (isa >= best) continue;
      Config config = base;
      config.cpu_isa = isa;
      result.push_back({open_device({}, config), true});
    }
    if (auto gpu = test::gpu_or_null(base)) result.push_back({std::move(gpu), false});
    return result;
  }();
  return list;
}

// Implementations named after an instruction set that this machine does not have cannot run here; all others must.
bool can_run_here(const std::string& implementation) {
  const CpuIsa machine = cpu::isa_of(*devices().front().device);
  if (implementation.starts_with("cuda/")) {
    const Device& last = *devices().back().device;
    const bool hopper_only = implementation.starts_with("cuda/sm90") || implementation == "cuda/cublaslt_fp8";
    return last.id().kind == DeviceKind::cuda && (!hopper_only || last.properties().compute_major == 9);
  }
  if (implementation.starts_with("opencl/")) return false;  // tests/opencl/opencl_ops_test.cpp
  if (implementation == "cpu/onednn") return machine >= CpuIsa::avx512_bf16;
  for (const CpuIsa isa : {CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16, CpuIsa::amx}) {
    if (implementation == std::string("cpu/") + to_string(isa)) return machine >= isa;
  }
  return true;
}

std::vector<std::string> op_names() {
  std::vector<std::string> names;
  for_each_op(ops(), [&](const auto& op) { names.push_back(op.name()); });
  return names;
}

class OpTest : public testing::TestWithParam<std::string> {};

bool has_gpu() { return devices().back().device->id().kind == DeviceKind::cuda; }

// Without a GPU some cases show the same as all, which `strata check` runs: heavy ones and those of Tags::gpu fill a GPU, whose kernels
// tile and split by size; the reference against itself shows what it writes; and each lower instruction set takes its share of the cases.
constexpr int kSample = 12;  // one case of this many

// Those of them that are left out, counted by `number`.
bool is_left_out(const testkit::Tags& tags, int& number) { return (tags.heavy || tags.gpu) && !has_gpu() && number++ % kSample != 0; }

TEST_P(OpTest, EveryImplementationAgreesWithTheReference) {
  int large = 0, number = 0;
  std::map<std::string, int> passed;
  for (const auto& c : all()) {
    if (c->op() != GetParam() || !c->tags().test) continue;
    if (is_left_out(c->tags(), large)) continue;
    const int turn = number++;
    const auto run = c->start_check(ops(), {});
    for (const std::string& name : c->implementations(ops())) {
      passed.try_emplace(name, 0);
      if (name == "reference" && !has_gpu() && turn % kSample != 0) continue;
      for (size_t i = 0; i < devices().size(); ++i) {
        const CappedDevice& d = devices()[i];
        if (d.capped && !has_gpu() && turn % devices().size() != i) continue;
        // A lower instruction set changes nothing in scalar code, and repeats much in a large case.
        if (d.capped && (name == "reference" || c->tags().heavy)) continue;
        const testkit::CheckResult result = run->run(d.device, name);
        if (result.outcome == testkit::Outcome::passed) ++passed[name];
        EXPECT_NE(result.outcome, testkit::Outcome::failed) << result.message;
      }
    }
  }
  for (const auto& [name, count] : passed) {
    if (!can_run_here(name)) continue;
    EXPECT_GT(count, 0) << GetParam() << ": no case exercises " << name;
  }
  EXPECT_GT(passed["reference"], 0) << GetParam() << " has no case";
}

// Every case on a GPU, whose loads depend on it; on a CPU some, and of an implementation all until one passes.
TEST_P(OpTest, EveryImplementationTakesMemoryOfAnyAlignment) {
  const bool on_gpu = has_gpu();
  const auto& device = on_gpu ? devices().back().device : devices().front().device;
  std::map<std::string, int> passed;
  int large = 0, number = 0;
  for (const auto& c : all()) {
    if (c->op() != GetParam() || !c->tags().test || c->tags().heavy || is_left_out(c->tags(), large)) continue;
    const bool all_run = on_gpu || number++ % 8 == 0;
    const auto run = c->start_check(ops(), {.offset = 8});
    for (const std::string& name : c->implementations(ops())) {
      if (name.starts_with("cuda/") != on_gpu || !can_run_here(name)) continue;
      int& count = passed[name];
      if (!all_run && count > 0) continue;
      const testkit::CheckResult result = run->run(device, name);
      if (result.outcome == testkit::Outcome::passed) ++count;
      EXPECT_NE(result.outcome, testkit::Outcome::failed) << result.message;
    }
  }
  EXPECT_FALSE(passed.empty()) << GetParam() << " has no case";
  // Weights of the linear ops begin at a multiple of 16 bytes on a GPU: no case of theirs is left there.
  if (on_gpu && (GetParam() == "linear" || GetParam() == "grouped_linear")) return;
  for (const auto& [name, count] : passed) {
    EXPECT_GT(count, 0) << GetParam() << ": " << name << " refuses all memory that is not at a multiple of 16";
  }
}

TEST_P(OpTest, PlansWithShapesWhatItRunsWith) {
  int large = 0, number = 0;
  for (const auto& c : all()) {
    if (c->op() != GetParam() || !c->tags().test) continue;
    if (is_left_out(c->tags(), large)) continue;
    const bool best = has_gpu() || number % 2 == 0, last = has_gpu() || number % 2 != 0;
    ++number;
    if (best) {
      EXPECT_EQ(c->check_planning(ops(), devices().front().device), "");
    }
    if (last) {
      EXPECT_EQ(c->check_planning(ops(), devices().back().device), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, OpTest, testing::ValuesIn(op_names()), [](const auto& op) { return op.param; });

TEST(CaseList, NamesAreUniqueAndEveryOpHasTestsAndBenchmarks) {
  std::set<std::string> names;
  std::map<std::string, int> tests, benchmarks;
  for (const auto& c : all()) {
    const std::string kind = c->tags().test ? "test " : "benchmark ";
    EXPECT_TRUE(names.insert(kind + c->op() + " " + c->name()).second) << c->op() << " has two cases " << c->name();
    EXPECT_EQ(c->name().find_first_of(" '\"*$"), std::string::npos) << c->name() << " does not survive a command line";
    if (c->tags().test) ++tests[c->op()];
    if (c->tags().bench) ++benchmarks[c->op()];
  }
  for (const std::string& op : op_names()) {
    EXPECT_GT(tests[op], 0) << op;
    EXPECT_GT(benchmarks[op], 0) << op;
  }
  EXPECT_EQ(tests.size(), op_names().size());
}

TEST(CaseList, TheSameSeedGivesTheSameInputsAndAnotherSeedOthers) {
  const auto device = open_device({});
  const auto bytes = [&](uint64_t seed) {
    testkit::Inputs in(device, {.seed = seed});
    in.bf16({3, 5}, 1.0, {.inner = 2});
    const int64_t slots[] = {1, 4};
    in.cache({.page_size = 3, .num_pages = 2}, slots);
    std::vector<std::byte> all_bytes;
    for (const auto& block : in.blocks()) all_bytes.insert(all_bytes.end(), block.image.begin(), block.image.end());
    return all_bytes;
  };
  EXPECT_EQ(bytes(7), bytes(7));
  EXPECT_NE(bytes(7), bytes(8));
}

}  // namespace
}  // namespace strata
