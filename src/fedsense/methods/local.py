"""Local (SOLO): every client learns alone; min over w_i of L_i(w_i).

server  –        client  model
down    –        up      –
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from fedsense.bundle import Bundle, Params
from fedsense.client import Client
from fedsense.method import Method, Reply
from fedsense.ops import classify
from fedsense.training import fit
from fedsense.work import Work


@dataclass(frozen=True, kw_only=True)
class Local(Method):
    """Every client learns alone; what sharing has to beat."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "baseline of all five papers (SOLO in ProtoHAR)"
    group: ClassVar[str] = "references"
    equation: ClassVar[str] = "min over wᵢ of Lᵢ(wᵢ), for every client i"
    assumes: ClassVar[str] = "nothing"
    use: ClassVar[str] = "beside every other method: what sharing has to beat"

    def init_client(self, client: Client, params: Params, down: Bundle, work: Work) -> Bundle:
        return {"model": params}

    def local_update(self, client: Client, state: Bundle, down: Bundle, work: Work) -> Reply:
        done = fit(classify(client), state["model"], client, work.epochs(self.epochs), self.optim())
        return Reply(state={"model": done.params}, metrics={"loss": done.loss})

    def aggregate(self, server: Bundle, uploads: Mapping[str, Bundle]) -> Bundle:
        return server
