// Extending Strata from outside: an attention layer of one's own, registered for an architecture of one's own, and an implementation of an
// op of one's own, put before the built-in ones. Nothing of the library changes: a LayerRegistry and an OpSet are values.
//
// The layer is Multi-head Latent Attention whose output is halved (a residual multiplier); the op is RMSNorm in plain loops. The program
// runs one prefill with both and compares with the library's own layer.
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include "strata/attention.h"
#include "strata/bf16.h"
#include "strata/error.h"

namespace {

using namespace strata;

// What the library asks of a layer. This one is another layer and a step after it.
class HalvedAttention final : public AttentionLayer {
 public:
  HalvedAttention(std::unique_ptr<AttentionLayer> inner, std::shared_ptr<Device> device)
      : inner_(std::move(inner)), device_(std::move(device)) {
    if (device_->id().kind != DeviceKind::cpu) throw Error(ErrorCode::unsupported, "HalvedAttention runs on a CPU");
  }
  int64_t layer_index() const override { return inner_->layer_index(); }
  int32_t compress_ratio() const override { return inner_->compress_ratio(); }
  std::string kind() const override { return "halved_" + inner_->kind(); }
  int64_t hidden_size() const override { return inner_->hidden_size(); }
  int64_t num_heads() const override { return inner_->num_heads(); }
  int64_t index_topk() const override { return inner_->index_topk(); }
  std::vector<CacheGroupSpec> cache_groups() const override { return inner_->cache_groups(); }
  int64_t weight_bytes() const override { return inner_->weight_bytes(); }
  int64_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  void forward(const ForwardArgs& args) override {
    inner_->forward(args);  // checks the arguments
    auto* out = args.out.ptr<Bf16>();
    for (int64_t i = 0; i < args.out.numel(); ++i) out[i] = to_bf16(to_float(out[i]) * 0.5f);
  }

 private:
  std::unique_ptr<AttentionLayer> inner_;
  std::shared_ptr<Device> device_;
};

void norm_rows(const TensorView& x, const TensorView& weight, float eps, const TensorView& out) {
  for (int64_t t = 0; t < x.shape[0]; ++t) {
    const auto* from = x.row<Bf16>(t);
    auto* to = out.row<Bf16>(t);
    double squares = 0;
    for (int64_t i = 0; i < x.shape[1]; ++i) squares += double{to_float(from[i])} * to_float(from[i]);
    const auto factor = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(x.shape[1]) + eps));
    for (int64_t i = 0; i < x.shape[1]; ++i) to[i] = to_bf16(to_float(from[i]) * factor * weight.ptr<float>()[i]);
  }
}

// `supports` refuses in words what it does not take; the next implementation of the list is asked then.
Implementation<RmsNormPairParams> own_norm(int& calls) {
  return {.name = "example/loops",
          .supports =
              [](const RmsNormPairParams& p, const Device& device) {
                if (p.q_format != ActivationFormat::bf16) return Support::no("writes bf16 only");
                return device.id().kind == DeviceKind::cpu ? Support::yes() : Support::no("runs on a CPU");
              },
          .workspace_bytes = [](const RmsNormPairParams&, const Device&) -> int64_t { return 0; },
          .run =
              [&calls](const RmsNormPairParams& p, const ExecutionContext&) {
                ++calls;
                if (p.q.present()) norm_rows(p.q, p.q_weight, p.eps, p.q_out);
                norm_rows(p.kv, p.kv_weight, p.eps, p.kv_out);
              }};
}

// One prefill of `tokens` random hidden states through layer 0.
std::vector<float> prefill(const Checkpoint& checkpoint, const LayerRegistry& registry, const OpSet& ops, int64_t tokens) {
  const auto device = open_device({});
  LayerOptions options;
  options.limits = {.max_num_batched_tokens = tokens, .max_num_seqs = 1, .max_model_len = tokens};
  const auto layer = registry.make({.checkpoint = checkpoint,
                                    .layer = 0,
                                    .device = device,
                                    .ops = ops,
                                    .options = options,
                                    .rope_tables = std::make_shared<RopeTables>(device, tokens)});
  std::printf("layer 0 is %s\n", layer->kind().c_str());
  const std::vector<std::vector<CacheGroupSpec>> groups{layer->cache_groups()};
  PagedPool pool(device, groups, plan_pages(groups, options.limits));
  BatchBuilder builder(device, ops, options.limits, pool, checkpoint.config().sliding_window);
  pool.add_request(0);
  if (!pool.extend(0, 0, tokens)) throw Error(ErrorCode::out_of_memory, "the caches are full");
  const BatchRequest request{.seq_len = tokens, .query_len = tokens, .block_tables = pool.block_tables(0)};

  const Tensor hidden(device, DType::bf16, {tokens, layer->hidden_size()}), out(device, DType::bf16, {tokens, layer->hidden_size()});
  const Tensor workspace(device, DType::u8, {layer->workspace_bytes()});
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (int64_t i = 0; i < hidden.view().numel(); ++i) hidden.view().ptr<Bf16>()[i] = to_bf16(normal(random));
  ForwardArgs args;
  args.batch = &builder.build({&request, 1});
  args.caches = pool.layer(0);
  args.hidden = hidden;
  args.out = out;
  args.workspace = workspace_of(workspace);
  layer->forward(args);
  std::vector<float> values;
  for (int64_t i = 0; i < out.view().numel(); ++i) values.push_back(to_float(out.view().ptr<Bf16>()[i]));
  return values;
}

int run(const std::filesystem::path& directory) {
  ModelConfig config = preset("v3-tiny");
  config.architecture = "OwnModelForCausalLM";               // looked up first; the default registry knows the model_type, deepseek_v3
  synthesize_checkpoint(config, {.fp8 = false}, directory);  // with FP8 weights the norm of the query would have to write codes
  const Checkpoint checkpoint(directory, {.own_models = {"OwnModelForCausalLM"}});

  LayerRegistry registry = default_layers();
  registry.register_layer("OwnModelForCausalLM", [](const LayerContext& context) {
    return std::make_unique<HalvedAttention>(default_layers().make(context), context.device);
  });
  OpSet ops = default_ops();
  int calls = 0;
  ops.rms_norm_pair.prepend(own_norm(calls));

  const std::vector<float> own = prefill(checkpoint, registry, ops, 40),
                           built_in = prefill(checkpoint, default_layers(), default_ops(), 40);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < own.size(); ++i) {
    difference += std::pow(own[i] - 0.5 * built_in[i], 2);
    norm += std::pow(0.5 * built_in[i], 2);
  }
  const double error = std::sqrt(difference / norm);
  std::printf("own RMSNorm called %d times; own layer against half of the built-in one: relative difference %.2g\n", calls, error);
  return calls > 0 && error < 5e-3 ? 0 : 1;
}

}  // namespace

int main() {
  const auto directory = std::filesystem::temp_directory_path() / ("strata_own_layer_" + std::to_string(std::random_device{}()));
  int code = 1;
  try {
    code = run(directory);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
  }
  std::error_code ignored;
  std::filesystem::remove_all(directory, ignored);
  return code;
}
