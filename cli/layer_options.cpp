#include "layer_options.h"

#include <fmt/format.h>

#include <algorithm>

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

void expect(bool ok, const char* option, const char* expected, const char* layers, const std::string& value) {
  if (!ok) throw Error(ErrorCode::unsupported, fmt::format("{} must be {} for {}, is {}", option, expected, layers, value));
}

void expect_absent(bool given, const char* option, const char* layers, const char* why) {
  if (given) throw Error(ErrorCode::unsupported, fmt::format("{} must not be given for {}, {}", option, layers, why));
}

void check_no_indexer(const LayerFlags& flags, const LayerFlags& defaults) {
  constexpr const char* kLayers = "a model without an indexer";
  expect(flags.indexer == defaults.indexer, "--indexer", defaults.indexer.c_str(), kLayers, flags.indexer);
  expect_absent(flags.hadamard, "--hadamard", kLayers, "whose queries and keys it rotates");
}

void check_v4(const LayerFlags& flags, const LayerFlags& defaults, const ModelConfig& config) {
  constexpr const char* kLayers = "V4 layers";
  expect(flags.mla_mode == defaults.mla_mode, "--mla-mode", "auto", kLayers, flags.mla_mode);
  expect(flags.kv_format != "fp8_ds_mla", "--kv-format", "auto, bf16, fp8_tensor or fp8_ds_mla_v4", kLayers, flags.kv_format);
  expect_absent(flags.kv_scale_ue8m0, "--kv-scale-ue8m0", kLayers, "whose caches are not fp8_ds_mla");
  const std::vector<int32_t>& ratios = config.compress_ratios;
  if (std::find(ratios.begin(), ratios.end(), 4) == ratios.end()) check_no_indexer(flags, defaults);
}

void check_mla(const LayerFlags& flags, const LayerFlags& defaults, const ModelConfig& config) {
  constexpr const char* kLayers = "MLA layers";
  expect(flags.kv_format != "fp8_ds_mla_v4", "--kv-format", "auto, bf16, fp8_tensor or fp8_ds_mla", kLayers, flags.kv_format);
  expect_absent(flags.fp8_output, "--fp8-output", kLayers, "which have no wo_a");
  expect_absent(flags.kv_scale_ue8m0 && flags.kv_format != "fp8_ds_mla", "--kv-scale-ue8m0", "MLA layers without --kv-format fp8_ds_mla",
                "whose caches have no such scales");
  if (config.index_topk > 0) {
    constexpr const char* kSparse = "MLA layers with an indexer";
    expect(flags.mla_mode != "mha", "--mla-mode", "auto or mqa", kSparse, flags.mla_mode);
    expect(flags.indexer != "mxfp4", "--indexer", "fp8 or none", kSparse, flags.indexer);
  } else {
    check_no_indexer(flags, defaults);
    expect(flags.prefill == defaults.prefill, "--prefill", "auto", "MLA layers without an indexer", flags.prefill);
  }
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

LayerOptions layer_options(const LayerFlags& flags, const ModelConfig& config) {
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
  const LayerFlags defaults;
  config.family == ModelFamily::deepseek_v4 ? check_v4(flags, defaults, config) : check_mla(flags, defaults, config);
  options.kv_scale_ue8m0 = flags.kv_scale_ue8m0;
  options.hadamard = flags.hadamard;
  options.fp8_output = flags.fp8_output;
  options.quantize_activations = !flags.bf16_activations;
  options.batch_invariant = flags.batch_invariant;
  return options;
}

}  // namespace strata::cli
