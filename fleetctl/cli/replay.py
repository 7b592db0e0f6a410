"""`replay`: what would have been said of a recorded incident, and when, with content as it is or as you edited it.

It works on files, without a controller.
"""

from __future__ import annotations

import dataclasses
import shutil
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import output as out
from fleetctl.cli.context import current
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_table
from fleetctl.kit.errors import BadInputError, FleetctlError

if TYPE_CHECKING:
    from diagnostics.blackbox import BlackBox
    from diagnostics.replay import ReplayResult
    from fleetctl.controller.content.content import Content

RECORDED = "recorded"
SUFFIX = ".blackbox.jsonl.gz"
NONE = "none"

Edited = list[Path] | None


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("replay")
    def replay(
        file: Annotated[Path, typer.Argument(help="An incident's file; `fleetctl incident export ID` writes one.")],
        tree: Annotated[Edited, typer.Option("--tree", help="A tree's file, in place of the one of its name.")] = None,
        rules: Annotated[Edited, typer.Option("--rules", help="A rule file, laid over those in force.")] = None,
        causes: Annotated[Edited, typer.Option("--causes", help="A causes file, laid over those in force.")] = None,
        questions: Annotated[
            Edited, typer.Option("--questions", help="A questions file, laid over those in force.")
        ] = None,
        expect: Annotated[
            str | None,
            typer.Option(
                "--expect",
                help="Exit 1 unless this cause is the last verdict; none: no cause; recorded: as a person corrected"
                " it, else as it was named.",
            ),
        ] = None,
        step: Annotated[str, typer.Option("--step", help="Simulated time between two evaluations.")] = "5s",
        speed: Annotated[
            float, typer.Option("--speed", help="Seconds of the recording a second; 0: as fast as it goes.", min=0)
        ] = 0.0,
        recompute: Annotated[
            bool, typer.Option("--recompute", help="Signals anew from what nodes said, in place of those kept.")
        ] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Run a recorded incident again: alerts, verdicts and their times, by content as it is or as you edited it.

        With --expect the file is a regression test: exit code 0 or 1.
        """
        from fleetctl.cli.duration_option import duration_s

        step_s = duration_s("--step", step, "an evaluation")
        box = read_box(file)
        content = _content({"trees": tree, "rules": rules, "causes": causes, "questions": questions})
        result = replayed(box, content, step_s, recompute=recompute)
        found = result.diagnosis_for(box.incident)
        if output in DATA:
            print_data(_document(box, result), output)
        else:
            _print(box, result, speed)
        if expect is not None:
            wanted = recorded_cause(box) if expect == RECORDED else None if expect == NONE else expect
            if wanted is not None and wanted not in content.causes:
                raise BadInputError(f"--expect: there is no cause {wanted}", remedy="fleetctl content list")
            said = found.cause if found is not None else None
            if said != wanted:
                raise FleetctlError(f"{file.name}: expected {wanted or 'no cause'}, it says {said or 'no cause'}")
            out.stderr().print(f"as expected: {wanted or 'no cause'}")


def recorded_cause(box: BlackBox) -> str | None:
    """What a person said that it was, else what was named then."""
    correction = box.incident.handling.correction
    if correction is not None:
        return correction.cause
    return box.incident.diagnosis.cause if box.incident.diagnosis is not None else None


def read_box(file: Path) -> BlackBox:
    """The recording. Raises BadInputError."""
    from diagnostics import blackbox

    try:
        return blackbox.read(file)
    except blackbox.BadBlackBoxError as error:
        raise BadInputError(str(error)) from error


def _content(edited: dict[str, Edited]) -> Content:
    """What is in force by the settings, with the edited files laid over it."""
    from fleetctl.controller.content.load import load_content

    folders = list(current().settings().content)
    with tempfile.TemporaryDirectory(prefix="fleetctl-replay-") as scratch:
        given = {kind: paths for kind, paths in edited.items() if paths}
        for kind, paths in given.items():
            for path in paths or ():
                if not path.is_file():
                    raise BadInputError(f"{path}: no such file")
                (Path(scratch) / kind).mkdir(exist_ok=True)
                shutil.copyfile(path, Path(scratch) / kind / path.name)
        return load_content([*folders, Path(scratch)] if given else folders)


def replayed(box: BlackBox, content: Content, step_s: float, *, recompute: bool = False) -> ReplayResult:
    """What this content would have said."""
    from diagnostics.replay import replay

    return replay(
        box,
        content.groups,
        content.trees,
        content.knowledge,
        no_tree=content.no_tree,
        step_s=step_s,
        recompute=recompute,
    )


def _document(box: BlackBox, result: ReplayResult) -> dict[str, object]:
    found = result.diagnosis_for(box.incident)
    return {
        "incident": box.incident.id,
        "recorded": recorded_cause(box),
        "said": found.cause if found is not None else None,
        "told": [dataclasses.asdict(one) for one in result.told],
        "diagnosis": dataclasses.asdict(found) if found is not None else None,
    }


def _print(box: BlackBox, result: ReplayResult, speed: float) -> None:
    from diagnostics.postmortem import began_at

    began = began_at(box.incident)
    console = out.stdout()
    console.print(f"{box.incident.id}: {box.incident.title}", markup=False)
    recorded = box.incident.diagnosis
    said = f"{recorded.cause or 'no cause'} ({recorded.confidence})" if recorded is not None else "no verdict"
    correction = box.incident.handling.correction
    if correction is not None:
        said = correction.was or "no cause"
    corrected = f"; {correction.by} said it was {correction.cause or 'none of the known'}" if correction else ""
    console.print(f"it began {_clock(began)} UTC; recorded then: {said}{corrected}\n", markup=False)
    rows = [[_clock(one.at), _offset(one.at - began), one.kind, one.text] for one in result.told]
    if speed > 0:
        last = box.since
        for one, row in zip(result.told, rows, strict=True):
            time.sleep((one.at - last) / speed)
            last = one.at
            console.print("  ".join(row), markup=False)
        return
    print_table(["time", "since onset", "what", ""], rows, empty="nothing would have been said")


def _offset(seconds: float) -> str:
    sign = "-" if seconds < 0 else "+"
    whole = round(abs(seconds))
    return f"{sign}{whole // 60}:{whole % 60:02d}"


def _clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")
