"""Moving a request between real nodes: whatever the cut, the client reads what it would have read unmoved."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from fleetctl.kit.tls import NO_TLS
from tests.fixtures.engine import EngineNode, Streamed, read_stream, start_node, wait_for

ACCEPT = {"X-Fleet-Handoff": "accept"}
# Bytes that make, split and break characters of two, three and four bytes, and pieces of stop strings.
PIECES = (
    b"\xc3",
    b"\xa9",
    b"\xa0",
    b"\xe4\xbd",
    b"\xbd",
    b"\xf0\x9f",
    b"\x99\x82",
    b"a",
    b"b",
    b"ab",
    b"ST",
    b"OP",
    b"S",
)


def byte_level(piece: bytes) -> str:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return "".join(chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in piece)


@pytest.fixture(scope="module")
def broken_text_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer whose tokens are mostly parts of characters."""
    directory = tmp_path_factory.mktemp("pieces")
    tokenizer = Tokenizer(models.BPE(vocab={byte_level(p): i for i, p in enumerate(PIECES)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, broken_text_dir: Path) -> Iterator[tuple[EngineNode, EngineNode]]:
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(start_node(tmp_path_factory.mktemp(name), model_dir=broken_text_dir)) for name in "ab"
        ]
        yield made[0], made[1]


def body_of(seed: int, **changes: Any) -> dict[str, Any]:
    return {
        "prompt": [7, 8, 9],
        "max_tokens": 120,
        "seed": seed,
        "stream": True,
        "return_token_ids": True,
        "stream_options": {"include_usage": True},
        **changes,
    }


def move_after(source: EngineNode, num_events: int) -> Callable[[int], None]:
    def on_chunk(count: int) -> None:
        if count == num_events:
            source.drain(0)

    return on_chunk


def moved(source: EngineNode, target: EngineNode, body: dict[str, Any], after: int) -> list[Streamed]:
    """The parts of a stream that is moved once, or not at all when it was too quick."""
    with source.slowed(10):
        first = read_stream(source, "/v1/completions", body, headers=ACCEPT, on_chunk=move_after(source, after))
    source.http.post("/admin/resume")
    if first.handoff is None:
        assert first.is_done
        return [first]
    assert not first.is_done
    return [first, read_stream(target, "/internal/continue", first.handoff, headers=ACCEPT)]


def handed_off(source: EngineNode, body: dict[str, Any], after: int) -> dict[str, Any]:
    """What a stream that is surely moved ends with."""
    with source.slowed(300):
        first = read_stream(source, "/v1/completions", body, headers=ACCEPT, on_chunk=move_after(source, after))
    source.http.post("/admin/resume")
    assert first.handoff is not None
    return first.handoff


def assert_same(parts: list[Streamed], whole: Streamed, num_choices: int = 1) -> None:
    for index in range(num_choices):
        assert "".join(p.text(index) for p in parts) == whole.text(index)
        assert [t for p in parts for t in p.token_ids(index)] == whole.token_ids(index)
        assert parts[-1].finish_reason(index) == whole.finish_reason(index) or len(parts) > 1
        reasons = [p.finish_reason(index) for p in parts if p.finish_reason(index) is not None]
        assert reasons == [whole.finish_reason(index)]
    assert len({c["id"] for p in parts for c in p.chunks}) == 1
    assert len({c["created"] for p in parts for c in p.chunks}) == 1
    assert parts[-1].is_done
    usage, expected = parts[-1].chunks[-1]["usage"], whole.chunks[-1]["usage"]
    assert {k: usage[k] for k in ("prompt_tokens", "completion_tokens")} == {
        k: expected[k] for k in ("prompt_tokens", "completion_tokens")
    }


def test_a_moved_stream_reads_as_an_unmoved_one_at_any_cut(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    num_moved = 0
    for seed in range(30):
        stop = [["STOP", "é"], ["abab", "你"], [], ["🙂", "SS"]][seed % 4]
        body = body_of(seed, stop=stop)
        whole = read_stream(target, "/v1/completions", body)
        parts = moved(source, target, body, after=2 + seed % 9)
        num_moved += len(parts) - 1
        assert_same(parts, whole)
    assert num_moved >= 15  # streams that end by a stop string may be too quick


def test_every_cut_of_one_stream_continues_exactly(nodes: tuple[EngineNode, EngineNode]) -> None:
    """The state of every possible cut is made from one finished stream, so that each is surely tried."""
    source, target = nodes
    body = body_of(3, stop=["STOPa", "éb"], max_tokens=60)
    whole = read_stream(target, "/v1/completions", body)
    handoff = handed_off(source, body, after=2)
    tokens = whole.token_ids()
    shown, chars_at = 0, [0]
    for chunk in whole.chunks:
        for choice in chunk["choices"]:
            shown += len(choice["text"])
            chars_at += [shown] * len(choice["token_ids"])
    assert len(chars_at) == len(tokens) + 1
    for cut in range(len(tokens)):
        progress = handoff["state"]["choices"][0]
        progress |= {"output_token_ids": tokens[:cut], "num_chars_sent": chars_at[cut], "is_opened": cut > 0}
        rest = read_stream(target, "/internal/continue", handoff)
        assert rest.status == 200, rest.body
        assert whole.text()[: chars_at[cut]] + rest.text() == whole.text(), f"cut after {cut} tokens"
        assert rest.token_ids() == tokens[cut:]


def test_a_request_may_move_again_and_again(nodes: tuple[EngineNode, EngineNode]) -> None:
    body = body_of(77, max_tokens=400)
    whole = read_stream(nodes[1], "/v1/completions", body)
    with nodes[0].slowed(), nodes[1].slowed():
        parts = [read_stream(nodes[0], "/v1/completions", body, headers=ACCEPT, on_chunk=move_after(nodes[0], 5))]
        hop = 0
        while (handoff := parts[-1].handoff) is not None:
            nodes[hop % 2].http.post("/admin/resume")
            hop += 1
            if hop == 6:
                nodes[hop % 2].full_speed()
            on_chunk = move_after(nodes[hop % 2], 5) if hop < 6 else None
            parts.append(read_stream(nodes[hop % 2], "/internal/continue", handoff, headers=ACCEPT, on_chunk=on_chunk))
    nodes[hop % 2].http.post("/admin/resume")
    assert hop == 6
    assert_same(parts, whole)


def test_choices_move_together(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    for seed in range(6):
        body = body_of(seed, n=3, stop=["STOP"], echo=True)
        whole = read_stream(target, "/v1/completions", body)
        assert_same(moved(source, target, body, after=6 + 5 * seed), whole, num_choices=3)


def test_a_moved_chat_opens_once(nodes: tuple[EngineNode, EngineNode], tmp_path: Path) -> None:
    with start_node(tmp_path) as source, start_node(tmp_path) as target:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 200, "seed": 1, "stream": True}
        body |= {"ignore_eos": True}
        whole = read_stream(target, "/v1/chat/completions", body)
        on_chunk = move_after(source, 4)
        with source.slowed(300):
            first = read_stream(source, "/v1/chat/completions", body, headers=ACCEPT, on_chunk=on_chunk)
        assert first.handoff is not None
        assert first.handoff["kind"] == "chat"
        rest = read_stream(target, "/internal/continue", first.handoff)
        assert first.text() + rest.text() == whole.text()
        assert [c["delta"].get("role") for p in (first, rest) for k in p.chunks for c in k["choices"]].count(
            "assistant"
        ) == 1


@pytest.mark.parametrize("logprobs", [None, 2])
def test_a_whole_answer_is_whole_after_a_move(nodes: tuple[EngineNode, EngineNode], logprobs: int | None) -> None:
    source, target = nodes
    body = body_of(5, stream=False, stream_options=None, max_tokens=600, logprobs=logprobs)
    whole = target.http.post("/v1/completions", json=body).json()
    answers: list[httpx.Response] = []
    thread = threading.Thread(
        target=lambda: answers.append(
            httpx.post(f"{source.url}/v1/completions", verify=NO_TLS, json=body, headers=ACCEPT, timeout=60)
        )
    )
    with source.slowed():
        thread.start()
        wait_for(lambda: _tokens_out(source) > 10, "some tokens")
        source.drain(0)
        thread.join(timeout=60)
    receipt = source.wait_drained()["receipt"]
    source.http.post("/admin/resume")
    assert answers[0].status_code == 202
    assert answers[0].headers["X-Fleet-Handoff"] == "state"
    assert receipt["moved"] == 1
    rest = target.http.post("/internal/continue", json=answers[0].json())
    assert rest.status_code == 200
    assert rest.json()["choices"] == whole["choices"]
    assert rest.json()["usage"]["completion_tokens"] == 600
    assert rest.json()["id"] == f"cmpl-{answers[0].headers['X-Request-Id']}"


def _states(node: EngineNode) -> list[str]:
    return sorted(r["state"] for r in node.http.get("/admin/requests").json()["requests"])


def _tokens_out(node: EngineNode) -> int:
    return sum(r["tokens_out"] for r in node.http.get("/admin/requests").json()["requests"])


def test_waiting_requests_move_too_and_nothing_is_lost(tmp_path: Path, broken_text_dir: Path) -> None:
    args = ("--max-num-seqs", "2")
    with (
        start_node(tmp_path, model_dir=broken_text_dir, extra_args=args) as source,
        start_node(tmp_path, model_dir=broken_text_dir) as target,
    ):
        # None ends before the drain, however busy the machine: 150 tokens of a second and more each.
        source.http.post("/admin/faults", json={"slow_steps": 1000})
        results: dict[int, list[Streamed]] = {}

        def run(seed: int) -> None:
            body = body_of(seed, max_tokens=150, ignore_eos=True)
            parts = [read_stream(source, "/v1/completions", body, headers=ACCEPT)]
            if parts[0].handoff is not None:
                parts.append(read_stream(target, "/internal/continue", parts[0].handoff))
            results[seed] = parts

        threads = [threading.Thread(target=run, args=(seed,)) for seed in range(8)]
        for thread in threads:
            thread.start()
        states = ["running"] * 2 + ["waiting"] * 6  # both: for a moment all of the first six wait
        wait_for(lambda: _states(source) == states, "two to run and six to wait")
        status = source.drain(600)
        assert (status["state"], status["receipt"]["in_flight"]) == ("draining", 8)
        assert source.http.get("/health/ready").json()["reason"] == "draining"
        refused = source.http.post("/v1/completions", json=body_of(99))
        assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (503, "draining")
        source.drain(0)  # a new deadline: looked at first, as on a busy machine it may pass between two looks
        source.http.post("/admin/faults", json={"slow_steps": None})
        for thread in threads:
            thread.join(timeout=60)
        assert len(results) == 8
        receipt = source.wait_drained()["receipt"]
        assert receipt == {"in_flight": 8, "finished": 0, "moved": 8, "refused": 1, "aborted": 0}
        for seed, parts in results.items():
            whole = read_stream(target, "/v1/completions", body_of(seed, max_tokens=150, ignore_eos=True))
            assert_same(parts, whole)
        assert source.metric("engine_requests_total", state="moved") == 8
        assert source.metric("vllm:kv_cache_usage_perc") == 0
        # A prompt is counted where it was prefilled first, a token where it was drawn.
        drawn = [node.metric("vllm:generation_tokens_total") or 0.0 for node in (source, target)]
        assert sum(drawn) == 2 * 8 * 150


def test_a_client_that_can_not_move_finishes_where_it_is(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, _ = nodes

    def drain_and_hurry(count: int) -> None:
        if count == 3:
            source.drain(0)
            source.full_speed()

    with source.slowed(300):
        answer = read_stream(source, "/v1/completions", body_of(8), on_chunk=drain_and_hurry)
    receipt = source.wait_drained()["receipt"]
    source.http.post("/admin/resume")
    assert answer.is_done
    assert answer.finish_reason() == "length"
    assert receipt == {"in_flight": 1, "finished": 1, "moved": 0, "refused": 0, "aborted": 0}


def test_a_client_that_hangs_up_in_a_drain_is_aborted(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, _ = nodes
    with source.slowed(1000):
        with source.http.stream("POST", "/v1/completions", json=body_of(8), headers=ACCEPT) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert source.drain(600)["state"] == "draining"
        receipt = source.wait_drained()["receipt"]
    source.http.post("/admin/resume")
    assert receipt == {"in_flight": 1, "finished": 0, "moved": 0, "refused": 0, "aborted": 1}


def test_a_draining_node_continues_nothing(nodes: tuple[EngineNode, EngineNode]) -> None:
    source, target = nodes
    handoff = handed_off(source, body_of(1), after=3)
    source.drain(0)
    refused = source.http.post("/internal/continue", json=handoff)
    source.http.post("/admin/resume")
    assert (refused.status_code, refused.headers["X-Fleet-Refused"]) == (503, "draining")
    assert read_stream(target, "/internal/continue", handoff).is_done


@pytest.fixture(scope="module")
def handoff(nodes: tuple[EngineNode, EngineNode]) -> dict[str, Any]:
    """Of one stream; a test changes its own copy."""
    return handed_off(nodes[0], body_of(2), after=3)


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda h: h.update(version=3), 409),
        (lambda h: h["state"]["ask"].update(model="other"), 409),
        (lambda h: h["state"]["choices"][0].update(num_chars_sent=10_000), 409),
        (lambda h: h["state"]["choices"][0].update(output_token_ids=[99999]), 400),
        (lambda h: h["state"]["choices"][0].update(output_token_ids=[1] * 200), 400),
        (lambda h: h["state"]["choices"][0].update(index=1), 400),
        (lambda h: h["state"].update(choices=[]), 400),
        (lambda h: h["state"]["ask"].update(prompts=[[]]), 400),
        (lambda h: h["state"]["ask"].update(n=99), 400),
        (lambda h: h["state"]["ask"].update(surprise=1), 400),
        (lambda h: h["state"]["ask"]["sampling"].update(seed=-1), 400),
        (lambda h: h["state"]["ask"]["sampling"].update(max_tokens="x"), 400),
        (lambda h: h["state"].update(elapsed_s=-1), 400),
        (lambda h: h.pop("state"), 400),
    ],
)
def test_a_state_that_can_not_be_continued_is_refused(
    nodes: tuple[EngineNode, EngineNode],
    handoff: dict[str, Any],
    change: Callable[[dict[str, Any]], object],
    status: int,
) -> None:
    _, target = nodes
    handoff = json.loads(json.dumps(handoff))
    change(handoff)
    answer = target.http.post("/internal/continue", json=handoff)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_the_real_model_goes_on_exactly(tmp_path: Path) -> None:
    with start_node(tmp_path, runner="torch") as source, start_node(tmp_path, runner="torch") as target:
        for seed, temperature in enumerate((0.0, 1.0, 1.0)):
            body = {"prompt": "The scheduler", "max_tokens": 300, "seed": seed, "temperature": temperature}
            body |= {"stream": True, "return_token_ids": True, "ignore_eos": True}
            body |= {"stream_options": {"include_usage": True}, "frequency_penalty": 0.5}
            whole = read_stream(target, "/v1/completions", body)
            with source.slowed(30):
                after = 3 + 7 * seed
                first = read_stream(source, "/v1/completions", body, headers=ACCEPT, on_chunk=move_after(source, after))
            source.http.post("/admin/resume")
            assert first.handoff is not None
            parts = [first, read_stream(target, "/internal/continue", first.handoff, headers=ACCEPT)]
            assert_same(parts, whole)
