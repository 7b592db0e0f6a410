"""What the guide says at each moment of the tour: where we are, what one sees, and what to press. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.demo.progress import Act, Progress
from fleetctl.demo.report import RequestCounts
from fleetctl.tui.cell import span
from fleetctl.tui.place import Place
from fleetctl.tui.snapshot import asking, current_run
from fleetctl.wire.incident import Incident
from fleetctl.wire.run import Run, RunStatus

CHAPTERS = 6
OVER_STATUSES = frozenset(
    {RunStatus.DENIED, RunStatus.EXPIRED, RunStatus.REFUSED, RunStatus.CANCELLED, RunStatus.FAILED, RunStatus.UNDONE}
)


@dataclass(frozen=True, slots=True)
class Scene:
    """What never changes in one tour: the names that the guide speaks of."""

    node: str
    num_nodes: int
    rate_per_s: float
    slow_factor: float
    command: str  # how `fleetctl` is called in another terminal to reach this fleet


@dataclass(frozen=True, slots=True)
class Words:
    """What stands above the screen: a title, what one sees, and what to do, where there is something to do."""

    title: str
    sees: str
    do: str = ""


def words(scene: Scene, progress: Progress, place: Place, now: float, *, takes_answers: bool) -> Words:
    """For this moment of the story, while this screen is shown. `takes_answers`: whether it has read the proposal."""
    if progress.act in (Act.STARTING, Act.NORMAL):
        return _normal(scene, progress, place, now)
    if progress.act is Act.OVER:
        return _over(progress)
    if progress.act in (Act.MENDED, Act.CHECKING):
        return _chapter(
            6,
            "mended",
            f"The alerts are quiet and the incident is resolved{_after(progress)}. "
            "Now every request's tokens are checked: none may be lost, none sent twice.",
        )
    if progress.incident is None:
        return _broken(scene, progress, now)
    return _incident(scene, progress, progress.incident, place, takes_answers)


def _normal(scene: Scene, progress: Progress, place: Place, now: float) -> Words:
    left_s = max(0.0, (progress.breaks_at or now) - now)
    soon = (
        f"In {left_s:.0f} s {scene.node} is made slow." if left_s >= 1.0 else f"{scene.node} is made slow any moment."
    )
    if place is Place.FLEET:
        sees = "A line for each node: what it runs, what waits, its KV cache, TTFT and ITL beside its own past. "
        return _chapter(1, "a fleet at work", sees + soon, "Press g, then n: back to what hurts users.")
    sees = (
        f"{scene.num_nodes} engine nodes on this machine answer {scene.rate_per_s:g} requests a second, through a "
        f"gateway. {soon}"
    )
    return _chapter(1, "a fleet at work", sees, "Press g, then f: the nodes, one line each.  ? lists all keys.")


def _broken(scene: Scene, progress: Progress, now: float) -> Words:
    since_s = now - (progress.fault_at or now)
    sees = (
        f"For {since_s:.0f} s each step of {scene.node} takes {scene.slow_factor:g} times as long, as when a GPU "
        "throttles. Nobody told the controller: it compares nodes with their peers and their past."
    )
    return _chapter(2, f"{scene.node} is slow", sees, "Wait for the page: some 15 s, as alerts want to be sure.")


def _incident(scene: Scene, progress: Progress, incident: Incident, place: Place, takes_answers: bool) -> Words:
    asks, run = asking(incident), current_run(incident)
    paged = f"{incident.title}: paged{_after(progress, incident.opened_at)}."
    if asks is not None:
        is_here = place in (Place.INCIDENT, Place.RUNBOOK)
        if is_here and takes_answers:
            return _your_turn(scene, incident, asks)
        # A key that is pressed before the screen has what it answers does nothing.
        do = "Wait a moment: the proposal comes below." if is_here else "Press g, then i: the incident."
        return _chapter(3, "page, verdict, proposal", f"{paged} {_verdict(incident)}", do)
    if run is None:
        why = incident.no_remedy or "Nothing is proposed for that yet: the evidence is read again."
        return _chapter(3, "page, verdict, proposal", f"{paged} {_verdict(incident)} {why}")
    if run.status in OVER_STATUSES:
        sees = f"{run.title}: {run.status.value}. {run.error} Users still wait.".replace("  ", " ")
        by_hand = f"Type :replace {scene.node} and Enter, to mend it by hand; q ends the tour."
        return _chapter(4, "your turn", sees, by_hand)
    return _acting(incident, run, place)


def _your_turn(scene: Scene, incident: Incident, asks: Run) -> Words:
    return _chapter(
        4,
        "your turn",
        f"{_verdict(incident)} The evidence stands below.",
        f"Press a, then y, to mend it (x: only say what would happen). Or elsewhere:\n"
        f"{scene.command} runbook approve {asks.id}",
    )


def _acting(incident: Incident, run: Run, place: Place) -> Words:
    if run.status in (RunStatus.VERIFYING, RunStatus.SUCCEEDED):
        sees = (
            f"{run.title}: every step is done. Done is not mended: it watches the signals, and the incident ends "
            "when its alerts are quiet."
        )
        return _chapter(5, "verify", sees, "Wait, or look around: g f, g t (who gets the requests), g e (events).")
    step = next((one for one in run.steps if one.status == "running"), None)
    doing = f"step {step.index + 1} of {len(run.steps)}, {step.command}" if step is not None else "about to start"
    sees = (
        f"{run.title}: {doing}. A new node first; then the old one's requests move over in the middle of their "
        "answers; then it is stopped."
    )
    do = "" if place is Place.RUNBOOK else "Press g, then r: the page that is carried out, step by step."
    return _chapter(5, "it is mended", sees, do)


def _over(progress: Progress) -> Words:
    report = progress.report
    assert report is not None
    wrong = report.failures()
    sees = (
        f"From the fault to the page {_time(report.detected_s)}, to the cause {_time(report.diagnosed_s)}, to the end "
        f"{_time(report.mitigated_s)}, with your answer in between. {_fate(report.requests)}"
    )
    if wrong:
        sees += f" It did not hold: {'; '.join(wrong)}."
    return _chapter(6, "mended", sees, "Press q: the fleet is stopped, and the post-mortem is yours.")


def _fate(requests: RequestCounts) -> str:
    lost = "none" if requests.lost == 0 else f"{requests.lost}"
    moved = f"; {requests.moved} moved to another node in the middle of an answer" if requests.moved else ""
    return f"Of {requests.sent:,} requests {lost} {'were' if requests.lost > 1 else 'was'} lost{moved}."


def _verdict(incident: Incident) -> str:
    found = incident.diagnosis
    if found is None or found.cause is None:
        return "No cause is named yet."
    return f"Verdict: {found.title or found.cause} ({found.cause}, {found.confidence})."


def _after(progress: Progress, at: float | None = None) -> str:
    """How long after the fault; empty where one of both is not known."""
    ended = progress.incident.resolved_at if at is None and progress.incident is not None else at
    return "" if ended is None or progress.fault_at is None else f" {span(ended - progress.fault_at)} after the fault"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else span(seconds)


def _chapter(number: int, title: str, sees: str, do: str = "") -> Words:
    return Words(f"{number} of {CHAPTERS}: {title}", sees, do)
