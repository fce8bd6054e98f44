// model.safetensors.index.json: which shard has which tensor.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace strata {

// Tensor name -> name of a file in the index's directory.
using ShardIndex = std::map<std::string, std::string, std::less<>>;

// Throws invalid_file; `origin` begins the message.
ShardIndex parse_shard_index(std::string_view text, const std::string& origin);

}  // namespace strata
