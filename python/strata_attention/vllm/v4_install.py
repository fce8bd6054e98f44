"""Puts Strata's DeepSeek V4 in the place of vLLM's. vLLM imports the class when it loads such a model."""

from __future__ import annotations

_MODEL = "DeepseekV4ForCausalLM"


def cuda() -> None:
    from vllm import ModelRegistry

    ModelRegistry.register_model(_MODEL, f"{__package__}.v4_cuda:Strata{_MODEL}")


def cpu() -> None:
    from vllm import ModelRegistry

    ModelRegistry.register_model(_MODEL, f"{__package__}.v4_cpu:Strata{_MODEL}")
