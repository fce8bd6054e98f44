// Which layer and which step `strata bench --op layer` times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/kv_format.h"

namespace strata::cases {

struct LayerShape {
  std::string preset;
  int32_t ratio = 0;  // V4: as in config.json, 0, 4 or 128
  int64_t requests = 1;
  int64_t new_tokens = 1;  // of each request
  int64_t beside = 0;      // further requests, of one new token, beside those of several
  int64_t draft = 0;       // drafted tokens behind each single new one
  int64_t context = 0;     // positions before them, of every request
  bool fp8_output = false;
  std::optional<KvFormat> kv_format{};  // absent: the family's own
  int32_t tp_size = 1;                  // of which the layer is the first rank, without the others

  bool operator==(const LayerShape&) const = default;
};

// PRESET[-window|-c4|-c128]-decode-bREQUESTS[-draftTOKENS] or -prefill-TOKENS[-bREQUESTS][-besideDECODES[-draftTOKENS]], then
// [-contextPOSITIONS][-fp8-output][-FORMAT][-tpSIZE]: V4 presets have a kind, others none.
std::string name_of(const LayerShape& shape);
// Of a name; absent: it is not one.
std::optional<LayerShape> layer_shape(const std::string& name);

}  // namespace strata::cases
