"""How a run goes, while it goes: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, ProgressColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.progress import Task as Bar
from rich.text import Text

from fedsense.engine.origin import duration
from fedsense.engine.rounds import Engine, Listener
from fedsense.evaluation.summary import curve

if TYPE_CHECKING:
    from fedsense.errors import RunFailed
    from fedsense.federation import Federation
    from fedsense.recipe import Recipe

SECONDS_BETWEEN_LINES = 5.0


class Display:
    """The progress of all runs of an experiment, on the terminal (or, with ``to_stderr``, on standard error).

    It is drawn when something happens, never by a thread: worker processes are forked while it is up. What is live is
    the run under way and, of several, how many are done; the others are lines above.
    """

    def __init__(self, several_seeds: bool = False, to_stderr: bool = False) -> None:
        self.console = Console(stderr=to_stderr, highlight=False)
        self.live = self.console.is_terminal
        self.several_seeds = several_seeds
        self.wide = self.console.width >= 110
        self.data_to_tell = False  # of several datasets: what was taken of each, and what was left out
        self.cautioned: set[str] = set()  # methods
        self.runs = 0  # how many there will be, if that is known
        self.longest = 0  # of their names
        self.ended = 0
        self.seconds: list[float] = []  # of runs that had something to do
        self.since = time.monotonic()  # the last of them ended
        columns: list[ProgressColumn] = [
            TextColumn("{task.description}"),
            BarColumn(bar_width=None if self.wide else 8),
            TextColumn("{task.fields[count]}"),
            TextColumn("{task.fields[clients]}", style="dim"),
            TextColumn("{task.fields[scores]}"),
            *([TimeElapsedColumn()] if self.wide else []),
            _Left(),
        ]
        self.bars = Bars(*columns, console=self.console, auto_refresh=False, expand=self.wide)
        self.all: TaskID | None = None

    def __enter__(self) -> Display:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        if self.live and self.bars.live.is_started:
            self._forget_sum()
            self.bars.refresh()
            self.bars.stop()

    def intro(self, recipe: Recipe) -> None:
        labels = recipe.methods()
        counts = {"method": len(labels), "seed": len(recipe.seeds), "round": recipe.rounds}
        what = f"{recipe.name}: " + ", ".join(f"{n} {word}{'s' * (n != 1)}" for word, n in counts.items())
        self.console.print(what + (f" — {recipe.description}" if recipe.description else ""))
        self.data_to_tell = bool(recipe.several)
        self.runs, self.since = len(labels) * len(recipe.seeds), time.monotonic()
        self.longest = max(len(self.name(label, seed)) for label in labels for seed in recipe.seeds)

    def name(self, label: str, seed: int) -> str:
        return f"{label} · seed {seed}" if self.several_seeds else label

    def tell_data(self, federation: Federation) -> None:
        if self.data_to_tell:
            self.data_to_tell = False  # once is enough
            each = [federation.description.replace("; ", "\n  "), f"classes: {', '.join(federation.task.classes)}"]
            self.console.print("  " + "\n  ".join(each), markup=False)

    def caution(self, label: str, engine: Engine) -> None:
        """Once for all seeds."""
        told = engine.method.too_few(engine.settings.rounds)
        if told and label not in self.cautioned:
            self.cautioned.add(label)
            text = f"note: {label}, {_rounds(engine.settings.rounds)}: {told}"
            self.console.print(text, markup=False, soft_wrap=True)

    def listen(self, label: str, seed: int) -> list[Listener]:
        return [Progress(self, label, seed)]

    def run_ended(self, share: float | None) -> None:
        """A run is over, of which ``share`` was run now; None if nobody knows. Making its data counts, too."""
        now = time.monotonic()
        self.ended += 1
        self.seconds += [(now - self.since) / share] if share else []
        self.since = now

    @property
    def left(self) -> str:
        """How long all other runs will take, by those that are done; "" if nobody knows, or there are none."""
        if self.ended >= self.runs or not self.seconds:
            return ""
        return f"about {duration((self.runs - self.ended) * sum(self.seconds) / len(self.seconds))}"

    def draw(self) -> None:
        """Of several runs, how far they are, above the one under way."""
        if not self.bars.live.is_started:
            self.bars.start()
        if self.ended >= self.runs:
            self._forget_sum()
        elif self.runs > 1:
            count = f"run {self.ended + 1}/{self.runs}"
            if self.all is None:
                name = "in all".ljust(self.longest)
                self.all = self.bars.add_task(name, total=self.runs, count=count, clients="", scores="", sum=True)
            self.bars.update(self.all, completed=self.ended, count=count, scores=f"{self.left} left" * bool(self.left))
        self.bars.refresh()

    def _forget_sum(self) -> None:
        if self.all is not None:
            self.bars.remove_task(self.all)
            self.all = None


class Progress(Listener):
    """One run's line of the display."""

    def __init__(self, display: Display, label: str, seed: int) -> None:
        self.display = display
        self.label, self.name = label, display.name(label, seed)
        self.alone_in_display = False
        self.task: TaskID | None = None
        self._said, self._began, self._from = 0.0, 0.0, 0

    @staticmethod
    def alone(label: str, seed: int) -> Progress:
        """A display for a single run."""
        listener = Progress(Display(to_stderr=True), label, seed)
        listener.alone_in_display = True
        return listener

    def started(self, engine: Engine) -> None:
        self._began, self._from = time.monotonic(), engine.round
        self.display.tell_data(engine.federation)
        self.display.caution(self.label, engine)
        if not self.display.live:
            return
        self.display.draw()
        rounds = engine.settings.rounds
        self.task = self.display.bars.add_task(
            self.name.ljust(self.display.longest),
            total=rounds,
            completed=engine.round,
            count=f"round {engine.round}/{rounds}",
            clients="",
            scores="",
        )
        self.display.bars.refresh()

    def client_done(self, engine: Engine, round: int, done: int, total: int) -> None:
        what = "getting ready" if round == 0 else "finishing" if round > engine.settings.rounds else ""
        if self.task is not None:
            rounds = engine.settings.rounds
            self.display.bars.update(
                self.task,
                completed=max(0, min(round - 1 + done / total, rounds)),
                count=f"round {min(round, rounds)}/{rounds}",
                clients=(what + " ") * bool(what) + f"{done}/{total}" + " clients" * self.display.wide,
            )
            self.display.bars.refresh()
        elif what and time.monotonic() - self._said >= SECONDS_BETWEEN_LINES:
            self._said = time.monotonic()
            self.display.console.print(f"{self.name}: {what}, {done} of {total} clients", soft_wrap=True)

    def round_done(self, engine: Engine, round: int) -> None:
        text = _scores(engine, self.display.wide or not self.display.live)
        if self.task is not None:
            self.display.bars.update(self.task, completed=round, scores=text)
            self.display.bars.refresh()
            return
        now, rounds = time.monotonic(), engine.settings.rounds
        if round < rounds and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            left = duration((now - self._began) / (round - self._from) * (rounds - round))
            self.display.console.print(f"{self.name}: round {round}/{rounds}, {text}, {left} left", soft_wrap=True)

    def failed(self, engine: Engine, failure: RunFailed) -> None:
        """At once: other runs go on, perhaps for hours, before all that failed is said again."""
        if not self.alone_in_display:  # else it is all there is to say, and whoever catches it says it
            self.display.console.print(f"{self.name} failed: {failure}", style="bold red", markup=False, soft_wrap=True)

    def stopped(self, engine: Engine) -> None:
        """A line that stays."""
        done = engine.round - self._from
        seconds = time.monotonic() - self._began
        over = done > 0 and engine.round == engine.settings.rounds
        self.display.run_ended(done / engine.round if over else None)
        if self.task is not None:
            bars, number = self.display.bars, self.task
            line = bars.make_tasks_table([task for task in bars.tasks if task.id == number])
            bars.remove_task(number)
            self.task = None
            self.display.console.print(line)
            self.display.draw()
        elif over:
            scores = _scores(engine, every_view=True)
            more, left = self.display.runs - self.display.ended, self.display.left
            rest = f"; {more} more run{'s' * (more > 1)}, {left}" * bool(left)
            text = f"{self.name}: {_rounds(done)} in {duration(seconds)}, {scores}{rest}"
            self.display.console.print(text, soft_wrap=True)
        if self.alone_in_display:
            self.display.__exit__(None, None, None)


class _Left(ProgressColumn):
    """Time left of a run, from its own pace."""

    def render(self, task: Bar) -> Text:
        if task.finished or not task.speed or task.remaining is None or "sum" in task.fields:
            return Text("")
        return Text(f"{duration(task.remaining / task.speed)} left", style="dim")


def _rounds(count: int) -> str:
    return f"{count} round{'s' * (count != 1)}"


def _scores(engine: Engine, every_view: bool) -> str:
    """Each view's first metric, as last scored."""
    history = engine.record.scores
    if not history:
        return "not scored yet"
    latest = history[-1]["scores"]
    parts = []
    for view, splits in latest.items():
        metric = next(iter(splits["test"]))
        value = curve(history[-1:], view, metric)[0][1]
        if math.isfinite(value) and (every_view or view != "generalisation"):
            parts.append(f"{view} {value:.3f}" if every_view else f"{view} {value:.2f}")
    return " ".join(parts)
