"""Damage: random, or planned so that checksums are right and only the content is hostile."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable

Damage = Callable[[bytes], bytes]
# Counts and sizes that a trusting reader would take memory for, or take for negative.
HUGE = (b"\xff\xff\xff\x7f", b"\xff" * 8, b"\x00\x00\x00\x40", b"\x7f" * 8, b"\xff" * 4, b"99999999999")
TEXT = (
    b"\n", b" ", b"\0", b"nan", b"inf", b"-1", b"1e999", b"[", b"{", b"\xff", b"\xef\xbb\xbf", b"../",
    b"| ",
)  # fmt: skip


def damaged(content: bytes, generator: random.Random) -> bytes:
    """A copy that is cut, changed, swollen or shuffled in one to three places."""
    data = bytearray(content)
    for _ in range(generator.randint(1, 3)):
        place = generator.randrange(len(data)) if data else 0
        kind = generator.choice(("cut", "bit", "byte", "huge", "repeat", "insert", "drop"))
        if kind == "cut":
            del data[place:]
        elif kind == "bit" and data:
            data[place] ^= 1 << generator.randrange(8)
        elif kind == "byte" and data:
            data[place] = generator.randrange(256)
        elif kind == "huge":
            piece = generator.choice(HUGE)
            data[place : place + len(piece)] = piece
        elif kind == "repeat":
            end = min(place + generator.randint(1, 64), len(data))
            data[end:end] = data[place:end] * generator.randint(1, 8)
        elif kind == "insert":
            data[place:place] = generator.choice(TEXT)
        else:
            del data[place : place + generator.randint(1, 16)]
    return bytes(data)


def reseal_npz(content: bytes, change: Damage) -> bytes:
    """An npz file one of whose members is changed; sizes and CRC-32 of the zip archive are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(one.filename, archive.read(one)) for one in archive.infolist()]
    target = zlib.crc32(change(b"which member")) % len(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for number, (name, data) in enumerate(members):
            archive.writestr(name, change(data) if number == target else data)
    return out.getvalue()


def reseal_tables(content: bytes, change: Damage) -> bytes:
    """A file of tables with changed bodies and index; all its CRC-32 are right."""
    mark, version, _, place, length, count = struct.unpack_from("<16sIIQQQ", content)
    bodies = change(content[64:place])
    bodies += bytes(-len(bodies) % 8)
    index = bytearray(content[place : place + length])
    shift = len(bodies) - (place - 64)
    for number in range(count):
        begin, size = struct.unpack_from("<QQ", index, 64 * number)
        size = max(0, size + shift) if number == count - 1 else size
        struct.pack_into(
            "<QQI", index, 64 * number, begin, size, zlib.crc32(bodies[begin - 64 : begin - 64 + size])
        )
    head = struct.pack("<16sIIQQQ16x", mark, version, zlib.crc32(index), 64 + len(bodies), len(index), count)
    return head + bodies + bytes(index)


def reseal_index(content: bytes, change: Damage) -> bytes:
    """A file of tables with a changed index, whose CRC-32 is right."""
    mark, version, _, place, length, count = struct.unpack_from("<16sIIQQQ", content)
    index = change(content[place : place + length])
    head = struct.pack("<16sIIQQQ16x", mark, version, zlib.crc32(index), place, len(index), count)
    return head + content[64:place] + index


def reseal_safetensors(content: bytes, change: Damage) -> bytes:
    """A safetensors file with a changed header of ours, as a file without a checksum can have it."""
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    meta = header["__metadata__"]
    meta["format"] = "fsachain checkpoint 1"
    meta.pop("checksum", None)
    meta["header"] = change(meta["header"].encode()).decode("utf-8", errors="replace")
    packed = json.dumps(header).encode()
    return struct.pack("<Q", len(packed)) + packed + content[8 + length :]
