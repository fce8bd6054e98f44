// strata run: continuous batching through all attention layers of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "common.h"
#include "layer_options.h"
#include "memory.h"
#include "model_runner.h"
#include "strata/error.h"

namespace strata::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  CommonOptions common;
  LayerFlags layer;
  std::string model, input, output;
  int64_t requests = 4, prompt_tokens = 256, decode_tokens = 16, max_batched_tokens = 512;
  uint64_t seed = 1;
  bool check_reference = false;
  double tolerance = 5e-2;
};

uint16_t bf16_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}
float float_of(uint16_t bf16) {
  const uint32_t bits = uint32_t{bf16} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Hidden states of one request, the same for every layer unless the input file has them by layer.
struct Request {
  int64_t id = 0;
  int64_t num_tokens = 0;
  int64_t num_prefill = 0;
  std::vector<std::vector<uint16_t>> x;  // [1 or layers][tokens * hidden]
  std::vector<std::vector<uint16_t>> out;
  const std::vector<uint16_t>& hidden(size_t layer) const { return x[x.size() == 1 ? 0 : layer]; }
};

std::vector<uint16_t> values_of(const StoredTensor& t, int64_t hidden) {
  if (t.dtype != DType::bf16 || t.shape.size() != 2 || t.shape[1] != hidden) {
    throw Error(ErrorCode::invalid_file, fmt::format("input: {} must be bf16 [tokens, {}], is {} [{}]", t.name, hidden, to_string(t.dtype),
                                                     fmt::join(t.shape, ", ")));
  }
  std::vector<uint16_t> values(static_cast<size_t>(t.numel()));
  std::memcpy(values.data(), t.data, t.bytes);
  return values;
}

// "seqS.x", or "layerL.seqS.x" for every layer (the format of recorded cases).
std::vector<Request> read_requests(const std::string& path, const std::vector<int64_t>& layers, int64_t hidden) {
  const SafetensorsFile file(path);
  std::vector<Request> requests;
  for (int64_t s = 0;; ++s) {
    Request r;
    r.id = s;
    const StoredTensor* prefill = file.find(fmt::format("layer{}.seq{}.num_prefill", layers.front(), s));
    if (const StoredTensor* x = file.find(fmt::format("seq{}.x", s))) {
      r.x.push_back(values_of(*x, hidden));
      prefill = file.find(fmt::format("seq{}.num_prefill", s));
    } else {
      for (int64_t layer : layers) {
        const StoredTensor* of_layer = file.find(fmt::format("layer{}.seq{}.x", layer, s));
        if (of_layer == nullptr) break;
        r.x.push_back(values_of(*of_layer, hidden));
      }
      if (r.x.size() != layers.size() && !r.x.empty()) {
        throw Error(ErrorCode::invalid_file, fmt::format("input: seq{}.x must be there for {} layers, is for {}", s, layers.size(), r.x.size()));
      }
    }
    if (r.x.empty()) break;
    r.num_tokens = std::ssize(r.x.front()) / hidden;
    r.num_prefill = r.num_tokens;
    if (prefill != nullptr && prefill->dtype == DType::i32 && prefill->bytes == 4) {
      int32_t n;
      std::memcpy(&n, prefill->data, sizeof n);
      if (n < 0 || n > r.num_tokens) {
        throw Error(ErrorCode::invalid_file, fmt::format("input: {} must be in [0, {}], is {}", prefill->name, r.num_tokens, n));
      }
      r.num_prefill = n;
    }
    requests.push_back(std::move(r));
  }
  if (requests.empty()) throw Error(ErrorCode::invalid_file, fmt::format("input: {} must have seq0.x or layerL.seq0.x, has neither", path));
  return requests;
}

std::vector<Request> random_requests(const Options& o, int64_t hidden) {
  std::mt19937_64 random(o.seed);
  std::normal_distribution<float> normal;
  std::vector<Request> requests;
  for (int64_t s = 0; s < o.requests; ++s) {
    Request r;
    r.id = s;
    // Ragged on purpose: prompts from half to all of --prompt-tokens.
    r.num_prefill = o.requests == 1 ? o.prompt_tokens : o.prompt_tokens - s * (o.prompt_tokens / 2) / o.requests;
    r.num_tokens = r.num_prefill + o.decode_tokens;
    std::vector<uint16_t>& x = r.x.emplace_back(static_cast<size_t>(r.num_tokens * hidden));
    for (uint16_t& v : x) v = bf16_of(normal(random));
    requests.push_back(std::move(r));
  }
  return requests;
}

struct KindFigures {
  int64_t layers = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  size_t weight_bytes = 0;
};

struct Outcome {
  std::map<std::string, KindFigures> kinds;
  std::vector<std::string> layer_kinds;
  int64_t prefill_tokens = 0, decode_tokens = 0, steps = 0;
  size_t weight_bytes = 0, cache_bytes = 0, workspace_bytes = 0, io_bytes = 0;
  std::string device;
};

Outcome run_requests(const Options& o, const Checkpoint& checkpoint, const Config& config, std::vector<Request>& requests, bool keep_outputs) {
  const auto device = open_device(parse_device_id(o.common.device), config);
  const std::vector<int64_t> layers = checkpoint.attention_layers();
  const int64_t hidden_size = checkpoint.config().hidden_size;
  cases::RunnerOptions options;
  options.layer = layer_options(o.layer);
  BatchLimits& limits = options.layer.limits;
  limits.max_num_batched_tokens = std::max<int64_t>(o.max_batched_tokens, std::ssize(requests));
  limits.max_num_seqs = std::ssize(requests);
  double total_tokens = 0;
  for (const Request& r : requests) {
    limits.max_model_len = std::max(limits.max_model_len, r.num_tokens);
    options.total_positions += r.num_tokens;
    total_tokens += static_cast<double>(r.num_tokens);
  }
  cases::ModelRunner runner(checkpoint, layers, device, default_ops(), default_layers(), options);
  const Tensor hidden(device, DType::bf16, {limits.max_num_batched_tokens, hidden_size});
  const Tensor out(device, DType::bf16, {limits.max_num_batched_tokens, hidden_size});

  Outcome outcome;
  outcome.device = device->description();
  for (size_t l = 0; l < runner.num_layers(); ++l) {
    outcome.layer_kinds.push_back(runner.layer(l).kind());
    KindFigures& kind = outcome.kinds[runner.layer(l).kind()];
    ++kind.layers;
    kind.weight_bytes += runner.layer(l).weight_bytes();
  }
  if (keep_outputs) {
    for (Request& r : requests) r.out.assign(layers.size(), std::vector<uint16_t>(static_cast<size_t>(r.num_tokens * hidden_size)));
  }

  std::vector<int64_t> done(requests.size(), 0);
  for (const Request& r : requests) runner.add_request(r.id);
  Progress progress("run", total_tokens, o.common.json);
  double tokens_done = 0;
  for (;;) {
    // Decode first, then as much prefill as the token budget leaves.
    std::vector<std::pair<size_t, int64_t>> step;
    int64_t budget = limits.max_num_batched_tokens, prefill_tokens = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      if (done[i] >= requests[i].num_prefill && done[i] < requests[i].num_tokens) {
        step.emplace_back(i, 1);
        --budget;
      }
    }
    for (size_t i = 0; i < requests.size(); ++i) {
      const int64_t count = std::min(budget, requests[i].num_prefill - done[i]);
      if (count <= 0) continue;
      step.emplace_back(i, count);
      budget -= count;
      prefill_tokens += count;
    }
    if (step.empty()) break;
    std::vector<cases::StepRequest> batch_requests;
    int64_t tokens = 0;
    for (const auto& [i, count] : step) {
      batch_requests.push_back({requests[i].id, count});
      tokens += count;
    }
    runner.begin_step(batch_requests);
    for (size_t l = 0; l < runner.num_layers(); ++l) {
      int64_t row = 0;
      for (const auto& [i, count] : step) {
        device->copy_from_host(hidden.view().row<uint16_t>(row), requests[i].hidden(l).data() + done[i] * hidden_size,
                               static_cast<size_t>(count * hidden_size) * 2, {});
        row += count;
      }
      device->synchronize({});
      const auto start = Clock::now();
      runner.run_layer(l, hidden.view().slice(0, tokens), out.view().slice(0, tokens));
      device->synchronize({});
      const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
      KindFigures& kind = outcome.kinds[runner.layer(l).kind()];
      (prefill_tokens > 0 ? kind.prefill_seconds : kind.decode_seconds) += seconds;
      row = 0;
      for (const auto& [i, count] : step) {
        if (keep_outputs) {
          device->copy_to_host(requests[i].out[l].data() + done[i] * hidden_size, out.view().row<uint16_t>(row),
                               static_cast<size_t>(count * hidden_size) * 2, {});
        }
        row += count;
      }
      device->synchronize({});
    }
    runner.end_step();
    for (const auto& [i, count] : step) {
      done[i] += count;
      if (done[i] == requests[i].num_tokens) runner.remove_request(requests[i].id);
    }
    outcome.steps += 1;
    (prefill_tokens > 0 ? outcome.prefill_tokens : outcome.decode_tokens) += tokens;
    tokens_done += static_cast<double>(tokens);
    progress.update(tokens_done);
  }
  outcome.weight_bytes = runner.weight_bytes();
  outcome.cache_bytes = runner.cache_bytes();
  outcome.workspace_bytes = runner.workspace_bytes();
  outcome.io_bytes = hidden.allocated_bytes() + out.allocated_bytes();
  return outcome;
}

// Largest relative error of a request's outputs, by layer kind.
std::map<std::string, double> compare(const std::vector<Request>& a, const std::vector<Request>& b, const std::vector<std::string>& kinds) {
  std::map<std::string, double> worst;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t l = 0; l < kinds.size(); ++l) {
      double difference = 0, norm = 0;
      for (size_t e = 0; e < a[i].out[l].size(); ++e) {
        const double x = float_of(a[i].out[l][e]), y = float_of(b[i].out[l][e]);
        difference += (x - y) * (x - y);
        norm += y * y;
      }
      const double error = std::sqrt(difference) / std::sqrt(std::max(norm, 1e-300));
      double& entry = worst[kinds[l]];
      entry = std::isnan(error) || error > entry ? error : entry;
    }
  }
  return worst;
}

void write_outputs(const std::string& path, const std::vector<Request>& requests, const std::vector<int64_t>& layers, int64_t hidden) {
  std::vector<StoredTensor> tensors;
  std::vector<int32_t> prefill;
  for (const Request& r : requests) prefill.push_back(static_cast<int32_t>(r.num_prefill));
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = requests[i];
      const std::string prefix = fmt::format("layer{}.seq{}.", layers[l], r.id);
      const auto add = [&](const char* name, DType dtype, std::vector<int64_t> shape, const void* data, size_t bytes) {
        tensors.push_back({prefix + name, dtype, std::move(shape), static_cast<const std::byte*>(data), bytes});
      };
      add("x", DType::bf16, {r.num_tokens, hidden}, r.hidden(l).data(), r.hidden(l).size() * 2);
      add("out", DType::bf16, {r.num_tokens, hidden}, r.out[l].data(), r.out[l].size() * 2);
      add("num_prefill", DType::i32, {1}, &prefill[i], 4);
    }
  }
  write_safetensors(path, tensors);
}

int report(const Options& o, const Outcome& outcome, const std::map<std::string, double>& errors, size_t peak) {
  bool passed = true;
  Table table({"layer kind", "layers", "weights", "prefill", "decode", "prefill tok/s", "decode tok/s", errors.empty() ? "" : "error"});
  Json json = {{"model", o.model}, {"device", outcome.device}, {"steps", outcome.steps}, {"prefill_tokens", outcome.prefill_tokens},
               {"decode_tokens", outcome.decode_tokens}};
  for (const auto& [name, kind] : outcome.kinds) {
    // Time of one layer of the kind; steps that mix decode with prefill count as prefill.
    const double prefill = kind.prefill_seconds / static_cast<double>(kind.layers), decode = kind.decode_seconds / static_cast<double>(kind.layers);
    const double prefill_rate = prefill > 0 ? static_cast<double>(outcome.prefill_tokens) / prefill : 0;
    const double decode_rate = decode > 0 ? static_cast<double>(outcome.decode_tokens) / decode : 0;
    const auto error = errors.find(name);
    const bool ok = error == errors.end() || error->second <= o.tolerance;
    passed = passed && ok;
    table.add({name, std::to_string(kind.layers), format_bytes(static_cast<double>(kind.weight_bytes)), format_seconds(prefill), format_seconds(decode),
               fmt::format("{:.0f}", prefill_rate), fmt::format("{:.0f}", decode_rate),
               error == errors.end() ? "" : fmt::format("{:.5f}{}", error->second, ok ? "" : " beyond tolerance")});
    Json entry = {{"kind", name}, {"layers", kind.layers}, {"weight_bytes", kind.weight_bytes}, {"prefill_seconds_per_layer", prefill},
                  {"decode_seconds_per_layer", decode}, {"prefill_tokens_per_second", prefill_rate}, {"decode_tokens_per_second", decode_rate}};
    if (error != errors.end()) entry["error"] = error->second;
    json["kinds"].push_back(entry);
  }
  const size_t stated = outcome.weight_bytes + outcome.cache_bytes + outcome.workspace_bytes + outcome.io_bytes;
  json["memory"] = {{"weights", outcome.weight_bytes}, {"caches", outcome.cache_bytes}, {"workspace", outcome.workspace_bytes},
                    {"hidden_states", outcome.io_bytes}, {"stated", stated}, {"peak_resident", peak}};
  json["passed"] = passed;
  if (o.common.json) {
    print_json(json);
    return passed ? kSuccess : kFailed;
  }
  fmt::print("{}\n{} steps, {} tokens in steps with prefill, {} in pure decode steps; times and rates are of one layer\n", outcome.device, outcome.steps,
             outcome.prefill_tokens, outcome.decode_tokens);
  table.print();
  const auto mb = [](size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  fmt::print("memory: weights {} + caches {} + workspace {} + hidden states {} = {}; peak resident {}\n", mb(outcome.weight_bytes),
             mb(outcome.cache_bytes), mb(outcome.workspace_bytes), mb(outcome.io_bytes), mb(stated), mb(peak));
  if (!errors.empty()) fmt::print("against the reference backend, ||out - expected|| / ||expected||, tolerance {}: {}\n", o.tolerance, passed ? "ok" : "FAILED");
  return passed ? kSuccess : kFailed;
}

int run(const Options& o) {
  const Checkpoint checkpoint(o.model);
  const std::vector<int64_t> layers = checkpoint.attention_layers();
  if (layers.empty()) throw Error(ErrorCode::invalid_file, fmt::format("{}: no attention layer in it", o.model));
  const int64_t hidden = checkpoint.config().hidden_size;
  std::vector<Request> requests = o.input.empty() ? random_requests(o, hidden) : read_requests(o.input, layers, hidden);
  const bool keep = o.check_reference || !o.output.empty();
  const Outcome outcome = run_requests(o, checkpoint, make_config(o.common), requests, keep);
  const size_t peak = cases::peak_resident_bytes();
  if (!o.output.empty()) write_outputs(o.output, requests, layers, hidden);
  std::map<std::string, double> errors;
  if (o.check_reference) {
    Options on_reference = o;
    on_reference.common.device = "cpu";
    Config config = make_config(o.common);
    config.force = {{"*", "reference"}};
    std::vector<Request> expected = requests;
    run_requests(on_reference, checkpoint, config, expected, true);
    errors = compare(requests, expected, outcome.layer_kinds);
  }
  return report(o, outcome, errors, peak);
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Chunked prefill and decode of several requests through every attention layer of a checkpoint");
  sub->footer("Exit codes: 0 success; 1 --check-reference found a difference; 2 bad input.\n"
              "Example: strata run --model model --requests 8 --prompt-tokens 1000 --decode-tokens 32 --out cases.safetensors");
  sub->add_option("--model", o->model, "checkpoint directory")->required();
  sub->add_option("--requests", o->requests, "number of random requests")->check(CLI::Range(1, 4096))->capture_default_str();
  sub->add_option("--prompt-tokens", o->prompt_tokens, "longest prompt")->check(CLI::Range(1, 1 << 20))->capture_default_str();
  sub->add_option("--decode-tokens", o->decode_tokens, "tokens decoded one at a time")->check(CLI::Range(0, 1 << 20))->capture_default_str();
  sub->add_option("--max-batched-tokens", o->max_batched_tokens, "tokens of a step; longer prompts are prefilled in chunks")
      ->check(CLI::Range(1, 1 << 20))->capture_default_str();
  sub->add_option("--input", o->input, "hidden states from this file (seqS.x or layerL.seqS.x) instead of random ones");
  sub->add_option("--out", o->output, "write inputs and outputs as cases that `strata replay` reads");
  sub->add_option("--seed", o->seed, "of the random hidden states")->capture_default_str();
  sub->add_flag("--check-reference", o->check_reference, "run the same on the reference backend and compare");
  sub->add_option("--tolerance", o->tolerance, "of --check-reference")->capture_default_str();
  add_layer_flags(*sub, o->layer);
  add_common(*sub, o->common);
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace strata::cli
