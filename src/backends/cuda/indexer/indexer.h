// Shared by the launchers of the indexer's portable kernels and of the Hopper kernels (sm90/).
#pragma once

#include <cstdint>

#include "strata/op.h"
#include "strata/ops/indexer.h"

namespace strata::cuda {

// What the logits kernels of few tokens write for the selection in addition to the logits, so that it need not read all of them
// (sm90/notes.h).
enum class Notes : uint8_t {
  none,
  maxima,      // the largest of every kMaximaRows logits (sm90/select_groups.cuh)
  candidates,  // one token: the entries that may be among the k largest (sm90/candidates.cuh)
};

// Writes the logits of tokens with more than `skip` candidates. The other tokens' logits may be omitted where a selection of `skip` entries
// takes all their candidates; IndexerLogits passes 0. Returns true if hints.notes was written.
inline constexpr int kMaximaRows = 16;
struct LogitsHints {
  TensorView notes{};                         // f32 [T, note_floats()], or absent: notes for the selection
  Notes kind = Notes::none;                   // kind of the notes; maxima: only of rows that are long enough
  bool runs_concurrently = false;             // kernels of other streams are likely to run concurrently
  const IndexerQueryParams* query = nullptr;  // from which q, q_scale and weights of the same tokens are made first; null: they are given
};
using LogitsLauncher = bool (*)(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);

// Slots of the selected entries of a call's first rows; absent: not written.
struct SlotViews {
  TensorView block_table{}, token_to_req{};
  int32_t page_size = 0;
  TensorView slots{}, lens{};
};

struct SelectHints {
  bool after_logits = false;  // a LogitsLauncher of the same backend was enqueued immediately before
  TensorView notes{};         // absent, or what that launcher wrote
  Notes kind = Notes::none;   // kind of the notes
  SlotViews slots{};
};
// p.logits may be absent if no length exceeds k.
using SelectLauncher = void (*)(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);

void launch_indexer_query(const IndexerQueryParams& p, const ExecutionContext& context);

namespace smxx {
bool launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);
void launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);
}  // namespace smxx

}  // namespace strata::cuda
