"""vLLM and the wheels it needs, in files that can be carried to a GPU machine without a network, and installed there."""

import hashlib
import io
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tarfile
import zipfile

import prune

VERSION = "0.26.0"
HERE = pathlib.Path(__file__).parent
# Compiled parts of vLLM that are carried; True: pruned. _vllm_fa2_C (FlashAttention 2), the tokenizer in Rust and code for other GPUs are
# not.
# _moe_C: routing, alignment of experts' blocks, Marlin. _vllm_fa3_C: prefill and decode of MLA. deep_gemm: FP8 products, V3.2's indexer.
LIBRARIES = {
    "vllm/_C_stable_libtorch.abi3.so": True,
    "vllm/_moe_C_stable_libtorch.abi3.so": True,
    "vllm/_flashmla_C.abi3.so": True,
    "vllm/_flashmla_extension_C.abi3.so": True,
    "vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so": True,
    "vllm/spinloop.abi3.so": False,
    "vllm/cumem_allocator.abi3.so": False,
    "vllm/fs_io_C.abi3.so": False,
    "vllm/third_party/deep_gemm/_C.cpython-312-x86_64-linux-gnu.so": False,
}
# Folders of vLLM that serve other GPUs.
LEFT_OUT = ("vllm/third_party/fmha_sm100/", "vllm/third_party/tml_fa4/", "vllm/benchmarks/")
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (34, 31, 28, 27, 26, 24, 17, 12, 5)] + ["manylinux2014_x86_64", "manylinux1_x86_64"]


def download(cache, *requirements):
    """Wheels for Python 3.12 on x86_64 from the package index into the folder `cache`, without what they require."""
    cache.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
        "--python-version",
        "3.12",
        "--implementation",
        "cp",
        "--abi",
        "cp312",
        "--abi",
        "abi3",
        "--abi",
        "none",
        "--dest",
        str(cache),
        "--find-links",
        str(cache),
    ]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    for attempt in range(3):
        if subprocess.run(command + list(requirements), check=attempt == 2).returncode == 0:
            return


def vllm_parts(wheel):
    """(name, bytes) of vLLM: its Python files as one .tar.xz, each library as .xz."""
    parts = []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        if missing := set(LIBRARIES) - names:
            raise ValueError(f"{wheel.name}: expected {', '.join(sorted(missing))}")
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name in sorted(names):
                if name.endswith(".so") or ".so." in name or "vllm-rs" in name or name.startswith(LEFT_OUT) or name.endswith("/"):
                    continue
                info = tarfile.TarInfo(name)
                info.size, info.mode = archive.getinfo(name).file_size, 0o644
                tar.addfile(info, archive.open(name))
        parts.append(("python.tar.xz", lzma.compress(packed.getvalue(), preset=9)))
        for name, pruned in LIBRARIES.items():
            data = bytearray(archive.read(name))
            if pruned:
                kept, zeroed = prune.prune(data)
                print(f"{name}: {kept / 1e6:.1f} MB of code kept, {zeroed / 1e6:.1f} MB zeroed", flush=True)
            parts.append((name + ".xz", lzma.compress(bytes(data), preset=6)))
    return parts


def grouped(parts, limit):
    """Parts in as few lists of at most `limit` bytes as first fit, largest first, finds. Throws ValueError if one part is larger."""
    bins = []
    for name, data in sorted(parts, key=lambda part: -len(part[1])):
        if len(data) > limit:
            raise ValueError(f"{name}: expected at most {limit} bytes, has {len(data)}; give a larger --size")
        room = next((held for held in bins if sum(len(other) for _, other in held) + len(data) + 2048 * (len(held) + 2) <= limit), None)
        if room is None:
            bins.append(room := [])
        room.append((name, data))
    return bins


def prepare(folder, wheels, limit, cache=None):
    """Writes bundle-1.tar and so on into `folder`: vLLM, its requirements, and the wheels named. Each at most `limit` bytes. Returns their
    paths."""
    folder = pathlib.Path(folder)
    cache = pathlib.Path(cache or pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "strata" / "vllm-gpu")
    requirements = (HERE / "requirements.txt").read_text().split()
    download(cache / "wheels", *requirements)
    download(cache / "vllm", f"vllm=={VERSION}")
    parts = vllm_parts(next((cache / "vllm").glob(f"vllm-{VERSION}-*.whl")))
    named = {line.split("==")[0].replace("-", "_").lower() + "-" + line.split("==")[1] + "-" for line in requirements}
    found = [path for path in sorted((cache / "wheels").glob("*.whl")) if any(path.name.lower().startswith(name) for name in named)]
    if len(found) != len(requirements):
        raise ValueError(f"{cache / 'wheels'}: expected {len(requirements)} wheels, got {len(found)}")
    for path in found + [pathlib.Path(wheel) for wheel in wheels]:
        parts.append((path.name, path.read_bytes()))
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("bundle-*.tar"):
        old.unlink()
    bins = grouped(parts, limit)
    return [write(folder / f"bundle-{number}.tar", number, len(bins), held) for number, held in enumerate(bins, 1)]


def write(path, number, of, parts):
    """Writes bundle `number` of `of` with its parts, (name, bytes). Returns its path."""
    listed = {"number": number, "of": of, "vllm": VERSION, "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in parts}}
    with tarfile.open(path, "w") as tar:
        for name, data in [("bundle.json", json.dumps(listed).encode())] + parts:
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            tar.addfile(info, io.BytesIO(data))
    return path


def install(bundle, site):
    """Unpacks a bundle into the folder `site`, which PYTHONPATH is to name: in any order, each once. Returns the numbers of bundles that
    are still
    missing. Throws ValueError if its bytes are not those that were written."""
    site = pathlib.Path(site)
    site.mkdir(parents=True, exist_ok=True)
    with tarfile.open(bundle) as tar:
        listed = json.load(tar.extractfile("bundle.json"))
        wheels = site / "wheels"
        wheels.mkdir(exist_ok=True)
        for name, expected in listed["sha256"].items():
            data = tar.extractfile(name).read()
            if (got := hashlib.sha256(data).hexdigest()) != expected:
                raise ValueError(f"{bundle}: {name}: expected sha256 {expected}, got {got}")
            if name.endswith(".whl"):
                (wheels / name).write_bytes(data)
                with zipfile.ZipFile(wheels / name) as wheel:
                    unpack(wheel, site)
                (wheels / name).unlink()
            elif name == "python.tar.xz":
                with tarfile.open(fileobj=io.BytesIO(lzma.decompress(data))) as inner:
                    inner.extractall(site, filter="data")
            else:
                path = site / name.removesuffix(".xz")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(lzma.decompress(data))
    (site / f"bundle-{listed['number']}.json").write_text(json.dumps(listed))
    return [number for number in range(1, listed["of"] + 1) if not (site / f"bundle-{number}.json").exists()]


def unpack(wheel, site):
    """A wheel's files, those of its .data/purelib and .data/platlib folders at the top; scripts are left out."""
    for name in wheel.namelist():
        if name.endswith("/"):
            continue
        first, _, rest = name.partition("/")
        target = name
        if first.endswith(".data"):
            kind, _, target = rest.partition("/")
            if kind not in ("purelib", "platlib"):
                continue
        path = site / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(wheel.read(name))
