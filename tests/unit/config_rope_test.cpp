// rope_parameters of config.json: in V4 one object per table, in MLA flat, with YaRN's own keys.
#include "small_configs.h"

namespace strata::test {
namespace {

// rope_theta and YaRN in rope_parameters, as transformers 5 writes them.
json in_rope_parameters(json j) {
  json parameters = j["rope_scaling"];
  parameters["rope_type"] = parameters["type"];
  parameters.erase("type");
  parameters["rope_theta"] = j["rope_theta"];
  j.erase("rope_scaling");
  j.erase("rope_theta");
  j["rope_parameters"] = parameters;
  return j;
}

TEST(RopeParameters, OfMlaAreFlat) {
  const json j = in_rope_parameters(mla());
  EXPECT_EQ(parse(j), parse(mla()));
  json both = j;
  both["rope_theta"] = 777.0;
  expect_parts(refusal(both), {"rope_parameters.rope_theta", "777", "10000"});
  both["rope_theta"] = mla()["rope_theta"];
  both["rope_scaling"] = mla()["rope_scaling"];
  EXPECT_EQ(parse(both), parse(mla())) << "told twice";
  both["rope_scaling"].erase("beta_fast");
  EXPECT_EQ(parse(both), parse(mla())) << "32 is what is left out";
  both["rope_scaling"]["factor"] = 7.0;
  expect_parts(refusal(both), {"rope_parameters", "rope_scaling"});
  json none = j;
  none["rope_parameters"].erase("rope_theta");
  expect_parts(refusal(none), {"rope_theta", "missing"});
  none = j;
  none["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_FALSE(parse(none).has_yarn);
  EXPECT_EQ(parse(none).rope_theta, 1e6);
  none["rope_parameters"]["factor"] = 4.0;
  expect_parts(refusal(none), {"rope_parameters.factor", "default"});
  json nested = j;
  nested["rope_parameters"] = {{"main", j["rope_parameters"]}, {"compress", j["rope_parameters"]}};
  expect_parts(refusal(nested), {"rope_parameters.main", "V4"});
}

// {main, compress}.
json nested_v4() {
  json j = v4();
  json compress = j["rope_scaling"];
  compress["rope_theta"] = j["compress_rope_theta"];
  compress["attention_factor"] = 1.0;
  j["rope_parameters"] = {{"main", {{"rope_type", "default"}, {"rope_theta", j["rope_theta"]}}}, {"compress", compress}};
  j.erase("rope_scaling");
  return j;
}

TEST(RopeParameters, OfV4AreNested) {
  EXPECT_EQ(parse(nested_v4()), parse(v4()));
  json j = nested_v4();
  j.erase("rope_theta");
  j.erase("compress_rope_theta");
  EXPECT_EQ(parse(j), parse(v4()));
  const auto refuse = [](const char* pointer, const json& value, const std::vector<std::string>& parts) {
    json changed = nested_v4();
    changed[json::json_pointer(pointer)] = value;
    SCOPED_TRACE(pointer);
    expect_parts(refusal(changed), parts);
  };
  refuse("/rope_theta", 777.0, {"rope_parameters.main.rope_theta", "777"});
  refuse("/compress_rope_theta", 777.0, {"rope_parameters.compress.rope_theta", "777"});
  refuse("/rope_parameters/main/rope_type", "yarn", {"rope_parameters.main.factor", "missing"});
  refuse("/rope_parameters/main", v4()["rope_scaling"], {"rope_parameters.main.rope_type", "window"});
  refuse("/rope_parameters/main", 1, {"rope_parameters.main", "an object"});
  refuse("/rope_parameters/compress/attention_factor", 1.277, {"rope_parameters.compress.attention_factor", "expected 1", "1.277"});
  refuse("/rope_parameters/compress/beta_mid", 4, {"rope_parameters.compress.beta_mid"});
  refuse("/rope_parameters/factor", 4, {"rope_parameters.factor", "main and compress"});
  refuse("/rope_scaling", v4()["rope_scaling"], {"rope_scaling", "rope_parameters.compress"});
  json lone = nested_v4();
  lone["rope_parameters"].erase("compress");
  expect_parts(refusal(lone), {"rope_parameters.compress", "missing"});
  // Flat: the compressed layers', whose base is compress_rope_theta.
  json flat = v4();
  flat["rope_parameters"] = flat["rope_scaling"];
  flat.erase("rope_scaling");
  EXPECT_EQ(parse(flat), parse(v4()));
  flat.erase("rope_theta");
  flat["rope_parameters"]["rope_theta"] = 10000.0;
  expect_parts(refusal(flat), {"rope_theta", "missing", "window layers' base", "rope_parameters.rope_theta"});
}

TEST(RopeParameters, PartialRotaryFactor) {
  json j = v4();
  j["partial_rotary_factor"] = 0.125;
  EXPECT_EQ(parse(j), parse(v4()));
  j.erase("qk_rope_head_dim");
  EXPECT_EQ(parse(j), parse(v4()));
  j.erase("partial_rotary_factor");
  EXPECT_EQ(parse(j), parse(v4())) << "V4 has one shape";
  j["partial_rotary_factor"] = 0.25;
  expect_parts(refusal(j), {"qk_rope_head_dim", "64", "128"});
  for (const double odd : {0.1, -1.0, 1e300}) {
    j["partial_rotary_factor"] = odd;
    expect_parts(refusal(j), {"partial_rotary_factor", "head_dim = 512"});
  }
  j = mla();
  j["partial_rotary_factor"] = 1.0;
  EXPECT_EQ(parse(j), parse(mla()));
  j["rope_scaling"]["partial_rotary_factor"] = 0.5;
  expect_parts(refusal(j), {"partial_rotary_factor", "0.5"});
}

TEST(RopeParameters, GainAndRampOfYarn) {
  json j = mla();
  const RopeConfig plain = parse(j).rope(0);
  EXPECT_TRUE(plain.truncate);
  j["rope_scaling"]["attention_factor"] = 0.5;
  EXPECT_EQ(parse(j).rope(0).mscale_gain, 0.5) << "the gain itself, whatever the mscales are";
  EXPECT_EQ(parse(j).softmax_scale(), parse(mla()).softmax_scale());
  j["rope_scaling"]["attn_factor"] = 0.5;
  expect_parts(refusal(j), {"attention_factor", "attn_factor"});
  j = mla();
  j["rope_scaling"]["truncate"] = false;
  const RopeConfig ramp = parse(j).rope(0);
  EXPECT_FALSE(ramp.truncate);
  EXPECT_EQ(ModelConfig::parse(parse(j).to_json()), parse(j));
  // Low 10.24 and high 22.51 of V3, by hand: R ln(4096 / (2 pi n)) / (2 ln 10000). Between them frequencies blend.
  std::vector<float> rounded(32), exact(32);
  rope_frequencies(plain, rounded.data());
  rope_frequencies(ramp, exact.data());
  const double low = 64 * std::log(4096 / (32 * 2 * M_PI)) / (2 * std::log(1e4)),
               high = 64 * std::log(4096 / (2 * M_PI)) / (2 * std::log(1e4));
  for (int i = 0; i < 32; ++i) {
    const double f = std::pow(1e4, -2.0 * i / 64), blend = std::clamp((i - low) / (high - low), 0.0, 1.0);
    EXPECT_NEAR(exact[static_cast<size_t>(i)] / (f / 40 * blend + f * (1 - blend)), 1.0, 1e-6) << i;
  }
  EXPECT_NE(rounded[15], exact[15]);
}

}  // namespace
}  // namespace strata::test
