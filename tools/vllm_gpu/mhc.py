"""vLLM's hyper-connections of V4 (models/deepseek_v4/nvidia/model.py of 0.26.0) in torch, for machines without tilelang.

vLLM computes them by tilelang kernels on CUDA. They are no part of attention: with tilelang installed nothing is replaced. `replace` is an
entry
point of vLLM's plugins (vllm_gpu-0.dist-info), so that it runs in each rank's process, before the model is made. All functions are safe in
CUDA
graphs: no host value depends on the device.
"""

import importlib.util
import sys

import torch


def _normed(x, weight, eps):
    values = x.float()
    return (values * torch.rsqrt(values.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def pre(residual, fn, scale, base, rms_eps, pre_eps, sinkhorn_eps, post_value, repeats, n_splits=1, norm_weight=None, norm_eps=1e-6):
    """(post f32 [T, m, 1], comb f32 [T, m, m], input bf16 [T, hidden]) of residual bf16 [T, m, hidden]; fn f32 [(2 + m) m, m hidden]."""
    from vllm.model_executor.kernels.mhc.torch import mhc_pre_torch

    post, comb, out = mhc_pre_torch(residual, fn, scale, base, rms_eps, pre_eps, sinkhorn_eps, post_value, repeats)
    return post, comb, out if norm_weight is None else _normed(out, norm_weight, norm_eps)


def pre_broadcast(x, fn, *args, fn_broadcast=None, **kwargs):
    """(residual, post, comb, input) where all streams are x bf16 [T, hidden]. `fn_broadcast`, the sum over streams, is not needed here."""
    residual = x.unsqueeze(1).repeat(1, fn.shape[1] // x.shape[1], 1)
    return residual, *pre(residual, fn, *args, **kwargs)


def post(x, residual, post_mix, comb_mix):
    """The residual streams bf16 [T, m, hidden] after a block's output x bf16 [T, hidden]."""
    from vllm.model_executor.kernels.mhc.torch import mhc_post_torch

    return mhc_post_torch(x, residual, post_mix, comb_mix)


def post_pre(x, residual, post_mix, comb_mix, *args, n_splits=1, tile_n=1, **kwargs):
    """`post`, then `pre` of the next block: (residual, post, comb, input)."""
    residual = post(x, residual, post_mix, comb_mix)
    return residual, *pre(residual, *args, **kwargs)


def head(streams, fn, scale, base, rms_eps, eps):
    """bf16 [T, hidden]: the streams bf16 [T, m, hidden], each times its gate. fn f32 [m, m hidden], scale f32 [1], base f32 [m]."""
    flat = streams.flatten(1).float()
    mixes = (flat @ fn.t()) * torch.rsqrt(flat.square().mean(-1, keepdim=True) + rms_eps)
    gates = torch.sigmoid(mixes * scale + base) + eps
    return (gates.unsqueeze(-1) * streams.float()).sum(1).to(streams.dtype)


REPLACED = {
    "mhc_pre_tilelang": pre,
    "mhc_pre_broadcast_tilelang": pre_broadcast,
    "mhc_post_tilelang": post,
    "mhc_fused_post_pre_tilelang": post_pre,
    "hc_head_fused_kernel_tilelang": head,
}


def replace():
    """Puts these functions into vLLM, and into its CUDA model of V4 if that is imported, unless tilelang is installed or there is no GPU.
    Returns
    the names that it replaced. Throws AttributeError if vLLM has not a name of REPLACED."""
    if importlib.util.find_spec("tilelang") or not torch.cuda.is_available():
        return []
    from vllm.model_executor.kernels.mhc import tilelang

    for module in (tilelang, sys.modules.get("vllm.models.deepseek_v4.nvidia.model")):
        for name, function in REPLACED.items() if module else ():
            getattr(module, name)
            setattr(module, name, function)
    return list(REPLACED)
