"""`fleetctl prefix`: what two prompt files share, for CI, and what a gateway says of its traffic."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from fleetctl.cli.app import run

RULES = "Always cite the policy. " * 40  # 960 characters


@pytest.fixture
def server() -> Iterator[tuple[str, dict[str, Any]]]:
    """A gateway's report, and a node's tokenizer that has a token for each word."""
    answers: dict[str, Any] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(answers.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = body.get("prompt") or " ".join(one["content"] for one in body["messages"])
            self._answer(
                {"tokens": [sum(word.encode()) for word in text.split()]} if self.path == "/tokenize" else None
            )

        def _answer(self, value: Any) -> None:
            data = json.dumps(value or {"error": {"message": "no such path"}}).encode()
            self.send_response(200 if value else 404)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{made.server_port}", answers
        made.shutdown()
        thread.join()


def files(tmp_path: Path, old: Any, new: Any) -> list[str]:
    paths = []
    for name, value in (("old", old), ("new", new)):
        path = tmp_path / (f"{name}.txt" if isinstance(value, str) else f"{name}.json")
        path.write_text(value if isinstance(value, str) else json.dumps(value))
        paths.append(str(path))
    return paths


def chat(system: str) -> dict[str, Any]:
    return {"messages": [{"role": "system", "content": system}, {"role": "user", "content": "why?"}]}


@pytest.mark.parametrize(
    ("old", "new", "options", "code", "said"),
    [
        (RULES, RULES, [], 0, "first 240 tokens equal, of 240 and 240"),
        (RULES, RULES + "More.", [], 0, "first 240 tokens equal, of 240 and 242"),
        (RULES + "a", RULES + "b", ["--min-tokens", "200"], 0, "text differs"),
        (f"At 10:01\n{RULES}", f"At 10:02\n{RULES}", ["--min-tokens", "200"], 1, "line 1: timestamp differs"),
        (chat(RULES + "Id 77."), chat(RULES + "Id 78."), ["--min-tokens", "300"], 1, "number differs"),
        (chat(RULES), chat(RULES)["messages"], [], 0, "tokens equal"),
    ],
    ids=["same", "longer", "enough", "a time on top", "too few", "a list of messages"],
)
def test_two_prompts_are_held_against_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], old: Any, new: Any, options: list[str], code: int, said: str
) -> None:
    assert run(["prefix", "check", *files(tmp_path, old, new), *options]) == code
    shown = capsys.readouterr().out
    assert said in shown
    assert "estimated at 4 characters a token" in shown
    assert all(len(line) <= 120 for line in shown.splitlines())


def test_a_script_gets_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prefix", "check", *files(tmp_path, "On 2026-11-22", "On 2026-11-23"), "-o", "json"]) == 1
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "is_enough": False,
        "wanted_tokens": 4,
        "equal_tokens": 3,
        "old_tokens": 4,
        "new_tokens": 4,
        "is_estimated": True,
        "kind": "date",
        "line": 1,
    }


def test_a_nodes_tokenizer_counts_where_it_is_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: tuple[str, dict[str, Any]]
) -> None:
    old, new = "one two three four", "one two three five"
    assert run(["prefix", "check", *files(tmp_path, old, new), "--min-tokens", "3", "--tokenizer-url", server[0]]) == 0
    assert "first 3 tokens equal, of 4 and 4 (counted by the node's tokenizer)" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["{", "1", '{"messages": "x"}'])
def test_a_file_that_is_no_prompt_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    assert run(["prefix", "check", str(bad), str(bad)]) == 2
    assert str(bad) in capsys.readouterr().err
    assert run(["prefix", "check", str(tmp_path / "none"), str(bad)]) == 2


def test_the_report_fits_a_screen(capsys: pytest.CaptureFixture[str], server: tuple[str, dict[str, Any]]) -> None:
    row = {
        "template": "b78ffc5b",
        "tenant": "anonymous",
        "model": "m",
        "requests": 1200,
        "lost_tokens_per_request": 2844.0,
        "first_difference_tokens": 16,
        "kind": "timestamp",
        "share": 1.0,
        "remedy": "put the time behind the text",
    }
    server[1]["/gateway/prefix-report"] = {"templates": [row]}
    assert run(["prefix", "report", "--gateway", server[0]]) == 0
    title, line = capsys.readouterr().out.splitlines()
    assert title.split() == ["TEMPLATE", "TENANT", "REQUESTS", "LOST/REQ", "FROM", "KIND", "REMEDY"]
    assert line.split()[:6] == ["b78ffc5b", "anonymous", "1200", "2,844", "16", "timestamp"]
    assert line.index("put the time") < 64
    assert run(["prefix", "report", "--gateway", server[0], "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [row]


def test_a_gateway_that_does_not_answer_is_unreachable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["prefix", "report", "--gateway", "http://127.0.0.1:1"]) == 4
