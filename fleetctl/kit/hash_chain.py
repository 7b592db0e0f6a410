"""Rows whose hashes hold each other: who changes, removes or adds one in the middle breaks all that follow.

A row's hash is SHA-256 over the hash before it and the row's own fields as canonical JSON. Anybody can compute it, so
the chain shows that the rows are those that a known head stands for; a head that is kept elsewhere shows that they are
those that were written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

GENESIS = "0" * 64
"""The hash before the first row."""


@dataclass(frozen=True, slots=True)
class ChainLink:
    """The end of a chain, or of the part that is not kept any more: a sequence number and the hash up to it."""

    seq: int = 0
    hash: str = GENESIS


@dataclass(frozen=True, slots=True)
class BrokenChain:
    """The first row that is not what was written, and why."""

    seq: int
    why: str


def next_hash(before: str, fields: Mapping[str, Any]) -> str:
    """The hash of a row with these fields, which JSON takes, after the row whose hash is `before`."""
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(f"{before}\n{text}".encode()).hexdigest()


def follow_chain(rows: Iterable[tuple[Mapping[str, Any], str]], after: ChainLink) -> ChainLink | BrokenChain:
    """Where the chain stands after `rows`, oldest first, or where it breaks. A row is its fields with `seq`, and its
    hash."""
    link = after
    for fields, own_hash in rows:
        seq = int(fields["seq"])
        if seq != link.seq + 1:
            return BrokenChain(link.seq + 1, f"row {link.seq + 1} is missing: row {seq} follows row {link.seq}")
        if next_hash(link.hash, fields) != own_hash:
            return BrokenChain(seq, f"row {seq} is not what was written")
        link = ChainLink(seq, own_hash)
    return link


def meets_head(link: ChainLink, head: ChainLink) -> BrokenChain | None:
    """What is wrong when all rows were followed to `link` and the chain's head is known; None when they meet."""
    if link.seq < head.seq:
        return BrokenChain(link.seq + 1, f"rows {link.seq + 1} to {head.seq} are missing at the end")
    if link != head:
        return BrokenChain(link.seq, f"row {link.seq} is not the head that was recorded, {head.seq}")
    return None
