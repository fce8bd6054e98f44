"""Index generation: which rows each token attends to, as numbers."""

from __future__ import annotations

import torch

from .._binding import op


@op
def scatter_block_tables(
    entries: torch.Tensor,
    segments: torch.Tensor,
    block_table: torch.Tensor,
    *,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """block_table[row, column + i] = entries[first + i] for i < count, for every segment.

    entries      i32 [N]
    segments     i32 [S, 4], contiguous: row, column, first, count
    block_table  written: i32 [R, width], rows contiguous; other entries are unchanged
    """


@op
def slot_mapping(
    positions: torch.Tensor,
    token_to_req: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    slot_mapping: torch.Tensor,
    *,
    is_valid_token: torch.Tensor | None = None,
    ratio: int = 1,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """The slot of every token in one cache group; ratio r > 1: of entry p / r for boundary tokens, (p + 1) % r == 0, and -1 for others.

    positions       i64 [T]
    token_to_req    i32 [T]
    block_table     i32 [R, max_blocks]
    page_size       rows per page
    slot_mapping    written: i64 [T]
    is_valid_token  bool or u8 [T]; absent: all valid
    """


@op
def swa_indices(
    positions: torch.Tensor,
    token_to_req: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    indices: torch.Tensor,
    lens: torch.Tensor,
    *,
    is_valid_token: torch.Tensor | None = None,
    window: int = 128,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Sliding-window slots of every token, oldest first; -1 fills the rest.

    positions       i64 [T]
    token_to_req    i32 [T]
    block_table     i32 [R, max_blocks] of the window group
    page_size       rows per page
    indices         written: i32 [T, W]
    lens            written: i32 [T]
    is_valid_token  bool or u8 [T]; absent: all valid
    window          W, the query token included
    """


@op
def compressed_indices(
    positions: torch.Tensor,
    indices: torch.Tensor,
    lens: torch.Tensor,
    *,
    token_to_req: torch.Tensor | None = None,
    is_valid_token: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    page_size: int = 0,
    ratio: int = 128,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Every complete compressed entry of each token, min((p + 1) / ratio, width) entries: slots with a block table, else entry numbers.

    positions       i64 [T]
    indices         written: i32 [T, width]; -1 fills the rest
    lens            written: i32 [T]
    token_to_req    i32 [T]; may be absent without a block table
    is_valid_token  bool or u8 [T]; absent: all valid
    block_table     i32 [R, max_blocks] of the compressed group
    page_size       rows per page; ignored without a block table
    ratio           positions per entry
    """


@op
def compute_global_topk(
    topk_indices: torch.Tensor,
    token_to_req: torch.Tensor,
    block_table: torch.Tensor,
    page_size: int,
    global_indices: torch.Tensor,
    lens: torch.Tensor,
    *,
    is_valid_token: torch.Tensor | None = None,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Entry numbers to slots, in the same columns. lens[t] = count(topk_indices[t] >= 0).

    topk_indices    i32 [T, k]
    token_to_req    i32 [T]
    block_table     i32 [R, max_blocks]
    page_size       rows per page
    global_indices  written: i32 [T, k]; may be topk_indices
    lens            written: i32 [T]
    is_valid_token  bool or u8 [T]; absent: all valid
    """


@op
def combine_topk_swa(
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    gather_lens: torch.Tensor,
    m: int,
    n: int,
    combined_indices: torch.Tensor,
    combined_lens: torch.Tensor,
    *,
    topk_indices: torch.Tensor | None = None,
    window: int = 128,
    ratio: int = 1,
    top_k: int = 0,
    next_weights: torch.Tensor | None = None,
    workspace: torch.Tensor | None = None,
) -> None:
    """Rows of the gathered workspace for one prefill chunk: selected entries, then window rows, then -1.

    query_start_loc   i32 [R + 1], global token numbers of the chunk's requests
    seq_lens          i32 [R]
    gather_lens       i32 [R]
    m, n              workspace rows per request; first window row of a request
    combined_indices  written: i32 [T, width], width >= top_k + window
    combined_lens     written: i32 [T]
    topk_indices      i32 [T, top_k]; absent when top_k is 0
    window            positions of the window, the query token included
    ratio             positions per compressed entry
    """
