#include "checkpoint/config_names.h"

#include <algorithm>

#include "checkpoint/json.h"
#include "checkpoint/known_models.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

std::vector<std::string> read_architectures(const ConfigFields& f) {
  const auto names = f.texts("architectures");
  if (names && names->empty()) f.reject("architectures", "an array of at least one name", "[]");
  return names.value_or(std::vector<std::string>{});
}

bool is_own(const ConfigOptions& options, const std::string& name) {
  return std::find(options.own_models.begin(), options.own_models.end(), name) != options.own_models.end();
}

// ", whose attention has ..." for models that only look like one of the library's.
std::string difference(const std::string& model_type, const std::string& architecture) {
  const LookalikeModel* other = find_lookalike_model(model_type, architecture);
  return other == nullptr ? "" : fmt::format(", whose attention has {}", other->difference);
}

[[noreturn]] void reject_model(const ModelConfig& c, const ConfigFields& f) {
  if (c.model_type.empty() && c.architecture.empty()) {
    f.reject("model_type", fmt::format("one of {}", supported_model_types()), "missing");
  }
  f.reject("model_type", fmt::format("one of {}", supported_model_types()),
           fmt::format("{} (architecture {}){}", brief(json(c.model_type)), brief(json(c.architecture)),
                       difference(c.model_type, c.architecture)));
}

bool is_head_of_model(const std::string& architecture, const SupportedModel& model) { return is_head_of(architecture, model.architecture); }

}  // namespace

void read_names(ModelConfig& c, const ConfigFields& f, const ConfigOptions& options) {
  const std::vector<std::string> architectures = read_architectures(f);
  if (!architectures.empty()) c.architecture = architectures.front();
  c.model_type = f.text("model_type").value_or("");
  const bool own = is_own(options, c.model_type.empty() ? c.architecture : c.model_type);
  // Custom code renames architectures, so that a model_type that is given decides.
  const SupportedModel* model = find_supported_model(c.model_type, c.model_type.empty() ? c.architecture : "");
  if (model == nullptr && !own) reject_model(c, f);
  c.family = model == nullptr ? ModelFamily::deepseek_mla : model->family;
  for (const std::string& name : architectures) {
    if (is_own(options, name) || (model != nullptr && is_head_of_model(name, *model))) continue;
    const std::string type = brief(json(model == nullptr ? c.model_type : std::string(model->model_type)));
    f.reject("architectures",
             model == nullptr ? fmt::format("names of the caller's models next to model_type {}", type)
                              : fmt::format("{}, or another head of that model, as model_type is {}", model->architecture, type),
             brief(json(name)) + difference({}, name));
  }
}

void check_outer_names(const ModelConfig& c, const ConfigFields& outer, const std::string& inner) {
  const std::string type = outer.text("model_type").value_or("");
  const bool known = find_supported_model(type, {}) != nullptr || find_lookalike_model(type, {}) != nullptr;
  if (known && type != c.model_type) {
    outer.reject("model_type", fmt::format("the name of what has {}, whose model_type is {}", inner, brief(json(c.model_type))),
                 brief(json(type)) + difference(type, {}));
  }
  const SupportedModel* model = find_supported_model(c.model_type, c.architecture);
  for (const std::string& name : read_architectures(outer)) {
    const bool same = name == c.architecture || (model != nullptr && is_head_of_model(name, *model));
    const bool other = std::any_of(supported_models().begin(), supported_models().end(),
                                   [&](const SupportedModel& m) { return is_head_of_model(name, m); });
    if (same || (!other && find_lookalike_model({}, name) == nullptr)) continue;
    outer.reject("architectures", fmt::format("names of what has {}, whose model_type is {}", inner, brief(json(c.model_type))),
                 brief(json(name)) + difference({}, name));
  }
}

}  // namespace strata
