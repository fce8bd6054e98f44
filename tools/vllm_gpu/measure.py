#!/usr/bin/env python3
"""One engine of vLLM in this process: tokens, times and kernels, as JSON. tools/vllm-gpu run starts it; see --help.

Times are of the model's forward pass alone, by events on a GPU and by the clock on a CPU. On a GPU a wait on the device precedes each timed
pass, longer than the host needs to launch it, so that its launches are not counted; "step_ms" is the whole engine step on the host.
"""

import argparse
import importlib.metadata
import json
import os
import pathlib
import statistics
import sys
import time
import traceback

import torch

import mhc

# Cycles that the device waits before a timed pass: about 0.5 ms for a graph, 20 ms for a prefill's launches one by one.
GRAPH_WAIT, PREFILL_WAIT = 1_000_000, 40_000_000


class Forward:
    """Records the time of every forward pass of an engine's model."""

    def __init__(self, runner):
        self.cuda = torch.cuda.is_available()
        self.inner, self.on, self.wait, self.passes = runner._model_forward, False, GRAPH_WAIT, []
        runner._model_forward = self

    def __call__(self, *args, **kwargs):
        if not self.on:
            return self.inner(*args, **kwargs)
        if not self.cuda:
            start = time.perf_counter()
            out = self.inner(*args, **kwargs)
            self.passes.append((time.perf_counter() - start) * 1e3)
            return out
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(self.wait)
        begin.record()
        out = self.inner(*args, **kwargs)
        end.record()
        self.passes.append((begin, end))
        return out

    def times(self):
        """Milliseconds of the passes since the last call."""
        if self.cuda:
            torch.cuda.synchronize()
        found = [p if isinstance(p, float) else p[0].elapsed_time(p[1]) for p in self.passes]
        self.passes = []
        return found


def prompt(seed, length, vocabulary):
    """`length` random token numbers; 0 and 1 are special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, vocabulary, (length,), generator=generator).tolist()


def median(values):
    return statistics.median(values) if values else None


class Run:
    """The engine and what one call measures; each method gives a part of the result."""

    def __init__(self, args):
        from vllm import LLM, SamplingParams

        plugins = [entry.value for entry in importlib.metadata.entry_points(group="vllm.general_plugins")]
        if args.strata != "0" and not any(value.startswith("strata_attention") for value in plugins):
            raise RuntimeError(f"STRATA_VLLM={args.strata}: expected the plugin of strata_attention to be installed, vLLM finds {plugins}")
        self.args, self.params = args, SamplingParams
        config = json.loads((pathlib.Path(args.model) / "config.json").read_text())
        self.vocabulary, self.number, self.cuda = config["vocab_size"], 0, torch.cuda.is_available()
        # vLLM has called it as a plugin too; here it says what is other than vLLM's own.
        self.replaced = mhc.replace() if config["model_type"] == "deepseek_v4" else []
        options = {"kv_cache_dtype": args.kv_cache_dtype} if args.kv_cache_dtype else {}
        if self.cuda and args.linear_backend:
            options["linear_backend"] = args.linear_backend
        if self.cuda and not args.eager:
            options["compilation_config"] = {
                "mode": 0,
                "cudagraph_mode": "FULL_DECODE_ONLY",
                "cudagraph_capture_sizes": sorted(set(args.requests)),
            }
        self.llm = LLM(
            model=args.model,
            skip_tokenizer_init=True,
            dtype="bfloat16",
            enforce_eager=args.eager or not self.cuda,
            seed=0,
            async_scheduling=False,
            enable_prefix_caching=False,
            max_model_len=max(args.context + args.slack, args.prefill + 2),
            max_num_seqs=max(args.requests),
            max_num_batched_tokens=max(args.prefill, max(args.requests)),
            gpu_memory_utilization=args.memory,
            tensor_parallel_size=args.tensor_parallel,
            **options,
        )
        self.engine = self.llm.llm_engine
        executor = self.engine.engine_core.engine_core.model_executor if args.tensor_parallel == 1 else None
        self.forward = Forward(executor.driver_worker.worker.model_runner) if executor else None

    def tokens(self):
        """Greedy tokens of a few prompts with the log probabilities of the two best, in one batch."""
        prompts = [{"prompt_token_ids": prompt(seed, length, self.vocabulary)} for seed, length in enumerate(self.args.prompts)]
        outputs = self.llm.generate(
            prompts, self.params(max_tokens=self.args.tokens, temperature=0, ignore_eos=True, detokenize=False, logprobs=2), use_tqdm=False
        )
        found = []
        for output in outputs:
            best = [sorted((entry.logprob for entry in position.values()), reverse=True)[:2] for position in output.outputs[0].logprobs]
            found.append({"tokens": list(output.outputs[0].token_ids), "logprobs": best})
        return found

    def add(self, count, length, tokens):
        for _ in range(count):
            self.number += 1
            sampling = self.params(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
            self.engine.add_request(str(self.number), {"prompt_token_ids": prompt(1000 + self.number, length, self.vocabulary)}, sampling)

    def step(self):
        """One engine step; returns the number of requests that gave a token."""
        return len(self.engine.step())

    def drain(self):
        """Steps until no request is left."""
        for _ in range(100000):
            if not self.engine.has_unfinished_requests():
                return
            self.engine.step()
        raise RuntimeError("drain: expected no request to be left after 100000 steps")

    def prefill(self):
        """Passes over one prompt of `prefill` tokens, the first one not counted: median and all, ms."""
        self.forward.times()
        self.forward.wait = PREFILL_WAIT
        steps = []
        for _ in range(self.args.repeats + 1):
            self.add(1, self.args.prefill, 1)
            self.forward.on = True
            start = time.perf_counter()
            self.drain()
            steps.append((time.perf_counter() - start) * 1e3)
            self.forward.on = False
        passes = self.forward.times()
        if len(passes) != len(steps):
            raise RuntimeError(f"prefill: expected {len(steps)} passes, got {len(passes)}")
        return {"tokens": self.args.prefill, "ms": median(passes[1:]), "all_ms": passes[1:], "step_ms": median(steps[1:])}

    def decode(self, requests):
        """Steps of `requests` requests that each have `context` tokens: median and all, ms, and the kernels of one step."""
        self.add(requests, self.args.context, self.args.slack - 1)
        # A step takes at least one prompt's rest, or `prefill` tokens less those of the requests that run already.
        running, most = 0, self.args.slack
        while running < requests and most > 0:
            running, most = self.step(), most - 1
        if running < requests:
            raise RuntimeError(
                f"decode: expected {requests} requests to run together, got {running}; more memory or a larger slack is needed"
            )
        for _ in range(2):
            self.step()
        self.forward.times()
        self.forward.wait = PREFILL_WAIT if self.args.eager else GRAPH_WAIT
        self.forward.on = True
        steps = []
        for _ in range(self.args.repeats):
            start = time.perf_counter()
            self.step()
            steps.append((time.perf_counter() - start) * 1e3)
        self.forward.on = False
        passes = self.forward.times()
        found = {"requests": requests, "context": self.args.context, "ms": median(passes), "all_ms": passes, "step_ms": median(steps)}
        found["kernels"] = self.profile()
        found["strata_us"] = sum(us for name, _, us in found["kernels"] if "strata" in name)
        self.engine.abort_request([str(number) for number in range(self.number - requests + 1, self.number + 1)])
        self.drain()
        return found

    def profile(self):
        """[[name, calls, µs]] of one step, longest first; on a CPU, torch's operators."""
        kinds = torch.profiler.ProfilerActivity
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if self.cuda else [kinds.CPU]) as profiler:
            self.step()
            if self.cuda:
                torch.cuda.synchronize()
        rows = []
        for event in profiler.key_averages():
            us = event.self_device_time_total if self.cuda else event.self_cpu_time_total
            # Runtime calls of the host have no time of the device.
            if us > 0:
                rows.append([event.key, event.count, round(us, 2)])
        return sorted(rows, key=lambda row: -row[2])


def measure(args, result, save):
    """Fills `result` part by part; a part that fails is noted under "errors" and the next one runs."""

    def part(name, function):
        start = time.perf_counter()
        try:
            result[name] = function()
        except Exception:
            result["errors"][name] = traceback.format_exc()
        result["seconds"][name] = round(time.perf_counter() - start, 1)
        save()

    run = None

    def load():
        nonlocal run
        run = Run(args)
        return {"replaced_without_tilelang": run.replaced, "device": torch.cuda.get_device_name() if run.cuda else "cpu"}

    part("engine", load)
    if run is None:
        return
    part("tokens", run.tokens)
    if run.forward is None:
        return  # several ranks: the model runs in other processes
    part("prefill", run.prefill)
    for requests in args.requests:
        part(f"decode_{requests}", lambda: run.decode(requests))


def arguments(argv):
    numbers = lambda text: [int(part) for part in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a checkpoint")
    parser.add_argument("--strata", required=True, help="STRATA_VLLM's value; 0: without the plugin")
    parser.add_argument("--out", required=True, help="file of the result, JSON")
    parser.add_argument("--requests", type=numbers, default=[1, 32, 128], help="decode batches")
    parser.add_argument("--context", type=int, default=8192, help="tokens of a request before its decode steps")
    parser.add_argument("--prefill", type=int, default=4096, help="tokens of the timed prompt, and most tokens of a step")
    parser.add_argument("--slack", type=int, default=512, help="decode steps while requests join; at least twice what the prompts need")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--prompts", type=numbers, default=[3, 80, 300, 1500], help="lengths of the prompts whose tokens are compared")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--kv-cache-dtype", default="")
    parser.add_argument("--linear-backend", default="", help="vLLM's linear_backend, on a GPU")
    parser.add_argument("--memory", type=float, default=0.6, help="vLLM's gpu_memory_utilization")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--eager", action="store_true", help="no CUDA graphs")
    parser.add_argument("--before", default="", help="a Python file that runs before the engine starts")
    return parser.parse_args(argv)


def environment(args):
    """What vLLM and the plugin read, set before either is imported."""
    os.environ.update(
        STRATA_VLLM=args.strata,
        HF_HUB_OFFLINE="1",
        VLLM_NO_USAGE_STATS="1",
        DO_NOT_TRACK="1",
        VLLM_USE_FLASHINFER_SAMPLER="0",
        VLLM_USE_V2_MODEL_RUNNER="0",
    )
    if args.tensor_parallel == 1:
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    if not torch.cuda.is_available():
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")


def main(argv=None):
    args = arguments(argv)
    environment(args)
    result = {"model": args.model, "strata": args.strata, "arguments": vars(args), "torch": torch.__version__, "seconds": {}, "errors": {}}
    save = lambda: pathlib.Path(args.out).write_text(json.dumps(result, indent=1))  # noqa: E731
    save()
    if args.before:
        exec(compile(pathlib.Path(args.before).read_text(), args.before, "exec"), {"__name__": "before"})
    measure(args, result, save)
    for name, error in result["errors"].items():
        print(f"{name}: {error}", file=sys.stderr)
    return 1 if result["errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
