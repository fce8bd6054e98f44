// Prologues and epilogues as separate ops (ops/fusion.h), with ops that write down what they are given.
#include "ops/fusion.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "core/host_device.h"
#include "strata/op_set.h"

namespace strata::ops {
namespace {

// x := x + add, the prologue or epilogue; out := 10 x.
struct AddParams {
  int* x = nullptr;
  int add = 0;
};
struct TimesTenParams {
  int* x = nullptr;
  std::optional<int> add{};  // before, in memory of the workspace; or after, in place
  int* out = nullptr;
};

constexpr Fusion<TimesTenParams, AddParams> kBefore{.name = "add",
                                                    .op = "add",
                                                    .kind = FusionKind::prologue,
                                                    .requested = [](const TimesTenParams& p) { return p.add.has_value(); },
                                                    .without =
                                                        [](const TimesTenParams& p, Arena& arena) {
                                                          TimesTenParams rest = p;
                                                          rest.add.reset();
                                                          if (p.add != 0) rest.x = arena.tensor(DType::i32, {1}).ptr<int>();
                                                          return rest;
                                                        },
                                                    .call =
                                                        [](const TimesTenParams& p, const TimesTenParams& rest) {
                                                          if (rest.x != nullptr && p.x != nullptr) *rest.x = *p.x;
                                                          return AddParams{rest.x, *p.add};
                                                        },
                                                    .idle = [](const TimesTenParams& p) { return p.add == 0; }};

constexpr Fusion<TimesTenParams, AddParams> kAfter{.name = "add",
                                                   .kind = FusionKind::epilogue,
                                                   .requested = kBefore.requested,
                                                   .without =
                                                       [](const TimesTenParams& p, Arena&) {
                                                         TimesTenParams rest = p;
                                                         rest.add.reset();
                                                         return rest;
                                                       },
                                                   .call =
                                                       [](const TimesTenParams& p, const TimesTenParams&) {
                                                         return AddParams{p.out, *p.add};
                                                       }};

class Fusions : public testing::Test {
 protected:
  Implementation<AddParams> add(std::string name, bool takes = true) {
    return {.name = name,
            .supports = [takes](const AddParams&, const Device&) { return takes ? Support::yes() : Support::no("not today"); },
            .workspace_bytes = [](const AddParams&, const Device&) -> int64_t { return 256; },
            .run =
                [this, name](const AddParams& p, const ExecutionContext& context) {
                  ran_.push_back(name + (context.hints.next_weights.present() ? " with hints" : "") +
                                 (context.workspace.bytes >= 256 ? "" : " without room"));
                  *p.x += p.add;
                }};
  }
  Implementation<TimesTenParams> times_ten(std::string name, bool fuses) {
    return {.name = name,
            .supports = [](const TimesTenParams&, const Device&) { return Support::yes(); },
            .workspace_bytes = [](const TimesTenParams&, const Device&) -> int64_t { return 512; },
            .run =
                [this, name](const TimesTenParams& p, const ExecutionContext& context) {
                  ran_.push_back(name + (p.add ? " adding " + std::to_string(*p.add) : "") +
                                 (context.hints.next_weights.present() ? " with hints" : ""));
                  *p.out = 10 * *p.x;
                },
            .fuses = [fuses](const TimesTenParams&, const Device&, std::string_view of) { return fuses && of == "add"; }};
  }

  int run(const Implementation<TimesTenParams>& op, const TimesTenParams& p) {
    const int64_t bytes = op.workspace_bytes(p, *device_);
    const Tensor workspace(device_, DType::u8, {bytes});
    TensorView weights = workspace.view();
    op.run(p, ExecutionContext{*device_, {}, workspace_of(workspace), Hints{.next_weights = weights}});
    return *p.out;
  }

  std::shared_ptr<Device> device_ = open_device({});
  std::vector<std::string> ran_;
  int x_ = 3, out_ = 0;
};

using Ran = std::vector<std::string>;

TEST_F(Fusions, APrologueRunsBeforeInMemoryOfItsOwn) {
  const auto op = with_fusion(times_ten("cpu/ten", false), kBefore, {add("reference"), add("cpu/add")});
  EXPECT_EQ(run(op, {&x_, 4, &out_}), 70);
  EXPECT_EQ(x_, 3) << "the input stays";
  EXPECT_EQ(ran_, (Ran{"cpu/add", "cpu/ten with hints"}))
      << "the separate op is of the same backend, and does not get what the whole hints";
}

TEST_F(Fusions, AnEpilogueRunsAfter) {
  const auto op = with_fusion(times_ten("cpu/ten", false), kAfter, {add("reference"), add("cpu/add", false)});
  EXPECT_EQ(run(op, {&x_, 4, &out_}), 34);
  EXPECT_EQ(ran_, (Ran{"cpu/ten with hints", "reference"})) << "of the same backend where one takes the call";
}

TEST_F(Fusions, TheSeparateOpIsTheForcedOneOrElsePreferred) {
  Implementation<AddParams> unwilling = add("cpu/slow");
  unwilling.prefers = [](const AddParams&, const Device&) { return Support::no("cpu/add is faster"); };
  const auto op = with_fusion(times_ten("cpu/ten", false), kBefore, {unwilling, add("cpu/add"), add("reference")});
  run(op, {&x_, 4, &out_});
  Config config;
  for (const char* name : {"cpu/slow", "reference"}) {
    config.force["add"] = name;
    device_ = open_device({}, config);
    run(op, {&x_, 4, &out_});
  }
  EXPECT_EQ(ran_, (Ran{"cpu/add", "cpu/ten with hints", "cpu/slow", "cpu/ten with hints", "reference", "cpu/ten with hints"}));
  ran_.clear();
  config.force.clear();
  for (const char* name : {"cpu/slow", "cpu/ten"}) {
    config.force["*"] = name;
    device_ = open_device({}, config);
    run(op, {&x_, 4, &out_});
  }
  EXPECT_EQ(ran_, (Ran{"cpu/slow", "cpu/ten with hints", "cpu/add", "cpu/ten with hints"})) << "* names those that the op has";
  config.force["add"] = "cpu/other";
  EXPECT_FALSE(op.supports({&x_, 4, &out_}, *open_device({}, config)));
}

TEST_F(Fusions, WhatIsFusedOrNotAskedForIsTheImplementationsOwn) {
  const auto fusing = with_fusion(times_ten("cpu/ten", true), kBefore, {add("cpu/add")});
  run(fusing, {&x_, 4, &out_});
  const auto plain = with_fusion(times_ten("cpu/ten", false), kBefore, {add("cpu/add")});
  run(plain, {&x_, {}, &out_});
  EXPECT_EQ(ran_, (Ran{"cpu/ten adding 4 with hints", "cpu/ten with hints"}));
}

TEST_F(Fusions, AnIdleOneIsLeftOut) {
  const auto op = with_fusion(times_ten("cpu/ten", false), kBefore, {add("cpu/add", false)});
  EXPECT_TRUE(op.supports({&x_, 0, &out_}, *device_));
  TimesTenParams p{&x_, 0, &out_};
  const int64_t bytes = op.workspace_bytes(p, *device_);
  const Tensor workspace(device_, DType::u8, {bytes});
  op.run(p, ExecutionContext{*device_, {}, workspace_of(workspace)});
  EXPECT_EQ(ran_, (Ran{"cpu/ten"})) << "and the implementation does not see it";
}

TEST_F(Fusions, WithoutASeparateOpTheCallIsRefused) {
  const auto op = with_fusion(times_ten("cpu/ten", false), kBefore, {add("cpu/add", false)});
  EXPECT_NE(op.supports({&x_, 4, &out_}, *device_).reason.find("does not fuse add"), std::string::npos);
  EXPECT_TRUE(op.supports({&x_, {}, &out_}, *device_));
}

TEST_F(Fusions, TheWorkspaceHasRoomForBothAndForWhatPassesBetween) {
  const auto op = with_fusion(times_ten("cpu/ten", false), kBefore, {add("cpu/add")});
  EXPECT_EQ(op.workspace_bytes({&x_, {}, &out_}, *device_), 512);
  EXPECT_GE(op.workspace_bytes({&x_, 4, &out_}, *device_), 512 + static_cast<int64_t>(sizeof(int)));
}

// A completed implementation does what it is completed by: to complete it again changes nothing.
TEST_F(Fusions, ACompletedOneStaysAsItIs) {
  const auto once = with_fusion(times_ten("cpu/ten", false), kBefore, {add("cpu/add")});
  EXPECT_TRUE(once.fuses({&x_, 4, &out_}, *device_, "add"));
  EXPECT_EQ(run(with_fusion(once, kBefore, {add("cpu/add")}), {&x_, 4, &out_}), 70);
  EXPECT_EQ(ran_.size(), 2U);
}

// A Hopper GPU by its properties alone: implementations answer about it without one.
class Gpu final : public HostDevice {
 public:
  Gpu() : HostDevice(DeviceId{DeviceKind::cuda, 0}) {}
  DeviceProperties properties() const override {
    return {.compute_major = 9, .compute_minor = 0, .num_sms = 132, .max_shared_bytes = 232448};
  }
};

// A member that an implementation does not know is not fused, whatever the call has.
TEST(BuiltInFusions, AnUnknownMemberIsNotFused) {
  const std::shared_ptr<Device> cpu = open_device({}), gpu = std::make_shared<Gpu>();
  const OpSet ops = default_ops();
  std::vector<std::string> asked;
  for_each_op(ops, [&]<class P>(const Op<P>& op) {
    for (const Implementation<P>& implementation : op.implementations()) {
      if (!implementation.fuses) continue;
      for (const std::shared_ptr<Device>& device : {cpu, gpu}) {
        for (const char* name : {"", "unknown", "y"}) {
          EXPECT_FALSE(implementation.fuses(P{}, *device, name)) << op.name() << ", " << implementation.name << " fuses '" << name << "'";
        }
      }
      if (asked.empty() || asked.back() != op.name()) asked.push_back(op.name());
    }
  });
  EXPECT_EQ(asked, (std::vector<std::string>{"grouped_linear", "rms_norm_pair", "compress_norm_rope_store", "indexer_topk",
                                             "sparse_attn_decode"}));
}

}  // namespace
}  // namespace strata::ops
