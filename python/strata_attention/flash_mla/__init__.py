"""FlashMLA's functions over Strata's ops: every CUDA GPU from sm_80, CPUs, any number of heads. docs/from-flash-mla.md is the guide.

The signatures are those of FlashMLA (commit 9241ae3), with ``out`` and ``enable_batch_invariant`` of vLLM's build.
"""

from __future__ import annotations

from .decode import flash_mla_with_kvcache
from .prefill import flash_mla_sparse_fwd
from .schedule import FlashMLASchedMeta, get_mla_metadata
from .varlen import flash_attn_varlen_func, flash_attn_varlen_kvpacked_func, flash_attn_varlen_qkvpacked_func

#: Tells this module from DeepSeek's.
__strata__ = True

__all__ = [
    "FlashMLASchedMeta",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_mla_sparse_fwd",
    "flash_mla_with_kvcache",
    "get_mla_metadata",
]
