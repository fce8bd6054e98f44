// strata replay: recorded cases against this library, relative error per sequence.
#include "runner/replay.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "common.h"
#include "layer_options.h"
#include "numbers.h"
#include "run_requests.h"
#include "strata/error.h"
#include "words.h"

namespace strata::cli {
namespace {

struct Options {
  CommonOptions common;
  LayerFlags layer;
  ConfigOptions config;
  std::string model, cases, batch = "all", topk = "own";
  int64_t chunk = 0, only_layer = -1;
  double tolerance = 5e-2;
  bool exact_index = false, shuffle_pages = false;
};

std::string number(double value) { return value < 0 ? "" : fmt::format("{:.5f}", value); }

void check_layer_number(const Options& o, const std::vector<int64_t>& layers) {
  if (o.only_layer < 0 || std::find(layers.begin(), layers.end(), o.only_layer) != layers.end()) return;
  throw Error(ErrorCode::invalid_argument, fmt::format("--layer must be an attention layer of {}, which has {} ({}), is {}", o.model,
                                                       counted(std::ssize(layers), "layer"), fmt::join(layers, ", "), o.only_layer));
}

int run(const Options& o) {
  if (o.batch != "all" && o.batch != "one")
    throw Error(ErrorCode::invalid_argument, fmt::format("--batch must be all or one, is '{}'", o.batch));
  if (o.topk != "own" && o.topk != "recorded") {
    throw Error(ErrorCode::invalid_argument, fmt::format("--topk must be own or recorded, is '{}'", o.topk));
  }
  const Checkpoint checkpoint(o.model, o.config);
  check_accept_keys(checkpoint.config(), o.config);
  check_layer_number(o, checkpoint.attention_layers());
  const SafetensorsFile file = open_cases("--cases", o.cases);
  const auto device = open_device(o.common);
  runner::ReplayOptions options;
  options.layer = layer_options(o.layer, checkpoint.config());
  options.together = o.batch == "all";
  options.chunk = o.chunk;
  options.topk = o.topk == "own" ? runner::TopkSource::own : runner::TopkSource::recorded;
  options.exact_index = o.exact_index || options.layer.indexer_format == IndexerFormat::none;
  options.shuffle_pages = o.shuffle_pages;
  options.only_layer = o.only_layer;
  Progress progress("replay", 1.0, o.common.json);
  progress.update(0, "loading weights");
  const auto results = saying("--cases: ", "cases: ", [&] {
    return runner::replay(checkpoint, file, device, default_ops(), default_layers(), options,
                          [&](double share) { progress.update(share); });
  });
  if (results.empty()) throw Error(ErrorCode::invalid_file, fmt::format("{}: no case layerL.seqS.x for a layer of {}", o.cases, o.model));
  bool passed = true, chose_otherwise = false;
  Table table({"layer", "kind", "seq", "tokens", "expected", "out", "q", "attn_out", "topk equal", "result"});
  Json json = {{"model", o.model}, {"cases", o.cases}, {"device", device->description()}, {"tolerance", o.tolerance}};
  for (const auto& r : results) {
    if (r.out_error < 0) {  // nothing recorded is nothing that could differ
      throw Error(ErrorCode::invalid_file,
                  fmt::format("{}: layer{}.seq{}.{} must be there to compare with, is missing", o.cases, r.layer, r.sequence, r.expected));
    }
    const bool ok = r.out_error <= o.tolerance;  // false for NaN
    passed = passed && ok;
    chose_otherwise = chose_otherwise || (!ok && r.chooses && o.topk == "own");
    table.add({std::to_string(r.layer), r.kind, std::to_string(r.sequence), std::to_string(r.num_tokens), r.expected, number(r.out_error),
               number(r.q_error), number(r.attn_out_error), number(r.topk_agreement), ok ? "ok" : "beyond tolerance"});
    Json entry = {{"layer", r.layer},           {"kind", r.kind},         {"sequence", r.sequence},
                  {"num_tokens", r.num_tokens}, {"expected", r.expected}, {"out_error", r.out_error}};
    if (r.q_error >= 0) entry["q_error"] = r.q_error;
    if (r.attn_out_error >= 0) entry["attn_out_error"] = r.attn_out_error;
    if (r.topk_agreement >= 0) entry["topk_agreement"] = r.topk_agreement;
    entry["passed"] = ok;
    json["results"].push_back(entry);
  }
  json["passed"] = passed;
  if (o.common.json) {
    print_json(json);
  } else {
    table.print();
    if (chose_otherwise) {
      fmt::print(
          "A layer with an indexer is compared with the keys that the recording chose: replay with the indexer's format and rotation of "
          "the\n"
          "recording (DeepSeek's V4: --indexer mxfp4 --hadamard, or --indexer none for exact_index.*; V3.2: --hadamard), or with --topk "
          "recorded.\n");
    }
  }
  return passed ? kSuccess : kFailed;
}

}  // namespace

void add_replay(CLI::App& app, int& code) {
  auto o = std::make_shared<Options>();
  CLI::App* sub = app.add_subcommand("replay", "Replay recorded cases and print the relative error of every sequence");
  sub->footer(
      "Exit codes: 0 all within tolerance; 1 a sequence beyond it; 2 bad input. Ctrl-C or SIGTERM ends the command, for a shell with 130 "
      "or 143.\n"
      "Example: strata replay --model tests/golden/v4_fp8 --cases tests/golden/v4_fp8/cases.safetensors --indexer none --chunk 64");
  sub->add_option("--model", o->model, "checkpoint directory")->required()->check(not_empty());
  sub->add_option("--cases", o->cases, "recorded cases (safetensors)")->required()->check(not_empty());
  sub->add_option("--batch", o->batch, "all: every sequence in one ragged batch; one: one after the other")->capture_default_str();
  sub->add_option("--chunk", o->chunk, "prefill tokens of a request per step; 0: as recorded")
      ->transform(count_in(0, 1 << 20))
      ->capture_default_str();
  sub->add_option("--topk", o->topk, "own: the indexer's choice; recorded: the recorded one")->capture_default_str();
  sub->add_flag("--exact-index", o->exact_index, "compare with the recordings of the unquantised indexer (implied by --indexer none)");
  sub->add_option("--layer", o->only_layer, "only this layer")->transform(count_in(0, 1 << 20));
  sub->add_option("--tolerance", o->tolerance, "largest accepted ||out - expected|| / ||expected||")
      ->check(real_in(0, 1))
      ->capture_default_str();
  sub->add_flag("--shuffle-pages", o->shuffle_pages, "hand out cache pages out of order");
  add_accept_keys(*sub, o->config);
  add_layer_flags(*sub, o->layer);
  add_common(*sub, o->common);
  sub->callback([o, &code] { code = run(*o); });
}

}  // namespace strata::cli
