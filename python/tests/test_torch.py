"""The ops as ops of torch: opcheck, torch.compile, CUDA graphs, devices."""

from __future__ import annotations

import warnings

import pytest
import torch
from cases import CASES
from flat import flat, torch_op

import strata_attention as sa

# One case of every op; all in test_oracle.py.
FIRST: dict[str, str] = {}
for _name in CASES:
    FIRST.setdefault(_name.split("[")[0], _name)
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.parametrize("name", CASES)
def test_flat_call(name: str) -> None:
    case = CASES[name]()
    assert torch_op(case)(**flat(case)) is None
    case.check()


@pytest.mark.parametrize("name", CASES)
def test_opcheck(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[name]()
    allclose = torch.allclose

    def allclose_of_bytes(a: torch.Tensor, b: torch.Tensor, **options: object) -> bool:
        """torch compares no e4m3 tensors."""
        return torch.equal(a.view(torch.uint8), b.view(torch.uint8)) if a.dtype == torch.float8_e4m3fn else allclose(a, b, **options)

    monkeypatch.setattr(torch, "allclose", allclose_of_bytes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = torch.library.opcheck(torch_op(case), (), flat(case))
    assert set(result.values()) == {"SUCCESS"}


@pytest.mark.parametrize("name", FIRST.values())
def test_compiled_without_graph_breaks(name: str) -> None:
    case = CASES[name]()
    torch._dynamo.reset()

    def call(arguments):
        case.op(**arguments)

    torch.compile(call, fullgraph=True, backend="aot_eager")(case.arguments)
    case.check()


def test_compiled_by_inductor() -> None:
    """Outputs made inside the compiled function, and views of them."""
    torch._dynamo.reset()
    weight = torch.rand(64)

    def call(x: torch.Tensor) -> torch.Tensor:
        both = torch.empty(2, *x.shape, dtype=x.dtype)
        sa.rms_norm_pair(x, weight, kv_out=both[0])
        sa.rms_norm_pair(both[0] * 2, weight, kv_out=both[1])
        return both.float() + 1

    x = torch.randn(5, 64).bfloat16()
    assert torch.equal(torch.compile(call, fullgraph=True)(x), call(x))


class _TwoOps(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.Buffer(torch.rand(64))
        self.weight = torch.nn.Buffer(torch.randn(32, 64).bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, z = torch.empty_like(x), torch.empty(x.shape[0], 32)
        sa.rms_norm_pair(x, self.norm, kv_out=y)
        sa.linear(y, sa.LinearWeight(self.weight), z)
        return z


def test_exported_for_any_number_of_tokens() -> None:
    module, x = _TwoOps(), torch.randn(5, 64).bfloat16()
    exported = torch.export.export(module, (x,), dynamic_shapes={"x": {0: torch.export.Dim("tokens")}}).module()
    for tokens in (5, 2):
        assert torch.equal(exported(x[:tokens]), module(x[:tokens]))


def test_compiled_for_any_number_of_tokens() -> None:
    torch._dynamo.reset()
    module, x = _TwoOps(), torch.randn(5, 64).bfloat16()
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for tokens in (5, 2):
        assert torch.equal(compiled(x[:tokens]), module(x[:tokens]))


def test_no_gradients_flow_through_ops() -> None:
    x, y = torch.randn(2, 8, requires_grad=True).bfloat16(), torch.empty(2, 8).bfloat16()
    sa.rms_norm_pair(x, torch.ones(8), kv_out=y)
    assert not y.requires_grad


def test_compiled_output_that_is_an_input() -> None:
    torch._dynamo.reset()
    weight = torch.rand(64)

    def call(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        sa.rms_norm_pair(y, weight, kv_out=y)
        sa.rms_norm_pair(x, weight, kv_out=x)
        return y + x

    x = torch.randn(5, 64).bfloat16()
    own, compiled = x.clone(), x.clone()
    assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(compiled), call(own)) and torch.equal(compiled, own)


def test_compiled_cache_with_gaps_between_pages() -> None:
    """Functionalisation must not give the op a copy of the cache without the gaps."""
    torch._dynamo.reset()
    memory = torch.zeros(3, 1024, dtype=torch.uint8)
    cache = sa.PagedCache.of(memory[:, : 4 * 192].view(torch.bfloat16).view(3, 4, 96), sa.KvFormat.bf16)
    assert cache.page_stride == 1024
    k, slots = torch.randn(2, 96).bfloat16(), torch.tensor([1, 9])

    def call(k: torch.Tensor) -> torch.Tensor:
        sa.quantize_and_insert_k(k, slots, cache)
        return cache.tensor.float()

    result = torch.compile(call, fullgraph=True, backend="aot_eager")(k)
    assert torch.equal(result.view(12, 96)[slots], k.float()) and result.count_nonzero() == k.count_nonzero()


def test_compiled_error_has_the_code() -> None:
    torch._dynamo.reset()

    def call(x: torch.Tensor, y: torch.Tensor) -> None:
        sa.rms_norm_pair(x, torch.ones(8), kv_out=y)

    with pytest.raises((RuntimeError, ValueError), match="rms_norm_pair: kv must be bf16"):
        torch.compile(call, fullgraph=True, backend="aot_eager")(torch.ones(2, 8), torch.ones(2, 8).bfloat16())


def test_given_workspace_is_enough_at_any_address() -> None:
    for name in FIRST.values():
        case = CASES[name]()
        size = sa.workspace_bytes(case.op, **case.arguments)
        memory = torch.zeros(size + 64, dtype=torch.uint8)
        case.op(**case.arguments, workspace=memory[1 : 1 + size] if size else None)
        case.check()
        if size:
            with pytest.raises(RuntimeError, match="workspace"):
                case.op(**case.arguments, workspace=memory[: size // 2 - 255])


def test_hint_changes_no_result() -> None:
    case = CASES["linear"]()
    case.op(**case.arguments, next_weights=torch.zeros(16, 40).bfloat16())
    case.check()


def test_implementations_begin_with_the_one_that_runs() -> None:
    case = CASES["merge_attn_states[inf]"]()
    found = sa.implementations(case.op, **case.arguments)
    assert found["reference"] == "eligible" and next(reversed(found)) == "reference"


@needs_cuda
@pytest.mark.parametrize("name", CASES)
def test_cuda_equals_the_oracle(name: str) -> None:
    import on_cuda

    case = CASES[name]()
    on_cuda.run(case)
    case.check()


@needs_cuda
@pytest.mark.parametrize("name", FIRST.values())
def test_cuda_graph(name: str) -> None:
    import on_cuda

    case = CASES[name]()
    on_cuda.run(case, graph=True)
    case.check()


@needs_cuda
def test_mixed_devices_are_refused() -> None:
    x = torch.ones(2, 8, device="cuda").bfloat16()
    with pytest.raises(ValueError, match="must be on cuda:0, is .*on cpu"):
        sa.rms_norm_pair(x, torch.ones(8), kv_out=torch.empty_like(x))
