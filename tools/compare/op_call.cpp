#include "op_call.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "ops/factories.h"
#include "strata/checkpoint.h"
#include "testkit/bench/ceilings.h"
#include "testkit/cases/schedules.h"
#include "testkit/harness/inputs.h"

namespace strata::compare {
namespace {

constexpr KvFormat kFormats[] = {KvFormat::bf16, KvFormat::fp8_tensor, KvFormat::fp8_ds_mla_v4, KvFormat::fp8_ds_mla};

// One copy of a file's tensors on the device, and the outputs of a call that reads them. The file is read only while the call is made.
class CallMemory {
 public:
  CallMemory(const std::shared_ptr<Device>& device, const SafetensorsFile& file) : file_(file), inputs_(device, {.keep_images = false}) {
    for (const StoredTensor& tensor : file.tensors()) {
      if (!tensor.dtype.dtype()) throw Error(ErrorCode::invalid_file, fmt::format("{}: no op takes {}", tensor.name, tensor.dtype.name()));
      const std::vector<std::byte> bytes(tensor.data, tensor.data + tensor.bytes);
      views_[tensor.name] = inputs_.values(*tensor.dtype.dtype(), tensor.shape, bytes);
    }
  }

  // Absent where the file has no such tensor.
  TensorView optional(const std::string& name) const {
    const auto found = views_.find(name);
    return found == views_.end() ? TensorView{} : found->second;
  }
  TensorView view(const std::string& name) const {
    stored(name);
    return optional(name);
  }
  PagedCache cache(const std::string& name) const {
    for (const KvFormat format : kFormats) {
      const TensorView pages = optional(fmt::format("{}.{}", name, to_string(format)));
      if (!pages.present()) continue;
      const std::vector<int64_t> shape = host<int64_t>(name + "_shape", 2);
      return {.data = pages.data,
              .device = pages.device,
              .format = format,
              .row_dim = static_cast<int32_t>(shape[1]),
              .page_size = static_cast<int32_t>(shape[0]),
              .num_pages = pages.shape[0],
              .page_stride = pages.shape[1]};
    }
    return {};
  }
  TensorView output(const std::string& name, DType dtype, const testkit::Shape& shape) {
    const TensorView view = inputs_.output(dtype, shape);
    outputs_.emplace_back(name, view);
    return view;
  }
  // What the call reads and the caller cannot make itself.
  void add_output(const std::string& name, const TensorView& view) { outputs_.emplace_back(name, view); }
  // A cache that the call writes.
  void output_cache(const std::string& name, const PagedCache& cache) {
    const std::string tensor = fmt::format("{}.{}", name, to_string(cache.format));
    outputs_.emplace_back(tensor, view(tensor));
  }

  // Values of a tensor of the file; `count` < 0: any number of them.
  template <class T>
  std::vector<T> host(const std::string& name, int64_t count = -1) const {
    const StoredTensor& tensor = stored(name);
    if (tensor.bytes % sizeof(T) != 0 || (count >= 0 && tensor.numel() != count))
      throw Error(ErrorCode::invalid_file,
                  fmt::format("{}: expected {} values of {} bytes, is {} bytes", name, count, sizeof(T), tensor.bytes));
    std::vector<T> values(tensor.bytes / sizeof(T));
    std::memcpy(values.data(), tensor.data, tensor.bytes);
    return values;
  }
  float real(const std::string& name) const { return host<float>(name, 1)[0]; }

  testkit::Inputs& inputs() { return inputs_; }
  const std::vector<std::pair<std::string, TensorView>>& outputs() const { return outputs_; }

 private:
  const StoredTensor& stored(const std::string& name) const {
    const StoredTensor* const tensor = file_.find(name);
    if (tensor == nullptr) throw Error(ErrorCode::invalid_file, "the file has no tensor " + name);
    return *tensor;
  }

  const SafetensorsFile& file_;
  testkit::Inputs inputs_;
  std::map<std::string, TensorView> views_;
  std::vector<std::pair<std::string, TensorView>> outputs_;
};

constexpr int64_t kLatent = 512;  // values of a row that attention over compressed rows returns

SparseAttnDecodeParams sparse_attn_decode(CallMemory& memory) {
  SparseAttnDecodeParams p;
  p.q = memory.view("q");
  p.cache = memory.cache("cache");
  p.indices = memory.view("indices");
  p.topk_length = memory.optional("topk_length");
  p.extra_cache = memory.cache("extra_cache");
  p.extra_indices = memory.optional("extra_indices");
  p.extra_topk_length = memory.optional("extra_topk_length");
  p.attn_sink = memory.optional("attn_sink");
  p.softmax_scale = memory.real("softmax_scale");
  const int64_t batch = p.q.shape[0], queries = p.q.shape[1], heads = p.q.shape[2];
  p.out = memory.output("out", DType::bf16, {batch, queries, heads, kLatent});
  p.lse = memory.output("lse", DType::f32, {batch, heads, queries});
  return p;
}

SparseAttnPrefillParams sparse_attn_prefill(CallMemory& memory) {
  SparseAttnPrefillParams p;
  p.q = memory.view("q");
  p.kv = memory.view("kv");
  p.indices = memory.view("indices");
  p.topk_length = memory.optional("topk_length");
  p.attn_sink = memory.optional("attn_sink");
  p.softmax_scale = memory.real("softmax_scale");
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1];
  p.out = memory.output("out", DType::bf16, {tokens, heads, kLatent});
  p.lse = memory.output("lse", DType::f32, {tokens, heads});
  p.max_logits = memory.output("max_logits", DType::f32, {tokens, heads});
  return p;
}

DenseAttnDecodeParams dense_attn_decode(CallMemory& memory) {
  DenseAttnDecodeParams p;
  p.q = memory.view("q");
  p.cache = memory.cache("cache");
  p.block_table = memory.view("block_table");
  p.query_start_loc = memory.view("query_start_loc");
  p.seq_lens = memory.view("seq_lens");
  const auto starts = memory.host<int32_t>("query_start_loc"), lengths = memory.host<int32_t>("seq_lens");
  if (starts.size() != lengths.size() + 1) throw Error(ErrorCode::invalid_file, "query_start_loc has one entry more than seq_lens");
  for (size_t b = 0; b < lengths.size(); ++b) {
    p.max_query_len = std::max<int64_t>(p.max_query_len, starts[b + 1] - starts[b]);
    p.max_seq_len = std::max<int64_t>(p.max_seq_len, lengths[b]);
  }
  p.softmax_scale = memory.real("softmax_scale");
  const int64_t tokens = p.q.shape[0], heads = p.q.shape[1];
  // As layers call the op.
  const ScheduledDenseCall call{.format = p.cache.format,
                                .row_dim = p.cache.row_dim,
                                .num_heads = heads,
                                .num_requests = std::ssize(lengths),
                                .max_query_len = p.max_query_len,
                                .max_seq_len = p.max_seq_len};
  p.schedule = testkit::make_schedule(memory.inputs(), ops::make_dense_decode_planners(), call, ops::RequestLengths{starts, lengths});
  if (p.schedule.present()) memory.add_output("schedule", p.schedule);
  p.out = memory.output("out", DType::bf16, {tokens, heads, kLatent});
  p.lse = memory.output("lse", DType::f32, {tokens, heads});
  return p;
}

DenseAttnPrefillParams dense_attn_prefill(CallMemory& memory) {
  DenseAttnPrefillParams p;
  p.q = memory.view("q");
  p.k_pe = memory.view("k_pe");
  const TensorView kv = memory.view("kv");
  const int64_t nope = p.q.shape[2] - p.k_pe.shape[1], value = kv.shape[2] - nope;
  p.k_nope = kv.columns(0, nope);
  p.v = kv.columns(nope, value);
  p.max_query_len = p.q.shape[0];
  p.max_key_len = kv.shape[0];
  p.softmax_scale = memory.real("softmax_scale");
  p.out = memory.output("out", DType::bf16, {p.q.shape[0], p.q.shape[1], value});
  return p;
}

QNormRopeKvInsertParams qnorm_rope_kv_insert(CallMemory& memory) {
  QNormRopeKvInsertParams p;
  p.q = memory.view("q");
  p.kv = memory.view("kv");
  p.positions = memory.view("positions");
  p.cos_sin = memory.view("cos_sin");
  p.slot_mapping = memory.view("slot_mapping");
  p.cache = memory.cache("cache");
  p.eps = memory.real("eps");
  p.q_out = memory.output("q_out", DType::bf16, {p.q.shape[0], p.q.shape[1], p.q.shape[2]});
  memory.output_cache("cache", p.cache);
  return p;
}

RmsNormPairParams rms_norm_pair(CallMemory& memory) {
  RmsNormPairParams p;
  p.q = memory.view("q");
  p.q_weight = memory.view("q_weight");
  p.kv = memory.view("kv");
  p.kv_weight = memory.view("kv_weight");
  p.eps = memory.real("eps");
  p.q_out = memory.output("q_out", DType::bf16, {p.q.shape[0], p.q.shape[1]});
  p.kv_out = memory.output("kv_out", DType::bf16, {p.kv.shape[0], p.kv.shape[1]});
  return p;
}

template <class Params>
OpCall make_call(const Op<Params>& op, const std::shared_ptr<Device>& device, const SafetensorsFile& file,
                 Params (*params_of)(CallMemory&)) {
  struct State {
    std::shared_ptr<Device> device;
    Op<Params> op;
    std::vector<std::unique_ptr<CallMemory>> memory{};
    std::vector<Params> params{};
    Tensor workspace{};
  };
  auto state = std::make_shared<State>(State{device, op});
  size_t bytes = 0;
  do {
    auto memory = std::make_unique<CallMemory>(device, file);
    state->params.push_back(params_of(*memory));
    bytes += memory->inputs().bytes();
    state->memory.push_back(std::move(memory));
  } while (bytes < testkit::rotate_bytes(*device) && state->memory.size() < testkit::kMaxCopies);

  const Params& first = state->params.front();
  op.check(first, device->id());
  OpCall result;
  result.outputs = state->memory.front()->outputs();
  result.work.implementation = op.select(first, *device).name;
  result.work.copies = state->params.size();
  const int64_t workspace_bytes = op.workspace_bytes(first, *device);
  state->workspace = Tensor(device, DType::u8, {workspace_bytes});
  result.work.call = [state, workspace_bytes](size_t copy, Stream stream) {
    state->op(state->params[copy], ExecutionContext{*state->device, stream, {state->workspace.view().data, workspace_bytes}});
  };
  return result;
}

}  // namespace

OpCall load_call(const OpSet& ops, const std::shared_ptr<Device>& device, const std::string& name, const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  if (name == "sparse_attn_decode") return make_call(ops.sparse_attn_decode, device, file, sparse_attn_decode);
  if (name == "sparse_attn_prefill") return make_call(ops.sparse_attn_prefill, device, file, sparse_attn_prefill);
  if (name == "dense_attn_decode") return make_call(ops.dense_attn_decode, device, file, dense_attn_decode);
  if (name == "dense_attn_prefill") return make_call(ops.dense_attn_prefill, device, file, dense_attn_prefill);
  if (name == "qnorm_rope_kv_insert") return make_call(ops.qnorm_rope_kv_insert, device, file, qnorm_rope_kv_insert);
  if (name == "rms_norm_pair") return make_call(ops.rms_norm_pair, device, file, rms_norm_pair);
  throw Error(ErrorCode::invalid_argument, "no call of op '" + name + "' can be read from a file");
}

}  // namespace strata::compare
