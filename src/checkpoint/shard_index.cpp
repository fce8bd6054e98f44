#include "checkpoint/shard_index.h"

#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

// A shard is a file of the index's directory: an index must not make us open anything else.
bool is_plain_file_name(const json& shard) {
  if (!shard.is_string()) return false;
  const std::string& name = shard.get_ref<const std::string&>();
  return !name.empty() && name != "." && name != ".." && name.find_first_of(std::string_view("/\\\0", 3)) == std::string::npos;
}

}  // namespace

ShardIndex parse_shard_index(std::string_view text, const std::string& origin) {
  const json index = parse_json(text, origin);
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (map == index.end() || !map->is_object()) {
    fail(ErrorCode::invalid_file, "{}: weight_map: expected an object, is {}", origin, map == index.end() ? "missing" : brief(*map));
  }
  ShardIndex shards;
  for (const auto& [name, shard] : map->get_ref<const json::object_t&>()) {
    if (!is_plain_file_name(shard)) {
      fail(ErrorCode::invalid_file, "{}: weight_map[{}]: expected the name of a file next to the index, is {}", origin, brief(json(name)),
           brief(shard));
    }
    shards.emplace_hint(shards.end(), name, shard.get<std::string>());
  }
  return shards;
}

}  // namespace strata
