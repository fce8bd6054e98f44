"""``python -m strata_attention info``: versions, devices and ops."""

from __future__ import annotations

import argparse

import torch

import strata_attention


def _info() -> None:
    print(f"strata {strata_attention.__version__}, torch {torch.__version__}")
    print(f"  {strata_attention._library.PATH}")
    devices = ["cpu"] + [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    for device in devices:
        try:
            print(f"  {device}: {strata_attention.describe_device(device)}")
        except (RuntimeError, ValueError) as error:
            print(f"  {device}: {error}")
    print(f"  weight packings: {', '.join(strata_attention.weight_packings()) or 'none'}")
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
