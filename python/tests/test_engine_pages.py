"""examples/engine_pages.py, and that an engine's own pages give the bits of a Pool's."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch

import strata_attention as sa

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "engine_pages.py"


@pytest.mark.skipif(not EXAMPLE.is_file(), reason="not in the repository")
def test_example() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], check=True, capture_output=True, text=True)
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["64", "104", "105"]


def test_same_bits_as_a_pool(tmp_path: pathlib.Path) -> None:
    sa.synthesize("v4-tiny", str(tmp_path / "model"))
    checkpoint = sa.Checkpoint(str(tmp_path / "model"))
    limits = sa.BatchLimits(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512)
    layers, window = sa.load_layers(checkpoint, limits, "cpu"), checkpoint.config["sliding_window"]
    pool = sa.Pool(layers, cached_positions=512)
    pool.add_request(0)
    of_pool = sa.BatchBuilder(limits, pool, window=window)
    groups = {spec.group: spec for layer in layers for spec in layer.cache_groups}
    pages = 128
    own = sa.BatchBuilder(limits, window=window, device="cpu", groups=list(groups.values()), num_pages=[pages] * len(groups))
    caches = [
        {s.group: sa.PagedCache.empty(s.format, pages, s.page_size, s.row_dim, page_stride=s.page_bytes + 64) for s in layer.cache_groups}
        for layer in layers
    ]
    # Pages in descending order, unlike the pool's.
    tables = {group: list(range(pages))[::-1][: -(-512 // (spec.ratio * spec.page_size))] for group, spec in groups.items()}
    assert all(len(table) == -(-512 // (groups[group].ratio * groups[group].page_size)) for group, table in tables.items())
    torch.manual_seed(4)
    before = 0
    for tokens in (64, 40, 1):
        assert pool.extend(0, before, before + tokens)
        before += tokens
        of_pool.build([sa.Request(seq_len=before, query_len=tokens, request=0)])
        own.build([sa.Request(seq_len=before, query_len=tokens, block_tables=tables)])
        hidden = torch.randn(tokens, layers[0].hidden_size).bfloat16()
        for layer, held in zip(layers, caches):
            want = layer(hidden, of_pool, pool)
            assert torch.equal(layer(hidden, own, caches=held), want)
            hidden = want
