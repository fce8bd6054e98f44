#include "plan_report.h"

#include <fmt/format.h>

#include <algorithm>

#include "words.h"

namespace strata::cli {
namespace {

constexpr const char* kScope = "attention only: no experts, embeddings or hidden states";

std::string requests_text(int64_t requests) { return counted(requests, "request"); }
std::string positions_text(int64_t positions) { return counted(positions, "position"); }

std::string layers_text(const Plan& plan) {
  const std::string layers = counted(plan.num_layers - plan.num_mtp_layers, "layer");
  return plan.num_mtp_layers > 0 ? fmt::format("{} + {} MTP", layers, plan.num_mtp_layers) : layers;
}

// What every further position takes of a group that keeps all of them; 0 of one that keeps the last ones alone.
double bytes_per_position(const PlannedGroup& group) {
  if (group.spec.retained > 0) return 0;
  return static_cast<double>(group.layers) * static_cast<double>(group.spec.page_bytes) /
         static_cast<double>(group.spec.positions_per_page());
}
std::string bytes_text(int64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

Json groups_json(const CachePlan& plan, const BatchLimits& limits) {
  Json groups = Json::array();
  for (const auto& [id, group] : plan.groups()) {
    const CacheGroupSpec& spec = group.spec;
    groups.push_back({{"group", to_string(id)},
                      {"meaning", explain(spec)},
                      {"layers", group.layers},
                      {"format", to_string(spec.format)},
                      {"row_dim", spec.row_dim},
                      {"page_size", spec.page_size},
                      {"ratio", spec.ratio},
                      {"page_bytes", spec.page_bytes},
                      {"pages_per_layer", CachePlan::pages(spec, limits)},
                      {"retained_positions", spec.retained},
                      {"bytes", CachePlan::bytes(group, limits)}});
  }
  return groups;
}

void print_groups(const CachePlan& plan, const BatchLimits& limits) {
  Table table({"cache group", "layers", "format", "row", "page rows", "page bytes", "pages/layer", "bytes/position", "total"});
  size_t width = 0;
  for (const auto& [id, group] : plan.groups()) {
    const CacheGroupSpec& spec = group.spec;
    table.add({std::string(to_string(id)), std::to_string(group.layers), std::string(to_string(spec.format)), std::to_string(spec.row_dim),
               std::to_string(spec.page_size), std::to_string(spec.page_bytes), std::to_string(CachePlan::pages(spec, limits)),
               spec.retained > 0 ? fmt::format("last {} only", spec.retained) : fmt::format("{:.1f}", bytes_per_position(group)),
               bytes_text(CachePlan::bytes(group, limits))});
    width = std::max(width, to_string(id).size());
  }
  table.print();
  fmt::print("\n");
  for (const auto& [id, group] : plan.groups()) fmt::print("{:<{}}  {}\n", to_string(id), width, explain(group.spec));
}

void print_memory(const Plan& plan) {
  Table table({"memory", "layers", "bytes", "size"});
  const auto row = [&](const std::string& what, const std::string& layers, int64_t bytes) {
    table.add({what, layers, std::to_string(bytes), bytes_text(bytes)});
  };
  for (const auto& [name, kind] : plan.rest.kinds) row("weights, " + name, std::to_string(kind.layers), kind.weight_bytes);
  row("rotary tables", "", plan.rest.rope_table_bytes);
  row("workspace, one for all layers", "", plan.rest.layer_workspace_bytes);
  if (plan.rest.topk_bytes > 0) row("selected positions of a step", "", plan.rest.topk_bytes);
  row("metadata of a step", "", plan.rest.metadata_bytes);
  row("caches", std::to_string(plan.num_layers), plan.cache_bytes);
  row("all", std::to_string(plan.num_layers), plan.total());
  table.print();
}

Json memory_json(const Plan& plan) {
  Json kinds = Json::array();
  for (const auto& [name, kind] : plan.rest.kinds) {
    kinds.push_back(
        {{"kind", name}, {"layers", kind.layers}, {"weight_bytes", kind.weight_bytes}, {"workspace_bytes", kind.workspace_bytes}});
  }
  return {{"weight_bytes", plan.rest.weight_bytes()},
          {"rotary_table_bytes", plan.rest.rope_table_bytes},
          {"workspace_bytes", plan.rest.workspace_bytes()},
          {"layer_workspace_bytes", plan.rest.layer_workspace_bytes},
          {"topk_bytes", plan.rest.topk_bytes},
          {"metadata_bytes", plan.rest.metadata_bytes},
          {"cache_bytes", plan.cache_bytes},
          {"total_bytes", plan.total()},
          {"kinds", kinds}};
}

void print_fit(const Plan& plan, const Fit& fit) {
  const int64_t requests = plan.limits.max_num_seqs, context = plan.limits.max_model_len, for_caches = fit.for_caches(plan);
  fmt::print("\n{} - reserve {} - weights {} - workspace {} = {} for caches\n", bytes_text(fit.memory), bytes_text(fit.reserve),
             bytes_text(plan.rest.weight_bytes()), bytes_text(plan.rest.workspace_bytes()),
             for_caches < 0 ? "nothing" : bytes_text(for_caches));
  if (fit.most_requests > 0) {
    fmt::print("of {} each: {} fit{}, {}\n", positions_text(context), requests_text(fit.most_requests), fit.most_requests == 1 ? "s" : "",
               counted(fit.most_requests * context, "token"));
  } else {
    fmt::print("of {} each: no request fits\n", positions_text(context));
  }
  if (fit.most_positions > 0) {
    fmt::print("of {}: {} each fit{}, {}\n", requests_text(requests), positions_text(fit.most_positions),
               fit.most_positions == 1 ? "s" : "", counted(fit.most_positions * requests, "token"));
  } else {
    fmt::print("of {}: not one position each fits\n", requests_text(requests));
  }
  if (fit.holds(plan)) return;
  fmt::print("{} of {} {} not fit: {} are missing\n", requests_text(requests), positions_text(context), requests == 1 ? "does" : "do",
             bytes_text(plan.total() - fit.usable()));
}

}  // namespace

std::string Plan::rank() const { return tp > 1 ? fmt::format("one of {} tensor-parallel ranks", tp) : ""; }

Json plan_json(const Plan& plan, const std::optional<Fit>& fit) {
  const int64_t requests = plan.limits.max_num_seqs, context = plan.limits.max_model_len;
  Json json = {{"model", plan.model},
               {"model_type", plan.model_type},
               {"device", plan.device},
               {"tp", plan.tp},
               {"layers", plan.num_layers},
               {"mtp_layers", plan.num_mtp_layers},
               {"context", context},
               {"requests", requests},
               {"max_batched_tokens", plan.limits.max_num_batched_tokens},
               {"unknown_keys", plan.unknown_keys},
               {"groups", groups_json(plan.caches, plan.limits)}};
  json.update(memory_json(plan));
  if (!fit) return json;
  json["fit"] = {{"memory_bytes", fit->memory},
                 {"reserve_bytes", fit->reserve},
                 {"bytes_for_caches", fit->for_caches(plan)},
                 {"requests", fit->most_requests},
                 {"request_tokens", fit->most_requests * context},
                 {"positions", fit->most_positions},
                 {"position_tokens", fit->most_positions * requests},
                 {"fits", fit->holds(plan)}};
  return json;
}

void print_plan(const Plan& plan, const std::optional<Fit>& fit) {
  const int64_t requests = plan.limits.max_num_seqs, context = plan.limits.max_model_len;
  const std::string rank = plan.rank();
  fmt::print("{} ({}): {}, {} of {}, steps of {}{}; {}\n{}\n\n", plan.model, plan.model_type, layers_text(plan), requests_text(requests),
             positions_text(context), counted(plan.limits.max_num_batched_tokens, "token"), rank.empty() ? "" : ", " + rank, kScope,
             plan.device);
  print_groups(plan.caches, plan.limits);
  fmt::print("\n");
  print_memory(plan);
  double further = 0;
  for (const auto& [id, group] : plan.caches.groups()) further += bytes_per_position(group);
  fmt::print(
      "\ncaches: {:.1f} bytes for every further position in all layers; {:.1f} a position of this context, with what keeps the last\n"
      "positions only and with pages that are not full\n",
      further, static_cast<double>(plan.cache_bytes) / static_cast<double>(context * requests));
  if (fit) print_fit(plan, *fit);
}

}  // namespace strata::cli
