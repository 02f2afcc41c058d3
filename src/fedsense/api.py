"""What a notebook user calls: ``fedsense.run`` and ``fedsense.compare``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedsense.data import load
from fedsense.engine.rounds import Engine, Listener
from fedsense.engine.settings import Settings
from fedsense.errors import UserError, nearest
from fedsense.evaluation.summary import check_selection
from fedsense.federation import Federation, Missing
from fedsense.method import Method
from fedsense.methods import find_method
from fedsense.models.network import Network
from fedsense.models.spec import ModelSpec
from fedsense.options import checked, options_of
from fedsense.result import Result, Spread

if TYPE_CHECKING:
    from fedsense.comparing import Comparison


def run(
    federation: Federation | str,
    method: str | Method = "fedavg",
    model: str | list[str] | Callable[[tuple[int, ...], int], Network] | ModelSpec = "coad-cnn",
    rounds: int = 20,
    seed: int = 0,
    *,
    progress: bool = True,
    missing: Missing = "refuse",
    summary: str = "final",
    out: str | Path | None = None,
    listeners: Sequence[Listener] = (),
    **options: Any,
) -> Result:
    """Train personal models on a federation.

    ``options`` are hyper-parameters of the method (``lr=0.05, epochs=2``) and settings of the run
    (``participation=0.1, every=5, metrics=("accuracy",), workers=1``). ``missing`` says what becomes of samples
    with values that are not finite. With ``out`` the run is kept in that folder, and calling again with the same
    arguments goes on where it was stopped.
    """
    check_selection(summary)
    if isinstance(federation, str):
        federation = load(federation, missing=missing, default_seed=seed)
    else:
        federation = federation.check(missing)
    kinds = {f.name: f.type for f in fields(Settings)}
    chosen = {name: options.pop(name) for name in list(options) if name in kinds}
    given = {"rounds": rounds, "seed": seed, **_tuples(chosen)}
    settings = Settings(**checked("a run", given, options_of(Settings)))
    made = _method(method, options, [*kinds])
    watching = [*listeners]
    if progress:
        from fedsense.cli.progress import Progress

        watching.append(Progress.alone(made.name, seed))
    engine = Engine(federation, made, ModelSpec.of(model), settings, Path(out) if out else None, watching)
    engine.run()
    return Result.of(engine, made.name, summary)


def compare(
    *results: Result | str | Path | Sequence[Result | str | Path],
    selection: str | None = None,
    weighted: bool = False,
    view: str | None = None,
    metric: str | None = None,
    against: str | None = None,
    target: str | float | None = None,
    spread: Spread = "clients",
) -> Comparison:
    """Several results, or folders of runs: who is better, how sure that is, what it costs and whom it harms.

    It prints as tables; ``pairs``, ``ranks``, ``reached``, ``costs`` and ``worth`` hold the numbers. ``against`` is
    a method to compare all others with, ``target`` a score, or a share ("95%") of that method's, and
    ``spread`` what the deviations in the table of scores are over.
    """
    from fedsense.comparing import compare_results, read

    given = [one for each in results for one in (each if isinstance(each, list | tuple) else [each])]
    if not given or not all(isinstance(one, Result | str | Path) for one in given):
        raise UserError("give the results to compare: fedsense.compare(first, second)")
    runs = [run for one in given for run in ([one] if isinstance(one, Result) else read([Path(str(one))]))]
    return compare_results(runs, selection, weighted, view, metric, against, target, spread)


def _method(method: str | Method, options: dict[str, Any], others: list[str]) -> Method:
    kind = find_method(method) if isinstance(method, str) else type(method)
    allowed = options_of(kind)
    for name in options:
        if name not in allowed:
            raise UserError(
                f"neither {kind.name} nor a run has an option '{name}'; {nearest(name, [*allowed, *others])}"
            )
    own = checked(f"method '{kind.name}'", options, allowed)
    return kind(**own) if isinstance(method, str) else replace(method, **own)


def _tuples(options: dict[str, Any]) -> dict[str, Any]:
    """``views`` and ``metrics`` as given by a user: a word or a list."""
    for name in ("views", "metrics"):
        if name in options:
            value = options[name]
            options[name] = (value,) if isinstance(value, str) else tuple(value)
    return options
