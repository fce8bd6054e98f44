"""An engine's own pages: one tensor for each layer and cache group, block tables of its own, steps that equal those over a Pool.

python examples/engine_pages.py
"""

import tempfile

import strata_attention as strata
import torch

folder = tempfile.mkdtemp()
strata.synthesize("v4-tiny", folder)
checkpoint = strata.Checkpoint(folder)
limits = strata.BatchLimits(
    max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512
)
layers = strata.load_layers(checkpoint, limits, "cpu")

num_pages = 128  # of every group
groups = {spec.group: spec for layer in layers for spec in layer.cache_groups}


def pages(spec):
    """The pages of one layer and group, at distances of the size that the group proposes."""
    return strata.PagedCache.empty(
        spec.format,
        num_pages,
        spec.page_size,
        spec.row_dim,
        page_stride=spec.page_bytes,
    )


caches = [{spec.group: pages(spec) for spec in layer.cache_groups} for layer in layers]
batch = strata.BatchBuilder(
    limits,
    window=checkpoint.config["sliding_window"],
    device="cpu",
    groups=list(groups.values()),
    num_pages=[num_pages] * len(groups),
)
# Request 0 gets the pages 0, 1, ... of each group. A page holds page_size rows, and a row stands for `ratio` positions.
tables = {
    group: list(range(-(-512 // (spec.ratio * spec.page_size))))
    for group, spec in groups.items()
}
for done, tokens in ((64, 64), (104, 40), (105, 1)):
    batch.build([strata.Request(seq_len=done, query_len=tokens, block_tables=tables)])
    hidden = torch.randn(tokens, layers[0].hidden_size).bfloat16()
    for layer, own in zip(layers, caches):
        hidden = torch.nn.functional.rms_norm(
            hidden + layer(hidden, batch, caches=own), hidden.shape[-1:]
        )
    print(f"{done} positions, last token {hidden[-1].float().norm():.3f}")
