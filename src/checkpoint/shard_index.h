// model.safetensors.index.json: which shard has which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace strata {

// Tensor name -> name of a file beside the index. Throws invalid_file; `origin` begins the message.
std::map<std::string, std::string> parse_shard_index(std::string_view text, const std::string& origin);

}  // namespace strata
