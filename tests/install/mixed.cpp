// A program whose parts use the C++ API and the C API.
#include <strata/kv_format.h>
#include <strata/op_set.h>
#include <strata/strata.h>

#include <cstdio>

#include "c_part.h"

int main() {
  const auto device = strata::open_device(strata::parse_device_id("cpu"));
  const long long expected = strata::page_payload_bytes(strata::KvFormat::fp8_ds_mla_v4, 512, 64);
  const long long bytes = bytes_in_c(strata::to_string(device->id()).c_str());
  if (bytes != expected) {
    std::printf("expected %lld bytes of a page, got %lld: %s\n", expected, bytes, strata_last_error());
    return 1;
  }
  std::printf("strata works in C and C++\n");
  return 0;
}
