#include <fmt/format.h>

#include <string>

#include "testkit/cases/linear_case.h"
#include "testkit/cases/registry.h"

namespace strata::testkit {
namespace {

struct LinearShape {
  int64_t tokens = 1;
  WeightShape weight;
  ActivationFormat activation = ActivationFormat::bf16;
  DType out = DType::bf16;
  Padding x_padding{};
  Padding y_padding{};
  bool codes = false;  // x is already quantised to the activation format
};

const char* name_of(WeightFormat f) { return f == WeightFormat::bf16 ? "bf16" : f == WeightFormat::e4m3_ue8m0 ? "e4m3" : "e4m3_f32"; }
const char* name_of(ActivationFormat f) {
  return f == ActivationFormat::bf16 ? "bf16" : f == ActivationFormat::fp8_ue8m0 ? "fp8" : "fp8_f32";
}

Built<LinearParams> build(Inputs& in, const LinearShape& s) {
  const int64_t tokens = in.share(s.tokens);
  LinearParams p;
  if (s.codes) {
    p.x = in.e4m3({tokens, s.weight.k}, 100.0, s.x_padding);
    p.x_scale = activation_scales(in, {tokens, (s.weight.k + 127) / 128}, s.activation == ActivationFormat::fp8_ue8m0, s.x_padding);
  } else {
    p.x = in.bf16({tokens, s.weight.k}, 1.0, s.x_padding);
  }
  p.weight = make_weight(in, s.weight);
  p.y = in.output(s.out, {tokens, s.weight.n}, s.y_padding);
  p.activation = s.activation;
  const bool exact_operands = s.activation != ActivationFormat::fp8_f32 && s.weight.format != WeightFormat::e4m3_f32;
  const double t = static_cast<double>(tokens), n = static_cast<double>(s.weight.n), k = static_cast<double>(s.weight.k);
  const bool codes = s.activation != ActivationFormat::bf16 && s.weight.format != WeightFormat::bf16;
  return {.params = p,
          .outputs = {view_output("y", p.y,
                                  codes ? fp8_product_tolerance(exact_operands, s.out, p.y.numel(), in)
                                        : product_tolerance(exact_operands, s.out, p.y.numel(), in))},
          .bytes = weight_bytes(s.weight) + t * ((s.codes ? 1 + 4.0 / 128 : 2) * k + static_cast<double>(size_of(s.out)) * n),
          .flops = 2 * t * n * k};
}

std::string name_of(const LinearShape& s) {
  std::string name = fmt::format("T{}-N{}-K{}-{}", s.tokens, s.weight.n, s.weight.k, name_of(s.weight.format));
  if (s.activation != ActivationFormat::bf16) name += fmt::format("-x_{}", name_of(s.activation));
  if (s.out == DType::f32) name += "-y_f32";
  if (s.codes) name += "-codes";
  if (s.weight.shares_device) name += "-shares_device";
  return name;
}

class Adder {
 public:
  explicit Adder(CaseList& list) : cases_(list, "linear", &OpSet::linear) {}

  // Row-major and packed.
  void test(const LinearShape& s, const std::string& suffix = "", bool heavy = false) {
    add(s, suffix, Packing::never, {.test = true, .heavy = heavy});
    add(s, suffix + "-packed", Packing::required, {.test = true, .heavy = heavy});
  }
  void test_random(const std::string& name, const LinearShape& s, Packing packing) {
    cases_.add({name + suffix_of(s.weight, packing, s.x_padding, s.y_padding), [s](Inputs& in) { return build(in, s); },
                packer<LinearParams>(packing)},
               {.test = true, .drawn = true});
  }
  void bench(const LinearShape& s, const std::string& label) { add(s, "-" + label, Packing::preferred, {.bench = true}); }

 private:
  void add(const LinearShape& s, const std::string& suffix, Packing packing, Tags tags) {
    cases_.add({name_of(s) + suffix, [s](Inputs& in) { return build(in, s); }, packer<LinearParams>(packing)}, tags);
  }
  CaseAdder<LinearParams> cases_;
};

// The linear layers of one model as they are called, by layer kind.
struct NamedWeight {
  const char* label;
  WeightShape weight;
  ActivationFormat activation;
  DType out;
  bool latent = false;  // of the query latent, which layers pass quantised
};

void add_bench(Adder& add) {
  constexpr auto kFp8 = WeightFormat::e4m3_ue8m0;
  constexpr auto kQuantised = ActivationFormat::fp8_ue8m0;
  constexpr auto kPlain = ActivationFormat::bf16;
  const NamedWeight layers[] = {
      {"flash.wq_a", {.n = 1024, .k = 4096, .format = kFp8}, kQuantised, DType::bf16},
      {"flash.wq_b", {.n = 32768, .k = 1024, .format = kFp8}, kQuantised, DType::bf16, true},
      {"flash.wkv", {.n = 512, .k = 4096, .format = kFp8}, kQuantised, DType::bf16},
      {"flash.wo_b", {.n = 4096, .k = 8192, .format = kFp8}, kQuantised, DType::bf16},
      {"flash.indexer_wq_b", {.n = 8192, .k = 1024, .format = kFp8}, kQuantised, DType::bf16, true},
      {"flash.compressor_c4", {.n = 2048, .k = 4096}, kPlain, DType::f32},
      {"flash.weights_proj", {.n = 64, .k = 4096}, kPlain, DType::bf16},
      {"pro.wq_a", {.n = 1536, .k = 7168, .format = kFp8}, kQuantised, DType::bf16},
      {"pro.wq_b", {.n = 65536, .k = 1536, .format = kFp8}, kQuantised, DType::bf16, true},
      {"pro.wkv", {.n = 512, .k = 7168, .format = kFp8}, kQuantised, DType::bf16},
      {"pro.wo_b", {.n = 7168, .k = 16384, .format = kFp8}, kQuantised, DType::bf16},
      {"pro.compressor_c4", {.n = 2048, .k = 7168}, kPlain, DType::f32},
  };
  for (const NamedWeight& layer : layers) {
    for (const int64_t tokens : {1, 4, 8, 16, 64, 128, 512}) {
      LinearShape s{tokens, layer.weight, layer.activation, layer.out};
      add.bench(s, layer.label);
      s.codes = layer.latent;
      if (s.codes) add.bench(s, layer.label);
    }
  }
  // The rows of docs/performance.md.
  const NamedWeight table[] = {
      {"pro.wq_b", {.n = 65536, .k = 1536, .format = kFp8}, kQuantised, DType::bf16},
      {"pro.wqkv_a", {.n = 2048, .k = 7168, .format = kFp8}, kQuantised, DType::bf16},
      {"pro.wo_b", {.n = 7168, .k = 16384, .format = kFp8}, kQuantised, DType::bf16},
      {"v3.q_b", {.n = 24576, .k = 1536, .format = kFp8}, kQuantised, DType::bf16},
      {"pro.wq_b", {.n = 65536, .k = 1536}, kPlain, DType::bf16},
      {"pro.wqkv_a", {.n = 2048, .k = 7168}, kPlain, DType::bf16},
      {"pro.wo_b", {.n = 7168, .k = 16384}, kPlain, DType::bf16},
  };
  for (const NamedWeight& layer : table) {
    for (const int64_t tokens : {1, 8, 32, 64, 4096}) {
      LinearShape s{tokens, layer.weight, layer.activation, layer.out};
      const std::string label = "table." + std::string(layer.label);
      add.bench(s, label);
      s.codes = layer.activation != kPlain;  // the product alone, which is what DeepGEMM's figures are
      if (s.codes) add.bench(s, label);
    }
  }
  // A chunk of a prompt together with decode requests.
  for (const NamedWeight& layer : table) {
    for (const int64_t tokens : {512, 544, 1056}) {
      if (layer.activation != kPlain) add.bench({tokens, layer.weight, layer.activation, layer.out}, "beside." + std::string(layer.label));
    }
  }
}

// Tiles of 64 features, blocks of 128 bytes of k, tokens in eights up to 64 and in fours beyond, splits of k over CTAs: both sides of each.
void add_gpu_edges(Adder& add) {
  constexpr auto kFp8 = WeightFormat::e4m3_ue8m0;
  constexpr auto kQuantised = ActivationFormat::fp8_ue8m0;
  for (const int64_t tokens : {1, 7, 32, 33, 64, 65, 67}) {
    add.test({tokens, {.n = 320, .k = 512, .format = kFp8}, kQuantised}, "-edge");
    add.test({tokens, {.n = 328, .k = 1536, .format = kFp8}, kQuantised, DType::f32}, "-edge");
    add.test({tokens, {.n = 72, .k = 648}, ActivationFormat::bf16}, "-edge");
    add.test({tokens, {.n = 136, .k = 1160}, ActivationFormat::bf16, DType::f32}, "-edge");
  }
  add.test({9, {.n = 200, .k = 1040, .format = kFp8}, kQuantised}, "-edge");
  add.test({5, {.n = 100, .k = 2064, .format = kFp8, .block_n = 64}, kQuantised, DType::bf16, {.inner = 5}, {.inner = 3}}, "-strided");
  add.test({33, {.n = 100, .k = 264}, ActivationFormat::bf16, DType::bf16, {.inner = 3}, {.inner = 5}}, "-strided");
  add.test({66, {.n = 256, .k = 512, .format = kFp8}, kQuantised, DType::f32, {.inner = 7}, {.inner = 12}}, "-strided");
  add.test({66, {.n = 256, .k = 512, .format = kFp8}, ActivationFormat::fp8_f32, DType::bf16, {.inner = 8}, {.inner = 8}}, "-strided");
  add.test({2, {.n = 1024, .k = 16384, .format = kFp8}, kQuantised}, "", true);
  // Few tokens: more tiles than blocks, of one block and of clusters; k that is no multiple of the channels of a scale.
  for (const int64_t tokens : {1, 20}) {
    add.test({tokens, {.n = 20040, .k = 640, .format = kFp8}, kQuantised}, "-tiles", true);
    add.test({tokens, {.n = 17000, .k = 400, .format = kFp8, .block_n = 64}, kQuantised}, "-tiles", true);
    add.test({tokens, {.n = 4000, .k = 8192, .format = kFp8}, kQuantised, DType::f32}, "-tiles", true);
  }
  // 33 to 128 tokens: tiles of one row group in pairs with half of k each, more tiles than SMs, a ring that comes around.
  for (const int64_t tokens : {50, 64, 100, 128}) {
    add.test({tokens, {.n = 4000, .k = 2064, .format = kFp8}, kQuantised}, "-tiles", true);
    add.test({tokens, {.n = 1000, .k = 1040, .format = kFp8}, kQuantised, DType::f32, {.inner = 8}, {.inner = 3}}, "-tiles");
    add.test({tokens, {.n = 17000, .k = 272, .format = kFp8}, kQuantised}, "-tiles", true);
    add.test({tokens, {.n = 1536, .k = 4096, .format = kFp8, .shares_device = true}, kQuantised, DType::bf16}, "-tiles", true);
  }
  // Rings used several times over: of tiles with two row groups, of which the last is partly filled; of several tiles, with rows of odd
  // length.
  add.test({12, {.n = 5000, .k = 2064, .format = kFp8}, kQuantised}, "-tiles", true);
  add.test({20, {.n = 4500, .k = 5120, .format = kFp8}, kQuantised, DType::f32}, "-tiles", true);
  add.test({10, {.n = 34051, .k = 1040, .format = kFp8}, kQuantised}, "-tiles", true);
  add.test({3, {.n = 7000, .k = 5136, .format = kFp8}, kQuantised}, "-tiles", true);
  // A tile of three blocks of scales; two row groups and no cluster; fp32 from several tiles; several tiles with one block of scales.
  add.test({20, {.n = 7000, .k = 1040, .format = kFp8, .block_n = 64}, kQuantised}, "-tiles", true);
  add.test({9, {.n = 12000, .k = 1040, .format = kFp8}, kQuantised}, "-tiles", true);
  add.test({10, {.n = 20003, .k = 640, .format = kFp8}, kQuantised, DType::f32, {}, {.inner = 3}}, "-tiles", true);
  add.test({10, {.n = 17000, .k = 272, .format = kFp8, .block_n = 256}, kQuantised}, "-tiles", true);
  // With the smaller rings of a product that shares the device.
  add.test({20, {.n = 4000, .k = 8192, .format = kFp8, .shares_device = true}, kQuantised, DType::bf16}, "-tiles", true);
  add.test({10, {.n = 20040, .k = 640, .format = kFp8, .shares_device = true}, kQuantised, DType::bf16}, "-tiles", true);
  add.test({4096, {.n = 192, .k = 512, .format = kFp8}, kQuantised}, "", true);
  // bf16, few tokens: all warps on one strip of 8 features, several tiles a block.
  for (const int64_t tokens : {1, 7}) add.test({tokens, {.n = 3004, .k = 1032}}, "-edge", true);
  add.test({2, {.n = 304, .k = 5000}, ActivationFormat::bf16, DType::f32, {.inner = 8}, {.inner = 3}}, "-strided");
  // bf16 on Hopper: tiles of 64 or 128 features, alone and in pairs, the last partly filled; tokens up to 16 and up to 32.
  for (const int64_t tokens : {12, 32}) {
    add.test({tokens, {.n = 2200, .k = 648}}, "-edge");
    add.test({tokens, {.n = 2250, .k = 1032}}, "-edge");
    add.test({tokens, {.n = 12000, .k = 200}}, "-edge", true);
    add.test({tokens, {.n = 2200, .k = 2056}}, "-edge", true);
  }
  for (const int64_t tokens : {5, 20}) add.test({tokens, {.n = 9000, .k = 1800}}, "-edge", true);
  // Tiles of one row group that share the device, the last partly filled; of one token with a ring that leaves others room.
  for (const int64_t tokens : {1, 8, 20}) {
    add.test({tokens, {.n = 2180, .k = 6216, .shares_device = true}, ActivationFormat::bf16, DType::f32}, "-tiles", true);
    add.test({tokens, {.n = 2564, .k = 1032, .shares_device = true}, ActivationFormat::bf16, DType::f32}, "-tiles");
  }
  add.test({17, {.n = 2200, .k = 1032}, ActivationFormat::bf16, DType::f32, {.inner = 8}, {.inner = 3}}, "-strided");
  // Many tokens: tiles of 256 by 128 in pairs, partly filled; more of them than fit at once; scale blocks of several tiles.
  add.test({515, {.n = 5624, .k = 272, .format = kFp8}, kQuantised}, "-edge", true);
  add.test({513, {.n = 5624, .k = 128, .format = kFp8, .block_n = 256}, ActivationFormat::fp8_f32, DType::bf16, {.inner = 5}, {.inner = 8}},
           "-strided", true);
  add.test({770, {.n = 4088, .k = 144, .format = WeightFormat::e4m3_f32}, kQuantised}, "-edge", true);
  // The features' end is not a multiple of 16 bytes, and there is room after it.
  add.test({512, {.n = 8444, .k = 256, .format = kFp8}, kQuantised, DType::bf16, {}, {.inner = 4}}, "-edge", true);
  // Just three quarters of all tiles are of use.
  add.test({257, {.n = 8448, .k = 256, .format = kFp8}, kQuantised}, "-edge", true);
  // A few tokens more than whole tiles, for which these would go round once more.
  add.test({517, {.n = 6400, .k = 656, .format = kFp8}, kQuantised}, "-edge", true);
  add.test({544, {.n = 6400, .k = 768, .format = kFp8}, ActivationFormat::fp8_f32, DType::bf16, {.inner = 5}, {.inner = 8}}, "-strided",
           true);
  add.test({576, {.n = 6400, .k = 768, .format = kFp8}, kQuantised, DType::bf16, {.inner = 16}, {}, /*codes=*/true}, "-codes", true);
}

// Quantised x: in all kernels that otherwise quantise by themselves, with a last block of channels that is not full, with scales apart in
// memory, with rows that a GPU's copy engine does not take; on a GPU every kernel that takes quantised x.
void add_codes(Adder& add) {
  constexpr auto kFp8 = WeightFormat::e4m3_ue8m0;
  const auto test = [&](LinearShape s, const std::string& suffix = "", bool heavy = false) {
    s.codes = true;
    add.test(s, suffix, heavy);
  };
  for (const auto activation : {ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
    for (const auto weight : {WeightFormat::bf16, kFp8, WeightFormat::e4m3_f32}) {
      for (const int64_t tokens : {0, 1, 17}) test({tokens, {.n = 256, .k = 384, .format = weight}, activation});
      test({3, {.n = 200, .k = 320, .format = weight}, activation, DType::f32}, "-partial");
    }
    test({17, {.n = 160, .k = 65, .format = kFp8}, activation, DType::bf16, {.inner = 3}, {.inner = 1}}, "-strided");
  }
  constexpr auto kCodes = ActivationFormat::fp8_ue8m0;
  for (const int64_t tokens : {1, 7, 32, 33, 64, 65, 67}) {
    test({tokens, {.n = 320, .k = 512, .format = kFp8}, kCodes}, "-edge");
    test({tokens, {.n = 320, .k = 512, .format = kFp8}, kCodes, DType::f32, {.inner = 16}, {.inner = 4}}, "-edge");
  }
  test({5, {.n = 100, .k = 2064, .format = kFp8, .block_n = 64}, kCodes, DType::bf16, {.inner = 5}, {.inner = 3}}, "-strided");
  test({5, {.n = 100, .k = 2064, .format = kFp8, .block_n = 64}, kCodes, DType::bf16, {.inner = 48}, {.inner = 3}}, "-strided48");
  for (const int64_t tokens : {1, 20}) {
    test({tokens, {.n = 20040, .k = 656, .format = kFp8}, kCodes, DType::bf16, {.inner = 32}}, "-tiles", true);
    test({tokens, {.n = 4000, .k = 8192, .format = kFp8}, kCodes}, "-tiles", true);
    test({tokens, {.n = 8192, .k = 1536, .format = kFp8, .shares_device = true}, kCodes, DType::bf16}, "-tiles", true);
  }
  for (const int64_t tokens : {50, 100}) {
    test({tokens, {.n = 4000, .k = 2064, .format = kFp8}, kCodes, DType::bf16, {.inner = 16}}, "-tiles", true);
    test({tokens, {.n = 1000, .k = 1040, .format = kFp8}, kCodes, DType::bf16, {.inner = 5}}, "-unaligned");
  }
  // Few features and large k, concurrently with other work: clusters whose CTAs share one tile.
  for (const int64_t tokens : {17, 27, 32}) {
    test({tokens, {.n = 8, .k = 3584, .format = kFp8, .shares_device = true}, kCodes, DType::bf16, {.inner = 128}, {.inner = 96}},
         "-strided");
    test({tokens, {.n = 1536, .k = 4096, .format = kFp8, .shares_device = true}, kCodes, DType::bf16}, "", true);
  }
  // Many tokens: tiles of 256 by 256, of which on a GPU of 132 SMs few are empty.
  test({200, {.n = 16504, .k = 272, .format = kFp8}, kCodes}, "-edge", true);
  test({515, {.n = 5624, .k = 272, .format = kFp8}, kCodes}, "-edge", true);
  test({770, {.n = 4088, .k = 144, .format = kFp8}, kCodes, DType::bf16, {.inner = 16}, {.inner = 8}}, "-edge", true);
}

}  // namespace

void add_linear(CaseList& list) {
  Adder add(list);
  for (const int64_t tokens : {0, 1, 3, 17, 64}) add.test({tokens, {.n = 256, .k = 512}});
  add.test({300, {.n = 192, .k = 256}});
  add.test({5, {.n = 1, .k = 1}});
  add.test({17, {.n = 65, .k = 193}});
  add.test({3, {.n = 384, .k = 512}, ActivationFormat::bf16, DType::f32});
  add.test({17, {.n = 96, .k = 320}, ActivationFormat::bf16, DType::f32, {.inner = 7}, {.inner = 5}}, "-strided");
  add.test({17, {.n = 128, .k = 256}, ActivationFormat::bf16, DType::bf16, {.inner = 512}, {.inner = 384}}, "-columns");
  for (const auto format : {WeightFormat::e4m3_ue8m0, WeightFormat::e4m3_f32}) {
    for (const auto activation : {ActivationFormat::bf16, ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32}) {
      add.test({1, {.n = 256, .k = 384, .format = format}, activation});
      add.test({17, {.n = 256, .k = 384, .format = format}, activation});
    }
    // The last block of rows and of columns is not full.
    add.test({3, {.n = 200, .k = 320, .format = format}, ActivationFormat::bf16}, "-partial");
    add.test({3, {.n = 200, .k = 320, .format = format}, ActivationFormat::fp8_ue8m0}, "-partial");
    add.test({3, {.n = 100, .k = 96, .format = format}, ActivationFormat::fp8_ue8m0}, "-partial");
    add.test({17, {.n = 160, .k = 256, .format = format, .block_n = 64, .block_k = 32}, ActivationFormat::bf16}, "-blocks64x32");
    // Longer than the chunks in which a CPU widens a row: of whole blocks, and inside of one.
    add.test({5, {.n = 100, .k = 2320, .format = format, .block_n = 64, .block_k = 96}, ActivationFormat::bf16}, "-blocks64x96");
    add.test({5, {.n = 100, .k = 3000, .format = format, .block_n = 64, .block_k = 2048}, ActivationFormat::bf16}, "-blocks64x2048");
    // Blocks across the ends of those chunks, of which no number is a whole number of vectors.
    add.test({5, {.n = 100, .k = 1001, .format = format, .block_n = 64, .block_k = 100}, ActivationFormat::bf16}, "-blocks64x100");
    add.test({5, {.n = 100, .k = 2001, .format = format, .block_n = 64, .block_k = 40}, ActivationFormat::fp8_ue8m0}, "-blocks64x40");
    add.test({17, {.n = 160, .k = 256, .format = format, .block_n = 1, .block_k = 256}, ActivationFormat::fp8_ue8m0}, "-rows");
  }
  add.test({0, {.n = 256, .k = 384, .format = WeightFormat::e4m3_ue8m0}, ActivationFormat::fp8_ue8m0});
  add.test({64, {.n = 256, .k = 512, .format = WeightFormat::e4m3_ue8m0}, ActivationFormat::fp8_ue8m0, DType::f32});
  add.test({17, {.n = 256, .k = 384}, ActivationFormat::fp8_ue8m0});
  add.test({17, {.n = 256, .k = 384}, ActivationFormat::fp8_f32});
  add.test(
      {17, {.n = 256, .k = 384, .format = WeightFormat::e4m3_ue8m0}, ActivationFormat::fp8_ue8m0, DType::bf16, {.inner = 3}, {.inner = 1}},
      "-strided");
  add.test({300, {.n = 512, .k = 1536, .format = WeightFormat::e4m3_ue8m0}, ActivationFormat::fp8_ue8m0}, "", true);
  add.test({2, {.n = 1024, .k = 16384}}, "", true);
  add_gpu_edges(add);
  add_codes(add);
  add_bench(add);
}

std::unique_ptr<AnyCase> linear_ceiling_case(int64_t n) {
  const LinearShape s{n, {.n = n, .k = n}};
  return std::make_unique<TypedCase<LinearParams>>(
      "linear", &OpSet::linear,
      Case<LinearParams>{fmt::format("ceiling-{}", n), [s](Inputs& in) { return build(in, s); }, packer<LinearParams>(Packing::preferred)},
      Tags{.bench = true});
}

void add_random_linear(CaseList& list, Draw& draw) {
  LinearShape s;
  s.tokens = draw.tokens(draw.chance(0.6) ? 70 : 1500);
  const double work = draw.work();
  const auto elements = static_cast<int64_t>(std::min(work / static_cast<double>(std::max<int64_t>(s.tokens, 1)), 8e6));
  s.weight = random_weight(draw, 1, std::max<int64_t>(elements, 1));
  s.activation =
      s.weight.format == WeightFormat::bf16 && draw.chance(0.6)
          ? ActivationFormat::bf16
          : draw.of({ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_ue8m0, ActivationFormat::fp8_f32, ActivationFormat::bf16});
  s.codes = s.activation != ActivationFormat::bf16 && draw.chance(0.4);
  s.weight.shares_device = draw.chance(0.2);
  s.out = draw.of({DType::bf16, DType::bf16, DType::f32});
  s.x_padding = draw.padding();
  s.y_padding = draw.padding();
  Adder(list).test_random(draw.name(name_of(s)), s, draw.of({Packing::never, Packing::never, Packing::preferred}));
}

}  // namespace strata::testkit
