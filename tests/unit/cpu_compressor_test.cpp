// The CPU's compressor ops against the scalar reference, at every instruction-set cap.
#include "formats/kv_rows.h"
#include "unit/cpu_harness.h"

namespace strata::cpu_test {
namespace {

struct Case {
  int32_t ratio;
  int64_t d;
  KvFormat format;
  bool hadamard;
  std::vector<int64_t> begin, end;  // positions of each request that this step brings
};

class Step {
 public:
  explicit Step(const Case& c) : case_(c), random_(7), width_(c.ratio == 4 ? 2 * c.d : c.d) {
    state_ = {.format = KvFormat::state_f32, .row_dim = static_cast<int32_t>(2 * width_), .page_size = c.ratio == 4 ? 4 : 8};
    blocks_ = 300 / state_.page_size + 1;
    state_.num_pages = blocks_ * static_cast<int64_t>(c.begin.size()) + 1;
    state_.page_stride = page_padded_bytes(state_.format, state_.row_dim, state_.page_size, 576);
    state_memory_ = random_.normals(state_.num_pages * state_.page_stride / 4, 2.0f);
    cache_ = {.format = c.format, .row_dim = static_cast<int32_t>(c.d), .page_size = 5, .num_pages = 80, .scale = 0.02f};
    cache_.page_stride = page_payload_bytes(c.format, cache_.row_dim, 5) + 11;
    table_.resize(static_cast<size_t>(blocks_) * c.begin.size());
    for (size_t i = 0; i < table_.size(); ++i) table_[i] = static_cast<int32_t>(i * 7 % table_.size() + 1);
    for (size_t r = 0; r < c.begin.size(); ++r) {
      for (int64_t p = c.begin[r]; p < c.end[r]; ++p) {
        positions_.push_back(p);
        request_.push_back(static_cast<int32_t>(r));
        const int64_t page = table_[r * static_cast<size_t>(blocks_) + static_cast<size_t>(p / state_.page_size)];
        state_slots_.push_back(p % 11 == 5 ? -1 : page * state_.page_size + p % state_.page_size);
        out_slots_.push_back((p + 1) % c.ratio != 0 || p % 19 == 18 ? -1 : static_cast<int64_t>(r) * 100 + p / c.ratio);
      }
    }
    tokens_ = static_cast<int64_t>(positions_.size());
    kv_score_ = random_.normals(tokens_ * (2 * width_ + 4), 2.0f);
    ape_ = random_.normals(c.ratio * width_);
    weight_ = random_.normals(c.d);
    cos_sin_ = rope_table(300, 64);
  }

  std::vector<float> save(const std::string& name, CpuIsa cap) {
    auto memory = state_memory_;
    SavePartialStatesParams p;
    p.kv_score = view(kv_score_, DType::f32, {tokens_, 2 * width_ + 4}).columns(2, 2 * width_);
    p.ape = view(ape_, DType::f32, {case_.ratio, width_});
    p.positions = view(positions_, DType::i64, {tokens_});
    p.state_slots = view(state_slots_, DType::i64, {tokens_});
    p.state = state_;
    p.state.data = memory.data();
    static const auto op = ops::make_save_partial_states();
    EXPECT_TRUE(run(op, name, p, *capped(cap)));
    return memory;
  }

  struct Result {
    std::vector<float> state;
    std::vector<uint8_t> rows;
  };
  // saves: the op makes the step's saves too.
  Result compress(const std::string& name, CpuIsa cap, bool saves) {
    auto state_memory = state_memory_;
    std::vector<uint8_t> memory(static_cast<size_t>(cache_.num_pages * cache_.page_stride), 0xCD);
    CompressNormRopeStoreParams p;
    p.state = state_;
    p.state.data = state_memory.data();
    if (saves) {
      p.save_prologue = {.kv_score = view(kv_score_, DType::f32, {tokens_, 2 * width_ + 4}).columns(2, 2 * width_),
                         .ape = view(ape_, DType::f32, {case_.ratio, width_})};
    }
    p.block_table = view(table_, DType::i32, {static_cast<int64_t>(case_.begin.size()), blocks_});
    p.token_to_req = view(request_, DType::i32, {tokens_});
    p.positions = view(positions_, DType::i64, {tokens_});
    p.state_slots = view(state_slots_, DType::i64, {tokens_});
    p.out_slots = view(out_slots_, DType::i64, {tokens_});
    p.ratio = case_.ratio;
    p.norm_weight = view(weight_, DType::f32, {case_.d});
    p.cos_sin = view(cos_sin_, DType::f32, {300, 64});
    p.cache = cache_;
    p.cache.data = memory.data();
    p.hadamard = case_.hadamard;
    static const auto op = ops::make_compress_norm_rope_store();
    EXPECT_TRUE(run(op, name, p, *capped(cap)));
    return {std::move(state_memory), std::move(memory)};
  }

 private:
  Case case_;
  Random random_;
  int64_t width_, blocks_ = 0, tokens_ = 0;
  PagedCache state_, cache_;
  std::vector<float> state_memory_, kv_score_, ape_, weight_, cos_sin_;
  std::vector<int32_t> table_, request_;
  std::vector<int64_t> positions_, state_slots_, out_slots_;
};

TEST(CpuCompressor, AgreesWithTheReference) {
  const std::vector<int64_t> begin{0, 37, 255, 120}, end{140, 38, 256, 270};
  const Case cases[] = {
      {4, 512, KvFormat::fp8_ds_mla_v4, false, begin, end},
      {128, 512, KvFormat::fp8_ds_mla_v4, false, begin, end},
      {4, 512, KvFormat::bf16, false, begin, end},
      {128, 512, KvFormat::fp8_tensor, false, begin, end},
      {4, 128, KvFormat::indexer_fp8, false, begin, end},
      {4, 128, KvFormat::indexer_mxfp4, false, begin, end},
      {4, 128, KvFormat::indexer_mxfp4, true, begin, end},
      {4, 128, KvFormat::indexer_fp8, true, begin, end},
      {4, 128, KvFormat::bf16, true, {3}, {4}},
      {4, 512, KvFormat::fp8_ds_mla_v4, false, {0}, {0}},
  };
  for (const Case& c : cases) {
    Step step(c);
    const std::string what = std::string(to_string(c.format)) + " ratio " + std::to_string(c.ratio);
    const auto states = step.save("reference", CpuIsa::best);
    const Step::Result plain = step.compress("reference", CpuIsa::best, false), saving = step.compress("reference", CpuIsa::best, true);
    EXPECT_EQ(states, saving.state) << what;
    EXPECT_EQ(plain.rows == saving.rows, c.begin[0] == c.end[0]) << what << ": entries of the states from before";
    for (const CpuIsa cap : kCaps) {
      EXPECT_EQ(states, step.save("cpu/simd", cap)) << what << " " << to_string(cap);
      expect_near_codes(plain.rows, step.compress("cpu/simd", cap, false).rows, 1e-3, what + " " + to_string(cap));
      const Step::Result both = step.compress("cpu/simd", cap, true);
      EXPECT_EQ(states, both.state) << what << " " << to_string(cap);
      expect_near_codes(saving.rows, both.rows, 1e-3, what + ", saving, " + to_string(cap));
    }
  }
}

}  // namespace
}  // namespace strata::cpu_test
