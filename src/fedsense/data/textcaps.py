"""FLIC's TextCaps: each client holds vectors of images or of captions, short of some coordinates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedsense.data.arrays import NUMBERS, read_npy, read_npz, wanted
from fedsense.data.cache import content_key
from fedsense.data.card import Card
from fedsense.data.files import File, Files, find_root
from fedsense.data.sources import Mixed, Options, each_split
from fedsense.data.splits import Split, client_data, split_client
from fedsense.data.windows import collected
from fedsense.errors import UserError, nearest
from fedsense.federation import ClientData
from fedsense.work import stream

Array = NDArray[Any]
CLASSES = ("bottle", "car", "food", "book")
PARTS = ("image", "text", "label")


@dataclass(frozen=True)
class TextCapsOptions(Options):
    pruned: float = 0.1  # a client lacks up to this share of the coordinates
    test: float = 0.2


class TextCaps(Mixed):
    """Images and captions, half of the clients each."""

    options: ClassVar[type[Options]] = TextCapsOptions
    classes: ClassVar[tuple[str, ...]] = CLASSES
    card = Card(
        name="textcaps",
        title="TextCaps",
        what="photographs and their captions of four kinds of object, as vectors of networks trained before",
        who="photographs of the public on Flickr (OpenImages), captions by paid annotators",
        licence="CC BY 4.0 is given for TextCaps, which was not confirmed",
        citation="O. Sidorov, R. Hu, M. Rohrbach, A. Singh, 'TextCaps: a dataset for image captioning with reading "
        "comprehension', ECCV 2020",
        address="https://textvqa.org/textcaps/",
        layout="textcaps.npz with image [n, 512], text [n, 768], label [n] (0 to 3 of bottle, car, food, book, or of "
        "names [4], if given); or image.npy, text.npy and label.npy",
        sizes="in the paper 14,977 pairs of four classes",
        client="one of 100 (or 200) to whom vectors of images or of captions, of 2 (or 3) classes, are dealt",
        paper="FLIC, Table 3; with CLIP's vectors (both of 512) and pruned = 0, Table 4",
        notes="The vectors are not published, and this project does not compute them: make them with a ResNet18 (512 "
        "values before its last layer) and BERT (768), one row a pair in the same order, and save them with "
        "numpy.savez. A pair is trained or tested on in both sources (random, alike in each class). A client lacks a "
        "random number of coordinates, up to a tenth, drawn for it alone: two clients may by chance be of one width. "
        "The authors' code leaves out up to 32 of 512 and 38 of 768.",
        by_hand="the vectors must be computed from the images and captions of the official page; see the notes",
    )

    def parse(self, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super().parse(given)
        if not 0 <= options["pruned"] < 1:
            raise UserError(
                f"dataset '{self.name}': pruned = {options['pruned']:g}; give a share from 0 up to, not including, 1",
                about="pruned",
            )
        Split("random", options["test"], options["val"])
        return options

    def content(self, options: Mapping[str, Any]) -> str:
        return content_key(_files(options))

    def sources(self, options: Mapping[str, Any]) -> dict[str, ClientData]:
        image, text, label = _read(_files(options))
        pairs = collected("all", np.zeros((len(label), 0), np.float32), label)
        # val is a share of what is not tested on, as in the other datasets of several sources
        shares = Split("random", options["test"], options["val"] * (1 - options["test"]))
        side = split_client(pairs, shares, options["seed"])
        return {
            name: client_data(collected(name, np.asarray(x, np.float32), label), side)
            for name, x in (("image", image), ("text", text))
        }

    def finished(self, client: ClientData, options: Mapping[str, Any]) -> ClientData:
        (width,) = client.input_shape
        rng = stream(options["seed"], "textcaps", "pruned", client.id)
        gone = int(rng.integers(0, min(int(width * options["pruned"]), width - 1) + 1))
        kept = torch.from_numpy(np.sort(rng.permutation(width)[gone:]))
        return each_split(client, lambda x: x[:, kept])


def _files(options: Mapping[str, Any]) -> Files:
    root = find_root("textcaps", options["root"], "`fedsense data describe textcaps` says how to make it")
    return Files(root, ("textcaps*.npz", *(f"{part}.npy" for part in PARTS)), TextCaps.card.layout)


def _read(files: Files) -> tuple[Array, Array, Array]:
    """Image vectors, caption vectors and class numbers, checked."""
    order: tuple[str, ...] = CLASSES
    if files.some("textcaps*.npz"):
        places = [files.one("textcaps*.npz")] * len(PARTS)
        arrays = read_npz(places[0])
        image, text, label = wanted(places[0], arrays, *PARTS)
        order = _order(places[0], arrays["names"]) if "names" in arrays else CLASSES
    else:
        places = [files.one(f"{part}.npy") for part in PARTS]
        image, text, label = (read_npy(file) for file in places)
    if label.ndim != 1 or label.dtype.kind not in "iu" or not len(label):
        raise places[2].wrong(f"label is {label.dtype} of shape {list(label.shape)}, expected whole numbers [n]")
    for name, file, x in zip(PARTS[:2], places, (image, text), strict=False):
        if x.ndim != 2 or len(x) != len(label) or x.dtype.kind not in NUMBERS or not x.shape[1]:
            raise file.wrong(
                f"{name} is {x.dtype} of shape {list(x.shape)}, expected numbers [{len(label)}, width], a row a label"
            )
    if (wrong := (label < 0) | (label >= len(order))).any():
        row = int(np.argmax(wrong))
        raise places[2].wrong(f"label {label[row]} of row {row} is none of 0 to {len(order) - 1}")
    return image, text, np.array([CLASSES.index(name) for name in order])[label]


def _order(file: File, names: Array) -> tuple[str, ...]:
    order = tuple(str(name).lower() for name in names.ravel())
    for name in order:
        if name not in CLASSES:
            raise file.wrong(f"names '{name}', which is none of the classes; {nearest(name, CLASSES)}")
    return order


DATASET = TextCaps()
