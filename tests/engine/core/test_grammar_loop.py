"""Requests with a grammar in the core's loop: compiled beside it, and each with exactly one end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from engine.core.fake_runner import FakeRunner
from engine.core.grammar_queue import GrammarCompiled
from engine.core.scheduler import Scheduler
from engine.core.step_loop import StepLoop
from engine.protocol.clock import ManualClock
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.grammar import choice_grammar, regex_grammar
from engine.protocol.messages import AbortSequence, CoreIdle, FromCore, SequenceUpdate, Shutdown, StepReport
from engine.text.grammar_compiler import GrammarCompiler
from tests.fixtures.core import make_config, make_request
from tests.fixtures.grammar import make_book, tiny_tokenizer

EOS = tiny_tokenizer().eos_token_ids


class SlowBook(GrammarCompiler):
    """Compiles when it is told to: the loop must do without until then."""

    def __init__(self) -> None:
        tokenizer = tiny_tokenizer()
        super().__init__(lambda: tokenizer, vocab_size=tokenizer.vocab_size, eos_token_ids=EOS)
        self.may_compile = threading.Event()

    def compile(self, grammar: str) -> None:
        assert self.may_compile.wait(60)
        super().compile(grammar)


class Desk:
    """Runs a loop until it is idle; `on_publish` hears each message."""

    def __init__(self, book: GrammarCompiler, on_publish: Callable[[FromCore], None] = lambda message: None) -> None:
        self.inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.published: list[FromCore] = []
        self.on_publish = on_publish
        clock, vocab = ManualClock(), tiny_tokenizer().vocab_size
        self.scheduler = Scheduler(make_config(vocab_size=vocab, eos_token_ids=EOS))
        runner = FakeRunner(clock=clock, vocab_size=vocab, grammars=book)
        self.loop = StepLoop(
            self.scheduler, runner, self.inbox, self.publish, clock, idle_report_s=0.001, grammars=book
        )

    def publish(self, message: FromCore) -> None:
        self.published.append(message)
        self.on_publish(message)
        if isinstance(message, CoreIdle):
            self.inbox.put(Shutdown())

    def run(self, *messages: object) -> dict[str, SequenceUpdate]:
        for message in messages:
            self.inbox.put(message)
        assert self.loop.run_until_shutdown() == 0
        ends = [u for u in self.updates if u.finish_reason is not None]
        assert len({u.seq_id for u in ends}) == len(ends), "a request ended twice"
        return {u.seq_id: u for u in ends}

    @property
    def updates(self) -> list[SequenceUpdate]:
        return [u for m in self.published if isinstance(m, StepReport) for u in m.updates]

    def text_of(self, seq_id: str) -> str:
        tokens = [t for u in self.updates if u.seq_id == seq_id for t in u.token_ids]
        return tiny_tokenizer().decode(tokens, skip_special_tokens=True)


def test_ends_with_stop_at_the_grammars_end_and_with_length_when_cut() -> None:
    desk = Desk(make_book())
    ends = desk.run(
        make_request("whole", 6, max_tokens=50, grammar=choice_grammar(["maybe not"]), min_tokens=40, ignore_eos=True),
        make_request("cut", 6, max_tokens=3, grammar=regex_grammar("[a-c]{20}")),
    )
    assert {i: u.finish_reason for i, u in ends.items()} == {"whole": "stop", "cut": "length"}
    assert desk.text_of("whole") == "maybe not"


def test_others_are_served_while_a_grammar_is_compiled() -> None:
    book = SlowBook()

    def on_publish(message: FromCore) -> None:
        if isinstance(message, StepReport) and any(u.finish_reason for u in message.updates):
            book.may_compile.set()

    desk = Desk(book, on_publish)
    ends = desk.run(
        make_request("first", 6, max_tokens=9, grammar=choice_grammar(["yes"])), make_request("plain", 6, max_tokens=5)
    )
    assert list(ends) == ["plain", "first"]
    assert desk.text_of("first") == "yes"


def test_is_not_idle_while_a_request_waits_for_its_grammar() -> None:
    book = SlowBook()
    desk = Desk(book)
    threading.Timer(0.2, book.may_compile.set).start()
    ends = desk.run(make_request("a", 6, max_tokens=9, grammar=choice_grammar(["yes"])))
    assert ends["a"].finish_reason == "stop"
    assert isinstance(desk.published[-1], CoreIdle)
    assert sum(isinstance(m, CoreIdle) for m in desk.published) == 1


def test_a_bad_grammar_ends_its_request_with_the_reason() -> None:
    ends = Desk(make_book()).run(make_request("a", 6, max_tokens=9, grammar="{"))
    assert ends["a"].finish_reason == "error"
    failure = ends["a"].failure
    assert failure is not None
    assert failure.kind is FailureKind.GRAMMAR
    assert "can't be compiled" in failure.message


def test_a_defect_while_compiling_ends_the_request_too() -> None:
    class BrokenBook(SlowBook):
        def submit(self, grammar: str) -> Future[None]:
            failed: Future[None] = Future()
            failed.set_exception(RuntimeError("boom"))
            return failed

    ends = Desk(BrokenBook()).run(make_request("a", 6, max_tokens=9, grammar=choice_grammar(["x"])))
    assert ends["a"].failure == SequenceFailure(FailureKind.DEFECT, "the grammar can't be compiled: boom")


@pytest.mark.parametrize("message", [AbortSequence("a", "client_gone"), Shutdown()], ids=["abort", "shutdown"])
def test_a_request_that_waits_for_its_grammar_can_be_ended(message: object) -> None:
    book = SlowBook()
    desk = Desk(book)
    ends = desk.run(make_request("a", 6, max_tokens=9, grammar=choice_grammar(["yes"])), message)
    book.may_compile.set()
    assert ends["a"].finish_reason == "abort"
    assert not desk.text_of("a")


def test_a_request_that_was_aborted_is_not_ended_again_by_its_bad_grammar() -> None:
    book = SlowBook()
    desk = Desk(book, lambda message: book.may_compile.set())
    ends = desk.run(make_request("a", 6, max_tokens=9, grammar="{"), AbortSequence("a", "client_gone"))
    assert {seq_id: end.finish_reason for seq_id, end in ends.items()} == {"a": "abort"}


def test_a_late_answer_on_the_grammar_of_an_aborted_request_is_dropped() -> None:
    desk = Desk(make_book())
    failure = SequenceFailure(FailureKind.GRAMMAR, "too costly")
    assert desk.run(GrammarCompiled("gone"), GrammarCompiled("gone", failure)) == {}
    assert desk.updates == []
