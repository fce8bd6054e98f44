#!/usr/bin/env python3
"""Host time of a call of sparse_attn_decode from Python, Strata's op and module flash_mla next to FlashMLA's function, in one process.

  tools/compare/host_times.py

One request of V4 (64 heads, 128 rows of fp8_ds_mla_v4). `enqueue`: 300 calls without waiting, the lowest of 20 rounds. `sustained`: 2000 calls, the
queue emptied every 500, the lowest of 7. Needs an NVIDIA GPU, the package strata_attention with CUDA, and FlashMLA: the package flash_mla, or vLLM's
build of it. Exit codes: 0 success; 1 results that differ; 2 no GPU, no FlashMLA.
"""
import importlib
import sys
import time

FLASH_MLA = ("flash_mla", "vllm.third_party.flashmla.flash_mla_interface")
PAGES, PAGE_SIZE, HEADS, DIM, ROWS = 64, 64, 64, 512, 128


def flash_mla():
    for name in FLASH_MLA:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        if not getattr(module, "__strata__", False):  # Strata has a module of that name
            return module
    print(f"tools/compare/host_times.py: expected one of the modules {', '.join(FLASH_MLA)} by DeepSeek, got none", file=sys.stderr)
    sys.exit(2)


def lowest(rounds, calls, every, call):
    import torch

    best = float("inf")
    for _ in range(rounds):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for i in range(calls):
            call()
            if every and i % every == every - 1:
                torch.cuda.synchronize()
        best = min(best, (time.perf_counter() - begin) / calls)
    return best * 1e6


def main():
    try:
        import torch
        import strata_attention as strata
    except ImportError as error:
        print(f"tools/compare/host_times.py: {error}", file=sys.stderr)
        return 2
    if not torch.cuda.is_available():
        print("tools/compare/host_times.py: expected an NVIDIA GPU, got none", file=sys.stderr)
        return 2
    peer = flash_mla()
    torch.manual_seed(1)
    stride = (584 * PAGE_SIZE + 575) // 576 * 576
    cache = strata.PagedCache.empty(strata.KvFormat.fp8_ds_mla_v4, PAGES, PAGE_SIZE, page_stride=stride, device="cuda")
    slots = torch.arange(PAGES * PAGE_SIZE, device="cuda")
    strata.quantize_and_insert_k(torch.randn(len(slots), DIM, device="cuda").bfloat16(), slots, cache)
    q = torch.randn(1, 1, HEADS, DIM, device="cuda").bfloat16()
    indices = torch.randint(0, len(slots), (1, 1, ROWS), device="cuda", dtype=torch.int32)
    length, sink = torch.full((1,), ROWS, device="cuda", dtype=torch.int32), torch.zeros(HEADS, device="cuda")
    out, lse = torch.empty_like(q), torch.empty(1, HEADS, 1, device="cuda")
    workspace = torch.empty(1 << 24, device="cuda", dtype=torch.uint8)
    pages = cache.tensor.as_strided((PAGES, PAGE_SIZE, 1, 584), (stride, 584, 584, 1))
    plans = {module: module.get_mla_metadata(length, HEADS, 1, HEADS, True, ROWS) for module in (peer, strata.flash_mla)}
    scale = DIM**-0.5

    def ours(**more):
        strata.sparse_attn_decode(q, cache, indices, scale, out, topk_length=length, attn_sink=sink, lse=lse, **more)

    def decode(module):
        return module.flash_mla_with_kvcache(q, pages, None, None, DIM, *plans[module], softmax_scale=scale, is_fp8_kvcache=True, indices=indices,
                                             attn_sink=sink, topk_length=length)

    ours()
    worst = max((out.float() - decode(module)[0].float()).abs().max().item() for module in plans)
    if not worst < 0.02:
        print(f"tools/compare/host_times.py: outputs differ by {worst}", file=sys.stderr)
        return 1
    calls = {"Strata": ours, "Strata, workspace given": lambda: ours(workspace=workspace),
             strata.flash_mla.__name__: lambda: decode(strata.flash_mla), peer.__name__: lambda: decode(peer)}
    for name, call in list(calls.items()) * 2:
        for _ in range(200):
            call()
        print(f"{name:50s} enqueue {lowest(20, 300, 0, call):6.2f} us   sustained {lowest(7, 2000, 500, call):6.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
