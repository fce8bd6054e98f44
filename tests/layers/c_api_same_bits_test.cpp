// The C API computes what the C++ API computes: the same steps of the same requests give the same bits, of one rank and of two.
#include <algorithm>
#include <array>
#include <barrier>
#include <map>
#include <random>
#include <thread>

#include "formats/bf16.h"
#include "strata/attention.h"
#include "strata/strata.h"
#include "test_data.h"
#include "tested_device.h"
#include "unit/c_calls.h"

namespace strata {
namespace {

using Bits = std::vector<uint16_t>;

constexpr int64_t kMaxTokens = 96, kMaxSeqs = 3, kMaxLen = 256;

// New tokens of each request of a step. Requests begin with their first step.
struct Request {
  int64_t id;
  int64_t tokens;
};
using Step = std::vector<Request>;
// Chunks of prompts, decodes, and both together; lengths pass the ratios and the window.
const std::vector<Step>& steps() {
  static const std::vector<Step> all{{{1, 96}},        {{1, 37}, {2, 50}}, {{1, 1}, {2, 1}, {3, 70}}, {{1, 1}, {2, 1}, {3, 1}},
                                     {{1, 1}, {3, 1}}, {{1, 90}},          {{1, 1}, {2, 3}, {3, 5}}};
  return all;
}

// Sums of the ranks' tensors, in the order of the ranks, so that both APIs round alike.
class Meeting {
 public:
  explicit Meeting(int ranks) : rows_(static_cast<size_t>(ranks)), barrier_(ranks) {}
  // Every rank calls it with its values, bf16 or f32, and gets the sum.
  void sum(int rank, bool is_f32, std::vector<std::byte>& values) {
    rows_[static_cast<size_t>(rank)] = values;
    barrier_.arrive_and_wait();
    for (size_t i = 0; i < values.size() / (is_f32 ? 4 : 2); ++i) {
      float total = 0;
      for (const auto& row : rows_) total += is_f32 ? at<float>(row, i) : to_float(at<Bf16>(row, i));
      if (is_f32) {
        std::memcpy(values.data() + i * 4, &total, 4);
      } else {
        const Bf16 rounded = to_bf16(total);
        std::memcpy(values.data() + i * 2, &rounded, 2);
      }
    }
    barrier_.arrive_and_wait();
  }

 private:
  template <class T>
  static T at(const std::vector<std::byte>& row, size_t i) {
    T value;
    std::memcpy(&value, row.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  std::vector<std::vector<std::byte>> rows_;
  std::barrier<> barrier_;
};

// Hidden states of a step, the same for both APIs and all layers.
Bits random_rows(int64_t rows, int64_t width, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Bits values(static_cast<size_t>(rows * width));
  for (uint16_t& v : values) {
    const Bf16 rounded = to_bf16(normal(random));
    std::memcpy(&v, &rounded, 2);
  }
  return values;
}

// One rank's run through the C++ API: the outputs of all layers and steps.
class CxxRun {
 public:
  CxxRun(const std::string& directory, int rank, int size, Meeting* meeting) : device_(test::open_tested_device()), checkpoint_(directory) {
    LayerOptions options;
    options.limits = limits_;
    options.tp_rank = rank;
    options.tp_size = size;
    const OpSet ops = default_ops();
    const auto tables = std::make_shared<RopeTables>(device_, kMaxLen);
    const auto streams = std::make_shared<SideStreams>(device_);
    const std::shared_ptr<Communicator> communicator = meeting == nullptr ? nullptr : std::make_shared<Ranks>(rank, size, *meeting);
    int64_t workspace = 1, topk = 1;
    for (const int64_t layer : checkpoint_.attention_layers()) {
      layers_.push_back(default_layers().make({.checkpoint = checkpoint_,
                                               .layer = layer,
                                               .device = device_,
                                               .ops = ops,
                                               .options = options,
                                               .rope_tables = tables,
                                               .communicator = communicator,
                                               .side_streams = streams}));
      groups_.push_back(layers_.back()->cache_groups());
      workspace = std::max(workspace, layers_.back()->workspace_bytes());
      topk = std::max(topk, layers_.back()->index_topk());
    }
    const int64_t hidden_size = checkpoint_.config().hidden_size;
    workspace_ = Tensor(device_, DType::u8, {workspace});
    topk_ = Tensor(device_, DType::i32, {kMaxTokens, topk});
    hidden_ = Tensor(device_, DType::bf16, {kMaxTokens, hidden_size});
    out_ = Tensor(device_, DType::bf16, {kMaxTokens, hidden_size});
    pool_ = std::make_unique<PagedPool>(device_, groups_, plan_pages(groups_, limits_), uint8_t{0xFF});
    builder_ = std::make_unique<BatchBuilder>(device_, ops, limits_, *pool_, checkpoint_.config().sliding_window);
  }

  std::vector<Bits> run() {
    std::vector<Bits> outputs;
    std::mt19937 random(5);
    std::map<int64_t, int64_t> computed;
    for (const Step& step : steps()) {
      std::vector<BatchRequest> requests;
      for (const Request& r : step) {
        if (!computed.contains(r.id)) pool_->add_request(r.id);
        const int64_t first = computed[r.id], end = computed[r.id] += r.tokens;
        EXPECT_TRUE(pool_->extend(r.id, first, end));
        requests.push_back({.seq_len = end, .query_len = r.tokens, .block_tables = pool_->block_tables(r.id), .id = r.id});
      }
      const Batch& batch = builder_->build(requests);
      const Bits rows = random_rows(batch.num_tokens, checkpoint_.config().hidden_size, random);
      device_->copy_from_host(hidden_.view().data, rows.data(), std::ssize(rows) * 2, {});
      for (size_t l = 0; l < layers_.size(); ++l) {
        ForwardArgs args;
        args.batch = &batch;
        args.caches = pool_->layer(static_cast<int64_t>(l));
        args.hidden = hidden_.view().slice(0, batch.num_tokens);
        args.out = out_.view().slice(0, batch.num_tokens);
        if (layers_[l]->index_topk() > 0) args.topk_indices = topk_.view().columns(0, layers_[l]->index_topk());
        args.workspace = workspace_of(workspace_);
        layers_[l]->forward(args);
        Bits& out = outputs.emplace_back(rows.size());
        device_->copy_to_host(out.data(), args.out.data, args.out.bytes(), {});
        device_->synchronize({});
      }
    }
    return outputs;
  }

 private:
  class Ranks final : public Communicator {
   public:
    Ranks(int rank, int size, Meeting& meeting) : rank_(rank), size_(size), meeting_(meeting) {}
    int rank() const override { return rank_; }
    int size() const override { return size_; }
    void all_reduce_sum(const TensorView& tensor, Device& device, Stream stream) override {
      std::vector<std::byte> values(static_cast<size_t>(tensor.bytes()));
      device.copy_to_host(values.data(), tensor.data, tensor.bytes(), stream);
      device.synchronize(stream);
      meeting_.sum(rank_, tensor.dtype == DType::f32, values);
      device.copy_from_host(tensor.data, values.data(), tensor.bytes(), stream);
      device.synchronize(stream);
    }

   private:
    int rank_, size_;
    Meeting& meeting_;
  };

  const BatchLimits limits_{.max_num_batched_tokens = kMaxTokens, .max_num_seqs = kMaxSeqs, .max_model_len = kMaxLen};
  std::shared_ptr<Device> device_;
  Checkpoint checkpoint_;
  std::vector<std::vector<CacheGroupSpec>> groups_;
  std::vector<std::unique_ptr<AttentionLayer>> layers_;
  Tensor workspace_, topk_, hidden_, out_;
  std::unique_ptr<PagedPool> pool_;
  std::unique_ptr<BatchBuilder> builder_;
};

// The same through the C API. Steps take their block tables and caches from the pool, or every second one as an engine's own arrays.
class CRun {
 public:
  CRun(const std::string& directory, int rank, int size, Meeting* meeting)
      : device_(test::open_c_device(to_string(test::tested_device()).c_str())), rank_(rank), meeting_(meeting) {
    EXPECT_DONE(strata_device_get_id(device_, &id_));
    test::OwnedCheckpoint checkpoint;
    EXPECT_DONE(strata_checkpoint_open(directory.c_str(), nullptr, &checkpoint));
    test::OwnedConfig config;
    EXPECT_DONE(strata_checkpoint_get_config(checkpoint, &config));
    strata_model_info model = strata_model_info_default();
    EXPECT_DONE(strata_model_config_get_info(config, &model));
    hidden_size_ = model.hidden_size;
    limits_.max_num_batched_tokens = kMaxTokens;
    limits_.max_num_seqs = kMaxSeqs;
    limits_.max_model_len = kMaxLen;
    make_layers(checkpoint, size);
    make_caches(model.sliding_window);
    for (void** const memory : {&hidden_, &out_}) EXPECT_DONE(strata_device_allocate(device_, kMaxTokens * hidden_size_ * 2, memory));
  }
  ~CRun() {
    for (void* const memory : {hidden_, out_, topk_, workspace_}) EXPECT_DONE(strata_device_deallocate(device_, memory));
  }
  CRun(const CRun&) = delete;
  CRun& operator=(const CRun&) = delete;

  std::vector<Bits> run() {
    std::vector<Bits> outputs;
    std::mt19937 random(5);
    std::map<int64_t, int64_t> computed;
    bool own = false;
    for (const Step& step : steps()) {
      std::vector<strata_batch_request> requests;
      for (const Request& r : step) {
        if (!computed.contains(r.id)) {
          EXPECT_DONE(strata_pool_add_request(pool_, r.id));
        }
        int32_t extended = 0;
        const int64_t first = computed[r.id], end = computed[r.id] += r.tokens;
        EXPECT_DONE(strata_pool_extend(pool_, r.id, first, end, &extended));
        EXPECT_EQ(extended, 1);
        strata_batch_request request = strata_batch_request_default();
        request.seq_len = end;
        request.query_len = r.tokens;
        request.pool = pool_;
        request.pool_request = r.id;
        requests.push_back(request);
      }
      build(requests, own);
      strata_batch_info batch = strata_batch_info_default();
      EXPECT_DONE(strata_batch_get_info(builder_, &batch));
      const Bits rows = random_rows(batch.num_tokens, hidden_size_, random);
      EXPECT_DONE(strata_device_copy_from_host(device_, hidden_, rows.data(), std::ssize(rows) * 2, {}));
      for (size_t l = 0; l < layers_.size(); ++l) {
        forward(l, batch.num_tokens, own);
        Bits& out = outputs.emplace_back(rows.size());
        EXPECT_DONE(strata_device_copy_to_host(device_, out.data(), out_, std::ssize(out) * 2, {}));
        EXPECT_DONE(strata_stream_synchronize(device_, {}));
      }
      own = !own;
    }
    return outputs;
  }

 private:
  void make_layers(strata_checkpoint checkpoint, int size) {
    test::OwnedTables tables;
    test::OwnedSideStreams streams;
    test::OwnedCommunicator communicator;
    EXPECT_DONE(strata_rope_tables_create(device_, kMaxLen, &tables));
    EXPECT_DONE(strata_side_streams_create(device_, &streams));
    if (meeting_ != nullptr) {
      strata_communicator_callbacks callbacks = strata_communicator_callbacks_default();
      callbacks.user = this;
      callbacks.rank = rank_;
      callbacks.size = size;
      callbacks.all_reduce_sum = [](void* user, const strata_tensor_view* tensor, strata_device_id, void* native) {
        return static_cast<CRun*>(user)->all_reduce_sum(*tensor, native);
      };
      EXPECT_DONE(strata_communicator_create(&callbacks, &communicator));
    }
    strata_layer_options options = strata_layer_options_default();
    options.limits = &limits_;
    options.tp_rank = rank_;
    options.tp_size = size;
    strata_layer_params params = strata_layer_params_default();
    params.checkpoint = checkpoint;
    params.device = device_;
    params.options = &options;
    params.rope_tables = tables;
    params.communicator = communicator;
    params.side_streams = streams;
    std::array<int64_t, 16> numbers{};
    int64_t num_layers = 0, topk = 1;
    EXPECT_DONE(strata_checkpoint_attention_layers(checkpoint, numbers.data(), std::ssize(numbers), &num_layers));
    for (int64_t l = 0; l < num_layers; ++l) {
      params.layer = numbers[static_cast<size_t>(l)];
      EXPECT_DONE(strata_layer_create(&params, &layers_.emplace_back()));
      strata_layer_info& info = infos_.emplace_back(strata_layer_info_default());
      EXPECT_DONE(strata_layer_get_info(layers_.back(), &info));
      workspace_bytes_ = std::max(workspace_bytes_, info.workspace_bytes);
      topk = std::max(topk, info.index_topk);
    }
    EXPECT_DONE(strata_device_allocate(device_, workspace_bytes_, &workspace_));
    EXPECT_DONE(strata_device_allocate(device_, kMaxTokens * topk * 4, &topk_));
  }
  void make_caches(int64_t window) {
    std::vector<strata_cache_group_spec> specs;
    std::vector<int64_t> counts;
    for (const auto& layer : layers_) {
      std::array<strata_cache_group_spec, STRATA_NUM_CACHE_GROUPS> of_layer{};
      of_layer[0] = strata_cache_group_spec_default();
      EXPECT_DONE(strata_layer_cache_groups(layer, of_layer.data(), std::ssize(of_layer), &counts.emplace_back()));
      specs.insert(specs.end(), of_layer.begin(), of_layer.begin() + counts.back());
    }
    strata_layer_groups groups = strata_layer_groups_default();
    groups.specs = specs.data();
    groups.num_specs = counts.data();
    groups.num_layers = std::ssize(counts);
    std::array<int64_t, STRATA_NUM_CACHE_GROUPS> pages{};
    EXPECT_DONE(strata_plan_pages(&groups, &limits_, 0, pages.data(), std::ssize(pages)));
    const uint8_t fill = 0xFF;
    strata_pool_params pool = strata_pool_params_default();
    pool.layer_groups = &groups;
    pool.pages = pages.data();
    pool.num_groups = std::ssize(pages);
    pool.fill = &fill;
    EXPECT_DONE(strata_pool_create(device_, &pool, &pool_));
    strata_batch_builder_params builder = strata_batch_builder_params_default();
    builder.limits = &limits_;
    builder.pool = pool_;
    builder.window = window;
    EXPECT_DONE(strata_batch_builder_create(device_, &builder, &builder_));
  }

  void build(std::vector<strata_batch_request> requests, bool own) {
    std::vector<std::vector<int32_t>> tables;
    std::vector<std::array<const int32_t*, STRATA_NUM_CACHE_GROUPS>> pointers(requests.size());
    std::vector<std::array<int64_t, STRATA_NUM_CACHE_GROUPS>> lens(requests.size());
    for (size_t i = 0; own && i < requests.size(); ++i) {
      strata_batch_request& r = requests[i];
      for (int32_t g = 0; g < STRATA_NUM_CACHE_GROUPS; ++g) {
        int64_t free = 0;
        if (strata_pool_free_pages(pool_, g, &free) != STRATA_OK) continue;  // no such group
        const auto at = static_cast<size_t>(g);
        std::vector<int32_t>& table = tables.emplace_back(64);
        EXPECT_DONE(strata_pool_block_table(pool_, r.pool_request, g, table.data(), std::ssize(table), &lens[i][at]));
        EXPECT_LE(lens[i][at], 64);
        pointers[i][at] = table.data();
      }
      r.pool = {};
      r.block_tables = pointers[i].data();
      r.block_table_lens = lens[i].data();
      r.num_block_tables = STRATA_NUM_CACHE_GROUPS;
    }
    EXPECT_DONE(strata_batch_build(builder_, requests.data(), std::ssize(requests), nullptr, {}));
  }
  void forward(size_t layer, int64_t num_tokens, bool own) {
    strata_forward_args args = strata_forward_args_default();
    const int64_t rows[] = {num_tokens, hidden_size_}, topk[] = {kMaxTokens, infos_[layer].index_topk};
    EXPECT_DONE(strata_tensor_view_contiguous(hidden_, STRATA_BF16, id_, 2, rows, &args.hidden));
    EXPECT_DONE(strata_tensor_view_contiguous(out_, STRATA_BF16, id_, 2, rows, &args.out));
    if (topk[1] > 0) {
      EXPECT_DONE(strata_tensor_view_contiguous(topk_, STRATA_I32, id_, 2, topk, &args.topk_indices));
    }
    std::array<strata_paged_cache, STRATA_NUM_CACHE_GROUPS> caches{};
    std::array<const strata_paged_cache*, STRATA_NUM_CACHE_GROUPS> pointers{};
    args.batch = builder_;
    if (own) {
      for (size_t g = 0; g < caches.size(); ++g) {
        caches[g] = strata_paged_cache_default();
        EXPECT_DONE(strata_pool_cache(pool_, static_cast<int64_t>(layer), static_cast<int32_t>(g), &caches[g]));
        pointers[g] = &caches[g];
      }
      args.caches = pointers.data();
      args.num_caches = STRATA_NUM_CACHE_GROUPS;
    } else {
      args.pool = pool_;
      args.pool_layer = static_cast<int64_t>(layer);
    }
    args.workspace = workspace_;
    args.workspace_bytes = workspace_bytes_;
    EXPECT_DONE(strata_layer_forward(layers_[layer], &args));
  }

  strata_status all_reduce_sum(const strata_tensor_view& tensor, void* native) {
    strata_stream stream{};
    strata_status status = strata_stream_wrap(device_, native, &stream);
    int64_t bytes = strata_dtype_bytes(tensor.dtype);
    for (int32_t i = 0; i < tensor.rank; ++i) bytes *= tensor.shape[i];
    std::vector<std::byte> values(static_cast<size_t>(bytes));
    if (status == STRATA_OK) status = strata_device_copy_to_host(device_, values.data(), tensor.data, bytes, stream);
    if (status == STRATA_OK) status = strata_stream_synchronize(device_, stream);
    meeting_->sum(rank_, tensor.dtype == STRATA_F32, values);
    if (status == STRATA_OK) status = strata_device_copy_from_host(device_, tensor.data, values.data(), bytes, stream);
    if (status == STRATA_OK) status = strata_stream_synchronize(device_, stream);
    (void)strata_stream_destroy(stream);
    return status;
  }

  const test::OwnedCDevice device_;
  strata_device_id id_{};
  int rank_;
  Meeting* meeting_;
  int64_t hidden_size_ = 0;
  strata_batch_limits limits_ = strata_batch_limits_default();
  std::vector<test::OwnedLayer> layers_;
  std::vector<strata_layer_info> infos_;
  test::OwnedPool pool_;
  test::OwnedBuilder builder_;
  void *hidden_ = nullptr, *out_ = nullptr, *topk_ = nullptr, *workspace_ = nullptr;
  int64_t workspace_bytes_ = 1;
};

class CApiSameBits : public test::TestedDevice, public testing::WithParamInterface<const char*> {
 protected:
  std::string directory() const { return test::golden_folder(GetParam()).string(); }
};

void expect_same(const std::vector<Bits>& got, const std::vector<Bits>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (const Bits& output : want) {
    EXPECT_TRUE(std::none_of(output.begin(), output.end(), [](uint16_t v) { return (v & 0x7F80) == 0x7F80; })) << "not finite";
    EXPECT_TRUE(std::any_of(output.begin(), output.end(), [](uint16_t v) { return (v & 0x7FFF) != 0; })) << "only zeros";
  }
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i], want[i]) << "output " << i << ", of all layers of all steps";
}

TEST_P(CApiSameBits, OneRank) { expect_same(CRun(directory(), 0, 1, nullptr).run(), CxxRun(directory(), 0, 1, nullptr).run()); }

// Both ranks at once, each on its own thread and device.
template <class Run>
std::vector<Bits> run_two_ranks(const std::string& directory) {
  Meeting meeting(2);
  std::array<std::vector<Bits>, 2> outputs;
  {
    const auto of_rank = [&](int rank) { outputs[static_cast<size_t>(rank)] = Run(directory, rank, 2, &meeting).run(); };
    const std::jthread other(of_rank, 1);
    of_rank(0);
  }
  EXPECT_EQ(outputs[0], outputs[1]) << "every rank has the sum";
  return outputs[0];
}
TEST_P(CApiSameBits, TwoRanks) { expect_same(run_two_ranks<CRun>(directory()), run_two_ranks<CxxRun>(directory())); }

INSTANTIATE_TEST_SUITE_P(Recorded, CApiSameBits, testing::Values("v4_bf16", "mla_v3", "mla_v32"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace strata
