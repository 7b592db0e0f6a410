"""Revisions: what is one, what is another, and that a node started from one is of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleetctl.controller.nodes.revision import Revision, with_revision
from fleetctl.providers.spec import NodeSpec

SPEC = NodeSpec(
    name="node-1",
    model="demo",
    options={
        "model": "/models/demo",
        "max_num_seqs": 16,
        "enable_faults": True,
        "lora_modules": ["sql=/adapters/sql", "law=/adapters/law"],
        "chat_template": "support-v3",
        "trace_endpoint": None,
    },
)


def test_what_would_be_started_with_the_same_words_is_one_revision() -> None:
    same = {
        "chat-template": "support-v3",
        "lora_modules": ["sql=/adapters/sql", "law=/adapters/law"],
        "enable-faults": True,
        "max-num-seqs": "16",
        "model": "/models/demo",
    }
    assert Revision.of(replace(SPEC, options=same)).id == Revision.of(SPEC).id


def test_name_pool_zone_and_the_word_it_had_before_are_no_part_of_it() -> None:
    other = replace(SPEC, name="node-9", pool="decode", zone="b", revision="r7")
    assert Revision.of(other).id == Revision.of(SPEC).id


@pytest.mark.parametrize(
    "changed",
    [
        {"model": "other"},
        {"engine": "vllm"},
        {"options": {**SPEC.options, "model": "/models/demo-2"}},
        {"options": {**SPEC.options, "max_num_seqs": 17}},
        {"options": {**SPEC.options, "enable_faults": False}},
        {"options": {**SPEC.options, "lora_modules": ["sql=/adapters/sql"]}},
        {"options": {**SPEC.options, "chat_template": "support-v4"}},
    ],
)
def test_what_decides_an_answer_makes_another_revision(changed: dict[str, object]) -> None:
    assert Revision.of(replace(SPEC, **changed)).id != Revision.of(SPEC).id  # type: ignore[arg-type]


def test_a_stored_revision_is_read_back_and_starts_nodes_of_itself() -> None:
    revision = Revision.of(SPEC)
    read = Revision.from_json(revision.to_json())
    assert read == revision
    spec = read.spec("node-7", pool="decode", zone="b")
    assert (spec.name, spec.pool, spec.zone, spec.revision) == ("node-7", "decode", "b", revision.id)
    assert with_revision(spec) == spec
    assert (revision.model_dir, revision.prompt_template) == ("/models/demo", "support-v3")
    assert revision.adapters == ("sql=/adapters/sql", "law=/adapters/law")
