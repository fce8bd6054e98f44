// Whole layers at the official shapes with synthetic weights, prefill and decode: what `strata bench --op layer` times.
#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <string>

#include "fill_caches.h"
#include "lambda_case.h"
#include "model_runner.h"
#include "registry.h"

namespace strata::cases {
namespace {

struct LayerBench {
  const char* preset;
  int32_t ratio;  // V4: as in config.json
  int32_t requests;
  int64_t new_tokens;  // of each request
  int64_t context;     // positions before them
  bool gpu = false;    // takes minutes on a CPU
  bool fp8_output = false;
  std::optional<KvFormat> kv_format{};
};

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

ModelConfig one_layer_config(const LayerBench& bench) {
  ModelConfig config = preset(bench.preset);
  config.num_hidden_layers = 1;
  config.num_nextn_predict_layers = 0;
  if (config.family == ModelFamily::deepseek_v4) config.compress_ratios = {bench.ratio};
  return config;
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
  const double lanes = d(2 * c.kv_lora_rank + c.qk_rope_head_dim);
  if (c.index_topk == 0) return 2.0 * heads * d(keys) * lanes;
  const double scores = keys > c.index_topk ? 2.0 * d(c.index_n_heads * c.index_head_dim) * d(keys) : 0.0;
  return 2.0 * heads * d(std::min(keys, c.index_topk)) * lanes + scores;
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

// Bytes of cache rows that the query at position p reads: those it attends to, and where it has a choice the indexer's keys. Compressor
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

struct State {
  ScratchDirectory directory;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<CallRecorder> recorder;
  std::unique_ptr<ModelRunner> runner;
  Tensor hidden, out;
  int64_t tokens = 0;
};

Work prepare(const LayerBench& bench, const OpSet& ops, const std::shared_ptr<Device>& device, const WorkOptions& options) {
  Work work;
  if (bench.gpu && device->id().kind == DeviceKind::cpu) {
    work.refusal = "a case for GPUs: it takes minutes on a CPU";
    return work;
  }
  const ModelConfig config = one_layer_config(bench);
  auto state = std::make_shared<State>();
  synthesize_checkpoint(config, {.fp8 = true, .seed = options.seed}, state->directory.path());
  state->checkpoint = std::make_unique<Checkpoint>(state->directory.path());
  state->tokens = bench.requests * bench.new_tokens;
  RunnerOptions runner;
  runner.layer.limits = {
      .max_num_batched_tokens = state->tokens, .max_num_seqs = bench.requests, .max_model_len = bench.context + bench.new_tokens};
  runner.layer.fp8_output = bench.fp8_output;
  runner.layer.kv_format = bench.kv_format;
  runner.total_positions = bench.requests * runner.layer.limits.max_model_len;
  state->recorder = std::make_unique<CallRecorder>(ops);
  state->runner =
      std::make_unique<ModelRunner>(*state->checkpoint, std::vector<int64_t>{0}, device, state->recorder->ops(), default_layers(), runner);
  std::vector<StepRequest> step;
  for (int64_t r = 0; r < bench.requests; ++r) {
    state->runner->add_request(r);
    state->runner->pretend_position(r, bench.context);
    step.push_back({r, bench.new_tokens});
  }
  // Of equal keys, of zeros say, all are chosen alike, which takes the selection several times as long as different ones.
  Rng rng(options.seed);
  fill_caches(state->runner->pool().layer(0), *device, rng);
  state->runner->begin_step(step);
  device->synchronize(state->runner->stream());
  Inputs inputs(device, InputOptions{.seed = options.seed, .share = 1.0, .keep_images = false});
  state->hidden = Tensor(device, DType::bf16, {state->tokens, config.hidden_size});
  state->out = Tensor(device, DType::bf16, {state->tokens, config.hidden_size});
  const TensorView random = inputs.bf16({state->tokens, config.hidden_size});
  device->copy(state->hidden.view().data, random.data, random.bytes(), {});
  device->synchronize({});

  const double weights = linear_weights(config, bench.ratio);
  work.flops = 2.0 * weights * static_cast<double>(state->tokens);
  for (int64_t p = bench.context; p < bench.context + bench.new_tokens; ++p) {
    const bool mla = config.family == ModelFamily::deepseek_mla;
    work.flops +=
        d(bench.requests) * (mla ? mla_attention_flops(config, bench.new_tokens > 1, p) : attention_flops(config, bench.ratio, p));
  }
  // The least that must be read: the weights as this device holds them, and what the last query of each request reads of its caches.
  const AttentionLayer& layer = state->runner->layer(0);
  work.bytes = static_cast<double>(layer.weight_bytes()) +
               d(bench.requests) * cache_bytes(config, layer.cache_groups(), bench.context + bench.new_tokens - 1);
  work.call = [state](size_t, Stream stream) { state->runner->run_layer(0, state->hidden, state->out, {.stream = stream}); };
  work.record = [state] {
    return state->recorder->record(state->runner->stream(), [&] { state->runner->run_layer(0, state->hidden, state->out); });
  };
  return work;
}

constexpr LayerBench kBenches[] = {
    {"v4-flash", 4, 1, 512, 0},
    {"v4-flash", 128, 1, 512, 0},
    {"v4-flash", 0, 1, 512, 0},
    {"v4-flash", 4, 1, 1, 8192},
    {"v4-flash", 4, 16, 1, 8192},
    {"v4-flash", 128, 16, 1, 8192},
    {"v2-lite", 0, 1, 1024, 0},
    {"v2-lite", 0, 16, 1, 4096},
    {"v3", 0, 1, 1024, 0},
    {"v3", 0, 4, 1, 4096},
    {"v3.2", 0, 1, 512, 4096},
    {"v3.2", 0, 4, 1, 8192},
    {"v3", 0, 1, 4096, 0, true},
    {"v3", 0, 64, 1, 4096, true},
    {"v3.2", 0, 32, 1, 8192, true},
    {"v3.2", 0, 64, 1, 8192, true},
    {"v3.2", 0, 32, 1, 32768, true},
    {"v3.2", 0, 1, 512, 4096, true, false, KvFormat::fp8_ds_mla},
    {"v3.2", 0, 4, 1, 8192, true, false, KvFormat::fp8_ds_mla},
    {"v3.2", 0, 32, 1, 8192, true, false, KvFormat::fp8_ds_mla},
    {"v3.2", 0, 64, 1, 8192, true, false, KvFormat::fp8_ds_mla},
    {"v4-flash", 4, 1, 1, 32768, true},
    {"v4-flash", 4, 32, 1, 32768, true},
    {"v4-flash", 4, 64, 1, 32768, true},
    {"v4-flash", 4, 128, 1, 32768, true},
    {"v4-flash", 4, 256, 1, 32768, true},
    {"v4-flash", 4, 32, 1, 49152, true},
    {"v4-flash", 4, 64, 1, 49152, true},
    {"v4-flash", 4, 1, 1, 131072, true},
    {"v4-flash", 4, 32, 1, 131072, true},
    {"v4-flash", 0, 64, 1, 32768, true},
    {"v4-flash", 4, 1, 2048, 0, true},
    {"v4-flash", 4, 1, 8192, 0, true},
    {"v4-pro", 4, 1, 1, 32768, true},
    {"v4-pro", 4, 32, 1, 32768, true},
    {"v4-pro", 4, 64, 1, 32768, true},
    {"v4-pro", 4, 128, 1, 32768, true},
    {"v4-pro", 4, 256, 1, 32768, true},
    {"v4-flash", 4, 1, 1, 32768, true, true},
    {"v4-flash", 4, 32, 1, 32768, true, true},
    {"v4-pro", 4, 1, 1, 32768, true, true},
    {"v4-pro", 4, 32, 1, 32768, true, true},
    {"v4-pro", 4, 1, 8192, 0, true},
    {"v4-pro", 128, 1, 1, 32768, true},
    {"v4-pro", 128, 32, 1, 32768, true},
    {"v4-pro", 128, 64, 1, 32768, true},
    {"v4-pro", 4, 1, 512, 0, true},
    {"v4-pro", 128, 1, 8192, 0, true},
};

std::string name_of(const LayerBench& bench) {
  const bool v4 = std::string_view(bench.preset).starts_with("v4");
  const std::string kind = !v4 ? "" : bench.ratio == 0 ? "-window" : "-c" + std::to_string(bench.ratio);
  const std::string context = bench.context > 0 ? "-context" + std::to_string(bench.context) : "";
  const std::string step =
      bench.new_tokens > 1 ? "-prefill-" + std::to_string(bench.new_tokens) : "-decode-b" + std::to_string(bench.requests);
  const std::string format = bench.kv_format ? "-" + std::string(to_string(*bench.kv_format)) : "";
  return bench.preset + kind + step + context + (bench.fp8_output ? "-fp8-output" : "") + format;
}

}  // namespace

void add_layers(CaseList& list) {
  for (const LayerBench& bench : kBenches) {
    list.push_back(std::make_unique<LambdaCase>(
        "layer", name_of(bench), [bench](const OpSet& ops, const std::shared_ptr<Device>& device, const WorkOptions& options) {
          return prepare(bench, ops, device, options);
        }));
  }
}

}  // namespace strata::cases
