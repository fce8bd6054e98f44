// Times of a run: of layers that are timed one by one, and of graphs of all layers, within which no layer has a time of its own.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "common.h"

namespace strata::cli {

struct KindFigures {
  int64_t layers = 0;
  double prefill_seconds = 0, decode_seconds = 0;              // of steps that ran layer by layer
  double prefill_communication = 0, decode_communication = 0;  // seconds of these that were sums over ranks
  size_t weight_bytes = 0;
};

struct RunFigures {
  std::map<std::string, KindFigures> kinds;
  int64_t prefill_tokens = 0, decode_tokens = 0, steps = 0;  // decode_tokens: of all pure decode steps
  int64_t layer_decode_tokens = 0;                           // of those that ran layer by layer, each layer timed
  int64_t graph_steps = 0, graph_tokens = 0;                 // of those that were launches of a graph of all layers
  double graph_seconds = 0;
};

// One layer of a kind.
struct LayerTime {
  double seconds = 0, tokens_per_second = 0;
};

// Absent where no layer was timed. Steps that mix decode with prefill count as prefill.
std::optional<LayerTime> prefill_time(const RunFigures& figures, const KindFigures& kind);
std::optional<LayerTime> decode_time(const RunFigures& figures, const KindFigures& kind);
// Of the same layer and steps. Absent also where there is one rank.
std::optional<LayerTime> prefill_communication(const RunFigures& figures, const KindFigures& kind);
std::optional<LayerTime> decode_communication(const RunFigures& figures, const KindFigures& kind);

// An absent time is null.
Json kind_json(const RunFigures& figures, const std::string& name, const KindFigures& kind);
// Of the launches. figures.graph_steps > 0.
Json graph_json(const RunFigures& figures);

}  // namespace strata::cli
