// The requests of `strata run`: hidden states in, hidden states out, from and to files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "strata/checkpoint.h"

namespace strata::cli {

// Hidden states of one request, the same for every layer unless the input file has them by layer.
struct Request {
  int64_t id = 0;
  int64_t num_tokens = 0;
  int64_t num_prefill = 0;
  std::vector<std::vector<uint16_t>> x;  // [1 or layers][tokens * hidden]
  std::vector<std::vector<uint16_t>> out;
  const std::vector<uint16_t>& hidden(size_t layer) const { return x[x.size() == 1 ? 0 : layer]; }
};

// A file of recorded cases or hidden states. Throws invalid_file, naming the option, for what is no safetensors file.
SafetensorsFile open_cases(const std::string& option, const std::string& path);

struct RandomRequests {
  int64_t requests = 4, prompt_tokens = 0, decode_tokens = 16;
  uint64_t seed = 1;
};
std::vector<Request> random_requests(const RandomRequests& o, int64_t hidden);

// Of every S in the file: seqS.x and seqS.num_prefill, or layerL.seqS.x and layerL.seqS.num_prefill for every layer (the format of recorded
// cases). Without num_prefill all tokens are prefill. Throws invalid_file.
std::vector<Request> read_requests(const std::string& path, const std::vector<int64_t>& layers, int64_t hidden);
// Inputs and outputs as cases that `strata replay` reads.
void write_outputs(const std::string& path, const std::vector<Request>& requests, const std::vector<int64_t>& layers, int64_t hidden);

// Largest relative error of a request's outputs, by layer kind.
std::map<std::string, double> compare_outputs(const std::vector<Request>& a, const std::vector<Request>& b,
                                              const std::vector<std::string>& kinds);

}  // namespace strata::cli
