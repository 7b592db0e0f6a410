"""Faults for drills: what is on. Those of the core travel to it; the others work in the API process."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.protocol.messages import SetFaults


class Faults(msgspec.Struct, frozen=True, kw_only=True):
    """None is off. Limits are checked at the HTTP edge."""

    slow_steps: float | None = None  # each step takes this many times as long
    hung_core: bool | None = None  # the core does nothing more and says nothing
    wrong_numbers: bool | None = None  # drawn tokens are not those of the model
    kv_leak: int | None = None  # KV blocks lost at each step
    oom_next: int | None = None  # so many of the next steps run out of memory
    prefix_cache_off: bool | None = None  # nothing is found in the prefix cache
    slow_tokenizer: float | None = None  # seconds that tokenising takes longer
    metrics_frozen: bool | None = None  # /metrics answers what it answered when this was set
    metrics_missing: tuple[str, ...] | None = None  # beginnings of names of series that are left out
    metrics_nan: tuple[str, ...] | None = None  # ... whose values are NaN
    metrics_renamed: tuple[str, ...] | None = None  # ... that end in _renamed

    def changed(self, changes: dict[str, Any]) -> Faults:
        """With these values; None, False, 0 and empty turn a fault off."""
        return msgspec.structs.replace(self, **{name: value or None for name, value in changes.items()})

    def for_core(self) -> SetFaults:
        return SetFaults(
            slow_steps=self.slow_steps,
            hung_core=bool(self.hung_core),
            wrong_numbers=bool(self.wrong_numbers),
            kv_leak_blocks=self.kv_leak or 0,
            oom_steps=self.oom_next or 0,
            prefix_cache_off=bool(self.prefix_cache_off),
        )

    def without_core(self) -> Faults:
        """What is left when the core is gone: its faults die with it."""
        return Faults(
            slow_tokenizer=self.slow_tokenizer,
            metrics_frozen=self.metrics_frozen,
            metrics_missing=self.metrics_missing,
            metrics_nan=self.metrics_nan,
            metrics_renamed=self.metrics_renamed,
        )

    def after_out_of_memory(self, count: int) -> Faults:
        """`oom_next` counts down as it strikes."""
        return self.changed({"oom_next": max(0, (self.oom_next or 0) - count)})

    def shown(self) -> dict[str, object]:
        """What is on; `slow_steps` also when it is off."""
        on = {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}
        return {"slow_steps": self.slow_steps, **on}
