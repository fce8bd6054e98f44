"""Strata's own calls from Python, of the same inputs: the ops of torch, and the module flash_mla of the package strata_attention."""
import importlib

from compare.peers import Call, FlashMla

PACKAGE = "strata_attention"
NAMES = ["torch.ops.strata", f"{PACKAGE}.flash_mla"]  # columns of the table


class TorchOps:
    """The functions of strata_attention."""

    OPS = ("rms_norm_pair", "dense_attn_decode", "sparse_attn_decode", "sparse_attn_prefill", "dense_attn_prefill", "qnorm_rope_kv_insert")

    def __init__(self, strata):
        self._strata = strata

    def prepare(self, op, inputs):
        return getattr(self, op)(inputs)

    def _cache(self, inputs, name):
        for format in self._strata.KvFormat:
            pages = inputs.get(f"{name}.{format.name}")
            if pages is not None:
                rows, row_dim = inputs[f"{name}_shape"].tolist()
                return self._strata.PagedCache(pages, format, row_dim, rows, len(pages), pages.stride(0))
        return None

    @staticmethod
    def _call(function, outputs, *arguments, **more):
        return Call(lambda: function(*arguments, **more, **outputs), lambda _: outputs)

    def sparse_attn_decode(self, inputs):
        q = inputs["q"]
        outputs = {"out": q.new_empty(*q.shape[:3], 512), "lse": inputs["q"].new_empty(q.shape[0], q.shape[2], q.shape[1]).float()}
        return self._call(self._strata.sparse_attn_decode, outputs, q, self._cache(inputs, "cache"), inputs["indices"],
                          inputs["softmax_scale"].item(), topk_length=inputs.get("topk_length"), extra_cache=self._cache(inputs, "extra_cache"),
                          extra_indices=inputs.get("extra_indices"), extra_topk_length=inputs.get("extra_topk_length"),
                          attn_sink=inputs.get("attn_sink"))

    def sparse_attn_prefill(self, inputs):
        q = inputs["q"]
        outputs = {"out": q.new_empty(*q.shape[:2], 512)} | {name: q.new_empty(q.shape[:2]).float() for name in ("lse", "max_logits")}
        return self._call(self._strata.sparse_attn_prefill, outputs, q, inputs["kv"], inputs["indices"], inputs["softmax_scale"].item(),
                          attn_sink=inputs["attn_sink"])

    def dense_attn_decode(self, inputs):
        q, starts, lengths = inputs["q"], inputs["query_start_loc"], inputs["seq_lens"]
        outputs = {"out": q.new_empty(*q.shape[:2], 512), "lse": q.new_empty(q.shape[:2]).float()}
        return self._call(self._strata.dense_attn_decode, outputs, q, self._cache(inputs, "cache"), inputs["block_table"], starts, lengths,
                          starts.diff().max().item(), lengths.max().item(), inputs["softmax_scale"].item(), schedule=inputs.get("schedule"))

    def dense_attn_prefill(self, inputs):
        q, kv, k_pe = inputs["q"], inputs["kv"], inputs["k_pe"]
        nope = q.shape[2] - k_pe.shape[1]
        outputs = {"out": q.new_empty(*q.shape[:2], kv.shape[2] - nope)}
        return self._call(self._strata.dense_attn_prefill, outputs, q, kv[..., :nope], k_pe, kv[..., nope:], len(q), len(kv),
                          inputs["softmax_scale"].item())

    def qnorm_rope_kv_insert(self, inputs):
        import torch

        cache, outputs = self._cache(inputs, "cache"), {"q_out": torch.empty_like(inputs["q"])}
        call = self._call(self._strata.qnorm_rope_kv_insert, outputs, positions=inputs["positions"], cos_sin=inputs["cos_sin"], q=inputs["q"],
                          kv=inputs["kv"], slot_mapping=inputs["slot_mapping"], cache=cache, eps=inputs["eps"].item())
        name = f"cache.{cache.format.name}"
        return Call(call.run, lambda _: outputs | {name: inputs[name]})

    def rms_norm_pair(self, inputs):
        import torch

        outputs = {"q_out": torch.empty_like(inputs["q"]), "kv_out": torch.empty_like(inputs["kv"])}
        return self._call(self._strata.rms_norm_pair, outputs, inputs["kv"], inputs["kv_weight"], q=inputs["q"], q_weight=inputs["q_weight"],
                          eps=inputs["eps"].item())


def calls():
    """What prepares the calls, by the columns' names. ImportError where the package is not installed."""
    strata = importlib.import_module(PACKAGE)
    return {NAMES[0]: TorchOps(strata), NAMES[1]: FlashMla(importlib.import_module(NAMES[1]), PACKAGE, pads=False)}
