#include "runner/recorded_sequences.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include "core/check.h"

namespace strata::runner {
namespace {

// -1: another name. A number has one spelling, so that no two tensors are one sequence's.
int64_t number_between(std::string_view name, std::string_view prefix, std::string_view suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix) || name.size() <= prefix.size() + suffix.size()) return -1;
  const std::string_view digits = name.substr(prefix.size(), name.size() - prefix.size() - suffix.size());
  int64_t number = -1;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return error == std::errc() && std::to_string(number) == digits ? number : -1;
}

}  // namespace

std::vector<int64_t> sequence_numbers(const SafetensorsFile& file, std::string_view prefix) {
  std::vector<int64_t> numbers;
  for (const StoredTensor& t : file.tensors()) {
    if (const int64_t number = number_between(t.name, prefix, ".x"); number >= 0) numbers.push_back(number);
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

const StoredTensor* find_recorded(const SafetensorsFile& file, const std::string& name, std::initializer_list<DType> dtypes,
                                  const std::vector<int64_t>& shape) {
  const StoredTensor* t = file.find(name);
  if (t == nullptr) return nullptr;
  bool ok = std::find(dtypes.begin(), dtypes.end(), t->dtype) != dtypes.end() && t->shape.size() == shape.size();
  for (size_t i = 0; ok && i < shape.size(); ++i) ok = shape[i] == kAny || shape[i] == t->shape[i];
  if (!ok) {
    std::vector<std::string_view> expected;
    for (const DType dtype : dtypes) expected.push_back(to_string(dtype));
    fail(ErrorCode::invalid_file, "cases: {} must be {} [{}] (-1: any), is {} [{}]", name, fmt::join(expected, " or "),
         fmt::join(shape, ", "), to_string(t->dtype), fmt::join(t->shape, ", "));
  }
  return t;
}

const StoredTensor* find_input(const SafetensorsFile& file, const std::string& name, int64_t hidden) {
  const StoredTensor* x = find_recorded(file, name, {DType::bf16}, {kAny, hidden});
  if (x != nullptr && x->shape[0] == 0) fail(ErrorCode::invalid_file, "cases: {} must have at least 1 token, has none", name);
  return x;
}

int64_t recorded_prefill(const SafetensorsFile& file, const std::string& prefix, int64_t num_tokens) {
  const StoredTensor* n = find_recorded(file, prefix + "num_prefill", {DType::i32}, {1});
  if (n == nullptr) return num_tokens;
  int32_t value;
  std::memcpy(&value, n->data, sizeof value);
  if (value < 0 || value > num_tokens) {
    fail(ErrorCode::invalid_file, "cases: {}num_prefill must be in [0, {}], is {}", prefix, num_tokens, value);
  }
  return value;
}

}  // namespace strata::runner
