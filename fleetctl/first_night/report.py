"""The night as a table of 80 columns, and as the page docs/first-night.md."""

from __future__ import annotations

import json
import os
import platform
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fleetctl.first_night.fault import FAULTS, Expectation

WIDTH = 80
PAGE_WIDTH = 120
_HEAD = ("FAULT", "ALERT", "AFTER", "CAUSE", "LOST", "")
_WIDTHS = (19, 21, 6, 20, 4, 5)

Row = Mapping[str, Any]  # an outcome as JSON

PAGE_HEAD = """# The first night

Each fault below was made on a real fleet of three nodes under traffic, with policy `ask`, one after the other and
each on a fleet of its own. The harness (`fleetctl/first_night`) injects the fault, sends requests as users do,
approves what is proposed after three seconds of reading, and ends by hand what no page mends. It counts every request
as its client saw it, and holds the post-mortem to that: the lost, the onset, the cause and what was run. `make
first-night` runs it all, `make first-night FAULT=sigstop-api` one; `make first-night FIRST_NIGHT_ARGS="--write
docs/first-night.md"` writes this page from the last result of each fault.

Seconds count from the fault. *lost*: users who got an error after they were taken in, a cut or hung stream, a wrong
answer or none; a refusal (429, 503 before the first byte) is not lost, and is given beside it.
"""


def machine() -> str:
    """The processor by name, and how many of its cores are ours."""
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def load_results(folder: Path) -> list[Row]:
    """The last result of each fault, in the night's order."""
    found = {path.stem: path for path in folder.glob("*.json")}
    return [json.loads(found[fault.name].read_text()) for fault in FAULTS if fault.name in found]


def table(rows: Sequence[Row]) -> str:
    """For a terminal: a row for each fault, and below it what was done and what is not right."""
    lines = [_line(_HEAD)]
    for row in rows:
        lines.append(_line((*_cells(row), "right" if row["right"] else "WRONG")))
        lines += _wrapped(_course(row))
        for wrong in (*row["problems"], *row["wrong"]):
            lines += _wrapped(f"- {wrong}")
    right = sum(row["right"] for row in rows)
    return "\n".join([*lines, f"{right} of {len(rows)} right"]) + "\n"


def page(rows: Sequence[Row]) -> str:
    """docs/first-night.md."""
    right = sum(row["right"] for row in rows)
    days = sorted({_day(row["at"]) for row in rows})
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    sent, lost, begun = (sum(row["requests"][key] for row in rows) for key in ("sent", "lost", "lost_begun"))
    gone = sum(row["requests"]["lost"] - row["requests"]["lost_begun"] for row in rows if _expects(row["fault"]).loss)
    parts = [
        PAGE_HEAD,
        f"Run {' and '.join(days)} on {machines}: {right} of {len(rows)} right. Of {sent} requests {lost} were lost: "
        f"{begun} in mid-stream, {gone} for want of a gateway, {lost - begun - gone} that another node could take.",
        "",
        "| fault | alert, after | cause | what was done | requests: sent, moved, refused, lost | post-mortem | right |",
        "|---|---|---|---|---|---|---|",
        *(_markdown_row(row) for row in rows),
        "",
        "## Not right yet",
        "",
        *(_not_right(rows) or ["Nothing that was looked at.", ""]),
        "## What was not said in the table",
        "",
        *_notes(rows),
    ]
    return "\n".join(_folded(part) for part in parts).rstrip() + "\n"


def _markdown_row(row: Row) -> str:
    name, alert, after, cause, _, *_ = _cells(row)
    requests = row["requests"]
    counts = ", ".join(str(requests[key]) for key in ("sent", "moved", "refused", "lost"))
    heard = f"{alert}, {after}" if after else alert
    incident = _main(row)
    confidence = f" ({incident['confidence']})" if incident and incident["cause"] else ""
    cells = (
        f"**{name}**: {row['title']}",
        heard,
        cause + confidence,
        _course(row, with_counts=False),
        counts,
        _postmortem(row),
        "yes" if row["right"] else "no",
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _not_right(rows: Iterable[Row]) -> list[str]:
    lines: list[str] = []
    for row in rows:
        wrong = (*row["problems"], *row["wrong"])
        if not wrong:
            continue
        lines.append(f"- **{row['fault']}**: {'; '.join(wrong)}.")
    return [*lines, ""] if lines else []


def _notes(rows: Sequence[Row]) -> list[str]:
    compressed = [row["fault"] for row in rows if row["windows"] == "compressed"]
    fake = [row["fault"] for row in rows if row["runner"] == "fake"]
    where = "in every row" if len(fake) == len(rows) else f"in {', '.join(fake)}" if fake else ""
    notes = [
        f"- Every process is real. The nodes' model only pretends to compute {where} (`--runner fake`, steps of 20 ms)."
        if fake
        else "- Every process is real, and the nodes compute a small model.",
        "- Windows (`for:`) of the alerts are the package's own"
        + (f", but shorter for {', '.join(compressed)}." if compressed else " in every row."),
    ]
    if loads := sorted(row["load"] for row in rows if row["load"] is not None):
        notes.append(f"- The machine's load average when the faults were injected was {loads[0]:g} to {loads[-1]:g}.")
    notes += [f"- {fault.name}: {fault.remark}." for fault in FAULTS if fault.remark]
    if begun := [f"{row['requests']['lost_begun']} in {row['fault']}" for row in rows if row["requests"]["lost_begun"]]:
        notes.append(f"- Lost in mid-stream: {', '.join(begun)}.")
    for row in rows:
        waited = row["requests"]["waited"]
        notes += [f"- {row['fault']}: {note}." for note in row["notes"]]
        if waited:
            notes.append(f"- {row['fault']}: {waited} users waited more than 30 s for their first token.")
        if others := [i["title"] for i in row["incidents"] if i is not _main(row)]:
            notes.append(f"- {row['fault']}: further incidents: {'; '.join(others)}.")
        if (incident := _main(row)) is not None:
            notes.append(f'- {row["fault"]}: title "{incident["title"]}", verdict "{incident["verdict"]}".')
    return [*notes, ""]


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    alert = next(iter(row["alerts"]), None)
    incident = _main(row)
    return (
        row["fault"],
        alert["name"] if alert else "none",
        f"{alert['after_s']:.0f} s" if alert else "",
        (incident["cause"] or "none named") if incident else "-",
        str(row["requests"]["lost"]),
    )


def _course(row: Row, *, with_counts: bool = True) -> str:
    runs = [run for incident in row["incidents"] for run in incident["runs"]]
    done = [f"{run['runbook']} {run['status']}" + _after(run["ended_after_s"]) for run in runs]
    if row["ended_by"] == "person":
        done.append("ended by hand")
    elif not runs:
        done.append("went over by itself")
    over = row["over_after_s"]
    if row["incidents"]:
        done.append(f"over after {over:.0f} s" if over is not None else "not over")
    requests = row["requests"]
    if with_counts:
        done.append(f"{requests['sent']} sent, {requests['moved']} moved, {requests['refused']} refused")
        if requests["lost_begun"]:
            done.append(f"{requests['lost_begun']} lost in mid-stream")
        done.append(f"post-mortem {_postmortem(row)}")
    return "; ".join(done)


def _postmortem(row: Row) -> str:
    written = [incident for incident in row["incidents"] if incident["postmortem"]]
    if not written:
        return "-"
    if any(incident["false"] for incident in written):
        return "false"
    return "true" if all(incident["says_lost"] for incident in written) else "true; the lost not recorded"


def _expects(name: str) -> Expectation:
    return next((fault.expects for fault in FAULTS if fault.name == name), Expectation())


def _main(row: Row) -> Row | None:
    incidents: list[Row] = row["incidents"]
    ranked = sorted(
        incidents,
        key=lambda i: (
            not any(run["status"] == "succeeded" for run in i["runs"]),
            i["cause"] is None,
            i["opened_after_s"],
        ),
    )
    return ranked[0] if ranked else None


def _after(seconds: float | None) -> str:
    return "" if seconds is None else f" after {seconds:.0f} s"


def _day(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d")


def _line(cells: Sequence[str]) -> str:
    return " ".join(cell.ljust(width) for cell, width in zip(cells, _WIDTHS, strict=True)).rstrip()


def _folded(text: str) -> str:
    """Prose and list items in lines of 120; a table's row is one line."""
    if text.startswith(("|", "#")) or len(text) <= PAGE_WIDTH:
        return text
    return textwrap.fill(
        text, PAGE_WIDTH, subsequent_indent="  " if text.startswith("- ") else "", break_on_hyphens=False
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent="  ", subsequent_indent="    ")
