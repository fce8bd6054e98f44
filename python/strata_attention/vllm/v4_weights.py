"""vLLM's weights of V4's output projection, used by Strata's ops where they are.

vLLM repacks weights after loading: for DeepGEMM, for AMX. The method of this module takes the place of vLLM's on wo_a and wo_b, so that
they stay as they were loaded, and no second copy is made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearMethodBase

import strata_attention as strata

_BLOCK = 128


def linear_weight(layer: torch.nn.Module, name: str, groups: int = 1) -> strata.LinearWeight:
    """The LinearWeight over layer.weight, bf16 or e4m3 [groups*n, k] with scales of 128x128 blocks. ValueError for others."""
    weight: torch.Tensor = layer.weight.data
    if weight.dtype == torch.bfloat16:
        return strata.LinearWeight(weight=weight, groups=groups, name=name)
    scale = getattr(layer, "weight_scale_inv", None)
    if weight.dtype != torch.float8_e4m3fn or scale is None:
        raise ValueError(f"{name}: weight must be bf16, or e4m3 with weight_scale_inv; is {weight.dtype}")
    blocks = (-(-weight.shape[0] // _BLOCK), -(-weight.shape[1] // _BLOCK))
    if tuple(scale.shape) != blocks:
        raise ValueError(f"{name}: weight_scale_inv must be {list(blocks)}, one scale per 128x128 block; is {list(scale.shape)}")
    powers = scale.dtype == torch.float8_e8m0fnu
    return strata.LinearWeight(
        weight=weight, scale=scale.data.to(torch.float32).contiguous(), groups=groups, power_of_two_scales=powers, name=name
    )


class InPlaceLinearMethod(LinearMethodBase):  # type: ignore[misc]
    """Parameters as vLLM's method `inner` makes them; products by strata_attention.linear or, in the layer, grouped_linear.

    activation  ActivationFormat of the inputs of an e4m3 weight
    loaded      called after each load, when `weight` is set
    """

    def __init__(self, inner: Any, name: str, groups: int, activation: int, loaded: Callable[[], None]) -> None:
        super().__init__()
        self.inner, self.name, self.groups, self.loaded = inner, name, groups, loaded
        self.activation = activation
        self.weight: strata.LinearWeight | None = None

    def create_weights(self, layer: torch.nn.Module, *arguments: Any, **keywords: Any) -> None:
        self.inner.create_weights(layer, *arguments, **keywords)

    def process_weights_after_loading(self, layer: torch.nn.Module) -> None:
        self.weight = linear_weight(layer, self.name, self.groups)
        self.loaded()

    @property
    def is_fp8(self) -> bool:
        """Whether products take e4m3 activations."""
        assert self.weight is not None
        return self.weight.scale is not None

    def multiply(self, x: torch.Tensor, x_scale: torch.Tensor | None = None) -> torch.Tensor:
        """x bf16 [T, k], or e4m3 with x_scale f32 [T, k / 128]: bf16 [T, n]."""
        assert self.weight is not None
        y = torch.empty((x.shape[0], self.weight.n), dtype=torch.bfloat16, device=x.device)
        if x.shape[0] == 0:
            return y
        activation = self.activation if self.is_fp8 else strata.ActivationFormat.bf16
        strata.linear(x, self.weight, y, x_scale=x_scale, activation=activation)
        return y

    def apply(self, layer: torch.nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = self.multiply(x.reshape(-1, x.shape[-1]).contiguous())
        if bias is not None:
            y += bias
        return y.view(*x.shape[:-1], y.shape[-1])
