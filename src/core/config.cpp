#include "strata/config.h"

#include <algorithm>
#include <cstdlib>

#include "core/check.h"
#include "core/forced_names.h"

namespace strata {
namespace {

constexpr CpuIsa kAllIsas[] = {CpuIsa::portable, CpuIsa::avx2, CpuIsa::avx512, CpuIsa::avx512_bf16, CpuIsa::amx, CpuIsa::best};

const char* environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

}  // namespace

const char* to_string(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::portable: return "portable";
    case CpuIsa::avx2: return "avx2";
    case CpuIsa::avx512: return "avx512";
    case CpuIsa::avx512_bf16: return "avx512_bf16";
    case CpuIsa::amx: return "amx";
    case CpuIsa::best: return "best";
  }
  return "unknown";
}

CpuIsa parse_cpu_isa(const std::string& name) {
  for (CpuIsa isa : kAllIsas) {
    if (name == to_string(isa)) return isa;
  }
  fail(ErrorCode::invalid_argument, "cpu isa must be portable, avx2, avx512, avx512_bf16, amx or best, is '{}'", name);
}

std::map<std::string, std::string> parse_forced_names(std::string_view text, std::string_view origin) {
  std::map<std::string, std::string> names;
  while (!text.empty()) {
    const std::string_view item = text.substr(0, text.find(','));
    text.remove_prefix(std::min(text.size(), item.size() + 1));
    const size_t equals = item.find('=');
    require(equals != std::string_view::npos && equals > 0 && equals + 1 < item.size(), "{} must be op=implementation,..., has '{}'",
            origin, item);
    names[std::string(item.substr(0, equals))] = item.substr(equals + 1);
  }
  return names;
}

Config Config::from_environment() {
  Config config;
  if (const char* text = environment("STRATA_CPU_THREADS")) {
    char* end = nullptr;
    const long threads = std::strtol(text, &end, 10);
    require(*end == '\0' && threads >= 1 && threads <= 4096, "STRATA_CPU_THREADS must be 1 to 4096, is '{}'", text);
    config.cpu_threads = static_cast<int>(threads);
  }
  if (const char* text = environment("STRATA_CPU_ISA")) config.cpu_isa = parse_cpu_isa(text);
  if (const char* text = environment("STRATA_OPENCL_CACHE")) config.opencl_cache = text;
  if (const char* text = environment("STRATA_OPENCL_LIBRARY")) config.opencl_library = text;
  if (const char* text = environment("STRATA_OPENCL_SUBGROUP")) {
    const std::string size = text;
    require(size == "8" || size == "16", "STRATA_OPENCL_SUBGROUP must be 8 or 16, is '{}'", text);
    config.opencl_subgroup_size = size == "8" ? 8 : 16;
  }
  if (const char* text = environment("STRATA_FORCE")) config.force = parse_forced_names(text, "STRATA_FORCE");
  return config;
}

}  // namespace strata
