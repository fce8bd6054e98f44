// Which implementation of a CUDA list a call has, over a grid of shapes and SM counts: what recorded/selection.txt says. Needs no GPU. A
// change of selection that is meant writes the file anew: STRATA_RECORD=1 prints its lines. What cuBLASLt takes only it knows: a call that
// reaches it counts as its own. sparse_attn_decode has a file of its own (unit/sparse_decode_selection_test.cpp).
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "backends/cuda/cuda_ops.h"
#include "core/host_device.h"
#include "ops/factories.h"
#include "contracts/packed_weight.h"
#include "test_data.h"

namespace strata::cuda {
namespace {

constexpr DeviceId kCuda{DeviceKind::cuda, 0};

// A Hopper GPU of a given number of SMs, by its properties alone.
class Chip final : public HostDevice {
 public:
  explicit Chip(int sms) : HostDevice(kCuda), sms_(sms) {}
  DeviceProperties properties() const override {
    return {.compute_major = 9, .compute_minor = 0, .num_sms = sms_, .max_shared_bytes = 232448};
  }

 private:
  int sms_;
};

TensorView view(DType dtype, std::initializer_list<int64_t> shape) {
  return TensorView::contiguous(reinterpret_cast<void*>(256), dtype, kCuda, shape);
}

// Without "cuda/".
template <class Params>
std::string selected(const std::vector<Implementation<Params>>& list, const Params& p, const Device& device) {
  for (const auto& impl : list) {
    const std::string name = impl.name.substr(impl.name.find('/') + 1);
    try {
      const Support can = impl.supports(p, device);
      const bool asked_cublaslt = !can && can.reason.find("cuBLASLt has no kernel") != std::string::npos;
      if (asked_cublaslt || (can && (!impl.prefers || impl.prefers(p, device)))) return name;
    } catch (const Error&) {
      return name;  // cuBLASLt without a GPU
    }
  }
  return "none";
}

// Runs of sizes with one selection: " 1-64=sm90_streamed 65=none".
template <class SelectedOf>
std::string runs(const std::vector<int64_t>& sizes, const SelectedOf& selected_of) {
  std::string text, current;
  int64_t first = 0, last = 0;
  const auto end_run = [&] {
    if (!current.empty()) text += " " + std::to_string(first) + (first == last ? "" : "-" + std::to_string(last)) + "=" + current;
  };
  for (const int64_t size : sizes) {
    if (const std::string now = selected_of(size); now != current) {
      end_run();
      current = now, first = size;
    }
    last = size;
  }
  end_run();
  return text;
}

const std::vector<int64_t> kTokens{0,   1,   2,   3,   4,   8,   9,   16,  17,  32,  33,  63,  64,  65,   80,   96,   100,  127, 128,
                                   129, 192, 200, 255, 256, 257, 300, 320, 511, 512, 513, 544, 768, 1024, 1056, 2048, 2100, 4096};

class Lines {
 public:
  void add(const std::string& head, const std::string& selections) { lines_.push_back(head + ":" + selections); }
  const std::vector<std::string>& all() const { return lines_; }

 private:
  std::vector<std::string> lines_;
};

LinearWeight fp8(int64_t groups, int64_t n, int64_t k, int64_t block_n = 128) {
  return {.n = n,
          .k = k,
          .groups = groups,
          .weight = view(DType::e4m3, {groups * n, k}),
          .scale = view(DType::f32, {(groups * n + block_n - 1) / block_n, (k + 127) / 128}),
          .block_n = block_n,
          .power_of_two_scales = true};
}

// Products of V4-Flash, V4-Pro and V3, whole and as ranks of 8, and shapes of none.
void add_linear(Lines& lines, const Chip& chip, const std::string& sms) {
  const auto list = linear();
  struct Shape {
    int64_t n, k, block_n = 128;
  };
  for (const Shape s : {Shape{1536, 4096},
                        {32768, 1024},
                        {4096, 1024},
                        {4096, 8192},
                        {8192, 1024},
                        {2048, 7168},
                        {65536, 1536},
                        {8192, 1536},
                        {7168, 16384},
                        {7168, 2048},
                        {2112, 7168},
                        {24576, 1536},
                        {32768, 512},
                        {20003, 640},
                        {12000, 1040, 64},
                        {24, 640},
                        {7168, 20480}}) {
    LinearWeight w = fp8(1, s.n, s.k, s.block_n);
    for (const int x : {0, 1, 2}) {  // bf16, FP8 values, FP8 values in rows of any distance
      for (const bool shares : {false, true}) {
        w.shares_device = shares;
        const auto of_tokens = [&](int64_t tokens) {
          LinearParams p{.x = view(x == 0 ? DType::bf16 : DType::e4m3, {tokens, s.k}),
                         .weight = &w,
                         .y = view(DType::bf16, {tokens, s.n}),
                         .activation = ActivationFormat::fp8_ue8m0};
          if (x > 0) p.x_scale = view(DType::f32, {tokens, (s.k + 127) / 128});
          if (x == 2) p.x.stride[0] += 5;
          return selected(list, p, chip);
        };
        lines.add("linear " + std::to_string(s.n) + "x" + std::to_string(s.k) + (s.block_n == 128 ? "" : " blocks of 64") +
                      (x == 0   ? " bf16"
                       : x == 1 ? " fp8"
                                : " fp8 unaligned") +
                      (shares ? " sharing" : "") + sms,
                  runs(kTokens, of_tokens));
      }
    }
  }
}

// wo_a as FP8 and as packed values; results as values, as FP8, in rows of any distance, as fp32.
void add_grouped_linear(Lines& lines, const Chip& chip, const std::string& sms) {
  const auto list = ops::make_grouped_linear().implementations();
  for (const int64_t groups : {1, 2, 8, 16, 128}) {
    for (const int64_t n : {64, 128, 192, 1024}) {
      for (const int64_t k : {512, 640, 4096}) {
        const LinearWeight rows = fp8(groups, n, k);
        const LinearWeight packed =
            ops::as_packed(rows, "cuda/sm90_mixed", view(DType::u8, {groups * n * k + groups * n / 64 * (k / 128) * 4}));
        for (const bool mixed : {false, true}) {
          if (mixed && n % 128 != 0) continue;
          for (const int y : {0, 1, 2, 3}) {
            if (y == 1 && n % 128 != 0) continue;
            const auto of_tokens = [&](int64_t tokens) {
              GroupedLinearParams p{.x = view(mixed ? DType::bf16 : DType::e4m3, {tokens, groups, k}),
                                    .weight = mixed ? &packed : &rows,
                                    .y = view(y == 1   ? DType::e4m3
                                              : y == 3 ? DType::f32
                                                       : DType::bf16,
                                              {tokens, groups, n})};
              if (!mixed) p.x_scale = view(DType::f32, {tokens, groups, k / 128});
              if (y == 1) p.y_scale = view(DType::f32, {tokens, groups, n / 128}), p.y_format = ActivationFormat::fp8_ue8m0;
              if (y == 2) p.y.stride[0] += 3;
              return selected(list, p, chip);
            };
            lines.add("grouped_linear " + std::to_string(groups) + "x" + std::to_string(n) + "x" + std::to_string(k) +
                          (mixed ? " packed" : " fp8") +
                          (y == 1   ? " y_fp8"
                           : y == 2 ? " y_unaligned"
                           : y == 3 ? " y_f32"
                                    : "") +
                          sms,
                      runs(kTokens, of_tokens));
          }
        }
      }
    }
  }
}

void add_indexer(Lines& lines, const Chip& chip, const std::string& sms) {
  const auto logits = indexer_logits();
  const PagedCache cache{.data = reinterpret_cast<void*>(256),
                         .device = kCuda,
                         .format = KvFormat::indexer_fp8,
                         .row_dim = 128,
                         .page_size = 64,
                         .num_pages = 100,
                         .page_stride = 64 * 132};
  for (const int64_t heads : {64, 65}) {
    for (const int64_t requests : {1, 4, 64}) {
      const auto of_tokens = [&](int64_t tokens) {
        return selected(logits,
                        {.q = view(DType::e4m3, {tokens, heads, 128}),
                         .weights = view(DType::f32, {tokens, heads}),
                         .cache = cache,
                         .block_table = view(DType::i32, {requests, 10}),
                         .token_to_req = view(DType::i32, {tokens}),
                         .lengths = view(DType::i32, {tokens}),
                         .logits = view(DType::f32, {tokens, 640})},
                        chip);
      };
      lines.add("indexer_logits heads " + std::to_string(heads) + " requests " + std::to_string(requests) + sms, runs(kTokens, of_tokens));
    }
  }
  const auto select = topk_select();
  for (const int64_t columns : {1, 4, 511, 512, 8192, 16384, 16388, 32768, 65536, 65537, 131072, 262144, 262148, 1048576}) {
    for (const int64_t k : {512, 2048}) {
      const auto of_tokens = [&](int64_t tokens) {
        return selected(select,
                        {.logits = view(DType::f32, {tokens, columns}),
                         .lengths = view(DType::i32, {tokens}),
                         .topk_indices = view(DType::i32, {tokens, k})},
                        chip);
      };
      lines.add("topk_select columns " + std::to_string(columns) + " k " + std::to_string(k) + sms, runs(kTokens, of_tokens));
    }
  }
}

void add_compressor(Lines& lines, const Chip& chip, const std::string& sms) {
  const auto list = ops::make_compress_norm_rope_store().implementations();
  for (const int32_t ratio : {4, 128}) {
    for (const int64_t dim : {128, 512}) {
      for (const bool saves : {false, true}) {
        for (const int64_t stride : {0, 8}) {  // between pages, beyond their rows
          const int64_t row = 2 * (ratio == 4 ? 2 : 1) * dim;
          const auto of_tokens = [&](int64_t tokens) {
            CompressNormRopeStoreParams p{.state = {.data = reinterpret_cast<void*>(256),
                                                    .device = kCuda,
                                                    .format = KvFormat::state_f32,
                                                    .row_dim = static_cast<int32_t>(row),
                                                    .page_size = 4,
                                                    .num_pages = 10,
                                                    .page_stride = 16 * row + stride},
                                          .positions = view(DType::i64, {tokens}),
                                          .ratio = ratio,
                                          .norm_weight = view(DType::f32, {dim})};
            if (saves) p.save_prologue = {.kv_score = view(DType::f32, {tokens, row}), .ape = view(DType::f32, {ratio, row / 2})};
            return selected(list, p, chip);
          };
          lines.add("compress_norm_rope_store ratio " + std::to_string(ratio) + " d " + std::to_string(dim) + (saves ? " saves" : "") +
                        (stride > 0 ? " unaligned" : "") + sms,
                    runs(kTokens, of_tokens));
        }
      }
    }
  }
}

TEST(CudaSelection, IsWhatWasRecorded) {
  Lines lines;
  for (const int num_sms : {132, 78}) {
    const Chip chip(num_sms);
    const std::string sms = " sms " + std::to_string(num_sms);
    add_linear(lines, chip, sms);
    add_grouped_linear(lines, chip, sms);
    add_indexer(lines, chip, sms);
    add_compressor(lines, chip, sms);
  }
  if (std::getenv("STRATA_RECORD") != nullptr) {
    for (const std::string& line : lines.all()) std::cout << line << "\n";
    GTEST_SKIP() << "printed what is selected now";
  }
  std::ifstream file(test::data_folder() / "cuda" / "recorded" / "selection.txt");
  size_t i = 0;
  for (std::string line; std::getline(file, line); ++i) {
    ASSERT_LT(i, lines.all().size());
    EXPECT_EQ(lines.all()[i], line);
  }
  EXPECT_EQ(i, lines.all().size());
}

// The reason of what is not taken.
TEST(CudaSelection, RefusalsSayWhatIsNeeded) {
  const Chip chip(132);
  const auto reason = [&](const auto& list, const auto& p, const std::string& name) -> std::string {
    for (const auto& impl : list) {
      if (impl.name == name) return impl.supports(p, chip).reason;
    }
    return "no such implementation";
  };
  const LinearWeight w = fp8(1, 4096, 8192);
  LinearParams p{.x = view(DType::e4m3, {4, 8192}),
                 .x_scale = view(DType::f32, {4, 64}),
                 .weight = &w,
                 .y = view(DType::bf16, {4, 4096}),
                 .activation = ActivationFormat::fp8_ue8m0};
  EXPECT_EQ(reason(linear(), p, "cuda/sm90_streamed"), "");
  p.x.stride[0] += 5;
  EXPECT_EQ(reason(linear(), p, "cuda/sm90_streamed"), "rows of FP8 values must begin at multiples of 16 bytes");

  const PagedCache cache{.data = reinterpret_cast<void*>(256),
                         .device = kCuda,
                         .format = KvFormat::fp8_ds_mla_v4,
                         .row_dim = 512,
                         .page_size = 64,
                         .num_pages = 10,
                         .page_stride = 64 * 584};
  SparseAttnDecodeParams d{.q = view(DType::bf16, {4, 1, 64, 512}),
                           .cache = cache,
                           .indices = view(DType::i32, {4, 1, 128}),
                           .softmax_scale = 1.0f,
                           .out = view(DType::bf16, {4, 1, 64, 512})};
  const auto decode = sparse_attn_decode();
  EXPECT_EQ(reason(decode, d, "cuda/sm90_h64"), "");
  EXPECT_EQ(reason(decode, d, "cuda/smxx"), "");
  d.cache.page_stride += 8;
  EXPECT_EQ(reason(decode, d, "cuda/sm90_h64"), "pages must be at multiples of 16 bytes, are 37384 bytes apart");
  EXPECT_EQ(reason(decode, d, "cuda/smxx"), "");
  d.cache = cache, d.out.stride[2] += 3;
  EXPECT_NE(reason(decode, d, "cuda/sm90_few_heads").find("out must have rows at multiples of 16 bytes"), std::string::npos);
  EXPECT_EQ(selected(decode, d, chip), "smxx");
}

}  // namespace
}  // namespace strata::cuda
