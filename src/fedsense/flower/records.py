"""Bundles as Flower's records, one to one: a group is an ArrayRecord, a tensor an Array; plain numbers are JSON.

A message holds several calls, or their answers: the records of the third are called ``2/down/encoder``, for its Bundle
``down`` and that one's group ``encoder``. Nothing is pickled, neither here nor by Flower.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsense.bundle import Bundle
from fedsense.engine.site import Answer, Call

PROTOCOL = 1  # of the messages between server and nodes
TEXT = "fedsense"  # the record with everything that is no tensor


class Malformed(ValueError):
    """A message that is not what it should be."""


def to_records(bundles: Sequence[Mapping[str, Bundle]], text: Mapping[str, Any]) -> RecordDict:
    """Each entry's Bundles, and ``text`` as JSON."""
    records = RecordDict({TEXT: ConfigRecord({"text": json.dumps({"protocol": PROTOCOL, **text})})})
    for i, entry in enumerate(bundles):
        for name, bundle in entry.items():
            for group, params in bundle.items():
                arrays = {key: Array(tensor.detach().cpu().contiguous().numpy()) for key, tensor in params.items()}
                records[f"{i}/{name}/{group}"] = ArrayRecord(arrays)
    return records


def from_records(records: RecordDict) -> tuple[list[dict[str, Bundle]], dict[str, Any]]:
    """The inverse: Bundles by entry, and the text; an entry without Bundles at the end is not seen."""
    text = text_of(records)
    found: dict[int, dict[str, Bundle]] = {}
    for key, record in records.array_records.items():
        number, name, group = [*key.split("/", 2), "", ""][:3]
        if not number.isdecimal() or len(number) > 6:
            raise Malformed(f"a record is called {key!r}")
        params = found.setdefault(int(number), {}).setdefault(name, {}).setdefault(group, {})
        for tensor, array in record.items():
            params[tensor] = _tensor(array, f"{group}/{tensor}")
    return [found.get(i, {}) for i in range(max(found, default=-1) + 1)], text


def text_of(records: RecordDict) -> dict[str, Any]:
    """What of a message is no tensor."""
    try:
        text = json.loads(str(records.config_records[TEXT]["text"]))
        protocol = text["protocol"]
    except (KeyError, ValueError, TypeError) as error:
        raise Malformed("it is no message of fedsense") from error
    if protocol != PROTOCOL:
        raise Malformed(f"it speaks protocol {protocol}, and this version of fedsense {PROTOCOL}; install the same")
    return text  # type: ignore[no-any-return]


def size_of(records: RecordDict) -> int:
    """Bytes of the arrays as they stand in the message, before any of them is read."""
    return sum(len(array.data) for record in records.array_records.values() for array in record.values())


def _tensor(array: Array, what: str) -> torch.Tensor:
    try:
        value = np.load(io.BytesIO(array.data), allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))  # of no dimension stays so
    except (ValueError, TypeError, EOFError, OSError) as error:
        raise Malformed(f"'{what}' cannot be read ({error})") from error


def calls_to_records(calls: Sequence[Call], extra: Sequence[Mapping[str, Any]], text: Mapping[str, Any]) -> RecordDict:
    """Calls, with something more about each."""
    described = [
        {"job": call.job, "clients": call.clients, "round": call.round, "score": call.score, **more}
        for call, more in zip(calls, extra, strict=True)
    ]
    return to_records([call.bundles for call in calls], {**text, "calls": described})


def calls_from_records(records: RecordDict) -> tuple[list[Call], dict[str, Any]]:
    """The inverse; what else was said is in the text."""
    bundles, text = from_records(records)
    calls = []
    for i, entry in enumerate(text["calls"]):
        mine = bundles[i] if i < len(bundles) else {}
        if entry["job"] in NEEDS_DOWN:
            mine.setdefault("down", {})
        calls.append(Call(entry["job"], tuple(entry["clients"]), entry["round"], mine, entry["score"]))
    return calls, text


def answers_to_records(answers: Sequence[Answer], text: Mapping[str, Any] | None = None) -> RecordDict:
    described = [{"data": answer.data, "failure": answer.failure} for answer in answers]
    return to_records([answer.bundles for answer in answers], {**(text or {}), "answers": described})


def answers_from_records(records: RecordDict) -> list[Answer]:
    """The inverse; whatever is not as it should be raises Malformed."""
    bundles, text = from_records(records)
    try:
        said = [(dict(entry["data"]), str(entry["failure"])) for entry in text["answers"]]
    except (KeyError, TypeError, ValueError) as error:
        raise Malformed("it holds no answers") from error
    if len(bundles) > len(said):
        raise Malformed("it holds tensors of no answer")
    bundles += [{} for _ in range(len(said) - len(bundles))]
    return [Answer(mine, data, failure) for mine, (data, failure) in zip(bundles, said, strict=True)]


NEEDS_DOWN = ("start", "update", "finish", "join", "received")  # an empty Bundle is no record, and yet came down
