// Files of recorded sequences: which are there, and files that only look like one.
#include "runner/recorded_sequences.h"

#include "runner/replay.h"
#include "unit/checkpoint_files.h"
#include "test_data.h"

namespace strata::test {
namespace {

using runner::find_input;
using runner::recorded_prefill;
using runner::sequence_numbers;
using testing::ElementsAre;
using testing::HasSubstr;

class RecordedSequences : public testing::Test {
 protected:
  void add_bf16(const std::string& name, std::vector<int64_t> shape) {
    size_t numel = 1;
    for (const int64_t extent : shape) numel *= static_cast<size_t>(extent);
    tensors_.add(name, DType::bf16, std::move(shape), std::vector<uint16_t>(numel));
  }
  SafetensorsFile file() {
    tensors_.write(dir_.path() / "cases.safetensors");
    return SafetensorsFile(dir_.path() / "cases.safetensors");
  }
  template <class F>
  std::string refusal(F&& f) {
    return message_of(ErrorCode::invalid_file, f);
  }

  TempDir dir_;
  TensorList tensors_;
};

TEST_F(RecordedSequences, NumbersThatAreThere) {
  for (const char* name : {"layer1.seq12.x", "layer1.seq3.x", "layer1.seq0.x", "layer1.seq01.x", "layer1.seq-1.x", "layer1.seq.x", "seq5.x",
                           "layer1.seq4.out", "layer1.seq99999999999999999999.x", "layer2.seq6.x"}) {
    add_bf16(name, {1, 2});
  }
  const SafetensorsFile f = file();
  EXPECT_THAT(sequence_numbers(f, "layer1.seq"), ElementsAre(0, 3, 12));
  EXPECT_THAT(sequence_numbers(f, "seq"), ElementsAre(5));
}

TEST_F(RecordedSequences, Inputs) {
  add_bf16("good", {3, 4});
  add_bf16("empty", {0, 4});
  add_bf16("no columns", {8'388'608, 0});
  add_bf16("flat", {4});
  tensors_.add("f32", DType::f32, {3, 4}, std::vector<float>(12));
  const SafetensorsFile f = file();
  EXPECT_EQ(find_input(f, "good", 4)->shape[0], 3);
  EXPECT_EQ(find_input(f, "other", 4), nullptr);
  EXPECT_THAT(refusal([&] { find_input(f, "good", 5); }), HasSubstr("good must be bf16 [-1, 5] (-1: any), is bf16 [3, 4]"));
  EXPECT_THAT(refusal([&] { find_input(f, "empty", 4); }), HasSubstr("empty must have at least 1 token, has none"));
  EXPECT_THAT(refusal([&] { find_input(f, "no columns", 4); }), HasSubstr("is bf16 [8388608, 0]"));
  EXPECT_THAT(refusal([&] { find_input(f, "flat", 4); }), HasSubstr("is bf16 [4]"));
  EXPECT_THAT(refusal([&] { find_input(f, "f32", 4); }), HasSubstr("is f32 [3, 4]"));
}

TEST_F(RecordedSequences, Prefill) {
  tensors_.add("a.num_prefill", DType::i32, {1}, std::vector<int32_t>{5});
  tensors_.add("b.num_prefill", DType::i64, {1}, std::vector<int64_t>{5});
  tensors_.add("c.num_prefill", DType::i32, {2}, std::vector<int32_t>{5, 5});
  tensors_.add("d.num_prefill", DType::i32, {1}, std::vector<int32_t>{-1});
  const SafetensorsFile f = file();
  EXPECT_EQ(recorded_prefill(f, "a.", 5), 5);
  EXPECT_EQ(recorded_prefill(f, "none.", 7), 7);
  EXPECT_THAT(refusal([&] { recorded_prefill(f, "a.", 4); }), HasSubstr("a.num_prefill must be in [0, 4], is 5"));
  EXPECT_THAT(refusal([&] { recorded_prefill(f, "b.", 5); }), HasSubstr("b.num_prefill must be i32 [1]"));
  EXPECT_THAT(refusal([&] { recorded_prefill(f, "c.", 5); }), HasSubstr("is i32 [2]"));
  EXPECT_THAT(refusal([&] { recorded_prefill(f, "d.", 5); }), HasSubstr("is -1"));
}

// Replay looks at what a tensor is before it makes room for it.
TEST_F(RecordedSequences, ReplayOfManyTokensWithoutData) {
  synthesize_checkpoint(preset("v4-tiny"), {.num_layers = 1}, dir_.path());
  const Checkpoint checkpoint(dir_.path());
  add_bf16("layer0.seq0.x", {2, checkpoint.config().hidden_size});
  add_bf16("layer0.seq7.x", {8'388'608, 0});
  const SafetensorsFile f = file();
  EXPECT_THAT(refusal([&] { runner::replay(checkpoint, f, open_device({}), default_ops(), default_layers(), {}); }),
              HasSubstr("layer0.seq7.x must be bf16"));
}

// The layer returns zeros, and one recorded value is 1.
TEST_F(RecordedSequences, ReplayOfOutputsInEitherType) {
  synthesize_checkpoint(preset("v4-tiny"), {.num_layers = 1}, dir_.path());
  const Checkpoint checkpoint(dir_.path());
  const int64_t hidden = checkpoint.config().hidden_size;
  const auto n = static_cast<size_t>(hidden);
  std::vector<float> f32(n);
  f32[1] = 1;
  std::vector<uint16_t> bf16(n);
  bf16[1] = 0x3F80;
  for (const char* name : {"layer0.seq0.x", "layer0.seq1.x"}) add_bf16(name, {1, hidden});
  tensors_.add("layer0.seq0.out", DType::bf16, {1, hidden}, bf16);
  tensors_.add("layer0.seq1.out", DType::f32, {1, hidden}, f32);
  const auto results = runner::replay(checkpoint, file(), open_device({}), default_ops(), default_layers(), {});
  ASSERT_EQ(results.size(), 2u);
  for (const auto& r : results) EXPECT_EQ(r.out_error, 1) << "sequence " << r.sequence;

  add_bf16("layer0.seq2.x", {1, hidden});
  tensors_.add("layer0.seq2.out", DType::i32, {1, hidden}, std::vector<int32_t>(n));
  const SafetensorsFile integers = file();
  EXPECT_THAT(refusal([&] { runner::replay(checkpoint, integers, open_device({}), default_ops(), default_layers(), {}); }),
              HasSubstr("layer0.seq2.out must be bf16 or f32 [1, " + std::to_string(hidden) + "] (-1: any), is i32"));
}

// One byte before the tensors: nothing in the file begins at a multiple of its size.
TEST_F(RecordedSequences, ReplayOfUnalignedTensors) {
  synthesize_checkpoint(preset("v4-tiny"), {.num_layers = 1}, dir_.path());
  const Checkpoint checkpoint(dir_.path());
  const int64_t hidden = checkpoint.config().hidden_size;
  tensors_.add("byte", DType::u8, {1}, std::vector<uint8_t>(1));
  add_bf16("layer0.seq2.x", {2, hidden});
  add_bf16("layer0.seq2.out", {2, hidden});
  const SafetensorsFile f = file();
  ASSERT_NE(reinterpret_cast<uintptr_t>(f.find("layer0.seq2.out")->data) % 2, 0u);
  const auto results = runner::replay(checkpoint, f, open_device({}), default_ops(), default_layers(), {});
  ASSERT_EQ(results.size(), 1u);
  EXPECT_EQ(results.front().sequence, 2);
  EXPECT_EQ(results.front().out_error, 0) << "attention to zeros is zeros";
}

// The scale that a checkpoint was calibrated with is that of its per-tensor FP8 caches, and of no others.
TEST_F(RecordedSequences, ReplayTakesTheScaleOfFp8Caches) {
  const std::filesystem::path golden = test::golden_folder("mla_v3");
  const SafetensorsFile weights(golden / "model.safetensors"), recorded(golden / "cases.safetensors");
  const auto error = [&](float k_scale, KvFormat format) {
    std::vector<StoredTensor> tensors(weights.tensors().begin(), weights.tensors().end());
    tensors.push_back({"model.layers.0.self_attn.k_scale", DType::f32, {}, reinterpret_cast<const std::byte*>(&k_scale), 4});
    const Checkpoint checkpoint(ModelConfig::load(golden), tensors);
    runner::ReplayOptions options;
    options.layer.kv_format = format;
    options.only_layer = 0;
    double worst = 0;
    for (const auto& result : runner::replay(checkpoint, recorded, open_device({}), default_ops(), default_layers(), options)) {
      worst = std::max(worst, result.out_error);
    }
    return worst;
  };
  EXPECT_LT(error(0.0625f, KvFormat::fp8_tensor), 0.1);
  EXPECT_GT(error(1e6f, KvFormat::fp8_tensor), 0.5) << "every key is rounded to zero";
  EXPECT_LT(error(1e6f, KvFormat::bf16), 0.02);
}

}  // namespace
}  // namespace strata::test
