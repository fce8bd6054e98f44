"""Generates with a small random DeepSeek V4 in vLLM on a CPU, and prints a JSON line: v4_driver.py MODE [OPTIONS as JSON].

MODE  strata     the plugin's layer
      reference  vLLM's layer, its attention and output projection in float32
      compare    the plugin's layer and the reference on the same inputs in every call; their distance per kind of layer
      broken     the plugin's layer with a wrong sign in its attention of ratio 128
OPTIONS  tokens, prompts (lengths), llm (arguments of vllm.LLM), repeat (the prompts again, for the prefix cache)
"""

from __future__ import annotations

import collections
import json
import os
import sys
import tempfile
import zlib
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    HF_HUB_OFFLINE="1",
    VLLM_NO_USAGE_STATS="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
)
os.environ.setdefault("OMP_NUM_THREADS", "2")

import torch

# vLLM has mHC and MoE of V4 in its library for AVX-512 BF16 alone. The functions that this driver uses of it run without.
torch.cpu._is_avx512_bf16_supported = lambda: True

import v4_reference

CONFIG: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 1024,
    "hidden_size": 512,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 1,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 256,
    "o_groups": 2,
    "o_lora_rank": 256,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
    "num_experts_per_tok": 6,
    "sliding_window": 128,
    "compress_ratios": [0, 4, 128],
    "compress_rope_theta": 160000.0,
    "rope_theta": 10000.0,
    "index_n_heads": 64,
    "index_head_dim": 128,
    "index_topk": 512,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-06,
    "num_hash_layers": 0,
    "scoring_func": "sqrtsoftplus",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "num_nextn_predict_layers": 0,
    "max_position_embeddings": 65536,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32, "beta_slow": 1},
    "rms_norm_eps": 1e-06,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
    "topk_method": "noaux_tc",
}


def random_weights(model: torch.nn.Module, *_arguments: Any, **_keywords: Any) -> None:
    """Weights of the size of trained ones, the same for the same name and shape."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(parameter.shape, generator=generator)
        if "norm" in name and parameter.dim() == 1:
            values = 1 + 0.1 * values
        elif "attn_sink" in name:
            values = 0.5 * values
        elif name.endswith((".ape", "_base", "_scale", "correction_bias")):
            values = 0.1 * values
        elif "embed" not in name:
            values *= parameter.shape[-1] ** -0.5
        parameter.data.copy_(values.to(parameter.dtype))


def allow_chunks() -> None:
    """Chunked prefill and the prefix cache, which vLLM allows V4 only where its own kernels run, on CPUs with AMX."""
    from vllm.platforms.cpu import CpuPlatform

    inner = CpuPlatform.check_and_update_config.__func__

    def check(cls: type, vllm_config: Any) -> None:
        has_amx = torch.cpu._is_amx_tile_supported
        torch.cpu._is_amx_tile_supported = lambda: True
        try:
            inner(cls, vllm_config)
        finally:
            torch.cpu._is_amx_tile_supported = has_amx

    CpuPlatform.check_and_update_config = classmethod(check)


def count_calls(layer: type, calls: collections.Counter[str]) -> None:
    """Counts the ops that each kind of layer calls."""
    import strata_attention.vllm.v4_layer as module
    from strata_attention import ops

    ratio = [0]

    def counted(name: str, function: Any) -> Any:
        def call(*arguments: Any, **keywords: Any) -> Any:
            calls[f"{ratio[0]}.{name}"] += 1
            return function(*arguments, **keywords)

        for attribute in ("workspace_bytes", "implementations"):
            setattr(call, attribute, getattr(function, attribute))
        return call

    for op in ops.ALL:
        setattr(module.strata, op.__name__, counted(op.__name__, op))
    inner = layer.prepare_and_attend  # type: ignore[attr-defined]

    def prepare(self: Any, *arguments: Any, **keywords: Any) -> Any:
        ratio[0] = self.compress_ratio
        return inner(self, *arguments, **keywords)

    layer.prepare_and_attend = prepare  # type: ignore[attr-defined]


def break_attention(layer: type) -> None:
    inner = layer._attend  # type: ignore[attr-defined]

    def attend(self: Any, *arguments: Any, **keywords: Any) -> None:
        inner(self, *arguments, **keywords)
        if self.compress_ratio == 128:
            arguments[-1].neg_()

    layer._attend = attend  # type: ignore[attr-defined]


def compare_layers(layer: type, base: type, distances: dict[str, float]) -> None:
    """Runs both layers on the same pages. Attention: the largest difference by the largest value. Pages: the share of bytes that differ."""
    inner = layer.prepare_and_attend  # type: ignore[attr-defined]

    def prepare(self: Any, qr: torch.Tensor, kv: torch.Tensor, *scores_and_positions: Any) -> None:
        from vllm.forward_context import get_forward_context

        *scores, positions, out = scores_and_positions
        if not isinstance(get_forward_context().attn_metadata, dict):
            inner(self, qr, kv, *scores, positions, out)
            return
        pages = torch.empty(0, dtype=torch.uint8).set_(self.swa_cache_layer.kv_cache.untyped_storage())
        before = pages.clone()
        other = torch.empty_like(out)
        latents = base._split_qkv_and_norm(self, torch.cat([qr, kv], -1))  # type: ignore[attr-defined]
        base._prepare_and_attn(self, None, latents[0], latents[2], None, *scores, positions, other)  # type: ignore[attr-defined]
        expected = pages.clone()
        pages.copy_(before)
        inner(self, qr, kv, *scores, positions, out)
        v4_reference.attend(self, v4_reference.QUERIES[-1], positions, other)  # of the same pages
        other = v4_reference.rotated_back(other.float(), positions, self.rotary_emb.cos_sin_cache)
        kind = f"{self.compress_ratio}.{'prefill' if out.shape[0] > 4 else 'decode'}"
        found = {
            f"{kind}.attention": ((out - other).abs().max() / other.abs().max()).item(),
            f"{kind}.pages": (pages != expected).sum().item() / max(1, (before != expected).sum().item()),
        }
        for name, value in found.items():
            distances[name] = max(distances.get(name, 0.0), value)

    layer.prepare_and_attend = prepare  # type: ignore[attr-defined]


def prompt(number: int, length: int) -> list[int]:
    generator = torch.Generator().manual_seed(number)
    return torch.randint(2, CONFIG["vocab_size"], (length,), generator=generator).tolist()


def main(mode: str, options: dict[str, Any]) -> None:
    import vllm.model_executor.model_loader.dummy_loader as dummy_loader
    from vllm import LLM, SamplingParams

    dummy_loader.DummyModelLoader.load_weights = lambda self, model, config: random_weights(model)
    allow_chunks()
    calls: collections.Counter[str] = collections.Counter()
    distances: dict[str, float] = {}
    if mode in ("reference", "compare"):
        base = v4_reference.install()
    if mode != "reference":
        from strata_attention.vllm import v4_cpu

        count_calls(v4_cpu.StrataV4CPUAttention, calls)
        if mode == "compare":
            compare_layers(v4_cpu.StrataV4CPUAttention, base, distances)
        if mode == "broken":
            break_attention(v4_cpu.StrataV4CPUAttention)
    arguments: dict[str, Any] = {
        "enforce_eager": True,
        "max_model_len": 4096,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 1024,
        "kv_cache_dtype": "fp8",
    } | options.get("llm", {})
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG | options.get("config", {}), file)
        llm = LLM(model=folder, skip_tokenizer_init=True, load_format="dummy", dtype="bfloat16", seed=1, **arguments)
    prompts = [{"prompt_token_ids": prompt(number, length)} for number, length in enumerate(options.get("prompts", [300, 40, 3]))]
    sampling = SamplingParams(max_tokens=options.get("tokens", 64), temperature=0, ignore_eos=True, detokenize=False, logprobs=2)
    result: dict[str, Any] = {}
    for name in ("tokens", "again") if options.get("repeat") else ("tokens",):
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        result[name] = [list(output.outputs[0].token_ids) for output in outputs]
        result["cached"] = [output.num_cached_tokens for output in outputs]
        result["logprobs"] = [[step[t].logprob for t, step in zip(o.outputs[0].token_ids, o.outputs[0].logprobs)] for o in outputs]
        result["margins"] = [
            [(lambda v: v[0] - v[1])(sorted((p.logprob for p in step.values()), reverse=True)) for step in o.outputs[0].logprobs]
            for o in outputs
        ]
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    result["distances"] = distances
    result["calls"] = dict(sorted(calls.items()))
    result["preempted"] = getattr(scheduler, "num_preemptions", None)
    print("RESULT " + json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
