#include "layers/forward.h"

#include <fmt/format.h>

#include <algorithm>

namespace strata {
namespace {

constexpr int64_t kMostIds = 8;  // ids per message; a step may have hundreds of requests

std::string requests_of(const Batch& batch) {
  std::string text;
  int64_t known = 0;
  for (const int64_t id : batch.request_ids_host) {
    if (id == -1 || ++known > kMostIds) continue;
    text += fmt::format("{}{}", known == 1 ? ", requests " : ", ", id);
  }
  if (known > kMostIds) text += fmt::format(" and {} more", known - kMostIds);
  return text;
}

}  // namespace

std::string message_of_layer(const AttentionLayer& layer, const Batch* batch, const char* message) {
  return fmt::format("layer {} ({}){}: {}", layer.layer_index(), layer.kind(), batch == nullptr ? "" : requests_of(*batch), message);
}

}  // namespace strata
