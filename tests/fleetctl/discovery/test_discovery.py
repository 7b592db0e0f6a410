"""What the sources list, as nodes: what changes, what fails, and what nobody can make a node of."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fleetctl.discovery.discovery import EMPTY_HOLD_S, Discovery
from fleetctl.discovery.source import Source, SourceError, Target
from fleetctl.settings.targets import TargetGroup

pytestmark = pytest.mark.anyio

NOW = 1_000_000.0


def group(**keys: Any) -> TargetGroup:
    return TargetGroup.model_validate(keys)


def static(*targets: str, **labels: str) -> dict[str, Any]:
    return {"static_configs": [{"targets": list(targets), "labels": labels}]}


def write(path: Path, content: object) -> None:
    """In one step, as a program that writes such files should."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(content if isinstance(content, str) else json.dumps(content))
    part.replace(path)


async def test_labels_say_what_a_node_is_and_what_they_leave_out_is_not_known() -> None:
    discovery = Discovery(
        [
            group(
                **static("10.0.0.1:8000", pool="chat", model="llama", engine="vLLM", zone="eu", host="h1", sku="H100")
            ),
            group(**static("10.0.0.2:8000"), scheme="https"),
        ]
    )
    found = await discovery.look(NOW)
    one, other = found.nodes["10-0-0-1-8000"], found.nodes["10-0-0-2-8000"]
    assert (one.url, one.pool, one.model, one.engine, one.zone) == (
        "http://10.0.0.1:8000",
        "chat",
        "llama",
        "vllm",
        "eu",
    )
    assert dict(one.facts) == {"host": "h1", "sku": "H100"}
    assert (other.url, other.pool, other.model, other.engine, other.revision) == (
        "https://10.0.0.2:8000",
        "",
        "",
        "",
        "",
    )
    assert not found.problems


async def test_labels_of_the_group_and_relabelling_name_nodes_and_drop_others() -> None:
    rules = [
        {"source_labels": ["pod"], "target_label": "node"},
        {"source_labels": ["pod"], "regex": "vllm-.*", "action": "keep"},
    ]
    targets = {
        "static_configs": [
            {"targets": ["a:1"], "labels": {"pod": "vllm-Chat_0"}},
            {"targets": ["b:1"], "labels": {"pod": "other"}},
        ]
    }
    found = await Discovery([group(**targets, relabel_configs=rules, labels={"pool": "p"})]).look(NOW)
    assert {name: node.pool for name, node in found.nodes.items()} == {"vllm-chat-0": "p"}
    assert found.dropped == 1


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("http://a:1", "not HOST:PORT"),
        ("a:1/metrics", "not HOST:PORT"),
        ("a b:1", "not HOST:PORT"),
        ("a:99999", "HOST:PORT"),
    ],
)
async def test_what_is_no_address_is_told_and_the_others_are_there(address: str, words: str) -> None:
    found = await Discovery([group(**static(address, "good:1"))]).look(NOW)
    assert list(found.nodes) == ["good-1"]
    assert words in "".join(found.problems.values())


async def test_metrics_may_lie_elsewhere() -> None:
    found = await Discovery([group(**static("a:1", __metrics_address__="a:8002", engine="triton"))]).look(NOW)
    assert found.nodes["a-1"].metrics_url == "http://a:8002/metrics"
    found = await Discovery([group(**static("a:1"), metrics_path="/stats")]).look(NOW)
    assert found.nodes["a-1"].metrics_url == "http://a:1/stats"


async def test_of_two_targets_with_one_name_the_first_stays_and_the_second_is_told() -> None:
    found = await Discovery([group(**static("a:1", "b:1", node="same"))]).look(NOW)
    assert found.nodes["same"].url == "http://a:1"
    assert "both named same" in found.problems["http://b:1"]


async def test_files_are_read_anew_when_they_change(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    write(file, [{"targets": ["a:1"]}])
    discovery = Discovery([group(file_sd_configs=[{"files": [str(tmp_path / "*.json")], "refresh_interval": "1s"}])])
    assert set((await discovery.look(NOW)).nodes) == {"a-1"}
    write(file, [{"targets": ["a:1", "b:1"], "labels": {"pool": "p"}}])
    (tmp_path / "more.json").write_text(json.dumps([{"targets": ["c:1"]}]))
    assert set((await discovery.look(NOW + 0.5)).nodes) == {"a-1"}, "not before its interval"
    found = await discovery.look(NOW + 1)
    assert set(found.nodes) == {"a-1", "b-1", "c-1"}
    assert found.nodes["a-1"].pool == "p"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('[{"targets": ["a:1"', "not JSON"),
        ('{"targets": ["a:1"]}', "expected a list of target groups"),
        ('[{"targets": "a:1"}]', "group 1: targets: expected a list"),
        ('[{"targets": ["a:1"], "labels": {"port": 8}}]', "labels: port: expected a text"),
        ('[{"targets": ["a:1"], "lables": {}}]', "no 'lables' in a target group"),
        ('["a:1"]', "group 1: expected a mapping"),
    ],
)
async def test_a_file_that_can_not_be_used_changes_nothing_and_is_named(
    tmp_path: Path, content: str, words: str
) -> None:
    file = tmp_path / "t.json"
    write(file, [{"targets": ["a:1"]}])
    discovery = Discovery([group(file_sd_configs=[{"files": [str(file)], "refresh_interval": 1}])])
    await discovery.look(NOW)
    write(file, content)
    found = await discovery.look(NOW + 1)
    assert set(found.nodes) == {"a-1"}
    (problem,) = found.problems.values()
    assert words in problem
    assert str(file) in problem
    write(file, [{"targets": ["b:1"]}])
    found = await discovery.look(NOW + 2)
    assert set(found.nodes) == {"b-1"}
    assert not found.problems


async def test_a_file_that_nobody_may_read_and_one_that_is_not_there_are_told(tmp_path: Path) -> None:
    discovery = Discovery([group(file_sd_configs=[{"files": [str(tmp_path / "typo.json")]}])])
    found = await discovery.look(NOW)
    assert "no such file" in "".join(found.problems.values())
    assert found.unread, "what it lists is not known"
    os.mkfifo(tmp_path / "x.txt")
    found = await Discovery([group(file_sd_configs=[{"files": [str(tmp_path / "x.txt")]}])]).look(NOW)
    assert "expected a name that ends with" in "".join(found.problems.values())


class ScriptedSource:
    """Lists what it is told to."""

    def __init__(self) -> None:
        self.name, self.interval_s = "scripted", 1.0
        self.says: Sequence[str] | None = ["a:1", "b:1"]

    async def read(self) -> Sequence[Target]:
        if self.says is None:
            raise SourceError("scripted: away")
        return [Target({"__address__": address}) for address in self.says]


def scripted(source: Source) -> Discovery:
    return Discovery([group(name="g", **static("kept:1"))], {"g": [source]})


async def test_a_source_that_fails_keeps_what_it_said() -> None:
    source = ScriptedSource()
    discovery = scripted(source)
    await discovery.look(NOW)
    source.says = None
    found = await discovery.look(NOW + 1)
    assert set(found.nodes) == {"a-1", "b-1", "kept-1"}
    assert found.problems == {"scripted": "scripted: away"}
    source.says = ["b:1"]
    found = await discovery.look(NOW + 2)
    assert set(found.nodes) == {"b-1", "kept-1"}
    assert not found.problems


async def test_a_source_that_lists_nothing_all_at_once_is_believed_after_a_minute() -> None:
    source = ScriptedSource()
    discovery = scripted(source)
    await discovery.look(NOW)
    source.says = []
    found = await discovery.look(NOW + 1)
    assert set(found.nodes) == {"a-1", "b-1", "kept-1"}
    assert "lists nothing any more" in found.problems["scripted"]
    assert set((await discovery.look(NOW + 1 + EMPTY_HOLD_S)).nodes) == {"kept-1"}


async def test_a_source_that_was_never_read_says_nothing_of_what_it_listed_before() -> None:
    source = ScriptedSource()
    source.says = None
    assert (await scripted(source).look(NOW)).unread == {"scripted"}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, "names no source"),
        ({"dns_sd_configs": [{"names": ["a"], "type": "A"}]}, "give `port`"),
        ({"static_configs": [{"targets": ["a:1"], "lables": {}}]}, "lables"),
        ({"kubernetes_sd_configs": []}, "kubernetes_sd_configs"),
    ],
)
def test_settings_that_name_nothing_are_refused(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        group(**keys)
