"""The time slider: it stands, moves and plays inside its recording, whatever the clock does."""

from __future__ import annotations

from fleetctl.tui.slider import TimeSlider, slider_cells


def slider(at: float = 0.0) -> tuple[TimeSlider, list[float]]:
    """From 100 to 200, and its clock."""
    clock = [0.0]
    return TimeSlider(100.0, 200.0, "inc-1", lambda: clock[0], at=at), clock


def test_it_stands_until_it_is_played_and_ends_with_the_recording() -> None:
    shown, clock = slider(at=150.0)
    clock[0] = 30.0
    assert shown.now() == 150.0

    shown.play()
    clock[0] = 40.0
    assert shown.now() == 160.0
    shown.play()
    clock[0] = 45.0
    assert shown.now() == 200.0
    assert shown.speed == 0.0


def test_it_moves_no_further_than_the_recording_goes() -> None:
    shown, _ = slider(at=110.0)
    shown.move(-60.0)
    assert shown.now() == 100.0
    shown.move(500.0)
    assert shown.now() == 200.0


def test_it_says_where_it_is_and_how_fast_it_goes() -> None:
    shown, _ = slider(at=200.0)
    texts = [cell.text for cell in slider_cells(shown)]
    assert texts[:2] == ["REPLAY", "Jan 01 00:03:20"]
    assert texts[2].endswith("●")
    assert texts[3] == "‖"
    shown.play()
    assert (shown.at, slider_cells(shown)[3].text) == (100.0, "▶ 1×")
