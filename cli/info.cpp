// strata info: the device, and every op's implementations with why one is refused, or those that a model's layers select.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "common.h"
#include "last_runs.h"
#include "layer_options.h"
#include "model_calls.h"
#include "model_source.h"
#include "numbers.h"
#include "words.h"
#include "testkit/bench/probes.h"
#include "strata/attention.h"
#include "strata/device.h"

namespace strata::cli {
namespace {

constexpr int64_t kContext = 4096, kPromptTokens = 2048;  // where the model has as many positions

struct Options {
  CommonOptions common;
  LayerFlags layer;
  ModelSource model;
  int64_t requests = 32;
  std::optional<int64_t> context, prompt_tokens;
};

struct OtherDevice {
  std::string name;  // "opencl:0", or "opencl" where there is none
  std::string text;  // its description, or why there is none
};

// The accelerators that are not `own`.
std::vector<OtherDevice> other_devices(DeviceId own, const Config& config) {
  std::vector<OtherDevice> result;
  for (const DeviceKind kind : {DeviceKind::cuda, DeviceKind::opencl}) {
    for (int32_t index = 0;; ++index) {
      const DeviceId id{kind, index};
      if (id == own) continue;
      const std::string name = to_string(id);
      try {
        result.push_back({name, strata::open_device(id, config)->description()});
      } catch (const Error& error) {
        if (index == 0) result.push_back({name.substr(0, name.find(':')), error.what()});
        break;
      }
    }
  }
  return result;
}

PlannedSteps steps_of(const Options& o, const ModelConfig& config) {
  const int64_t positions = config.max_position_embeddings;
  PlannedSteps steps{.requests = o.requests};
  steps.prompt_tokens = o.prompt_tokens.value_or(std::min(kPromptTokens, std::max<int64_t>(positions - o.context.value_or(0), 1)));
  steps.context = o.context.value_or(std::min(kContext, std::max<int64_t>(positions - steps.prompt_tokens, 0)));
  if (steps.context + steps.prompt_tokens > positions) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("--context and --prompt-tokens together must be at most max_position_embeddings {}, "
                            "are {}",
                            positions, steps.context + steps.prompt_tokens));
  }
  return steps;
}

// "wq_a + wkv, 768 x 512", "8 x 512, fp8_ds_mla_v4"; of many fused weights the first: "compressor.wkv + 3, 2560 x 512".
std::string text_of(const ModelCall& call) {
  const auto others = std::count(call.weight.begin(), call.weight.end(), '+');
  const std::string weight = others < 2 ? call.weight : fmt::format("{} + {}", call.weight.substr(0, call.weight.find(' ')), others);
  return weight + (weight.empty() || call.shape.empty() ? "" : ", ") + call.shape;
}

int run_model(const Options& o) {
  const std::shared_ptr<Device> device = open_device(o.common);
  const runner::PlannedModel model = open_model(o.model, device);
  const PlannedSteps steps = steps_of(o, model.config());
  const std::vector<LayerCalls> calls = calls_of(model, layer_options(o.layer, model.config()), steps);
  Json json = {{"model", model_name(o.model)},
               {"device", to_string(device->id())},
               {"description", device->description()},
               {"requests", steps.requests},
               {"prompt_tokens", steps.prompt_tokens},
               {"context", steps.context},
               {"unknown_keys", model.config().unknown_keys()}};
  Table table({"layers", "op", "call", "decode", "prefill"});
  for (const LayerCalls& layers : calls) {
    const std::string name = layers.kind.empty() ? "step" : fmt::format("{} x {}", layers.layers, layers.kind);
    Json entry = {{"kind", layers.kind.empty() ? "step" : layers.kind}, {"layers", layers.layers}, {"calls", Json::array()}};
    for (const ModelCall& c : layers.calls) {
      table.add({name, c.op, text_of(c), fmt::format("{}", fmt::join(c.decode, ", ")), fmt::format("{}", fmt::join(c.prefill, ", "))});
      entry["calls"].push_back({{"op", c.op}, {"weight", c.weight}, {"shape", c.shape}, {"decode", c.decode}, {"prefill", c.prefill}});
    }
    json["layers"].push_back(std::move(entry));
  }
  if (o.common.json) {
    print_json(json);
    return kSuccess;
  }
  fmt::print(
      "device   {}\n         {}\nmodel    {}\ndecode   {} of 1 token after {} positions\nprefill  {} of a request after {} positions\n\n",
      to_string(device->id()), device->description(), model_name(o.model), counted(steps.requests, "request"), steps.context,
      counted(steps.prompt_tokens, "token"), steps.context);
  table.print();
  fmt::print("{}", unknown_keys_line(model.config()));
  return kSuccess;
}

int run_device(const CommonOptions& o) {
  const auto device = open_device(o);
  const OpSet ops = default_ops();
  Json json = {{"device", to_string(device->id())}, {"description", device->description()}};
  // Other devices' implementations are run wherever they are built.
  const bool has_runs = device->id().kind == DeviceKind::opencl;
  std::vector<std::string> columns = {"op", "implementation", "status", "reason"};
  if (has_runs) columns.emplace_back("last run");
  Table table(columns);
  for (const testkit::Probe& probe : testkit::probe_ops(ops, *device)) {
    for (const Candidate& c : probe.candidates) {
      const bool ok = static_cast<bool>(c.support), chosen = c.name == probe.chosen;
      std::vector<std::string> row = {probe.op, c.name,
                                      chosen             ? "chosen"
                                      : !ok              ? "refused"
                                      : !c.is_eligible() ? "not preferred"
                                                         : "available",
                                      c.reason()};
      Json entry = {{"implementation", c.name}, {"supported", ok}, {"chosen", chosen}, {"reason", c.reason()}};
      if (has_runs && c.name.starts_with("opencl/")) {
        const std::vector<LastRun> runs = last_runs(probe.op, c.name);
        row.push_back(to_string(runs));
        for (const LastRun& run : runs) {
          entry["last_runs"].push_back({{"device", run.device}, {"date", run.date}, {"commit", run.commit}, {"passed", run.passed}});
        }
      } else if (has_runs) {
        row.emplace_back();
      }
      table.add(row);
      json["ops"][probe.op].push_back(std::move(entry));
    }
  }
  const std::vector<OtherDevice> others = other_devices(device->id(), device->config());
  for (const OtherDevice& other : others) json["other_devices"][other.name] = other.text;
  for (const std::string& name : default_layers().names()) json["layers"].push_back(name);
  json["presets"] = preset_names();
  if (o.json) {
    print_json(json);
    return kSuccess;
  }
  fmt::print("device   {}\n         {}\n", to_string(device->id()), device->description());
  for (const OtherDevice& other : others) fmt::print("other    {}\n         {}\n", other.name, other.text);
  fmt::print("layers   {}\npresets  {}\n\nfor a typical V4-Flash call of every op:\n", fmt::join(default_layers().names(), ", "),
             fmt::join(preset_names(), ", "));
  table.print();
  return kSuccess;
}

}  // namespace

void add_info(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand(
      "info",
      "Devices, every op's implementations, and why one is refused; with --model or --preset, the implementations that the model's "
      "layers select, in a decode step and in a prefill step. Weights are not loaded and nothing is computed");
  sub->footer(
      "Exit codes: 0 success; 2 bad input.\n"
      "Examples: strata info --device cpu --isa avx2\n"
      "          strata info --preset v4-flash --requests 64 --context 128k");
  auto* model = sub->add_option("--model", o->model.path, "checkpoint directory or config.json")->check(not_empty());
  sub->add_option("--preset", o->model.preset, "shapes of a preset instead")->check(not_empty())->excludes(model);
  const std::vector<CLI::Option*> others = sub->get_options();
  sub->add_option("--requests", o->requests, "requests of the decode step")->transform(count_in(1, 4096))->capture_default_str();
  sub->add_option("--prompt-tokens", o->prompt_tokens, "new tokens of the prefill step; no more than the model has positions unless given")
      ->transform(count_in(1, 1 << 20))
      ->default_str(std::to_string(kPromptTokens));
  sub->add_option("--context", o->context, "positions of every request before the new tokens; no more than the model has unless given")
      ->transform(count_in(0, int64_t{1} << 30))
      ->default_str(std::to_string(kContext));
  add_accept_keys(*sub, o->model.config);
  add_layer_flags(*sub, o->layer);
  std::vector<CLI::Option*> of_model = sub->get_options();
  std::erase_if(of_model, [&](const CLI::Option* option) { return std::find(others.begin(), others.end(), option) != others.end(); });
  add_common(*sub, o->common);
  sub->callback([o, of_model, &code] {
    for (const CLI::Option* option : of_model) {
      if (option->count() == 0 || o->model.given()) continue;
      throw Error(ErrorCode::invalid_argument, fmt::format("{} needs --model or --preset, has none of them", option->get_name()));
    }
    code = o->model.given() ? run_model(*o) : run_device(o->common);
  });
}

}  // namespace strata::cli
