"""Every cause that a diagnosis can name is provoked on real nodes, or it is said why it can't be."""

from __future__ import annotations

from diagnostics.cause import builtin_causes
from fleetctl.first_night.catalogue import FAULTS, NOT_PROVOKED, provoked_by


def test_every_cause_is_in_one_of_the_two_lists() -> None:
    provoked = set(provoked_by())
    assert provoked | set(NOT_PROVOKED) == set(builtin_causes())
    assert not provoked & set(NOT_PROVOKED)


def test_faults_expect_causes_that_there_are_and_have_names_of_their_own() -> None:
    expected = {cause for fault in FAULTS for cause in fault.expects.causes}
    assert expected <= set(builtin_causes())
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
