#include "c_api/batch.h"

#include "c_api/arrays.h"
#include "c_api/convert.h"
#include "c_api/device.h"

namespace strata::c_api {

STRATA_STRUCT(strata_batch_limits, 40);
STRATA_STRUCT(strata_batch_request, 72);
STRATA_STRUCT(strata_batch_padding, 32);
STRATA_STRUCT(strata_page_plan, 24);
STRATA_STRUCT(strata_batch_builder_params, 56);
STRATA_STRUCT(strata_batch_info, 112);
STRATA_STRUCT(strata_group_metadata, 200);
STRATA_STRUCT(strata_prefill_chunk, 56);

const Batch& Builder::built() const {
  require(batch != nullptr, "batch: expected a builder that has built a step, has built none");
  return *batch;
}

BatchLimits to_limits(const strata_batch_limits* limits, const char* field) {
  const strata_batch_limits l = read_struct(limits, field);
  return {.max_num_batched_tokens = l.max_num_batched_tokens,
          .max_num_seqs = l.max_num_seqs,
          .max_model_len = l.max_model_len,
          .num_speculative_tokens = l.num_speculative_tokens};
}

namespace {

// Requests with what keeps their pools, and so their tables, alive.
struct Requests {
  std::vector<BatchRequest> requests;
  std::vector<std::shared_ptr<Pool>> pools;
};

// Of a pool's request its tables now; of others spans over the engine's own.
BlockTables to_tables(const strata_batch_request& r, Requests& all) {
  if (r.pool.value != 0) {
    require(r.num_block_tables == 0, "request {}: expected a pool or block_tables, has both", all.requests.size());
    try {
      all.pools.push_back(find(r.pool));
      return all.pools.back()->pool.block_tables(r.pool_request);
    } catch (const Error& error) {
      fail(error.code(), "request {}: {}", all.requests.size(), error.what());
    }
  }
  const auto tables = to_span(r.block_tables, r.num_block_tables, "block_tables");
  const auto lens = to_span(r.block_table_lens, r.num_block_tables, "block_table_lens");
  BlockTables result;
  for (size_t g = 0; g < std::min(tables.size(), size_t{kNumCacheGroups}); ++g) {
    require(lens[g] >= 0 && (lens[g] == 0 || tables[g] != nullptr), "request {}: block_tables[{}]: expected {} entries, {}",
            all.requests.size(), to_string(static_cast<CacheGroup>(g)), lens[g], tables[g] == nullptr ? "is null" : "a length >= 0");
    result[static_cast<CacheGroup>(g)] = {tables[g], static_cast<size_t>(lens[g])};
  }
  return result;
}

Requests to_requests(const strata_batch_request* requests, int64_t count, bool tables) {
  check_structs(requests, count, "requests");
  Requests all;
  for (int64_t i = 0; i < count; ++i) {
    const strata_batch_request r = read_element(requests, i, "requests");
    BatchRequest request{.seq_len = r.seq_len, .query_len = r.query_len, .id = r.id};
    if (tables) request.block_tables = to_tables(r, all);
    all.requests.push_back(std::move(request));
  }
  return all;
}

BatchPadding to_padding(const strata_batch_padding* padding) {
  if (padding == nullptr) return {};
  const strata_batch_padding p = read_struct(padding, "padding");
  return {.num_tokens = p.num_tokens, .num_requests = p.num_requests, .max_seq_len = p.max_seq_len};
}

// A plan as an array by group, which must have room for every group of the plan.
void check_plan(const std::map<CacheGroup, int64_t>& plan, const int64_t* pages, int64_t num_groups) {
  check_results(pages, num_groups, "pages");
  for (const auto& [group, count] : plan) {
    const auto number = static_cast<int64_t>(group);
    require(number < num_groups, "num_groups: expected more than {}, the number of {}, is {}", number, to_string(group), num_groups);
  }
}
void write_plan(const std::map<CacheGroup, int64_t>& plan, int64_t* pages, int64_t num_groups) {
  std::fill_n(pages, num_groups, 0);
  for (const auto& [group, count] : plan) pages[static_cast<int64_t>(group)] = count;
}

BatchBuilder make_builder(const std::shared_ptr<Device>& device, const strata_batch_builder_params& p) {
  const BatchLimits limits = to_limits(p.limits, "params.limits");
  if (p.pool.value != 0) {
    require(p.num_groups == 0, "params: expected a pool or groups, has both");
    return BatchBuilder(device, default_ops(), limits, find(p.pool)->pool, p.window);
  }
  std::vector<CacheGroupSpec> groups = to_specs(p.groups, p.num_groups, "params.groups");
  const auto pages = to_span(p.num_pages, p.num_groups, "params.num_pages");
  return BatchBuilder(device, default_ops(), limits, std::move(groups), {pages.begin(), pages.end()}, p.window);
}

const TensorView& tensor_of(const Batch& b, strata_batch_tensor tensor) {
  const TensorView* const views[] = {&b.positions,   &b.query_start_loc, &b.seq_lens,     &b.token_to_req, &b.is_valid_token,
                                     &b.swa_indices, &b.swa_lens,        &b.c4_lens,      &b.c128_slots,   &b.c128_local,
                                     &b.c128_lens,   &b.c128_schedule,   &b.mla_schedule, &b.mla_lens,     &b.gather_lens,
                                     &b.c4_seq_lens, &b.c128_seq_lens};
  static_assert(std::size(views) == STRATA_BATCH_C128_SEQ_LENS + 1);
  require(tensor >= 0 && tensor <= STRATA_BATCH_C128_SEQ_LENS, "tensor: expected an enumerator, 0 to {}, is {}",
          int{STRATA_BATCH_C128_SEQ_LENS}, tensor);
  return *views[tensor];
}

}  // namespace
}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

strata_status strata_decode_first_order(const strata_batch_request* requests, int64_t num_requests, int32_t num_speculative_tokens,
                                        int64_t* order) noexcept {
  return guarded([&] {
    const Requests all = to_requests(requests, num_requests, false);
    write_values(decode_first_order(all.requests, num_speculative_tokens), order, num_requests, nullptr, "order");
  });
}
strata_status strata_prefill_workspace_rows(const strata_batch_limits* limits, int32_t ratio, int64_t window, int64_t* rows) noexcept {
  return guarded([&] {
    int64_t& out = result(rows, "rows");
    out = prefill_workspace_rows(to_limits(limits, "limits"), ratio, window);
  });
}
strata_status strata_c128_width(int64_t positions, int64_t* width) noexcept {
  return guarded([&] {
    int64_t& out = result(width, "width");
    out = c128_width(positions);
  });
}
strata_status strata_plan_pages(const strata_layer_groups* layer_groups, const strata_batch_limits* limits, int64_t cached_positions,
                                int64_t* pages, int64_t num_groups) noexcept {
  return guarded([&] {
    const auto plan = plan_pages(to_layer_groups(layer_groups, "layer_groups"), to_limits(limits, "limits"), cached_positions);
    check_plan(plan, pages, num_groups);
    write_plan(plan, pages, num_groups);
  });
}
strata_status strata_plan_pages_within(int64_t bytes, const strata_layer_groups* layer_groups, const strata_batch_limits* limits,
                                       int64_t* pages, int64_t num_groups, strata_page_plan* plan) noexcept {
  return guarded([&] {
    std::optional<StructResult<strata_page_plan>> out;
    if (plan != nullptr) out.emplace(plan, "plan");
    const PagePlan found = plan_pages_within(bytes, to_layer_groups(layer_groups, "layer_groups"), to_limits(limits, "limits"));
    check_plan(found.pages, pages, num_groups);
    write_plan(found.pages, pages, num_groups);
    strata_page_plan p = strata_page_plan_default();
    p.cached_positions = found.cached_positions;
    p.bytes = found.bytes;
    if (out) out->write(p);
  });
}

strata_status strata_batch_builder_create(strata_device device, const strata_batch_builder_params* params,
                                          strata_batch_builder* builder) noexcept {
  return guarded([&] {
    strata_batch_builder& out = result(builder, "builder");
    const auto on = find(device);
    out = make_handle<strata_batch_builder>(std::make_shared<Builder>(Builder{on, make_builder(on, read_struct(params, "params"))}));
  });
}
strata_status strata_batch_builder_destroy(strata_batch_builder builder) noexcept { return destroy(builder); }
strata_status strata_batch_builder_allocated_bytes(strata_batch_builder builder, int64_t* bytes) noexcept {
  return guarded([&] {
    int64_t& out = result(bytes, "bytes");
    out = find(builder)->builder.allocated_bytes();
  });
}

strata_status strata_batch_build(strata_batch_builder builder, const strata_batch_request* requests, int64_t num_requests,
                                 const strata_batch_padding* padding, strata_stream stream) noexcept {
  return guarded([&] {
    const auto of = find(builder);
    const StreamUse use(stream, *of->device);
    const BatchPadding padded = to_padding(padding);
    const Requests all = to_requests(requests, num_requests, true);
    const Batch* const last = std::exchange(of->batch, nullptr);  // after a failure midway there is none
    try {
      of->batch = &of->builder.build(all.requests, padded, use);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::invalid_argument) of->batch = last;  // refused before anything was written
      throw;
    }
  });
}

strata_status strata_batch_get_info(strata_batch_builder builder, strata_batch_info* info) noexcept {
  return guarded([&] {
    const StructResult out(info, "info");
    const auto of = find(builder);
    const Batch& b = of->built();
    strata_batch_info i = strata_batch_info_default();
    i.num_tokens = b.num_tokens;
    i.num_actual_tokens = b.num_actual_tokens;
    i.num_requests = b.num_requests;
    i.num_decodes = b.num_decodes;
    i.num_prefills = b.num_prefills;
    i.num_decode_tokens = b.num_decode_tokens;
    i.num_prefill_tokens = b.num_prefill_tokens;
    i.max_query_len = b.max_query_len;
    i.max_seq_len = b.max_seq_len;
    i.query_start_loc_host = b.query_start_loc_host.data();
    i.seq_lens_host = b.seq_lens_host.data();
    i.request_ids_host = b.request_ids_host.data();
    i.num_request_ids = std::ssize(b.request_ids_host);
    out.write(i);
  });
}
strata_status strata_batch_get_tensor(strata_batch_builder builder, strata_batch_tensor tensor, strata_tensor_view* view) noexcept {
  return guarded([&] {
    strata_tensor_view& out = result(view, "view");
    const auto of = find(builder);
    out = from_view(tensor_of(of->built(), tensor));
  });
}
strata_status strata_batch_get_group(strata_batch_builder builder, strata_cache_group group, strata_group_metadata* metadata) noexcept {
  return guarded([&] {
    const StructResult out(metadata, "metadata");
    const auto of = find(builder);
    const GroupMetadata& g = of->built()[to_group(group, "group")];
    strata_group_metadata m = strata_group_metadata_default();
    m.present = g.present ? 1 : 0;
    m.num_pages = g.num_pages;
    m.block_table = from_view(g.block_table);
    m.slot_mapping = from_view(g.slot_mapping);
    out.write(m);
  });
}
strata_status strata_batch_prefill_chunks(strata_batch_builder builder, int32_t ratio, strata_prefill_chunk* chunks, int64_t capacity,
                                          int64_t* count) noexcept {
  return guarded([&] {
    const auto of = find(builder);
    std::vector<strata_prefill_chunk> converted;
    for (const PrefillChunk& chunk : of->built().prefill_chunks(ratio)) {
      strata_prefill_chunk c = strata_prefill_chunk_default();
      c.first_request = chunk.first_request;
      c.num_requests = chunk.num_requests;
      c.first_token = chunk.first_token;
      c.num_tokens = chunk.num_tokens;
      c.max_compressed = chunk.max_compressed;
      c.max_rows = chunk.max_rows;
      converted.push_back(c);
    }
    write_structs(std::span<const strata_prefill_chunk>(converted), chunks, capacity, count, "chunks");
  });
}
