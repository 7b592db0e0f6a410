"""What is wrong with a setting of a node is said before a node is started with it."""

from __future__ import annotations

import pytest

from runbooks.errors import BadInputError
from runbooks.node_setting import NodeSetting, check_settings, check_unset

KNOWN = {
    "max-num-seqs": NodeSetting("integer", least=1),
    "max-num-batched-tokens": NodeSetting("integer", least=1),
    "swap-space": NodeSetting("number", least=0),
    "dtype": NodeSetting(choices=("auto", "bfloat16")),
    "enable-prefix-caching": NodeSetting("flag"),
    "enable-faults": NodeSetting("switch"),
    "draft-model": NodeSetting(),
    "port": NodeSetting("integer", fixed="each node has its own"),
}
COMMAND = "fleetctl rollout start chat --set SETTING --dry-run"


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("max-num-seq=8", "a node has no setting max-num-seq"),
        ("xyz=8", "a node has no setting xyz"),
        ("max-num-seqs=many", "expected a whole number"),
        ("max-num-seqs=8.5", "expected a whole number"),
        ("max-num-seqs=0", "expected 1 or more"),
        ("swap-space=-1", "expected 0 or more"),
        ("swap-space=nan", "expected a number"),
        ("swap-space=inf", "expected a number"),
        ("dtype=float8", "expected one of auto, bfloat16"),
        ("enable-prefix-caching=no", "expected true or false"),
        ("enable-faults=false", "expected true"),
        ("draft-model=", "expected a value"),
        ("port=8000", "each node has its own"),
    ],
)
def test_a_setting_that_no_node_would_start_with_is_named(setting: str, words: str) -> None:
    with pytest.raises(BadInputError) as refused:
        check_settings(KNOWN, ["dtype=auto", setting], COMMAND)
    assert refused.value.message.startswith(f"--set {setting}: {words}")
    assert "fleetctl" in (refused.value.remedy or "")


def test_the_nearest_name_comes_as_the_command_to_type() -> None:
    with pytest.raises(BadInputError) as refused:
        check_settings(KNOWN, ["max_num_seq=8"], COMMAND)
    meant = "did you mean max-num-seqs? fleetctl rollout start chat --set max-num-seqs=8 --dry-run"
    assert refused.value.remedy == meant


def test_a_setting_that_nobody_may_set_is_never_what_was_meant() -> None:
    with pytest.raises(BadInputError) as refused:
        check_settings(KNOWN, ["ports=8"], COMMAND)
    assert "did you mean" not in (refused.value.remedy or "")


def test_what_a_node_starts_with_passes_under_either_spelling() -> None:
    check_settings(
        KNOWN,
        ["max_num_seqs=8", "swap-space=0.5", "dtype=auto", "enable-prefix-caching=false", "enable-faults=true"],
        COMMAND,
    )


def test_only_what_a_revision_sets_can_be_unset() -> None:
    check_unset(["model", "max_num_seqs"], ["max-num-seqs"], "rev-1", "chat")
    with pytest.raises(
        BadInputError, match="revision rev-1 has no such setting; it has max-num-seqs, model"
    ) as refused:
        check_unset(["model", "max_num_seqs"], ["max-num-seq"], "rev-1", "chat")
    assert "did you mean max-num-seqs? fleetctl rollout start chat --unset max-num-seqs" in (refused.value.remedy or "")
