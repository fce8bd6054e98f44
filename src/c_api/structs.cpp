#include "c_api/structs.h"

namespace strata::c_api::detail {

void check_struct_size(const char* name, const void* data, size_t given, size_t first, size_t known) {
  constexpr size_t kMostOfLater = 4096;  // a larger size is not one of a later release but memory that was not initialised
  require(given >= first && given <= known + kMostOfLater,
          "{}: struct_size must be {}, as {}_default() sets it, or that of another release, is {}", name, known, name, given);
  if (data == nullptr) return;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (size_t i = known; i < given; ++i) {
    require(bytes[i] == 0,
            "{}: this release knows the first {} bytes of {}; expected zeros after them, got {} at byte {}: it needs a later "
            "release",
            name, known, given, int{bytes[i]}, i);
  }
}

}  // namespace strata::c_api::detail
