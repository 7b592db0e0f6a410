"""`diagnose --prometheus` and `--from`: the verdict over a past of any fleet, without a controller."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fleetctl.cli import output as out
from fleetctl.cli.context import current
from fleetctl.cli.diagnosis_words import confidence_words, verdict_fields
from fleetctl.cli.evidence_table import print_evidence
from fleetctl.cli.output import DATA, Output, print_data, print_fields
from fleetctl.cli.past_series import duration_s, moment, prometheus_rows, recorded_store, server_of
from fleetctl.kit.errors import BadInputError, UnreachableError
from fleetctl.wire.diagnosis import Diagnosis

if TYPE_CHECKING:
    from alerts.evaluation.rules import RuleGroup
    from alerts.history.prometheus_source import RangeSeries
    from diagnostics.past import Past, PastVerdict

ONSET_SPARE_S = 5400.0  # of history before `--last`, for what is compared with the past
MAX_UNTOLD = 6


class PastOptions(NamedTuple):
    """Which past, as it was typed."""

    prometheus: str | None
    recording: list[Path]
    at: str | None
    last: str
    only: str
    labels: list[str]
    token_file: Path | None
    ca_file: Path | None
    timeout: str


def diagnose_past(options: PastOptions, scope: Mapping[str, str], output: Output) -> int:
    """Prints the verdicts. The exit code: 0 a cause is named, 1 nothing is wrong, 4 not known."""
    from alerts.history.recording import wanted_names
    from diagnostics.other_days import against_other_days
    from diagnostics.past import Past, asked_of, rows_of_store
    from fleetctl.controller.content.load import load_content

    if bool(options.prometheus) == bool(options.recording):
        raise BadInputError("give one of --from and --prometheus", remedy="fleetctl diagnose --help")
    last_s = duration_s(options.last, "--last")
    rules = _rules(options.labels)
    content = load_content(current().settings().content)
    groups = list(content.groups)
    needed = [*groups, asked_of(content.knowledge)]
    began = time.monotonic()
    if options.prometheus:
        server = server_of(
            options.prometheus, options.token_file, options.ca_file, duration_s(options.timeout, "--timeout")
        )
        at = _at(options.at, time.time())

        def read(asked: Sequence[RuleGroup], start: float, end: float) -> list[RangeSeries]:
            return prometheus_rows(server, list(asked), start, end, options.only)

        past = Past(read(needed, at - last_s - ONSET_SPARE_S, at), rules)
    else:
        store, _, end = recorded_store(options.recording, needed)
        at = _at(options.at, end)

        def read(asked: Sequence[RuleGroup], start: float, end: float) -> list[RangeSeries]:
            return list(rows_of_store(store, start, end, wanted_names(asked)))

        past = Past(list(rows_of_store(store)), rules)
    if not past.nodes:
        raise UnreachableError(
            "there are no series of an engine that we know",
            remedy="engines are named by `fleetctl alerts coverage`; --label and --only say which series are meant",
        )
    _check_scope(past, scope)
    read_s = time.monotonic() - began
    verdict = past.diagnose(groups, content.knowledge, content.trees, content.no_tree, scope, [at], last_s)[0]
    try:
        where = past.known_scope(scope)
        verdict = against_other_days(past, verdict, where, groups, content.knowledge, read)
    except UnreachableError as error:  # the verdict stands without them
        out.stderr().print(f"this hour yesterday and a week ago could not be read: {error}", markup=False)
    if output in DATA:
        print_data([_as_data(one) for one in verdict.said], output)
    else:
        _print(verdict, at, output)
        judged_s = time.monotonic() - began - read_s
        out.stderr().print(
            f"{len(past.nodes)} nodes of {', '.join(past.engines)}, {past.store.num_series} series: read in "
            f"{out.seconds(read_s)}, judged in {out.seconds(judged_s)}",
            markup=False,
        )
    return exit_code([Diagnosis.model_validate(dataclasses.asdict(one.diagnosis)) for one in verdict.said])


def exit_code(diagnoses: list[Diagnosis]) -> int:
    """0: a cause is named; 1: nothing is wrong; 4: something may be, and its cause is not known."""
    if any(one.cause for one in diagnoses):
        return 0
    return 1 if all(one.confidence == "confirmed" for one in diagnoses) else 4


def print_diagnosis(diagnosis: Diagnosis, output: Output) -> None:
    """One verdict with its evidence."""
    print_fields(
        diagnosis.title or "no cause named",
        [
            ("cause", diagnosis.cause or ("none" if diagnosis.confidence == "confirmed" else "unknown")),
            ("confidence", confidence_words(diagnosis)),
            *verdict_fields(diagnosis),
            ("not known", _counted(diagnosis)),
        ],
    )
    print_evidence(diagnosis.evidence, output)


def _as_data(said: object) -> dict[str, object]:
    from diagnostics.past import Said

    assert isinstance(said, Said)
    told = Diagnosis.model_validate(dataclasses.asdict(said.diagnosis)).model_dump(mode="json")
    if said.incident is None:
        return told | {"incident": None}
    one = said.incident
    return told | {"incident": {"title": one.title, "severity": one.severity, "scope": dict(one.scope)}}


def _print(verdict: PastVerdict, at: float, output: Output) -> None:
    out.stdout().print(f"At {dt.datetime.fromtimestamp(at, dt.UTC):%Y-%m-%d %H:%M:%SZ}:", markup=False)
    for one in verdict.said:
        out.stdout().print()
        if one.incident is not None:
            out.stdout().print(f"{one.incident.severity}: {one.incident.title}", markup=False)
        print_diagnosis(Diagnosis.model_validate(dataclasses.asdict(one.diagnosis)), output)
    if untold := _untold(verdict):
        out.stdout().print(f"\nWhat {' and '.join(verdict.engines)} cannot tell: {untold}", markup=False)


def _untold(verdict: PastVerdict) -> str:
    """Signals that were asked for and that none of these engines emits."""
    from alerts.review.coverage import coverage
    from diagnostics.past import signals_asked

    asked = frozenset[str]().union(*(signals_asked(one.diagnosis) for one in verdict.said))
    told = {one.signal for one in coverage() if set(one.engines) & {*verdict.engines, "dcgm"}}
    known = {one.signal for one in coverage()}
    missing = sorted(name for name in asked if name in known - told)
    more = f" and {len(missing) - MAX_UNTOLD} more" if len(missing) > MAX_UNTOLD else ""
    return ", ".join(missing[:MAX_UNTOLD]) + more


def _counted(diagnosis: Diagnosis) -> str:
    """How much could not be asked: which questions, and why, is in the table below."""
    unknown, asked = len(diagnosis.not_known), len(diagnosis.evidence)
    return f"{unknown} of {asked} answers" if unknown and asked else ", ".join(diagnosis.not_known)


def _rules(labels: list[str]) -> dict[str, str]:
    rules = {}
    for text in labels:
        name, sign, value = text.partition("=")
        if not sign or not name.isidentifier() or not value:
            raise BadInputError(
                f"--label {text!r}: not NAME=VALUE", remedy="e.g. --label node='$pod' --label pool=chat"
            )
        rules[name] = value
    return rules


def _at(text: str | None, otherwise: float) -> float:
    if text is None:
        return otherwise
    try:
        return moment(text)
    except ValueError:
        raise BadInputError(
            f"--at {text!r}: neither RFC 3339 nor Unix seconds", remedy="e.g. --at 2026-11-20T10:20:00Z"
        ) from None


def _check_scope(past: Past, scope: Mapping[str, str]) -> None:
    for place, value in scope.items():
        known = set(past.nodes) if place == "node" else {one[place] for one in past.nodes.values() if one.get(place)}
        if value not in known:
            shown = ", ".join(sorted(known)[:8]) or f"no {place} is known; --label says which label has it"
            raise BadInputError(f"there is no {place} {value!r} in it", remedy=f"one of: {shown}")
