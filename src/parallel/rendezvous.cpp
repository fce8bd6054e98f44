#include "parallel/rendezvous.h"

#include <algorithm>

#include "core/check.h"
#include "parallel/board.h"

namespace strata {
namespace {

constexpr std::string_view kFile = "file:", kTcp = "tcp:";

bool begins(const std::string& text, std::string_view with) { return text.compare(0, with.size(), with) == 0; }

}  // namespace

namespace parallel {

int Deadline::milliseconds(int most) const {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(at_ - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, most));
}

void check_rank_options(const RankOptions& o) {
  check_ranks(o.size, o.timeout_seconds);
  require(o.rank >= 0 && o.rank < o.size, "rank must be in [0, {}), is {}", o.size, o.rank);
  const std::string& r = o.rendezvous;
  if (o.size == 1) return;  // nobody to meet
  require((begins(r, kFile) && r.size() > kFile.size()) || (begins(r, kTcp) && r.size() > kTcp.size()),
          "rendezvous must be file:PATH or tcp:HOST:PORT, is '{}'", r);
}

}  // namespace parallel

std::vector<uint8_t> share_bytes(const RankOptions& options, const std::vector<uint8_t>& bytes) {
  using namespace parallel;
  check_rank_options(options);
  require(options.rank != 0 || bytes.size() <= kMostSharedBytes, "share_bytes: bytes must be at most {}, are {}", kMostSharedBytes,
          bytes.size());
  if (options.size == 1) return bytes;
  const std::string& r = options.rendezvous;
  return begins(r, kFile) ? share_by_file(r.substr(kFile.size()), options, bytes) : share_by_tcp(r.substr(kTcp.size()), options, bytes);
}

}  // namespace strata
