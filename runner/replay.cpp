#include "runner/replay.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "core/check.h"
#include "formats/bf16.h"
#include "runner/recorded_sequences.h"

namespace strata::runner {
namespace {

struct Sequence {
  int64_t number = 0;
  int64_t num_tokens = 0;
  int64_t num_prefill = 0;
  const StoredTensor* x = nullptr;
  const StoredTensor* leader_x = nullptr;  // input of the layer whose selection this one shares
  const StoredTensor* out = nullptr;
  const StoredTensor* q = nullptr;         // of the last tokens
  const StoredTensor* attn_out = nullptr;  // of the last tokens
  const StoredTensor* topk = nullptr;
  std::string expected;
  // Collected while running.
  std::vector<Bf16> got_out, got_q, got_attn_out;
  std::vector<int32_t> got_topk;
  int64_t done = 0;
};

// Dimensions of a head of the rotated query, and of the attention output.
struct HeadDims {
  int64_t q;
  int64_t out;
  explicit HeadDims(const ModelConfig& config)
      : q(config.family == ModelFamily::deepseek_v4 ? config.head_dim : config.qk_nope_head_dim + config.qk_rope_head_dim),
        out(config.family == ModelFamily::deepseek_v4 ? config.head_dim : config.v_head_dim) {}
};

// The layer whose selection `layer` attends to: itself, or the nearest earlier one with an indexer (MLA 12).
int64_t leader_of(const ModelConfig& config, int64_t layer) {
  while (config.skip_topk(layer)) --layer;
  return layer;
}

std::vector<Sequence> sequences_of(const SafetensorsFile& file, int64_t layer, int64_t leader, const AttentionLayer& attention,
                                   const HeadDims& dims, const ReplayOptions& options) {
  const std::string layer_prefix = fmt::format("layer{}.seq", layer);
  std::vector<Sequence> sequences;
  for (const int64_t number : sequence_numbers(file, layer_prefix)) {
    const std::string prefix = fmt::format("{}{}.", layer_prefix, number);
    Sequence s;
    s.number = number;
    s.x = find_input(file, prefix + "x", attention.hidden_size());
    s.num_tokens = s.x->shape[0];
    if (leader != layer) {
      const std::string name = fmt::format("layer{}.seq{}.x", leader, number);
      s.leader_x = find_recorded(file, name, {DType::bf16}, {s.num_tokens, attention.hidden_size()});
      if (s.leader_x == nullptr) {
        fail(ErrorCode::invalid_file, "cases: {} is missing: layer {} attends to what layer {} selects", name, layer, leader);
      }
    }
    s.num_prefill = recorded_prefill(file, prefix, s.num_tokens);
    const bool exact = options.exact_index && file.find(prefix + "exact_index.out") != nullptr;
    const std::string source = prefix + (exact ? "exact_index." : "");
    s.expected = exact ? "exact_index.out" : "out";
    s.out = find_recorded(file, source + "out", {DType::bf16, DType::f32}, {s.num_tokens, attention.hidden_size()});
    s.q = find_recorded(file, prefix + "q", {DType::bf16}, {kAny, attention.num_heads(), dims.q});
    s.attn_out = find_recorded(file, source + "attn_out", {DType::bf16}, {kAny, attention.num_heads(), dims.out});
    if (attention.index_topk() > 0) {
      s.topk = find_recorded(file, source + "topk", {DType::i32}, {s.num_tokens, attention.index_topk()});
      if (s.topk == nullptr && options.topk == TopkSource::recorded) {
        fail(ErrorCode::invalid_file, "cases: {}topk must be there to attend to the recorded choice, is missing", source);
      }
    }
    for (const auto& [name, t2] : {std::pair{"q", s.q}, std::pair{"attn_out", s.attn_out}}) {
      if (t2 != nullptr && t2->shape[0] > s.num_tokens) {
        fail(ErrorCode::invalid_file, "cases: {}{} must have at most {} rows, has {}", prefix, name, s.num_tokens, t2->shape[0]);
      }
    }
    const auto n = static_cast<size_t>(s.num_tokens);
    s.got_out.resize(n * static_cast<size_t>(attention.hidden_size()));
    if (s.q) s.got_q.resize(n * static_cast<size_t>(attention.num_heads() * dims.q));
    if (s.attn_out) s.got_attn_out.resize(n * static_cast<size_t>(attention.num_heads() * dims.out));
    s.got_topk.resize(n * static_cast<size_t>(attention.index_topk()));
    sequences.push_back(std::move(s));
  }
  return sequences;
}

// What a file holds need not be aligned.
template <class T>
T element(const StoredTensor& t, size_t i) {
  T value;
  std::memcpy(&value, t.data + i * sizeof(T), sizeof(T));
  return value;
}

// Relative error of the last rows of `got` against a recorded tensor.
double relative_error(const std::vector<Bf16>& got, const StoredTensor& expected) {
  const auto n = static_cast<size_t>(expected.numel());
  const Bf16* have = got.data() + (got.size() - n);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < n; ++i) {
    const double want = expected.dtype == DType::f32 ? element<float>(expected, i) : to_float(element<Bf16>(expected, i));
    const double d = to_float(have[i]) - want;
    difference += d * d;
    norm += want * want;
  }
  return std::sqrt(difference) / std::sqrt(std::max(norm, 1e-300));  // NaN stays NaN, which no tolerance accepts
}

double topk_agreement(const Sequence& s, int64_t k, int64_t ratio) {
  int64_t rows = 0, equal = 0;
  for (int64_t t = 0; t < s.num_tokens; ++t) {
    if ((t + 1) / ratio <= k) continue;
    std::set<int32_t> expected;
    for (int64_t i = 0; i < k; ++i) expected.insert(element<int32_t>(*s.topk, static_cast<size_t>(t * k + i)));
    ++rows;
    const auto row = s.got_topk.begin() + t * k;
    // Of the set, as an entry that is selected twice is right once.
    for (const int32_t entry : std::set<int32_t>(row, row + k)) equal += expected.contains(entry) ? 1 : 0;
  }
  return rows == 0 ? -1.0 : static_cast<double>(equal) / static_cast<double>(rows * k);
}

// New tokens of a sequence in its next step.
int64_t next_count(const Sequence& s, int64_t chunk) {
  if (s.done >= s.num_prefill) return std::min<int64_t>(1, s.num_tokens - s.done);
  const int64_t left = s.num_prefill - s.done;
  return chunk > 0 ? std::min(chunk, left) : left;
}

class LayerReplay {
 public:
  // The runner's last layer is replayed. An earlier layer may select the rows that it attends to.
  LayerReplay(ModelRunner& runner, const ReplayOptions& options, const HeadDims& dims, int64_t max_tokens)
      : runner_(runner), options_(options), replayed_(runner.num_layers() - 1) {
    AttentionLayer& layer = runner.layer(replayed_);
    const auto& device = runner.device();
    hidden_ = Tensor(device, DType::bf16, {max_tokens, layer.hidden_size()});
    out_ = Tensor(device, DType::bf16, {max_tokens, layer.hidden_size()});
    q_ = Tensor(device, DType::bf16, {max_tokens, layer.num_heads(), dims.q});
    attn_out_ = Tensor(device, DType::bf16, {max_tokens, layer.num_heads(), dims.out});
  }

  // Runs the sequences to their end, all of them in every step, decode requests first.
  void run(const std::vector<Sequence*>& sequences, const std::function<void(int64_t)>& progress) {
    for (const Sequence* s : sequences) runner_.add_request(s->number);
    for (;;) {
      std::vector<std::pair<Sequence*, int64_t>> step;
      for (Sequence* s : sequences) {
        if (const int64_t count = next_count(*s, options_.chunk); count > 0) step.emplace_back(s, count);
      }
      if (step.empty()) break;
      std::stable_partition(step.begin(), step.end(), [](const auto& entry) { return entry.second == 1; });
      run_step(step);
      if (progress) {
        int64_t tokens = 0;
        for (const auto& entry : step) tokens += entry.second;
        progress(tokens);
      }
    }
    for (const Sequence* s : sequences) runner_.remove_request(s->number);
  }

 private:
  // The new tokens of a step as rows of hidden_.
  void load_hidden(const std::vector<std::pair<Sequence*, int64_t>>& step, const StoredTensor* Sequence::*x) {
    const auto hidden_row = static_cast<size_t>(hidden_.view().shape[1]) * sizeof(Bf16);
    int64_t row = 0;
    for (const auto& [s, count] : step) {
      runner_.device()->copy_from_host(hidden_.view().row<Bf16>(row), (s->*x)->data + static_cast<size_t>(s->done) * hidden_row,
                                       static_cast<size_t>(count) * hidden_row, runner_.stream());
      row += count;
    }
  }

  void run_step(const std::vector<std::pair<Sequence*, int64_t>>& step) {
    AttentionLayer& layer = runner_.layer(replayed_);
    Device& device = *runner_.device();
    const Stream stream = runner_.stream();
    std::vector<StepRequest> requests;
    int64_t tokens = 0;
    for (const auto& [s, count] : step) {
      requests.push_back({s->number, count});
      tokens += count;
    }
    BatchPadding padding;
    if (options_.pad_tokens > 0) padding = {tokens + options_.pad_tokens, std::ssize(step) + options_.pad_tokens};
    const Batch& batch = runner_.begin_step(requests, padding);
    const auto rows = [&](const Tensor& t) { return t.view().slice(0, batch.num_tokens); };
    const TensorView hidden = rows(hidden_), out = rows(out_), q = rows(q_), attn_out = rows(attn_out_);
    if (options_.poison) {
      for (const TensorView& v : {out, q, attn_out}) device.fill(v.data, 0xFF, v.bytes(), stream);
      // Padding tokens are real arithmetic on whatever is there: finite values.
      device.fill(hidden.data, 0, hidden.bytes(), stream);
    }
    if (replayed_ > 0) {
      load_hidden(step, &Sequence::leader_x);
      runner_.run_layer(0, hidden, out);
    }
    load_hidden(step, &Sequence::x);
    const int64_t topk = layer.index_topk();
    ForwardArgs extras;
    extras.skip_topk = options_.topk == TopkSource::recorded && topk > 0;
    int64_t row = 0;
    for (const auto& [s, count] : step) {
      if (extras.skip_topk) {
        const auto topk_row = static_cast<size_t>(topk) * sizeof(int32_t);
        device.copy_from_host(runner_.topk_indices().row<int32_t>(row), s->topk->data + static_cast<size_t>(s->done) * topk_row,
                              static_cast<size_t>(count) * topk_row, stream);
      }
      row += count;
    }
    extras.q_tap = q;
    extras.attn_out_tap = attn_out;
    if (extras.skip_topk && batch.num_tokens > tokens) {
      const TensorView rest = runner_.topk_indices().slice(tokens, batch.num_tokens - tokens);
      device.fill(rest.data, 0xFF, rest.bytes(), stream);  // -1
    }
    runner_.run_layer(replayed_, hidden, out, extras);
    row = 0;
    for (const auto& [s, count] : step) {
      collect(s->got_out, out_, row, *s, count);
      if (s->q) collect(s->got_q, q_, row, *s, count);
      if (s->attn_out) collect(s->got_attn_out, attn_out_, row, *s, count);
      if (topk > 0) {
        device.copy_to_host(s->got_topk.data() + s->done * topk, runner_.topk_indices().row<int32_t>(row),
                            static_cast<size_t>(count * topk) * sizeof(int32_t), stream);
      }
      s->done += count;
      row += count;
    }
    device.synchronize(stream);
    runner_.end_step();
  }

  void collect(std::vector<Bf16>& to, const Tensor& from, int64_t row, const Sequence& s, int64_t count) {
    const int64_t width = from.view().stride[0];
    runner_.device()->copy_to_host(to.data() + s.done * width, from.view().row<Bf16>(row),
                                   static_cast<size_t>(count * width) * sizeof(Bf16), runner_.stream());
  }

  ModelRunner& runner_;
  const ReplayOptions& options_;
  size_t replayed_;
  Tensor hidden_, out_, q_, attn_out_;
};

// Limits that the layer's longest sequences need. No more than the file has memory for: their shapes are checked.
BatchLimits limits_for(const SafetensorsFile& cases, int64_t layer, int64_t hidden, int64_t pad) {
  BatchLimits limits;
  const std::string prefix = fmt::format("layer{}.seq", layer);
  for (const int64_t number : sequence_numbers(cases, prefix)) {
    const int64_t tokens = find_input(cases, fmt::format("{}{}.x", prefix, number), hidden)->shape[0];
    limits.max_num_batched_tokens += tokens;
    limits.max_num_seqs += 1;
    limits.max_model_len = std::max(limits.max_model_len, tokens);
  }
  limits.max_num_batched_tokens += pad;
  limits.max_num_seqs += pad;
  return limits;
}

}  // namespace

std::vector<ReplayResult> replay(const Checkpoint& checkpoint, const SafetensorsFile& cases, const std::shared_ptr<Device>& device,
                                 const OpSet& ops, const LayerRegistry& registry, const ReplayOptions& options,
                                 const std::function<void(double)>& progress) {
  std::vector<ReplayResult> results;
  const std::vector<int64_t> layers = checkpoint.attention_layers();
  double done = 0, total = 0;
  for (const StoredTensor& t : cases.tensors()) {
    if (t.name.ends_with(".x") && !t.shape.empty()) total += static_cast<double>(t.shape[0]);
  }
  for (int64_t number : layers) {
    if (options.only_layer >= 0 && number != options.only_layer) continue;
    RunnerOptions runner_options;
    runner_options.layer = options.layer;
    runner_options.layer.limits = limits_for(cases, number, checkpoint.config().hidden_size, options.pad_tokens);
    if (runner_options.layer.limits.max_num_seqs == options.pad_tokens) continue;  // no case for this layer
    runner_options.layer.limits.max_model_len = std::max(runner_options.layer.limits.max_model_len, options.max_model_len);
    runner_options.total_positions = runner_options.layer.limits.max_num_batched_tokens;
    runner_options.shuffle_pages = options.shuffle_pages;
    if (options.poison) runner_options.fill = 0xFF;
    const int64_t leader = options.topk == TopkSource::recorded ? number : leader_of(checkpoint.config(), number);
    ModelRunner runner(checkpoint, leader == number ? std::vector{number} : std::vector{leader, number}, device, ops, registry,
                       runner_options);
    AttentionLayer& layer = runner.layer(runner.num_layers() - 1);
    const HeadDims dims(checkpoint.config());
    std::vector<Sequence> sequences = sequences_of(cases, number, leader, layer, dims, options);
    LayerReplay layer_replay(runner, options, dims, runner_options.layer.limits.max_num_batched_tokens);
    const auto on_tokens = [&](int64_t tokens) {
      done += static_cast<double>(tokens);
      if (progress) progress(done / std::max(total, 1.0));
    };
    std::vector<Sequence*> all;
    all.reserve(sequences.size());
    for (Sequence& s : sequences) all.push_back(&s);
    if (options.together) {
      layer_replay.run(all, on_tokens);
    } else {
      for (Sequence* s : all) layer_replay.run({s}, on_tokens);
    }
    for (const Sequence& s : sequences) {
      ReplayResult& r = results.emplace_back();
      r.layer = number;
      r.sequence = s.number;
      r.kind = layer.kind();
      r.chooses = layer.index_topk() > 0;
      r.num_tokens = s.num_tokens;
      r.expected = s.expected;
      r.out_error = s.out ? relative_error(s.got_out, *s.out) : -1;
      if (s.q) r.q_error = relative_error(s.got_q, *s.q);
      if (s.attn_out) r.attn_out_error = relative_error(s.got_attn_out, *s.attn_out);
      if (s.topk) r.topk_agreement = topk_agreement(s, layer.index_topk(), std::max(layer.compress_ratio(), 1));
      for (Bf16 v : s.got_out) r.out.push_back(to_float(v));
    }
  }
  return results;
}

}  // namespace strata::runner
