"""What every type of the API is: an answer (`Wire`) or a request (`Body`); and the answer to what went wrong."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Wire(BaseModel):
    """Answers ignore unknown keys (an older client meets a newer controller); requests below forbid them."""

    model_config = ConfigDict(extra="ignore", defer_build=True)


class Body(BaseModel):
    """A request; an unknown key is refused."""

    model_config = ConfigDict(extra="forbid", defer_build=True)


class Problem(Wire):
    """Every error answer of the controller."""

    error: str
    remedy: str | None = None
    exit_code: int = 1
