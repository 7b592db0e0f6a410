"""`ask` and `wait`: a run stands still until a person answers, or until a signal holds."""

from __future__ import annotations

from runbooks.ports import PermanentError, Receipt
from runbooks.stopwatch import Stopwatch
from runbooks.target import TargetKind
from runbooks.verb import KEEPS, EffectCall, Option, Verb, Verify, Word
from runbooks.verification import look_until_held


def _said(word: Word) -> str:
    return f"by {word.by}" + (f": {word.comment}" if word.comment else "")


def _end_of(word: Word) -> Receipt:
    """What the step ends with when a person ends its wait. Raises PermanentError."""
    if word.what == "skip":
        return {"skipped": _said(word)}
    raise PermanentError(f"{word.what} {_said(word)}")


async def _ask(call: EffectCall) -> Receipt:
    """An answer that was given before a crash is in the journal, so it is found again; the time begins anew."""
    assert call.clock is not None
    watch = Stopwatch(call.clock)
    within_s = call.action.args["within_s"]
    while True:
        word = await call.word()
        if word is not None:
            if word.what == "yes":
                return {"answer": "yes", "by": word.by, "comment": word.comment}
            return _end_of(word)
        if watch.elapsed_s() >= within_s:
            raise PermanentError(f"nobody answered within {within_s:g} s")
        await call.clock.sleep(call.poll_s)


async def _wait(call: EffectCall) -> Receipt:
    assert call.clock is not None
    args = call.action.args
    ended: Word | None = None

    async def is_stopped() -> bool:
        nonlocal ended
        ended = await call.word()
        return ended is not None

    verify = Verify(args["until"], args["within_s"], args["settle_s"])
    verification = await look_until_held(call.evaluate, call.clock, verify, is_stopped, poll_s=call.poll_s)
    if verification.held is None:
        assert ended is not None
        return _end_of(ended)
    if not verification.held:
        raise PermanentError(verification.text)
    return {"waited": verification.text}


VERBS = (
    Verb(
        name="ask",
        kinds=(TargetKind.FLEET,),
        default_target="fleet",
        help="Ask a person, and wait for the answer: runbook approve is yes, runbook deny is no.",
        example="ask --question 'Is the template as it was?' --within 1h",
        capacity=KEEPS,
        predicts=lambda action: (
            f"asks: {action.args['question']} A no, or no answer within {action.args['within_s']:g} s, ends the run"
        ),
        effect=_ask,
        idempotency="the answer is in the journal",
        options=(
            Option("--question", "question", "text", None, "what a person is to answer with yes or no", required=True),
            Option("--within", "within_s", "duration", 3600.0, "how long to wait for the answer"),
        ),
        needs_target=False,
        mutates=False,
        waits=True,
    ),
    Verb(
        name="wait",
        kinds=(TargetKind.FLEET,),
        default_target="fleet",
        help="Wait until an expression holds for a while.",
        example="wait --until 'max(llm:waiting) < bool 1' --within 5m",
        capacity=KEEPS,
        predicts=lambda action: f"waits up to {action.args['within_s']:g} s until {action.args['until']}",
        effect=_wait,
        idempotency="it only looks",
        options=(
            Option("--until", "until", "text", None, "PromQL; holds while its value is not 0", required=True),
            Option("--within", "within_s", "duration", 300.0, "how long to wait for it"),
            Option("--settle", "settle_s", "duration", 5.0, "how long it must hold without a break"),
        ),
        needs_target=False,
        mutates=False,
        waits=True,
    ),
)
