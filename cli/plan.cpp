// strata plan: what a model's caches, weights and workspace take.
#include <fmt/format.h>

#include <limits>
#include <map>

#include "common.h"
#include "layer_options.h"
#include "strata/attention.h"
#include "strata/error.h"
#include "svg.h"

namespace strata::cli {
namespace {

struct Options {
  LayerFlags layer;
  ConfigOptions config;
  std::string model, preset_name, plot;
  int64_t context = 131072, requests = 1, max_batched_tokens = 4096;
  bool json = false;
};

struct Group {
  CacheGroupSpec spec;
  int64_t layers = 0;
};

// Pages of one layer that hold `context` positions of every request.
int64_t pages(const CacheGroupSpec& spec, const Options& o, int64_t context) {
  const BatchLimits limits{.max_num_batched_tokens = o.max_batched_tokens, .max_num_seqs = o.requests, .max_model_len = context};
  const std::vector<CacheGroupSpec> group{spec};
  const int64_t count = plan_pages({&group, 1}, limits).at(spec.group);
  if (count > std::numeric_limits<int32_t>::max()) {  // page numbers have 32 bits
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("--context and --requests must need fewer than 2^31 pages of each group, need {} of {}", count, to_string(spec.group)));
  }
  return count;
}

double total_bytes(const std::map<CacheGroup, Group>& groups, const Options& o, int64_t context) {
  double bytes = 0;
  for (const auto& [id, group] : groups) {
    bytes +=
        static_cast<double>(group.layers) * static_cast<double>(pages(group.spec, o, context)) * static_cast<double>(group.spec.page_bytes);
  }
  return bytes;
}

int run(const Options& o) {
  if (o.model.empty() == o.preset_name.empty()) throw Error(ErrorCode::invalid_argument, "plan needs either --model or --preset");
  const ModelConfig config = o.model.empty() ? preset(o.preset_name) : ModelConfig::load(o.model, o.config);
  if (o.context > config.max_position_embeddings) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--context must be at most max_position_embeddings {}, is {}", config.max_position_embeddings, o.context));
  }
  LayerOptions options = layer_options(o.layer);
  options.limits = {.max_num_batched_tokens = o.max_batched_tokens, .max_num_seqs = o.requests, .max_model_len = o.context};
  std::map<CacheGroup, Group> groups;
  // As a checkpoint has them: the layers that predict further tokens follow the model's.
  const int64_t num_layers = config.num_hidden_layers + config.num_nextn_predict_layers;
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    for (const CacheGroupSpec& spec : cache_groups_of_layer(config, options, layer)) {
      groups[spec.group].spec = spec;
      groups[spec.group].layers += 1;
    }
  }
  Table table({"cache group", "layers", "format", "row", "page rows", "page bytes", "pages/layer", "bytes/position", "total"});
  Json json = {{"context", o.context}, {"requests", o.requests}, {"unknown_keys", config.unknown_keys()}};
  for (const auto& [id, group] : groups) {
    const CacheGroupSpec& spec = group.spec;
    const int64_t count = pages(spec, o, o.context);
    const double per_position =
        static_cast<double>(group.layers) * static_cast<double>(spec.page_bytes) / static_cast<double>(spec.positions_per_page());
    const double bytes = static_cast<double>(group.layers) * static_cast<double>(count) * static_cast<double>(spec.page_bytes);
    table.add({std::string(to_string(id)), std::to_string(group.layers), std::string(to_string(spec.format)), std::to_string(spec.row_dim),
               std::to_string(spec.page_size), std::to_string(spec.page_bytes), std::to_string(count),
               spec.retained > 0 ? fmt::format("last {} only", spec.retained) : fmt::format("{:.1f}", per_position), format_bytes(bytes)});
    json["groups"].push_back({{"group", to_string(id)},
                              {"layers", group.layers},
                              {"format", to_string(spec.format)},
                              {"row_dim", spec.row_dim},
                              {"page_size", spec.page_size},
                              {"ratio", spec.ratio},
                              {"page_bytes", spec.page_bytes},
                              {"pages_per_layer", count},
                              {"retained_positions", spec.retained},
                              {"bytes", bytes}});
  }
  const double total = total_bytes(groups, o, o.context);
  const std::string requests = fmt::format("{} request{}", o.requests, o.requests == 1 ? "" : "s");
  json["total_bytes"] = total;
  if (!o.plot.empty()) {
    Series series{.name = requests, .points = {}};
    Series bf16{.name = "bf16, all positions", .points = {}};
    for (int64_t context = 1024; context <= std::max<int64_t>(o.context, 2048); context *= 2) {
      series.points.emplace_back(static_cast<double>(context), total_bytes(groups, o, context) / 1e9);
      const double row =
          static_cast<double>(config.kv_lora_rank > 0 ? config.kv_lora_rank + config.qk_rope_head_dim : config.head_dim) * 2.0;
      bf16.points.emplace_back(static_cast<double>(context), row * static_cast<double>(context * o.requests * num_layers) / 1e9);
    }
    write_line_plot(o.plot, "Cache memory by context length", "positions", "GB", {series, bf16});
  }
  if (o.json) {
    print_json(json);
  } else {
    table.print();
    fmt::print("{} for {} of {} positions, {:.1f} bytes a position in all layers\n", format_bytes(total), requests, o.context,
               total / static_cast<double>(o.context * o.requests));
    fmt::print("{}", unknown_keys_line(config));
  }
  return kSuccess;
}

}  // namespace

void add_plan(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "plan",
      "Cache bytes by group, of all layers and those that predict further tokens (MTP), for a number of requests and a context length");
  sub->footer("Exit codes: 0 success; 2 bad input.\nExample: strata plan --preset v4-pro --context 1048576 --requests 4 --plot plan.svg");
  sub->add_option("--model", o->model, "checkpoint directory or config.json");
  sub->add_option("--preset", o->preset_name, "shapes of a preset instead");
  sub->add_option("--context", o->context, "positions of a request")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->capture_default_str();
  sub->add_option("--requests", o->requests, "requests at once")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  sub->add_option("--max-batched-tokens", o->max_batched_tokens, "tokens of a step")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  sub->add_option("--plot", o->plot, "write bytes by context length as SVG");
  add_accept_keys(*sub, o->config);
  add_layer_flags(*sub, o->layer);
  sub->add_flag("--json", o->json, "JSON on stdout");
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace strata::cli
