#include "c_api/layer.h"

#include "c_api/arrays.h"
#include "c_api/batch.h"
#include "c_api/convert.h"
#include "c_api/device.h"
#include "layers/forward.h"
#include "layers/forward_check.h"

namespace strata::c_api {

STRATA_STRUCT(strata_layer_options, 80);
STRATA_STRUCT(strata_layer_params, 64);
STRATA_STRUCT(strata_layer_info, 72);
STRATA_STRUCT(strata_forward_args, 616);

namespace {

static_assert(same(STRATA_INDEXER_FP8, IndexerFormat::fp8) && same(STRATA_INDEXER_MXFP4, IndexerFormat::mxfp4) &&
              same(STRATA_INDEXER_NONE, IndexerFormat::none));
static_assert(same(STRATA_PREFILL_AUTOMATIC, PrefillMode::automatic) && same(STRATA_PREFILL_GATHERED, PrefillMode::gathered) &&
              same(STRATA_PREFILL_PAGED, PrefillMode::paged));
static_assert(same(STRATA_MLA_AUTOMATIC, MlaMode::automatic) && same(STRATA_MLA_MHA, MlaMode::mha) && same(STRATA_MLA_MQA, MlaMode::mqa));

LayerOptions to_options(const strata_layer_options* given) {
  const strata_layer_options o = read_struct(given, "options");
  LayerOptions options;
  options.limits = to_limits(o.limits, "options.limits");
  if (o.kv_format != STRATA_KV_FAMILY_DEFAULT) {
    options.kv_format = to_enum(o.kv_format, KvFormat::state_f32, "options.kv_format (-1: the family's default)");
  }
  options.indexer_format = to_enum(o.indexer_format, IndexerFormat::none, "options.indexer_format");
  options.hadamard = to_bool(o.hadamard, "options.hadamard");
  options.fp8_output = to_bool(o.fp8_output, "options.fp8_output");
  options.quantize_activations = to_bool(o.quantize_activations, "options.quantize_activations");
  options.prefill_mode = to_enum(o.prefill_mode, PrefillMode::paged, "options.prefill_mode");
  options.mla_mode = to_enum(o.mla_mode, MlaMode::mqa, "options.mla_mode");
  options.context_chunk_rows = o.context_chunk_rows;
  options.kv_scale_ue8m0 = to_bool(o.kv_scale_ue8m0, "options.kv_scale_ue8m0");
  options.rotary_embedding = to_bool(o.rotary_embedding, "options.rotary_embedding");
  options.batch_invariant = to_bool(o.batch_invariant, "options.batch_invariant");
  options.tp_rank = o.tp_rank;
  options.tp_size = o.tp_size;
  return options;
}

LayerCaches to_caches(const strata_forward_args& a, const Pool* pool) {
  if (pool != nullptr) {
    require(a.num_caches == 0, "args: expected a pool or caches, has both");
    return pool->pool.layer(a.pool_layer);
  }
  LayerCaches caches;
  const auto given = to_span(a.caches, a.num_caches, "args.caches");
  for (size_t g = 0; g < std::min(given.size(), caches.caches.size()); ++g) caches.caches[g] = to_cache(given[g], "args.caches");
  return caches;
}

ForwardArgs to_args(const strata_forward_args& a, const Builder* builder, const Pool* pool, Stream stream) {
  return {.batch = builder == nullptr ? nullptr : &builder->built(),
          .dummy_run = to_bool(a.dummy_run, "args.dummy_run"),
          .caches = to_caches(a, pool),
          .hidden = to_view(a.hidden, "args.hidden"),
          .out = to_view(a.out, "args.out"),
          .topk_indices = to_view(a.topk_indices, "args.topk_indices"),
          .skip_topk = to_bool(a.skip_topk, "args.skip_topk"),
          .llama_4_scaling = to_view(a.llama_4_scaling, "args.llama_4_scaling"),
          .q_tap = to_view(a.q_tap, "args.q_tap"),
          .attn_out_tap = to_view(a.attn_out_tap, "args.attn_out_tap"),
          .workspace = {a.workspace, a.workspace_bytes},
          .stream = stream};
}

}  // namespace
}  // namespace strata::c_api

using namespace strata;
using namespace strata::c_api;

strata_status strata_cache_groups_of_layer(strata_model_config config, const strata_layer_options* options, int64_t layer,
                                           strata_cache_group_spec* specs, int64_t capacity, int64_t* count) noexcept {
  return guarded([&] {
    const auto of = find(config);
    write_specs(cache_groups_of_layer(*of, to_options(options), layer), specs, capacity, count);
  });
}

strata_status strata_rope_tables_create(strata_device device, int64_t max_positions, strata_rope_tables* tables) noexcept {
  return guarded([&] {
    strata_rope_tables& out = result(tables, "tables");
    out = make_handle<strata_rope_tables>(std::make_shared<RopeTables>(find(device), max_positions));
  });
}
strata_status strata_rope_tables_destroy(strata_rope_tables tables) noexcept { return destroy(tables); }
strata_status strata_rope_tables_get(strata_rope_tables tables, strata_model_config config, int64_t layer,
                                     strata_tensor_view* table) noexcept {
  return guarded([&] {
    strata_tensor_view& out = result(table, "table");
    const auto from = find(tables);
    const auto of = find(config);
    check_layer_number(*of, layer);
    out = from_view(from->get(of->rope(layer)));
  });
}
strata_status strata_rope_tables_numbers(strata_rope_tables tables, strata_tensor_view* numbers) noexcept {
  return guarded([&] {
    strata_tensor_view& out = result(numbers, "numbers");
    out = from_view(find(tables)->numbers());
  });
}
strata_status strata_rope_tables_allocated_bytes(strata_rope_tables tables, int64_t* bytes) noexcept {
  return guarded([&] {
    int64_t& out = result(bytes, "bytes");
    out = find(tables)->allocated_bytes();
  });
}

strata_status strata_side_streams_create(strata_device device, strata_side_streams* streams) noexcept {
  return guarded([&] {
    strata_side_streams& out = result(streams, "streams");
    out = make_handle<strata_side_streams>(std::make_shared<SideStreams>(find(device)));
  });
}
strata_status strata_side_streams_destroy(strata_side_streams streams) noexcept { return destroy(streams); }
strata_status strata_side_streams_concurrent(strata_side_streams streams, int32_t* concurrent) noexcept {
  return guarded([&] {
    int32_t& out = result(concurrent, "concurrent");
    out = find(streams)->concurrent() ? 1 : 0;
  });
}

strata_status strata_layer_create(const strata_layer_params* params, strata_layer* layer) noexcept {
  return guarded([&] {
    strata_layer& out = result(layer, "layer");
    const strata_layer_params p = read_struct(params, "params");
    const auto checkpoint = find(p.checkpoint);
    const auto device = find(p.device);
    const LayerOptions options = to_options(p.options);
    const OpSet ops = default_ops();
    auto made = default_layers().make({.checkpoint = *checkpoint,
                                       .layer = p.layer,
                                       .device = device,
                                       .ops = ops,
                                       .options = options,
                                       .rope_tables = find(p.rope_tables),
                                       .communicator = find_optional(p.communicator),
                                       .side_streams = find_optional(p.side_streams)});
    std::string kind = made->kind();
    out = make_handle<strata_layer>(std::make_shared<Layer>(Layer{device, std::move(made), std::move(kind)}));
  });
}
strata_status strata_layer_destroy(strata_layer layer) noexcept { return destroy(layer); }

strata_status strata_layer_get_info(strata_layer layer, strata_layer_info* info) noexcept {
  return guarded([&] {
    const StructResult out(info, "info");
    const auto of = find(layer);
    const AttentionLayer& l = *of->layer;
    strata_layer_info i = strata_layer_info_default();
    i.layer_index = l.layer_index();
    i.compress_ratio = l.compress_ratio();
    i.kind = of->kind.c_str();
    i.hidden_size = l.hidden_size();
    i.num_heads = l.num_heads();
    i.index_topk = l.index_topk();
    i.weight_bytes = l.weight_bytes();
    i.workspace_bytes = l.workspace_bytes();
    out.write(i);
  });
}
strata_status strata_layer_cache_groups(strata_layer layer, strata_cache_group_spec* specs, int64_t capacity, int64_t* count) noexcept {
  return guarded([&] { write_specs(find(layer)->layer->cache_groups(), specs, capacity, count); });
}

strata_status strata_layer_forward(strata_layer layer, const strata_forward_args* args) noexcept {
  return guarded([&] {
    const auto of = find(layer);
    const strata_forward_args a = read_struct(args, "args");
    const auto builder = find_optional(a.batch);
    const auto pool = find_optional(a.pool);
    const StreamUse stream(a.stream, *of->device);
    const ForwardArgs given = to_args(a, builder.get(), pool.get(), stream);
    try {
      of->layer->forward(given);
    } catch (const StatusError& error) {  // of a communicator's function; the layer names itself in its own errors
      throw StatusError(error.status(), message_of_layer(*of->layer, given.batch, error.what()));
    }
  });
}
