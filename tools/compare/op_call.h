// Calls of Strata's ops on tensors of safetensors files.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "strata/op_set.h"
#include "testkit/harness/case.h"

namespace strata::compare {

struct OpCall {
  testkit::Work work;                                       // rotates through copies of the file's tensors
  std::vector<std::pair<std::string, TensorView>> outputs;  // of copy 0; "schedule": the schedule that it reads
};

// The call of op `name` whose params are the tensors of `file`. A tensor has the name of its member of the params. A number is a tensor of
// one element. A cache is a tensor "MEMBER.FORMAT", u8 [pages, page stride], and a tensor "MEMBER_shape", i64 {rows per page, values per
// row}. The keys and values of dense_attn_prefill are one tensor "kv", as kv_b_proj writes them.
// Throws Error for an op that has no such call here, for tensors that are missing and for params that the op refuses.
OpCall load_call(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& name, const std::filesystem::path& file);

}  // namespace strata::compare
