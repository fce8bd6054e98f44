// strata plan: what a model's attention layers take of a device: caches, weights and workspace; and what fits.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "common.h"
#include "layer_options.h"
#include "model_source.h"
#include "numbers.h"
#include "output_file.h"
#include "plan_fit.h"
#include "plan_plot.h"
#include "plan_report.h"
#include "strata/error.h"
#include "words.h"

namespace strata::cli {
namespace {

constexpr int64_t kContext = 131072;  // where the model has as many positions
constexpr int64_t kMostRequests = int64_t{1} << 20, kMostMemory = 1000000000000000;

struct Options {
  CommonOptions common;
  LayerFlags layer;
  ModelSource model;
  std::optional<std::string> plot;
  std::optional<int64_t> context, memory;
  int64_t requests = 1, max_batched_tokens = 4096, tp = 1, reserve = 0;
};

int run(const Options& o) {
  if (!o.model.given()) {
    throw Error(ErrorCode::invalid_argument, "plan needs --model, --config or --preset, has none of them");
  }
  if (o.memory && o.reserve >= *o.memory) {
    throw Error(ErrorCode::invalid_argument, fmt::format("--reserve must be less than --memory {}, is {}", *o.memory, o.reserve));
  }
  std::optional<OutputFile> plot_file;
  if (o.plot) plot_file.emplace("--plot", *o.plot, std::vector<InputPath>{{"--model", o.model.path}});
  const std::shared_ptr<Device> device = open_device(o.common);
  const runner::PlannedModel model = open_model(o.model, device);
  const ModelConfig& config = model.config();
  const int64_t context = o.context.value_or(std::min(kContext, config.max_position_embeddings));
  if (context > config.max_position_embeddings) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--context must be at most max_position_embeddings {}, is {}", config.max_position_embeddings, context));
  }
  LayerOptions options = layer_options(o.layer, config);
  options.tp_size = static_cast<int>(o.tp);
  options.limits = {
      .max_num_batched_tokens = std::max(o.max_batched_tokens, o.requests), .max_num_seqs = o.requests, .max_model_len = context};
  const auto layer_groups = model.cache_groups(options);
  Plan plan{.model = model_name(o.model),
            .model_type = config.model_type,
            .device = device->description(),
            .unknown_keys = config.unknown_keys(),
            .limits = options.limits,
            .tp = o.tp,
            .num_layers = std::ssize(layer_groups),
            .num_mtp_layers = std::count_if(model.layers().begin(), model.layers().end(),
                                            [&](int64_t layer) { return layer >= config.num_hidden_layers; }),
            .caches = CachePlan(layer_groups),
            .rest = {}};
  plan.cache_bytes = plan.caches.bytes(plan.limits);
  const PlanFit fits(model, options);
  plan.rest = fits.memory();
  std::optional<Fit> fit;
  if (o.memory) {
    fit = Fit{.memory = *o.memory, .reserve = o.reserve};
    fit->most_requests = fits.most_requests(fit->usable(), context, kMostRequests);
    fit->most_positions = fits.most_positions(fit->usable(), o.requests, config.max_position_embeddings);
  }

  if (plot_file) {
    const std::string rank = plan.rank();
    plot_file->write(plot_caches(plan.caches, {.model = plan.model,
                                               .machine = plan.device + (rank.empty() ? "" : ", " + rank),
                                               .limits = options.limits,
                                               .bf16_bytes_of_position = bf16_bytes_of_position(config, layer_groups),
                                               .max_positions = config.max_position_embeddings}));
  }
  if (o.common.json) {
    print_json(plan_json(plan, fit));
  } else {
    print_plan(plan, fit);
    fmt::print("{}", unknown_keys_line(config));
  }
  return !fit || fit->holds(plan) ? kSuccess : kFailed;
}

}  // namespace

void add_plan(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "plan",
      "What the attention layers of a model take of a device, caches by group, weights and workspace, all layers and those that predict "
      "further tokens (MTP), for a number of requests and a context length; with --memory, how much fits");
  sub->footer(
      "Numbers take k, M and G (2^10, 2^20, 2^30): 128k is 131072. Bytes take kB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB (of "
      "1024).\n"
      "Weights are counted in the form that --device keeps them in: of a checkpoint directory its tensors, otherwise those that the config "
      "says.\n"
      "Exit codes: 0 success; 1 with --memory: the requests do not fit; 2 bad input.\n"
      "Example: strata plan --preset v4-pro --context 1M --requests 4 --tp 8 --memory 80GB --reserve 40GB --plot plan.svg");
  auto* model = sub->add_option("--model", o->model.path, "checkpoint directory or config.json");
  auto* config = sub->add_option("--config", o->model.path, "another name of --model");
  auto* preset = sub->add_option("--preset", o->model.preset, "shapes of a preset instead");
  for (CLI::Option* source : {model, config, preset}) source->check(not_empty());
  preset->excludes(model)->excludes(config);
  config->excludes(model);
  sub->add_option("--context", o->context, "positions of a request; no more than the model has unless given")
      ->transform(count_in(1, int64_t{1} << 30))
      ->default_str(std::to_string(kContext));
  sub->add_option("--requests", o->requests, "requests at once")->transform(count_in(1, kMostRequests))->capture_default_str();
  sub->add_option("--max-batched-tokens", o->max_batched_tokens, "tokens of a step; at least one of every request")
      ->transform(count_in(1, int64_t{1} << 20))
      ->capture_default_str();
  sub->add_option("--tp", o->tp, "tensor-parallel ranks; every figure is of the rank that takes most")
      ->transform(count_in(1, 1024))
      ->capture_default_str();
  sub->add_option("--memory", o->memory, "memory of the device, or of the rank's: prints how many requests and tokens fit")
      ->transform(bytes_in(1, kMostMemory));
  sub->add_option("--reserve", o->reserve, "of --memory, bytes for everything else: experts, activations, the program")
      ->transform(bytes_in(0, kMostMemory))
      ->capture_default_str()
      ->needs("--memory");
  sub->add_option("--plot", o->plot, "write cache bytes by group and context length, 8k to 1M positions, as SVG to this file")
      ->check(not_empty());
  add_accept_keys(*sub, o->model.config);
  add_layer_flags(*sub, o->layer);
  add_common(*sub, o->common);
  sub->callback([o, &code] { code = saying("--tp", "tp_size", [&] { return run(*o); }); });
}

}  // namespace strata::cli
