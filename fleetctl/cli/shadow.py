"""`shadow list`: what each shadow has found so far, by gateway. `shadow` and `shadow remove` are verbs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import typer
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleetctl.cli.context import call, command_group
from fleetctl.cli.output import Column, ListOutput, ListOutputOption, count, print_rows, stderr
from fleetctl.cli.plain_request import ask_json
from fleetctl.kit.errors import FleetctlError
from fleetctl.traffic_rule import TrafficRule
from fleetctl.wire.gateway import Gateway

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

LIMIT_S = 5.0
UNKNOWN = "-"


class ShadowRow(BaseModel):
    """One shadow at one gateway, as that one reports it. `gateway` None: no gateway told anything of the rule yet."""

    model_config = ConfigDict(extra="ignore")

    rule: str
    gateway: str | None = None
    orders: str = ""
    made_by: str = ""
    expires_at: float | None = None
    in_force: bool = True
    requests: int | None = None
    compared: int | None = None
    measured_only: int | None = None
    exact: int | None = None
    mean_agreement: float | None = None
    mean_tokens: dict[str, float | None] = Field(default_factory=dict)
    ttft_p50_s: dict[str, float | None] = Field(default_factory=dict)
    errors: int | None = None
    results: dict[str, int] = Field(default_factory=dict)
    differing: list[str] = Field(default_factory=list)


class _Reports(BaseModel):
    shadows: list[ShadowRow] = Field(default_factory=list)


def register(app: typer.Typer) -> None:
    """Add the command."""

    @command_group(app, "shadow").command("list")
    def list_shadows(output: ListOutputOption = ListOutput.table) -> None:
        """List shadows and what each gateway found: equal words, agreement, TTFT, errors. -o wide: the rest.

        Words are compared for temperature 0 or a seed only; of other requests length and TTFT are.
        """
        rules, gateways = call(_look_up)
        rows: list[ShadowRow] = []
        for gateway in gateways:
            try:
                rows += _reported(gateway)
            except (FleetctlError, ValidationError) as error:
                told = str(error).splitlines()[0]
                stderr().print(f"no report from gateway {gateway.name} ({gateway.url}): {told}", markup=False)
        known = {row.rule for row in rows}
        rows += [_unreported(rule) for rule in rules if rule.kind == "shadow" and rule.id not in known]
        print_rows(rows, COLUMNS, output, empty="no shadows")


async def _look_up(client: ControllerClient) -> tuple[list[TrafficRule], list[Gateway]]:
    return await client.traffic_rules(), await client.gateways()


def _reported(gateway: Gateway) -> list[ShadowRow]:
    """Raises FleetctlError, ValidationError."""
    told = ask_json(f"{gateway.url.rstrip('/')}/gateway/shadow", limit_s=LIMIT_S)
    found = _Reports.model_validate(told).shadows
    return [row.model_copy(update={"gateway": gateway.name}) for row in found]


def _unreported(rule: TrafficRule) -> ShadowRow:
    return ShadowRow(rule=rule.id, orders=rule.spec.words, made_by=rule.made_by, expires_at=rule.expires_at)


def _ends_in(row: ShadowRow) -> str:
    if not row.in_force:
        return "ended"
    return UNKNOWN if row.expires_at is None else f"{max(0.0, row.expires_at - time.time()) / 60:.0f}m"


def _pair(values: dict[str, float | None], form: str, factor: float = 1.0) -> str:
    """`user/shadow`."""
    both = (values.get("user"), values.get("shadow"))
    return "/".join(UNKNOWN if value is None else format(value * factor, form) for value in both)


def _left_out(row: ShadowRow) -> str:
    skipped = {
        name: count
        for name, count in row.results.items()
        if count and name not in ("compared", "measured", "refused", "failed")
    }
    return ", ".join(f"{name} {count}" for name, count in skipped.items()) or UNKNOWN


def _volatile(title: str, read: Any, key: Any, *, wide: bool = False) -> Column:
    return Column(title, read, right=True, sort_key=key, is_volatile=True, wide=wide)


COLUMNS = [
    Column("rule", lambda r: r.rule),
    Column("gateway", lambda r: r.gateway or UNKNOWN),
    _volatile("ends", _ends_in, lambda r: r.expires_at),
    _volatile("sent", lambda r: count(r.requests), lambda r: r.requests),
    _volatile("compared", lambda r: count(r.compared), lambda r: r.compared),
    _volatile("exact", lambda r: count(r.exact), lambda r: r.exact),
    _volatile(
        "agree",
        lambda r: UNKNOWN if r.mean_agreement is None else f"{r.mean_agreement:.1%}",
        lambda r: r.mean_agreement,
    ),
    _volatile("TTFT ms", lambda r: _pair(r.ttft_p50_s, ".0f", 1000), lambda r: r.ttft_p50_s.get("shadow")),
    _volatile("errors", lambda r: count(r.errors), lambda r: r.errors),
    _volatile("tokens", lambda r: _pair(r.mean_tokens, ".1f"), lambda r: r.mean_tokens.get("shadow"), wide=True),
    _volatile("left out", _left_out, lambda r: sum(r.results.values()), wide=True),
    Column("by", lambda r: r.made_by or UNKNOWN, wide=True),
    Column("orders", lambda r: r.orders, wide=True),
    Column("differing", lambda r: " ".join(r.differing) or UNKNOWN, wide=True),
]
