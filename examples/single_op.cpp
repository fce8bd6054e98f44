// One op on its own, without layers: sparse attention of decode over FP8 pages in vLLM's and FlashMLA's layout, with a sink and the LSE.
//
// A call has four parts: params that say where everything is, the bytes of workspace that they need, the call, and, where wanted, the name
// of the implementation that was chosen. Everything is the caller's memory; on a GPU the same calls go to a stream (ExecutionContext).
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include "strata/bf16.h"
#include "strata/error.h"
#include "strata/op_set.h"

namespace {

using namespace strata;

constexpr int64_t kTokens = 3, kHeads = 16, kDim = 512, kRows = 200, kTopk = 40;
constexpr int32_t kPageSize = 64;

// Runs an op on a CPU, with a workspace of its own.
template <class Params>
void run(const Op<Params>& op, const Params& params, const std::shared_ptr<Device>& device) {
  const Tensor workspace(device, DType::u8, {op.workspace_bytes(params, *device)});
  op(params, {*device, {}, workspace_of(workspace)});
}

int compare() {
  const auto device = open_device({});
  const OpSet ops = default_ops();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto random_values = [&](const Tensor& t) {
    for (int64_t i = 0; i < t.view().numel(); ++i) t.view().ptr<Bf16>()[i] = to_bf16(normal(random));
  };

  // Pages, and rows in them: token i in slot i.
  PagedCache cache{.device = device->id(), .format = KvFormat::fp8_ds_mla_v4, .row_dim = kDim, .page_size = kPageSize};
  cache.num_pages = (kRows + kPageSize - 1) / kPageSize;
  cache.page_stride = page_padded_bytes(cache.format, kDim, kPageSize, 576);
  const Tensor pages(device, DType::u8, {cache.num_pages, cache.page_stride});
  cache.data = pages.view().data;
  const Tensor keys(device, DType::bf16, {kRows, kDim}), slots(device, DType::i64, {kRows});
  random_values(keys);
  for (int64_t i = 0; i < kRows; ++i) slots.view().ptr<int64_t>()[i] = i;
  run(ops.quantize_and_insert_k, {.k = keys, .slot_mapping = slots, .cache = cache}, device);

  // Queries, and the slots that each attends to. -1 is no slot; slots after the length are ignored.
  const Tensor q(device, DType::bf16, {kTokens, 1, kHeads, kDim}), out(device, DType::bf16, {kTokens, 1, kHeads, kDim});
  const Tensor indices(device, DType::i32, {kTokens, 1, kTopk}), lengths(device, DType::i32, {kTokens});
  const Tensor sink(device, DType::f32, {kHeads}), lse(device, DType::f32, {kTokens, kHeads, 1});
  random_values(q);
  for (int64_t i = 0; i < kTokens * kTopk; ++i) indices.view().ptr<int32_t>()[i] = i % 9 == 0 ? -1 : static_cast<int32_t>(random() % kRows);
  for (int64_t t = 0; t < kTokens; ++t) lengths.view().ptr<int32_t>()[t] = static_cast<int32_t>(kTopk - 7 * t);
  for (int64_t h = 0; h < kHeads; ++h) sink.view().ptr<float>()[h] = 0.1f * static_cast<float>(h);
  const float scale = 1.0f / std::sqrt(static_cast<float>(kDim));
  const SparseAttnDecodeParams attention{.q = q,
                                         .cache = cache,
                                         .indices = indices,
                                         .topk_length = lengths,
                                         .attn_sink = sink,
                                         .softmax_scale = scale,
                                         .out = out,
                                         .lse = lse};
  run(ops.sparse_attn_decode, attention, device);
  std::printf("%s by %s\n", ops.sparse_attn_decode.name().c_str(), ops.sparse_attn_decode.select(attention, *device).name.c_str());

  // The rows as they are in the cache, and the softmax by hand.
  const Tensor rows(device, DType::bf16, {1, kRows, kDim}), seq_len(device, DType::i32, {1}),
      table(device, DType::i32, {1, cache.num_pages});
  *seq_len.view().ptr<int32_t>() = kRows;
  for (int32_t page = 0; page < cache.num_pages; ++page) table.view().ptr<int32_t>()[page] = page;
  run(ops.dequantize_and_gather_k, {.cache = cache, .seq_lens = seq_len, .block_table = table, .out = rows}, device);
  double worst_out = 0, worst_lse = 0;
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t h = 0; h < kHeads; ++h) {
      const Bf16* query = q.view().ptr<Bf16>() + (t * kHeads + h) * kDim;
      double sum = 0;
      std::vector<double> values(kDim);
      for (int64_t i = 0; i < lengths.view().ptr<int32_t>()[t]; ++i) {
        const int32_t slot = indices.view().ptr<int32_t>()[t * kTopk + i];
        if (slot < 0) continue;
        const Bf16* row = rows.view().ptr<Bf16>() + slot * kDim;
        double logit = 0;
        for (int64_t d = 0; d < kDim; ++d) logit += to_float(query[d]) * to_float(row[d]);
        const double weight = std::exp(logit * scale);
        sum += weight;
        for (int64_t d = 0; d < kDim; ++d) values[static_cast<size_t>(d)] += weight * to_float(row[d]);
      }
      worst_lse = std::max(worst_lse, std::abs(std::log(sum) - lse.view().ptr<float>()[t * kHeads + h]));
      sum += std::exp(sink.view().ptr<float>()[h]);  // takes its share of the softmax, not of the LSE
      const Bf16* result = out.view().ptr<Bf16>() + (t * kHeads + h) * kDim;
      for (int64_t d = 0; d < kDim; ++d)
        worst_out = std::max(worst_out, std::abs(values[static_cast<size_t>(d)] / sum - to_float(result[d])));
    }
  }
  std::printf("against the softmax by hand: output within %.2g, LSE within %.2g\n", worst_out, worst_lse);
  return worst_out < 1e-2 && worst_lse < 1e-4 ? 0 : 1;
}

}  // namespace

int main() try { return compare(); } catch (const std::exception& e) {
  std::fprintf(stderr, "%s\n", e.what());
  return 1;
}
