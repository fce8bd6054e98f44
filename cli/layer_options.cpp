#include "layer_options.h"

#include <fmt/format.h>

#include "strata/error.h"

namespace strata::cli {
namespace {

template <class T>
T parse(const char* option, const std::string& text, std::initializer_list<std::pair<const char*, T>> choices) {
  std::string known;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(name);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("{} must be one of {}, is '{}'", option, known, text));
}

}  // namespace

void add_layer_flags(CLI::App& app, LayerFlags& flags) {
  app.add_option("--indexer", flags.indexer, "format of indexer queries and keys: fp8, mxfp4, none (unquantised)")->capture_default_str();
  app.add_option("--kv-format", flags.kv_format, "format of window and compressed keys: fp8_ds_mla_v4, bf16, fp8_tensor")
      ->capture_default_str();
  app.add_option("--prefill", flags.prefill, "how prefill reads its keys: auto, gathered, paged")->capture_default_str();
  app.add_flag("--hadamard", flags.hadamard, "rotate indexer queries and keys by a Hadamard matrix");
  app.add_flag("--fp8-output", flags.fp8_output, "quantise the attention output to FP8 before wo_a");
  app.add_flag("--bf16-activations", flags.bf16_activations, "do not quantise the activations of FP8 linear layers");
  app.add_flag("--batch-invariant", flags.batch_invariant, "results of a request do not depend on the rest of the batch");
}

LayerOptions layer_options(const LayerFlags& flags) {
  LayerOptions options;
  options.indexer_format = parse<IndexerFormat>(
      "--indexer", flags.indexer, {{"fp8", IndexerFormat::fp8}, {"mxfp4", IndexerFormat::mxfp4}, {"none", IndexerFormat::none}});
  options.kv_format = parse<KvFormat>(
      "--kv-format", flags.kv_format,
      {{"fp8_ds_mla_v4", KvFormat::fp8_ds_mla_v4}, {"bf16", KvFormat::bf16}, {"fp8_tensor", KvFormat::fp8_tensor}});
  options.prefill_mode = parse<PrefillMode>(
      "--prefill", flags.prefill,
      {{"auto", PrefillMode::automatic}, {"gathered", PrefillMode::gathered}, {"paged", PrefillMode::paged}});
  options.hadamard = flags.hadamard;
  options.fp8_output = flags.fp8_output;
  options.quantize_activations = !flags.bf16_activations;
  options.batch_invariant = flags.batch_invariant;
  return options;
}

}  // namespace strata::cli
