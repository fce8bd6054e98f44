"""The comparison on the GPU machine: checkpoints, each engine in a process of its own, then a table and a JSON file of all."""

import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).parent
# vLLM's options of a model. DeepGEMM compiles each of its kernels with nvcc at first use: minutes for all of a model. Only V3.2's indexer
# needs it.
# The other matrix products are therefore vLLM's CUTLASS and Triton kernels, with the plugin and without it.
WITHOUT_DEEP_GEMM = {"VLLM_USE_DEEP_GEMM": "0"}
INDEXER_ALONE = {"VLLM_USE_DEEP_GEMM": "1", "VLLM_MOE_USE_DEEP_GEMM": "0", "VLLM_DEEP_GEMM_WARMUP": "skip"}
MODELS = {
    "v3": {"strata": ("0", "1"), "options": [], "environment": WITHOUT_DEEP_GEMM},
    "v32": {
        "strata": ("0", "1"),
        "options": ["--kv-cache-dtype", "fp8_ds_mla", "--linear-backend", "cutlass"],
        "environment": INDEXER_ALONE,
    },
    # Without the plugin V4 needs packages that the bundles do not hold.
    "v4": {"strata": ("1",), "options": ["--kv-cache-dtype", "fp8"], "environment": WITHOUT_DEEP_GEMM},
}
# Part by which a time may be above vLLM's own.
SLOWER = 0.02


def engine(model, checkpoint, strata, out, seconds, options):
    """Runs measure.py; returns its result. What went wrong is in "errors", also a time limit and a process that ended early."""
    # This folder holds a plugin of vLLM (mhc.py); ranks are processes of their own.
    path = os.pathsep.join([str(HERE)] + [p for p in [os.environ.get("PYTHONPATH")] if p])
    environment = os.environ | {"PYTHONPATH": path} | (MODELS[model]["environment"] if options.gpu else {})
    # An option of the caller is the last one, and so holds.
    command = [sys.executable, str(HERE / "measure.py"), "--model", str(checkpoint), "--strata", strata, "--out", str(out)]
    command += MODELS[model]["options"] + options.measure
    out.unlink(missing_ok=True)
    log, code = out.with_suffix(".log"), "no time left"
    if seconds > 0:
        with log.open("w") as file:
            try:
                code = subprocess.run(command, env=environment, stdout=file, stderr=subprocess.STDOUT, timeout=seconds).returncode
            except subprocess.TimeoutExpired:
                code = f"stopped after {seconds:.0f} s"
    result = json.loads(out.read_text()) if out.exists() else {"errors": {}, "seconds": {}}
    if code and not result["errors"]:
        result["errors"]["process"] = f"{code}: {log.read_text(errors='replace')[-3000:] if log.exists() else ''}"
    return result


def same_tokens(without, with_it):
    """For each prompt: tokens equal from the start, of how many, and the difference of the two best log probabilities where they part (0:
    a tie)."""
    found = []
    for a, b in zip(without, with_it, strict=True):
        equal = next((i for i, (x, y) in enumerate(zip(a["tokens"], b["tokens"])) if x != y), len(a["tokens"]))
        row = {"equal": equal, "of": len(a["tokens"])}
        if equal < len(a["tokens"]):
            row["margins"] = [best[0] - best[1] for best in (a["logprobs"][equal], b["logprobs"][equal])]
        # The inputs of the positions up to the first difference are the same.
        row["largest_difference"] = max(abs(x[0] - y[0]) for x, y in zip(a["logprobs"][: equal + 1], b["logprobs"][: equal + 1]))
        found.append(row)
    return found


def wrong_kernels(strata, result):
    """What of a result shows that the plugin did nothing, or something although it was off."""
    return [
        f"{part}: {value['strata_us']} us in Strata's kernels"
        for part, value in result.items()
        if part.startswith("decode_") and (value["strata_us"] > 0) != (strata != "0")
    ]


def compared(model, results):
    """Rows (model, what, without ms, with ms, ratio) of the table, and the tokens' comparison or None."""
    without, with_it = results.get("0", {}), results.get("1", {})
    rows = []
    for part in sorted(
        {key for result in (without, with_it) for key in result if key == "prefill" or key.startswith("decode_")},
        key=lambda key: (len(key), key),
    ):
        times = [result.get(part, {}).get("ms") for result in (without, with_it)]
        rows.append((model, part, *times, times[0] / times[1] if all(times) else None))
    tokens = same_tokens(without["tokens"], with_it["tokens"]) if "tokens" in without and "tokens" in with_it else None
    return rows, tokens


def table(rows):
    """The rows as Markdown."""
    shown = lambda x, form: "" if x is None else format(x, form)  # noqa: E731
    lines = ["| model | pass | vLLM ms | with Strata ms | times faster |", "|---|---|---|---|---|"]
    for model, part, without, with_it, ratio in rows:
        mark = " (slower)" if ratio is not None and ratio < 1 / (1 + SLOWER) else ""
        lines.append(f"| {model} | {part} | {shown(without, '.3f')} | {shown(with_it, '.3f')} | {shown(ratio, '.2f')}{mark} |")
    return "\n".join(lines)


def run(options, write):
    """Runs the models of `options` and writes results into options.out. `write(folder, model)` makes a checkpoint that is not there.

    Returns the number of parts that failed, came out slower than SLOWER allows, ran without Strata's kernels (or with them, if off), or
    gave
    other tokens where the best was clear of the second.
    """
    begin, out = time.monotonic(), pathlib.Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    everything, rows, bad = {"models": {}}, [], 0
    for model in options.models:
        results, folder = {}, pathlib.Path(options.checkpoints) / model
        entry = everything["models"][model] = {"results": results}
        try:
            if not (folder / "config.json").exists():
                start = time.monotonic()
                entry["bytes"] = write(folder, model)
                entry["write_seconds"] = round(time.monotonic() - start, 1)
        except Exception as error:
            entry["error"] = f"{type(error).__name__}: {error}"
            print(f"{model}: {entry['error']}", flush=True)
            bad += 1
            continue
        for strata in options.strata or MODELS[model]["strata"]:
            left = options.seconds - (time.monotonic() - begin)
            results[strata] = engine(model, folder, strata, out / f"{model}-{strata}.json", left, options)
            for name, error in results[strata]["errors"].items():
                print(
                    f"{model}, STRATA_VLLM={strata}: {name} failed: {error.strip().splitlines()[-1] if error.strip() else error}",
                    flush=True,
                )
                bad += 1
            for text in wrong_kernels(strata, results[strata]):
                print(f"{model}, STRATA_VLLM={strata}: {text}", flush=True)
                bad += 1
            print(f"{model}, STRATA_VLLM={strata}: {results[strata]['seconds']}", flush=True)
        entry["rows"], entry["tokens"] = compared(model, results)
        rows += entry["rows"]
        bad += sum(ratio is not None and ratio < 1 / (1 + SLOWER) for *_, ratio in entry["rows"])
        for number, row in enumerate(entry["tokens"] or []):
            print(f"{model}: prompt {number}: {row}", flush=True)
            # Where both runs hold the best token to be clear of the second by 0.25, rounding is no reason for another one.
            bad += row["equal"] < row["of"] and min(row["margins"]) > 0.25
        (out / "results.json").write_text(json.dumps(everything, indent=1))
        (out / "table.md").write_text(table(rows) + "\n")
    print(table(rows), flush=True)
    return bad
