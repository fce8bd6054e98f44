#include "testkit/harness/fill_caches.h"

#include <algorithm>
#include <vector>

#include "formats/kv_rows.h"

namespace strata::testkit {
namespace {

constexpr int64_t kDistinctValues = int64_t{1} << 22;

void fill(const PagedCache& cache, Device& device, Rng& rng) {
  const int64_t wanted = std::max<int64_t>(kDistinctValues / (int64_t{cache.row_dim} * cache.page_size), 1);
  const int64_t distinct = std::min<int64_t>(cache.num_pages, wanted);
  std::vector<std::byte> image(static_cast<size_t>(distinct * cache.page_stride));
  PagedCache host = cache;
  host.device = {};
  host.data = image.data();
  host.num_pages = distinct;
  std::vector<float> row(static_cast<size_t>(cache.row_dim));
  for (int64_t slot = 0; slot < host.num_slots(); ++slot) {
    rng.normal(row.data(), cache.row_dim, 1.0f);
    store_row(host, slot, row.data());
  }
  for (int64_t page = 0; page < cache.num_pages; page += distinct) {
    const int64_t pages = std::min<int64_t>(distinct, cache.num_pages - page);
    device.copy_from_host(static_cast<std::byte*>(cache.data) + page * cache.page_stride, image.data(),
                          static_cast<size_t>(pages * cache.page_stride), {});
  }
  device.synchronize({});
}

}  // namespace

void fill_caches(const LayerCaches& caches, Device& device, Rng& rng) {
  for (const PagedCache& cache : caches.caches) {
    if (cache.present() && cache.num_pages > 0) fill(cache, device, rng);
  }
}

}  // namespace strata::testkit
