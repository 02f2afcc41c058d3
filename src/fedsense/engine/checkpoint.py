"""Checkpoints: safetensors and JSON, written so that a run killed at any moment can go on, to the bit.

    checkpoints/round-00012.json            manifest: what belongs to the checkpoint, with digests; written last
    checkpoints/server-00012.safetensors    the server's Bundle
    checkpoints/clients-00012.safetensors   states of the clients that changed since the checkpoint before
    checkpoints/clients-00012-1.safetensors more of them: where they are many, few are in memory at once

A manifest names, for every client, the file its state is in; older files stay as long as a manifest needs them. The
last two manifests are kept, so that a damaged one has a good one before it.

A run that was packed (:mod:`fedsense.packing`) has none of these, but ``packed.json`` beside its records: the round,
and the records' digests. What it measured counts; it has no models.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsense.bundle import Bundle, flatten, from_bytes, to_bytes, unflatten
from fedsense.engine.folder import digest_of, write_atomically
from fedsense.engine.record import read_lines
from fedsense.engine.store import size
from fedsense.errors import CheckpointError, UserError

FORMAT = 1
KEPT = 2
PACKED_FILE = "packed.json"
PIECE = 1 << 27  # bytes of clients' states after which another file begins
BLOCK = 1 << 20  # bytes digested at once


@dataclass
class Checkpoint:
    """Where a run stands after a round."""

    round: int
    server: Bundle
    clients: Mapping[str, Bundle]  # what each client keeps, as "state.…" and "trained" groups
    records: dict[str, dict[str, Any]]  # size and digest of the beginning of the record files that belongs to it
    files: dict[str, str] = field(default_factory=dict)  # client -> file its state is in
    digests: dict[str, dict[str, Any]] = field(default_factory=dict)  # file -> its size and digest
    scores: dict[str, Any] = field(default_factory=dict)  # client -> scores of a model that has not changed since


def save(folder: Path, checkpoint: Checkpoint, changed: Iterable[str]) -> None:
    """Write a checkpoint; only clients in ``changed`` are written anew. Updates its ``files`` and ``digests``."""
    folder.mkdir(parents=True, exist_ok=True)
    server = f"server-{checkpoint.round:05}.safetensors"
    checkpoint.digests[server] = _written(folder / server, to_bytes(checkpoint.server))
    for number, piece in enumerate(_pieces(checkpoint.clients, changed)):
        name = f"clients-{checkpoint.round:05}{f'-{number}' if number else ''}.safetensors"
        data = to_bytes({_quote(client): flatten(bundle) for client, bundle in piece.items()})
        checkpoint.digests[name] = _written(folder / name, data)
        checkpoint.files |= dict.fromkeys(piece, name)
    needed = {server, *checkpoint.files.values()}
    checkpoint.digests = {name: entry for name, entry in checkpoint.digests.items() if name in needed}
    manifest = {
        "format": FORMAT,
        "round": checkpoint.round,
        "files": checkpoint.digests,
        "clients": checkpoint.files,
        "records": checkpoint.records,
        "scores": checkpoint.scores,
    }
    manifest["digest"] = _digest(_canonical(manifest))
    write_atomically(folder / f"round-{checkpoint.round:05}.json", json.dumps(manifest, indent=1).encode())
    _forget_old(folder)


def _pieces(clients: Mapping[str, Bundle], changed: Iterable[str]) -> Iterator[dict[str, Bundle]]:
    """The clients that changed, as many at a time as make a file."""
    piece: dict[str, Bundle] = {}
    filled = 0
    for client in changed:
        piece[client] = clients[client]
        filled += size(piece[client])
        if filled >= PIECE:
            yield piece
            piece, filled = {}, 0
    if piece:
        yield piece


def _written(path: Path, data: bytes) -> dict[str, Any]:
    write_atomically(path, data)
    return {"bytes": len(data), "digest": _digest(data)}


def load(folder: Path, previous: bool = False) -> Checkpoint | None:
    """The newest checkpoint, or None where there is none. Damage is refused; with ``previous`` the newest sound one."""
    manifests = _manifests(folder)
    if not manifests:
        return _packed(folder.parent)
    newest = manifests[-1]
    try:
        return _read(newest)
    except CheckpointError as error:
        sound = next((path for path in reversed(manifests[:-1]) if _sound(path)), None)
        if previous and sound:
            return _read(sound)
        offer = (
            f"the one of round {_round_of(sound)} is sound: go on from it with --resume --previous"
            if sound
            else "there is no sound one before it: run anew in another folder (--out)"
        )
        where = f"{folder.parent.name}, checkpoint of round {_round_of(newest)}"
        raise CheckpointError(f"{where} refused: {error}; {offer}") from error


def standing(run: Path) -> dict[str, Any] | None:
    """The round a run's newest checkpoint is of, and the records that belong to it; nothing is verified."""
    manifests = _manifests(run / "checkpoints")
    path = manifests[-1] if manifests else run / PACKED_FILE
    try:
        found = json.loads(path.read_bytes())
        return {"round": found["round"], "records": found["records"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def is_packed(run: Path) -> bool:
    """Whether a run's models were left behind."""
    return (run / PACKED_FILE).is_file() and not _manifests(run / "checkpoints")


def records_of_ended(run: Path, rounds: int) -> dict[str, Any] | None:
    """The sound records of a run that has ended after so many rounds; None of any other. No model is looked at."""
    found = standing(run)
    if found is None or found["round"] != rounds:
        return None
    try:
        _verify_records(run, found["records"])
    except CheckpointError:
        return None  # whoever loads it says what is wrong
    return dict(found["records"])


def refuse_beyond_end(run: Path, rounds: int) -> None:
    """Refuse more rounds of a run that was packed, or that has finished; of damage :func:`load` tells."""
    found = standing(run)
    if found is None or found["round"] >= rounds or records_of_ended(run, found["round"]) is None:
        return
    if is_packed(run):
        raise UserError(
            f"{run} was packed without its models after round {found['round']}, and cannot go further; "
            "start anew in another folder (--out)"
        )
    if any(line["round"] > found["round"] for line in read_lines(run / "ledger.jsonl")):
        raise UserError(
            f"{run} has finished after round {found['round']}: its clients have trained for themselves since; "
            "start anew in another folder (--out) to go further"
        )


def _packed(run: Path) -> Checkpoint | None:
    if not is_packed(run):
        return None
    found = standing(run)
    if found is None:
        raise CheckpointError(f"{run / PACKED_FILE} cannot be read; unpack the run again")
    try:
        _verify_records(run, found["records"])
    except CheckpointError as error:
        raise CheckpointError(f"{run.name}, packed after round {found['round']}, refused: {error}") from error
    return Checkpoint(found["round"], {}, {}, found["records"])


def discard_after(folder: Path, round: int) -> None:
    """Forget checkpoints newer than ``round``."""
    for path in _manifests(folder):
        if _round_of(path) > round:
            path.unlink()


def _read(path: Path) -> Checkpoint:
    folder = path.parent
    try:
        manifest: dict[str, Any] = json.loads(path.read_bytes())
        digest = manifest.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{path.name} is not a whole manifest") from error
    if digest != _digest(_canonical(manifest)):
        raise CheckpointError(f"{path.name} was altered (its digest does not match)")
    if manifest["format"] != FORMAT:
        raise CheckpointError(f"{path.name} has format {manifest['format']}; this version reads format {FORMAT}")
    for name, entry in manifest["files"].items():
        _verify(folder / name, entry)
    _verify_records(folder.parent, manifest["records"], beginning=True)
    return Checkpoint(
        round=manifest["round"],
        server=_bundle(folder / f"server-{manifest['round']:05}.safetensors"),
        clients=_OnDisk(folder, manifest["clients"]),
        records=manifest["records"],
        files=manifest["clients"],
        digests=manifest["files"],
        scores=manifest["scores"],
    )


class _OnDisk(Mapping[str, Bundle]):
    """The clients of a checkpoint, file by file: of those asked for, only the last one's file is in memory."""

    def __init__(self, folder: Path, files: Mapping[str, str]) -> None:
        self._folder = folder
        self._files = dict(sorted(files.items(), key=lambda entry: entry[1]))
        self._open: tuple[str, Bundle] = ("", {})

    def __getitem__(self, client: str) -> Bundle:
        name = self._files[client]
        if self._open[0] != name:
            self._open = (name, _bundle(self._folder / name))
        return unflatten(self._open[1].get(_quote(client), {}))

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def _verify_records(run: Path, records: Mapping[str, Any], beginning: bool = False) -> None:
    for name, entry in records.items():
        _verify(run / f"{name}.jsonl", entry, beginning)


def _verify(path: Path, entry: Mapping[str, Any], beginning: bool = False) -> None:
    """Refuse a file that is not as it was written; a block of it at a time is in memory."""
    digest, length, seen = digest_of(), entry["bytes"], 0
    try:
        with path.open("rb") as file:
            while block := file.read(min(BLOCK, length - seen) if beginning else BLOCK):
                digest.update(block)
                seen += len(block)
    except OSError as error:
        raise CheckpointError(f"{path.name} is missing") from error
    if seen != length:
        raise CheckpointError(f"{path.name} is truncated ({seen} of {length} bytes)")
    if digest.hexdigest() != entry["digest"]:
        raise CheckpointError(f"{path.name} was altered (its digest does not match)")


def _bundle(path: Path) -> Bundle:
    try:
        return from_bytes(path.read_bytes())
    except OSError as error:  # a run that goes on removes what it no longer needs
        raise CheckpointError(f"{path.name} is missing") from error


def _sound(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True


def _forget_old(folder: Path) -> None:
    manifests = _manifests(folder)
    for path in manifests[:-KEPT]:
        path.unlink()
    needed = {name for path in manifests[-KEPT:] for name in _files_of(path)}
    for path in folder.glob("*.safetensors"):
        if path.name not in needed:
            path.unlink()


def _files_of(manifest: Path) -> list[str]:
    try:
        return list(json.loads(manifest.read_bytes())["files"])
    except (ValueError, KeyError, TypeError):
        return []  # damaged: it cannot be used any more, and what only it named can go


def _manifests(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*.json"), key=_round_of)


def _round_of(path: Path) -> int:
    return int(path.stem.removeprefix("round-"))


def _canonical(manifest: Mapping[str, Any]) -> bytes:
    return json.dumps(manifest, sort_keys=True).encode()


def _digest(data: bytes) -> str:
    return digest_of(data).hexdigest()


def _quote(client: str) -> str:
    return client.replace("%", "%25").replace("/", "%2F")
