#include "c_api/arrays.h"

namespace strata::c_api {

std::vector<std::string> to_texts(const char* const* texts, int64_t count, const char* field) {
  std::vector<std::string> result;
  for (const char* text : to_span(texts, count, field)) {
    require(text != nullptr, "{}[{}]: expected a text, is null", field, result.size());
    result.emplace_back(text);
  }
  return result;
}

}  // namespace strata::c_api
