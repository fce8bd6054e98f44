#include "run_figures.h"

namespace strata::cli {
namespace {

std::optional<LayerTime> time_of(double seconds, int64_t layers, int64_t tokens) {
  if (seconds <= 0) return std::nullopt;
  const double each = seconds / static_cast<double>(layers);
  return LayerTime{each, static_cast<double>(tokens) / each};
}

}  // namespace

std::optional<LayerTime> prefill_time(const RunFigures& figures, const KindFigures& kind) {
  return time_of(kind.prefill_seconds, kind.layers, figures.prefill_tokens);
}

std::optional<LayerTime> decode_time(const RunFigures& figures, const KindFigures& kind) {
  return time_of(kind.decode_seconds, kind.layers, figures.layer_decode_tokens);
}

std::optional<LayerTime> prefill_communication(const RunFigures& figures, const KindFigures& kind) {
  return time_of(kind.prefill_communication, kind.layers, figures.prefill_tokens);
}

std::optional<LayerTime> decode_communication(const RunFigures& figures, const KindFigures& kind) {
  return time_of(kind.decode_communication, kind.layers, figures.layer_decode_tokens);
}

Json kind_json(const RunFigures& figures, const std::string& name, const KindFigures& kind) {
  const auto seconds = [](const std::optional<LayerTime>& time) { return time ? Json(time->seconds) : Json(); };
  const auto rate = [](const std::optional<LayerTime>& time) { return time ? Json(time->tokens_per_second) : Json(); };
  const std::optional<LayerTime> prefill = prefill_time(figures, kind), decode = decode_time(figures, kind);
  return {{"kind", name},
          {"layers", kind.layers},
          {"weight_bytes", kind.weight_bytes},
          {"prefill_seconds_per_layer", seconds(prefill)},
          {"decode_seconds_per_layer", seconds(decode)},
          {"prefill_tokens_per_second", rate(prefill)},
          {"decode_tokens_per_second", rate(decode)},
          {"prefill_communication_seconds_per_layer", seconds(prefill_communication(figures, kind))},
          {"decode_communication_seconds_per_layer", seconds(decode_communication(figures, kind))}};
}

Json graph_json(const RunFigures& figures) {
  return {{"steps", figures.graph_steps},
          {"tokens", figures.graph_tokens},
          {"seconds", figures.graph_seconds},
          {"seconds_per_step", figures.graph_seconds / static_cast<double>(figures.graph_steps)},
          {"tokens_per_second", static_cast<double>(figures.graph_tokens) / figures.graph_seconds}};
}

}  // namespace strata::cli
