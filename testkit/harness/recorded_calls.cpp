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

template <class Params>
std::string weight_of(const Params&) {
  return "";
}
std::string weight_of(const LinearParams& p) { return p.weight->name; }
std::string weight_of(const GroupedLinearParams& p) { return p.weight->name; }

}  // namespace

CallRecorder::CallRecorder(const OpSet& ops) : ops_(ops) {
  for_each_op(ops_, [this](auto& op) { note_calls(op); });
}

template <class Params>
void CallRecorder::note_calls(Op<Params>& op) {
  // Before the plain ones, in their order and under their names: what would be selected is selected, and recorded.
  const std::vector<Implementation<Params>> plain = op.implementations();
  for (auto it = plain.rbegin(); it != plain.rend(); ++it) {
    Implementation<Params> impl = *it;
    impl.run = [log = log_, op = op.name(), name = impl.name, run = impl.run](const Params& params, const ExecutionContext& context) {
      run(params, context);
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
