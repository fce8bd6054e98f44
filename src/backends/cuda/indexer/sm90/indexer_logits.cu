// Launch of the logits kernels.
#include <algorithm>

#include "backends/cuda/device/rows.cuh"
#include "backends/cuda/indexer/sm90/decode_kernel.cuh"
#include "backends/cuda/indexer/sm90/indexer.h"
#include "backends/cuda/indexer/sm90/notes.h"
#include "backends/cuda/indexer/sm90/one_token_kernel.cuh"
#include "backends/cuda/indexer/sm90/prefill_kernel.cuh"
#include "backends/cuda/runtime/check.h"
#include "backends/cuda/runtime/early_launch.cuh"
#include "backends/cuda/runtime/implementation.h"
#include "backends/cuda/runtime/tensor_map.h"

namespace strata::cuda {
namespace {

// most_shared_bytes: of every call.
template <class Args>
void launch(void (*kernel)(Args), int blocks, int threads, int shared_bytes, int most_shared_bytes, const Args& args,
            const ExecutionContext& context) {
  allow_shared_bytes(kernel, static_cast<size_t>(most_shared_bytes));
  all_shared_memory(kernel);  // room for a CTA of the selection together with this kernel's
  launch_early("indexer_logits", kernel,
               {.grid = dim3(static_cast<unsigned>(blocks)),
                .block = dim3(static_cast<unsigned>(threads)),
                .shared_bytes = static_cast<size_t>(shared_bytes)},
               context, args);
}

template <int kHeads, int kTokens>
void launch_prefill(const sm90::LogitsArgs& args, const ExecutionContext& context) {
  constexpr int kSharedBytes = sizeof(sm90::PrefillShared<kHeads, kTokens>) + 1024;
  launch(sm90::indexer_logits_prefill_kernel<kHeads, kTokens>, capabilities(context.device).num_sms, sm90::kPrefillThreads, kSharedBytes,
         kSharedBytes, args, context);
}

void (*decode_kernel(bool maxima, bool makes_query))(sm90::DecodeArgs) {
  using namespace sm90;
  if (makes_query) return maxima ? indexer_logits_decode_kernel<true, true> : indexer_logits_decode_kernel<false, true>;
  return maxima ? indexer_logits_decode_kernel<true, false> : indexer_logits_decode_kernel<false, false>;
}

void launch_decode(const sm90::DecodeArgs& args, bool makes_query, const ExecutionContext& context) {
  const auto shared_bytes = [](int n) { return static_cast<int>(sizeof(sm90::DecodeShared)) + n * sm90::kRowBytes + 1024; };
  launch(decode_kernel(args.logits.maxima != nullptr, makes_query), capabilities(context.device).num_sms, sm90::kDecodeThreads,
         shared_bytes(args.slots), shared_bytes(sm90::kDecodeSlots), args, context);
}

template <int kWarpgroups, Notes kNotes>
void launch_one_token(const sm90::OneTokenArgs& args, int blocks, const ExecutionContext& context) {
  constexpr int kList = kNotes == Notes::candidates ? sizeof(sm90::CandidatesShared) : 0;
  const auto shared_bytes = [](int slots) {
    return static_cast<int>(sizeof(sm90::OneTokenShared)) + slots * sm90::kRowBytes + kList + 1024;
  };
  launch(sm90::indexer_logits_one_token_kernel<kWarpgroups, kNotes>, blocks, sm90::kOneTokenThreads<kWarpgroups, kNotes>,
         shared_bytes(args.slots), shared_bytes(sm90::kOneTokenSlots), args, context);
}

bool leaves_room(int64_t num_tokens, int64_t rows, bool runs_concurrently, int num_sms) {
  const bool long_rows = rows > sm90::kConcurrentLongRows && rows <= sm90::kConcurrentRowBound;
  if (rows > sm90::kConcurrentRows && (!runs_concurrently || long_rows)) return false;
  if (num_tokens > sm90::kConcurrentMaxTokens) return false;
  return num_tokens >= sm90::kConcurrentTokens || num_tokens * rows <= int64_t{sm90::kTileRows} * num_sms;
}

// Of the shape and the operations that make_token supports.
bool makes_query_itself(const IndexerQueryParams& p) {
  return suits_indexer_query_128(p) && p.cos_sin.present() && p.pairing == RopePairing::interleaved && p.rope_slice == RopeSlice::last &&
         !p.hadamard;
}

}  // namespace

Support sm90::supports_scoring(const TensorView& q, const PagedCache& cache, const Capabilities& c) {
  if (Support support = needs_sm90(c); !support) return support;
  if (cache.format != KvFormat::indexer_fp8) return Support::no("needs fp8 rows");
  if (q.shape[1] > 128) return Support::no("needs at most 128 heads");
  if (cache.page_size % kTileRows != 0) return Support::no("needs pages of a multiple of 64 rows");
  if (cache.page_stride % 16 != 0) return Support::no("needs a page_stride that is a multiple of 16 bytes");
  if (cache.page_stride >= int64_t{1} << 31) return Support::no("needs a page_stride below 2 GB");
  return Support::yes();
}

auto sm90::logits_kernel(int64_t num_heads, int64_t num_tokens, int64_t num_requests) -> LogitsKernel {
  if (num_heads > 64 || num_tokens >= 2 * num_requests) return LogitsKernel::prefill;
  return num_tokens == 1 ? LogitsKernel::one_token : LogitsKernel::decode;
}

std::string sm90::refusal(LogitsKernel kernel, int64_t num_heads, int64_t num_tokens) {
  if (kernel == LogitsKernel::prefill) return {};
  if (num_heads > 64) return "needs at most 64 heads, has " + std::to_string(num_heads);
  return kernel == LogitsKernel::decode || num_tokens <= 1 ? "" : "needs one token, has " + std::to_string(num_tokens);
}

bool sm90::launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context) {
  return launch_indexer_logits(logits_kernel(p.q.shape[1], p.q.shape[0], p.block_table.shape[0]), p, skip, hints, context);
}

bool sm90::launch_indexer_logits(LogitsKernel kernel, const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints,
                                 const ExecutionContext& context) {
  const int64_t num_tokens = p.q.shape[0], num_requests = p.block_table.shape[0];
  if (num_tokens == 0 || p.logits.shape[1] == 0) return false;
  // Operands that a tensor map does not support; a cache without pages has nothing to map.
  if (!begins_aligned(p.q.data) || !begins_aligned(p.cache.data) || p.cache.num_pages == 0)
    return smxx::launch_indexer_logits(p, skip, {.query = hints.query}, context);
  const bool one_token = kernel == LogitsKernel::one_token, decode = one_token || kernel == LogitsKernel::decode;
  const bool makes_query = hints.query != nullptr && decode && !one_token && makes_query_itself(*hints.query);
  if (hints.query != nullptr && !makes_query) launch_indexer_query(*hints.query, context);
  const TensorView& notes = hints.notes;
  const int num_sms = capabilities(context.device).num_sms;
  const Notes left =
      decode && notes.present() && serve(hints.kind, num_tokens, p.logits.shape[1], skip, num_sms) ? hints.kind : Notes::none;
  const int one_token_blocks = left == Notes::candidates ? candidate_blocks(num_sms) : num_sms;
  const LogitsArgs args{tensor_map("indexer_logits: cache", p.cache.data, p.cache.num_pages, p.cache.page_size, kIndexerDim / 2,
                                   p.cache.page_stride / 2, kIndexerDim / 2, kTileRows),
                        p.q.ptr<uint8_t>(),
                        p.weights.ptr<float>(),
                        static_cast<const uint8_t*>(p.cache.data),
                        static_cast<int32_t>(p.cache.page_stride),
                        p.cache.page_size * kIndexerDim,
                        Divisor(p.cache.page_size / kTileRows),
                        p.block_table.ptr<int32_t>(),
                        p.block_table.stride[0],
                        num_requests > 0 ? (num_requests - 1) * p.block_table.stride[0] + p.block_table.shape[1] : 0,
                        p.token_to_req.ptr<int32_t>(),
                        p.lengths.ptr<int32_t>(),
                        skip,
                        p.logits.ptr<float>(),
                        p.logits.stride[0],
                        left == Notes::maxima ? notes.ptr<float>() : nullptr,
                        left == Notes::maxima ? notes.stride[0] : 0,
                        static_cast<int32_t>(held_entries(num_tokens, p.logits.shape[1], num_sms)),
                        num_tokens,
                        Divisor(one_token ? one_token_blocks : num_sms),
                        Divisor(static_cast<int>(std::max<int64_t>(num_sms / num_tokens, 1))),
                        static_cast<int>(p.q.shape[1])};
  if (one_token) {
    const int64_t tiles = (p.logits.shape[1] + kTileRows - 1) / kTileRows, of_block = (tiles + one_token_blocks - 1) / one_token_blocks;
    const OneTokenArgs one{args, static_cast<int32_t>(num_requests), static_cast<int32_t>(p.block_table.shape[1]),
                           static_cast<int32_t>(std::min<int64_t>(of_block, kOneTokenSlots)),
                           left == Notes::candidates ? candidates_in(notes.ptr<float>(), num_sms) : Candidates{}};
    if (left == Notes::candidates) {
      launch_one_token<kOneTokenWarpgroups, Notes::candidates>(one, one_token_blocks, context);
    } else if (left == Notes::maxima) {
      launch_one_token<kOneTokenWarpgroups, Notes::maxima>(one, one_token_blocks, context);
    } else {
      of_block == 1 ? launch_one_token<1, Notes::none>(one, one_token_blocks, context)
                    : launch_one_token<kOneTokenWarpgroups, Notes::none>(one, one_token_blocks, context);
    }
  } else if (decode) {
    const int slots = leaves_room(num_tokens, p.logits.shape[1], hints.runs_concurrently, num_sms) ? kDecodeSlotsConcurrent : kDecodeSlots;
    launch_decode({args, slots, makes_query ? indexer_query_args(*hints.query) : IndexerQueryArgs{}}, makes_query, context);
  } else if (p.q.shape[1] > 64) {
    launch_prefill<128, 1>(args, context);
  } else {
    launch_prefill<64, 2>(args, context);
  }
  return left != Notes::none;
}

}  // namespace strata::cuda
