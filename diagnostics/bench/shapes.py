"""How a level changes over time: from its healthy value to another one, and back."""

from __future__ import annotations

import numpy as np

from alerts.arrays import Bools, Floats
from diagnostics.bench.case import ChangeForm


def weight(change: ChangeForm, since_onset: Floats) -> Floats:
    """How far the change has come at each time, 0 to 1. Shapes: (times,) to (times,)."""
    age = since_onset - change.at
    found = np.zeros_like(age)
    if change.shape == "ramp":
        found[:] = np.clip(age / max(change.over, 1e-9), 0, 1)
    elif change.shape == "spike":
        found[:] = np.clip(1 - np.abs(2 * age / max(change.over, 1e-9) - 1), 0, 1)
    elif change.shape == "sawtooth":
        found[:] = np.where(age >= 0, (age % change.over) / change.over, 0.0)
    elif change.shape == "pulse":
        found[:] = np.where(age >= 0, (age % change.over < change.over / 2) * 1.0, 0.0)
    else:
        found[:] = age >= 0
    if change.until is not None:
        found[since_onset >= change.until] = 0.0
    return found


def is_on(change: ChangeForm, since_onset: Floats) -> Bools:
    """When a change without a level (freeze, vanish, nan) holds."""
    return weight(change, since_onset) > 0


def changed(level: Floats, change: ChangeForm, share: Floats) -> Floats:
    """The level with this share of the change. Shapes: `level` (..., times), `share` (times,)."""
    if change.to is not None:
        target = np.full_like(level, change.to)
    elif change.times is not None:
        target = level * change.times
    else:
        target = level + (change.add or 0.0)
    found: Floats = level + share * (target - level)
    return found
