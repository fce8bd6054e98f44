// What attention on a CPU promises for every instruction set: a token's result has the same bits on any number of threads, alone and in a
// batch, also where its keys fill several blocks; the workspace of a call is enough for one of fewer tokens.
#include <algorithm>

#include "backends/cpu/cpu_features.h"
#include "backends/cpu/attn/rows.h"
#include "op_test.h"
#include "ops/factories.h"
#include "page_memory.h"

namespace strata {
namespace {

using test::Array;
using test::PageMemory;
using test::random_bf16;

constexpr int64_t kTokens = 3;  // fewer than 8 threads, which share a token's keys then, and no fewer than 2, which do not
constexpr int64_t kRows[] = {cpu::kBlockRows + 1, 2 * cpu::kBlockRows + 1, 2048};  // keys of a token, in two blocks and more
constexpr int64_t kHeads[] = {3, 33};                                              // odd; more than one group when keys are shared out

// The implementation that the op takes: of each instruction set another one.
template <class Params>
void run_on(const Op<Params>& op, const Params& params, CpuIsa isa, int threads) {
  Config config;
  config.cpu_isa = isa;
  config.cpu_threads = threads;
  const auto device = open_device({}, config);
  const Tensor workspace(device, DType::u8, {op.workspace_bytes(params, *device)});
  device->fill(workspace.view().data, 0xFF, workspace.allocated_bytes(), {});
  op(params, {*device, {}, workspace_of(workspace)});
}

// batch writes out and lse, whose first dimension is the token; alone(t) is the call of token t, with outputs at the same address.
template <class Params, class Alone>
void expect_same_bits(const Op<Params>& op, const Params& batch, const Alone& alone, Array<Bf16>& out, Array<float>& lse) {
  const auto bytes = [&] { return out.bytes() + lse.bytes(); };
  for (const CpuIsa isa : {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16, CpuIsa::amx}) {
    if (isa > cpu::machine_isa()) break;
    std::string expected;
    for (const int threads : {1, 2, 8}) {
      SCOPED_TRACE(std::string(to_string(isa)) + " on " + std::to_string(threads) + " threads");
      run_on(op, batch, isa, threads);
      if (threads == 1) expected = bytes();
      EXPECT_TRUE(bytes() == expected) << "the batch";
      out.fill({});
      lse.fill(0.0f);
      for (int64_t t = 0; t < kTokens; ++t) run_on(op, alone(t), isa, threads);
      EXPECT_TRUE(bytes() == expected) << "each token alone";
    }
  }
}

template <class Call>
void for_all_sizes(const Call& call) {
  for (const int64_t rows : kRows) {
    for (const int64_t heads : kHeads) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(heads) + " heads");
      call(rows, heads);
    }
  }
}

void fill_random(PageMemory& pages, uint32_t seed) {
  const std::vector<Bf16> values = random_bf16(static_cast<int64_t>(pages.memory.values().size() / sizeof(Bf16)), 1.0f, seed);
  std::memcpy(pages.memory.values().data(), values.data(), values.size() * sizeof(Bf16));
}

// A few entries in a hundred name no row.
Array<int32_t> random_indices(std::initializer_list<int64_t> shape, int64_t rows, uint32_t seed) {
  std::mt19937 generator(seed);
  Array<int32_t> indices(shape);
  for (int32_t& i : indices.values()) i = generator() % 32 == 0 ? -1 : static_cast<int32_t>(generator() % static_cast<uint64_t>(rows));
  return indices;
}

TEST(CpuAttention, DenseDecodeDependsNeitherOnThreadsNorOnTheBatch) {
  const auto op = ops::make_dense_attn_decode();
  for_all_sizes([&](int64_t rows, int64_t heads) {
    constexpr int64_t kDim = 128, kPages = 128;
    PageMemory pages(KvFormat::bf16, kDim, 16, kPages, 0);
    fill_random(pages, 1);
    Array<int32_t> table({kTokens, kPages}), start({kTokens + 1}, {0, 1, 2, 3}), lens({kTokens});
    for (int64_t i = 0; i < kTokens * kPages; ++i) table[i] = static_cast<int32_t>((i * 37 + i / kPages) % kPages);
    lens.fill(static_cast<int32_t>(rows));
    Array<Bf16> q({kTokens, heads, kDim}, random_bf16(kTokens * heads * kDim, 1.0f, 2)), out({kTokens, heads, 64});
    Array<float> lse({kTokens, heads});
    const DenseAttnDecodeParams batch{.q = q,
                                      .cache = pages.cache,
                                      .block_table = table,
                                      .query_start_loc = start,
                                      .seq_lens = lens,
                                      .max_query_len = 1,
                                      .max_seq_len = rows,
                                      .softmax_scale = 0.1f,
                                      .batch_invariant = true,
                                      .out = out,
                                      .lse = lse};
    const auto alone = [&](int64_t t) {
      DenseAttnDecodeParams p = batch;
      p.q = p.q.slice(t, 1);
      p.block_table = p.block_table.slice(t, 1);
      p.query_start_loc = p.query_start_loc.slice(t, 2);
      p.seq_lens = p.seq_lens.slice(t, 1);
      p.out = p.out.slice(t, 1);
      p.lse = p.lse.slice(t, 1);
      return p;
    };
    expect_same_bits(op, batch, alone, out, lse);
  });
}

TEST(CpuAttention, SparseDecodeDependsNeitherOnThreadsNorOnTheBatch) {
  const auto op = ops::make_sparse_attn_decode();
  for_all_sizes([&](int64_t rows, int64_t heads) {
    constexpr int64_t kDim = 512, kWindow = 128;
    PageMemory window(KvFormat::bf16, kDim, 16, 20, 0), extra(KvFormat::bf16, kDim, 2, 400, 0);
    fill_random(window, 1);
    fill_random(extra, 2);
    Array<int32_t> indices = random_indices({kTokens, 1, kWindow}, 16 * 20, 3);
    Array<int32_t> extra_indices = random_indices({kTokens, 1, rows - kWindow}, 2 * 400, 4);
    Array<Bf16> q({kTokens, 1, heads, kDim}, random_bf16(kTokens * heads * kDim, 1.0f, 5)), out({kTokens, 1, heads, 64});
    Array<float> sink({heads}), lse({kTokens, heads, 1});
    sink.fill(0.5f);
    const SparseAttnDecodeParams batch{.q = q,
                                       .cache = window.cache,
                                       .indices = indices,
                                       .extra_cache = extra.cache,
                                       .extra_indices = extra_indices,
                                       .attn_sink = sink,
                                       .softmax_scale = 0.05f,
                                       .batch_invariant = true,
                                       .out = out,
                                       .lse = lse};
    const auto alone = [&](int64_t t) {
      SparseAttnDecodeParams p = batch;
      p.q = p.q.slice(t, 1);
      p.indices = p.indices.slice(t, 1);
      p.extra_indices = p.extra_indices.slice(t, 1);
      p.out = p.out.slice(t, 1);
      p.lse = p.lse.slice(t, 1);
      return p;
    };
    expect_same_bits(op, batch, alone, out, lse);
  });
}

TEST(CpuAttention, SparsePrefillDependsNeitherOnThreadsNorOnTheBatch) {
  const auto op = ops::make_sparse_attn_prefill();
  for_all_sizes([&](int64_t rows, int64_t heads) {
    constexpr int64_t kDim = 512, kSource = 700;
    Array<Bf16> kv({kSource, kDim}, random_bf16(kSource * kDim, 1.0f, 1));
    Array<int32_t> indices = random_indices({kTokens, rows}, kSource, 2);
    Array<Bf16> q({kTokens, heads, kDim}, random_bf16(kTokens * heads * kDim, 1.0f, 3)), out({kTokens, heads, 64});
    Array<float> lse({kTokens, heads});
    const SparseAttnPrefillParams batch{
        .q = q, .kv = kv, .indices = indices, .softmax_scale = 0.1f, .batch_invariant = true, .out = out, .lse = lse};
    const auto alone = [&](int64_t t) {
      SparseAttnPrefillParams p = batch;
      p.q = p.q.slice(t, 1);
      p.indices = p.indices.slice(t, 1);
      p.out = p.out.slice(t, 1);
      p.lse = p.lse.slice(t, 1);
      return p;
    };
    expect_same_bits(op, batch, alone, out, lse);
  });
}

// call(tokens): of shapes alone. Keys of a token are shared out among threads when there are fewer tokens than threads, which takes memory
// that calls of more tokens must have too.
template <class Params, class Call>
void expect_workspace_that_does_not_shrink(const Op<Params>& op, const Call& call) {
  constexpr int kThreads = 64;
  Config config;
  config.cpu_threads = kThreads;
  const auto device = open_device({}, config);
  for (const auto& impl : op.implementations()) {
    int64_t before = 0;
    for (int64_t tokens = 0; tokens <= 2 * kThreads; ++tokens) {
      const Params p = call(tokens);
      if (!impl.supports(p, *device)) break;
      const int64_t bytes = impl.workspace_bytes(p, *device);
      EXPECT_GE(bytes, before) << impl.name << " at " << tokens << " tokens";
      before = bytes;
    }
  }
}

TensorView shape_only(DType dtype, std::initializer_list<int64_t> shape) { return TensorView::contiguous(nullptr, dtype, {}, shape); }

constexpr PagedCache kCache{.format = KvFormat::bf16, .row_dim = 512, .page_size = 64, .num_pages = 100, .page_stride = 64 * 1024};

TEST(CpuAttention, WorkspaceDoesNotShrinkWithMoreTokens) {
  expect_workspace_that_does_not_shrink(ops::make_dense_attn_decode(), [](int64_t tokens) {
    return DenseAttnDecodeParams{.q = shape_only(DType::bf16, {tokens, 33, 512}),
                                 .cache = kCache,
                                 .block_table = shape_only(DType::i32, {tokens, 100}),
                                 .query_start_loc = shape_only(DType::i32, {tokens + 1}),
                                 .seq_lens = shape_only(DType::i32, {tokens}),
                                 .max_query_len = 1,
                                 .max_seq_len = 4096,
                                 .softmax_scale = 1.0f,
                                 .out = shape_only(DType::bf16, {tokens, 33, 512})};
  });
  expect_workspace_that_does_not_shrink(ops::make_sparse_attn_decode(), [](int64_t tokens) {
    return SparseAttnDecodeParams{.q = shape_only(DType::bf16, {tokens, 1, 33, 512}),
                                  .cache = kCache,
                                  .indices = shape_only(DType::i32, {tokens, 1, 2048}),
                                  .softmax_scale = 1.0f,
                                  .out = shape_only(DType::bf16, {tokens, 1, 33, 512})};
  });
  expect_workspace_that_does_not_shrink(ops::make_sparse_attn_prefill(), [](int64_t tokens) {
    return SparseAttnPrefillParams{.q = shape_only(DType::bf16, {tokens, 33, 512}),
                                   .kv = shape_only(DType::bf16, {4096, 512}),
                                   .indices = shape_only(DType::i32, {tokens, 2048}),
                                   .softmax_scale = 1.0f,
                                   .out = shape_only(DType::bf16, {tokens, 33, 512})};
  });
}

}  // namespace
}  // namespace strata
