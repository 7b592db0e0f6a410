"""Rules, trees, runbooks and the command line speak of the same things."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from diagnostics.cause import builtin_causes
from diagnostics.tree_file import builtin_no_tree_file, builtin_tree_files, load_no_tree, load_trees
from fleetctl.cli.app import build, run
from fleetctl.controller.incidents.remediation import inputs_from_scope
from runbooks.page import load_library
from tests.fixtures import ROOT


def alert_names() -> set[str]:
    groups = load_rule_files([*builtin_signal_files(), *builtin_rule_files()])
    return {rule.name for group in groups for rule in group.rules if rule.kind == "alert"}


def test_every_tree_starts_from_alerts_that_exist() -> None:
    trees = load_trees(builtin_tree_files())
    named = {symptom for tree in trees.values() for symptom in tree.symptoms}
    assert named <= alert_names()


def test_every_alert_has_a_tree_or_a_word_in_its_place() -> None:
    trees = load_trees(builtin_tree_files())
    covered = {symptom for tree in trees.values() for symptom in tree.symptoms}
    assert alert_names() - covered == set(load_no_tree(builtin_no_tree_file()))


def test_every_cause_of_a_runbook_is_named_by_a_tree() -> None:
    causes = {cause for page in load_library().values() for cause in page.causes}
    assert causes <= builtin_causes().keys()


def test_every_cause_has_a_page_that_an_incident_can_fill_in_or_a_sentence_why_not() -> None:
    scope = {"node": "node-2", "pool": "default", "gateway": "gateway"}
    pages, causes = load_library(), builtin_causes()
    assert len(causes) >= 40
    for cause in (causes[name] for name in sorted(causes)):
        assert bool(cause.page) is not bool(cause.no_page)
        if cause.page:
            assert cause.name in pages[cause.page].causes
            assert inputs_from_scope(pages[cause.page], scope, {"node-2"})[1] == [], cause.name


def test_every_command_on_a_page_can_be_typed() -> None:
    """The page a person reads at 03:00 must work when pasted into a terminal."""
    command_line: Any = typer.main.get_command(build())
    for page in load_library().values():
        for step in (*page.steps, *page.undo):
            if not step.command:  # an undo that only says why there is nothing to do
                continue
            words = shlex.split(step.command.replace("{{", "").replace("}}", "").removeprefix("fleetctl "))
            command = command_line
            while hasattr(command, "commands"):
                if command.invoke_without_command and words[0].startswith("-"):
                    break  # a group that is a command itself: `shed --below standard` beside `shed remove`
                assert words[0] in command.commands, f"{page.name}: fleetctl {step.command}"
                command = command.commands[words.pop(0)]
            command.make_context(command.name, words)  # exits with 2 when an option or argument does not fit


@pytest.mark.parametrize("verb", ["up", "down", "demo", "get", "describe", "top", "drain", "replace", "runbook"])
def test_grammar_has_the_verb(verb: str) -> None:
    assert verb in typer.main.get_command(build()).commands  # type: ignore[attr-defined]


def test_the_chart_has_the_rules_and_dashboards_of_this_release(tmp_path: Path) -> None:
    """After a change of rules or dashboards: `make manifests`, or the command that it runs."""
    chart = Path("fleetctl/deploy/helm/fleetctl/monitoring")
    command = ["alerts", "export", "--kubernetes", "--dashboards", "--to"]
    assert run([*command, str(tmp_path)]) == 0
    made = {path.name: path.read_text() for path in tmp_path.iterdir()}
    kept = {path.name: path.read_text() for path in (ROOT / chart).glob("fleetctl-*.yaml")}
    old = sorted(name for name in made.keys() | kept.keys() if made.get(name) != kept.get(name))
    listed = yaml.safe_load((ROOT / chart / "kustomization.yaml").read_text())["resources"]
    assert sorted(listed) == sorted(made), "kustomization.yaml lists each of them"
    assert old == [], f"python -m fleetctl.cli {shlex.join(command)} {chart}"
