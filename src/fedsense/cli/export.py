"""``fedsense export``: a client's personal model as a file, from a run or on the node of a fleet that has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from fedsense.personal import PersonalModel


def export(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="A folder that `fedsense run` wrote; on a node, what it keeps (--keep)."),
    ],
    client: Annotated[
        str | None, typer.Option("--client", metavar="NAME", help="Whose; if there is one, that.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Default: NAME.safetensors.")] = None,
    json_: Annotated[bool, typer.Option("--json", help="What it takes to load it, on standard output.")] = False,
) -> None:
    """Write a client's personal model to a file: fedsense.load_personal(FILE) in Python."""
    model = _find(run, client)
    path = out or Path(f"{model.client.replace('/', '-')}.safetensors")
    model.save(path)
    if json_:
        print(json.dumps({"file": str(path), "client": model.client, **(model.about or {})}, indent=1))
        return
    print(f"{path}: the model of '{model.client}', {sum(t.numel() for t in model.params.values()):,} numbers")
    if model.about:
        shape = " × ".join(map(str, model.about["input_shape"]))
        print(f'fedsense.load_personal("{path}").predict(x), with x of shape n × {shape}, prepared as for the run')
    else:
        print("its network or method is of your own: torch's load_state_dict takes the tensors")


def _find(folder: Path, client: str | None) -> PersonalModel:
    from fedsense.errors import UserError, nearest
    from fedsense.experiment import find_runs
    from fedsense.flower.keep import MODELS_FILE, taken_home
    from fedsense.result import Result

    kept = [folder] if (folder / MODELS_FILE).is_file() else [p.parent for p in sorted(folder.glob(f"*/{MODELS_FILE}"))]
    runs = kept or find_runs(folder)
    if len(runs) > 1:
        raise UserError(f"{folder} holds several runs; name one: {', '.join(str(each) for each in runs)}")
    if kept:
        return taken_home(runs[0], client)
    result = Result.read(runs[0])
    names = list(result.test_sizes)
    if client is None and len(names) > 1:
        raise UserError(f"{runs[0]} has several clients; {nearest('', names)} (--client)")
    return result.personal_model(client or names[0])
