// Whole layers at the official shapes with synthetic weights, prefill and decode: what `strata bench --op layer` times.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "core/check.h"
#include "testkit/harness/fill_caches.h"
#include "testkit/harness/lambda_case.h"
#include "testkit/cases/layer_shape.h"
#include "layers/layer_options_check.h"
#include "runner/model_runner.h"
#include "testkit/cases/registry.h"

namespace strata::testkit {
namespace {

// A directory that goes away with its owner.
class ScratchDirectory {
 public:
  ScratchDirectory() : path_(std::filesystem::temp_directory_path() / ("strata_bench_" + std::to_string(std::random_device{}()))) {}
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

ModelConfig one_layer_config(const LayerShape& shape) {
  ModelConfig config = preset(shape.preset);
  config.num_hidden_layers = 1;
  config.num_nextn_predict_layers = 0;
  if (config.family == ModelFamily::deepseek_v4) config.compress_ratios = {shape.ratio};
  return config;
}

// All but the limits.
LayerOptions layer_options_of(const LayerShape& shape) {
  LayerOptions options;
  options.fp8_output = shape.fp8_output;
  options.kv_format = shape.kv_format;
  options.tp_size = shape.tp_size;
  return options;
}

double d(int64_t v) { return static_cast<double>(v); }

// Weights of an MLA layer as values. kv_b_proj counts once: it makes keys and values of a token's latent, or, absorbed, takes part in its
// query and output.
double mla_linear_weights(const ModelConfig& c) {
  const double hidden = d(c.hidden_size), heads = d(c.num_attention_heads), rank = d(c.q_lora_rank);
  double n = hidden * (rank + d(c.kv_lora_rank + c.qk_rope_head_dim));
  n += (rank > 0 ? rank : hidden) * heads * d(c.qk_nope_head_dim + c.qk_rope_head_dim);
  n += d(c.kv_lora_rank) * heads * d(c.qk_nope_head_dim + c.v_head_dim) + heads * d(c.v_head_dim) * hidden;
  if (c.index_topk > 0) n += hidden * d(c.index_head_dim + c.index_n_heads) + rank * d(c.index_n_heads * c.index_head_dim);
  return n;
}

// flops of attention and indexer for the query at position p: expanded for dense prefill, absorbed otherwise.
double mla_attention_flops(const ModelConfig& c, bool prefill, int64_t p) {
  const int64_t keys = p + 1;
  const double heads = d(c.num_attention_heads);
  if (c.index_topk == 0 && prefill) return 2.0 * heads * d(keys) * d(c.qk_nope_head_dim + c.qk_rope_head_dim + c.v_head_dim);
  const double dims = d(2 * c.kv_lora_rank + c.qk_rope_head_dim);
  if (c.index_topk == 0) return 2.0 * heads * d(keys) * dims;
  const double scores = keys > c.index_topk ? 2.0 * d(c.index_n_heads * c.index_head_dim) * d(keys) : 0.0;
  return 2.0 * heads * d(std::min(keys, c.index_topk)) * dims + scores;
}

// Weights of a V4 layer as values: every product with one token costs two flops of each.
double linear_weights(const ModelConfig& c, int32_t ratio) {
  if (c.family == ModelFamily::deepseek_mla) return mla_linear_weights(c);
  const double hidden = d(c.hidden_size), head = d(c.head_dim), heads = d(c.num_attention_heads);
  double n = hidden * (d(c.q_lora_rank) + head) + d(c.q_lora_rank) * heads * head;
  n += heads * head * d(c.o_lora_rank) + d(c.o_groups * c.o_lora_rank) * hidden;  // wo_a: each group sees its own heads only
  if (ratio > 0) n += hidden * 2 * head * (ratio == 4 ? 2 : 1);
  if (ratio == 4) {
    n += hidden * 4 * d(c.index_head_dim) + hidden * d(c.index_n_heads);
    n += d(c.q_lora_rank) * d(c.index_n_heads * c.index_head_dim);
  }
  return n;
}

// flops of attention and indexer for the query at position p.
double attention_flops(const ModelConfig& c, int32_t ratio, int64_t p) {
  const int64_t entries = ratio > 0 ? (p + 1) / ratio : 0;
  const int64_t attended = std::min(p + 1, c.sliding_window) + (ratio == 4 ? std::min(entries, c.index_topk) : entries);
  double flops = 4.0 * d(c.num_attention_heads * attended * c.head_dim);
  if (ratio == 4 && entries > c.index_topk) flops += 2.0 * d(c.index_n_heads * c.index_head_dim * entries);
  return flops;
}

// Bytes of cache rows that the query at position p reads: those it attends to, and if it selects rows, the indexer's keys. Compressor
// states are not counted: hardly any step reads them.
double cache_bytes(const ModelConfig& c, const std::vector<CacheGroupSpec>& groups, int64_t p) {
  double bytes = 0;
  for (const CacheGroupSpec& spec : groups) {
    int64_t rows = (p + 1) / spec.ratio;
    switch (spec.group) {
      case CacheGroup::window: rows = std::min(rows, c.sliding_window); break;
      case CacheGroup::c4_compressed: rows = std::min(rows, c.index_topk); break;
      case CacheGroup::c128_compressed: break;
      case CacheGroup::mla_latent: rows = c.index_topk > 0 ? std::min(rows, c.index_topk) : rows; break;
      case CacheGroup::c4_indexer:
      case CacheGroup::mla_indexer: rows = rows > c.index_topk ? rows : 0; break;
      case CacheGroup::c4_state:
      case CacheGroup::c4_indexer_state:
      case CacheGroup::c128_state: rows = 0; break;
    }
    bytes += d(rows * row_bytes(spec.format, spec.row_dim));
  }
  return bytes;
}

// A rank that adds nothing of the others: what they send does not count in a layer's time here.
class FirstOf final : public Communicator {
 public:
  explicit FirstOf(int size) : size_(size) {}
  int rank() const override { return 0; }
  int size() const override { return size_; }
  void all_reduce_sum(const TensorView&, Device&, Stream) override {}

 private:
  int size_;
};

// A rank's share of the heads and groups, for its work.
ModelConfig of_rank(ModelConfig config, int32_t tp_size) {
  config.num_attention_heads /= tp_size;
  config.o_groups /= tp_size;
  return config;
}

// Requests with as many new tokens each.
struct Part {
  int64_t requests, new_tokens;
  bool decode;
};
std::vector<Part> parts_of(const LayerShape& shape) {
  const bool decode = shape.new_tokens == 1;
  return {{shape.decode_requests, 1 + shape.draft, true}, {shape.requests, decode ? 1 + shape.draft : shape.new_tokens, decode}};
}

struct State {
  ScratchDirectory directory;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<CallRecorder> recorder;
  std::unique_ptr<runner::ModelRunner> runner;
  Tensor hidden, out;
  int64_t tokens = 0;
};

Work prepare(const LayerShape& shape, bool gpu, const OpSet& ops, const std::shared_ptr<Device>& device, const WorkOptions& options) {
  Work work;
  if (gpu && device->id().kind == DeviceKind::cpu) {
    work.refusal = "a case for GPUs: it takes minutes on a CPU";
    return work;
  }
  const ModelConfig config = one_layer_config(shape);
  auto state = std::make_shared<State>();
  synthesize_checkpoint(config, {.fp8 = true, .seed = options.seed}, state->directory.path());
  state->checkpoint = std::make_unique<Checkpoint>(state->directory.path());
  const int64_t num_requests = shape.decode_requests + shape.requests;
  std::vector<runner::StepRequest> step;
  for (const Part& part : parts_of(shape)) {
    for (int64_t i = 0; i < part.requests; ++i) step.push_back({std::ssize(step), part.new_tokens});
    state->tokens += part.requests * part.new_tokens;
  }
  runner::RunnerOptions runner_options;
  runner_options.layer = layer_options_of(shape);
  runner_options.layer.limits = {.max_num_batched_tokens = state->tokens,
                                 .max_num_seqs = num_requests,
                                 .max_model_len = std::max(longest_of(shape), shape.bound),
                                 .num_speculative_tokens = static_cast<int32_t>(shape.draft)};
  if (shape.tp_size > 1) runner_options.communicator = std::make_shared<FirstOf>(shape.tp_size);
  runner_options.total_positions = num_requests * longest_of(shape);
  state->recorder = std::make_unique<CallRecorder>(ops);
  state->runner = std::make_unique<runner::ModelRunner>(*state->checkpoint, std::vector<int64_t>{0}, device, state->recorder->ops(),
                                                        default_layers(), runner_options);
  for (const runner::StepRequest& request : step) {
    state->runner->add_request(request.id);
    state->runner->pretend_position(request.id, context_of(shape, request.id));
  }
  // Equal keys, such as zeros, all tie. The selection then takes several times as long as with different keys.
  Rng rng(options.seed);
  fill_caches(state->runner->pool().layer(0), *device, rng);
  state->runner->begin_step(step, {.max_seq_len = shape.bound});
  device->synchronize(state->runner->stream());
  Inputs inputs(device, InputOptions{.seed = options.seed, .share = 1.0, .keep_images = false});
  state->hidden = Tensor(device, DType::bf16, {state->tokens, config.hidden_size});
  state->out = Tensor(device, DType::bf16, {state->tokens, config.hidden_size});
  const TensorView random = inputs.bf16({state->tokens, config.hidden_size});
  device->copy(state->hidden.view().data, random.data, random.bytes(), {});
  device->synchronize({});

  const ModelConfig rank = of_rank(config, shape.tp_size);
  const double weights = linear_weights(rank, shape.ratio);
  work.flops = 2.0 * weights * static_cast<double>(state->tokens);
  // The least that must be read: the weights as this device holds them, and what the last query of each request reads of its caches.
  const AttentionLayer& layer = state->runner->layer(0);
  work.bytes = static_cast<double>(layer.weight_bytes());
  int64_t request = 0;
  for (const Part& part : parts_of(shape)) {
    for (int64_t i = 0; i < part.requests; ++i, ++request) {
      const int64_t first = context_of(shape, request), end = first + part.new_tokens;
      for (int64_t p = first; p < end; ++p) {
        const bool mla = config.family == ModelFamily::deepseek_mla;
        work.flops += mla ? mla_attention_flops(rank, !part.decode, p) : attention_flops(rank, shape.ratio, p);
      }
      work.bytes += cache_bytes(config, layer.cache_groups(), end - 1);
    }
  }
  work.call = [state](size_t, Stream stream) { state->runner->run_layer(0, state->hidden, state->out, {.stream = stream}); };
  work.record = [state] {
    return state->recorder->record(state->runner->stream(), [&] { state->runner->run_layer(0, state->hidden, state->out); });
  };
  return work;
}

constexpr const char* kNames[] = {
    "v4-flash-c4-prefill-512",
    "v4-flash-c128-prefill-512",
    "v4-flash-window-prefill-512",
    "v4-flash-c4-decode-b1-context8192",
    "v4-flash-c4-decode-b16-context8192",
    "v4-flash-c128-decode-b16-context8192",
    "v2-lite-prefill-1024",
    "v2-lite-decode-b16-context4096",
    "v3-prefill-1024",
    "v3-decode-b4-context4096",
    "v3.2-prefill-512-context4096",
    "v3.2-decode-b4-context8192",
};
// They take minutes on a CPU.
constexpr const char* kGpuNames[] = {
    "v3-prefill-4096",
    "v3-decode-b64-context4096",
    "v3-decode-b32-draft1-context4096",
    "v3-prefill-512-beside32-context4096",
    "v3.2-decode-b32-context8192",
    "v3.2-decode-b64-context8192",
    "v3.2-decode-b32-context32768",
    "v3.2-prefill-512-context4096-fp8_ds_mla",
    "v3.2-decode-b4-context8192-fp8_ds_mla",
    "v3.2-decode-b32-context8192-fp8_ds_mla",
    "v3.2-decode-b64-context8192-fp8_ds_mla",
    "v3.2-decode-b32-draft1-context8192-fp8_ds_mla",
    "v3.2-prefill-512-beside32-context8192-fp8_ds_mla",
    "v4-flash-c4-decode-b1-context32768",
    "v4-flash-c4-decode-b32-context32768",
    "v4-flash-c4-decode-b64-context32768",
    "v4-flash-c4-decode-b128-context32768",
    "v4-flash-c4-decode-b256-context32768",
    "v4-flash-c4-decode-b32-draft1-context32768",
    "v4-flash-c4-decode-b32-context49152",
    "v4-flash-c4-decode-b64-context49152",
    "v4-flash-c4-decode-b1-context131072",
    "v4-flash-c4-decode-b32-context131072",
    "v4-flash-window-decode-b64-context32768",
    "v4-flash-c4-prefill-512-beside32-context32768",
    "v4-flash-c4-prefill-2048",
    "v4-flash-c4-prefill-8192",
    "v4-pro-c4-decode-b1-context32768",
    "v4-pro-c4-decode-b32-context32768",
    "v4-pro-c4-decode-b32-draft1-context32768",
    "v4-pro-c4-decode-b64-context32768",
    "v4-pro-c4-decode-b128-context32768",
    "v4-pro-c4-decode-b256-context32768",
    "v4-flash-c4-decode-b1-context32768-fp8-output",
    "v4-flash-c4-decode-b32-context32768-fp8-output",
    "v4-pro-c4-decode-b1-context32768-fp8-output",
    "v4-pro-c4-decode-b32-context32768-fp8-output",
    "v4-pro-c4-prefill-512-beside32-context32768",
    "v4-pro-c4-prefill-8192",
    "v4-pro-c128-decode-b1-context32768",
    "v4-pro-c128-decode-b32-context32768",
    "v4-pro-c128-decode-b64-context32768",
    "v4-pro-c4-prefill-512",
    "v4-pro-c128-prefill-8192",
};

// What making the layer would refuse, before anything is loaded or measured.
void check_layer(const LayerShape& shape) {
  const ModelConfig config = one_layer_config(shape);
  const LayerOptions options = layer_options_of(shape);
  try {
    check_layer_options(config, options);
    static_cast<void>(cache_groups_of_layer(config, options, 0));
  } catch (const Error& error) {
    fail(error.code(), "case '{}': {}", name_of(shape), error.what());
  }
}

void add(CaseList& list, const LayerShape& shape, bool gpu) {
  list.push_back(std::make_unique<LambdaCase>(
      "layer", name_of(shape), [shape, gpu](const OpSet& ops, const std::shared_ptr<Device>& device, const WorkOptions& options) {
        return prepare(shape, gpu, ops, device, options);
      }));
}

}  // namespace

void add_layers(CaseList& list) {
  for (const char* name : kNames) add(list, layer_shape(name).value(), false);
  for (const char* name : kGpuNames) add(list, layer_shape(name).value(), true);
}

void add_layer_of(CaseList& list, const std::string& name) {
  const bool known = std::any_of(list.begin(), list.end(), [&](const auto& c) { return c->op() == "layer" && c->name() == name; });
  if (known) return;
  if (const auto shape = layer_shape(name)) {
    check_layer(*shape);
    add(list, *shape, false);
    return;
  }
  const bool other = std::any_of(list.begin(), list.end(), [&](const auto& c) { return c->name() == name; });
  if (!other && is_like_layer(name)) refuse_layer_name(name);
}

}  // namespace strata::testkit
