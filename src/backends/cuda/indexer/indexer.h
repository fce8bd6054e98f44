// What the launchers of the portable kernels of the indexer and of Hopper's (sm90/) share.
#pragma once

#include <cstdint>

#include "strata/op.h"
#include "strata/ops/indexer.h"

namespace strata::cuda {

// What the logits kernels of few tokens leave for the selection beside the logits, so that it need not read all of these (sm90/notes.h).
enum class Notes : uint8_t {
  none,
  maxima,      // the largest of each kMaximaRows logits (sm90/select_groups.cuh)
  candidates,  // of one token: the entries that may be among the k largest (sm90/candidates.cuh)
};

// Writes the logits of tokens with more than `skip` candidates. Where nobody looks at the others (a selection of `skip` entries takes
// all of theirs) they need not be computed; IndexerLogits has 0. True: hints.notes was written.
inline constexpr int kMaximaRows = 16;
struct LogitsHints {
  TensorView notes{};                         // f32 [T, note_floats()], or absent: for what the selection may begin with
  Notes kind = Notes::none;                   // which of them; maxima: of rows that are long enough
  bool beside_others = false;                 // kernels of other streams are likely to run at the same time
  const IndexerQueryParams* query = nullptr;  // what q, q_scale and weights are made from first, of the same tokens; null: they are there
};
using LogitsLauncher = bool (*)(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);

// Slots of the chosen entries of a call's first rows; absent: not wanted.
struct SlotViews {
  TensorView block_table{}, token_to_req{};
  int32_t page_size = 0;
  TensorView slots{}, lens{};
};

struct SelectHints {
  bool behind_logits = false;  // a LogitsLauncher of the same backend was enqueued just before
  TensorView notes{};          // absent, or what it wrote
  Notes kind = Notes::none;    // of it
  SlotViews slots{};
};
// p.logits may be absent where no length exceeds k.
using SelectLauncher = void (*)(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);

void launch_indexer_query(const IndexerQueryParams& p, const ExecutionContext& context);

namespace smxx {
bool launch_indexer_logits(const IndexerLogitsParams& p, int32_t skip, const LogitsHints& hints, const ExecutionContext& context);
void launch_topk_select(const TopkSelectParams& p, const SelectHints& hints, const ExecutionContext& context);
}  // namespace smxx

}  // namespace strata::cuda
