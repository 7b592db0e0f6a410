"""The table of engines is whole, and the pages made from it are those of now."""

from __future__ import annotations

import pytest

from fleetctl.controller.content.made_docs import write_engine_docs
from fleetctl.engines.engine_pages import OF_PROVIDERS
from fleetctl.engines.table import ENGINES, OTHER_ENGINE, engine_kind
from runbooks.ability import Ability
from tests.fixtures import ROOT


@pytest.mark.parametrize("name", ENGINES)
def test_every_engine_says_of_each_ability_how_or_why_not(name: str) -> None:
    assert set(ENGINES[name].abilities) == set(Ability) - set(OF_PROVIDERS)


def test_an_engine_that_nobody_knows_is_as_any_server_of_the_api() -> None:
    assert engine_kind("brand-new").name == OTHER_ENGINE


def test_the_pages_of_engines_are_what_the_table_says() -> None:
    changed, _ = write_engine_docs(ROOT / "docs/engines", dry_run=True)
    assert changed == [], "run `fleetctl content docs docs/engines --of engines`"
