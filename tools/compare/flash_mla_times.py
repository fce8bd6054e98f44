#!/usr/bin/env python3
"""Times strata_attention.flash_mla next to FlashMLA, both by the functions of FlashMLA's Python module, in one process.

  tools/compare/flash_mla_times.py [--case GLOB] [--csv FILE] [--rounds N] [--min-time SECONDS] [--commit NAME]
  tools/compare/flash_mla_times.py --list
  tools/compare/flash_mla_times.py --device cpu --case 'V4, 64 heads, 128 rows, 1 request'

Sparse decode, sparse prefill and dense decode at the shapes of released models. FlashMLA is the package flash_mla, or vLLM's build of it. A time counts
if both outputs agree within 1 % relative rms. Both sides take the same copies of the inputs in turn: twice what the L2 holds, at most 64. A figure is the
lowest of --rounds medians, which alternate; a sample is one launch of a captured graph. Plans are made by the first call, outside of what is timed.
On a CPU the calls are timed one by one, of Strata alone.

Needs torch, the package strata_attention with CUDA, an NVIDIA GPU and FlashMLA.
Exit codes: 0 success; 1 results that differ, or a call of Strata that failed; 2 bad input, no such device, no FlashMLA.
"""
import argparse
import datetime
import fnmatch
import importlib
import pathlib
import statistics
import subprocess
import sys
import time

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path[0] = str(ROOT / "tools")

from compare import peers, table
from compare.cases import OPS, Case

FLASH_MLA = ("flash_mla", "vllm.third_party.flashmla.flash_mla_interface")
RMS = 0.01
CASES = [
    *[Case("sparse_attn_decode", f"V4, 64 heads, 128+512 rows, {n} request{'s' * (n > 1)}") for n in (1, 8, 32, 64, 128, 256)],
    *[Case("sparse_attn_decode", f"V4, 128 heads, 128+1024 rows, {n} request{'s' * (n > 1)}") for n in (1, 32, 64, 128, 256)],
    *[Case("sparse_attn_decode", f"V4, {heads} heads, 128 rows, {n} request{'s' * (n > 1)}") for heads in (64, 128) for n in (1, 128)],
    Case("sparse_attn_decode", "V4, 64 heads, 128+8192 rows, 1 request"),
    Case("sparse_attn_decode", "V4, 128 heads, 128+8192 rows, 32 requests"),
    *[Case("sparse_attn_decode", f"V3.2, 128 heads, 2048 rows, {n} requests of two tokens") for n in (2, 64, 128)],
    *[Case("sparse_attn_prefill", f"4096 tokens, {heads} heads, {rows} rows, D 512") for heads in (64, 128) for rows in (128, 640, 1152, 2048)],
    *[Case("dense_attn_decode", f"128 heads, {shape}") for shape in ("1 x 8192", "16 x 8192", "32 x 4096")],
    Case("dense_attn_decode", "16 heads, 32 x 4096"),
]


def fail(text):
    print(f"tools/compare/flash_mla_times.py: {text}", file=sys.stderr)
    sys.exit(2)


def options_of(arguments):
    parser = argparse.ArgumentParser(prog="tools/compare/flash_mla_times.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", metavar="GLOB", help="cases whose name fits, as 'V4, 64 heads*'")
    parser.add_argument("--list", action="store_true", help="print the cases, and stop")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE", help="write the results as docs/results has them")
    parser.add_argument("--commit", help="of Strata, for --csv; default: this checkout's")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--min-time", type=float, default=0.02, metavar="SECONDS", help="of measuring, for each median; default: 0.02")
    options = parser.parse_args(arguments)
    if options.rounds < 1 or not 0 <= options.min_time <= 600:
        parser.error("--rounds is at least 1, --min-time 0 to 600")
    if options.csv and (not options.csv.absolute().parent.is_dir() or options.csv.is_dir()):
        parser.error(f"--csv: {options.csv} is in no folder")
    return options


def find_flash_mla():
    """DeepSeek's module by any of its names; Strata's under the same name is none."""
    reasons = []
    for name in FLASH_MLA:
        try:
            module = importlib.import_module(name)
        except Exception as error:  # whatever the import of another library raises
            reasons.append(f"{name}: {peers.first_line(error)}")
            continue
        if not getattr(module, "__strata__", False):
            return module
        reasons.append(f"{name} is Strata itself")
    fail(f"expected FlashMLA, got none ({'; '.join(reasons)})")


class CpuBurst:
    """As timing.Burst, of calls one by one."""

    def __init__(self, calls):
        self._calls = calls

    def median_us(self, min_time):
        samples, begin = [], time.monotonic()
        while not samples or time.monotonic() - begin < min_time:
            start = time.perf_counter()
            self._calls[len(samples) % len(self._calls)]()
            samples.append(time.perf_counter() - start)
        return statistics.median(samples) * 1e6


def copies_of(first, device):
    """Inputs that are twice what the L2 holds, at most 64 times."""
    import torch

    if device == "cpu":
        return [first]
    one = sum(tensor.nbytes for tensor in first.values())
    count = min(max(-(-2 * torch.cuda.get_device_properties(0).L2_cache_size // one), 1), 64)
    return [first] + [{name: tensor.clone() for name, tensor in first.items()} for _ in range(count - 1)]


def difference(got, want):
    """Relative rms of an output's difference; nan where one has the shape of no other."""
    got, want = got.double(), want.double()
    return (got - want).norm().item() / max(want.norm().item(), 1e-300) if got.shape == want.shape else float("nan")


def time_case(case, sides, options):
    """{name of the side: us}, and what is wrong, or ""."""
    import torch
    from compare import inputs, timing

    torch.manual_seed(1)
    copies = copies_of(inputs.make(case, options.device), options.device)
    prepared = {name: [side.prepare(case.op, copy) for copy in copies] for name, side in sides.items()}
    outs = [calls[0].outputs(calls[0].run())["out"] for calls in prepared.values()]
    if len(outs) > 1 and not (apart := difference(*outs)) <= RMS:
        return {}, f"outputs differ by {apart:.2g} relative rms"
    burst = timing.Burst if options.device == "cuda" else CpuBurst
    bursts = {name: burst([call.run for call in calls]) for name, calls in prepared.items()}
    medians = [{name: one.median_us(options.min_time) for name, one in bursts.items()} for _ in range(options.rounds)]
    missing = [name for name, one in bursts.items() if not getattr(one, "captured", True)]
    note = f"no graph holds the calls of {', '.join(missing)}: events around them" if missing else ""
    return {name: min(round_[name] for round_ in medians) for name in bursts}, note


def commit_here():
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main():
    options = options_of(sys.argv[1:])
    chosen = [case for case in CASES if fnmatch.fnmatchcase(case.name, options.case)]
    if not chosen:
        fail(f"--case: no case fits '{options.case}'")
    if options.list:
        print("\n".join(f"{case.op}: {case.name}" for case in chosen))
        return 0
    try:
        import torch
        from strata_attention import __version__, flash_mla
    except ImportError as error:
        fail(str(error))
    sides = {"Strata": peers.FlashMla(flash_mla, "strata_attention.")}
    label = gpu = "none"
    if options.device == "cuda":
        if not torch.cuda.is_available():
            fail("expected an NVIDIA GPU, got none; --device cpu times Strata alone")
        module = find_flash_mla()
        sides["FlashMLA"] = peers.FlashMla(module, module.__name__.partition(".")[0])
        label, gpu = f"FlashMLA ({module.__name__})", torch.cuda.get_device_name()
    rows, notes, failed = [], [], False
    for case in chosen:
        print(f"{case.op}: {case.name}", file=sys.stderr)
        try:
            times, note = time_case(case, sides, options)
        except Exception as error:  # a call that one side refuses does not end the run
            times, note = {}, peers.first_line(error)
        if note:
            notes.append(f"{OPS[case.op]}, {case.name}: {note}")
        if not times:
            failed = True
            continue
        rows.append(table.Row(case, times.pop("Strata"), times))
        if options.device == "cuda":
            torch.cuda.empty_cache()
    print(table.markdown(rows, [name for name in sides if name != "Strata"]))
    for note in notes:
        print(f"- {note}")
    date, commit = datetime.date.today().isoformat(), options.commit or commit_here()
    print(f"\nstrata_attention {__version__}, {label}, {gpu}, torch {torch.__version__}, {date}, {commit}.")
    if options.csv:
        with options.csv.open("w", newline="") as stream:
            table.write_csv(stream, rows, {"FlashMLA": label}, gpu, date, commit)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
