// strata synthesize: a checkpoint in the official file format with random weights.
#include <fmt/format.h>

#include "common.h"
#include "interrupt.h"
#include "numbers.h"
#include "output_file.h"
#include "strata/checkpoint.h"
#include "strata/error.h"
#include "words.h"

namespace strata::cli {
namespace {

struct Options {
  std::string preset, config, out;
  ConfigOptions config_options;
  int64_t layers = 0;
  uint64_t seed = 1;
  bool bf16 = false, fp8 = false, overwrite = false, json = false;
};

struct Interrupted {};

int run(const Options& o) {
  if (o.preset.empty() && o.config.empty()) throw Error(ErrorCode::invalid_argument, "synthesize needs --preset or --config, has neither");
  const ModelConfig config = o.preset.empty() ? ModelConfig::load(o.config, o.config_options) : find_preset(o.preset);
  check_accept_keys(config, o.config_options);
  check_no_input("--out", o.out + "/config.json", {{"--config", o.config}});
  SynthesizeOptions options;
  options.num_layers = o.layers;
  options.fp8 = o.fp8 || (config.fp8_weights && !o.bf16);
  options.seed = o.seed;
  options.overwrite = o.overwrite;
  size_t bytes = 0;
  try {
    const InterruptRequest interrupt;
    Progress progress("synthesize", 1.0, o.json);
    saying("--overwrite replaces it", "set overwrite to replace it", [&] {
      synthesize_checkpoint(config, options, o.out, [&](size_t done, size_t total) {
        if (interrupt.received()) throw Interrupted();
        bytes = total;
        progress.update(total == 0 ? 1.0 : static_cast<double>(done) / static_cast<double>(total));
      });
    });
  } catch (const Interrupted&) {
    fmt::print(stderr, "strata: interrupted, {} is as it was\n", o.out);
    return kFailed;
  }
  const Checkpoint written(o.out);
  const auto layers = written.attention_layers();
  if (o.json) {
    print_json({{"directory", o.out}, {"layers", layers.size()}, {"bytes", bytes}, {"fp8", options.fp8}});
  } else {
    fmt::print("{}: {}, {} weights, {}\n", o.out, counted(std::ssize(layers), "attention layer"), options.fp8 ? "FP8" : "bf16",
               format_bytes(static_cast<double>(bytes)));
  }
  return kSuccess;
}

}  // namespace

void add_synthesize(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("synthesize", "Write a checkpoint in the official format with random weights");
  sub->footer(
      "Exit codes: 0 success; 1 interrupted (Ctrl-C or SIGTERM: writes nothing); 2 bad input.\nExample: strata synthesize --preset "
      "v4-flash --layers 4 --out model");
  auto* preset = sub->add_option("--preset", o->preset, fmt::format("shapes: {}", fmt::join(preset_names(), ", ")));
  auto* config = sub->add_option("--config", o->config, "shapes from this config.json, or the one in this directory, instead");
  config->check(not_empty())->excludes(preset->check(not_empty()));
  add_accept_keys(*sub, o->config_options);
  sub->add_option("--layers", o->layers, "number of layers; 0: as the shapes say")->transform(count_in(0, 4096));
  sub->add_flag("--fp8", o->fp8, "FP8 weights with block scales, where the official checkpoint has them");
  sub->add_flag("--bf16", o->bf16, "bf16 weights everywhere")->excludes("--fp8");
  add_seed(*sub, o->seed, "of the random numbers");
  sub->add_option("--out", o->out, "directory to write")->required()->check(not_empty());
  sub->add_flag("--overwrite", o->overwrite, "replace config.json and model.safetensors that are in the directory");
  sub->add_flag("--json", o->json, "JSON on stdout");
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace strata::cli
