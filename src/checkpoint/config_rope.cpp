#include "checkpoint/config_rope.h"

#include "checkpoint/json.h"
#include "core/check.h"

namespace strata {
namespace {

using nlohmann::json;

constexpr int64_t kV4RotaryShare = 8;  // head_dim 512 has 64 rotary dimensions

// What one object of rotary parameters says; values that it leaves out are ModelConfig's.
struct RopeParameters {
  bool yarn = false;
  std::optional<double> theta;
  std::optional<double> partial_rotary_factor;
  double factor = 1.0;
  int64_t original_max_position = 0;
  double beta_fast = ModelConfig{}.rope_beta_fast, beta_slow = ModelConfig{}.rope_beta_slow;
  double mscale = ModelConfig{}.rope_mscale, mscale_all_dim = ModelConfig{}.rope_mscale_all_dim;
  double attn_factor = ModelConfig{}.rope_attn_factor;
  std::optional<double> attention_factor;
  bool truncate = true;
  friend bool operator==(const RopeParameters&, const RopeParameters&) = default;
};

// True for YaRN.
bool read_type(const ConfigFields& f) {
  const auto old_key = f.text("type");
  const auto new_key = f.text("rope_type");
  if (old_key && new_key && *old_key != *new_key) {
    f.reject("rope_type", fmt::format("the same as type, {}", brief(json(*old_key))), brief(json(*new_key)));
  }
  const auto type = new_key ? new_key : old_key;
  if (!type) f.reject("type", "\"yarn\" or \"default\"", "missing");
  if (*type == "default") return false;
  if (*type != "yarn" && *type != "deepseek_yarn") f.reject("type", "\"yarn\" or \"default\"", brief(json(*type)));
  return true;
}

RopeParameters read_parameters(const ConfigFields& f, bool v4) {
  RopeParameters r;
  r.yarn = read_type(f);
  r.theta = f.optional_number("rope_theta");
  r.partial_rotary_factor = f.optional_number("partial_rotary_factor");
  if (!r.yarn) {
    for (const char* key : {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "truncate", "mscale", "mscale_all_dim",
                            "attn_factor", "attention_factor"}) {
      if (const json* value = f.get(key)) f.reject(key, "no such key with type \"default\"", brief(*value));
    }
    return r;
  }
  r.factor = f.number("factor");
  r.original_max_position = f.integer("original_max_position_embeddings");
  r.beta_fast = f.number("beta_fast", r.beta_fast);
  r.beta_slow = f.number("beta_slow", r.beta_slow);
  r.truncate = f.flag("truncate").value_or(true);
  if (v4) return r;
  r.mscale = f.number("mscale", r.mscale);
  r.mscale_all_dim = f.number("mscale_all_dim", r.mscale_all_dim);
  r.attn_factor = f.number("attn_factor", r.attn_factor);
  r.attention_factor = f.optional_number("attention_factor");
  if (f.has("attn_factor") && r.attention_factor) {
    f.reject("attention_factor", "no such key next to attn_factor, which multiplies what attention_factor replaces",
             fmt::format("{}", *r.attention_factor));
  }
  return r;
}

// Of two places that may give a value, the one that does; they must not contradict each other.
std::optional<double> agreed(const ConfigFields& f, std::string_view key, std::optional<double> here, std::string_view where,
                             std::optional<double> there) {
  if (here && there && *here != *there) {
    f.reject(key, fmt::format("the same as {}, {}", where, *there), fmt::format("{}", *here));
  }
  return here ? here : there;
}

void set_yarn(ModelConfig& c, const RopeParameters& r) {
  if (!r.yarn) return;
  c.has_yarn = true;
  c.rope_factor = r.factor;
  c.rope_original_max_position = r.original_max_position;
  c.rope_beta_fast = r.beta_fast;
  c.rope_beta_slow = r.beta_slow;
  c.rope_truncate = r.truncate;
  c.rope_mscale = r.mscale;
  c.rope_mscale_all_dim = r.mscale_all_dim;
  c.rope_attn_factor = r.attn_factor;
  c.rope_attention_factor = r.attention_factor;
}

class Reader {
 public:
  Reader(ModelConfig& c, const ConfigFields& f, const std::vector<std::string>& accepted, std::vector<std::string>& unknown)
      : c_(c), f_(f), accepted_(accepted), unknown_(unknown), v4_(c.family == ModelFamily::deepseek_v4) {}

  void read() {
    if (const auto parameters = f_.object("rope_parameters", KeyScope::rope); parameters && is_nested(parameters->object())) {
      read_nested(*parameters);
    } else {
      read_flat();
    }
    read_rotary_dim();
  }

 private:
  static bool is_nested(const json& object) { return object.contains("main") || object.contains("compress"); }

  RopeParameters read_object(const ConfigFields& f) {
    check_config_keys(f.object(), KeyScope::rope, c_.family, f.origin(), f.prefix(), accepted_, unknown_);
    RopeParameters r = read_parameters(f, v4_);
    rotary_factor_ = agreed(f, "partial_rotary_factor", r.partial_rotary_factor, "partial_rotary_factor elsewhere", rotary_factor_);
    return r;
  }

  // rope_scaling next to rope_theta, or rope_parameters with both in it. V4: both describe the compressed layers, but for rope_theta.
  void read_flat() {
    const auto scaling = f_.object("rope_scaling", KeyScope::rope);
    const auto parameters = f_.object("rope_parameters", KeyScope::rope);
    std::optional<double> theta = f_.optional_number("rope_theta");
    if (v4_ && !theta) {
      // Readers of V4's files disagree about the base that stands in a flat rope_parameters alone.
      const bool inner = parameters && parameters->has("rope_theta");
      f_.need("rope_theta",
              inner ? "a number, the window layers' base, as rope_parameters.rope_theta may be that of the compressed layers" : "a number");
    }
    std::optional<RopeParameters> from_scaling, from_parameters;
    for (const auto& [fields, result] : {std::pair(&scaling, &from_scaling), std::pair(&parameters, &from_parameters)}) {
      if (!*fields) continue;
      *result = read_object(**fields);
      theta = agreed(**fields, "rope_theta", (*result)->theta, "rope_theta elsewhere", theta);
      (*result)->theta.reset();
      (*result)->partial_rotary_factor.reset();
    }
    if (from_scaling && from_parameters && *from_scaling != *from_parameters) {
      f_.reject("rope_parameters", fmt::format("the same as rope_scaling, {}", brief(scaling->object())), brief(parameters->object()));
    }
    if (!theta) f_.need("rope_theta", "a number, here or in rope_parameters");
    c_.rope_theta = *theta;
    if (from_scaling) set_yarn(c_, *from_scaling);
    if (from_parameters) set_yarn(c_, *from_parameters);
    if (v4_) c_.compress_rope_theta = f_.number("compress_rope_theta", 0.0);
  }

  // V4 as transformers writes it: {main, compress}.
  void read_nested(const ConfigFields& parameters) {
    if (!v4_) parameters.reject("main", "no such key but for V4", "there");
    const ConfigFields main = part(parameters, "main"), compress = part(parameters, "compress");
    for (const auto& [key, value] : parameters.object().items()) {
      if (key != "main" && key != "compress" && !value.is_null()) parameters.reject(key, "no key next to main and compress", brief(value));
    }
    if (f_.has("rope_scaling")) f_.reject("rope_scaling", "no such key next to rope_parameters.compress", brief(*f_.get("rope_scaling")));
    const RopeParameters m = read_object(main), s = read_object(compress);
    if (m.yarn) main.reject("rope_type", "\"default\": window layers have no YaRN", "\"yarn\"");
    const auto theta = agreed(main, "rope_theta", m.theta, "the outer rope_theta", f_.optional_number("rope_theta"));
    if (!theta) main.need("rope_theta", "a number");
    c_.rope_theta = *theta;
    const auto outer = f_.optional_number("compress_rope_theta");
    c_.compress_rope_theta = agreed(compress, "rope_theta", s.theta, "compress_rope_theta", outer).value_or(0.0);
    set_yarn(c_, s);
  }

  static ConfigFields part(const ConfigFields& parameters, const std::string& key) {
    const auto it = parameters.object().find(key);
    if (it == parameters.object().end() || !it->is_object()) {
      parameters.reject(key, "an object", it == parameters.object().end() ? "missing" : brief(*it));
    }
    return ConfigFields(*it, KeyScope::rope, parameters.origin(), parameters.prefix() + key + ".");
  }

  // Of V4 a share of head_dim; of MLA, whose rotary dimensions are apart from the others, all of them.
  void read_rotary_dim() {
    rotary_factor_ = agreed(f_, "partial_rotary_factor", f_.optional_number("partial_rotary_factor"),
                            "partial_rotary_factor of the rotary parameters", rotary_factor_);
    const auto dim = f_.optional_integer("qk_rope_head_dim");
    if (!v4_) {
      c_.qk_rope_head_dim = dim ? *dim : f_.integer("qk_rope_head_dim");
      if (rotary_factor_ && *rotary_factor_ != 1.0) {
        f_.reject("partial_rotary_factor", "1, as all of qk_rope_head_dim is rotated", fmt::format("{}", *rotary_factor_));
      }
      return;
    }
    const double share = rotary_factor_.value_or(1.0 / kV4RotaryShare) * static_cast<double>(c_.head_dim);
    if (dim && rotary_factor_ && static_cast<double>(*dim) != share) {
      f_.reject("qk_rope_head_dim", fmt::format("{}, partial_rotary_factor of head_dim", share), fmt::format("{}", *dim));
    }
    if (!dim && !(share >= 0 && share <= static_cast<double>(c_.head_dim) && share == static_cast<double>(static_cast<int64_t>(share)))) {
      f_.reject("partial_rotary_factor", fmt::format("a share of head_dim = {} that is a whole number of dimensions", c_.head_dim),
                rotary_factor_ ? fmt::format("{}", *rotary_factor_) : "missing");
    }
    c_.qk_rope_head_dim = dim ? *dim : static_cast<int64_t>(share);
  }

  ModelConfig& c_;
  const ConfigFields& f_;
  const std::vector<std::string>& accepted_;
  std::vector<std::string>& unknown_;
  bool v4_;
  std::optional<double> rotary_factor_;
};

}  // namespace

void read_rope(ModelConfig& c, const ConfigFields& f, const std::vector<std::string>& accepted, std::vector<std::string>& unknown) {
  Reader(c, f, accepted, unknown).read();
}

}  // namespace strata
