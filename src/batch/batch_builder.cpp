#include <algorithm>
#include <limits>
#include <utility>

#include "batch/batch_buffers.h"
#include "batch/chunk_plan.h"
#include "batch/decode_bounds.h"
#include "batch/group_spec.h"
#include "batch/request_check.h"
#include "batch/staged_upload.h"
#include "core/check.h"
#include "ops/factories.h"
#include "strata/batch.h"

namespace strata {
namespace {

constexpr int32_t kRatios[] = {1, 4, 128};  // the order of Batch::chunks

// Groups whose slots are stored as i32 in index arrays.
bool slots_are_indices(CacheGroup group) {
  return group == CacheGroup::window || group == CacheGroup::c4_compressed || group == CacheGroup::c128_compressed ||
         group == CacheGroup::mla_latent;
}

void check_groups(std::span<const CacheGroupSpec> groups, std::span<const int64_t> num_pages, int64_t window) {
  require(groups.size() == num_pages.size(), "batch builder: num_pages must have one entry for each of the {} groups, has {}",
          groups.size(), num_pages.size());
  require(window >= 0 && window <= std::numeric_limits<int32_t>::max(), "batch builder: window must be in [0, 2^31), is {}", window);
  for (size_t i = 0; i < groups.size(); ++i) {
    const CacheGroupSpec& spec = groups[i];
    const auto name = to_string(spec.group);
    require(!has_group(groups.first(i), spec.group), "batch builder: group {} must be named once, is named twice", name);
    require(spec.group != CacheGroup::window || window > 0, "batch builder: window must be positive for group {}, is {}", name, window);
    check_group_spec("batch builder", spec, window);
    const int64_t most = slots_are_indices(spec.group) ? (int64_t{1} << 31) / spec.page_size : int64_t{1} << 31;
    require(num_pages[i] >= 0 && num_pages[i] <= most, "batch builder: num_pages of group {} must be in [0, {}], is {}", name, most,
            num_pages[i]);
  }
}

}  // namespace

struct BatchBuilder::Impl {
  std::shared_ptr<Device> device;
  Op<ScatterBlockTablesParams> scatter_block_tables;
  Op<SlotMappingParams> slot_mapping;
  Op<SwaIndicesParams> swa_indices;
  Op<CompressedIndicesParams> compressed_indices;
  BatchLimits limits;
  std::vector<CacheGroupSpec> groups;
  std::vector<int64_t> num_pages;
  int64_t window;

  Tensor memory;         // u8: uploaded arrays, derived arrays, workspace of the ops
  UploadViews host;      // in staging
  UploadViews uploaded;  // in memory
  DerivedViews derived;  // in memory
  Workspace workspace;   // in memory
  std::unique_ptr<StagedUpload> staging;
  int64_t num_segments = 0;  // of this step
  int64_t num_entries = 0;
  std::vector<AttendedRows> attended;  // of the step's decode tokens
  const std::vector<ops::SparseDecodePlanner> c128_planners = ops::make_sparse_decode_planners();
  const std::vector<ops::DenseDecodePlanner> mla_planners = ops::make_dense_decode_planners();
  Batch batch;

  Impl(std::shared_ptr<Device> d, const OpSet& ops, const BatchLimits& l, std::vector<CacheGroupSpec> g, std::vector<int64_t> pages,
       int64_t w)
      : device(std::move(d)),
        scatter_block_tables(ops.scatter_block_tables),
        slot_mapping(ops.slot_mapping),
        swa_indices(ops.swa_indices),
        compressed_indices(ops.compressed_indices),
        limits(l),
        groups(std::move(g)),
        num_pages(std::move(pages)),
        window(w) {
    require(device != nullptr, "batch builder: device is required, is null");
    check_limits(limits);
    check_groups(groups, num_pages, window);
    allocate();
    const auto max_requests = static_cast<size_t>(limits.max_num_seqs);
    batch.limits = limits;
    batch.query_start_loc_host.reserve(max_requests + 1);
    batch.seq_lens_host.reserve(max_requests);
    batch.request_ids_host.reserve(max_requests);
    for (auto& plan : batch.chunks) plan.reserve(max_requests);
    for (size_t i = 0; i < groups.size(); ++i) {
      batch.groups[static_cast<size_t>(groups[i].group)] = {.present = true, .spec = groups[i], .num_pages = num_pages[i]};
    }
  }

  // The call of decode attention to the window and all 128:1 entries, in steps with this longest request.
  ScheduledCall c128_call(int64_t num_tokens, int64_t longest) const {
    const auto c128 = std::find_if(groups.begin(), groups.end(), [](const auto& g) { return g.group == CacheGroup::c128_compressed; });
    if (c128 == groups.end() || c128->num_query_heads == 0) return {};
    return {.format = c128->format,
            .num_tokens = num_tokens,
            .num_heads = c128->num_query_heads,
            .width = window + c128_width(std::max<int64_t>(longest, 1))};
  }

  // The call of decode attention to all latent rows.
  ScheduledDenseCall mla_call(int64_t num_requests, const DecodeBounds& bounds) const {
    const auto mla = std::find_if(groups.begin(), groups.end(), [](const auto& g) { return g.group == CacheGroup::mla_latent; });
    if (mla == groups.end() || mla->num_query_heads == 0) return {};
    return {.format = mla->format,
            .row_dim = mla->row_dim,
            .num_heads = mla->num_query_heads,
            .num_requests = num_requests,
            .max_query_len = bounds.query_len,
            .max_seq_len = bounds.seq_len};
  }

  void allocate() {
    const DeviceId id = device->id();
    Arena measure(id);
    const ScheduleBytes schedules{
        .c128 = ops::most_schedule_bytes(c128_planners, c128_call(most_decode_tokens(limits), limits.max_model_len), *device),
        .mla = ops::most_schedule_bytes(mla_planners, mla_call(limits.max_num_seqs, {}), *device)};
    if (schedules.c128 > 0) attended.reserve(static_cast<size_t>(most_decode_tokens(limits)));
    uploaded = lay_out_upload(measure, limits, groups, schedules);
    const int64_t upload_bytes = measure.used();
    derived = lay_out_derived(measure, limits, groups, window);
    for (const auto& [name, count] :
         {std::pair{"a request", derived.tables.shape[1]}, std::pair{"a step", uploaded.table_entries.shape[0]}}) {
      require(count <= std::numeric_limits<int32_t>::max(), "batch builder: {} may need at most 2^31 - 1 entries of block tables, needs {}",
              name, count);
    }
    set_views(limits.max_num_batched_tokens, limits.max_num_seqs, limits.max_model_len);
    num_segments = uploaded.table_segments.shape[0];
    num_entries = uploaded.table_entries.shape[0];
    const int64_t op_bytes = ops_workspace_bytes();
    memory = Tensor(device, DType::u8, {measure.used() + op_bytes});

    Arena arena(id, {memory.view().data, memory.view().bytes()});
    uploaded = lay_out_upload(arena, limits, groups, schedules);
    derived = lay_out_derived(arena, limits, groups, window);
    workspace = arena.rest(op_bytes);
    // Table entries that no step has needed yet still name a page.
    device->fill(derived.tables.data, 0, derived.tables.bytes(), {});
    device->synchronize({});
    staging = std::make_unique<StagedUpload>(device, upload_bytes);
    Arena host_arena(DeviceId{}, staging->memory());
    host = lay_out_upload(host_arena, limits, groups, schedules);
  }

  // Sets the batch's views for T tokens and R requests of at most `longest` positions: fixed addresses and strides, this step's shapes.
  void set_views(int64_t t, int64_t r, int64_t longest) {
    const auto entries_of_128 = [&](const TensorView& v) {
      return v.present() ? first_rows(v, t).columns(0, c128_width(std::max<int64_t>(longest, 1))) : v;
    };
    batch.positions = first_rows(uploaded.positions, t);
    batch.token_to_req = first_rows(uploaded.token_to_req, t);
    batch.is_valid_token = first_rows(uploaded.is_valid_token, t);
    batch.query_start_loc = first_rows(uploaded.query_start_loc, r + 1);
    batch.seq_lens = first_rows(uploaded.seq_lens, r);
    batch.gather_lens = first_rows(uploaded.gather_lens, r);
    batch.c4_lens = first_rows(uploaded.c4_lens, t);
    batch.mla_lens = first_rows(uploaded.mla_lens, t);
    batch.c4_seq_lens = first_rows(uploaded.c4_seq_lens, r);
    batch.c128_seq_lens = first_rows(uploaded.c128_seq_lens, r);
    batch.swa_indices = first_rows(derived.swa_indices, t);
    batch.swa_lens = first_rows(derived.swa_lens, t);
    batch.c128_slots = entries_of_128(derived.c128_slots);
    batch.c128_local = entries_of_128(derived.c128_local);
    batch.c128_lens = first_rows(derived.c128_lens, t);
    for (const CacheGroupSpec& spec : groups) {
      const auto g = static_cast<size_t>(spec.group);
      batch.groups[g].block_table = first_rows(derived.block_tables[g], r);
      batch.groups[g].slot_mapping = first_rows(derived.slot_mappings[g], t);
    }
  }

  // Calls f(op, params) for every op of a step, with the batch's views.
  template <class F>
  void for_each_call(F&& f) const {
    const Batch& b = batch;
    f(scatter_block_tables, ScatterBlockTablesParams{.entries = first_rows(uploaded.table_entries, num_entries),
                                                     .segments = first_rows(uploaded.table_segments, num_segments),
                                                     .block_table = derived.tables});
    for (const CacheGroupSpec& spec : groups) {
      const GroupMetadata& group = b[spec.group];
      f(slot_mapping, SlotMappingParams{.positions = b.positions,
                                        .token_to_req = b.token_to_req,
                                        .is_valid_token = b.is_valid_token,
                                        .block_table = group.block_table,
                                        .page_size = spec.page_size,
                                        .ratio = spec.ratio,
                                        .slot_mapping = group.slot_mapping});
      if (spec.group == CacheGroup::window) {
        f(swa_indices, SwaIndicesParams{.positions = b.positions,
                                        .token_to_req = b.token_to_req,
                                        .is_valid_token = b.is_valid_token,
                                        .block_table = group.block_table,
                                        .page_size = spec.page_size,
                                        .window = static_cast<int32_t>(window),
                                        .indices = b.swa_indices,
                                        .lens = b.swa_lens});
      }
      if (spec.group == CacheGroup::c128_compressed) {
        CompressedIndicesParams p{.positions = b.positions,
                                  .token_to_req = b.token_to_req,
                                  .is_valid_token = b.is_valid_token,
                                  .block_table = group.block_table,
                                  .page_size = spec.page_size,
                                  .ratio = spec.ratio,
                                  .indices = b.c128_slots,
                                  .lens = b.c128_lens};
        f(compressed_indices, p);
        p.block_table = {};
        p.indices = b.c128_local;
        f(compressed_indices, p);
      }
    }
  }

  // Measured on the largest shapes, with null data.
  int64_t ops_workspace_bytes() const {
    int64_t bytes = 0;
    for_each_call([&](const auto& op, const auto& params) { bytes = std::max(bytes, op.workspace_bytes(params, *device)); });
    return bytes;
  }

  void write_request(int64_t i, const BatchRequest& r, int64_t first_token) {
    const auto n = static_cast<size_t>(i);
    const auto seq_len = static_cast<int32_t>(r.seq_len);
    batch.query_start_loc_host[n] = static_cast<int32_t>(first_token);
    batch.seq_lens_host[n] = seq_len;
    if (host.gather_lens.present()) host.gather_lens.ptr<int32_t>()[n] = static_cast<int32_t>(gather_len(r.query_len, r.seq_len, window));
    if (host.c4_seq_lens.present()) host.c4_seq_lens.ptr<int32_t>()[n] = seq_len / 4;
    if (host.c128_seq_lens.present()) host.c128_seq_lens.ptr<int32_t>()[n] = seq_len / 128;
    for (const CacheGroupSpec& spec : groups) {
      const BlockRange blocks = addressed_blocks(spec, r.query_len, r.seq_len);
      if (blocks.size() == 0) continue;
      const auto g = static_cast<size_t>(spec.group);
      int32_t* segment = host.table_segments.row<int32_t>(num_segments++);
      segment[0] = static_cast<int32_t>(i);
      segment[1] = static_cast<int32_t>(derived.first_columns[g] + blocks.begin);
      segment[2] = static_cast<int32_t>(num_entries);
      segment[3] = static_cast<int32_t>(blocks.size());
      const std::span<const int32_t> table = r.block_tables[spec.group];
      std::copy(table.begin() + blocks.begin, table.begin() + blocks.end, host.table_entries.ptr<int32_t>() + num_entries);
      num_entries += blocks.size();
    }
    for (int64_t k = 0; k < r.query_len; ++k) write_token(first_token + k, r.seq_len - r.query_len + k, static_cast<int32_t>(i), true);
  }

  void write_token(int64_t t, int64_t position, int32_t request, bool valid) {
    host.positions.ptr<int64_t>()[t] = position;
    host.token_to_req.ptr<int32_t>()[t] = request;
    host.is_valid_token.ptr<uint8_t>()[t] = valid ? 1 : 0;
    if (host.c4_lens.present()) host.c4_lens.ptr<int32_t>()[t] = valid ? static_cast<int32_t>((position + 1) / 4) : 0;
    if (host.mla_lens.present()) host.mla_lens.ptr<int32_t>()[t] = valid ? static_cast<int32_t>(position + 1) : 0;
  }

  void write_requests(std::span<const BatchRequest> requests, const StepSizes& sizes) {
    batch.query_start_loc_host.resize(static_cast<size_t>(sizes.num_requests) + 1);
    batch.seq_lens_host.resize(static_cast<size_t>(sizes.num_requests));
    batch.request_ids_host.clear();
    for (const BatchRequest& r : requests) batch.request_ids_host.push_back(id_of(r));
    num_segments = num_entries = 0;
    int64_t token = 0;
    for (int64_t i = 0; i < sizes.num_requests; ++i) {
      if (i < std::ssize(requests)) {
        const BatchRequest& r = requests[static_cast<size_t>(i)];
        write_request(i, r, token);
        token += r.query_len;
        continue;
      }
      write_request(i, BatchRequest{}, token);
      for (int64_t k = 0; k < sizes.uniform_query_len; ++k) write_token(token++, 0, static_cast<int32_t>(i), false);
    }
    batch.query_start_loc_host.back() = static_cast<int32_t>(token);
    for (; token < sizes.num_tokens; ++token) write_token(token, 0, 0, false);
    std::copy(batch.query_start_loc_host.begin(), batch.query_start_loc_host.end(), host.query_start_loc.ptr<int32_t>());
    std::copy(batch.seq_lens_host.begin(), batch.seq_lens_host.end(), host.seq_lens.ptr<int32_t>());
  }

  // All requests from the first one with more tokens than a decode request count as prefill, padding requests included.
  void split(std::span<const BatchRequest> requests, const StepSizes& sizes) {
    const auto first_prefill = std::find_if(
        requests.begin(), requests.end(), [&](const BatchRequest& r) { return r.query_len > int64_t{1} + limits.num_speculative_tokens; });
    Batch& b = batch;
    b.num_tokens = sizes.num_tokens;
    b.num_actual_tokens = sizes.num_actual_tokens;
    b.num_requests = sizes.num_requests;
    b.num_decodes = first_prefill == requests.end() ? sizes.num_requests : first_prefill - requests.begin();
    b.num_prefills = b.num_requests - b.num_decodes;
    b.num_decode_tokens = b.query_start_loc_host[static_cast<size_t>(b.num_decodes)];
    b.num_prefill_tokens = b.query_start_loc_host.back() - b.num_decode_tokens;
    b.max_query_len = sizes.uniform_query_len;
    for (const BatchRequest& r : requests) b.max_query_len = std::max(b.max_query_len, r.query_len);
    b.max_seq_len = sizes.max_seq_len;
    for (size_t i = 0; i < std::size(kRatios); ++i) {
      plan_chunks({b.query_start_loc_host, b.seq_lens_host, b.num_decodes, limits, kRatios[i], window}, b.chunks[i]);
    }
  }

  // Runs after write_requests() and split(). Where the step states its longest request, so that it can be captured, that bound alone
  // decides whether there is a schedule and its shapes.
  void schedule_c128(bool bound_only) {
    batch.c128_schedule = {};
    if (!host.c128_schedule.present() || batch.num_decode_tokens == 0) return;
    attended.clear();
    for (int64_t t = 0; t < batch.num_decode_tokens; ++t) {
      const bool valid = host.is_valid_token.ptr<uint8_t>()[t] != 0;
      const int64_t length = valid ? host.positions.ptr<int64_t>()[t] + 1 : 0, main = std::min(length, window);
      attended.push_back({static_cast<int32_t>(main), static_cast<int32_t>(main + length / 128)});
    }
    const int64_t bytes = ops::write_schedule(c128_planners, c128_call(batch.num_decode_tokens, batch.max_seq_len),
                                              {attended, bound_only ? ops::ScheduleWhen::far_bound : ops::ScheduleWhen::faster}, *device,
                                              host.c128_schedule.ptr<std::byte>());
    if (bytes > 0) batch.c128_schedule = first_rows(uploaded.c128_schedule, bytes);
  }

  // The same for the attention to latent rows.
  void schedule_mla() {
    batch.mla_schedule = {};
    if (!host.mla_schedule.present() || batch.num_decode_tokens == 0) return;
    const DecodeBounds bounds = decode_bounds(batch);
    const auto decodes = static_cast<size_t>(batch.num_decodes);
    const int64_t bytes = ops::write_schedule(
        mla_planners, mla_call(batch.num_decodes, {std::min(bounds.query_len, batch.num_decode_tokens), bounds.seq_len}),
        {std::span(batch.query_start_loc_host).first(decodes + 1), std::span(batch.seq_lens_host).first(decodes)}, *device,
        host.mla_schedule.ptr<std::byte>());
    if (bytes > 0) batch.mla_schedule = first_rows(uploaded.mla_schedule, bytes);
  }

  const Batch& build(std::span<const BatchRequest> requests, BatchPadding padding, Stream stream) {
    const StepSizes sizes = check_requests(requests, padding, limits, groups, num_pages);
    staging->wait();
    write_requests(requests, sizes);
    split(requests, sizes);
    set_views(sizes.num_tokens, sizes.num_requests, sizes.max_seq_len);
    schedule_c128(padding.max_seq_len > 0);
    schedule_mla();
    staging->send(memory.view().data, host.table_entries_offset + num_entries * static_cast<int64_t>(sizeof(int32_t)), stream);
    const ExecutionContext context{*device, stream, workspace};
    for_each_call([&](const auto& op, const auto& params) { op(params, context); });
    return batch;
  }
};

BatchBuilder::BatchBuilder(std::shared_ptr<Device> device, const OpSet& ops, const BatchLimits& limits, std::vector<CacheGroupSpec> groups,
                           std::vector<int64_t> num_pages, int64_t window)
    : impl_(std::make_unique<Impl>(std::move(device), ops, limits, std::move(groups), std::move(num_pages), window)) {}

BatchBuilder::BatchBuilder(std::shared_ptr<Device> device, const OpSet& ops, const BatchLimits& limits, const PagedPool& pool,
                           int64_t window)
    : BatchBuilder(std::move(device), ops, limits, pool.groups(), pool.num_pages(), window) {}

BatchBuilder::~BatchBuilder() = default;
BatchBuilder::BatchBuilder(BatchBuilder&&) noexcept = default;

const Batch& BatchBuilder::build(std::span<const BatchRequest> requests, BatchPadding padding, Stream stream) {
  return impl_->build(requests, padding, stream);
}

int64_t BatchBuilder::allocated_bytes() const { return impl_->memory.allocated_bytes(); }

}  // namespace strata
