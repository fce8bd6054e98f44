"""Keeps of a library's CUDA code what one kind of GPU runs, so that it compresses well."""

import struct

MAGIC = struct.pack("<I", 0xBA55ED50)
# Kinds of entries in a fat binary.
PTX, ELF = 1, 2


def entries(data, begin, end):
    """(offset, bytes, kind, arch) of the code of each entry between two offsets."""
    at, found = begin, []
    while at + 64 <= end:
        kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
        if not 32 <= header <= 4096 or at + header + size > end:
            break
        (arch,) = struct.unpack_from("<I", data, at + 28)
        found.append((at + header, size, kind, arch))
        at += header + size
    return found


def prune(data, arch=90):
    """Zeroes, in a bytearray, the code of every entry of a fat binary that GPUs of `arch` do not load: all but its own machine code, or,
    where
    there is none, PTX that is no newer. No offset changes. Returns (bytes kept, bytes zeroed)."""
    at, kept, zeroed = 0, 0, 0
    while (at := data.find(MAGIC, at)) >= 0:
        _, header, size = struct.unpack_from("<HHQ", data, at + 4)
        if header != 16 or size > len(data) - at:
            at += 4
            continue
        found = entries(data, at + header, at + header + size)
        own = any(kind == ELF and of == arch for _, _, kind, of in found)
        for offset, length, kind, of in found:
            if (kind == ELF and of == arch) if own else (kind == PTX and of <= arch):
                kept += length
            else:
                data[offset : offset + length] = bytes(length)
                zeroed += length
        at = max(at + header + size, at + 4)
    return kept, zeroed
