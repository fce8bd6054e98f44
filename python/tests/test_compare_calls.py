"""tools/compare's calls from Python of its own inputs, on the CPU: the ops and the module flash_mla agree."""

from __future__ import annotations

import pathlib
import sys
from typing import Any

import pytest
import torch

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
if not (TOOLS / "compare").is_dir():
    pytest.skip("tools/compare is in the repository alone", allow_module_level=True)
sys.path.append(str(TOOLS))

from compare import cases, inputs, python_calls  # noqa: E402

SMALL = [
    ("rms_norm_pair", "3 tokens"),
    ("dense_attn_decode", "16 heads, 3 x 100, mixed, two tokens"),
    ("sparse_attn_decode", "V4, 64 heads, 128+64 rows, 2 requests of two tokens, holes"),
    ("sparse_attn_decode", "V4, 8 heads, 128 rows, 1 request"),
    ("sparse_attn_decode", "V3.2, 16 heads, 64 rows, 1 request, scales"),
    ("sparse_attn_prefill", "3 tokens, 16 heads, 64 rows, D 576, holes"),
    ("dense_attn_prefill", "8 x 16, causal, 4 heads"),
    ("qnorm_rope_kv_insert", "8 heads, 5 tokens"),
]


@pytest.mark.parametrize("case", [cases.Case(*names) for names in SMALL], ids=lambda case: f"{case.op}: {case.name}")
def test_calls_agree(case: Any) -> None:
    torch.manual_seed(1)
    made = inputs.make(case, "cpu")
    found = {}
    for name, calls in python_calls.calls().items():
        if case.op not in calls.OPS:
            continue
        call = calls.prepare(case.op, made)
        found[name] = {key: tensor.clone() for key, tensor in call.outputs(call.run()).items()}
    ops = found[python_calls.NAMES[0]]
    assert all(tensor.dtype == torch.uint8 or tensor.isfinite().all() for tensor in ops.values())
    for outputs in found.values():
        for key, tensor in outputs.items():
            assert torch.allclose(tensor.float(), ops[key].float(), rtol=0.01, atol=1e-3), key
    assert (len(found) == 2) == (case.op in ("dense_attn_decode", "sparse_attn_decode", "sparse_attn_prefill"))
