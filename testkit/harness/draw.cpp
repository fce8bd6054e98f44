#include "testkit/harness/draw.h"

#include <algorithm>
#include <bit>

namespace strata::testkit {

Draw::Draw(uint64_t seed, int64_t number) : rng_(Rng(seed).next() ^ static_cast<uint64_t>(number)), number_(number), usual_(chance(0.6)) {}

std::string Draw::name(const std::string& shape) const { return "random" + std::to_string(number_) + "-" + shape; }

int64_t Draw::size(int64_t low, int64_t high) {
  const auto bits = [](int64_t n) { return static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(n))); };
  const int64_t magnitude = in(bits(low), bits(high));
  const int64_t least = magnitude == 0 ? 0 : int64_t{1} << (magnitude - 1), most = magnitude == 0 ? 0 : 2 * least - 1;
  const int64_t begin = std::clamp(least, low, high);
  int64_t n = in(begin, std::max(begin, std::clamp(most, low, high)));
  if (chance(0.5)) {
    const int64_t unit = chance(0.8) ? int64_t{1} << in(1, 9) : of({48, 53, 112});
    if (n >= unit / 2) n = (n + unit / 2) / unit * unit + of({-1, 0, 0, 1});
  }
  return std::clamp(n, low, high);
}

Padding Draw::padding() {
  if (chance(0.6)) return {};
  const auto gap = [&] { return usual_ ? 16 * in(0, 8) : chance(0.5) ? of<int64_t>({0, 8, 16, 64, 512}) : size(0, 40); };
  return {.inner = gap(), .outer = gap()};
}

double Draw::work() { return chance(0.05) ? 6e8 : chance(0.3) ? 1.5e8 : 3e7; }

std::vector<RequestShape> Draw::requests(const Step& step) {
  enum class Lengths : uint8_t { equal, equal_but_one, nearly_equal, uneven };
  const auto lengths = of({Lengths::equal, Lengths::equal_but_one, Lengths::nearly_equal, Lengths::uneven, Lengths::uneven});
  const int64_t new_tokens = chance(0.5) ? 1 : chance(0.5) ? in(2, 8) : size(1, step.tokens);
  const bool same_queries = chance(0.6);
  const int64_t most = std::max<int64_t>(step.tokens / new_tokens, 1), count = chance(0.1) ? 1 : tokens(most);
  const auto visible = static_cast<int64_t>(step.visible / static_cast<double>(new_tokens));  // by one token of each request together
  const int64_t all = std::clamp<int64_t>(visible, 1, step.positions), longest = std::max<int64_t>(all / std::max<int64_t>(count, 1), 1);
  const int64_t typical = chance(0.4) ? size(0, longest) : size(longest / 8, longest), odd_one = in(0, count);
  std::vector<RequestShape> requests;
  for (int64_t r = 0; r < count; ++r) {
    int64_t length = typical;
    if (lengths == Lengths::uneven) length = size(0, longest);
    if (lengths == Lengths::nearly_equal) length = std::min(longest, typical + in(0, typical / 8));
    if (lengths == Lengths::equal_but_one && r == odd_one) length = size(0, all);
    const int64_t queries = same_queries ? new_tokens : in(0, new_tokens);
    requests.push_back({length, std::min(length, queries)});
  }
  return requests;
}

}  // namespace strata::testkit
