// Draws the shapes of random cases. Every magnitude occurs. Multiples of what kernels divide by (tiles, splits, pages), and numbers next to
// them, occur often. A seed gives the same shapes on every platform, because only integers decide.
#pragma once

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <string>
#include <vector>

#include "testkit/harness/inputs.h"
#include "testkit/harness/paging.h"

namespace strata::testkit {

class Draw {
 public:
  // Of case `number` of `seed`.
  Draw(uint64_t seed, int64_t number);

  // "random17-<shape>": with the seed the number alone makes the case again.
  std::string name(const std::string& shape) const;

  bool chance(double probability) { return rng_.chance(probability); }
  // In [low, high], all of them as often.
  int64_t in(int64_t low, int64_t high) { return rng_.in(low, high + 1); }
  template <class T>
  T of(std::initializer_list<T> choices) {
    return choices.begin()[in(0, static_cast<int64_t>(choices.size()) - 1)];
  }
  // In [low, high], each magnitude as often. Half of the time a multiple of a power of two, of 48, 53 or 112, or a number next to one.
  int64_t size(int64_t low, int64_t high);
  // Of tokens: hardly ever none, and often as many as there may be.
  int64_t tokens(int64_t most) { return chance(0.02) ? 0 : chance(0.5) ? size(1, most) : std::max(size(1, most), size(1, most)); }

  // Most cases have the formats, pages and strides that models and engines have, as the fastest kernels need them; others anything.
  bool usual() const { return usual_; }

  int64_t heads() { return chance(0.6) ? of<int64_t>({1, 8, 16, 32, 64, 128}) : size(1, 128); }
  int32_t page_size() { return usual_ ? of({64, 64, 128, 256, 576}) : any_page_size(); }
  // Bytes between pages.
  int64_t page_gap() { return chance(0.5) ? 0 : usual_ ? 64 * in(1, 9) : chance(0.5) ? of<int64_t>({16, 48, 64, 192, 576}) : size(1, 600); }
  // Mostly none; else such that rows are aligned to 16 elements or, unless usual, to anything.
  Padding padding();
  // Multiply-adds that a case may have: most are small, so that many fit into a second, some are large. The reference does 0.5 to 2 in
  // a nanosecond.
  double work();

  struct Step {
    int64_t tokens = 400;       // upper bound
    int64_t positions = 20000;  // of all requests together, approximate upper bound
    double visible = 1e6;       // (token, position) pairs, approximate upper bound
  };
  // The requests of a step as engines make them and as they do not: decode, drafts, prompts, chunks; equal, nearly equal, uneven, empty.
  std::vector<RequestShape> requests(const Step& step);

 private:
  int32_t any_page_size() { return chance(0.7) ? of({1, 2, 53, 61, 64, 69, 128, 256, 576}) : static_cast<int32_t>(size(1, 600)); }

  Rng rng_;
  int64_t number_;
  bool usual_;
};

}  // namespace strata::testkit
