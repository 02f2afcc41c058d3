"""Bundles as Flower's records, one to one: a group is an ArrayRecord; plain numbers are JSON in a ConfigRecord.

A message holds several calls, or their answers: the records of the third are called ``2/down/encoder``, for its Bundle
``down`` and that one's group ``encoder``. The tensors of a group are one Array, as safetensors: Flower makes two
requests for every Array at each of a message's six hops, which costs more than what it carries (ADR 11). So what is on
the wire is also what the ledger counts. Groups and tensors keep their order, which the order of a sum may depend on:
safetensors and Flower keep none, so tensors are numbered and records listed. Nothing is pickled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedsense.bundle import Bundle, Params, from_bytes, to_bytes
from fedsense.engine.site import TRAINS, Answer, Call

PROTOCOL = 1  # of the messages between server and nodes
TEXT = "fedsense"  # the record with everything that is no tensor
KIND = "safetensors"
NEEDS_DOWN = (*TRAINS, "received")  # an empty Bundle is no record, and yet came down


class Malformed(ValueError):
    """A message that is not what it should be."""


def to_records(bundles: Sequence[Mapping[str, Bundle]], text: Mapping[str, Any]) -> RecordDict:
    """Each entry's Bundles, and ``text`` as JSON."""
    arrays = {}
    for i, entry in enumerate(bundles):
        for name, bundle in entry.items():
            for group, params in bundle.items():
                data = to_bytes({group: {f"{j:x} {tensor}": t for j, (tensor, t) in enumerate(params.items())}})
                arrays[f"{i}/{name}/{group}"] = ArrayRecord({KIND: Array("uint8", (len(data),), KIND, data)})
    said = json.dumps({"protocol": PROTOCOL, **text, "order": list(arrays)})
    return RecordDict({TEXT: ConfigRecord({"text": said}), **arrays})


def from_records(records: RecordDict) -> tuple[list[dict[str, Bundle]], dict[str, Any]]:
    """The inverse: Bundles by entry, and the text; an entry without Bundles at the end is not seen."""
    text = text_of(records)
    found: dict[int, dict[str, Bundle]] = {}
    for key in sorted(records.array_records, key=_place(text.get("order"))):
        number, name, group = [*key.split("/", 2), "", ""][:3]
        if not number.isdecimal() or len(number) > 6:
            raise Malformed(f"a record is called {key!r}")
        found.setdefault(int(number), {}).setdefault(name, {})[group] = _group(records.array_records[key], group)
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


def _place(order: Any) -> Callable[[str], int]:
    known = {key: i for i, key in enumerate(order)} if isinstance(order, list) else {}
    return lambda key: known.get(key, len(known))


def _group(record: ArrayRecord, group: str) -> Params:
    try:
        params = from_bytes(record[KIND].data)[group]
        return {name.split(" ", 1)[1]: params[name] for name in sorted(params, key=lambda n: int(n.split(" ")[0], 16))}
    except Exception as error:  # safetensors' own, or a record that holds something else
        raise Malformed(f"'{group}' cannot be read ({type(error).__name__}: {error})") from error


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
