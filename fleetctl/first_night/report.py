"""The night as a table of 80 columns, and as the page docs/first-night.md."""

from __future__ import annotations

import json
import os
import platform
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from fleetctl.first_night.catalogue import FAULTS
from fleetctl.first_night.fault import AGES_S, Expectation
from fleetctl.first_night.provoked_table import causes_part
from fleetctl.first_night.standing_page import HELD_HEADING, NOTES_HEADING, SAID_HEADING, WRONG_HEADING, StandingPage
from fleetctl.load.request_fate import GAVE_UP

SAID_AGES_S = tuple(age_s for age_s in AGES_S if age_s <= 300.0)  # none but a held drill lasts for longer
NOTHING_STANDS = StandingPage()
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
docs/first-night.md"` writes this page from the last result of each fault; rows of those without one stay as they are.

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


def page(rows: Sequence[Row], standing: StandingPage = NOTHING_STANDS, held: Sequence[Row] = ()) -> str:
    """docs/first-night.md, with the rows that stand there of faults that were not run again. `held`: of long drills."""
    lines = _in_order({row["fault"]: [_markdown_row(row)] for row in rows}, {k: [v] for k, v in standing.rows.items()})
    said = _in_order({row["fault"]: _said(row) for row in rows}, {k: [v] for k, v in standing.said.items()})
    wrong = _in_order({row["fault"]: _not_right(row) for row in rows}, standing.wrong)
    notes = _in_order({row["fault"]: _notes(row) for row in rows}, standing.notes)
    days = sorted({_day(row["at"]) for row in rows} | standing.days)
    machines = ", ".join(sorted({row["machine"] for row in rows} | standing.machines))
    totals = [_totals(line) for line in lines]
    lost = sum(total.lost for total in totals)
    unavoidable = sum(total.lost for total in totals if _expects(total.fault).loss)
    parts = [
        PAGE_HEAD,
        f"Run {' and '.join(days)} on {machines}: {sum(total.is_right for total in totals)} of {len(lines)} right. Of "
        f"{sum(total.sent for total in totals)} requests {lost} were lost: {unavoidable} for want of a gateway or "
        f"of nodes, {lost - unavoidable} that another node could take.",
        "",
        "| fault | alert, after | cause | what was done | requests: sent, moved, refused, lost | post-mortem | right |",
        "|---|---|---|---|---|---|---|",
        *lines,
        "",
        SAID_HEADING,
        "",
        "While the fault lasted, at these ages: the cause of the open incident, in brackets what `fleetctl diagnose`",
        "said where there was none. Empty: it was over, or a person had ended it.",
        "",
        "| fault | " + " | ".join(_age(age_s) for age_s in SAID_AGES_S) + " |",
        "|---|" + "---|" * len(SAID_AGES_S),
        *said,
        "",
        *_held_part(
            _in_order({row["fault"]: [_held_row(row)] for row in held}, {k: [v] for k, v in standing.held.items()})
        ),
        *causes_part({total.fault: total.is_right for total in totals}),
        WRONG_HEADING,
        "",
        *(wrong or ["Nothing that was looked at."]),
        "",
        NOTES_HEADING,
        "",
        *_general_notes(rows),
        *notes,
    ]
    written = "\n".join(_folded(part) for part in parts).rstrip() + "\n"
    return f"{written}\n{standing.walked}" if standing.walked else written


def _in_order(new: Mapping[str, list[str]], standing: Mapping[str, list[str]]) -> list[str]:
    """The lines of each fault of the catalogue, the new ones where there are any."""
    return [line for fault in FAULTS for line in new.get(fault.name, standing.get(fault.name, []))]


class _Totals(NamedTuple):
    fault: str
    sent: int
    lost: int
    is_right: bool


def _totals(line: str) -> _Totals:
    """Of a row of the table, as it is written."""
    cells = [cell.strip() for cell in line.replace("\\|", " ").strip("|").split("|")]
    sent, _, _, lost = (int(number) for number in cells[4].split(", "))
    return _Totals(cells[0].split("**")[1], sent, lost, cells[6] == "yes")


def _age(age_s: float) -> str:
    return f"{age_s:.0f} s" if age_s < 60 else f"{age_s / 60:.0f} min" if age_s < 3600 else f"{age_s / 3600:.0f} h"


def _said(row: Row) -> list[str]:
    by_age = {said["age_s"]: said for said in row.get("said", ())}
    return [f"| {row['fault']} | " + " | ".join(_cause_said(by_age.get(age_s)) for age_s in SAID_AGES_S) + " |"]


def _cause_said(said: Row | None) -> str:
    if said is None:
        return ""
    nothing = "nothing is wrong" if said["confidence"] == "confirmed" else "none named"
    causes = " and ".join(filter(None, (said["cause"], said["also"]))) or nothing
    return causes if said["by"] == "incident" else f"({causes})"


def _held_part(rows: Sequence[str]) -> list[str]:
    if not rows:
        return []
    return [
        HELD_HEADING,
        "",
        "`--hold 15`: nobody approved or ended anything for a quarter of an hour, in real time (`--hold 60`: an hour).",
        "The cause named is the same from the first minute on, or the row is wrong.",
        "",
        "| fault | held | alert, after | "
        + " | ".join(_age(age_s) for age_s in AGES_S)
        + " | then | sent, lost | right |",
        "|---|---|---|" + "---|" * (len(AGES_S) + 3),
        *rows,
        "",
    ]


def _held_row(row: Row) -> str:
    _, alert, after, *_ = _cells(row)
    by_age = {said["age_s"]: said for said in row["said"]}
    gave_up = (row["requests"]["reasons"] or {}).get(GAVE_UP, 0)
    cells = (
        f"**{row['fault']}**",
        _age(row["held_s"]),
        f"{alert}, {after}" if after else alert,
        *(_cause_said(by_age.get(age_s)) for age_s in AGES_S),
        _course(row, with_counts=False),
        f"{row['requests']['sent']}, {row['requests']['lost'] - gave_up}"
        + (f" ({gave_up} users gave up after two minutes)" if gave_up else ""),
        "yes" if row["right"] else "no: " + "; ".join((*row["problems"], *row["wrong"])),
    )
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


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


def _not_right(row: Row) -> list[str]:
    wrong = (*row["problems"], *row["wrong"])
    return [f"- **{row['fault']}**: {'; '.join(wrong)}."] if wrong else []


def _general_notes(rows: Sequence[Row]) -> list[str]:
    compressed = [row["fault"] for row in rows if row["windows"] == "compressed"]
    real = [row["fault"] for row in rows if row["runner"] != "fake"]
    return [
        "- Every process is real. The nodes' model only pretends to compute (`--runner fake`, steps of 20 ms)"
        + (f", but in {', '.join(real)}." if real else "."),
        "- Windows (`for:`) of the alerts are the package's own"
        + (f", but shorter for {', '.join(compressed)}." if compressed else " in every row."),
    ]


def _notes(row: Row) -> list[str]:
    requests, incident = row["requests"], _main(row)
    remark = next((fault.remark for fault in FAULTS if fault.name == row["fault"]), "")
    notes = [remark, *row["notes"]] if remark else [*row["notes"]]
    if requests["lost_begun"]:
        notes.append(f"{requests['lost_begun']} lost in mid-stream")
    if requests["waited"]:
        notes.append(f"{requests['waited']} users waited more than 30 s for their first token")
    if others := [one["title"] for one in row["incidents"] if one is not incident]:
        notes.append(f"further incidents: {'; '.join(others)}")
    if incident is not None:
        notes.append(f'title "{incident["title"]}", verdict "{incident["verdict"]}"')
    return [f"- {row['fault']}: {note}." for note in notes]


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    alert = next(iter(row["alerts"]), None)
    incident = _main(row)
    return (
        row["fault"],
        alert["name"] if alert else "none",
        f"{alert['after_s']:.0f} s" if alert else "",
        (incident["cause"] or "none named") if incident else _last_said(row),
        str(row["requests"]["lost"]),
    )


def _last_said(row: Row) -> str:
    """In brackets, where no incident says it."""
    said = row.get("said", ())
    return _cause_said(said[-1]) if said else "-"


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
