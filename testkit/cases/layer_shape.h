// Which layer and which step `strata bench --op layer` times.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "strata/kv_format.h"

namespace strata::testkit {

struct LayerShape {
  std::string preset;
  int32_t ratio = 0;  // V4: as in config.json, 0, 4 or 128
  int64_t requests = 1;
  int64_t new_tokens = 1;       // of each request
  int64_t decode_requests = 0;  // further requests of one new token, together with requests of several
  int64_t draft = 0;            // drafted tokens after each single new token
  int64_t context = 0;          // positions before them, of every request
  bool ragged = false;          // of each request others instead: from an eighth of that to nearly twice as many
  int64_t bound = 0;            // what the step says of its longest request, as a captured one does; 0: what it is
  bool fp8_output = false;
  std::optional<KvFormat> kv_format{};  // absent: the family's own
  int32_t tp_size = 1;                  // of which the layer is the first rank, without the others

  bool operator==(const LayerShape&) const = default;
};

// V4 presets have a kind, others none.
inline constexpr const char* kLayerNames =
    "PRESET[-window|-c4|-c128]{-decode-bREQUESTS[-draftTOKENS] | -prefill-TOKENS[-bREQUESTS][-besideDECODES[-draftTOKENS]]}"
    "[-contextPOSITIONS[-ragged]][-boundPOSITIONS][-fp8-output][-KV_FORMAT][-tpSIZE]";
std::string name_of(const LayerShape& shape);
// Positions before the new tokens of the request that is number i, and of the longest one with them.
int64_t context_of(const LayerShape& shape, int64_t i);
int64_t longest_of(const LayerShape& shape);
// Of a name; absent: it is not one.
std::optional<LayerShape> layer_shape(const std::string& name);
// Whether whoever wrote it meant a layer: a preset's name with something after it, or a step of a layer in it; no *.
bool is_like_layer(const std::string& name);
// Throws invalid_argument for a name that resembles a layer's but is none, and says what in it is wrong.
[[noreturn]] void refuse_layer_name(const std::string& name);

}  // namespace strata::testkit
