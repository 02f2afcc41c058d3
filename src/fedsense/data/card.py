"""What a person should know of a dataset, and where it can be got."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Download:
    """A file to fetch; ``name`` is what it is saved as. What is not known of it is not checked."""

    url: str
    name: str
    bytes: int | None = None
    md5: str | None = None
    sha256: str | None = None


@dataclass(frozen=True)
class Card:
    """What a person should know before using a dataset; ``fedsense data describe`` prints it."""

    name: str
    title: str
    what: str
    who: str
    licence: str
    citation: str
    address: str
    layout: str
    sizes: str
    client: str  # what a client is
    paper: str = ""  # which of the five papers use it
    notes: str = ""
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""  # why it cannot be fetched, and what to do
    synthetic: bool = False
