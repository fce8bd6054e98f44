// Index generation on the CPU: the reference's loops with divisions taken out of them, over threads. Floor: the bytes written, 4 per
// index (V4-Flash, T = 512: 0.25 MB of window slots, 1.3 MB of combined rows).
#include <algorithm>
#include <bit>

#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace {

constexpr int64_t kRowsPerTask = 32;

bool valid(const TensorView& is_valid_token, int64_t t) { return !is_valid_token.present() || is_valid_token.ptr<uint8_t>()[t] != 0; }

const int32_t* pages_of(const TensorView& block_table, const TensorView& token_to_req, int64_t t) {
  return block_table.row<int32_t>(token_to_req.ptr<int32_t>()[t]);
}

// row[i] = slot of entry first + i, for i < count: page by page.
void fill_slots(const int32_t* pages, int64_t page_size, int64_t first, int64_t count, int32_t* row) {
  while (count > 0) {
    const int64_t offset = first % page_size;
    const int64_t n = std::min(page_size - offset, count);
    const int64_t slot = int64_t{pages[first / page_size]} * page_size + offset;
    for (int64_t i = 0; i < n; ++i) row[i] = static_cast<int32_t>(slot + i);
    row += n;
    first += n;
    count -= n;
  }
}

void run_slot_mapping(const SlotMappingParams& p, const ExecutionContext& context) {
  parallel_for(context.device, p.positions.shape[0], 4096, [&](int64_t t) {
    const int64_t position = p.positions.ptr<int64_t>()[t];
    int64_t slot = -1;
    if (valid(p.is_valid_token, t) && (position + 1) % p.ratio == 0) {
      const int64_t entry = position / p.ratio;
      slot = int64_t{pages_of(p.block_table, p.token_to_req, t)[entry / p.page_size]} * p.page_size + entry % p.page_size;
    }
    p.slot_mapping.ptr<int64_t>()[t] = slot;
  });
}

void run_swa_indices(const SwaIndicesParams& p, const ExecutionContext& context) {
  parallel_for(context.device, p.positions.shape[0], kRowsPerTask, [&](int64_t t) {
    int32_t* const row = p.indices.row<int32_t>(t);
    int64_t len = 0;
    if (valid(p.is_valid_token, t)) {
      const int64_t end = p.positions.ptr<int64_t>()[t] + 1;
      len = std::min<int64_t>(end, p.window);
      fill_slots(pages_of(p.block_table, p.token_to_req, t), p.page_size, end - len, len, row);
    }
    std::fill(row + len, row + p.window, -1);
    p.lens.ptr<int32_t>()[t] = static_cast<int32_t>(len);
  });
}

void run_compressed_indices(const CompressedIndicesParams& p, const ExecutionContext& context) {
  const int64_t width = p.indices.shape[1];
  parallel_for(context.device, p.positions.shape[0], kRowsPerTask, [&](int64_t t) {
    int32_t* const row = p.indices.row<int32_t>(t);
    const int64_t len = valid(p.is_valid_token, t) ? std::min((p.positions.ptr<int64_t>()[t] + 1) / p.ratio, width) : 0;
    if (p.block_table.present() && len > 0) {
      fill_slots(pages_of(p.block_table, p.token_to_req, t), p.page_size, 0, len, row);
    } else {
      for (int64_t i = 0; i < len; ++i) row[i] = static_cast<int32_t>(i);
    }
    std::fill(row + len, row + width, -1);
    p.lens.ptr<int32_t>()[t] = static_cast<int32_t>(len);
  });
}

// global[i] = slot of entry local[i], -1 where there is none; the number of entries. Block and Offset split an entry number.
template <class Block, class Offset>
int32_t global_row(const int32_t* local, int64_t k, const int32_t* pages, uint64_t blocks, uint32_t page_size, int32_t* global,
                   const Block& block_of, const Offset& offset_of) {
  int32_t count = 0;
  for (int64_t i = 0; i < k; ++i) {
    const int32_t entry = local[i];
    const uint32_t block = block_of(static_cast<uint32_t>(entry));
    count += entry >= 0;
    const bool known = entry >= 0 && block < blocks;
    global[i] = known ? static_cast<int32_t>(int64_t{pages[block]} * page_size + offset_of(static_cast<uint32_t>(entry))) : -1;
  }
  return count;
}

void run_compute_global_topk(const ComputeGlobalTopkParams& p, const ExecutionContext& context) {
  const int64_t k = p.topk_indices.shape[1];
  const auto page_size = static_cast<uint32_t>(p.page_size);
  const auto blocks = static_cast<uint64_t>(p.block_table.shape[1]);
  // A division per entry is most of the work; pages of the models are powers of two.
  const bool shifts = std::has_single_bit(page_size);
  const int shift = std::countr_zero(page_size);
  parallel_for(context.device, p.topk_indices.shape[0], 8, [&](int64_t t) {
    const int32_t* const local = p.topk_indices.row<int32_t>(t);
    int32_t* const global = p.global_indices.row<int32_t>(t);
    int32_t& len = p.lens.ptr<int32_t>()[t];
    if (!valid(p.is_valid_token, t)) {
      std::fill_n(global, k, -1);
      len = 0;
      return;
    }
    const int32_t* const pages = pages_of(p.block_table, p.token_to_req, t);
    len = shifts ? global_row(
                       local, k, pages, blocks, page_size, global, [=](uint32_t e) { return e >> shift; },
                       [=](uint32_t e) { return e & (page_size - 1); })
                 : global_row(
                       local, k, pages, blocks, page_size, global, [=](uint32_t e) { return e / page_size; },
                       [=](uint32_t e) { return e % page_size; });
  });
}

void run_combine_topk_swa(const CombineTopkSwaParams& p, const ExecutionContext& context) {
  const int32_t* const starts = p.query_start_loc.ptr<int32_t>();
  const int64_t width = p.combined_indices.shape[1];
  for (int64_t r = 0; r < p.seq_lens.shape[0]; ++r) {
    const int64_t begin = int64_t{starts[r]} - starts[0];  // query_start_loc counts the tokens of the whole batch
    const int64_t end = int64_t{starts[r + 1]} - starts[0];
    const int64_t seq_len = p.seq_lens.ptr<int32_t>()[r];
    const int64_t gather_start = seq_len - p.gather_lens.ptr<int32_t>()[r];
    parallel_for(context.device, end - begin, kRowsPerTask, [&](int64_t i) {
      const int64_t t = begin + i, position = seq_len - end + t;
      const int64_t num_topk = std::min<int64_t>((position + 1) / p.ratio, p.top_k);
      const int64_t num_window = std::min<int64_t>(position + 1, p.window);
      const int64_t first_row = r * p.m + p.n + (position - num_window + 1 - gather_start);
      int32_t* const row = p.combined_indices.row<int32_t>(t);
      if (num_topk > 0) {
        const int32_t* const topk = p.topk_indices.row<int32_t>(t);
        for (int64_t j = 0; j < num_topk; ++j) row[j] = static_cast<int32_t>(topk[j] + r * p.m);
      }
      for (int64_t j = 0; j < num_window; ++j) row[num_topk + j] = static_cast<int32_t>(first_row + j);
      std::fill(row + num_topk + num_window, row + width, -1);
      p.combined_lens.ptr<int32_t>()[t] = static_cast<int32_t>(num_topk + num_window);
    });
  }
}

}  // namespace

std::vector<Implementation<SlotMappingParams>> slot_mapping() { return simd_implementation(run_slot_mapping); }
std::vector<Implementation<SwaIndicesParams>> swa_indices() { return simd_implementation(run_swa_indices); }
std::vector<Implementation<CompressedIndicesParams>> compressed_indices() { return simd_implementation(run_compressed_indices); }
std::vector<Implementation<ComputeGlobalTopkParams>> compute_global_topk() { return simd_implementation(run_compute_global_topk); }
std::vector<Implementation<CombineTopkSwaParams>> combine_topk_swa() { return simd_implementation(run_combine_topk_swa); }

}  // namespace strata::cpu
