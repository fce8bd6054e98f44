// compress_norm_rope_store reads its tokens while the preceding kernel may still write them, and loads the rows they name: what it
// stores is what they say in the end.
#include <algorithm>
#include <numeric>
#include <random>

#include "cuda/cuda_fixture.h"
#include "strata/op_set.h"

namespace strata {
namespace {

struct Kind {
  int32_t ratio;
  int64_t tokens;  // a decode step of as many requests
  bool saves = false;
};

class CudaLookups : public test::CudaTest, public testing::WithParamInterface<Kind> {
 protected:
  template <class T>
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape, const std::vector<T>& values) {
    Tensor t(device_, dtype, shape);
    device_->copy_from_host(t.view().data, values.data(), values.size() * sizeof(T), {});
    device_->synchronize({});
    return t;
  }
  Tensor numbers(std::initializer_list<int64_t> shape) {
    std::vector<float> values(std::accumulate(shape.begin(), shape.end(), size_t{1}, std::multiplies<>()));
    for (float& v : values) v = normal_(rng_);
    return tensor(DType::f32, shape, values);
  }

  std::mt19937 rng_{1};
  std::normal_distribution<float> normal_;
};

TEST_P(CudaLookups, OfWhatTheKernelInFrontWrites) {
  const auto [ratio, tokens, saves] = GetParam();
  const int32_t window = ratio == 4 ? 8 : 128, page_rows = 8, width = 1024 * (ratio == 4 ? 2 : 1);
  const int64_t pages = window / page_rows, positions_before = window;
  std::vector<int32_t> requests(static_cast<size_t>(tokens)), table(static_cast<size_t>(tokens * 2 * pages));
  std::iota(requests.begin(), requests.end(), 0);
  std::vector<int64_t> positions(static_cast<size_t>(tokens), positions_before + window - 1), out_slots(static_cast<size_t>(tokens));
  std::iota(out_slots.begin(), out_slots.end(), int64_t{0});
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), rng_);
  for (int32_t& page : table) page %= static_cast<int32_t>(tokens);  // pages may be shared where they are only read
  for (int64_t t = 0; saves && t < tokens; ++t) table[static_cast<size_t>((t + 1) * 2 * pages - 1)] = static_cast<int32_t>(t);
  std::vector<uint8_t> valid(static_cast<size_t>(tokens));
  for (size_t t = 0; t < valid.size(); ++t) valid[t] = t % 4 != 0;

  const OpSet ops = default_ops();
  const ExecutionContext context{*device_};
  const Tensor state = numbers({tokens, page_rows, width}), weight = numbers({512}), angles = numbers({2 * window, 64});
  const Tensor of_request = tensor(DType::i32, {tokens}, requests), block_table = tensor(DType::i32, {tokens, 2 * pages}, table);
  const Tensor position = tensor(DType::i64, {tokens}, positions), out_slot = tensor(DType::i64, {tokens}, out_slots);
  const Tensor is_valid = tensor(DType::u8, {tokens}, valid), slots(device_, DType::i64, {tokens});
  constexpr KvFormat kFormat = KvFormat::fp8_ds_mla_v4;
  const int64_t row_bytes = row_data_bytes(kFormat, 512) + row_scale_bytes(kFormat);
  const Tensor cache(device_, DType::u8, {tokens, row_bytes});

  const SlotMappingParams map{.positions = position,
                              .token_to_req = of_request,
                              .is_valid_token = is_valid,
                              .block_table = block_table,
                              .page_size = page_rows,
                              .slot_mapping = slots};
  CompressNormRopeStoreParams compress{.block_table = block_table,
                                       .token_to_req = of_request,
                                       .positions = position,
                                       .state_slots = slots,
                                       .out_slots = out_slot,
                                       .ratio = ratio,
                                       .norm_weight = weight,
                                       .cos_sin = angles};
  compress.state = {.data = state.view().data,
                    .device = device_->id(),
                    .format = KvFormat::state_f32,
                    .row_dim = width,
                    .page_size = page_rows,
                    .num_pages = tokens,
                    .page_stride = int64_t{page_rows} * width * 4};
  compress.cache = {.data = cache.view().data,
                    .device = device_->id(),
                    .format = kFormat,
                    .row_dim = 512,
                    .page_size = 1,
                    .num_pages = tokens,
                    .page_stride = row_bytes};
  const Tensor kv_score = numbers({tokens, width}), ape = numbers({ratio, width / 2});
  if (saves) compress.save_prologue = {.kv_score = kv_score, .ape = ape};
  // Long enough that the following kernels have started.
  const Tensor rows(device_, DType::bf16, {1 << 16, 512}), row_weight = numbers({512});
  const RmsNormPairParams in_front{.kv = rows, .kv_weight = row_weight, .kv_out = rows};

  device_->fill(cache.view().data, 0xAB, cache.allocated_bytes(), {});
  ops.slot_mapping(map, context);
  device_->synchronize({});
  ops.compress_norm_rope_store(compress, context);
  const std::vector<uint8_t> want = bytes_at(cache.view().data, cache.allocated_bytes());
  EXPECT_NE(std::count(want.begin(), want.end(), 0xAB), std::ssize(want));

  for (const int64_t before : {-1, 0}) {  // no token seems to complete an entry, or all do
    const std::vector<int64_t> stale(static_cast<size_t>(tokens), before);
    device_->copy_from_host(slots.view().data, stale.data(), slots.allocated_bytes(), {});
    device_->fill(cache.view().data, 0xAB, cache.allocated_bytes(), {});
    device_->synchronize({});
    ops.rms_norm_pair(in_front, context);
    ops.slot_mapping(map, context);
    ops.compress_norm_rope_store(compress, context);
    EXPECT_EQ(bytes_at(cache.view().data, cache.allocated_bytes()), want) << "slots of " << before << " before";
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, CudaLookups,
                         testing::Values(Kind{4, 3}, Kind{4, 70}, Kind{4, 600}, Kind{128, 3}, Kind{128, 16}, Kind{128, 70},
                                         Kind{4, 2, true}, Kind{4, 64, true}, Kind{4, 70, true}),
                         [](const auto& p) {
                           return "r" + std::to_string(p.param.ratio) + "_" + std::to_string(p.param.tokens) +
                                  (p.param.saves ? "_saving" : "");
                         });

}  // namespace
}  // namespace strata
