"""``python -m strata_attention info``: versions, devices and ops."""

from __future__ import annotations

import argparse

import torch

import strata_attention


def _why_no_cuda() -> str:
    try:
        strata_attention.describe_device("cuda:0")
    except (RuntimeError, ValueError) as error:
        return "not in this build" if strata_attention._library.NO_CUDA in str(error) else str(error)
    return "torch finds no device"


def _packing(name: str) -> str:
    """A packing's name, marked where this machine does not take it."""
    device = name.split("/")[0]
    if device == "cuda" and not torch.cuda.is_available():
        return f"{name} (no device)"
    weight = strata_attention.LinearWeight(torch.zeros(256, 256, dtype=torch.bfloat16, device=device))
    try:
        weight.pack(name)
    except (RuntimeError, ValueError) as error:
        _, needs, what = str(error).partition(f": {name} needs ")
        return f"{name} (not here: needs {what})" if needs else name
    return name


def _info() -> None:
    print(f"strata {strata_attention.__version__}, torch {torch.__version__}")
    print(f"  {strata_attention._library.PATH}")
    devices = ["cpu"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for device in devices:
        try:
            print(f"  {device}: {strata_attention.describe_device(device)}")
        except (RuntimeError, ValueError) as error:
            print(f"  {device}: {error}")
    if len(devices) == 1:
        print(f"  cuda: {_why_no_cuda()}")
    print(f"  weight packings: {', '.join(map(_packing, strata_attention.weight_packings())) or 'none'}")
    print("ops of torch.ops.strata:")
    for op in strata_attention.ALL:
        print(f"  {op.__name__}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m strata_attention", description="Strata's ops for torch.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="versions, devices and ops")
    parser.parse_args()
    _info()


if __name__ == "__main__":
    main()
