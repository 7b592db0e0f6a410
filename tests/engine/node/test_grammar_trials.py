"""What a client's grammar does to the compiler ends its own trial and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.node.grammar_trials import GrammarHelper, GrammarTrials
from engine.node.refusal import RefusedError
from engine.protocol.grammar import (
    BadGrammarError,
    GrammarKind,
    GrammarSource,
    json_grammar,
)
from engine.protocol.grammar_trial import GrammarHelperConfig, TrialEnded, TrialResult
from tests.fixtures.engine import tiny_model_dir
from tests.fixtures.grammar import tiny_tokenizer

CONFIG = GrammarHelperConfig(
    model_dir=str(tiny_model_dir()),
    vocab_size=tiny_tokenizer().vocab_size,
    eos_token_ids=tuple(tiny_tokenizer().eos_token_ids),
    max_memory_bytes=256 * 2**20,
    max_cpu_s=1,
    max_wall_s=150.0,  # it is the second of CPU that ends a trial here, however long a busy machine takes to give it
)


def regex(pattern: str) -> GrammarSource:
    return GrammarSource(GrammarKind.REGEX, pattern)


def chain(num_links: int) -> dict[str, Any]:
    """A flat text whose references are a chain."""
    links = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(num_links)}
    return {"$defs": {**links, f"a{num_links}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def endless() -> dict[str, Any]:
    """A small text whose automaton has tens of millions of states, so that no CPU compiles it within a second."""
    return {"allOf": [{"type": "integer", "multipleOf": 7919}, {"type": "integer", "multipleOf": 7907}]}


def unchecked(schema: dict[str, Any]) -> GrammarSource:
    """As another node's hand-off may bring it: not looked at by `check_schema`."""
    return GrammarSource(GrammarKind.TEXT, json.dumps({"grammars": [{"json_schema": schema}]}))


def with_helper(use: Callable[[GrammarHelper], Awaitable[None]]) -> None:
    async def main() -> None:
        helper = GrammarHelper(CONFIG)
        try:
            await use(helper)
        finally:
            await helper.stop()

    asyncio.run(main())


def test_a_grammar_that_kills_the_compiler_is_refused_and_the_next_one_compiles() -> None:
    seen: list[TrialResult] = []

    async def use(helper: GrammarHelper) -> None:
        trials = GrammarTrials(helper, on_trial=seen.append)
        assert await trials.compiled(regex("[a-z]+"), "a") == "start: /[a-z]+/\n"
        pid = helper.pid
        with pytest.raises(BadGrammarError, match=r"SIGSEGV.*nests, or refers, too deeply"):
            await trials.compiled(unchecked(chain(3000)), "a")
        with pytest.raises(BadGrammarError, match="within 1 s of CPU time"):
            await trials.compiled(unchecked(endless()), "a")
        with pytest.raises(BadGrammarError, match="does not exist"):
            await trials.compiled(GrammarSource(GrammarKind.TEXT, json_grammar({"$ref": "#/$defs/x"})), "a")
        assert await trials.compiled(regex("[0-9]+"), "a")
        assert helper.pid == pid, "the helper itself touches no client's grammar"
        with pytest.raises(BadGrammarError, match="SIGSEGV"):
            await trials.compiled(unchecked(chain(3000)), "b")

    with_helper(use)
    expected = [TrialResult.COMPILED, TrialResult.CRASHED, TrialResult.CPU_LIMIT, TrialResult.REFUSED]
    assert seen == [*expected, TrialResult.COMPILED], "what was tried before is not tried again"


def test_a_helper_that_is_killed_is_started_again_for_the_grammar_that_waits() -> None:
    async def use(helper: GrammarHelper) -> None:
        trials = GrammarTrials(helper)
        await trials.compiled(regex("a"), "x")
        assert helper.pid is not None
        os.kill(helper.pid, signal.SIGKILL)
        assert await trials.compiled(regex("b"), "x") == "start: /b/\n"

    with_helper(use)


def test_without_a_helper_a_request_is_refused_so_that_another_node_may_take_it(tmp_path: Path) -> None:
    async def main() -> None:
        trials = GrammarTrials(GrammarHelper(CONFIG, command=(sys.executable, "-c", "")))
        with pytest.raises(RefusedError) as refused:
            await trials.compiled(regex("a"), "x")
        assert refused.value.reason == "not_ready"
        missing = GrammarTrials(GrammarHelper(CONFIG, command=(str(tmp_path / "missing"),)))
        with pytest.raises(RefusedError):
            await missing.compiled(regex("a"), "x")

    asyncio.run(main())


class _HeldHelper(GrammarHelper):
    """Answers when it is told to; notes the order."""

    def __init__(self) -> None:
        super().__init__(CONFIG)
        self.tried: list[str] = []
        self.go = asyncio.Event()

    async def run_trial(self, source: GrammarSource) -> TrialEnded:
        await self.go.wait()
        self.tried.append(source.text)
        return TrialEnded(TrialResult.COMPILED, grammar=source.text)


def test_one_clients_many_grammars_do_not_hold_up_those_of_others() -> None:
    async def main() -> tuple[list[str], list[object]]:
        helper = _HeldHelper()
        trials = GrammarTrials(helper)
        hog = [asyncio.create_task(trials.compiled(regex(f"hog{i}"), "hog")) for i in range(40)]
        await asyncio.sleep(0)
        others = [asyncio.create_task(trials.compiled(regex(f"other{i}"), f"other{i}")) for i in range(3)]
        await asyncio.sleep(0)
        helper.go.set()
        ends = await asyncio.gather(*hog, *others, return_exceptions=True)
        return helper.tried, list(ends)

    tried, ends = asyncio.run(main())
    assert {"other0", "other1", "other2"} <= set(tried[:5]), "after what was under way, each other client's first"
    refused = [end for end in ends[:40] if isinstance(end, RefusedError)]
    assert refused
    assert all(refusal.reason == "overloaded" for refusal in refused)
    assert not any(isinstance(end, Exception) for end in ends[40:]), "the full queue is the hog's, who alone is refused"


_SCALARS = st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=8), st.floats(allow_nan=False))
_KEYWORDS = st.sampled_from(
    [
        *("type", "properties", "items", "anyOf", "allOf", "oneOf", "enum", "const", "required", "pattern", "format"),
        *("minLength", "maxLength", "minimum", "maximum", "multipleOf", "minItems", "maxItems", "prefixItems"),
        *("additionalProperties", "patternProperties", "$ref", "$defs", "$id", "$anchor", "if", "not", "x-guidance"),
    ]
)
_WORDS = st.sampled_from(["object", "array", "string", "integer", "number", "#", "#/$defs/a", "date-time", "^(a|b)*$"])
_SCHEMAS = st.recursive(
    _SCALARS | _WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_KEYWORDS | st.sampled_from(["a", "b"]), inner),
    max_leaves=25,
).filter(lambda value: isinstance(value, dict))
_PATTERNS = st.recursive(
    st.sampled_from([*"abc.^$", r"\d", r"\w", "[a-z]", "[^x]", r"\p{L}", "(?i)", "é"]) | st.text(max_size=4),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join),
        inner.map(lambda text: f"({text})*"),
        st.tuples(inner, st.integers(0, 10**6)).map(lambda pair: f"({pair[0]}){{0,{pair[1]}}}"),
    ),
    max_leaves=40,
)
_PIECES = [
    "a",
    "B",
    "start",
    '"x"',
    "/[a-z]+/",
    "|",
    "(",
    ")",
    "*",
    "{0,99999}",
    "&",
    "~",
    "%json {}",
    "<[1]>",
    "::=",
    "\n",
]
_RULES = st.lists(
    st.tuples(st.sampled_from(["start", "a", "B", "root"]), st.lists(st.sampled_from(_PIECES), max_size=8)), max_size=8
).map(lambda rules: "\n".join(f"{name}: {' '.join(pieces)}" for name, pieces in rules))


@pytest.fixture(scope="module")
def shared_helper() -> Iterator[tuple[asyncio.AbstractEventLoop, GrammarHelper]]:
    loop, helper = asyncio.new_event_loop(), GrammarHelper(CONFIG)
    yield loop, helper
    loop.run_until_complete(helper.stop())
    loop.close()


def _sources() -> st.SearchStrategy[GrammarSource]:
    return st.one_of(
        _SCHEMAS.map(unchecked),
        _PATTERNS.map(lambda text: GrammarSource(GrammarKind.REGEX, text)),
        _RULES.map(lambda text: GrammarSource(GrammarKind.LARK, text)),
        st.text(max_size=60).map(lambda text: GrammarSource(GrammarKind.TEXT, text)),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=_sources())
def test_whatever_is_tried_has_one_result_and_the_helper_goes_on(
    shared_helper: tuple[asyncio.AbstractEventLoop, GrammarHelper], source: GrammarSource
) -> None:
    loop, helper = shared_helper
    pid = helper.pid
    ended = loop.run_until_complete(helper.run_trial(source))
    assert (ended.grammar is not None) == (ended.result is TrialResult.COMPILED)
    assert bool(ended.reason) != (ended.result is TrialResult.COMPILED)
    assert pid in (None, helper.pid)
