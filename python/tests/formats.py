"""Bytes of cached rows in torch, from docs/formats.md. Shares no code with the library."""

from __future__ import annotations

import torch

from strata_attention import KvFormat, PagedCache

E4M3 = torch.float8_e4m3fn
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)


def power_of_two_above(x: torch.Tensor) -> torch.Tensor:
    """2^ceil(log2(x)) in float64, exact."""
    mantissa, exponent = torch.frexp(x.double())
    return torch.ldexp(torch.ones_like(mantissa), torch.where(mantissa == 0.5, exponent - 1, exponent))


def to_e4m3(x: torch.Tensor) -> torch.Tensor:
    return x.clamp(-448, 448).float().to(E4M3)


def e8m0(scale: torch.Tensor) -> torch.Tensor:
    """Bytes of powers of two."""
    return (torch.log2(scale).round() + 127).to(torch.uint8)


def from_e8m0(code: torch.Tensor) -> torch.Tensor:
    return torch.exp2(code.double() - 127)


def as_u8(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


def quantised_blocks(
    x: torch.Tensor, block: int, floor: float, *, powers: bool = True, floor_of_scale: float = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """e4m3 values and scales (float64) of blocks of the last dimension."""
    blocks = x.double().unflatten(-1, (-1, block))
    scale = blocks.abs().amax(-1).clamp_min(floor) / 448
    scale = scale.clamp_min(floor_of_scale) if floor_of_scale else scale
    scale = power_of_two_above(scale.float()) if powers else scale.float().double()
    return to_e4m3(blocks / scale[..., None]).flatten(-2), scale


def to_mxfp4(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed pairs and ue8m0 bytes of blocks of 32."""
    blocks = x.double().unflatten(-1, (-1, 32))
    scale = power_of_two_above((blocks.abs().amax(-1).clamp_min(6 * 2.0**-126) / 6).float())
    value = (blocks / scale[..., None]).flatten(-2)
    distance = (value.abs().clamp_max(6)[..., None] - _E2M1).abs()
    # The nearest; of two equally near the one with the even code.
    code = (distance + torch.arange(8).remainder(2) * 1e-12).argmin(-1)
    code = (code + 8 * torch.signbit(value)).to(torch.uint8).unflatten(-1, (-1, 2))
    return code[..., 0] | code[..., 1] << 4, e8m0(scale)


def from_mxfp4(packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2).long()
    value = _E2M1[code & 7] * torch.where(code > 7, -1.0, 1.0)
    return (value.unflatten(-1, (-1, 32)) * from_e8m0(scale)[..., None]).flatten(-2)


def encode(cache: PagedCache, rows: torch.Tensor, *, ue8m0: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Data and scale bytes of rows [n, row_dim] (float64: rounded as the format says)."""
    n, none = rows.shape[0], torch.zeros(rows.shape[0], 0, dtype=torch.uint8)
    bf16 = rows.bfloat16()
    match cache.format:
        case KvFormat.bf16:
            return as_u8(bf16), none
        case KvFormat.fp8_tensor:
            return as_u8(to_e4m3(rows.double() / cache.scale)), none
        case KvFormat.fp8_ds_mla_v4:
            values, scale = quantised_blocks(bf16[:, :448], 64, 1e-4)
            data = torch.cat([as_u8(values), as_u8(bf16[:, 448:])], 1)
            return data, torch.cat([e8m0(scale), torch.zeros(n, 1, dtype=torch.uint8)], 1)
        case KvFormat.fp8_ds_mla:
            values, scale = quantised_blocks(bf16[:, :512], 128, 1e-4 if ue8m0 else 0, powers=ue8m0, floor_of_scale=2.0**-126)
            return torch.cat([as_u8(values), as_u8(scale.float()), as_u8(bf16[:, 512:])], 1), none
        case KvFormat.indexer_fp8:
            values, scale = quantised_blocks(bf16, 128, 1e-4)
            return as_u8(values), as_u8(scale.float())
        case KvFormat.indexer_mxfp4:
            return to_mxfp4(bf16)
        case _:
            return as_u8(rows.float()), none


def _offsets(cache: PagedCache, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int, int]:
    data, scale = cache.format.row_data_bytes(cache.row_dim), cache.format.row_scale_bytes()
    page, row = slots // cache.page_size * cache.page_stride, slots % cache.page_size
    return page + row * data, page + cache.page_size * data + row * scale, data, scale


def store(cache: PagedCache, slots: torch.Tensor, rows: torch.Tensor) -> None:
    """Writes rows at slots."""
    values, scales = encode(cache, rows)
    at_data, at_scale, data, scale = _offsets(cache, slots.long())
    memory = cache.tensor.view(-1)
    memory[at_data[:, None] + torch.arange(data)] = values
    if scale:
        memory[at_scale[:, None] + torch.arange(scale)] = scales


def load(cache: PagedCache, slots: torch.Tensor) -> torch.Tensor:
    """Rows [n, row_dim] at slots, as float64."""
    at_data, at_scale, data, scale = _offsets(cache, slots.long())
    memory = cache.tensor.view(-1)
    values = memory[at_data[:, None] + torch.arange(data)]
    scales = memory[at_scale[:, None] + torch.arange(scale)]
    fp8 = lambda x: x.contiguous().view(E4M3).double()
    match cache.format:
        case KvFormat.bf16:
            return values.view(torch.bfloat16).double()
        case KvFormat.fp8_tensor:
            return fp8(values) * cache.scale
        case KvFormat.fp8_ds_mla_v4:
            nope = (fp8(values[:, :448]).unflatten(1, (7, 64)) * from_e8m0(scales[:, :7])[..., None]).flatten(1)
            return torch.cat([nope, values[:, 448:].contiguous().view(torch.bfloat16).double()], 1)
        case KvFormat.fp8_ds_mla:
            tiles = values[:, 512:528].contiguous().view(torch.float32).double()
            latent = (fp8(values[:, :512]).unflatten(1, (4, 128)) * tiles[..., None]).flatten(1)
            return torch.cat([latent.bfloat16().double(), values[:, 528:].contiguous().view(torch.bfloat16).double()], 1)
        case KvFormat.indexer_fp8:
            return fp8(values) * scales.contiguous().view(torch.float32).double()
        case KvFormat.indexer_mxfp4:
            return from_mxfp4(values, scales)
        case _:
            return values.contiguous().view(torch.float32).double()
