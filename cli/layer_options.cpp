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
  app.add_option("--kv-format", flags.kv_format,
                 "format of cached keys: auto (V4 fp8_ds_mla_v4, MLA bf16), bf16, fp8_tensor, fp8_ds_mla_v4 (V4), fp8_ds_mla (MLA)")
      ->capture_default_str();
  app.add_option("--prefill", flags.prefill, "V4, and MLA with an indexer: how prefill reads its keys: auto, gathered, paged")
      ->capture_default_str();
  app.add_option("--mla-mode", flags.mla_mode, "MLA: auto (decode mqa, prefill mha), mha: expanded keys, mqa: absorbed queries")
      ->capture_default_str();
  app.add_flag("--kv-scale-ue8m0", flags.kv_scale_ue8m0, "power-of-two scales in fp8_ds_mla caches");
  app.add_flag("--hadamard", flags.hadamard, "rotate indexer queries and keys by a Hadamard matrix");
  app.add_flag("--fp8-output", flags.fp8_output, "quantise the attention output to FP8 before wo_a");
  app.add_flag("--bf16-activations", flags.bf16_activations, "do not quantise the activations of FP8 linear layers");
  app.add_flag("--batch-invariant", flags.batch_invariant, "attention of a request has the same bits alone and in a batch");
}

LayerOptions layer_options(const LayerFlags& flags) {
  LayerOptions options;
  options.indexer_format = parse<IndexerFormat>(
      "--indexer", flags.indexer, {{"fp8", IndexerFormat::fp8}, {"mxfp4", IndexerFormat::mxfp4}, {"none", IndexerFormat::none}});
  options.kv_format = parse<std::optional<KvFormat>>("--kv-format", flags.kv_format,
                                                     {{"auto", std::nullopt},
                                                      {"bf16", KvFormat::bf16},
                                                      {"fp8_tensor", KvFormat::fp8_tensor},
                                                      {"fp8_ds_mla_v4", KvFormat::fp8_ds_mla_v4},
                                                      {"fp8_ds_mla", KvFormat::fp8_ds_mla}});
  options.prefill_mode = parse<PrefillMode>(
      "--prefill", flags.prefill, {{"auto", PrefillMode::automatic}, {"gathered", PrefillMode::gathered}, {"paged", PrefillMode::paged}});
  options.mla_mode =
      parse<MlaMode>("--mla-mode", flags.mla_mode, {{"auto", MlaMode::automatic}, {"mha", MlaMode::mha}, {"mqa", MlaMode::mqa}});
  options.kv_scale_ue8m0 = flags.kv_scale_ue8m0;
  options.hadamard = flags.hadamard;
  options.fp8_output = flags.fp8_output;
  options.quantize_activations = !flags.bf16_activations;
  options.batch_invariant = flags.batch_invariant;
  return options;
}

}  // namespace strata::cli
