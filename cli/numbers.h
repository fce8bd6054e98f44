// Numbers with suffixes on the command line: 128k positions, 80GB of memory.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace strata::cli {

// A count of tokens, positions, requests: digits, or a decimal fraction with a suffix. k, M and G are 2^10, 2^20 and 2^30, in either case,
// as models name their contexts: 128k is 131072, 1M is 1048576. None for anything else: an empty text, a sign, a fraction of one, a number
// of 2^63 or more.
std::optional<int64_t> parse_count(std::string_view text);
// Bytes: k, M, G and T, with or without B, are powers of 1000; Ki, Mi, Gi and Ti, with or without B, of 1024; in either case. 80GB is
// 80000000000, 1.5GiB is 1610612736.
std::optional<int64_t> parse_bytes(std::string_view text);

// The name of a layer (testkit/cases/layer_shape.h) with its counts in digits: v3-decode-b1-context128k is v3-decode-b1-context131072.
// Other names come as they are.
std::string plain_layer_name(const std::string& name);

// For CLI::Option::transform: the option takes such a number in [low, high].
CLI::Validator count_in(int64_t low, int64_t high);
CLI::Validator bytes_in(int64_t low, int64_t high);

}  // namespace strata::cli
