"""Strata's side: the program strata_compare, and the safetensors files by which it gets tensors and returns them."""
import ctypes
import json
import math
import pathlib
import subprocess
import tempfile

import torch

from compare.cases import Refused

DTYPES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.int32: "I32", torch.int64: "I64", torch.uint8: "U8"}


def write_safetensors(path, tensors):
    header, offset, held = {}, 0, {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in held.items():
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in held.values():
            if tensor.numel():
                stream.write((ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr()))


def read_safetensors(path):
    data = bytearray(pathlib.Path(path).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    names = {name: dtype for dtype, name in DTYPES.items()}
    return {name: torch.frombuffer(data, dtype=names[entry["dtype"]], count=math.prod(entry["shape"]), offset=begin + entry["data_offsets"][0])
            .view(entry["shape"]) for name, entry in json.loads(data[8:begin]).items() if name != "__metadata__"}


class StrataError(Exception):
    """An answer {"error": TEXT}, or the end of the program."""


class StrataProgram:
    """A running strata_compare (strata_compare.cpp describes its commands)."""

    def __init__(self, program, device):
        try:
            self._process = subprocess.Popen([program, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        except OSError as error:
            raise Refused(f"{program} cannot be run ({error.strerror}); `make compare` builds it") from error
        self._folder = tempfile.TemporaryDirectory(prefix="strata-compare-")
        self._file = pathlib.Path(self._folder.name) / "call.safetensors"
        try:
            hello = self._answer()
        except StrataError as error:
            self.close()
            raise Refused(str(error)) from error
        self.version = hello["version"]  # "strata 0.1.0, commit 1a2b3c4d5e6f, backends ..."

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()

    def load(self, op, inputs):
        """Loads a call: {"implementation": NAME, "copies": N}."""
        write_safetensors(self._file, inputs)
        try:
            return self._send({"do": "load", "op": op, "file": str(self._file)})
        finally:
            self._file.unlink()

    def outputs(self):
        """Runs the call once; its outputs on the host."""
        self._send({"do": "run", "file": str(self._file)})
        try:
            return read_safetensors(self._file)
        finally:
            self._file.unlink()

    def median_us(self, min_time):
        return self._send({"do": "time", "min_time": min_time})["median_s"] * 1e6

    def _send(self, command):
        try:
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise StrataError(f"the program ended: {error.strerror}") from error
        return self._answer()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise StrataError(f"the program ended with exit code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise StrataError(answer["error"])
        return answer
