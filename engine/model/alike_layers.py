"""Launches of layers that are alike: made from those of two layers, where Python would go through each.

What Python does for a prompt's launches grows with the layers and leaves all threads but one idle. Yet two layers'
tasks differ in what is the layer's own alone, its weights and its part of the KV cache, whose addresses stay: results
lie in two buffers of the arena that layers take in turns, so that every second layer reads and writes the same places.
So a step goes through the first four or five layers, and the others are copies of the third and the fourth.

A layer's launches are those from behind the attention of the layer before it to its own attention. What is a layer's
own in them is learned rather than told: where two whole steps, of different numbers of tokens, differ from layer to
layer in the same fields by the same values, those are the layer's. Layers that take other kernels, or launches more or
less, are not alike, and neither are those of several windows: their plans are made anew for each step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kernels.cpu.recorder import Launch

ALIKE_FROM = 4  # the first layer that is a copy, of layer 2, as every even one; odd ones are copies of layer 3

Changes: TypeAlias = tuple[tuple[tuple[int, int], ...], ...]  # of one layer: by launch, fields and what they are


def first_layers(num_layers: int) -> int | None:
    """How many layers are gone through, so that the last of them lies where the model's last one does; None: all."""
    count = ALIKE_FROM + (num_layers - ALIKE_FROM) % 2
    return count if count < num_layers else None


@dataclass(slots=True)
class _Pattern:
    rows: int  # of the step that it was learned from
    changes: tuple[Changes, ...] | None  # by layer, from `ALIKE_FROM` on; None: they are not alike
    is_sure: bool = False


class AlikeLayers:
    """What is known of one decoder's layers, by kernels and threads that a step's first layers take.

    `begins`: where each layer's launches begin among a step's, and where the last one's end.
    """

    def __init__(self) -> None:
        self._patterns: dict[tuple[tuple[int, int], ...], _Pattern] = {}

    def learn(self, launches: Sequence[Launch], begins: Sequence[int], rows: int) -> None:
        """Of a step's launches that went through all layers."""
        key, changes = _kernels_of(launches, begins), _changes_of(launches, begins)
        known = self._patterns.get(key)
        if known is None or (known.rows == rows and not known.is_sure):
            self._patterns[key] = _Pattern(rows, changes)
        elif known.changes != changes:
            known.changes = None
        else:
            known.is_sure = changes is not None

    def complete(self, launches: Sequence[Launch], begins: Sequence[int]) -> list[Launch] | None:
        """The launches of a whole step, of those of its first layers; None where that is not known."""
        known = self._patterns.get(_kernels_of(launches, begins))
        if known is None or known.changes is None or not known.is_sure:
            return None
        found = list(launches[: begins[ALIKE_FROM]])
        twins = [launches[begins[layer] : begins[layer + 1]] for layer in (ALIKE_FROM - 2, ALIKE_FROM - 1)]
        for index, changes in enumerate(known.changes):
            for launch, changed in zip(twins[index % 2], changes, strict=True):
                fields = launch.fields[:]
                for at, value in changed:
                    fields[at] = value
                found.append(launch._replace(fields=fields))
        return found + list(launches[begins[-1] :])


def _kernels_of(launches: Sequence[Launch], begins: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple([(launch.function, launch.num_threads) for launch in launches[: begins[ALIKE_FROM]]])


def _changes_of(launches: Sequence[Launch], begins: Sequence[int]) -> tuple[Changes, ...] | None:
    """Of each layer, where it differs from its twin; None if one is none."""
    found = []
    for layer in range(ALIKE_FROM, len(begins) - 1):
        twin = ALIKE_FROM - 2 + layer % 2
        own, like = launches[begins[layer] : begins[layer + 1]], launches[begins[twin] : begins[twin + 1]]
        if [_kernel_of(launch) for launch in own] != [_kernel_of(launch) for launch in like]:
            return None
        pairs = [enumerate(zip(a.fields, b.fields, strict=True)) for a, b in zip(own, like, strict=True)]
        found.append(tuple([tuple([(at, a) for at, (a, b) in fields if a != b]) for fields in pairs]))
    return tuple(found)


def _kernel_of(launch: Launch) -> tuple[int, int, int]:
    return launch.function, launch.num_threads, len(launch.fields)
