"""Inputs of a case's call, as torch tensors by the names that op_call.h describes. Values are random; the seed is that of torch."""
import torch

WINDOW, PAGE = 128, 64  # rows of V4's window and of a page
V4_PAGE_BYTES = 37440   # 64 rows of 584 bytes, padded to a multiple of 576
DISTINCT_PAGES = 64     # a cache repeats this many different pages
Q_SIZE = {"flat": 0.1, "peaked": 5.0}
HOLES = 0.1             # share of indices that are -1
V4_SCALE, MLA_SCALE = 512 ** -0.5, 0.13523377


def make(case, device):
    """The tensors of one call of the case."""
    return MAKERS[case.op](case.shape(), device)


def number(value, dtype=torch.float32):
    return torch.tensor([value], dtype=dtype)


def bf16(device, *shape, size=1.0):
    return torch.randn(*shape, dtype=torch.bfloat16, device=device) * size


def i32(values, device):
    return torch.as_tensor(values, dtype=torch.int32, device=device)


def cache(name, pages, format, rows_per_page, row_dim):
    return {f"{name}.{format}": pages, f"{name}_shape": torch.tensor([rows_per_page, row_dim], dtype=torch.int64)}


def quantised(values, block, powers_of_two):
    """e4m3 bytes and scales of f32 [..., n], a scale for each `block` values."""
    blocks = values.unflatten(-1, (-1, block))
    scales = blocks.abs().amax(-1).clamp_min(1e-4) / 448
    if powers_of_two:
        scales = torch.exp2(torch.ceil(torch.log2(scales)))
    return (blocks / scales.unsqueeze(-1)).to(torch.float8_e4m3fn).flatten(-2).view(torch.uint8), scales


def repeated(pages, count):
    return pages[torch.arange(count, device=pages.device) % len(pages)]


def v4_pages(count, device):
    """u8 [count, 37440] of fp8_ds_mla_v4 rows."""
    rows = torch.randn(min(count, DISTINCT_PAGES), PAGE, 512, device=device)
    values, scales = quantised(rows[..., :448], 64, True)
    rotated = rows[..., 448:].to(torch.bfloat16).view(torch.uint8)
    exponents = torch.zeros(*rows.shape[:2], 8, dtype=torch.uint8, device=device)
    exponents[..., :7] = (torch.log2(scales).round() + 127).to(torch.uint8)
    pages = torch.zeros(len(rows), V4_PAGE_BYTES, dtype=torch.uint8, device=device)
    pages[:, :PAGE * 576] = torch.cat([values, rotated], -1).flatten(1)
    pages[:, PAGE * 576:PAGE * 584] = exponents.flatten(1)
    return repeated(pages, count)


def v32_pages(count, device, powers_of_two):
    """u8 [count, 64 * 656] of fp8_ds_mla rows."""
    rows = torch.randn(min(count, DISTINCT_PAGES), PAGE, 576, device=device)
    values, scales = quantised(rows[..., :512], 128, powers_of_two)
    rotated = rows[..., 512:].to(torch.bfloat16).view(torch.uint8)
    return repeated(torch.cat([values, scales.view(torch.uint8), rotated], -1).flatten(1), count)


def tables(owners, rows, device):
    """i32 [owners, pages of an owner]: pages in random order, each of one owner."""
    pages = -(-rows // PAGE)
    return torch.randperm(owners * pages, device=device).view(owners, pages)


def slots(table, positions):
    """Slots of positions [owners, n]."""
    return (table.gather(1, positions // PAGE) * PAGE + positions % PAGE).to(torch.int32)


def selected(owners, count, rows, device):
    """`count` different positions below `rows` of each owner, ascending."""
    if count == rows:
        return torch.arange(rows, device=device).expand(owners, rows)
    return torch.rand(owners, rows, device=device).argsort(1)[:, :count].sort(1).values


def with_holes(indices, values):
    return torch.where(torch.rand(indices.shape, device=indices.device) < HOLES, -1, indices) if values == "holes" else indices


def sparse_attn_decode(shape, device):
    # As testkit/cases/sparse_attn_bench.cpp: every token has rows of its own, and selects among twice as many as it attends to.
    requests, queries, heads = shape["requests"], shape["queries"] or 1, shape["heads"]
    tokens, v4 = requests * queries, shape["model"] == "V4"
    q_size = Q_SIZE.get(shape["values"], 1.0)
    held = shape["rows"] if v4 else 2 * shape["rows"]

    def indices(table, count, rows):
        found = slots(table, selected(tokens, count, rows, device)).view(requests, queries, count)
        return with_holes(found, shape["values"]).contiguous()

    table = tables(tokens, held, device)
    result = {"q": bf16(device, requests, queries, heads, 512 if v4 else 576, size=q_size),
              "indices": indices(table, shape["rows"], held),
              "topk_length": i32([shape["rows"]] * requests, device),
              "softmax_scale": number(V4_SCALE if v4 else MLA_SCALE)}
    if v4:
        result |= cache("cache", v4_pages(table.numel(), device), "fp8_ds_mla_v4", PAGE, 512)
        result["attn_sink"] = torch.randn(heads, device=device)
    else:
        result |= cache("cache", v32_pages(table.numel(), device, shape["values"] != "scales"), "fp8_ds_mla", PAGE, 576)
    if shape["selected"]:
        table = tables(tokens, 2 * shape["selected"], device)
        result |= cache("extra_cache", v4_pages(table.numel(), device), "fp8_ds_mla_v4", PAGE, 512)
        result["extra_indices"] = indices(table, shape["selected"], 2 * shape["selected"])
        result["extra_topk_length"] = i32([shape["selected"]] * requests, device)
    return result


def sparse_attn_prefill(shape, device):
    # As testkit/cases/sparse_attn_bench.cpp: different rows of a power of two of gathered ones; an odd step meets every row.
    tokens, heads, rows = shape["tokens"], shape["heads"], 16384 if shape["dim"] == 512 else 32768
    first, step = (torch.randint(0, rows // 2, (tokens, 1), device=device) for _ in range(2))
    indices = (first + torch.arange(shape["rows"], device=device) * (2 * step + 1)) % rows
    return {"q": bf16(device, tokens, heads, shape["dim"], size=Q_SIZE.get(shape["values"], 1.0)),
            "kv": bf16(device, rows, shape["dim"]),
            "indices": with_holes(indices.to(torch.int32), shape["values"]),
            "attn_sink": torch.randn(heads, device=device),
            "softmax_scale": number(V4_SCALE)}


def ragged_length(context, i):
    return context // 8 + i * 37 % 64 * context // 36  # testkit/cases/ragged.h


def dense_attn_decode(shape, device):
    requests, queries, rows = shape["requests"], shape["queries"] or 1, shape["rows"]
    lengths = [ragged_length(rows, i) if shape["mixed"] else rows for i in range(requests)]
    pages = [-(-length // PAGE) for length in lengths]
    order, table = torch.randperm(sum(pages)).to(torch.int32), torch.zeros(requests, max(pages), dtype=torch.int32)
    for i, count in enumerate(pages):
        table[i, :count] = order[sum(pages[:i]):sum(pages[:i + 1])]
    held = bf16(device, sum(pages), PAGE * 576, size=0.1).view(torch.uint8)
    return {"q": bf16(device, requests * queries, shape["heads"], 576),
            **cache("cache", held, "bf16", PAGE, 576),
            "block_table": table.to(device),
            "query_start_loc": i32([i * queries for i in range(requests + 1)], device),
            "seq_lens": i32(lengths, device),
            "softmax_scale": number(MLA_SCALE)}


def dense_attn_prefill(shape, device):
    heads = shape["heads"]
    return {"q": bf16(device, shape["queries"], heads, 192),
            "kv": bf16(device, shape["keys"], heads, 256),  # a head's 128 key dimensions, then its 128 value dimensions
            "k_pe": bf16(device, shape["keys"], 64),
            "softmax_scale": number(MLA_SCALE)}


def qnorm_rope_kv_insert(shape, device):
    tokens, heads, positions = shape["tokens"], shape["heads"], 4096
    angles = 2 * torch.pi * torch.rand(positions, 32, device=device)
    pages = tokens // PAGE + 2
    return {"q": bf16(device, tokens, heads, 512, size=2.0),
            "kv": bf16(device, tokens, 512),
            "positions": torch.randint(0, positions, (tokens,), device=device),
            "cos_sin": torch.cat([angles.cos(), angles.sin()], 1),
            "slot_mapping": torch.randperm(pages * PAGE, device=device)[:tokens],
            **cache("cache", torch.zeros(pages, V4_PAGE_BYTES, dtype=torch.uint8, device=device), "fp8_ds_mla_v4", PAGE, 512),
            "eps": number(1e-6)}


def rms_norm_pair(shape, device):
    tokens = shape["tokens"]  # V4-Flash: latents of 1024 and 512 values
    # bf16 values, so that a peer whose weights are bf16 has the same.
    weight = lambda n: bf16(device, n).float()
    return {"q": bf16(device, tokens, 1024), "q_weight": weight(1024), "kv": bf16(device, tokens, 512), "kv_weight": weight(512),
            "eps": number(1e-6)}


MAKERS = {maker.__name__: maker for maker in (sparse_attn_decode, sparse_attn_prefill, dense_attn_decode, dense_attn_prefill,
                                              qnorm_rope_kv_insert, rms_norm_pair)}
