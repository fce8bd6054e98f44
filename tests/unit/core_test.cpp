// Selecting an implementation, measuring a workspace, reading the environment, checking parameters.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <initializer_list>
#include <limits>

#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_features.h"
#include "core/arena.h"
#include "core/check.h"
#include "core/host_device.h"
#include "core/thread_team.h"
#include "strata/op_set.h"

namespace strata {
namespace {

struct Params {
  int64_t n = 0;
};

Implementation<Params> implementation(const std::string& name, int64_t largest, std::string* ran) {
  return {.name = name,
          .supports =
              [largest](const Params& p, const Device&) {
                return p.n <= largest ? Support::yes() : Support::no(fmt::format("needs n <= {}, is {}", largest, p.n));
              },
          .workspace_bytes = [](const Params& p, const Device&) { return static_cast<size_t>(p.n) * 8; },
          .run = [name, ran](const Params&, const ExecutionContext&) { *ran = name; }};
}

Op<Params> make_op(std::string* ran) {
  return {"probe",
          [](const Params& p, DeviceId) { require(p.n >= 0, "probe: n must not be negative, is {}", p.n); },
          {implementation("fast", 10, ran), implementation("reference", 100, ran)}};
}

std::string message(const std::function<void()>& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(OpSelection, TheFirstThatSupportsRuns) {
  std::string ran;
  const Op<Params> op = make_op(&ran);
  const auto device = open_device({});
  alignas(256) char memory[1024];
  op({5}, {*device, {}, {memory, sizeof memory}});
  EXPECT_EQ(ran, "fast");
  op({11}, {*device, {}, {memory, sizeof memory}});
  EXPECT_EQ(ran, "reference");
}

TEST(OpSelection, RefusalsAreListed) {
  std::string ran;
  const Op<Params> op = make_op(&ran);
  const auto device = open_device({});
  const std::string text = message([&] { op({101}, {*device}); }, ErrorCode::unsupported);
  EXPECT_NE(text.find("fast: needs n <= 10, is 101"), std::string::npos) << text;
  EXPECT_NE(text.find("reference: needs n <= 100, is 101"), std::string::npos) << text;
}

TEST(OpSelection, ForceNarrowsToOneName) {
  std::string ran;
  const Op<Params> op = make_op(&ran);
  alignas(256) char memory[1024];
  Config config;
  config.force["probe"] = "reference";
  const auto device = open_device({}, config);
  op({5}, {*device, {}, {memory, sizeof memory}});
  EXPECT_EQ(ran, "reference");
  config.force = {{"*", "fast"}};
  const auto fast = open_device({}, config);
  const std::string text = message([&] { op({11}, {*fast, {}, {memory, sizeof memory}}); }, ErrorCode::unsupported);
  EXPECT_NE(text.find("fast: needs n <= 10"), std::string::npos) << text;
  config.force = {{"*", "nowhere"}};  // "*" applies only where an op has the name
  op({5}, {*open_device({}, config), {}, {memory, sizeof memory}});
  EXPECT_EQ(ran, "fast");
  config.force = {{"probe", "nowhere"}};
  message([&] { op({5}, {*open_device({}, config), {}, {memory, sizeof memory}}); }, ErrorCode::unsupported);
}

TEST(OpSelection, WhatShouldNotRunRunsWhenForced) {
  std::string ran;
  Op<Params> op = make_op(&ran);
  Implementation<Params> slow = implementation("slow", 10, &ran);
  slow.prefers = [](const Params& p, const Device&) { return p.n > 5 ? Support::yes() : Support::no("fast takes less time"); };
  op.prepend(std::move(slow));
  alignas(256) char memory[1024];
  const auto run = [&](int n, Config config) { op({n}, {*open_device({}, config), {}, {memory, sizeof memory}}); };
  run(6, {});
  EXPECT_EQ(ran, "slow");
  run(5, {});
  EXPECT_EQ(ran, "fast");
  Config forced;
  forced.force["probe"] = "slow";
  run(5, forced);
  EXPECT_EQ(ran, "slow");
  message([&] { run(11, forced); }, ErrorCode::unsupported);
  const Candidate candidate = op.candidates({5}, *open_device({})).front();
  EXPECT_TRUE(candidate.support && !candidate.is_eligible());
  EXPECT_EQ(candidate.reason(), "fast takes less time");
  EXPECT_TRUE(op.candidates({6}, *open_device({})).front().is_eligible());
}

TEST(OpSelection, ChecksComeFirstAndWorkspaceIsCompared) {
  std::string ran;
  Op<Params> op = make_op(&ran);
  const auto device = open_device({});
  alignas(256) char memory[256];
  message([&] { op({-1}, {*device}); }, ErrorCode::invalid_argument);
  const std::string text = message([&] { op({5}, {*device, {}, {memory, 39}}); }, ErrorCode::workspace_too_small);
  EXPECT_NE(text.find("40 bytes, got 39"), std::string::npos) << text;
  EXPECT_EQ(ran, "");
  op.prepend(implementation("own", 3, &ran));
  op({3}, {*device, {}, {memory, sizeof memory}});
  EXPECT_EQ(ran, "own");
  const std::string unaligned = message([&] { op({3}, {*device, {}, {memory + 64, 64}}); }, ErrorCode::invalid_argument);
  EXPECT_NE(unaligned.find("workspace must be aligned to 256 bytes"), std::string::npos) << unaligned;
}

TEST(ArenaTest, MeasuringEqualsRunning) {
  const auto layout = [](Arena& arena) {
    arena.tensor(DType::f32, {3, 5});
    const size_t mark = arena.mark();
    arena.tensor(DType::bf16, {1000});
    arena.rest(300);
    arena.release(mark);
    arena.tensor(DType::u8, {1});
  };
  Arena measuring{DeviceId{}};
  layout(measuring);
  EXPECT_EQ(measuring.used(), 512);
  EXPECT_EQ(measuring.peak(), 256 + 2048 + 300);
  std::vector<std::byte> memory(static_cast<size_t>(measuring.peak()));
  Arena exact({}, {memory.data(), measuring.peak()});
  EXPECT_NO_THROW(layout(exact));
  Arena small({}, {memory.data(), 2000});
  EXPECT_THROW(layout(small), Error);
  const int64_t most = std::numeric_limits<int64_t>::max();
  EXPECT_THROW(measuring.tensor(DType::u8, {most - 100}), Error) << "the sum does not fit 63 bits";
}

class Environment : public testing::Test {
 protected:
  void TearDown() override {
    for (const char* name :
         {"STRATA_CPU_THREADS", "STRATA_CPU_ISA", "STRATA_FORCE", "STRATA_OPENCL_CACHE", "STRATA_OPENCL_LIBRARY", "STRATA_OPENCL_SUBGROUP"})
      unsetenv(name);
  }
};

TEST_F(Environment, IsReadIntoAConfig) {
  setenv("STRATA_CPU_THREADS", "3", 1);
  setenv("STRATA_CPU_ISA", "avx2", 1);
  setenv("STRATA_FORCE", "linear=reference,*=cpu/simd", 1);
  setenv("STRATA_OPENCL_CACHE", "/tmp/programs", 1);
  setenv("STRATA_OPENCL_LIBRARY", "libother.so", 1);
  setenv("STRATA_OPENCL_SUBGROUP", "16", 1);
  const Config config = Config::from_environment();
  EXPECT_EQ(config.opencl_cache, "/tmp/programs");
  EXPECT_EQ(config.opencl_library, "libother.so");
  EXPECT_EQ(config.opencl_subgroup_size, 16);
  EXPECT_EQ(config.cpu_threads, 3);
  EXPECT_EQ(config.cpu_isa, CpuIsa::avx2);
  EXPECT_EQ(config.force.at("linear"), "reference");
  EXPECT_EQ(config.force.at("*"), "cpu/simd");
}

TEST_F(Environment, WrongValuesAreNamed) {
  for (const auto& [name, value] :
       {std::pair{"STRATA_CPU_THREADS", "0"}, std::pair{"STRATA_CPU_THREADS", "two"}, std::pair{"STRATA_CPU_ISA", "sse9"},
        std::pair{"STRATA_FORCE", "linear"}, std::pair{"STRATA_FORCE", "=x"}, std::pair{"STRATA_OPENCL_SUBGROUP", "32"}}) {
    setenv(name, value, 1);
    const std::string text = message([] { static_cast<void>(Config::from_environment()); }, ErrorCode::invalid_argument);
    EXPECT_NE(text.find(value), std::string::npos) << text;
    unsetenv(name);
  }
}

TEST(DeviceNames, RoundTripAndErrors) {
  for (const char* name : {"cpu", "cuda:0", "cuda:7", "opencl:1"}) EXPECT_EQ(to_string(parse_device_id(name)), name);
  EXPECT_EQ(to_string(parse_device_id("cuda")), "cuda:0");
  for (const char* name : {"", "gpu", "cpu:0", "cuda:", "cuda:-1", "cuda:x", "cuda:1x"})
    EXPECT_THROW(static_cast<void>(parse_device_id(name)), Error) << name;
  const std::string text = message([] { static_cast<void>(open_device(parse_device_id("opencl:999"))); }, ErrorCode::unsupported);
  EXPECT_NE(text.find("opencl:999"), std::string::npos);
}

TEST(ParamChecks, NameExpectedAndActual) {
  char memory[64];
  const TensorView view = TensorView::contiguous(memory, DType::f32, {}, {2, 3});
  const auto check = [&](auto&& f, std::initializer_list<const char*> parts) {
    const std::string text = message(
        [&] {
          ParamCheck c("op", DeviceId{});
          f(c);
        },
        ErrorCode::invalid_argument);
    for (const char* part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is not in: " << text;
  };
  check([&](ParamCheck& c) { c.view("x", view, DType::bf16, {2, 3}); }, {"op: x", "bf16", "f32[2, 3]"});
  check([&](ParamCheck& c) { c.view("x", view, DType::f32, {kAny, 4}); }, {"[any, 4]", "f32[2, 3]"});
  check([&](ParamCheck& c) { c.view("x", view, DType::f32, {6}); }, {"[6]", "f32[2, 3]"});
  check([&](ParamCheck& c) { c.view("x", {}, DType::f32, {6}); }, {"required", "absent"});
  TensorView strided = view;
  strided.stride[1] = 2;
  check([&](ParamCheck& c) { c.view("x", strided, DType::f32, {2, 3}); }, {"stride 1", "has 2"});
  TensorView elsewhere = view;
  elsewhere.device = {DeviceKind::cuda, 1};
  check([&](ParamCheck& c) { c.view("x", elsewhere, DType::f32, {2, 3}); }, {"must be on cpu, is on cuda:1"});
  TensorView null = view;
  null.data = nullptr;
  check([&](ParamCheck& c) { c.view("x", null, DType::f32, {2, 3}); }, {"memory", "null"});
  TensorView unaligned = view;
  unaligned.data = memory + 2;
  check([&](ParamCheck& c) { c.view("x", unaligned, DType::f32, {2, 3}); }, {"x must begin at a multiple of 4 bytes"});
  TensorView backward = view;
  backward.stride[0] = -3;
  check([&](ParamCheck& c) { c.view("x", backward, DType::f32, {2, 3}); }, {"x must have strides that are not negative", "[-3, 1]"});
  TensorView deep = view;
  deep.rank = 5;
  check([&](ParamCheck& c) { c.view("x", deep, DType::f32, {2, 3}); }, {"x must have at most 4 dimensions, has 5"});
  TensorView beyond = null;  // 2^64 elements, which a count of 64 bits takes for none
  beyond.shape = {int64_t{1} << 32, int64_t{1} << 32};
  check([&](ParamCheck& c) { c.view("x", beyond, DType::f32, {kAny, kAny}); }, {"memory", "null"});
  PagedCache cache{.data = memory, .format = KvFormat::bf16, .row_dim = 4, .page_size = 2, .num_pages = 4, .page_stride = 15};
  check([&](ParamCheck& c) { c.cache("cache", cache, {KvFormat::bf16}, 4); }, {"page_stride", "16", "15"});
  check([&](ParamCheck& c) { c.cache("cache", cache, {KvFormat::indexer_fp8}, 4); }, {"indexer_fp8", "bf16"});
  check([&](ParamCheck& c) { c.cache("cache", cache, {KvFormat::bf16}, 5); }, {"row_dim 5", "has 4"});
  cache.page_stride = 16;
  cache.num_pages = INT64_MAX / 2;
  check([&](ParamCheck& c) { c.cache("cache", cache, {KvFormat::bf16}, 4); }, {"num_pages", "63 bits"});
  cache.num_pages = 4;
  cache.row_dim = INT32_MAX;
  check([&](ParamCheck& c) { c.cache("cache", cache, {KvFormat::bf16}, kAny); }, {"row_dim", "2147483647"});
}

TEST(ForcedNames, UnknownOnesAreRefused) {
  const OpSet ops = default_ops();
  const auto refused = [&](const char* op, const char* implementation, const char* part) {
    Config config;
    config.force = {{op, implementation}};
    const std::string text = message([&] { check_forced(ops, config); }, ErrorCode::invalid_argument);
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  refused("liner", "reference", "must name an op or *, names 'liner'");
  refused("linear", "referense", "of linear must name one of its implementations, names 'referense'");
  refused("linear", "cpu/simd_", "names 'cpu/simd_'; known are ");
  refused("linear", "cpu/simd_", "cpu/simd, ");
  refused("merge_attn_states", "cpu/amx", "cpu/simd, ");
  refused("*", "nowhere", "of * must name one of its implementations, names 'nowhere'");
  refused("", "reference", "names ''");
  const auto has_cuda = [](const auto& list) { return list.front().name.starts_with("cuda/"); };
  refused("linear", "cuda/none", has_cuda(ops.linear.implementations()) ? "; known are cpu/" : "; this build has no CUDA backend");
  Config known;
  known.force = {{"linear", "reference"}, {"*", "reference"}};
  EXPECT_NO_THROW(check_forced(ops, known));
  // Names of the caller's own implementations are known where they are in the set.
  OpSet own = ops;
  Implementation<LinearParams> mine = own.linear.implementations().front();
  mine.name = "mine";
  own.linear.prepend(mine);
  known.force = {{"linear", "mine"}};
  EXPECT_NO_THROW(check_forced(own, known));
}

TEST(OpTest, AnImplementationIsComplete) {
  OpSet ops = default_ops();
  const Implementation<LinearParams> whole = ops.linear.implementations().front();
  const auto refused = [&](auto change) {
    Implementation<LinearParams> own = whole;
    change(own);
    const std::string text = message([&] { ops.linear.prepend(own); }, ErrorCode::invalid_argument);
    EXPECT_NE(text.find("linear: an implementation must have a name, supports, workspace_bytes and run"), std::string::npos) << text;
  };
  refused([](auto& own) { own.name.clear(); });
  refused([](auto& own) { own.supports = nullptr; });
  refused([](auto& own) { own.workspace_bytes = nullptr; });
  refused([](auto& own) { own.run = nullptr; });
}

TEST(Tensors, RefuseSizesThatDoNotFit) {
  const auto device = open_device({});
  constexpr int64_t k32 = int64_t{1} << 32;
  for (const auto& [dtype, rows, columns] : {std::tuple{DType::u8, k32, k32},
                                             {DType::f32, k32, k32},
                                             {DType::f64, int64_t{1} << 60, int64_t{1}},
                                             {DType::u8, int64_t{-1}, int64_t{4}},
                                             {DType::u8, int64_t{-2}, int64_t{-2}}}) {
    const std::string text = message(
        [&, type = dtype, n = rows, k = columns] {
          Tensor(device, type, {n, k});
        },
        ErrorCode::invalid_argument);
    EXPECT_NE(text.find(std::to_string(rows)), std::string::npos) << text;
    EXPECT_THROW(static_cast<void>(TensorView::contiguous(nullptr, dtype, {}, {rows, columns})), Error);
  }
  message([&] { static_cast<void>(device->allocate(INT64_MAX - 3)); }, ErrorCode::out_of_memory);
  message([&] { Tensor(nullptr, DType::u8, {4}); }, ErrorCode::invalid_argument);
}

TEST(Tensors, SlicesLieWithinTheTensor) {
  char memory[64];
  const TensorView view = TensorView::contiguous(memory, DType::u8, {}, {4, 8});
  EXPECT_EQ(view.slice(4, 0).shape[0], 0);
  EXPECT_EQ(view.columns(3, 5).data, memory + 3);
  for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{1, INT64_MAX}, {INT64_MAX, 1}, {-1, 1}, {0, -1}, {5, 0}, {0, 9}}) {
    message([&, first = begin, n = count] { static_cast<void>(view.slice(first, n)); }, ErrorCode::invalid_argument);
    if (begin != 5) message([&, first = begin, n = count] { static_cast<void>(view.columns(first, n)); }, ErrorCode::invalid_argument);
  }
  message([&] { static_cast<void>(view.reshape({5, 6})); }, ErrorCode::invalid_argument);
  message([&] { static_cast<void>(view.reshape({-4, -8})); }, ErrorCode::invalid_argument);
}

TEST(CpuDevice, RefusesNumbersOfThreadsThatCannotBe) {
  for (const int threads : {-1, 4097, INT32_MAX}) {
    Config config;
    config.cpu_threads = threads;
    const std::string text = message([&] { static_cast<void>(open_device({}, config)); }, ErrorCode::invalid_argument);
    EXPECT_NE(text.find("cpu_threads must be in [0, 4096], is " + std::to_string(threads)), std::string::npos) << text;
  }
}

TEST(CpuDevice, ThereIsOne) {
  const std::string text = message([] { static_cast<void>(open_device({DeviceKind::cpu, 1})); }, ErrorCode::invalid_argument);
  EXPECT_NE(text.find("index 0 only, got 1"), std::string::npos) << text;
}

// Sizes are signed: one below 0 is a slip of the caller's, not a huge number.
TEST(CpuDevice, BytesAreNotNegative) {
  const auto device = open_device({});
  char byte = 7;
  for (const auto& call : std::initializer_list<std::function<void()>>{
           [&] { static_cast<void>(device->allocate(-1)); }, [&] { static_cast<void>(device->allocate_host(-1)); },
           [&] { device->copy_from_host(&byte, &byte, -1, {}); }, [&] { device->copy_to_host(&byte, &byte, -1, {}); },
           [&] { device->copy(&byte, &byte, -1, {}); }, [&] { device->fill(&byte, 0, -1, {}); }}) {
    const std::string text = message(call, ErrorCode::invalid_argument);
    EXPECT_NE(text.find("bytes must not be negative, is -1"), std::string::npos) << text;
  }
  EXPECT_EQ(byte, 7);
}

TEST(CpuDevice, HasNoGraphs) {
  const auto device = open_device({});
  bool ran = false;
  const std::string capture = message([&] { static_cast<void>(device->capture({}, [&] { ran = true; })); }, ErrorCode::unsupported);
  EXPECT_NE(capture.find("device cpu captures no graphs"), std::string::npos) << capture;
  EXPECT_FALSE(ran);
  const std::string launch = message([&] { device->launch({}, {}); }, ErrorCode::unsupported);
  EXPECT_NE(launch.find("device cpu has no graphs"), std::string::npos) << launch;
}

// The CPU's kernels run on whatever says that it is the CPU, as an engine's own device with its own memory may.
TEST(CpuDevice, KernelsAskNoParticularClass) {
  for (const CpuIsa isa : {CpuIsa::best, CpuIsa::portable}) {
    for (const int threads : {0, 3}) {
      Config config;
      config.cpu_isa = isa;
      config.cpu_threads = threads;
      const HostDevice own({}, config);
      EXPECT_EQ(cpu::isa_of(own), isa == CpuIsa::best ? cpu::machine_isa() : CpuIsa::portable);
      EXPECT_EQ(cpu::threads_of(own), threads > 0 ? threads : available_cores());
    }
  }
}

}  // namespace
}  // namespace strata
