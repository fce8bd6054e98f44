// Prefill attention of a V4 layer both ways, with what each needs before it: `strata bench --op prefill_attention --impl '*'` gives the
// times that backends/cuda/sparse_attn_prefill/prefill_rule.cpp is fitted to; without --impl the rule selects.
#include <fmt/format.h>

#include <algorithm>

#include "testkit/harness/fill_caches.h"
#include "testkit/harness/paging.h"
#include "ops/sparse_attention/prefill_choice.h"
#include "testkit/cases/registry.h"

namespace strata::testkit {
namespace {

constexpr int32_t kDim = 512, kWindow = 128, kRatio = 4, kPageSize = 64;
constexpr const char *kPaged = "paged", *kGathered = "gathered";

// One request; all its tokens attend to kWindow positions and to top_k of its compressed entries.
struct Chunk {
  int64_t tokens, heads, top_k;
  int64_t context;  // positions before them
  int64_t seq_len() const { return context + tokens; }
  int64_t compressed() const { return top_k > 0 ? seq_len() / kRatio : 0; }
  int64_t window_rows() const { return tokens + kWindow - 1; }
  PrefillWork work() const {
    return {.format = KvFormat::fp8_ds_mla_v4,
            .num_tokens = tokens,
            .num_heads = heads,
            .rows_per_token = kWindow + top_k,
            .num_chunks = 1,
            .gathered_rows = compressed() + window_rows()};
  }
};

// The calls of DeepseekV4Attention::attend_paged and attend_gathered, and the selection of slots that only the former needs.
class Calls {
 public:
  Calls(const OpSet& ops, std::shared_ptr<Device> device, const Chunk& s, bool paged, uint64_t seed)
      : ops_(ops), device_(std::move(device)), inputs_(device_, {.seed = seed, .keep_images = false}), s_(s), paged_(paged) {
    make_attention_inputs();
    paged ? make_paged() : make_gathered();
  }

  void run(Stream stream) const {
    if (paged_) {
      if (s_.top_k > 0) call(ops_.compute_global_topk, choose_, stream);
      call(ops_.sparse_attn_decode, decode_, stream);
    } else {
      if (s_.top_k > 0) call(ops_.dequantize_and_gather_k, gather_compressed_, stream);
      call(ops_.dequantize_and_gather_k, gather_window_, stream);
      call(ops_.combine_topk_swa, combine_, stream);
      call(ops_.sparse_attn_prefill, prefill_, stream);
    }
  }

 private:
  template <class Params>
  void reserve(const Op<Params>& op, const Params& params) {
    const int64_t bytes = op.workspace_bytes(params, *device_);
    if (bytes > 0) workspace_ = Tensor(device_, DType::u8, {bytes});
  }
  template <class Params>
  void call(const Op<Params>& op, const Params& params, Stream stream) const {
    op(params, ExecutionContext{*device_, stream, workspace_of(workspace_)});
  }

  void make_attention_inputs() {
    // A million different values: those of all tokens would take longer to make than to attend with.
    const int64_t some = std::min<int64_t>(s_.tokens, (1 << 20) / (s_.heads * kDim));
    const TensorView random = inputs_.bf16({some, s_.heads, kDim});
    q_ = inputs_.output(DType::bf16, {s_.tokens, s_.heads, kDim});
    for (int64_t t = 0; t < s_.tokens; t += some) {
      const TensorView part = q_.slice(t, std::min(some, s_.tokens - t));
      device_->copy(part.data, random.data, part.bytes(), {});
    }
    out_ = inputs_.output(DType::bf16, {s_.tokens, s_.heads, kDim});
    sink_ = inputs_.f32({s_.heads});
    window_paging_ = make_paging(inputs_.rng(), kPageSize, {s_.seq_len()});
    window_ = cache(window_paging_);
    if (s_.top_k == 0) return;
    compressed_paging_ = make_paging(inputs_.rng(), kPageSize, {s_.compressed()});
    compressed_ = cache(compressed_paging_);
    std::vector<int32_t> chosen;
    for (int64_t t = 0; t < s_.tokens; ++t) {  // ascending, one of each equal range of what the token sees
      const int64_t entries = (s_.context + t + 1) / kRatio;
      const double part = static_cast<double>(entries) / static_cast<double>(s_.top_k);
      for (int64_t i = 0; i < s_.top_k; ++i)
        chosen.push_back(static_cast<int32_t>((static_cast<double>(i) + inputs_.rng().uniform()) * part));
    }
    chosen_ = inputs_.values(DType::i32, {s_.tokens, s_.top_k}, chosen);
  }
  PagedCache cache(const Paging& paging) {
    LayerCaches caches;
    PagedCache& c = caches[CacheGroup::window];
    c = inputs_.cache({.page_size = kPageSize, .num_pages = paging.num_pages, .extra_stride = 64}, {});
    fill_caches(caches, *device_, inputs_.rng());
    return c;
  }

  void make_paged() {
    std::vector<int32_t> slots;
    for (int64_t t = 0; t < s_.tokens; ++t) {
      for (int64_t i = 0; i < kWindow; ++i) slots.push_back(static_cast<int32_t>(window_paging_.slot(0, s_.context + t - kWindow + 1 + i)));
    }
    decode_.q = q_.reshape({s_.tokens, 1, s_.heads, kDim});
    decode_.cache = window_;
    decode_.indices = inputs_.values(DType::i32, {s_.tokens, 1, kWindow}, slots);
    decode_.topk_length = inputs_.i32(std::vector<int32_t>(static_cast<size_t>(s_.tokens), kWindow));
    if (s_.top_k > 0) {
      choose_.topk_indices = chosen_;
      choose_.token_to_req = inputs_.i32(std::vector<int32_t>(static_cast<size_t>(s_.tokens), 0));
      choose_.is_valid_token = inputs_.u8(std::vector<uint8_t>(static_cast<size_t>(s_.tokens), 1));
      choose_.block_table = compressed_paging_.table(inputs_);
      choose_.page_size = kPageSize;
      choose_.global_indices = inputs_.output(DType::i32, {s_.tokens, s_.top_k});
      choose_.lens = inputs_.output(DType::i32, {s_.tokens});
      decode_.extra_cache = compressed_;
      decode_.extra_indices = choose_.global_indices.reshape({s_.tokens, 1, s_.top_k});
      decode_.extra_topk_length = choose_.lens;
    }
    decode_.attn_sink = sink_;
    decode_.softmax_scale = kScale;
    decode_.out = out_.reshape({s_.tokens, 1, s_.heads, kDim});
    reserve(ops_.sparse_attn_decode, decode_);
  }

  void make_gathered() {
    const int64_t rows = s_.compressed() + s_.window_rows();
    const TensorView keys = inputs_.output(DType::bf16, {1, rows, kDim}), seq_lens = inputs_.i32({static_cast<int32_t>(s_.seq_len())}),
                     gather_lens = inputs_.i32({static_cast<int32_t>(s_.window_rows())});
    if (s_.top_k > 0) {
      gather_compressed_ = {.cache = compressed_,
                            .seq_lens = inputs_.i32({static_cast<int32_t>(s_.compressed())}),
                            .block_table = compressed_paging_.table(inputs_),
                            .out = keys};
    }
    gather_window_ = {.cache = window_,
                      .seq_lens = seq_lens,
                      .gather_lens = gather_lens,
                      .block_table = window_paging_.table(inputs_),
                      .offset = s_.compressed(),
                      .out = keys};
    combine_ = {.topk_indices = chosen_,
                .query_start_loc = inputs_.i32({0, static_cast<int32_t>(s_.tokens)}),
                .seq_lens = seq_lens,
                .gather_lens = gather_lens,
                .window = kWindow,
                .ratio = s_.top_k > 0 ? kRatio : 1,
                .top_k = static_cast<int32_t>(s_.top_k),
                .m = rows,
                .n = s_.compressed(),
                .combined_indices = inputs_.output(DType::i32, {s_.tokens, s_.top_k + kWindow}),
                .combined_lens = inputs_.output(DType::i32, {s_.tokens})};
    prefill_ = {.q = q_,
                .kv = keys.reshape({rows, kDim}),
                .indices = combine_.combined_indices,
                .topk_length = combine_.combined_lens,
                .attn_sink = sink_,
                .softmax_scale = kScale,
                .out = out_};
    reserve(ops_.sparse_attn_prefill, prefill_);
  }

  static constexpr float kScale = 0.04419417382415922f;
  const OpSet ops_;
  std::shared_ptr<Device> device_;
  Inputs inputs_;
  Chunk s_;
  bool paged_;
  Tensor workspace_;
  TensorView q_, out_, sink_, chosen_;
  Paging window_paging_, compressed_paging_;
  PagedCache window_, compressed_;
  ComputeGlobalTopkParams choose_;
  SparseAttnDecodeParams decode_;
  DequantizeAndGatherKParams gather_compressed_, gather_window_;
  CombineTopkSwaParams combine_;
  SparseAttnPrefillParams prefill_;
};

class PrefillAttention final : public AnyCase {
 public:
  explicit PrefillAttention(const Chunk& s)
      : AnyCase("prefill_attention", fmt::format("T{}-H{}-rows{}+{}-context{}", s.tokens, s.heads, kWindow, s.top_k, s.context),
                {.bench = true}),
        shape_(s) {}

  std::vector<std::string> implementations(const OpSet&) const override { return {kPaged, kGathered}; }
  std::unique_ptr<CheckRun> start_check(const OpSet&, const CheckOptions&) const override {
    throw Error(ErrorCode::unsupported, op() + " " + name() + " is a benchmark, not a test");
  }
  std::string check_planning(const OpSet&, const std::shared_ptr<Device>&) const override { return ""; }

  Work prepare(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& implementation,
               const WorkOptions& options) const override {
    Work work;
    if (device->id().kind == DeviceKind::cpu) {
      work.refusal = "a case for GPUs: it takes minutes on a CPU";
      return work;
    }
    const PrefillWork shape = shape_.work();
    work.implementation = !implementation.empty() ? implementation : ops::paged_prefill_is_faster(shape, *device) ? kPaged : kGathered;
    if (work.implementation != kPaged && work.implementation != kGathered) {
      work.refusal = "no such way";
      return work;
    }
    // As in a layer, where the queries were just made and most rows were just read: nothing is brought to memory between calls.
    auto calls = std::make_shared<Calls>(ops, device, shape_, work.implementation == kPaged, options.seed);
    const double rows = static_cast<double>(shape.gathered_rows), tokens = static_cast<double>(shape.num_tokens),
                 heads = static_cast<double>(shape.num_heads), attended = static_cast<double>(shape.rows_per_token);
    work.flops = 4.0 * kDim * tokens * heads * attended;
    work.bytes = rows * static_cast<double>(row_bytes(KvFormat::fp8_ds_mla_v4, kDim)) + tokens * (4.0 * attended + 4.0 * heads * kDim);
    work.call = [calls](size_t, Stream stream) { calls->run(stream); };
    return work;
  }

 private:
  Chunk shape_;
};

}  // namespace

void add_prefill_attention(CaseList& list) {
  const auto add = [&](const Chunk& s) { list.push_back(std::make_unique<PrefillAttention>(s)); };
  for (const int64_t heads : {8, 16, 32, 64, 128}) {
    // On both sides of where 132 multiprocessors have had one block each.
    for (const int64_t tokens : {1, 4, 16, 32, 64, 72, 128, 144, 256, 512, 1024, 2048}) {
      for (const int64_t top_k : {0, 512, 1024}) add({tokens, heads, top_k, 8 * top_k + kWindow});
    }
  }
  // What gathering a long context costs.
  for (const int64_t tokens : {64, 512}) add({tokens, 64, 512, 131072});
}

}  // namespace strata::testkit
