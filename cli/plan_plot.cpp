#include "plan_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "common.h"
#include "stack_plot.h"
#include "strata/error.h"
#include "words.h"

namespace strata::cli {
namespace {

constexpr int64_t kFirstContext = 8192, kLastContext = 1048576;

// "128k", "1M" as users write them; digits where there is no such short form.
std::string count_text(int64_t count) {
  if (count % 1048576 == 0) return fmt::format("{}M", count / 1048576);
  return count % 1024 == 0 ? fmt::format("{}k", count / 1024) : std::to_string(count);
}

// From the first one, or of a model with short contexts from a 64th of its last position, by doubling.
std::vector<int64_t> contexts_of(int64_t max_positions) {
  const int64_t last = std::min(max_positions, kLastContext);
  std::vector<int64_t> contexts;
  for (int64_t context = last >= 2 * kFirstContext ? kFirstContext : std::max<int64_t>(last / 64, 1); context < last; context *= 2) {
    contexts.push_back(context);
  }
  contexts.push_back(last);
  return contexts;
}

}  // namespace

std::string plot_caches(const CachePlan& plan, const CachePlot& plot) {
  const int64_t requests = plot.limits.max_num_seqs;
  StackPlot stack;
  stack.title = fmt::format("{}: cache memory of {} by length of context", plot.model, counted(requests, "request"));
  stack.subtitle = fmt::format("{}; steps of {}. Attention caches only: without weights and workspace.", plot.machine,
                               counted(plot.limits.max_num_batched_tokens, "token"));
  stack.x_axis = "positions of each request";
  stack.line_axis = "All caches (GB, logarithmic)";
  stack.stack_axis = "By cache group (kB per position)";
  PlotSeries total{"caches as planned, all groups", {}};
  const bool indexer = plan.groups().contains(CacheGroup::c4_indexer) || plan.groups().contains(CacheGroup::mla_indexer);
  PlotSeries bf16{fmt::format("baseline: bf16, every position kept{}", indexer ? ", indexer keys included" : ""), {}};
  stack.limit = static_cast<double>(plot.bf16_bytes_of_position) / 1e3;
  stack.limit_label = "bf16 baseline";
  for (const auto& [id, group] : plan.groups()) stack.stack.push_back({fmt::format("{}: {}", to_string(id), explain(group.spec)), {}});
  for (const int64_t context : contexts_of(plot.max_positions)) {
    BatchLimits limits = plot.limits;
    limits.max_model_len = context;
    const double positions = static_cast<double>(requests * context);
    std::vector<double> per_position;
    try {
      for (const auto& [id, group] : plan.groups()) {
        per_position.push_back(static_cast<double>(CachePlan::bytes(group, limits)) / positions / 1e3);
      }
    } catch (const Error&) {  // more pages than page numbers
      if (total.values.empty()) throw;
      break;
    }
    const auto bytes = static_cast<double>(plan.bytes(limits));
    const double baseline = static_cast<double>(plot.bf16_bytes_of_position) * positions;
    stack.columns.push_back(count_text(context));
    for (size_t i = 0; i < per_position.size(); ++i) stack.stack[i].values.push_back(per_position[i]);
    total.values.push_back(bytes / 1e9);
    bf16.values.push_back(baseline / 1e9);
    stack.line_notes.push_back(fmt::format("{:.3g} %", 100 * bytes / baseline));
    stack.stack_notes.push_back(format_bytes(bytes));
  }
  total.name += "; at each point its share of the baseline";
  stack.stack_axis += "; above each column its bytes";
  stack.lines = {std::move(total), std::move(bf16)};
  return stack_plot(stack);
}

}  // namespace strata::cli
