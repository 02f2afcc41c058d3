"""FLIC's digits: each client holds images of MNIST or of USPS, of some of the ten classes, at their own sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor
from torch.nn.functional import interpolate

from fedsense.data import mnist, usps
from fedsense.data.cache import content_key, key_of
from fedsense.data.card import Card
from fedsense.data.dataset import Read
from fedsense.data.files import Files, find_root
from fedsense.data.sources import Mixed, Options, each_split
from fedsense.data.splits import Split, client_data, split_client
from fedsense.errors import UserError
from fedsense.federation import ClientData

SOURCES: dict[str, Read] = {"mnist": mnist.DATASET, "usps": usps.DATASET}


@dataclass(frozen=True)
class DigitsOptions(Options):
    classes_per_client: int = 3
    mnist: str | None = None
    usps: str | None = None
    resize: bool = False  # USPS at MNIST's 28 × 28: the paper's Digits-Resize


class Digits(Mixed):
    """MNIST and USPS, half of the clients each."""

    options: ClassVar[type[Options]] = DigitsOptions
    classes: ClassVar[tuple[str, ...]] = mnist.DIGITS
    card = Card(
        name="digits",
        title="Digits (MNIST and USPS)",
        what="grey images of handwritten digits, 28 × 28 of MNIST and 16 × 16 of USPS",
        who="see mnist and usps",
        licence="see mnist and usps",
        citation="A. Rakotomamonjy, M. Vono, H. J. Medina Ruiz, L. Ralaivola, 'Personalised federated learning on "
        "heterogeneous feature spaces', TMLR 2024; and those of mnist and usps",
        address=f"{mnist.DATASET.card.address} and {usps.DATASET.card.address}",
        layout="the files of mnist and of usps, in one folder (root), or each in its own (mnist, usps)",
        sizes="60,000 + 7,291 training and 10,000 + 2,007 test images of 10 classes",
        client="one of 100 (or 200) to whom images of one source and of 3 (or 5) classes are dealt",
        paper="FLIC, Tables 3 and 4",
        notes="Half of the clients, drawn at random, hold MNIST, the others USPS. Each class of a source is held by "
        "nearly the same number of clients, who share all of its images evenly; the authors' code deals each source "
        "to all clients and leaves half of it unused. Training images come of the official training part, test "
        "images of the official test part. resize brings USPS to 28 × 28 by bilinear interpolation. Grey values go "
        "from 0 (paper) to 1 (ink); the authors' go from -1 to 1.",
        downloads=(*mnist.DOWNLOADS, *usps.DOWNLOADS),
    )

    def places(self) -> tuple[str, ...]:
        return ("root", *SOURCES)

    def content(self, options: Mapping[str, Any]) -> str:
        return key_of([content_key(_files(name, options)) for name in SOURCES])

    def sources(self, options: Mapping[str, Any]) -> dict[str, ClientData]:
        found = {}
        for name, dataset in SOURCES.items():
            files = _files(name, options)
            (pool,) = dataset.gather(files, content_key(files), {})
            side = split_client(pool, Split("official", val=options["val"], test=0.0), options["seed"])
            found[name] = client_data(pool, side)
        if options["resize"]:
            found["usps"] = each_split(found["usps"], _enlarged)
        return found


def _files(name: str, options: Mapping[str, Any]) -> Files:
    return SOURCES[name].files({"root": options[name] or options["root"] or _together()})


def _together() -> str | None:
    """The folder of both, if there is one where datasets are kept."""
    try:
        return str(find_root("digits", None))
    except UserError:
        return None


def _enlarged(x: Tensor) -> Tensor:
    size = (mnist.SIDE, mnist.SIDE)
    return interpolate(x, size, mode="bilinear", align_corners=False) if len(x) else x.new_zeros(0, 1, *size)


DATASET = Digits()
