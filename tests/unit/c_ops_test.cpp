// Ops of the C API: what calls, weights, rope tables and packings refuse, and structs of other versions. Every field of every op is spoilt
// in tests/ops/contracts_test.cpp.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <vector>

#include "strata/op_set.h"
#include "unit/c_calls.h"

namespace strata {
namespace {

using test::expect_versions_refused;
using test::open_c_device;
using test::OwnedCDevice;
using testing::HasSubstr;

template <class T>
strata_tensor_view view_of(std::vector<T>& values, strata_dtype dtype, std::vector<int64_t> shape) {
  strata_tensor_view view;
  EXPECT_DONE(
      strata_tensor_view_contiguous(values.data(), dtype, {STRATA_CPU, 0}, static_cast<int32_t>(shape.size()), shape.data(), &view));
  return view;
}

// slot_mapping of two tokens, which needs no workspace.
struct SlotMapping {
  std::vector<int64_t> positions{65, 3}, slots{-7, -7};
  std::vector<int32_t> requests{0, 0}, table{5, 2};
  strata_slot_mapping_params params = strata_slot_mapping_params_default();
  strata_execution execution = strata_execution_default();

  SlotMapping() {
    params.positions = view_of(positions, STRATA_I64, {2});
    params.token_to_req = view_of(requests, STRATA_I32, {2});
    params.block_table = view_of(table, STRATA_I32, {1, 2});
    params.page_size = 64;
    params.slot_mapping = view_of(slots, STRATA_I64, {2});
  }
  std::vector<int64_t> result() const { return slots; }
};
const std::vector<int64_t> kSlots{2 * 64 + 1, 5 * 64 + 3}, kUntouched{-7, -7};

// rms_norm_pair of one token; kv alone.
struct Norm {
  std::vector<uint16_t> kv = std::vector<uint16_t>(512, 0x3f80), out = std::vector<uint16_t>(512);
  std::vector<float> weight = std::vector<float>(512, 1.0f);
  strata_rms_norm_pair_params params = strata_rms_norm_pair_params_default();
  strata_execution execution = strata_execution_default();

  Norm() {
    params.kv = view_of(kv, STRATA_BF16, {1, 512});
    params.kv_weight = view_of(weight, STRATA_F32, {512});
    params.kv_out = view_of(out, STRATA_BF16, {1, 512});
  }
};

// linear of one token with a bf16 matrix of 32 x 64.
struct Linear {
  static constexpr int64_t kN = 32, kK = 64;
  std::vector<uint16_t> x = std::vector<uint16_t>(kK), w = std::vector<uint16_t>(kN * kK);
  std::vector<float> y = std::vector<float>(kN);
  strata_linear_weight weight = strata_linear_weight_default();
  strata_linear_params params = strata_linear_params_default();
  strata_execution execution = strata_execution_default();
  std::vector<uint64_t> workspace;

  Linear() {
    for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<uint16_t>(0x3f80 + 3 * i);
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<uint16_t>((i % 3 == 0 ? 0xbf00 : 0x3e80) + i % 101);
    weight.n = kN;
    weight.k = kK;
    weight.weight = view_of(w, STRATA_BF16, {kN, kK});
    params.x = view_of(x, STRATA_BF16, {1, kK});
    params.weight = &weight;
    params.y = view_of(y, STRATA_F32, {1, kN});
  }
  std::vector<float> run(strata_device device) {
    EXPECT_DONE(strata_linear_workspace_bytes(device, &params, &execution.workspace_bytes));
    void* data = nullptr;
    EXPECT_DONE(strata_device_allocate(device, execution.workspace_bytes, &data));
    execution.workspace = data;
    EXPECT_DONE(strata_linear(device, &params, &execution));
    EXPECT_DONE(strata_device_deallocate(device, data));
    return y;
  }
};

TEST(CCall, RunsWithoutAWorkspace) {
  const OwnedCDevice device = open_c_device();
  SlotMapping call;
  EXPECT_DONE(strata_slot_mapping(device, &call.params, &call.execution));
  EXPECT_EQ(call.result(), kSlots);
}

TEST(CCall, RefusesWhatIsNull) {
  const OwnedCDevice device = open_c_device();
  SlotMapping call;
  int64_t bytes = 77;
  const char* name = "untouched";
  EXPECT_FAILS(strata_slot_mapping(device, nullptr, &call.execution), STRATA_INVALID_ARGUMENT,
               "slot_mapping: params: expected a strata_slot_mapping_params, is null");
  EXPECT_FAILS(strata_slot_mapping(device, &call.params, nullptr), STRATA_INVALID_ARGUMENT, "expected a strata_execution, is null");
  EXPECT_FAILS(strata_slot_mapping_workspace_bytes(device, nullptr, &bytes), STRATA_INVALID_ARGUMENT, "params");
  EXPECT_FAILS(strata_slot_mapping_workspace_bytes(device, &call.params, nullptr), STRATA_INVALID_ARGUMENT, "bytes");
  EXPECT_FAILS(strata_slot_mapping_implementation(device, nullptr, &name), STRATA_INVALID_ARGUMENT, "params");
  EXPECT_FAILS(strata_slot_mapping_implementation(device, &call.params, nullptr), STRATA_INVALID_ARGUMENT, "name");
  EXPECT_EQ(bytes, 77);
  EXPECT_STREQ(name, "untouched");
  EXPECT_EQ(call.result(), kUntouched);
}

TEST(CCall, RefusesHandlesThatNameNoDeviceOrStream) {
  OwnedCDevice device = open_c_device();
  SlotMapping call;
  int64_t bytes = 0;
  const char* name = nullptr;
  EXPECT_FAILS(strata_slot_mapping({}, &call.params, &call.execution), STRATA_INVALID_HANDLE, "is null");
  strata_stream stream;
  ASSERT_DONE(strata_stream_create(device, &stream));
  EXPECT_FAILS(strata_slot_mapping({stream.value}, &call.params, &call.execution), STRATA_INVALID_HANDLE, "strata_stream");
  call.execution.stream.value = strata_device(device).value;
  EXPECT_FAILS(strata_slot_mapping(device, &call.params, &call.execution), STRATA_INVALID_HANDLE, "strata_device");
  call.execution.stream = stream;
  EXPECT_DONE(strata_slot_mapping(device, &call.params, &call.execution));
  EXPECT_EQ(call.result(), kSlots);
  ASSERT_DONE(strata_stream_destroy(stream));
  EXPECT_FAILS(strata_slot_mapping(device, &call.params, &call.execution), STRATA_INVALID_HANDLE, "destroyed");
  call.execution.stream = {};
  const strata_device freed = device.reset();
  EXPECT_FAILS(strata_slot_mapping(freed, &call.params, &call.execution), STRATA_INVALID_HANDLE, "destroyed");
  EXPECT_FAILS(strata_slot_mapping_workspace_bytes(freed, &call.params, &bytes), STRATA_INVALID_HANDLE, "destroyed");
  EXPECT_FAILS(strata_slot_mapping_implementation(freed, &call.params, &name), STRATA_INVALID_HANDLE, "destroyed");
  EXPECT_FAILS(strata_op_candidates("slot_mapping", freed, &call.params, nullptr, 0, nullptr), STRATA_INVALID_HANDLE, "destroyed");
}

TEST(CCall, RefusesOtherVersionsOfItsStructs) {
  const OwnedCDevice device = open_c_device();
  SlotMapping call;
  expect_versions_refused(call.params, "strata_slot_mapping_params",
                          [&](auto* params) { return strata_slot_mapping(device, params, &call.execution); });
  expect_versions_refused(call.params, "strata_slot_mapping_params", [&](auto* params) {
    int64_t bytes = 0;
    return strata_slot_mapping_workspace_bytes(device, params, &bytes);
  });
  expect_versions_refused(call.execution, "strata_execution",
                          [&](auto* execution) { return strata_slot_mapping(device, &call.params, execution); });
  Linear linear;
  expect_versions_refused(linear.weight, "strata_linear_weight", [&](auto* weight) {
    linear.params.weight = weight;
    const char* name = nullptr;
    return strata_linear_implementation(device, &linear.params, &name);
  });
}

TEST(CCall, RefusesOtherVersionsOfWhatItsStructsPointTo) {
  const OwnedCDevice device = open_c_device();
  Norm call;
  std::vector<unsigned char> pages(584 * 4);
  std::vector<int64_t> slots{1}, positions{0};
  std::vector<float> table(64, 0.5f);
  strata_paged_cache cache = strata_paged_cache_default();
  cache.data = pages.data();
  cache.format = STRATA_KV_FP8_DS_MLA_V4;
  cache.row_dim = 512;
  cache.page_size = 4;
  cache.num_pages = 1;
  cache.page_stride = 584 * 4;
  strata_key_insert insert = strata_key_insert_default();
  insert.slot_mapping = view_of(slots, STRATA_I64, {1});
  insert.positions = view_of(positions, STRATA_I64, {1});
  insert.cos_sin = view_of(table, STRATA_F32, {1, 64});
  insert.cache = &cache;
  call.params.kv_out = {};
  const auto status_with = [&](const strata_key_insert* given) {
    call.params.insert_epilogue = given;
    int64_t bytes = 0;
    return strata_rms_norm_pair_workspace_bytes(device, &call.params, &bytes);
  };
  expect_versions_refused(insert, "strata_key_insert", status_with);
  expect_versions_refused(cache, "strata_paged_cache", [&](auto* given) {
    insert.cache = given;
    return status_with(&insert);
  });
  insert.cache = nullptr;
  EXPECT_FAILS(status_with(&insert), STRATA_INVALID_ARGUMENT, "rms_norm_pair: insert_epilogue: cache is required");
}

TEST(CCall, RefusesNumbersThatAreNoEnumeratorsAndNoFlags) {
  const OwnedCDevice device = open_c_device();
  Norm norm;
  for (const int32_t wrong : {-1, 3, std::numeric_limits<int32_t>::max()}) {
    norm.params.q_format = wrong;
    EXPECT_FAILS(strata_rms_norm_pair(device, &norm.params, &norm.execution), STRATA_INVALID_ARGUMENT,
                 "rms_norm_pair: q_format: expected an enumerator, 0 to 2");
  }
  norm.params.q_format = STRATA_ACTIVATION_BF16;
  const char* name = nullptr;
  for (const int32_t wrong : {-1, 12}) {
    norm.params.kv.dtype = wrong;
    EXPECT_FAILS(strata_rms_norm_pair(device, &norm.params, &norm.execution), STRATA_INVALID_ARGUMENT,
                 "rms_norm_pair: kv: expected an enum");
    EXPECT_FAILS(strata_rms_norm_pair_implementation(device, &norm.params, &name), STRATA_INVALID_ARGUMENT, "rms_norm_pair: kv: expected");
  }
  norm.params.kv.dtype = STRATA_BF16;
  norm.params.kv.device.kind = 3;
  EXPECT_FAILS(strata_rms_norm_pair(device, &norm.params, &norm.execution), STRATA_INVALID_ARGUMENT, "rms_norm_pair: kv: expected an enum");

  strata_indexer_key_insert_params keys = strata_indexer_key_insert_params_default();
  keys.pairing = 2;
  EXPECT_FAILS(strata_indexer_key_insert(device, &keys, &norm.execution), STRATA_INVALID_ARGUMENT, "indexer_key_insert: pairing: ");
  keys.pairing = STRATA_ROPE_HALF_SPLIT;
  keys.rope_slice = -1;
  EXPECT_FAILS(strata_indexer_key_insert(device, &keys, &norm.execution), STRATA_INVALID_ARGUMENT, "indexer_key_insert: rope_slice: ");
  keys.rope_slice = STRATA_ROPE_FIRST;
  keys.hadamard = 2;
  EXPECT_FAILS(strata_indexer_key_insert(device, &keys, &norm.execution), STRATA_INVALID_ARGUMENT,
               "indexer_key_insert: hadamard: expected 0 or 1, is 2");
  Linear linear;
  linear.weight.shares_device = -1;
  EXPECT_FAILS(strata_linear(device, &linear.params, &linear.execution), STRATA_INVALID_ARGUMENT, "linear: weight.shares_device: ");
}

TEST(CCall, RefusesViewsThatCannotBe) {
  const OwnedCDevice device = open_c_device();
  const int64_t most = std::numeric_limits<int64_t>::max();
  const auto expect_refused = [&](const char* part, auto&& change) {
    SCOPED_TRACE(part);
    Norm call;
    change(call.params.kv);
    int64_t bytes = 0;
    const char* name = nullptr;
    EXPECT_FAILS(strata_rms_norm_pair(device, &call.params, &call.execution), STRATA_INVALID_ARGUMENT, part);
    EXPECT_FAILS(strata_rms_norm_pair_workspace_bytes(device, &call.params, &bytes), STRATA_INVALID_ARGUMENT, part);
    EXPECT_FAILS(strata_rms_norm_pair_implementation(device, &call.params, &name), STRATA_INVALID_ARGUMENT, part);
    EXPECT_FAILS(strata_op_candidates("rms_norm_pair", device, &call.params, nullptr, 0, nullptr), STRATA_INVALID_ARGUMENT, part);
    EXPECT_EQ(call.out, std::vector<uint16_t>(512));
  };
  expect_refused("rms_norm_pair: kv must have at most 4 dimensions, has 5", [](auto& v) { v.rank = 5; });
  expect_refused("rms_norm_pair: kv: expected a rank", [](auto& v) { v.rank = -1; });
  expect_refused("rms_norm_pair: kv is required", [](auto& v) { v = {}; });
  expect_refused("rms_norm_pair: kv must have shape", [](auto& v) { v.rank = 1; });
  expect_refused("rms_norm_pair: kv must have stride 1", [](auto& v) { v.stride[1] = 2; });
  expect_refused("rms_norm_pair: kv: expected extents and strides >= 0", [](auto& v) { v.stride[0] = -1; });
  expect_refused("rms_norm_pair: kv: expected extents and strides >= 0", [](auto& v) { v.shape[0] = -2; });
  expect_refused("rms_norm_pair: kv: expected at most 2^59 elements", [&](auto& v) { v.shape[0] = most; });
  expect_refused("rms_norm_pair: kv: expected at most 2^59 elements", [&](auto& v) {
    v.shape[0] = 3;
    v.stride[0] = most;
  });
  expect_refused("rms_norm_pair: kv must be bf16", [](auto& v) { v.dtype = STRATA_F16; });
  expect_refused("rms_norm_pair: kv must be on cpu, is on cuda:0", [](auto& v) { v.device.kind = STRATA_CUDA; });
  expect_refused("must have shape", [](auto& v) { v.shape[1] = 256; });
}

TEST(CCall, ChecksItsWorkspace) {
  const OwnedCDevice device = open_c_device();
  // A call that needs some.
  std::vector<uint16_t> q(512), keys(512), out(512);
  std::vector<int32_t> indices{0};
  strata_paged_cache cache = strata_paged_cache_default();
  cache.data = keys.data();
  cache.row_dim = 512;
  cache.page_size = 1;
  cache.num_pages = 1;
  cache.page_stride = 1024;
  strata_sparse_attn_decode_params params = strata_sparse_attn_decode_params_default();
  params.q = view_of(q, STRATA_BF16, {1, 1, 1, 512});
  params.cache = &cache;
  params.indices = view_of(indices, STRATA_I32, {1, 1, 1});
  params.softmax_scale = 1.0f;
  params.out = view_of(out, STRATA_BF16, {1, 1, 1, 512});
  int64_t bytes = 0;
  ASSERT_DONE(strata_sparse_attn_decode_workspace_bytes(device, &params, &bytes));
  ASSERT_GT(bytes, 0);
  strata_execution execution = strata_execution_default();
  EXPECT_FAILS(strata_sparse_attn_decode(device, &params, &execution), STRATA_WORKSPACE_TOO_SMALL, std::to_string(bytes));
  void* data = nullptr;
  ASSERT_DONE(strata_device_allocate(device, bytes + 256, &data));
  execution.workspace = data;
  execution.workspace_bytes = bytes - 1;
  EXPECT_FAILS(strata_sparse_attn_decode(device, &params, &execution), STRATA_WORKSPACE_TOO_SMALL, std::to_string(bytes - 1));
  execution.workspace_bytes = -1;
  EXPECT_FAILS(strata_sparse_attn_decode(device, &params, &execution), STRATA_INVALID_ARGUMENT,
               "workspace_bytes: expected at least 0, is -1");
  execution.workspace = static_cast<char*>(data) + 8;
  execution.workspace_bytes = bytes;
  EXPECT_FAILS(strata_sparse_attn_decode(device, &params, &execution), STRATA_INVALID_ARGUMENT, "aligned to 256");
  execution.workspace = data;
  EXPECT_DONE(strata_sparse_attn_decode(device, &params, &execution));
  EXPECT_DONE(strata_device_deallocate(device, data));
}

TEST(CCall, ChecksItsHint) {
  const OwnedCDevice device = open_c_device();
  SlotMapping call;
  std::vector<uint16_t> weights(64);
  call.execution.next_weights = view_of(weights, STRATA_BF16, {8, 8});
  EXPECT_DONE(strata_slot_mapping(device, &call.params, &call.execution));
  call.execution.next_weights.stride[0] = 16;
  EXPECT_FAILS(strata_slot_mapping(device, &call.params, &call.execution), STRATA_INVALID_ARGUMENT,
               "execution.next_weights must be contiguous");
  call.execution.next_weights = view_of(weights, STRATA_BF16, {8, 8});
  call.execution.next_weights.data = nullptr;
  EXPECT_FAILS(strata_slot_mapping(device, &call.params, &call.execution), STRATA_INVALID_ARGUMENT,
               "execution.next_weights must be contiguous");
  call.execution.next_weights.device = {STRATA_CUDA, 0};
  EXPECT_FAILS(strata_slot_mapping(device, &call.params, &call.execution), STRATA_INVALID_ARGUMENT,
               "execution.next_weights must be on cpu");
}

TEST(CCall, NamesWhatRefusesIt) {
  OwnedCDevice device;
  strata_config config = strata_config_default();
  config.force = "linear=cpu/amx";
  ASSERT_DONE(strata_device_open("cpu", &config, &device));
  Linear call;
  const char* name = nullptr;
  const strata_status status = strata_linear_implementation(device, &call.params, &name);
  if (status == STRATA_OK) {
    EXPECT_STREQ(name, "cpu/amx");
    return;
  }
  EXPECT_EQ(status, STRATA_UNSUPPORTED);
  EXPECT_THAT(strata_last_error(), HasSubstr("linear: no implementation takes this call on cpu (forced to cpu/amx)"));
  EXPECT_FAILS(strata_linear(device, &call.params, &call.execution), STRATA_UNSUPPORTED, "reference: not the forced one");
}

TEST(CCandidates, ListOneLineEach) {
  const OwnedCDevice device = open_c_device();
  SlotMapping call;
  std::array<char, 8> small{};
  int64_t needed = 0;
  EXPECT_DONE(strata_op_candidates("slot_mapping", device, &call.params, small.data(), small.size(), &needed));
  EXPECT_EQ(std::string(small.data()).size(), small.size() - 1);
  std::string text(static_cast<size_t>(needed), '?');
  EXPECT_DONE(strata_op_candidates("slot_mapping", device, &call.params, text.data(), needed, &needed));
  EXPECT_THAT(text.c_str(), HasSubstr("\nreference: eligible"));
  EXPECT_FAILS(strata_op_candidates("attention", device, &call.params, nullptr, 0, &needed), STRATA_INVALID_ARGUMENT, "is 'attention'");
  EXPECT_FAILS(strata_op_candidates(nullptr, device, &call.params, nullptr, 0, &needed), STRATA_INVALID_ARGUMENT, "op: expected a text");
  EXPECT_FAILS(strata_op_candidates("slot_mapping", device, nullptr, nullptr, 0, &needed), STRATA_INVALID_ARGUMENT, "params");
  EXPECT_FAILS(strata_op_candidates("slot_mapping", device, &call.params, nullptr, 8, &needed), STRATA_INVALID_ARGUMENT, "buffer");
  EXPECT_FAILS(strata_op_candidates("linear", device, &call.params, nullptr, 0, &needed), STRATA_INVALID_ARGUMENT, "linear: ");
}

TEST(CPacking, HasTheBytesOfCpp) {
  const OwnedCDevice device = open_c_device();
  const auto cpp_device = open_device({});
  const OpSet ops = default_ops();
  ASSERT_EQ(strata_weight_packing_count(), static_cast<int64_t>(ops.weight_packings.size()));
  EXPECT_EQ(strata_weight_packing_name(-1), nullptr);
  EXPECT_EQ(strata_weight_packing_name(strata_weight_packing_count()), nullptr);
  Linear call;
  const std::vector<float> want = call.run(device);
  const LinearWeight row_major{
      .n = Linear::kN, .k = Linear::kK, .weight = TensorView::contiguous(call.w.data(), DType::bf16, {}, {Linear::kN, Linear::kK})};
  for (size_t i = 0; i < ops.weight_packings.size(); ++i) {
    const WeightPacking& packing = ops.weight_packings[i];
    const char* const name = strata_weight_packing_name(static_cast<int64_t>(i));
    ASSERT_EQ(name, packing.name);
    SCOPED_TRACE(name);
    Linear packed;
    int64_t bytes = -1;
    ASSERT_DONE(strata_weight_packed_bytes(name, device, &call.weight, &bytes));
    EXPECT_EQ(bytes, packing.packed_bytes(row_major, *cpp_device));
    strata_linear_weight shape = call.weight;
    shape.weight.data = nullptr;
    int64_t of_shape = -1;
    ASSERT_DONE(strata_weight_packed_bytes(name, device, &shape, &of_shape));
    EXPECT_EQ(of_shape, bytes);
    if (bytes == 0) {
      alignas(256) std::array<char, 256> none{};
      EXPECT_FAILS(strata_weight_pack(name, device, &call.weight, none.data(), 256), STRATA_UNSUPPORTED, "does not take a weight");
      continue;
    }
    const Tensor memory(cpp_device, DType::u8, {bytes}), by_cpp(cpp_device, DType::u8, {bytes});
    std::memset(memory.view().data, 0, static_cast<size_t>(bytes));
    std::memset(by_cpp.view().data, 0, static_cast<size_t>(bytes));
    ASSERT_DONE(strata_weight_pack(name, device, &call.weight, memory.view().data, bytes));
    packing.pack(row_major, *cpp_device, by_cpp.view().data);
    EXPECT_EQ(std::memcmp(memory.view().data, by_cpp.view().data, static_cast<size_t>(bytes)), 0);
    packed.weight.weight = {};
    const int64_t shape_of_packed[] = {bytes};
    ASSERT_DONE(strata_tensor_view_contiguous(memory.view().data, STRATA_U8, {STRATA_CPU, 0}, 1, shape_of_packed, &packed.weight.packed));
    packed.weight.packing = name;
    const std::vector<float> got = packed.run(device);
    for (size_t o = 0; o < got.size(); ++o) EXPECT_NEAR(got[o], want[o], 1e-4f * std::abs(want[o]) + 1e-3f);

    EXPECT_FAILS(strata_weight_packed_bytes(name, device, &packed.weight, &bytes), STRATA_INVALID_ARGUMENT, "must be row-major");
    EXPECT_FAILS(strata_weight_pack(name, device, &call.weight, memory.view().data, bytes - 1), STRATA_INVALID_ARGUMENT,
                 "bytes: expected at least " + std::to_string(bytes));
    EXPECT_FAILS(strata_weight_pack(name, device, &call.weight, memory.view().ptr<char>() + 8, bytes), STRATA_INVALID_ARGUMENT, "aligned");
    EXPECT_FAILS(strata_weight_pack(name, device, &call.weight, nullptr, bytes), STRATA_INVALID_ARGUMENT, "packed: expected memory");
    EXPECT_FAILS(strata_weight_pack(name, device, &shape, memory.view().data, bytes), STRATA_INVALID_ARGUMENT, "must have memory");
  }
}

TEST(CPacking, RefusesWhatIsNoWeight) {
  const OwnedCDevice device = open_c_device();
  Linear call;
  int64_t bytes = 7;
  const char* const name = strata_weight_packing_name(0);
  if (name == nullptr) GTEST_SKIP() << "no packing in this build";
  const auto status_of = [&](const strata_linear_weight& weight) { return strata_weight_packed_bytes(name, device, &weight, &bytes); };
  EXPECT_FAILS(strata_weight_packed_bytes("none", device, &call.weight, &bytes), STRATA_INVALID_ARGUMENT, "is 'none'");
  EXPECT_FAILS(strata_weight_packed_bytes(nullptr, device, &call.weight, &bytes), STRATA_INVALID_ARGUMENT, "packing: expected a text");
  EXPECT_FAILS(strata_weight_packed_bytes(name, device, nullptr, &bytes), STRATA_INVALID_ARGUMENT, "weight: expected");
  EXPECT_FAILS(strata_weight_packed_bytes(name, device, &call.weight, nullptr), STRATA_INVALID_ARGUMENT, "bytes");
  EXPECT_FAILS(strata_weight_packed_bytes(name, {}, &call.weight, &bytes), STRATA_INVALID_HANDLE, "is null");
  EXPECT_FAILS(strata_weight_pack(name, {}, &call.weight, &bytes, 8), STRATA_INVALID_HANDLE, "is null");
  strata_linear_weight weight = call.weight;
  for (const int64_t groups : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()}) {
    weight.groups = groups;
    EXPECT_EQ(status_of(weight), STRATA_INVALID_ARGUMENT) << groups << strata_last_error();
  }
  weight = call.weight;
  weight.n = -1;
  EXPECT_FAILS(status_of(weight), STRATA_INVALID_ARGUMENT, "n >= 1");
  weight = call.weight;
  weight.weight = {};
  EXPECT_FAILS(status_of(weight), STRATA_INVALID_ARGUMENT, "holds neither");
  weight = call.weight;
  weight.weight.device.kind = STRATA_CUDA;
  EXPECT_FAILS(status_of(weight), STRATA_INVALID_ARGUMENT, "weight.weight must be on cpu, is on cuda:0");
  EXPECT_EQ(bytes, 7);
}

TEST(CRope, TablesAndFrequenciesAreThoseOfCpp) {
  const OwnedCDevice device = open_c_device();
  const RopeConfig cpp{.dim = 64, .theta = 50000.0, .factor = 4.0, .original_max_position = 4096, .mscale_gain = 1.25};
  strata_rope_config config = strata_rope_config_default();
  const RopeConfig made{.dim = config.dim,
                        .theta = config.theta,
                        .factor = config.factor,
                        .original_max_position = config.original_max_position,
                        .beta_fast = config.beta_fast,
                        .beta_slow = config.beta_slow,
                        .truncate = config.truncate == 1,
                        .mscale_gain = config.mscale_gain};
  EXPECT_EQ(made, RopeConfig{});
  config.theta = cpp.theta;
  config.factor = cpp.factor;
  config.original_max_position = cpp.original_max_position;
  config.mscale_gain = cpp.mscale_gain;
  std::vector<float> frequencies(32), want(32);
  ASSERT_DONE(strata_rope_frequencies(&config, frequencies.data(), 32));
  rope_frequencies(cpp, want.data());
  EXPECT_EQ(frequencies, want);
  std::vector<float> table(100 * 64);
  ASSERT_DONE(strata_rope_table_build(device, &config, view_of(table, STRATA_F32, {100, 64})));
  const Tensor of_cpp = build_rope_table(cpp, 100, open_device({}));
  EXPECT_EQ(std::memcmp(table.data(), of_cpp.view().data, table.size() * sizeof(float)), 0);

  expect_versions_refused(config, "strata_rope_config",
                          [&](auto* given) { return strata_rope_frequencies(given, frequencies.data(), 32); });
}

TEST(CRope, RefusesWhatCannotBe) {
  const OwnedCDevice device = open_c_device();
  strata_rope_config config = strata_rope_config_default();
  std::vector<float> memory(4 * 64, -1.0f);
  const strata_tensor_view table = view_of(memory, STRATA_F32, {4, 64});
  const auto build = [&](strata_tensor_view view) { return strata_rope_table_build(device, &config, view); };
  EXPECT_FAILS(strata_rope_frequencies(&config, nullptr, 32), STRATA_INVALID_ARGUMENT, "frequencies");
  EXPECT_FAILS(strata_rope_frequencies(nullptr, memory.data(), 32), STRATA_INVALID_ARGUMENT, "strata_rope_config");
  EXPECT_FAILS(strata_rope_frequencies(&config, memory.data(), 31), STRATA_INVALID_ARGUMENT, "count: expected dim / 2 = 32, is 31");
  EXPECT_FAILS(strata_rope_table_build({}, &config, table), STRATA_INVALID_HANDLE, "is null");
  EXPECT_FAILS(strata_rope_table_build(device, nullptr, table), STRATA_INVALID_ARGUMENT, "strata_rope_config");
  EXPECT_FAILS(build({}), STRATA_INVALID_ARGUMENT, "table is required");
  EXPECT_FAILS(build(view_of(memory, STRATA_F32, {8, 32})), STRATA_INVALID_ARGUMENT, "table must have shape [any, 64]");
  EXPECT_FAILS(build(view_of(memory, STRATA_I32, {4, 64})), STRATA_INVALID_ARGUMENT, "table must be f32");
  EXPECT_FAILS(build(view_of(memory, STRATA_F32, {0, 64})), STRATA_INVALID_ARGUMENT, "max_positions must be at least 1");
  strata_tensor_view wrong = table;
  wrong.stride[0] = 128;
  EXPECT_FAILS(build(wrong), STRATA_INVALID_ARGUMENT, "table must be contiguous");
  wrong = table;
  wrong.data = nullptr;
  EXPECT_FAILS(build(wrong), STRATA_INVALID_ARGUMENT, "table must have memory");
  wrong = table;
  wrong.device = {STRATA_CUDA, 0};
  EXPECT_FAILS(build(wrong), STRATA_INVALID_ARGUMENT, "table must be on cpu");
  config.truncate = 2;
  EXPECT_FAILS(build(table), STRATA_INVALID_ARGUMENT, "config.truncate: expected 0 or 1");
  config.truncate = 1;
  for (const int32_t dim : {-1, 0, 63, 2048}) {
    config.dim = dim;
    EXPECT_FAILS(strata_rope_frequencies(&config, memory.data(), dim / 2), STRATA_INVALID_ARGUMENT, "rope: dim must be even");
    EXPECT_EQ(build(table), STRATA_INVALID_ARGUMENT);
  }
  EXPECT_EQ(memory, std::vector<float>(4 * 64, -1.0f));
}

}  // namespace
}  // namespace strata
