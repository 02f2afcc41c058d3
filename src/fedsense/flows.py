"""Where the training loop gets its minibatches and leaves its results: of one client, or of several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import groupby
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedsense.bundle import Bundle, Params
from fedsense.client import Client, NotAlike
from fedsense.models.layout import in_order_of
from fedsense.models.network import Batch, Seen
from fedsense.optim import Stepper, Transform
from fedsense.work import Schedule

Loss = Callable[[Params, Batch], Tensor]
WIDTHS = 32  # inputs are filled up to a multiple of it, so that few widths occur, and tapes serve again
LOOKED_UP = 1 << 20  # bytes of minibatches that are put together at once: what stays in the processor's cache
FEATURES = "features of the parts that rest"  # among the rows beside a batch


@dataclass(frozen=True)
class Fitted:
    """What training gave."""

    params: Params
    memory: Callable[[], Bundle]
    loss: float  # mean over the steps
    steps: int

    @cached_property
    def optimiser(self) -> Bundle:
        """The optimiser's memory; keep it in the client's state to go on with it next round."""
        return self.memory()


@dataclass(frozen=True)
class Fit:
    """What :func:`fit` was asked for."""

    loss: Loss
    params: Mapping[str, Tensor]
    client: Client
    schedule: Schedule
    optimiser: Transform
    parts: tuple[str, ...]
    memory: Bundle | None
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    given: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def trained(self) -> list[str]:
        """Names of the parameters that train, in one order.

        A sum over tensors (clip) may not depend on the order in which they came out of a file.
        """
        resting = self.client.model.buffers
        return [name for name in sorted(self.params) if name.split(".")[0] in self.parts and name not in resting]

    @property
    def sees_the_same(self) -> bool:
        """If only the head trains, what it sees of a sample is the same every time."""
        return self.parts == ("head",) and self.client.model.plain

    def rows(self) -> dict[str, Tensor]:
        """What there is of every sample."""
        return {"x": self.client.train.x, "y": self.client.train.y, **self.beside}


class Flow(Protocol):
    """Where the loop gets its batches and leaves its results; ``leaves`` and the rest are those of the present step."""

    now: Params  # everything the loss is given as parameters
    leaves: Params  # of them, what trains
    step: Stepper  # of the optimiser
    noted: list[Tensor]  # the losses of every step
    repeats: Counter[tuple[int, ...]]  # shape of a minibatch's mask -> how many there are
    even: bool  # whether minibatches whose masks have one shape have one mask
    unread: set[str]  # rows that need not be looked up any more

    def __iter__(self) -> Iterator[Batch]: ...

    def loss(self, batch: Batch) -> Tensor: ...

    def results(self) -> list[Fitted]: ...


class Alone:
    """One client: its parameters in the order of memory its network likes."""

    def __init__(self, asked: Fit) -> None:
        self.asked, model = asked, asked.client.model
        names = asked.trained
        self.now = {name: model.laid_out(name, asked.params[name].detach()) for name in sorted(asked.params)}
        self.leaves = {name: self.now[name].requires_grad_() for name in names}
        first = asked.memory or asked.optimiser.init({n: t.detach() for n, t in self.leaves.items()})
        like = {name: t.detach() for name, t in self.leaves.items()}
        self.memory = {s: {n: _copy(t, like.get(n)) for n, t in values.items()} for s, values in first.items()}
        given = asked.optimiser.given
        ordered = {s: {n: in_order_of(t, like.get(n, t)) for n, t in values.items()} for s, values in given.items()}
        self.step = asked.optimiser.begin(self.leaves, self.memory, ordered, False)
        self.noted: list[Tensor] = []
        self.repeats: Counter[tuple[int, ...]] = Counter()
        self.even, self.unread = True, set[str]()

    def __iter__(self) -> Iterator[Batch]:
        asked = self.asked
        steps = asked.schedule.table(asked.client.samples)
        if not len(steps) or not self.leaves:
            return
        sizes, noise = steps.sizes.tolist(), torch.from_numpy(steps.noise).unbind()
        self.repeats.update((size,) for size in sizes)
        ones = {size: torch.ones(size, device=asked.client.device) for (size,) in self.repeats}
        pool = asked.rows()
        if asked.sees_the_same and FEATURES not in pool:
            pool[FEATURES] = asked.client.model.predict(asked.params, pool["x"]).features
        index = torch.from_numpy(steps.samples).to(asked.client.device)
        for number, rows in enumerate(_gathered(pool, index, self.unread)):
            size = sizes[number]
            rows = {name: t[:size] for name, t in rows.items()}
            x, y, features = rows.pop("x"), rows.pop("y"), rows.pop(FEATURES, None)
            seen = None if features is None else Seen(x, features)
            yield Batch(x, y, ones[size], noise[number], asked.parts, rows, asked.given, seen)

    def loss(self, batch: Batch) -> Tensor:
        return self.asked.loss(self.now, batch)

    def results(self) -> list[Fitted]:
        params = {name: t.detach().contiguous() for name, t in self.now.items()}
        mean = float(torch.stack(self.noted).mean()) if self.noted else float("nan")
        return [Fitted(params, self._memory, mean, len(self.noted))]

    def _memory(self) -> Bundle:
        return {slot: {n: t.contiguous() for n, t in values.items()} for slot, values in self.memory.items()}


class Together:
    """Several clients, those with the most steps first: the ones that still train are always the first so many.

    Everything is stacked ``[clients, ...]``. Minibatches of different sizes are filled up, and ``batch.mask`` says so.
    Inputs of different widths are filled up with zeros, and the weights that meet them, too (see ``Model.family``).
    """

    def __init__(self, asked: Sequence[Fit]) -> None:
        names = asked[0].trained
        tables = [fit.schedule.table(fit.client.samples if names else 0) for fit in asked]
        self.order = sorted(range(len(asked)), key=lambda i: -len(tables[i]))
        self.asked, self.steps = [asked[i] for i in self.order], [tables[i] for i in self.order]
        self.first = self.asked[0]
        self.device, self.widens = self.first.client.device, self.first.client.model.widens
        widths = {fit.client.train.x.shape[1:].numel() for fit in self.asked} if self.widens else set()
        self.width = -(-max(widths) // WIDTHS) * WIDTHS if len(widths) > 1 else 0  # 0: nothing is filled up
        self.resting = self.first.params.keys() - {*names, *self.first.client.model.buffers, self.widens}
        params = [self._wide(fit.params) for fit in self.asked]
        self.own = {name: self._side_by_side(name, [values[name].detach() for values in params]) for name in params[0]}
        if self.first.memory:
            self.all_memory = self._each([fit.memory or {} for fit in self.asked])
        else:  # zeros and counts, alike for everybody
            begun = self.first.optimiser.init({name: self.own[name] for name in names})
            self.all_memory = {
                slot: {n: t if n in self.own else t.expand(len(asked), *t.shape).clone() for n, t in values.items()}
                for slot, values in begun.items()
            }
        self.all_given = self._each([fit.optimiser.given for fit in self.asked])
        self.constants = _stacked([fit.given for fit in self.asked])
        self.noted: list[Tensor] = []
        self.sizes, self.even = self._sizes()
        self._checked = self.even
        self.repeats: Counter[tuple[int, ...]] = Counter(self.sizes)
        self.unread = set[str]()
        self._take(len(asked))

    def _side_by_side(self, name: str, each: Sequence[Tensor]) -> Tensor:
        """A parameter of all clients; one that rests and is everyone's is not copied."""
        if name not in self.resting:
            return _ordered_as_gradient(torch.stack(tuple(each)))
        place = each[0].data_ptr()
        if all(t.data_ptr() == place and t.stride() == each[0].stride() for t in each):
            return each[0].expand(len(each), *each[0].shape)
        return torch.stack(tuple(each))

    def _each(self, bundles: Sequence[Bundle]) -> Bundle:
        """Stacked, what belongs to a parameter in its order of memory."""
        return {
            slot: {n: _copy(t, self.own.get(n)) for n, t in _stacked([self._wide(b[slot]) for b in bundles]).items()}
            for slot in bundles[0]
        }

    def _wide(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """With the weight that meets the input as wide as the widest client's."""
        if not self.width or self.widens not in tensors:
            return tensors
        weight = tensors[self.widens]
        return {**tensors, self.widens: F.pad(weight.detach(), (0, self.width - weight.shape[1]))}

    def _narrow(self, name: str, tensor: Tensor, place: int) -> Tensor:
        """A client's own part of what was filled up."""
        if not self.width or name != self.widens:
            return tensor
        return tensor[:, : self.asked[place].client.train.x.shape[1:].numel()]

    def _rows(self, fit: Fit) -> dict[str, Tensor]:
        rows = fit.rows()
        if self.width:
            x = rows["x"].flatten(1)
            rows["x"] = F.pad(x, (0, self.width - x.shape[1]))
        return rows

    def _take(self, active: int) -> None:
        """Views of the first so many clients; what is written into them is written into the whole."""
        self.active = active
        self.now = {name: t[:active].detach() for name, t in self.own.items()}
        self.leaves = {name: self.now[name].requires_grad_() for name in self.first.trained}
        memory = {s: {n: t[:active] for n, t in values.items()} for s, values in self.all_memory.items()}
        given = {s: {n: t[:active] for n, t in values.items()} for s, values in self.all_given.items()}
        self.step = self.first.optimiser.begin(self.leaves, memory, given, True)
        self.constant = {name: t[:active] for name, t in self.constants.items()}

    def __iter__(self) -> Iterator[Batch]:
        if not len(self.steps[0]):
            return
        each = [self._rows(fit) for fit in self.asked]
        pool = {name: torch.cat([rows[name] for rows in each]) for name in each[0]}
        if self.first.sees_the_same and FEATURES not in pool:
            pool[FEATURES] = self._features(pool["x"])
        rows_of, noise = self._schedule()
        index, seeds = torch.from_numpy(rows_of).to(self.device), torch.from_numpy(noise).unbind()
        ones = {size: torch.ones(size, device=self.device) for size in self.repeats} if self.even else {}
        mask = torch.empty(0) if self.even else torch.from_numpy(self._mask(rows_of.shape)).to(self.device)
        for number, rows in enumerate(_gathered(pool, index, self.unread)):
            active, width = self.sizes[number]
            if active != self.active:
                self._take(active)
            rows = {name: _corner(t, active, width) for name, t in rows.items()}
            x, y, features = rows.pop("x"), rows.pop("y"), rows.pop(FEATURES, None)
            weight = ones[active, width] if self.even else _corner(mask[number], active, width)
            seen = None if features is None else Seen(x, features)
            batch = Batch(x, y, weight, seeds[number][:active], self.first.parts, rows, self.constant, seen)
            if not self._checked and (own := self._filled_up(number, active, width)) is not None:
                self._refuse_if_fillers_count(batch, *own)
            yield batch

    def _features(self, x: Tensor) -> Tensor:
        """What the heads see of everybody's samples; of an encoder all share in one pass."""
        model = self.first.client.model
        resting = [[t for name, t in sorted(fit.params.items()) if not name.startswith("head.")] for fit in self.asked]
        if not model.mixes and len({tuple([t.data_ptr() for t in tensors]) for tensors in resting}) == 1:
            return model.predict(self.first.params, x).features
        return torch.cat([model.predict(fit.params, fit.client.train.x).features for fit in self.asked])

    def _sizes(self) -> tuple[list[tuple[int, int]], bool]:
        """How many clients still train in each step, and the samples of the largest minibatch among theirs.

        And whether all minibatches of a step are always of one size.
        """
        sizes = np.zeros((len(self.steps), len(self.steps[0])), np.int64)
        for client, steps in enumerate(self.steps):
            sizes[client, : len(steps)] = steps.sizes
        largest = sizes.max(0)
        even = bool(((sizes == largest) | (sizes == 0)).all())
        return list(zip((sizes > 0).sum(0).tolist(), largest.tolist(), strict=True)), even

    def _schedule(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the pooled data ``[steps, clients, batch]``, and seeds ``[steps, clients]``."""
        longest, width = len(self.steps[0]), max(steps.samples.shape[1] for steps in self.steps)
        index = np.zeros((longest, len(self.steps), width), np.int64)
        noise = np.zeros(index.shape[:2], np.int64)
        begin = 0
        for client, (steps, fit) in enumerate(zip(self.steps, self.asked, strict=True)):
            many, own = steps.samples.shape
            index[:many, client, :own] = begin + steps.samples  # of a row that does not count: any
            noise[:many, client] = steps.noise
            begin += fit.client.samples
        return index, noise

    def _mask(self, shape: tuple[int, ...]) -> np.ndarray:
        """Which of the rows count."""
        mask = np.zeros(shape, np.float32)
        for client, steps in enumerate(self.steps):
            many, own = steps.samples.shape
            mask[:many, client, :own] = np.arange(own) < steps.sizes[:, None]
        return mask

    def loss(self, batch: Batch) -> Tensor:
        return self._losses(self.now, batch)

    def _losses(self, params: Params, batch: Batch) -> Tensor:
        columns = [batch.x, batch.y, batch.mask, batch.noise, dict(batch.beside), dict(batch.given)]
        one = partial(_loss_of_one, self.first.loss, self.first.parts)
        with Client.one_for_all():
            if batch.seen is None:
                return torch.vmap(one)(params, *columns)
            return torch.vmap(one)(params, *columns, batch.seen.features)

    def _filled_up(self, number: int, active: int, width: int) -> tuple[int, int] | None:
        """A client whose minibatch of a step was filled up, and how many of its samples count."""
        sizes = [int(steps.sizes[number]) for steps in self.steps[:active]]
        return None if min(sizes) == width else (sizes.index(min(sizes)), min(sizes))

    def _refuse_if_fillers_count(self, batch: Batch, client: int, size: int) -> None:
        """A loss that ignores ``batch.mask``, or a layer that mixes samples, would count what was only filled in."""
        self._checked = True
        params = {name: t.detach().clone() for name, t in self.now.items()}
        own = {name: t[client].clone() for name, t in params.items()}
        rows = {name: t[client, :size] for name, t in batch.beside.items()}
        given = {name: t[client] for name, t in batch.given.items()}
        x = batch.x[client, :size]
        seen = None if batch.seen is None else Seen(x, batch.seen.features[client, :size])
        alone = Batch(
            *(x, batch.y[client, :size], batch.mask[client, :size], batch.noise[client]),
            *(batch.parts, rows, given, seen),
        )
        with torch.no_grad():
            together = self._losses(params, batch)[client]
            pairs = [(together, self.first.loss(own, alone))]
        pairs += [(params[name][client], own[name]) for name in self.first.client.model.buffers]
        if not all(torch.allclose(a, b, rtol=1e-3, atol=1e-4, equal_nan=True) for a, b in pairs):
            raise NotAlike("its loss or its network counts samples that batch.mask says do not count")

    def results(self) -> list[Fitted]:
        losses = torch.zeros(len(self.asked), device=self.device)
        for many, values in groupby(self.noted, len):
            losses[:many] += torch.stack(list(values)).sum(0)
        sums, found = losses.tolist(), {}
        for place, number in enumerate(self.order):
            params = {
                name: self.asked[place].params[name].detach()
                if name in self.resting
                else _own_copy(self._narrow(name, t[place].detach(), place))
                for name, t in self.own.items()
            }
            steps = len(self.steps[place])
            loss = sums[place] / steps if steps else float("nan")
            found[number] = Fitted(params, partial(self._memory, place), loss, steps)
        return [found[number] for number in range(len(found))]

    def _memory(self, place: int) -> Bundle:
        return {
            slot: {name: _own_copy(self._narrow(name, t[place], place)) for name, t in values.items()}
            for slot, values in self.all_memory.items()
        }


def _ordered_as_gradient(stack: Tensor) -> Tensor:
    """Weights of linear layers ``[clients, out, in]`` in the order of memory in which their gradients will come."""
    return stack.transpose(1, 2).contiguous().transpose(1, 2) if stack.ndim == 3 else stack


def _corner(t: Tensor, active: int, width: int) -> Tensor:
    """The first rows and columns, which are usually all."""
    return t if t.shape[:2] == (active, width) else t[:active, :width].contiguous()


def _gathered(pool: Mapping[str, Tensor], index: Tensor, unread: Set[str]) -> Iterator[dict[str, Tensor]]:
    """The rows of every step, for ``index`` ``[steps, ...]``; those of several steps are looked up at once.

    In place of ``unread`` ones, of which there may be more with time, there is nothing to read: NaN.
    """
    each = index[0].numel() * sum(t[0].numel() * t.element_size() for t in pool.values())
    many = max(1, LOOKED_UP // max(1, each))
    for first in range(0, len(index), many):
        some = index[first : first + many]
        rows = {
            name: t.new_full((), torch.nan).expand(*some.shape, *t.shape[1:])
            if name in unread and t.is_floating_point()
            else t.index_select(0, some.reshape(-1)).view(*some.shape, *t.shape[1:])
            for name, t in pool.items()
        }
        for each_of_one in zip(*(t.unbind() for t in rows.values()), strict=True):
            yield dict(zip(rows, each_of_one, strict=True))


def _loss_of_one(
    loss: Loss,
    parts: tuple[str, ...],
    params: Params,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    noise: Tensor,
    beside: Params,
    given: Params,
    features: Tensor | None = None,
) -> Tensor:
    return loss(
        params, Batch(x, y, mask, noise, parts, beside, given, features if features is None else Seen(x, features))
    )


def _own_copy(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _stacked(each: Sequence[Mapping[str, Tensor]]) -> Params:
    return {name: torch.stack([values[name].detach() for values in each]) for name in each[0]}


def _copy(tensor: Tensor, like: Tensor | None) -> Tensor:
    return tensor.clone() if like is None or tensor.shape != like.shape else torch.empty_like(like).copy_(tensor)
