"""A synthetic V4 checkpoint's layers over paged caches: a prompt in chunks, then single tokens.

python examples/notebook.py [MODEL_DIRECTORY [DEVICE]]
"""

import sys
import tempfile

import strata_attention as strata
import torch

folder, device = (
    sys.argv[1] if len(sys.argv) > 1 else None,
    sys.argv[2] if len(sys.argv) > 2 else "cpu",
)
if folder is None:
    folder = tempfile.mkdtemp()
    strata.synthesize("v4-tiny", folder)
checkpoint = strata.Checkpoint(folder)
limits = strata.BatchLimits(
    max_num_batched_tokens=64, max_num_seqs=4, max_model_len=512
)
layers = strata.load_layers(checkpoint, limits, device)
pool = strata.Pool(layers, cached_positions=512)
window = checkpoint.config.get("sliding_window") or 0  # MLA has none
batch = strata.BatchBuilder(limits, pool, window=window)
pool.add_request(0)
done = 0
for tokens in (64, 64, 40, 1, 1, 1):
    assert pool.extend(0, done, done + tokens), "the caches are full"
    done += tokens
    batch.build([strata.Request(seq_len=done, query_len=tokens, request=0)])
    hidden = torch.randn(tokens, layers[0].hidden_size, device=device).bfloat16()
    for layer in layers:  # an engine adds the residual, the norms and the experts
        hidden = torch.nn.functional.rms_norm(
            hidden + layer(hidden, batch, pool), hidden.shape[-1:]
        )
    print(f"{done} positions, last token {hidden[-1].float().norm():.3f}")
