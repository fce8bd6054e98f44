#include "version.h"

#include "commit.h"

namespace strata::cli {

std::string version_text() { return "strata " STRATA_VERSION ", commit " STRATA_COMMIT ", backends " STRATA_BACKENDS; }

}  // namespace strata::cli
