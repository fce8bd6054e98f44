// What the attention ops' cases share: sinks, index rows with holes and stale tails, tolerances of V4 specification 17.
#pragma once

#include <span>
#include <vector>

#include "testkit/harness/compare.h"
#include "testkit/harness/draw.h"
#include "testkit/harness/inputs.h"

namespace strata::testkit {

enum class Sinks : uint8_t { none, finite, plus_infinity, minus_infinity, mixed };
const char* name_of(Sinks sinks);
// f32 [heads], or an absent view.
TensorView make_sinks(Inputs& in, Sinks sinks, int64_t heads);
Sinks random_sinks(Draw& draw);

enum class Lengths : uint8_t {
  none,    // no lengths: every column counts
  random,  // 0..width, both ends often
  full,
  zero,
};

struct IndexRows {
  int64_t rows = 1;             // index rows
  int64_t rows_per_length = 1;  // decode: the query tokens of one batch entry share a length
  int64_t width = 64;
  Lengths lengths = Lengths::random;
  double skipped = 0.1;  // share of entries inside the length that are not attended
};

struct MadeIndices {
  std::vector<int32_t> indices;  // [rows, width]
  std::vector<int32_t> lengths;  // empty with Lengths::none
  double attended = 0;           // entries that count
};

// Of fp8_tensor rows with keys of this size: a power of two, so that bf16 holds their values.
float tensor_scale(double key_size);

Lengths random_lengths(Draw& draw);

// Entries inside a length are one of `valid`, or with the given probability one of `holes`. Entries after the length are any of `valid`, of
// `stale` and numbers that are not rows.
MadeIndices make_indices(Rng& rng, const IndexRows& shape, std::span<const int64_t> valid, std::span<const int64_t> stale,
                         std::span<const int32_t> holes);

// key_size: how large the values of keys are; the specification's tolerances are for 0.1. In an output of few values one outlier decides
// the whole, and the permitted roundings do not average out: of the probability and of the result, each 2^-9 of it at most.
// Of fewer still the terms of all may cancel.
Tolerance attention_out(double abs, double rel, double cos, double key_size, int64_t numel, bool drawn);
// Of the logarithms of sums and of the largest logits, whose size this is about.
Tolerance attention_lse(double size, double rel, bool drawn);

}  // namespace strata::testkit
