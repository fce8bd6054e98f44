#include "run_requests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "strata/bf16.h"
#include "strata/checkpoint.h"
#include "strata/error.h"

namespace strata::cli {
namespace {

std::vector<uint16_t> values_of(const StoredTensor& t, int64_t hidden) {
  if (t.dtype != DType::bf16 || t.shape.size() != 2 || t.shape[1] != hidden) {
    throw Error(ErrorCode::invalid_file, fmt::format("input: {} must be bf16 [tokens, {}], is {} [{}]", t.name, hidden, to_string(t.dtype),
                                                     fmt::join(t.shape, ", ")));
  }
  std::vector<uint16_t> values(static_cast<size_t>(t.numel()));
  std::memcpy(values.data(), t.data, t.bytes);
  return values;
}

}  // namespace

std::vector<Request> read_requests(const std::string& path, const std::vector<int64_t>& layers, int64_t hidden) {
  const SafetensorsFile file(path);
  std::vector<Request> requests;
  for (int64_t s = 0;; ++s) {
    Request r;
    r.id = s;
    const StoredTensor* prefill = file.find(fmt::format("layer{}.seq{}.num_prefill", layers.front(), s));
    if (const StoredTensor* x = file.find(fmt::format("seq{}.x", s))) {
      r.x.push_back(values_of(*x, hidden));
      prefill = file.find(fmt::format("seq{}.num_prefill", s));
    } else {
      for (int64_t layer : layers) {
        const StoredTensor* of_layer = file.find(fmt::format("layer{}.seq{}.x", layer, s));
        if (of_layer == nullptr) break;
        r.x.push_back(values_of(*of_layer, hidden));
      }
      if (r.x.size() != layers.size() && !r.x.empty()) {
        throw Error(ErrorCode::invalid_file,
                    fmt::format("input: seq{}.x must be there for {} layers, is for {}", s, layers.size(), r.x.size()));
      }
    }
    if (r.x.empty()) break;
    r.num_tokens = std::ssize(r.x.front()) / hidden;
    for (size_t l = 0; l < r.x.size(); ++l) {
      const int64_t tokens = std::ssize(r.x[l]) / hidden;
      if (tokens != r.num_tokens || tokens == 0) {
        throw Error(ErrorCode::invalid_file,
                    fmt::format("input: seq{}.x must have the same tokens, at least 1, for every layer, has {} for "
                                "layer {} and {} for layer {}",
                                s, r.num_tokens, layers.front(), tokens, layers[l]));
      }
    }
    r.num_prefill = r.num_tokens;
    if (prefill != nullptr && prefill->dtype == DType::i32 && prefill->bytes == 4) {
      int32_t n;
      std::memcpy(&n, prefill->data, sizeof n);
      if (n < 0 || n > r.num_tokens) {
        throw Error(ErrorCode::invalid_file, fmt::format("input: {} must be in [0, {}], is {}", prefill->name, r.num_tokens, n));
      }
      r.num_prefill = n;
    }
    requests.push_back(std::move(r));
  }
  if (requests.empty()) throw Error(ErrorCode::invalid_file, fmt::format("input: {} must have seq0.x or layerL.seq0.x, has neither", path));
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
