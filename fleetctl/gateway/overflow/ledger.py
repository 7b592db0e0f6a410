"""What overflow has spent in this hour and this day, on disk, so that no restart and no second process forgets it.

An upper bound of a request is reserved, and on disk, before a byte of it leaves the house; what it really took is
settled afterwards. A reservation that is never settled (a crash, an answer without usage) stays spent. All processes
of one run folder share the file under a lock. A file that can't be read is no budget of which nothing is spent:
nothing goes out until a person looked at it.
"""

from __future__ import annotations

import fcntl
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleetctl.kit.errors import BadInputError
from fleetctl.kit.whole_file import write_whole
from fleetctl.settings.overflow import OverflowEndpoint

FILE_NAME = "overflow-budget.json"
HOUR_S = 3600
DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Amount:
    """Tokens and money; money in millionths of the unit that prices are in."""

    tokens: int
    micros: int


@dataclass(frozen=True, slots=True)
class Reservation:
    """What was taken of an endpoint's budget before its request went out. Starts are Unix seconds."""

    endpoint: str
    amount: Amount
    hour_start: int
    day_start: int


@dataclass(frozen=True, slots=True)
class Exhausted:
    """The budget that the request does not fit into, in words."""

    limit: str


class _Window(BaseModel):
    model_config = ConfigDict(extra="forbid")

    start: int
    tokens: int = Field(default=0, ge=0)
    micros: int = Field(default=0, ge=0)

    def at(self, now: float, length_s: int) -> _Window:
        """The window that `now` lies in: this one also when the clock went back."""
        start = int(now) // length_s * length_s
        return self if start <= self.start else _Window(start=start)

    def add(self, amount: Amount) -> None:
        self.tokens = max(0, self.tokens + amount.tokens)
        self.micros = max(0, self.micros + amount.micros)


class _Spent(BaseModel):
    model_config = ConfigDict(extra="forbid")

    hour: _Window
    day: _Window


class _Stored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: int = 1
    endpoints: dict[str, _Spent] = Field(default_factory=dict)


class Ledger:
    """The budgets' file. Threading: its methods block for the disk; call them off the event loop."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / FILE_NAME

    def reserve(self, endpoint: OverflowEndpoint, amount: Amount, now: float) -> Reservation | Exhausted:
        """Take the amount out of the budget, on disk when this returns. Raises BadInputError, OSError."""
        with self._locked():
            stored = self._read()
            spent = _current(stored, endpoint.name, now)
            limit = _exceeded(endpoint, spent, amount)
            if limit is not None:
                return Exhausted(limit)
            for window in (spent.hour, spent.day):
                window.add(amount)
            self._write(stored, endpoint.name, spent)
            return Reservation(endpoint.name, amount, spent.hour.start, spent.day.start)

    def settle(self, reservation: Reservation, used: Amount, now: float) -> None:
        """Replace what was reserved by what was used. Of a window that is over nothing is given back.

        Raises BadInputError, OSError.
        """
        change = Amount(used.tokens - reservation.amount.tokens, used.micros - reservation.amount.micros)
        with self._locked():
            stored = self._read()
            spent = _current(stored, reservation.endpoint, now)
            for window, start in ((spent.hour, reservation.hour_start), (spent.day, reservation.day_start)):
                if window.start == start:
                    window.add(change)
            self._write(stored, reservation.endpoint, spent)

    def left_ratios(self, endpoint: OverflowEndpoint, now: float) -> dict[str, float]:
        """The share of hour and day that is left, of tokens or money whichever is less. Raises as `reserve`."""
        spent = _current(self._read(), endpoint.name, now)
        return {
            "hour": _left(spent.hour, endpoint.hourly_max_tokens, endpoint.hourly_max_cost),
            "day": _left(spent.day, endpoint.daily_max_tokens, endpoint.daily_max_cost),
        }

    def _read(self) -> _Stored:
        remedy = "look at what was spent, then mend or delete the file: deleted, hour and day begin with nothing spent"
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return _Stored()  # the first request that ever goes out
        except (OSError, UnicodeDecodeError) as error:
            raise BadInputError(
                f"{self.path}: {getattr(error, 'strerror', None) or 'not text'}", remedy=remedy
            ) from error
        try:
            stored = _Stored.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "file"
            raise BadInputError(f"{self.path}: {place}: {first['msg']}", remedy=remedy) from error
        if stored.format != 1:
            raise BadInputError(f"{self.path}: unknown format {stored.format}", remedy=remedy)
        return stored

    def _write(self, stored: _Stored, name: str, spent: _Spent) -> None:
        stored.endpoints[name] = spent
        write_whole(self.path, stored.model_dump_json(), is_durable=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path.with_suffix(".lock"), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def micros_of(tokens: int, cost_per_million: float) -> int:
    """The price of so many tokens in millionths, rounded up: a million tokens at a price of 1 are a million of them."""
    return math.ceil(tokens * cost_per_million)


def _current(stored: _Stored, name: str, now: float) -> _Spent:
    zero = _Window(start=0)
    spent = stored.endpoints.get(name) or _Spent(hour=zero, day=zero)
    return _Spent(hour=spent.hour.at(now, HOUR_S), day=spent.day.at(now, DAY_S))


def _exceeded(endpoint: OverflowEndpoint, spent: _Spent, amount: Amount) -> str | None:
    limits = (
        ("hourly_max_tokens", spent.hour.tokens + amount.tokens, endpoint.hourly_max_tokens),
        ("daily_max_tokens", spent.day.tokens + amount.tokens, endpoint.daily_max_tokens),
        ("hourly_max_cost", (spent.hour.micros + amount.micros) / 1e6, endpoint.hourly_max_cost),
        ("daily_max_cost", (spent.day.micros + amount.micros) / 1e6, endpoint.daily_max_cost),
    )
    return next((name for name, would_be, limit in limits if limit is not None and would_be > limit), None)


def _left(window: _Window, max_tokens: int | None, max_cost: float | None) -> float:
    shares = [1.0]
    if max_tokens is not None:
        shares.append(1 - window.tokens / max_tokens if max_tokens else 0.0)
    if max_cost is not None:
        shares.append(1 - window.micros / 1e6 / max_cost if max_cost else 0.0)
    return max(0.0, min(shares))
