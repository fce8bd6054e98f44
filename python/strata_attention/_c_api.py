"""The C API (include/strata/strata.h) by ctypes, from the shared object that has the ops. Declarations are those of the headers."""

from __future__ import annotations

import ctypes
import re
from typing import Any

from . import _library

#: Structs as the headers declare them, without comments. Handles and enumerations are numbers here.
_STRUCTS = {
    "strata_device_id": "int32_t kind; int32_t index",
    "strata_config": "size_t struct_size; int32_t from_environment; int32_t cpu_threads; const char* cpu_isa; const char* force; "
    "const char* opencl_cache; const char* opencl_library; int32_t opencl_subgroup_size",
    "strata_tensor_view": "void* data; int32_t dtype; int32_t rank; strata_device_id device; int64_t shape[4]; int64_t stride[4]",
    "strata_paged_cache": "size_t struct_size; void* data; strata_device_id device; int32_t format; int32_t row_dim; int32_t page_size; "
    "float scale; int64_t num_pages; int64_t page_stride",
    "strata_cache_group_spec": "size_t struct_size; int32_t group; int32_t format; int32_t row_dim; int32_t page_size; int32_t ratio; "
    "int64_t page_bytes; int64_t retained; int32_t num_query_heads",
    "strata_layer_groups": "size_t struct_size; const strata_cache_group_spec* specs; const int64_t* num_specs; int64_t num_layers",
    "strata_pool_params": "size_t struct_size; const strata_layer_groups* layer_groups; const int64_t* pages; int64_t num_groups; const uint8_t* fill",
    "strata_batch_limits": "size_t struct_size; int64_t max_num_batched_tokens; int64_t max_num_seqs; int64_t max_model_len; "
    "int32_t num_speculative_tokens",
    "strata_batch_request": "size_t struct_size; int64_t seq_len; int64_t query_len; uint64_t pool; int64_t pool_request; "
    "const int32_t* const* block_tables; const int64_t* block_table_lens; int64_t num_block_tables; int64_t id",
    "strata_batch_padding": "size_t struct_size; int64_t num_tokens; int64_t num_requests; int64_t max_seq_len",
    "strata_batch_builder_params": "size_t struct_size; const strata_batch_limits* limits; uint64_t pool; const strata_cache_group_spec* groups; "
    "const int64_t* num_pages; int64_t num_groups; int64_t window",
    "strata_batch_info": "size_t struct_size; int64_t num_tokens; int64_t num_actual_tokens; int64_t num_requests; int64_t num_decodes; "
    "int64_t num_prefills; int64_t num_decode_tokens; int64_t num_prefill_tokens; int64_t max_query_len; int64_t max_seq_len; "
    "const int32_t* query_start_loc_host; const int32_t* seq_lens_host; const int64_t* request_ids_host; "
    "int64_t num_request_ids",
    "strata_group_metadata": "size_t struct_size; int32_t present; int64_t num_pages; strata_tensor_view block_table; strata_tensor_view slot_mapping",
    "strata_rope_config": "size_t struct_size; int32_t dim; double theta; double factor; int64_t original_max_position; double beta_fast; "
    "double beta_slow; int32_t truncate; double mscale_gain",
    "strata_synthesize_options": "size_t struct_size; int64_t num_layers; int32_t fp8; uint64_t seed; int32_t overwrite",
    "strata_layer_options": "size_t struct_size; const strata_batch_limits* limits; int32_t kv_format; int32_t indexer_format; int32_t hadamard; "
    "int32_t fp8_output; int32_t quantize_activations; int32_t prefill_mode; int32_t mla_mode; int64_t context_chunk_rows; "
    "int32_t kv_scale_ue8m0; int32_t rotary_embedding; int32_t batch_invariant; int32_t tp_rank; int32_t tp_size",
    "strata_communicator_callbacks": "size_t struct_size; void* user; int32_t rank; int32_t size; "
    "strata_status (*all_reduce_sum)(void* user, const strata_tensor_view* tensor, strata_device_id device, void* native_stream); "
    "void (*destroy)(void* user)",
    "strata_layer_params": "size_t struct_size; uint64_t checkpoint; int64_t layer; uint64_t device; const strata_layer_options* options; "
    "uint64_t rope_tables; uint64_t communicator; uint64_t side_streams",
    "strata_layer_info": "size_t struct_size; int64_t layer_index; int32_t compress_ratio; const char* kind; int64_t hidden_size; int64_t num_heads; "
    "int64_t index_topk; int64_t weight_bytes; int64_t workspace_bytes",
    "strata_forward_args": "size_t struct_size; uint64_t batch; int32_t dummy_run; uint64_t pool; int64_t pool_layer; "
    "const strata_paged_cache* const* caches; int64_t num_caches; strata_tensor_view hidden; strata_tensor_view out; "
    "strata_tensor_view topk_indices; int32_t skip_topk; strata_tensor_view llama_4_scaling; strata_tensor_view q_tap; "
    "strata_tensor_view attn_out_tap; void* workspace; int64_t workspace_bytes; uint64_t stream",
}

#: Functions that return a status: their parameters.
_FUNCTIONS = {
    "strata_device_open": "const char*, const strata_config*, strata_device*",
    "strata_device_close": "strata_device",
    "strata_stream_wrap": "strata_device, void*, strata_stream*",
    "strata_stream_destroy": "strata_stream",
    "strata_model_config_preset": "const char*, strata_model_config*",
    "strata_model_config_to_json": "strata_model_config, char*, int64_t, int64_t*",
    "strata_model_config_destroy": "strata_model_config",
    "strata_checkpoint_open": "const char*, const strata_config_options*, strata_checkpoint*",
    "strata_checkpoint_destroy": "strata_checkpoint",
    "strata_checkpoint_get_config": "strata_checkpoint, strata_model_config*",
    "strata_checkpoint_attention_layers": "strata_checkpoint, int64_t*, int64_t, int64_t*",
    "strata_checkpoint_kv_scale": "strata_checkpoint, int64_t, float*",
    "strata_synthesize_checkpoint": "strata_model_config, const strata_synthesize_options*, const char*, strata_progress, void*",
    "strata_rope_table_build": "strata_device, const strata_rope_config*, strata_tensor_view",
    "strata_rope_tables_create": "strata_device, int64_t, strata_rope_tables*",
    "strata_rope_tables_destroy": "strata_rope_tables",
    "strata_side_streams_create": "strata_device, strata_side_streams*",
    "strata_side_streams_destroy": "strata_side_streams",
    "strata_communicator_create": "const strata_communicator_callbacks*, strata_communicator*",
    "strata_communicator_single": "strata_communicator*",
    "strata_communicator_rank": "strata_communicator, int32_t*",
    "strata_communicator_size": "strata_communicator, int32_t*",
    "strata_communicator_destroy": "strata_communicator",
    "strata_layer_create": "const strata_layer_params*, strata_layer*",
    "strata_layer_destroy": "strata_layer",
    "strata_layer_get_info": "strata_layer, strata_layer_info*",
    "strata_layer_cache_groups": "strata_layer, strata_cache_group_spec*, int64_t, int64_t*",
    "strata_layer_forward": "strata_layer, const strata_forward_args*",
    "strata_plan_pages": "const strata_layer_groups*, const strata_batch_limits*, int64_t, int64_t*, int64_t",
    "strata_pool_create": "strata_device, const strata_pool_params*, strata_pool*",
    "strata_pool_destroy": "strata_pool",
    "strata_pool_groups": "strata_pool, strata_cache_group_spec*, int64_t, int64_t*",
    "strata_pool_free_pages": "strata_pool, strata_cache_group, int64_t*",
    "strata_pool_allocated_bytes": "strata_pool, int64_t*",
    "strata_pool_cache": "strata_pool, int64_t, strata_cache_group, strata_paged_cache*",
    "strata_pool_add_request": "strata_pool, int64_t",
    "strata_pool_add_request_with_prefix": "strata_pool, int64_t, int64_t, int64_t",
    "strata_pool_prefix_granularity": "strata_pool, int64_t*",
    "strata_pool_extend": "strata_pool, int64_t, int64_t, int64_t, int32_t*",
    "strata_pool_mark_computed": "strata_pool, int64_t, int64_t",
    "strata_pool_remove_request": "strata_pool, int64_t",
    "strata_pool_block_table": "strata_pool, int64_t, strata_cache_group, int32_t*, int64_t, int64_t*",
    "strata_batch_builder_create": "strata_device, const strata_batch_builder_params*, strata_batch_builder*",
    "strata_batch_builder_destroy": "strata_batch_builder",
    "strata_batch_build": "strata_batch_builder, const strata_batch_request*, int64_t, const strata_batch_padding*, strata_stream",
    "strata_batch_get_info": "strata_batch_builder, strata_batch_info*",
    "strata_batch_get_tensor": "strata_batch_builder, strata_batch_tensor, strata_tensor_view*",
    "strata_batch_get_group": "strata_batch_builder, strata_cache_group, strata_group_metadata*",
}

#: STRATA_NUM_CACHE_GROUPS and STRATA_KV_FAMILY_DEFAULT.
NUM_CACHE_GROUPS = 9
KV_FAMILY_DEFAULT = -1

_VALUE_ERRORS = (1, 2)  # STRATA_INVALID_ARGUMENT, STRATA_INVALID_FILE
_NUMBERS = {
    "size_t": ctypes.c_size_t,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}
_INTEGERS = (ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64)
_ENUMERATIONS = ("strata_cache_group", "strata_batch_tensor")

types: dict[str, Any] = {}


def _member(declaration: str) -> tuple[str, Any]:
    function = re.search(r"\(\*(\w+)\)", declaration)
    if function is not None:
        return function.group(1), ctypes.c_void_p
    kind, name, count = re.fullmatch(r"(.+?[ *])(\w+)(?:\[(\d+)\])?", declaration.strip()).groups()  # type: ignore[union-attr]
    kind = kind.strip()
    if kind == "const char*":
        found: Any = ctypes.c_char_p
    elif kind.endswith("*"):
        found = ctypes.c_void_p
    else:
        found = _NUMBERS[kind] if kind in _NUMBERS else types[kind]
    return name, found * int(count) if count else found


for _name, _text in _STRUCTS.items():
    types[_name] = type(_name, (ctypes.Structure,), {"_fields_": [_member(part) for part in _text.split(";")]})


def _parameter(kind: str) -> Any:
    if kind == "const char*":
        return ctypes.c_char_p
    if kind.endswith("*") or kind == "strata_progress":
        return ctypes.c_void_p
    if kind in _NUMBERS or kind in types:
        return _NUMBERS[kind] if kind in _NUMBERS else types[kind]
    return ctypes.c_int32 if kind in _ENUMERATIONS else ctypes.c_uint64


_object = ctypes.CDLL(str(_library.PATH))
_object.strata_last_error.restype = ctypes.c_char_p
for _name, _text in _FUNCTIONS.items():
    _function = getattr(_object, _name)
    _function.argtypes = [_parameter(part.strip()) for part in _text.split(",")]
    _function.restype = ctypes.c_int32


def _check_range(name: str, value: Any, kind: Any) -> None:
    """ValueError for an integer that the type does not hold: ctypes would take it modulo its size."""
    if isinstance(value, int) and kind in _INTEGERS and kind(value).value != value:
        raise ValueError(f"{name} must be a number of {8 * ctypes.sizeof(kind)} bits, is {value}")


def struct(name: str, **members: Any) -> Any:
    """A struct of zeros with its struct_size and these members."""
    kind = types[name]
    if kind._fields_[0][0] == "struct_size":
        members["struct_size"] = ctypes.sizeof(kind)
    for member, declared in kind._fields_:
        _check_range(f"{name}: {member}", members.get(member), declared)
    return kind(**members)


def call(name: str, *arguments: Any) -> None:
    """Calls a function. ValueError for arguments and files that cannot be, RuntimeError for all other errors."""
    function = getattr(_object, name)
    for number, (value, kind) in enumerate(zip(arguments, function.argtypes)):
        _check_range(f"{name}: argument {number}", value, kind)
    status = function(*arguments)
    if status == 0:
        return
    text = _library.with_hint(_object.strata_last_error().decode(errors="replace"))
    raise ValueError(text) if status in _VALUE_ERRORS else RuntimeError(text)


def result(name: str, kind: Any, *arguments: Any) -> Any:
    """The value that a function writes through its last parameter."""
    value = kind()
    call(name, *arguments, ctypes.byref(value))
    return value.value


def handle(name: str, *arguments: Any) -> int:
    """The handle that a function makes."""
    found: int = result(name, ctypes.c_uint64, *arguments)
    return found
