// What a call through the C API costs more than the C++ call: strata_c_api_overhead [--limit MICROSECONDS]
//
// Small calls on the CPU, on one thread, through both APIs in alternation: a round times some calls of one, then as many of the other. The
// figure is the median of the rounds' differences, in microseconds a call. Exit code 1 when a figure is above the limit, 0.5 by default.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "strata/op_set.h"
#include "strata/strata.h"

namespace {

using namespace strata;

constexpr int kRounds = 2001;
constexpr int kCalls = 20;  // of a round, by each API

void check(strata_status status) {
  if (status != STRATA_OK) throw std::runtime_error(strata_last_error());
}

// Nanoseconds of a call.
template <class Call>
double time_calls(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) call();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count() / kCalls;
}

double median(std::vector<double>& values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Prints one line, and returns the difference in microseconds.
template <class Cpp, class C>
double compare(const char* name, const Cpp& cpp, const C& c) {
  std::vector<double> by_cpp, by_c, differences;
  for (int i = 0; i < kRounds; ++i) {
    double of_cpp = 0, of_c = 0;
    // What runs first changes from round to round.
    if (i % 2 == 0) of_cpp = time_calls(cpp);
    of_c = time_calls(c);
    if (i % 2 != 0) of_cpp = time_calls(cpp);
    if (i < kRounds / 10) continue;  // warm-up
    by_cpp.push_back(of_cpp);
    by_c.push_back(of_c);
    differences.push_back(of_c - of_cpp);
  }
  const double difference = median(differences) / 1000;
  std::printf("%-20s C++ %8.3f us, C %8.3f us, difference %+.3f us a call\n", name, median(by_cpp) / 1000, median(by_c) / 1000, difference);
  return difference;
}

strata_tensor_view view_of(const Tensor& tensor) {
  const TensorView& v = tensor.view();
  strata_tensor_view view;
  check(strata_tensor_view_contiguous(v.data, static_cast<int32_t>(v.dtype), {STRATA_CPU, 0}, v.rank, v.shape.data(), &view));
  return view;
}

// Device memory whose bytes are all zero.
Tensor zeros(const std::shared_ptr<Device>& device, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor tensor(device, dtype, shape);
  std::memset(tensor.view().data, 0, static_cast<size_t>(tensor.allocated_bytes()));
  return tensor;
}

// The workspace that a call needs, in both APIs' forms.
template <class Params>
struct Scratch {
  Scratch(const Op<Params>& op, const Params& params, const std::shared_ptr<Device>& device)
      : memory(device, DType::u8, {op.workspace_bytes(params, *device)}), context{*device, {}, workspace_of(memory), {}} {
    execution.workspace = context.workspace.data;
    execution.workspace_bytes = context.workspace.bytes;
  }
  Tensor memory;
  ExecutionContext context;
  strata_execution execution = strata_execution_default();
};

double slot_mapping(const OpSet& ops, const std::shared_ptr<Device>& device, strata_device c_device) {
  const Tensor positions = zeros(device, DType::i64, {1}), requests = zeros(device, DType::i32, {1}),
               table = zeros(device, DType::i32, {1, 4}), slots = zeros(device, DType::i64, {1});
  const SlotMappingParams params{
      .positions = positions, .token_to_req = requests, .block_table = table, .page_size = 64, .slot_mapping = slots};
  Scratch<SlotMappingParams> scratch(ops.slot_mapping, params, device);
  strata_slot_mapping_params c = strata_slot_mapping_params_default();
  c.positions = view_of(positions);
  c.token_to_req = view_of(requests);
  c.block_table = view_of(table);
  c.page_size = 64;
  c.slot_mapping = view_of(slots);
  return compare(
      "slot_mapping", [&] { ops.slot_mapping(params, scratch.context); },
      [&] { check(strata_slot_mapping(c_device, &c, &scratch.execution)); });
}

double rms_norm_pair(const OpSet& ops, const std::shared_ptr<Device>& device, strata_device c_device) {
  const Tensor q = zeros(device, DType::bf16, {1, 1536}), q_weight = zeros(device, DType::f32, {1536});
  const Tensor kv = zeros(device, DType::bf16, {1, 512}), kv_weight = zeros(device, DType::f32, {512});
  const RmsNormPairParams params{.q = q, .q_weight = q_weight, .q_out = q, .kv = kv, .kv_weight = kv_weight, .kv_out = kv};
  Scratch<RmsNormPairParams> scratch(ops.rms_norm_pair, params, device);
  strata_rms_norm_pair_params c = strata_rms_norm_pair_params_default();
  c.q = c.q_out = view_of(q);
  c.q_weight = view_of(q_weight);
  c.kv = c.kv_out = view_of(kv);
  c.kv_weight = view_of(kv_weight);
  return compare(
      "rms_norm_pair", [&] { ops.rms_norm_pair(params, scratch.context); },
      [&] { check(strata_rms_norm_pair(c_device, &c, &scratch.execution)); });
}

double sparse_attn_decode(const OpSet& ops, const std::shared_ptr<Device>& device, strata_device c_device) {
  constexpr int64_t kDim = 512, kHeads = 1, kTopk = 4;
  PagedCache cache{.device = device->id(), .format = KvFormat::fp8_ds_mla_v4, .row_dim = kDim, .page_size = 64, .num_pages = 1};
  cache.page_stride = page_padded_bytes(cache.format, kDim, cache.page_size, 576);
  const Tensor pages = zeros(device, DType::u8, {cache.page_stride});
  cache.data = pages.view().data;
  const Tensor q = zeros(device, DType::bf16, {1, 1, kHeads, kDim}), out = zeros(device, DType::bf16, {1, 1, kHeads, kDim});
  const Tensor indices = zeros(device, DType::i32, {1, 1, kTopk}), sink = zeros(device, DType::f32, {kHeads});
  const SparseAttnDecodeParams params{.q = q, .cache = cache, .indices = indices, .attn_sink = sink, .softmax_scale = 0.05f, .out = out};
  Scratch<SparseAttnDecodeParams> scratch(ops.sparse_attn_decode, params, device);
  strata_paged_cache c_cache = strata_paged_cache_default();
  c_cache.data = cache.data;
  c_cache.format = STRATA_KV_FP8_DS_MLA_V4;
  c_cache.row_dim = cache.row_dim;
  c_cache.page_size = cache.page_size;
  c_cache.num_pages = cache.num_pages;
  c_cache.page_stride = cache.page_stride;
  strata_sparse_attn_decode_params c = strata_sparse_attn_decode_params_default();
  c.q = view_of(q);
  c.cache = &c_cache;
  c.indices = view_of(indices);
  c.attn_sink = view_of(sink);
  c.softmax_scale = 0.05f;
  c.out = view_of(out);
  return compare(
      "sparse_attn_decode", [&] { ops.sparse_attn_decode(params, scratch.context); },
      [&] { check(strata_sparse_attn_decode(c_device, &c, &scratch.execution)); });
}

int run(double limit) {
  Config config;
  config.cpu_threads = 1;
  const auto device = open_device({}, config);
  strata_config c_config = strata_config_default();
  c_config.cpu_threads = 1;
  strata_device c_device;
  check(strata_device_open("cpu", &c_config, &c_device));
  const OpSet ops = default_ops();
  double worst = 0;
  for (const auto& op : {slot_mapping, rms_norm_pair, sparse_attn_decode}) worst = std::max(worst, op(ops, device, c_device));
  check(strata_device_close(c_device));
  if (worst <= limit) return 0;
  std::fprintf(stderr, "the C API must cost at most %.3f us a call more than C++, costs %.3f\n", limit, worst);
  return 1;
}

}  // namespace

int main(int argc, char** argv) try {
  const bool has_limit = argc == 3 && std::strcmp(argv[1], "--limit") == 0;
  if (argc != 1 && !has_limit) {
    std::fprintf(stderr, "usage: %s [--limit MICROSECONDS]\n", argv[0]);
    return 2;
  }
  return run(has_limit ? std::atof(argv[2]) : 0.5);
} catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
