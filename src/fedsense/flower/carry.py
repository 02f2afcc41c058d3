"""Flower's records between two processes of one machine, over a socket that only its owner can open.

    [length of the JSON] [length of the arrays] [JSON: what the records are] [the arrays, as they are]

Flower is all that is imported here: the process that carries a message starts anew for each.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

LENGTH = struct.Struct("<Q")
LARGEST = 1 << 36  # bytes of a message; what claims to be longer is none


def pack(records: RecordDict) -> list[bytes]:
    """A few pieces of bytes to be written one after another."""
    arrays: dict[str, Any] = {}
    pieces = []
    for key, record in records.array_records.items():
        arrays[key] = [[name, a.dtype, list(a.shape), a.stype, len(a.data)] for name, a in record.items()]
        pieces += [array.data for array in record.values()]
    configs = {key: dict(record.items()) for key, record in records.config_records.items()}
    return [json.dumps({"arrays": arrays, "configs": configs}).encode(), *pieces]


def unpack(head: bytes, body: memoryview) -> RecordDict:
    """The inverse, from the first piece and the others joined."""
    told = json.loads(head)
    records = RecordDict({key: ConfigRecord(values) for key, values in told["configs"].items()})
    start = 0
    for key, entries in told["arrays"].items():
        arrays = {}
        for name, dtype, shape, stype, length in entries:
            arrays[name] = Array(dtype, tuple(shape), stype, bytes(body[start : start + length]))
            start += length
        records[key] = ArrayRecord(arrays)
    return records


def ask(place: str, records: RecordDict) -> RecordDict:
    """What the process that listens at ``place`` answers."""
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(place)
        _send(end, records)
        return _receive(end)


def listen(place: Path, answer: Callable[[RecordDict], RecordDict], ready: Callable[[], None] = lambda: None) -> None:
    """Answer one message after another, for ever. Only the owner of ``place`` can ask."""
    place.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as door:
        before = os.umask(0o177)
        try:
            door.bind(str(place))
        finally:
            os.umask(before)
        door.listen(8)
        ready()
        while True:
            end, _ = door.accept()
            with end:
                try:
                    _send(end, answer(_receive(end)))
                except (OSError, ValueError, EOFError):  # whoever asked is gone, and will ask again
                    continue


def _send(end: socket.socket, records: RecordDict) -> None:
    head, *pieces = pack(records)
    end.sendall(LENGTH.pack(len(head)) + LENGTH.pack(sum(map(len, pieces))) + head)
    for piece in pieces:
        end.sendall(piece)


def _receive(end: socket.socket) -> RecordDict:
    head = _exactly(end, LENGTH.unpack(_exactly(end, LENGTH.size))[0] + LENGTH.size)
    body = _exactly(end, LENGTH.unpack(head[: LENGTH.size])[0])
    return unpack(bytes(head[LENGTH.size :]), memoryview(body))


def _exactly(end: socket.socket, count: int) -> bytearray:
    if count > LARGEST:
        raise ValueError("a message claims to be longer than any is")
    data = bytearray(count)
    view, filled = memoryview(data), 0
    while filled < count:
        read = end.recv_into(view[filled:])
        if not read:
            raise EOFError("the other process has gone")
        filled += read
    return data
