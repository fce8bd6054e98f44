#include "c_part.h"

#include <strata/strata.h>

long long bytes_in_c(const char* id) {
  strata_device device;
  void* data = NULL;
  int64_t bytes = -1;
  if (strata_device_open(id, NULL, &device) != STRATA_OK) return -1;
  if (strata_page_payload_bytes(STRATA_KV_FP8_DS_MLA_V4, 512, 64, &bytes) != STRATA_OK) return -1;
  if (strata_device_allocate(device, bytes, &data) != STRATA_OK) return -1;
  if (strata_device_deallocate(device, data) != STRATA_OK) return -1;
  return strata_device_close(device) == STRATA_OK ? bytes : -1;
}
