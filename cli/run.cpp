// strata run: continuous batching through all attention layers of a checkpoint.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "common.h"
#include "runner/decode_graph.h"
#include "layer_options.h"
#include "numbers.h"
#include "output_file.h"
#include "ranks.h"
#include "runner/memory.h"
#include "runner/model_runner.h"
#include "runner/timed_communicator.h"
#include "run_figures.h"
#include "run_requests.h"
#include "strata/error.h"
#include "words.h"

namespace strata::cli {
namespace {

struct Options {
  CommonOptions common;
  LayerFlags layer;
  RankFlags ranks;
  ConfigOptions config;
  std::string model, input, output;
  RandomRequests random;
  std::optional<int64_t> prompt_tokens;
  int64_t max_batched_tokens = 512;
  bool check_reference = false;
  bool graph = true;
  bool overlap = true;
  double tolerance = 5e-2;
};

constexpr int64_t kPromptTokens = 256;  // where the model has as many positions

struct Outcome {
  RunFigures figures;
  std::vector<std::string> layer_kinds;
  size_t weight_bytes = 0, cache_bytes = 0, workspace_bytes = 0, io_bytes = 0;
  size_t process_bytes = 0;  // of the program and its libraries, before anything is loaded
  std::string device;
  int ranks = 1;  // of which the figures are the first's
};

// One request's tokens in a step.
struct Share {
  size_t request = 0;
  int64_t count = 0;
};

class RequestRunner {
 public:
  RequestRunner(const Options& o, const Checkpoint& checkpoint, const RankDevice& rank, std::vector<Request>& requests, bool keep_outputs)
      : requests_(requests),
        keep_outputs_(keep_outputs),
        hidden_size_(checkpoint.config().hidden_size),
        device_(rank.device),
        communicator_(rank.communicator ? std::make_shared<runner::TimedCommunicator>(rank.communicator) : nullptr),
        layer_(layer_of_rank(o, checkpoint.config(), rank)),
        limits_(limits_for(o, requests)),
        runner_(checkpoint, checkpoint.attention_layers(), device_, default_ops(), default_layers(), runner_options(o)),
        hidden_(device_, DType::bf16, {limits_.max_num_batched_tokens, hidden_size_}),
        out_(device_, DType::bf16, {limits_.max_num_batched_tokens, hidden_size_}),
        done_(requests.size(), 0) {
    // A graph cannot hold an exchange over the host.
    if (o.graph && communicator_ == nullptr && layer_.mla_mode != MlaMode::mha && runner::DecodeGraphs::supported(device_)) {
      graphs_.emplace(runner_, limits_.max_num_seqs, limits_.max_model_len);
    }
    for (Request& r : requests) {
      runner_.add_request(r.id);
      if (keep_outputs) r.out.assign(runner_.num_layers(), std::vector<uint16_t>(static_cast<size_t>(r.num_tokens * hidden_size_)));
    }
    outcome_.device = device_->description();
    outcome_.ranks = rank.size;
    for (size_t l = 0; l < runner_.num_layers(); ++l) {
      outcome_.layer_kinds.push_back(runner_.layer(l).kind());
      KindFigures& kind = outcome_.figures.kinds[runner_.layer(l).kind()];
      ++kind.layers;
      kind.weight_bytes += runner_.layer(l).weight_bytes();
    }
    outcome_.weight_bytes = runner_.weight_bytes();
    outcome_.cache_bytes = runner_.cache_bytes();
    outcome_.workspace_bytes = runner_.workspace_bytes();
    outcome_.io_bytes = hidden_.allocated_bytes() + out_.allocated_bytes() + (graphs_ ? graphs_->allocated_bytes() : 0) + request_bytes();
  }

  Outcome run(Progress& progress) {
    double done = 0;
    for (std::vector<Share> step = next_step(); !step.empty(); step = next_step()) {
      int64_t tokens = 0;
      for (const Share& s : step) tokens += s.count;
      const bool decode =
          std::all_of(step.begin(), step.end(), [&](const Share& s) { return done_[s.request] >= requests_[s.request].num_prefill; });
      const auto on_layer = [&](double share) { progress.update(done + share * static_cast<double>(tokens)); };
      decode&& graphs_ ? run_decode(step, tokens) : run_layers(step, tokens, decode, on_layer);
      (decode ? outcome_.figures.decode_tokens : outcome_.figures.prefill_tokens) += tokens;
      runner_.end_step();
      for (const Share& s : step) {
        done_[s.request] += s.count;
        if (done_[s.request] == requests_[s.request].num_tokens) runner_.remove_request(requests_[s.request].id);
      }
      outcome_.figures.steps += 1;
      progress.update(done += static_cast<double>(tokens));
    }
    return outcome_;
  }

 private:
  static LayerOptions layer_of_rank(const Options& o, const ModelConfig& config, const RankDevice& rank) {
    LayerOptions options = layer_options(o.layer, config);
    options.tp_rank = rank.rank;
    options.tp_size = rank.size;
    return options;
  }

  // Hidden states that the requests hold on the host.
  size_t request_bytes() const {
    size_t values = 0;
    for (const Request& r : requests_) {
      for (const auto* lists : {&r.x, &r.out}) {
        for (const std::vector<uint16_t>& list : *lists) values += list.size();
      }
    }
    return values * sizeof(uint16_t);
  }

  static BatchLimits limits_for(const Options& o, const std::vector<Request>& requests) {
    BatchLimits limits;
    limits.max_num_batched_tokens = std::max<int64_t>(o.max_batched_tokens, std::ssize(requests));
    limits.max_num_seqs = std::ssize(requests);
    for (const Request& r : requests) limits.max_model_len = std::max(limits.max_model_len, r.num_tokens);
    return limits;
  }

  runner::RunnerOptions runner_options(const Options& o) const {
    runner::RunnerOptions options;
    options.layer = layer_;
    options.layer.limits = limits_;
    options.overlap = o.overlap;
    options.communicator = communicator_;
    for (const Request& r : requests_) options.total_positions += r.num_tokens;
    return options;
  }

  // Decode first, then as much prefill as the token budget leaves.
  std::vector<Share> next_step() const {
    std::vector<Share> step;
    int64_t budget = limits_.max_num_batched_tokens;
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (done_[i] < requests_[i].num_prefill || done_[i] >= requests_[i].num_tokens) continue;
      step.push_back({i, 1});
      --budget;
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      const int64_t count = std::min(budget, requests_[i].num_prefill - done_[i]);
      if (count <= 0) continue;
      step.push_back({i, count});
      budget -= count;
    }
    return step;
  }

  void begin(const std::vector<Share>& step, BatchPadding padding) {
    std::vector<runner::StepRequest> batch;
    batch.reserve(step.size());
    for (const Share& s : step) batch.push_back({requests_[s.request].id, s.count});
    runner_.begin_step(batch, padding);
  }

  // f(device row, host row of the request's share, bytes).
  template <class F>
  void for_rows(const std::vector<Share>& step, const TensorView& rows, F&& f) {
    int64_t row = 0;
    for (const Share& s : step) {
      f(rows.row<uint16_t>(row), requests_[s.request], done_[s.request] * hidden_size_, static_cast<size_t>(s.count * hidden_size_) * 2);
      row += s.count;
    }
  }
  void load(const std::vector<Share>& step, size_t l, const TensorView& hidden) {
    for_rows(step, hidden, [&](void* to, const Request& r, int64_t at, size_t bytes) {
      device_->copy_from_host(to, r.hidden(l).data() + at, bytes, runner_.stream());
    });
  }
  void store(const std::vector<Share>& step, size_t l, const TensorView& out) {
    if (!keep_outputs_) return;
    for_rows(step, out, [&](const void* from, Request& r, int64_t at, size_t bytes) {
      device_->copy_to_host(r.out[l].data() + at, from, bytes, runner_.stream());
    });
  }

  // on_layer(share of the layers that are done).
  template <class F>
  void run_layers(const std::vector<Share>& step, int64_t tokens, bool decode, F&& on_layer) {
    begin(step, {});
    for (size_t l = 0; l < runner_.num_layers(); ++l) {
      load(step, l, hidden_);
      KindFigures& kind = outcome_.figures.kinds[runner_.layer(l).kind()];
      const double before = communication_seconds();
      (decode ? kind.decode_seconds : kind.prefill_seconds) += device_->elapsed_seconds(
          runner_.stream(), [&] { runner_.run_layer(l, hidden_.view().slice(0, tokens), out_.view().slice(0, tokens)); });
      (decode ? kind.decode_communication : kind.prefill_communication) += communication_seconds() - before;
      store(step, l, out_);
      device_->synchronize(runner_.stream());
      on_layer(static_cast<double>(l + 1) / static_cast<double>(runner_.num_layers()));
    }
    if (decode) outcome_.figures.layer_decode_tokens += tokens;
  }

  // The first step of a padded size, which captures the graph, is timed with nothing: it loads kernels.
  void run_decode(const std::vector<Share>& step, int64_t tokens) {
    begin(step, graphs_->padding(std::ssize(step)));
    for (size_t l = 0; l < runner_.num_layers(); ++l) load(step, l, graphs_->hidden(l));
    bool launched = false;
    const double seconds = device_->elapsed_seconds(runner_.stream(), [&] { launched = graphs_->run(); });
    if (launched) {
      outcome_.figures.graph_steps += 1;
      outcome_.figures.graph_tokens += tokens;
      outcome_.figures.graph_seconds += seconds;
    }
    for (size_t l = 0; l < runner_.num_layers(); ++l) store(step, l, graphs_->out(l));
    device_->synchronize(runner_.stream());
  }

  double communication_seconds() const { return communicator_ ? communicator_->seconds() : 0; }

  std::vector<Request>& requests_;
  bool keep_outputs_;
  int64_t hidden_size_;
  std::shared_ptr<Device> device_;
  std::shared_ptr<runner::TimedCommunicator> communicator_;  // null: one rank
  LayerOptions layer_;
  BatchLimits limits_;
  runner::ModelRunner runner_;
  Tensor hidden_, out_;
  std::optional<runner::DecodeGraphs> graphs_;
  std::vector<int64_t> done_;  // tokens of each request
  Outcome outcome_;
};

int report(const Options& o, const ModelConfig& config, const Outcome& outcome, const std::map<std::string, double>& errors, size_t peak) {
  const RunFigures& figures = outcome.figures;
  bool passed = true;
  std::vector<std::string> header{"layer kind", "layers", "weights", "prefill", "decode", "prefill tok/s", "decode tok/s"};
  if (outcome.ranks > 1) header.insert(header.end(), {"prefill communication", "decode communication"});
  if (!errors.empty()) header.emplace_back("error");
  Table table(header);
  Json json = {{"model", o.model},
               {"device", outcome.device},
               {"tp", outcome.ranks},
               {"steps", figures.steps},
               {"prefill_tokens", figures.prefill_tokens},
               {"decode_tokens", figures.decode_tokens}};
  const auto seconds_of = [](const std::optional<LayerTime>& time) { return time ? format_seconds(time->seconds) : ""; };
  const auto rate_of = [](const std::optional<LayerTime>& time) { return time ? fmt::format("{:.0f}", time->tokens_per_second) : ""; };
  for (const auto& [name, kind] : figures.kinds) {
    const std::optional<LayerTime> prefill = prefill_time(figures, kind), decode = decode_time(figures, kind);
    const auto error = errors.find(name);
    const bool ok = error == errors.end() || error->second <= o.tolerance;
    passed = passed && ok;
    std::vector<std::string> row{name,
                                 std::to_string(kind.layers),
                                 format_bytes(static_cast<double>(kind.weight_bytes)),
                                 seconds_of(prefill),
                                 seconds_of(decode),
                                 rate_of(prefill),
                                 rate_of(decode)};
    if (outcome.ranks > 1) {
      row.push_back(seconds_of(prefill_communication(figures, kind)));
      row.push_back(seconds_of(decode_communication(figures, kind)));
    }
    row.push_back(error == errors.end() ? "" : fmt::format("{:.5f}{}", error->second, ok ? "" : " beyond tolerance"));
    table.add(row);
    Json entry = kind_json(figures, name, kind);
    if (error != errors.end()) entry["error"] = error->second;
    json["kinds"].push_back(entry);
  }
  if (figures.graph_steps > 0) json["decode_graph"] = graph_json(figures);
  const size_t stated = outcome.weight_bytes + outcome.cache_bytes + outcome.workspace_bytes + outcome.io_bytes;
  json["memory"] = {{"weights", outcome.weight_bytes},
                    {"caches", outcome.cache_bytes},
                    {"workspace", outcome.workspace_bytes},
                    {"hidden_states", outcome.io_bytes},
                    {"stated", stated},
                    {"process", outcome.process_bytes},
                    {"peak_resident", peak}};
  const int64_t layers = std::ssize(outcome.layer_kinds), all_layers = config.num_hidden_layers + config.num_nextn_predict_layers;
  json["layers"] = layers;
  json["layers_of_config"] = all_layers;
  json["unknown_keys"] = config.unknown_keys();
  json["passed"] = passed;
  if (o.common.json) {
    print_json(json);
    return passed ? kSuccess : kFailed;
  }
  fmt::print("{}\n{}, {} in steps with prefill, {} in pure decode steps; times and rates are of one layer\n", outcome.device,
             counted(figures.steps, "step"), counted(figures.prefill_tokens, "token"), figures.decode_tokens);
  if (outcome.ranks > 1)
    fmt::print("rank 0 of {} tensor-parallel ranks; communication: the exchange and waiting for other ranks, within the times\n",
               outcome.ranks);
  table.print();
  if (figures.graph_steps > 0) {
    const double steps = static_cast<double>(figures.graph_steps);
    fmt::print("decode: {} by launching one graph of {}, {} a step, {:.0f} tok/s\n", counted(figures.graph_steps, "step"),
               counted(std::ssize(outcome.layer_kinds), "layer"), format_seconds(figures.graph_seconds / steps),
               static_cast<double>(figures.graph_tokens) / figures.graph_seconds);
  }
  const auto mb = [](size_t bytes) { return format_bytes(static_cast<double>(bytes)); };
  fmt::print("memory: weights {} + caches {} + workspace {} + hidden states {} = {}; the program alone {}; peak resident {}\n",
             mb(outcome.weight_bytes), mb(outcome.cache_bytes), mb(outcome.workspace_bytes), mb(outcome.io_bytes), mb(stated),
             mb(outcome.process_bytes), mb(peak));
  if (layers < all_layers) fmt::print("layers: {} of config.json's {} are in the checkpoint and were run\n", layers, all_layers);
  fmt::print("{}", unknown_keys_line(config));
  if (!errors.empty())
    fmt::print("against the reference backend, ||out - expected|| / ||expected||, tolerance {}: {}\n", o.tolerance,
               passed ? "ok" : "FAILED");
  return passed ? kSuccess : kFailed;
}

// As `strata plan`: the model knows no position beyond.
void check_positions(int64_t tokens, int64_t positions, const std::string& whose) {
  if (tokens <= positions) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("{} must be at most max_position_embeddings {}, are {}", whose, positions, tokens));
}

// Loads the weights and runs the requests, with a bar of its own.
Outcome run_on(const std::string& label, const Options& o, const Checkpoint& checkpoint, const RankDevice& rank,
               std::vector<Request>& requests, bool keep_outputs) {
  double tokens = 0;
  for (const Request& r : requests) tokens += static_cast<double>(r.num_tokens);
  Progress progress(label, tokens, o.common.json || rank.rank != 0);
  progress.update(0, "loading weights");
  return RequestRunner(o, checkpoint, rank, requests, keep_outputs).run(progress);
}

RandomRequests random_requests_of(const Options& o, int64_t positions) {
  RandomRequests random = o.random;
  random.prompt_tokens = o.prompt_tokens.value_or(std::clamp<int64_t>(positions - random.decode_tokens, 1, kPromptTokens));
  check_positions(random.prompt_tokens + random.decode_tokens, positions, "--prompt-tokens and --decode-tokens together");
  return random;
}

std::vector<Request> requests_of(const Options& o, const std::vector<int64_t>& layers, int64_t hidden, int64_t positions) {
  if (o.input.empty()) return random_requests(random_requests_of(o, positions), hidden);
  std::vector<Request> requests = saying("--input: ", "cases: ", [&] { return read_requests(o.input, layers, hidden); });
  for (const Request& r : requests) check_positions(r.num_tokens, positions, fmt::format("--input: tokens of seq{}", r.id));
  return requests;
}

int run(const Options& o) {
  const size_t process_bytes = runner::peak_resident_bytes();
  const Checkpoint checkpoint(o.model, o.config);
  check_accept_keys(checkpoint.config(), o.config);
  const std::vector<int64_t> layers = checkpoint.attention_layers();
  if (layers.empty()) throw Error(ErrorCode::invalid_file, fmt::format("{}: no attention layer in it", o.model));
  const int64_t hidden = checkpoint.config().hidden_size, positions = checkpoint.config().max_position_embeddings;
  if (o.input.empty()) static_cast<void>(random_requests_of(o, positions));
  static_cast<void>(layer_options(o.layer, checkpoint.config()));
  const Ranks ranks(o.ranks);
  const bool reports = ranks.first() == 0;
  std::optional<OutputFile> output;
  if (!o.output.empty() && reports) output.emplace("--out", o.output, std::vector<InputPath>{{"--model", o.model}, {"--input", o.input}});
  std::vector<Request> requests = requests_of(o, layers, hidden, positions);
  const bool keep = o.check_reference || !o.output.empty();
  Outcome outcome;
  ranks.run(o.common, [&](const RankDevice& rank) {
    if (rank.rank == ranks.first()) {
      outcome = run_on("run", o, checkpoint, rank, requests, keep && reports);
    } else {  // all ranks read the same hidden states, and have the same outputs
      std::vector<Request> own = requests_of(o, layers, hidden, positions);
      static_cast<void>(run_on("run", o, checkpoint, rank, own, false));
    }
  });
  if (!reports) return kSuccess;
  outcome.process_bytes = process_bytes;
  const size_t peak = runner::peak_resident_bytes();
  if (output) write_outputs(output->path(), requests, layers, hidden);
  std::map<std::string, double> errors;
  if (o.check_reference) {
    Config config = make_config(o.common);
    config.force = {{"*", "reference"}};
    std::vector<Request> expected = requests;
    run_on("reference", o, checkpoint, {.device = open_device(parse_device_id("cpu"), config), .communicator = nullptr}, expected, true);
    errors = compare_outputs(requests, expected, outcome.layer_kinds);
  }
  return report(o, checkpoint.config(), outcome, errors, peak);
}

}  // namespace

void add_run(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("run", "Chunked prefill and decode of several requests through every attention layer of a checkpoint");
  sub->footer(
      "--json: a time that was not taken is null. Within a graph of all layers no layer has one; decode_graph has those of the steps.\n"
      "Exit codes: 0 success; 1 --check-reference found a difference; 2 bad input. Ctrl-C or SIGTERM ends the command, for a shell\n"
      "with 130 or 143, and leaves the file of --out as it was.\n"
      "--tp: hidden states are the same on every rank. Figures are of rank 0.\n"
      "Example: strata run --model model --requests 8 --prompt-tokens 1000 --decode-tokens 32 --out cases.safetensors");
  sub->add_option("--model", o->model, "checkpoint directory")->required()->check(not_empty());
  auto* requests = sub->add_option("--requests", o->random.requests, "number of random requests");
  requests->transform(count_in(1, 4096))->capture_default_str();
  auto* prompt_tokens = sub->add_option("--prompt-tokens", o->prompt_tokens, "longest prompt");
  prompt_tokens->transform(count_in(1, 1 << 20))->default_str(std::to_string(kPromptTokens));
  auto* decode_tokens = sub->add_option("--decode-tokens", o->random.decode_tokens, "tokens decoded one at a time");
  decode_tokens->transform(count_in(0, 1 << 20))->capture_default_str();
  sub->add_option("--max-batched-tokens", o->max_batched_tokens, "tokens of a step; longer prompts are prefilled in chunks")
      ->transform(count_in(1, 1 << 20))
      ->capture_default_str();
  auto* input = sub->add_option("--input", o->input, "hidden states from this file (seqS.x or layerL.seqS.x) instead of random ones");
  input->check(not_empty());
  sub->add_option("--out", o->output, "write inputs and outputs as cases that `strata replay` reads")->check(not_empty());
  auto* seed = add_seed(*sub, o->random.seed, "of the random hidden states");
  for (CLI::Option* random : {requests, prompt_tokens, decode_tokens, seed}) random->excludes(input);
  auto* check_reference = sub->add_flag("--check-reference", o->check_reference, "run the same on the reference backend and compare");
  sub->add_option("--tolerance", o->tolerance, "of --check-reference")->check(real_in(0, 1))->capture_default_str()->needs(check_reference);
  sub->add_flag("--graph,!--no-graph", o->graph, "decode steps as captured graphs, on devices that have them (the default)");
  sub->add_flag("--overlap,!--no-overlap", o->overlap,
                "independent work of a layer on auxiliary streams, on devices that have them (the default)");
  add_rank_flags(*sub, o->ranks);
  add_accept_keys(*sub, o->config);
  add_layer_flags(*sub, o->layer);
  add_common(*sub, o->common);
  sub->callback([o, &code] { code = saying("--tp", "tp_size", [&] { return run(*o); }); });
}

}  // namespace strata::cli
