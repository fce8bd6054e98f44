"""The table of steps: what each replaces in which vLLM."""

from __future__ import annotations

import dataclasses

from .names import Name


@dataclasses.dataclass(frozen=True)
class Step:
    """One replacement, for one platform.

    name      as in STRATA_VLLM
    platform  "cuda" or "cpu"
    versions  releases of vLLM that it was written for
    names     what it touches
    install   "module:function" of this package, called once in each process
    """

    name: str
    platform: str
    versions: tuple[str, ...]
    names: tuple[Name, ...]
    install: str


_MLA = "model_executor.layers.attention.mla_attention"
_FLASH_MLA = "third_party.flashmla.flash_mla_interface"
_REGISTER = (
    Name("v1.attention.backends.registry", "AttentionBackendEnum"),
    Name("v1.attention.backends.registry", "register_backend"),
)

STEPS: tuple[Step, ...] = (
    Step(
        "ops",
        "cuda",
        ("0.26.0",),
        (
            Name(
                _FLASH_MLA,
                "flash_mla_with_kvcache",
                (
                    "q",
                    "k_cache",
                    "block_table",
                    "cache_seqlens",
                    "head_dim_v",
                    "tile_scheduler_metadata",
                    "num_splits",
                    "softmax_scale",
                    "causal",
                    "is_fp8_kvcache",
                    "indices",
                    "attn_sink",
                    "extra_k_cache",
                    "extra_indices_in_kvcache",
                    "topk_length",
                    "extra_topk_length",
                    "out",
                ),
            ),
            Name(_FLASH_MLA, "flash_mla_sparse_fwd", ("q", "kv", "indices", "sm_scale", "d_v", "attn_sink", "topk_length", "out")),
            Name(_FLASH_MLA, "get_mla_metadata", ()),
            Name(_FLASH_MLA, "FlashMLASchedMeta"),
            Name("v1.attention.ops.flashmla", "flash_mla_with_kvcache"),
            Name("v1.attention.ops.flashmla", "flash_mla_sparse_fwd"),
            Name("v1.attention.ops.flashmla", "get_mla_metadata"),
            Name("v1.attention.ops.flashmla", "FlashMLASchedMeta"),
        ),
        "flash_mla_step:install",
    ),
    Step(
        "mla",
        "cpu",
        ("0.32.0",),
        (
            *_REGISTER,
            Name("v1.attention.backends.mla.cpu_mla", "CPUMLABackend.get_impl_cls", ()),
            Name("v1.attention.backends.mla.cpu_mla", "CPUMLAImpl.forward_mqa", ("q", "kv_c_and_k_pe_cache", "attn_metadata", "layer")),
            Name(
                "v1.attention.backends.mla.cpu_mla",
                "CPUMLAImpl.do_kv_cache_update",
                ("kv_c_normed", "k_pe", "kv_cache", "slot_mapping", "kv_cache_dtype", "k_scale"),
            ),
            Name(
                _MLA,
                "MLACommonBaseImpl.forward_mha",
                ("q", "kv_c_normed", "k_pe", "kv_c_and_k_pe_cache", "attn_metadata", "k_scale", "output", "output_scale"),
            ),
            Name(_MLA, "MLACommonMetadata.decode"),
            Name(_MLA, "MLACommonMetadata.prefill"),
            Name(_MLA, "MLACommonPrefillMetadata.chunked_context"),
        ),
        "mla_cpu:install",
    ),
    Step(
        "v4",
        "cuda",
        ("0.26.0",),
        (
            Name("models.deepseek_v4.nvidia.model", "_select_dsv4_attn_cls", ("vllm_config",)),
            Name("models.deepseek_v4.nvidia.model", "DeepseekV4ForCausalLM"),
        ),
        "v4_install:cuda",
    ),
    Step(
        "v4",
        "cpu",
        ("0.32.0",),
        (
            Name("models.deepseek_v4.cpu.model", "DeepseekV4CPUAttention"),
            Name("models.deepseek_v4.cpu.model", "DeepseekV4ForCausalLM"),
        ),
        "v4_install:cpu",
    ),
)
