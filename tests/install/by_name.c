// Opens a shared library at run time and calls it: by_name LIBRARY
#include <dlfcn.h>
#include <stdio.h>
#include <strata/strata.h>

int main(int argc, char** argv) {
  void (*version)(int32_t*, int32_t*, int32_t*);
  strata_status (*device_open)(const char*, const strata_config*, strata_device*);
  strata_status (*page_bytes)(strata_kv_format, int64_t, int64_t, int64_t*);
  const char* (*last_error)(void);
  int32_t major = -1, minor = -1;
  strata_device device;
  void* const library = argc == 2 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (library == NULL) {
    fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: by_name LIBRARY");
    return 1;
  }
  *(void**)&version = dlsym(library, "strata_version");
  *(void**)&device_open = dlsym(library, "strata_device_open");
  *(void**)&page_bytes = dlsym(library, "strata_page_payload_bytes");
  *(void**)&last_error = dlsym(library, "strata_last_error");
  if (version == NULL || device_open == NULL || page_bytes == NULL || last_error == NULL) return 1;
  version(&major, &minor, NULL);
  if (major != STRATA_VERSION_MAJOR || minor != STRATA_VERSION_MINOR) return 1;
  if (device_open("cpu", NULL, &device) != STRATA_OK) return 1;
  if (page_bytes(STRATA_KV_BF16, 512, 64, NULL) != STRATA_INVALID_ARGUMENT) return 1;
  printf("strata works by name; and says what is wrong: %s\n", last_error());
  return dlclose(library);
}
