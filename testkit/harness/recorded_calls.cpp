#include "testkit/harness/recorded_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace strata::testkit {
namespace {

template <class Params>
std::string shape_of(const Params&) {
  return "";
}
std::string shape_of(const LinearParams& p) { return fmt::format("{} x {}", p.weight->n, p.weight->k); }
std::string shape_of(const GroupedLinearParams& p) { return fmt::format("{} x {} x {}", p.weight->groups, p.weight->n, p.weight->k); }
std::string shape_of(const SavePartialStatesParams& p) { return fmt::format("width {}", p.kv_score.shape[1] / 2); }
std::string shape_of(const CompressNormRopeStoreParams& p) { return fmt::format("ratio {}, dim {}", p.ratio, p.norm_weight.shape[0]); }
// Tokens and rows do not count: calls of one layer that differ by these alone have one shape.
std::string heads_of(const TensorView& q) { return fmt::format("{} x {}", q.shape[q.rank - 2], q.shape[q.rank - 1]); }
std::string shape_of(const QNormRopeKvInsertParams& p) { return heads_of(p.q); }
std::string shape_of(const DequantizeAndGatherKParams& p) { return std::string(to_string(p.cache.format)); }
std::string shape_of(const IndexerQueryParams& p) { return heads_of(p.q); }
std::string shape_of(const IndexerTopkParams& p) {
  return fmt::format("{}, top {}, {}", heads_of(p.query_prologue ? p.query_prologue->q : p.q), p.topk_indices.shape[1],
                     to_string(p.cache.format));
}
std::string shape_of(const SparseAttnDecodeParams& p) { return fmt::format("{}, {}", heads_of(p.q), to_string(p.cache.format)); }
std::string shape_of(const SparseAttnPrefillParams& p) { return heads_of(p.q); }
std::string shape_of(const MergeAttnStatesParams& p) { return heads_of(p.out); }
std::string shape_of(const InverseRopeParams& p) { return heads_of(p.o); }
std::string shape_of(const InverseRopeQuantParams& p) { return heads_of(p.o); }
std::string shape_of(const MlaRopeKvInsertParams& p) { return std::string(to_string(p.cache.format)); }
std::string shape_of(const DenseAttnDecodeParams& p) { return fmt::format("{}, {}", heads_of(p.q), to_string(p.cache.format)); }
std::string shape_of(const DenseAttnPrefillParams& p) { return heads_of(p.q); }

template <class Params>
std::string weight_of(const Params&) {
  return "";
}
std::string weight_of(const LinearParams& p) { return p.weight->name; }
std::string weight_of(const GroupedLinearParams& p) { return p.weight->name; }

}  // namespace

CallRecorder::CallRecorder(const OpSet& ops, bool runs) : runs_(runs), ops_(ops) {
  for_each_op(ops_, [this](auto& op) { note_calls(op); });
}

template <class Params>
void CallRecorder::note_calls(Op<Params>& op) {
  // Before the plain ones, in their order and under their names: what would be selected is selected, and recorded.
  const std::vector<Implementation<Params>> plain = op.implementations();
  // Checks may read the values of views in host memory, which no call has written.
  if (!runs_)
    op = Op<Params>(
        op.name(), [](const Params&, DeviceId) {}, plain);
  for (auto it = plain.rbegin(); it != plain.rend(); ++it) {
    Implementation<Params> impl = *it;
    impl.run = [runs = runs_, log = log_, op = op.name(), name = impl.name, run = impl.run](const Params& params,
                                                                                            const ExecutionContext& context) {
      if (runs) run(params, context);
      if (!log->on) return;
      const auto known = std::find(log->streams.begin(), log->streams.end(), context.stream.handle);
      const auto lane = static_cast<int>(known - log->streams.begin());
      if (known == log->streams.end()) log->streams.push_back(context.stream.handle);
      const auto again = [run, params, &device = context.device, workspace = context.workspace](Stream stream) {
        run(params, ExecutionContext{device, stream, workspace});
      };
      log->calls.push_back({op, name, weight_of(params), shape_of(params), lane, again});
    };
    op.prepend(std::move(impl));
  }
}

std::vector<RecordedCall> CallRecorder::record(Stream stream, const std::function<void()>& work) {
  *log_ = {.on = true, .calls = {}, .streams = {stream.handle}};
  work();
  log_->on = false;
  return std::move(log_->calls);
}

}  // namespace strata::testkit
