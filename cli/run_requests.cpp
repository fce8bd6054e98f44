#include "run_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <set>

#include "runner/recorded_sequences.h"
#include "strata/bf16.h"
#include "strata/error.h"

namespace strata::cli {
namespace {

std::set<int64_t> numbers(const SafetensorsFile& file, const std::string& prefix) {
  const std::vector<int64_t> list = runner::sequence_numbers(file, prefix);
  return {list.begin(), list.end()};
}

std::vector<uint16_t> values_of(const StoredTensor& t) {
  std::vector<uint16_t> values(static_cast<size_t>(t.numel()));
  std::memcpy(values.data(), t.data, t.bytes);
  return values;
}

// Of sequence `id` of every layer, in the format of recorded cases.
Request request_of_layers(const SafetensorsFile& file, int64_t id, const std::vector<int64_t>& layers, int64_t hidden) {
  Request r;
  r.id = id;
  for (const int64_t layer : layers) {
    const std::string prefix = fmt::format("layer{}.seq{}.", layer, id);
    const StoredTensor* x = runner::find_input(file, prefix + "x", hidden);
    if (x == nullptr) {
      throw Error(ErrorCode::invalid_file, fmt::format("--input: {}x must be there, as for other layers, is missing", prefix));
    }
    const auto expect_same = [&](const char* what, int64_t first, int64_t value) {
      if (value == first) return;
      throw Error(ErrorCode::invalid_file,
                  fmt::format("--input: seq{} must have the same {} for every layer, has {} for layer {} and {} for layer {}", id, what,
                              first, layers.front(), value, layer));
    };
    if (r.x.empty()) r.num_tokens = x->shape[0];
    expect_same("tokens", r.num_tokens, x->shape[0]);
    const int64_t prefill = runner::recorded_prefill(file, prefix, r.num_tokens);
    if (r.x.empty()) r.num_prefill = prefill;
    expect_same("num_prefill", r.num_prefill, prefill);
    r.x.push_back(values_of(*x));
  }
  return r;
}

}  // namespace

SafetensorsFile open_cases(const std::string& option, const std::string& path) {
  try {
    return SafetensorsFile(path);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: expected a safetensors file: {}", option, error.what()));
  }
}

std::vector<Request> read_requests(const std::string& path, const std::vector<int64_t>& layers, int64_t hidden) {
  const SafetensorsFile file = open_cases("--input", path);
  std::set<int64_t> of_layers;
  for (const int64_t layer : layers) of_layers.merge(numbers(file, fmt::format("layer{}.seq", layer)));
  const std::set<int64_t> of_all = numbers(file, "seq");
  std::vector<Request> requests;
  for (const int64_t id : of_all) {
    const std::string prefix = fmt::format("seq{}.", id);
    const StoredTensor& x = *runner::find_input(file, prefix + "x", hidden);
    Request& r = requests.emplace_back();
    r.id = id;
    r.num_tokens = x.shape[0];
    r.num_prefill = runner::recorded_prefill(file, prefix, r.num_tokens);
    r.x.push_back(values_of(x));
  }
  for (const int64_t id : of_layers) {
    if (!of_all.contains(id)) requests.push_back(request_of_layers(file, id, layers, hidden));
  }
  if (requests.empty()) {
    throw Error(ErrorCode::invalid_file, fmt::format("--input: {} must have seqS.x, or layerL.seqS.x for every layer, has neither", path));
  }
  std::sort(requests.begin(), requests.end(), [](const Request& a, const Request& b) { return a.id < b.id; });
  return requests;
}

std::vector<Request> random_requests(const RandomRequests& o, int64_t hidden) {
  std::mt19937_64 random(o.seed);
  std::normal_distribution<float> normal;
  std::vector<Request> requests;
  for (int64_t s = 0; s < o.requests; ++s) {
    Request r;
    r.id = s;
    // Ragged on purpose: prompts from half to all of --prompt-tokens.
    r.num_prefill = o.requests == 1 ? o.prompt_tokens : o.prompt_tokens - s * (o.prompt_tokens / 2) / o.requests;
    r.num_tokens = r.num_prefill + o.decode_tokens;
    std::vector<uint16_t>& x = r.x.emplace_back(static_cast<size_t>(r.num_tokens * hidden));
    for (uint16_t& v : x) v = to_bf16(normal(random)).bits;
    requests.push_back(std::move(r));
  }
  return requests;
}

std::map<std::string, double> compare_outputs(const std::vector<Request>& a, const std::vector<Request>& b,
                                              const std::vector<std::string>& kinds) {
  std::map<std::string, double> worst;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t l = 0; l < kinds.size(); ++l) {
      double difference = 0, norm = 0;
      for (size_t e = 0; e < a[i].out[l].size(); ++e) {
        const double x = to_float(Bf16{a[i].out[l][e]}), y = to_float(Bf16{b[i].out[l][e]});
        difference += (x - y) * (x - y);
        norm += y * y;
      }
      const double error = std::sqrt(difference) / std::sqrt(std::max(norm, 1e-300));
      double& entry = worst[kinds[l]];
      entry = std::isnan(error) || error > entry ? error : entry;
    }
  }
  return worst;
}

void write_outputs(const std::string& path, const std::vector<Request>& requests, const std::vector<int64_t>& layers, int64_t hidden) {
  std::vector<StoredTensor> tensors;
  std::vector<int32_t> prefill;
  prefill.reserve(requests.size());  // the tensors point into it
  for (const Request& r : requests) prefill.push_back(static_cast<int32_t>(r.num_prefill));
  for (size_t l = 0; l < layers.size(); ++l) {
    for (size_t i = 0; i < requests.size(); ++i) {
      const Request& r = requests[i];
      const std::string prefix = fmt::format("layer{}.seq{}.", layers[l], r.id);
      const auto add = [&](const char* name, DType dtype, std::vector<int64_t> shape, const void* data, size_t bytes) {
        tensors.push_back({prefix + name, dtype, std::move(shape), static_cast<const std::byte*>(data), bytes});
      };
      add("x", DType::bf16, {r.num_tokens, hidden}, r.hidden(l).data(), r.hidden(l).size() * 2);
      add("out", DType::bf16, {r.num_tokens, hidden}, r.out[l].data(), r.out[l].size() * 2);
      add("num_prefill", DType::i32, {1}, &prefill[i], 4);
    }
  }
  write_safetensors(path, tensors);
}

}  // namespace strata::cli
