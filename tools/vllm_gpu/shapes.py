"""Names, shapes and dtypes of the checkpoints that vLLM loads as DeepSeek V3, V3.2 and V4, for any number of layers and experts.

A tensor is a Spec; `tensors` gives all of a model in the order of its files. Weights that the published checkpoints hold as FP8 with a
scale
for each block of 128 x 128 are kind "fp8"; without "quantization_config" in the config they are bf16.
"""

import dataclasses

MODELS = ("v3", "v32", "v4")
# Elements of a block of FP8 weights along both dimensions, and of a row's block of MXFP4 weights.
BLOCK, FP4_BLOCK = 128, 32


@dataclasses.dataclass(frozen=True)
class Spec:
    """One tensor. `kind`: fp8, fp4 (a weight with its scales), bf16, f32, or experts (int64, rows of distinct expert numbers). Values are
    normal
    with `mean` and `std`; an `experts` tensor takes its numbers below `limit`."""

    name: str
    shape: tuple
    kind: str
    std: float = 0.0
    mean: float = 0.0
    limit: int = 0


def fp8_config(model):
    """The config's key "quantization_config", as in the published checkpoints."""
    config = {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [BLOCK, BLOCK]}
    return config if model == "v3" else config | {"scale_fmt": "ue8m0"}


def mla_config(model, tiny, layers, experts):
    """config.json of V3 or V3.2. Groups of experts hold two at least, since a group's score is the sum of its two best."""
    size = (
        dict(hidden_size=512, intermediate_size=1024, moe_intermediate_size=256, num_attention_heads=8, q_lora_rank=256, vocab_size=1024)
        if tiny
        else dict(
            hidden_size=7168,
            intermediate_size=18432,
            moe_intermediate_size=2048,
            num_attention_heads=128,
            q_lora_rank=1536,
            vocab_size=16384,
        )
    )
    groups = min(8, experts // 2)
    config = size | dict(
        architectures=["DeepseekV3ForCausalLM"],
        model_type="deepseek_v3",
        num_hidden_layers=layers,
        num_key_value_heads=size["num_attention_heads"],
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
        n_shared_experts=1,
        n_routed_experts=experts,
        num_experts_per_tok=min(8, experts // 2),
        n_group=groups,
        topk_group=max(1, groups // 2),
        first_k_dense_replace=1,
        moe_layer_freq=1,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        routed_scaling_factor=2.5,
        hidden_act="silu",
        max_position_embeddings=163840,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        attention_bias=False,
        num_nextn_predict_layers=0,
        rope_scaling=dict(
            type="yarn", factor=40, original_max_position_embeddings=4096, beta_fast=32, beta_slow=1, mscale=1.0, mscale_all_dim=1.0
        ),
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
    )
    if model == "v32":
        config |= dict(
            architectures=["DeepseekV32ForCausalLM"],
            model_type="deepseek_v32",
            index_head_dim=128,
            index_n_heads=64,
            index_topk=64 if tiny else 2048,
        )
    return config


def v4_config(tiny, layers, experts, expert_dtype):
    """config.json of V4-Flash. Layer 0 attends to the window alone and takes its experts from a table; then ratios 4 and 128 alternate."""
    size = (
        dict(
            hidden_size=512, moe_intermediate_size=128, num_attention_heads=8, q_lora_rank=256, o_groups=2, o_lora_rank=256, vocab_size=1024
        )
        if tiny
        else dict(
            hidden_size=4096,
            moe_intermediate_size=2048,
            num_attention_heads=64,
            q_lora_rank=1024,
            o_groups=8,
            o_lora_rank=1024,
            vocab_size=16384,
        )
    )
    return size | dict(
        architectures=["DeepseekV4ForCausalLM"],
        model_type="deepseek_v4",
        num_hidden_layers=layers,
        num_key_value_heads=1,
        head_dim=512,
        qk_rope_head_dim=64,
        n_shared_experts=1,
        n_routed_experts=experts,
        num_experts_per_tok=6,
        expert_dtype=expert_dtype,
        sliding_window=128,
        compress_ratios=[0] + [4 if i % 2 == 0 else 128 for i in range(layers - 1)],
        compress_rope_theta=160000.0,
        rope_theta=10000.0,
        index_n_heads=64,
        index_head_dim=128,
        index_topk=512,
        hc_mult=4,
        hc_sinkhorn_iters=20,
        hc_eps=1e-6,
        num_hash_layers=1,
        scoring_func="sqrtsoftplus",
        topk_method="noaux_tc",
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        swiglu_limit=10.0,
        num_nextn_predict_layers=0,
        max_position_embeddings=65536,
        rms_norm_eps=1e-6,
        hidden_act="silu",
        rope_scaling=dict(type="yarn", factor=16, original_max_position_embeddings=65536, beta_fast=32, beta_slow=1),
        tie_word_embeddings=False,
        torch_dtype="bfloat16",
        bos_token_id=0,
        eos_token_id=1,
    )


def config(model, layers, tiny=False, experts=None, expert_dtype="fp8"):
    """config.json. Tiny models are bf16 and small enough for a CPU; all others have the published layer shapes, and FP8 weights.

    `experts`: 16, or 8 and 256 (vLLM's table of experts on CPUs takes no other number) of tiny models. `expert_dtype` of V4: fp8, or fp4
    as in
    V4-Flash. Throws ValueError on what no model has.
    """
    if model not in MODELS:
        raise ValueError(f"model: expected one of {', '.join(MODELS)}, is {model}")
    if layers < 1:
        raise ValueError(f"layers: expected at least 1, is {layers}")
    if expert_dtype not in ("fp8", "fp4"):
        raise ValueError(f"expert_dtype: expected fp8 or fp4, is {expert_dtype}")
    experts = experts or ((256 if model == "v4" else 8) if tiny else 16)
    if experts < 8 or experts & (experts - 1):
        raise ValueError(f"experts: expected a power of two from 8, is {experts}")
    made = v4_config(tiny, layers, experts, expert_dtype) if model == "v4" else mla_config(model, tiny, layers, experts)
    return (
        made
        if tiny
        else made | dict(quantization_config=fp8_config("v3" if model == "v3" or expert_dtype == "fp8" and model == "v4" else model))
    )


def _linear(name, out, inner, kind="fp8", gain=1.0):
    """A weight [out, inner]: inputs of variance 1 give outputs of variance gain^2."""
    return Spec(name + ".weight", (out, inner), kind, gain / inner**0.5)


def _norm(name, size, mean=1.0):
    return Spec(name + ".weight", (size,), "bf16", 0.1 * mean, mean)


def _mlp(prefix, names, hidden, inner, kind="fp8"):
    gate, up, down = names
    return [
        _linear(prefix + gate, inner, hidden, kind),
        _linear(prefix + up, inner, hidden, kind),
        _linear(prefix + down, hidden, inner, kind),
    ]


def _mla_layer(c, layer):
    prefix, hidden, heads = f"model.layers.{layer}.", c["hidden_size"], c["num_attention_heads"]
    attn, nope, rope, value, rank = prefix + "self_attn.", c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
    names = ("gate_proj", "up_proj", "down_proj")
    # The query's norm of 3 makes attention concentrate on few keys: an average of thousands would leave nothing of it in the output.
    found = [
        _norm(prefix + "input_layernorm", hidden),
        _norm(prefix + "post_attention_layernorm", hidden),
        _linear(attn + "q_a_proj", c["q_lora_rank"], hidden),
        _norm(attn + "q_a_layernorm", c["q_lora_rank"], 3.0),
        _linear(attn + "q_b_proj", heads * (nope + rope), c["q_lora_rank"]),
        _linear(attn + "kv_a_proj_with_mqa", rank + rope, hidden),
        _norm(attn + "kv_a_layernorm", rank),
        _linear(attn + "kv_b_proj", heads * (nope + value), rank),
        _linear(attn + "o_proj", hidden, heads * value),
    ]
    if "index_topk" in c:
        index = attn + "indexer."
        found += [
            _linear(index + "wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"]),
            _linear(index + "wk", c["index_head_dim"], hidden),
            _norm(index + "k_norm", c["index_head_dim"]),
            Spec(index + "k_norm.bias", (c["index_head_dim"],), "bf16", 0.1),
            _linear(index + "weights_proj", c["index_n_heads"], hidden, "bf16"),
        ]
    if layer < c["first_k_dense_replace"]:
        return found + _mlp(prefix + "mlp.", names, hidden, c["intermediate_size"])
    found += [
        _linear(prefix + "mlp.gate", c["n_routed_experts"], hidden, "bf16"),
        Spec(prefix + "mlp.gate.e_score_correction_bias", (c["n_routed_experts"],), "f32", 0.05),
    ]
    found += _mlp(prefix + "mlp.shared_experts.", names, hidden, c["moe_intermediate_size"] * c["n_shared_experts"])
    for expert in range(c["n_routed_experts"]):
        found += _mlp(f"{prefix}mlp.experts.{expert}.", names, hidden, c["moe_intermediate_size"])
    return found


def _compressor(prefix, hidden, head, ratio, mean):
    # Overlapping windows (ratio 4) have two halves.
    width = (2 if ratio == 4 else 1) * head
    return [
        _linear(prefix + "wkv", width, hidden, "bf16"),
        _linear(prefix + "wgate", width, hidden, "bf16"),
        Spec(prefix + "ape", (ratio, width), "f32", 0.5),
        _norm(prefix + "norm", head, mean),
    ]


def _hyper(prefix, streams, hidden, outputs, scales):
    """Manifold-constrained hyper-connections: `outputs` mixes of `streams` residual streams."""
    return [
        Spec(prefix + "fn", (outputs, streams * hidden), "f32", (streams * hidden) ** -0.5),
        Spec(prefix + "base", (outputs,), "f32", 0.5),
        Spec(prefix + "scale", (scales,), "f32", 0.1, 1.0),
    ]


def _v4_layer(c, layer):
    prefix, hidden, heads, head, ratio = (
        f"layers.{layer}.",
        c["hidden_size"],
        c["num_attention_heads"],
        c["head_dim"],
        c["compress_ratios"][layer],
    )
    attn, ffn, streams, groups, rank = prefix + "attn.", prefix + "ffn.", c["hc_mult"], c["o_groups"], c["o_lora_rank"]
    keys = 3.0  # the norm of keys, which are the values too; see _mla_layer
    found = [
        _norm(prefix + "attn_norm", hidden),
        _norm(prefix + "ffn_norm", hidden),
        _linear(attn + "wq_a", c["q_lora_rank"], hidden),
        _norm(attn + "q_norm", c["q_lora_rank"]),
        _linear(attn + "wq_b", heads * head, c["q_lora_rank"]),
        _linear(attn + "wkv", head, hidden),
        _norm(attn + "kv_norm", head, keys),
        Spec(attn + "attn_sink", (heads,), "f32", 1.0),
        _linear(attn + "wo_a", groups * rank, heads * head // groups, gain=1 / keys),
        _linear(attn + "wo_b", hidden, groups * rank),
    ]
    found += _hyper(prefix + "hc_attn_", streams, hidden, (2 + streams) * streams, 3) + _hyper(
        prefix + "hc_ffn_", streams, hidden, (2 + streams) * streams, 3
    )
    if ratio:
        found += _compressor(attn + "compressor.", hidden, head, ratio, keys)
    if ratio == 4:
        index = attn + "indexer."
        found += [
            _linear(index + "wq_b", c["index_n_heads"] * c["index_head_dim"], c["q_lora_rank"]),
            _linear(index + "weights_proj", c["index_n_heads"], hidden, "bf16"),
        ]
        found += _compressor(index + "compressor.", hidden, c["index_head_dim"], ratio, 1.0)
    experts = c["n_routed_experts"]
    found.append(_linear(ffn + "gate", experts, hidden, "bf16"))
    if layer < c["num_hash_layers"]:
        found.append(Spec(ffn + "gate.tid2eid", (c["vocab_size"], c["num_experts_per_tok"]), "experts", limit=experts))
    else:
        found.append(Spec(ffn + "gate.bias", (experts,), "f32", 0.05))
    names = ("w1", "w3", "w2")
    found += _mlp(ffn + "shared_experts.", names, hidden, c["moe_intermediate_size"] * c["n_shared_experts"])
    for expert in range(experts):
        found += _mlp(f"{ffn}experts.{expert}.", names, hidden, c["moe_intermediate_size"], c["expert_dtype"])
    return found


def tensors(c):
    """Lists of Spec, one list for each file: what is outside the layers, then each layer."""
    hidden, vocabulary, layers = c["hidden_size"], c["vocab_size"], range(c["num_hidden_layers"])
    # Logits of deviation 4: the best token is mostly clear of the second.
    if c["model_type"] == "deepseek_v4":
        outside = [
            Spec("embed.weight", (vocabulary, hidden), "bf16", 1.0),
            _linear("head", vocabulary, hidden, "bf16", 4.0),
            _norm("norm", hidden),
        ]
        return [outside + _hyper("hc_head_", c["hc_mult"], hidden, c["hc_mult"], 1)] + [_v4_layer(c, layer) for layer in layers]
    outside = [
        Spec("model.embed_tokens.weight", (vocabulary, hidden), "bf16", 1.0),
        _linear("lm_head", vocabulary, hidden, "bf16", 4.0),
        _norm("model.norm", hidden),
    ]
    return [outside] + [_mla_layer(c, layer) for layer in layers]
