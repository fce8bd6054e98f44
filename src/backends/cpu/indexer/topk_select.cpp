// TopkSelect: one pass over each row. Threads share the rows; with fewer rows than threads they share ranges of rows, which are combined.
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

constexpr int64_t kMinRange = 16384;  // entries: below this a thread costs more than it gains

// Workspace: a selection and its scratch per thread; the k best of each range, at most two ranges per thread.
struct Layout {
  size_t per_thread, ranges_at, per_range, bytes;
  Layout(int64_t k, int threads)  // k: no more than the columns of the logits
      : per_thread(align_up(selection_bytes(k) + selection_scratch_bytes(k))),
        ranges_at(per_thread * static_cast<size_t>(threads)),
        per_range(align_up(static_cast<size_t>(k) * 8 + 8)),
        bytes(ranges_at + per_range * static_cast<size_t>(2 * threads)) {}
};

Layout layout_of(const TopkSelectParams& p, const Device& device) {
  return {std::min(p.topk_indices.shape[1], p.logits.shape[1]), threads_of(device)};
}

// The best of one range of a row.
struct Candidates {
  int64_t* count;
  int32_t *keys, *entries;
  Candidates(std::byte* memory, int64_t k)
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

  void select_range(int64_t t, int64_t range, int64_t ranges) const {
    const int64_t length = this->length(t);
    if (length <= k_) return;
    const int64_t begin = length * range / ranges, end = length * (range + 1) / ranges;
    std::byte* memory = thread_memory();
    Selection selection = make_selection(memory, k_);
    functions_.append(selection, p_.logits.row<float>(t) + begin, end - begin, begin, k_, scratch(memory));
    functions_.compact(selection, k_, scratch(memory));
    const Candidates best = candidates_of(t * ranges + range);
    *best.count = selection.count;
    std::copy_n(selection.key, selection.count, best.keys);
    std::copy_n(selection.entry, selection.count, best.entries);
  }

  void combine(int64_t t, int64_t ranges) const {
    if (length(t) <= k_) return select_all(length(t), k_, out(t));
    std::byte* memory = thread_memory();
    Selection selection = make_selection(memory, k_);
    for (int64_t i = 0; i < ranges; ++i) {
      const Candidates best = candidates_of(t * ranges + i);
      functions_.append_candidates(selection, best.keys, best.entries, *best.count, k_, scratch(memory));
    }
    finish(selection, t, memory);
  }

 private:
  int64_t length(int64_t t) const { return p_.lengths.ptr<int32_t>()[t]; }
  int32_t* out(int64_t t) const { return p_.topk_indices.row<int32_t>(t); }
  std::byte* thread_memory() const { return workspace_ + layout_.per_thread * static_cast<size_t>(thread_index()); }
  int32_t* scratch(std::byte* memory) const { return reinterpret_cast<int32_t*>(memory + selection_bytes(k_)); }
  Candidates candidates_of(int64_t i) const { return {workspace_ + layout_.ranges_at + layout_.per_range * static_cast<size_t>(i), k_}; }
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
  // Two ranges per thread, so that a late thread does not delay the others.
  const int64_t ranges = tokens == 0 || tokens >= threads ? 1 : std::min<int64_t>(2 * threads / tokens, longest / kMinRange);
  if (ranges <= 1) {
    const int64_t grain = std::max<int64_t>(1, std::min(kMinRange / std::max<int64_t>(longest, 1), tokens / (int64_t{threads} * 4)));
    parallel_for(context.device, tokens, grain, [&](int64_t t) { rows.select(t); });
    return;
  }
  parallel_for(context.device, tokens * ranges, 1, [&](int64_t i) { rows.select_range(i / ranges, i % ranges, ranges); });
  parallel_for(context.device, tokens, 1, [&](int64_t t) { rows.combine(t, ranges); });
}

}  // namespace
}  // namespace indexer

std::vector<Implementation<TopkSelectParams>> topk_select() {
  auto list = simd_implementation(indexer::run);
  list[0].workspace_bytes = [](const TopkSelectParams& p, const Device& device) { return indexer::layout_of(p, device).bytes; };
  return list;
}

}  // namespace strata::cpu
