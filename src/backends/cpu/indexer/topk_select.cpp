// TopkSelect: one pass over each row; rows over threads, and when there are fewer rows than threads, pieces of rows that are merged.
//
// Floor: a row is read once, 4 bytes an entry; appending takes half a cycle per entry and AVX-512 vector of 16, compactions are few.
#include "backends/cpu/cpu_device.h"
#include "backends/cpu/cpu_ops.h"
#include "backends/cpu/indexer/plan.h"
#include "backends/cpu/indexer/selection.h"
#include "backends/cpu/simd_implementation.h"

namespace strata::cpu {
namespace indexer {
namespace {

constexpr int64_t kMinPiece = 16384;  // entries: below this a thread costs more than it gains

// Workspace: a selection and its scratch per thread; the k best of each piece, at most two pieces per thread.
struct Layout {
  size_t per_thread, pieces_at, per_piece, bytes;
  Layout(int64_t k, int threads)  // k: no more than the columns of the logits
      : per_thread(align_up(selection_bytes(k) + selection_scratch_bytes(k))),
        pieces_at(per_thread * static_cast<size_t>(threads)),
        per_piece(align_up(static_cast<size_t>(k) * 8 + 8)),
        bytes(pieces_at + per_piece * static_cast<size_t>(2 * threads)) {}
};

Layout layout_of(const TopkSelectParams& p, const Device& device) {
  return {std::min(p.topk_indices.shape[1], p.logits.shape[1]), threads_of(device)};
}

// The best of one piece of a row.
struct Piece {
  int64_t* count;
  int32_t *keys, *entries;
  Piece(std::byte* memory, int64_t k)
      : count(reinterpret_cast<int64_t*>(memory)), keys(reinterpret_cast<int32_t*>(memory + 8)), entries(keys + k) {}
};

class Rows {
 public:
  Rows(const TopkSelectParams& p, const ExecutionContext& context)
      : p_(p),
        k_(p.topk_indices.shape[1]),
        functions_(selection_functions(context.device)),
        layout_(layout_of(p, context.device)),
        workspace_(static_cast<std::byte*>(context.workspace.data)) {}

  void select(int64_t t) const {
    const int64_t length = this->length(t);
    if (length <= k_) return select_all(length, k_, out(t));
    std::byte* memory = thread_memory();
    Selection selection = make_selection(memory, k_);
    functions_.append(selection, p_.logits.row<float>(t), length, 0, k_, scratch(memory));
    finish(selection, t, memory);
  }

  void select_piece(int64_t t, int64_t piece, int64_t pieces) const {
    const int64_t length = this->length(t);
    if (length <= k_) return;
    const int64_t begin = length * piece / pieces, end = length * (piece + 1) / pieces;
    std::byte* memory = thread_memory();
    Selection selection = make_selection(memory, k_);
    functions_.append(selection, p_.logits.row<float>(t) + begin, end - begin, begin, k_, scratch(memory));
    functions_.compact(selection, k_, scratch(memory));
    const Piece best = piece_at(t * pieces + piece);
    *best.count = selection.count;
    std::copy_n(selection.key, selection.count, best.keys);
    std::copy_n(selection.entry, selection.count, best.entries);
  }

  void merge(int64_t t, int64_t pieces) const {
    if (length(t) <= k_) return select_all(length(t), k_, out(t));
    std::byte* memory = thread_memory();
    Selection selection = make_selection(memory, k_);
    for (int64_t i = 0; i < pieces; ++i) {
      const Piece best = piece_at(t * pieces + i);
      functions_.append_candidates(selection, best.keys, best.entries, *best.count, k_, scratch(memory));
    }
    finish(selection, t, memory);
  }

 private:
  int64_t length(int64_t t) const { return p_.lengths.ptr<int32_t>()[t]; }
  int32_t* out(int64_t t) const { return p_.topk_indices.row<int32_t>(t); }
  std::byte* thread_memory() const { return workspace_ + layout_.per_thread * static_cast<size_t>(thread_index()); }
  int32_t* scratch(std::byte* memory) const { return reinterpret_cast<int32_t*>(memory + selection_bytes(k_)); }
  Piece piece_at(int64_t i) const { return {workspace_ + layout_.pieces_at + layout_.per_piece * static_cast<size_t>(i), k_}; }
  void finish(Selection& selection, int64_t t, std::byte* memory) const {
    functions_.compact(selection, k_, scratch(memory));
    std::copy_n(selection.entry, k_, out(t));
  }

  const TopkSelectParams& p_;
  int64_t k_;
  SelectionFunctions functions_;
  Layout layout_;
  std::byte* workspace_;
};

void run(const TopkSelectParams& p, const ExecutionContext& context) {
  const Rows rows(p, context);
  const int64_t tokens = p.logits.shape[0];
  const int threads = threads_of(context.device);
  int64_t longest = 0;
  for (int64_t t = 0; t < tokens; ++t) longest = std::max<int64_t>(longest, p.lengths.ptr<int32_t>()[t]);
  // Two pieces per thread, so that one that is late does not keep the others waiting.
  const int64_t pieces = tokens == 0 || tokens >= threads ? 1 : std::min<int64_t>(2 * threads / tokens, longest / kMinPiece);
  if (pieces <= 1) {
    const int64_t grain = std::max<int64_t>(1, std::min(kMinPiece / std::max<int64_t>(longest, 1), tokens / (int64_t{threads} * 4)));
    parallel_for(context.device, tokens, grain, [&](int64_t t) { rows.select(t); });
    return;
  }
  parallel_for(context.device, tokens * pieces, 1, [&](int64_t i) { rows.select_piece(i / pieces, i % pieces, pieces); });
  parallel_for(context.device, tokens, 1, [&](int64_t t) { rows.merge(t, pieces); });
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<TopkSelectParams>> topk_select() {
  auto list = simd_implementation(indexer::run);
  list[0].workspace_bytes = [](const TopkSelectParams& p, const Device& device) { return indexer::layout_of(p, device).bytes; };
  return list;
}

}  // namespace strata::cpu
