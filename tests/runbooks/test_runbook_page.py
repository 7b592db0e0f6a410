from __future__ import annotations

from pathlib import Path

import pytest

from runbooks.errors import BadPageError
from runbooks.page import MAX_PAGE_BYTES, load_library, load_page, parse_page

PAGE = """\
---
name: move
title: Move {{node}}
risk: low
causes: [slow_node]
inputs:
  node:
    type: node
    required: true
    description: the node
  deadline:
    type: duration
    default: 20s
    description: how long
verify:
  expect: llm:up{node="{{node}}"}
  within: 1m
  settle: 5
---

# Move

Words.

## When to use

```text
not a command
```

## 1. Drain it

More words.

```fleetctl
# first this
fleetctl drain {{ node }} --deadline {{deadline}}
```

### A detail

## 2. Stop it

```fleetctl
fleetctl node stop {{node}}
```

## Undo

### 2. It is gone

There is no way back.

### 1. Serve again

```fleetctl
fleetctl uncordon {{node}}
```
"""


def test_reads_steps_undo_inputs_and_expectation() -> None:
    page = parse_page(PAGE, "move.md")
    assert [(s.number, s.title, s.command, s.line) for s in page.steps] == [
        (1, "Drain it", "drain {{ node }} --deadline {{deadline}}", 37),
        (2, "Stop it", "node stop {{node}}", 45),
    ]
    assert [(s.number, s.title, s.command) for s in page.undo] == [
        (2, "It is gone", ""),
        (1, "Serve again", "uncordon {{node}}"),
    ]
    assert page.verify is not None
    assert (page.verify.within_s, page.verify.settle_s) == (60, 5)
    assert page.inputs["deadline"].default == "20s"
    assert page.causes == ("slow_node",)
    assert page.markdown == PAGE


BAD = {
    "no front matter": ("---\nname: move", "name: move", "p.md:1: no front matter; start the page with"),
    "front matter without end": ("5\n---", "5\n", "p.md:1: the front matter has no end"),
    "broken yaml": ("risk: low", "risk: [low", "p.md:5: not valid YAML"),
    "unknown key": ("risk: low", "risk: low\nowner: me", "p.md:5: owner: Extra inputs are not permitted; remove it"),
    "key given twice": ("risk: low", "risk: low\nrisk: high", "p.md:5: 'risk' is given twice"),
    "unknown risk": ("risk: low", "risk: none", "p.md:4: risk: Input should be 'low', 'medium' or 'high'"),
    "missing title": ("title: Move {{node}}\n", "", "p.md:2: title: Field required; add it"),
    "bad name": ("name: move", "name: Move It", "p.md:2: name: "),
    "unknown type of input": ("type: node", "type: host", "p.md:8: inputs.node.type: "),
    "text where a flag belongs": ("required: true", 'required: "yes"', "p.md:9: inputs.node.required: "),
    "bad default": ("default: 20s", "default: soon", "p.md:13: default of input 'deadline': 'soon' is not a duration"),
    "input without default": ("    default: 20s\n", "", "p.md:11: input 'deadline' has no default"),
    "what is seen of a duration": (
        "default: 20s",
        "default: 20s\n    seen: llm:x",
        "p.md:14: input 'deadline': `seen` is for a threshold that has a default; remove it",
    ),
    "seen of an input that is not there": (
        "description: how long\n",
        "description: how long\n  over:\n    type: threshold\n    default: 32k\n    description: long\n"
        '    seen: x{pool="{{pol}}"}\n',
        "p.md:19: undefined input {{pol}}",
    ),
    "required with default": ("default: 20s", "default: 20s\n    required: true", "p.md:11: input 'deadline' is requi"),
    "settle too long": ("settle: 5", "settle: 2m", "p.md:15: verify: settle must be shorter than within"),
    "within is no duration": ("within: 1m", "within: long", "p.md:17: verify.within: 'long' is not a duration"),
    "placeholder outside of quotes": ('"{{node}}"', "{{node}}", "p.md:16: verify.expect uses {{node}} outside of"),
    "undefined input in expectation": ('"{{node}}"', '"{{nod}}"', "p.md:16: undefined input {{nod}}; did you mean 'n"),
    "unused input": (" --deadline {{deadline}}", "", "p.md:11: input 'deadline' is never used; use it"),
    "unknown verb": ("fleetctl node stop", "fleetctl node stpo", "p.md:45: unknown command 'node stpo'; did you mean"),
    "unknown option": (
        "--deadline",
        "--dedline",
        "p.md:37: drain: unknown option --dedline; did you mean '--deadline'",
    ),
    "undefined input": ("stop {{node}}", "stop {{host}}", "p.md:45: undefined input {{host}}; known: deadline, node"),
    "wrong type of input": ("--deadline {{deadline}}", "--deadline {{node}}", "p.md:37: drain --deadline: 'node-1' is"),
    "broken placeholder": ("stop {{node}}", "stop {{node}", "p.md:45: broken placeholder"),
    "not fleetctl": ("fleetctl node stop", "kubectl delete pod", "p.md:45: 'kubectl' is not run here; start with"),
    "open quote": ("stop {{node}}", "stop '{{node}}", "p.md:45: "),
    "empty block": ("fleetctl node stop {{node}}", "# nothing", "p.md:44: the ```fleetctl block has no command"),
    "two blocks": (
        "### A detail",
        "```fleetctl\nfleetctl cordon {{node}}\n```",
        "p.md:40: a second ```fleetctl block in 'Drain it'; put all",
    ),
    "step without block": ("```fleetctl\nfleetctl node stop {{node}}\n```\n", "", "p.md:42: step 2 has 0 ```fleetctl"),
    "block outside of a step": ("```text\nnot a", "```fleetctl\nfleetctl cordon {{node}}\n", "p.md:27: a ```fleetctl"),
    "block in a list": (
        "More words.\n\n",
        "- x\n\n  ```fleetctl\n  fleetctl cordon {{node}}\n  ```\n\n",
        "p.md:35: a `",
    ),
    "number left out": ("## 2. Stop", "## 3. Stop", "p.md:42: step 3 follows step 1; number it 2"),
    "step after undo": ("## 2. Stop", "## Undo\n\n## 2. Stop", "p.md:44: a step after ## Undo; put ## Undo last"),
    "two undos": ("### 2. It", "## Undo\n\n### 2. It", "p.md:50: a second ## Undo; keep one"),
    "missing undo": ("### 1. Serve again", "### Serve again", "p.md:54: undo item 'Serve again' names no step; write"),
    "no undo of a step": (
        "### 2. It is gone\n\nThere is no way back.\n",
        "",
        "p.md:48: step 2 changes the fleet and has no undo; add `### 2. Title` under ## Undo",
    ),
    "undo says nothing": ("There is no way back.\n", "", "p.md:50: undo of step 2 is empty; give commands, or say why"),
    "undo of no step": ("### 2. It", "### 7. It", "p.md:50: undo of step 7, which does not exist"),
    "undo in doing order": (
        "### 1. Serve again\n\n```fleetctl\nfleetctl uncordon {{node}}\n```\n",
        "### 1. Serve again\n\nNo.\n\n### 2. Start\n\nNo.\n",
        "p.md:58: undo of step 2 after that of step 1; undo the last step first",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD.keys())
def test_bad_page_is_refused_with_line_and_remedy(old: str, new: str, message: str) -> None:
    assert old in PAGE
    text = PAGE.replace(old, new)
    if old == "---\nname: move":
        text = text.removeprefix("---\n")
    with pytest.raises(BadPageError) as caught:
        parse_page(text, "p.md")
    assert str(caught.value).startswith(message)


def test_page_of_prose_only_is_for_a_person_and_has_nothing_to_verify() -> None:
    text = "---\nname: p\ntitle: t\nrisk: low\n---\n\n# Words\n"
    assert parse_page(text, "p.md").is_by_hand
    with pytest.raises(BadPageError, match=r"p\.md:5: a page without steps has nothing to verify"):
        parse_page(text.replace("risk: low", "risk: low\nverify:\n  expect: up"), "p.md")


@pytest.mark.parametrize(
    "text", ["", "\n", "---", "---\n---\n", "---\n- a\n---\n", "---\n\x00\n---\n", "---\na: &a [*a]\n---"]
)
def test_no_text_makes_the_parser_crash(text: str) -> None:
    with pytest.raises(BadPageError, match=r"^p\.md:\d+: "):
        parse_page(text, "p.md")


def test_file_must_carry_the_name_of_its_page(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text(PAGE)
    with pytest.raises(BadPageError, match=r"other\.md:1: the page is named 'move'; name the file move\.md"):
        load_library(tmp_path)


def test_reads_all_pages_of_a_directory_but_the_readme(tmp_path: Path) -> None:
    (tmp_path / "move.md").write_text(PAGE)
    (tmp_path / "README.md").write_text("# Pages")
    assert list(load_library(tmp_path)) == ["move"]


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "big.md").write_bytes(b"x" * (MAX_PAGE_BYTES + 1))
    (tmp_path / "binary.md").write_bytes(b"\xff\xfe\x00")
    for name in ("big", "binary", "missing"):
        with pytest.raises(BadPageError, match=rf"{name}\.md:1: "):
            load_page(tmp_path / f"{name}.md")
    with pytest.raises(BadPageError, match="no such directory"):
        load_library(tmp_path / "nowhere")
