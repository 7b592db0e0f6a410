"""How a fleet starts, on a terminal."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from fleetctl.demo.start_screen import StartScreen, start_screen


def shown(*lines: str) -> list[str]:
    screen = StartScreen(num_nodes=2)
    for line in lines:
        screen.tell(line)
    console = Console(file=StringIO(), width=80, color_system=None)
    console.print(screen)
    return [line.strip() for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]


def test_each_part_has_one_line_with_what_was_told_of_it_last() -> None:
    head, *parts = shown(
        "starting controller at http://127.0.0.1:1",
        "starting gateway at http://127.0.0.1:2",
        "node-1: starting (loading)",
        "node-1: ready",
        "node-2: starting (warming_up)",
    )
    assert "2 of 4 parts are ready" in head, "node-1, and the controller, which starts nodes"
    assert [" ".join(part.split()) for part in parts] == [
        "✓ controller ready",
        "· gateway at http://127.0.0.1:2",
        "✓ node-1 ready",
        "· node-2 starting (warming_up)",
    ]


def test_what_names_no_part_is_no_line() -> None:
    assert len(shown("something is said")) == 1


def test_the_last_of_it_stays_on_the_terminal() -> None:
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    with start_screen(console, 1) as tell:
        tell("node-1: ready")
    assert "node-1" in console.file.getvalue()  # type: ignore[attr-defined]
