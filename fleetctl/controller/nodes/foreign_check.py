"""One deep check of a node whose engine has none: it is asked to complete the known prompt, after all users where its
engine can do that. What comes is an answer to judge, a reason why it can't serve, or nothing that says anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from fleetctl.controller.nodes.fleet import NodeState
from fleetctl.controller.nodes.node_answers import BadStatusError, NoAnswerError, UnansweredError
from fleetctl.controller.nodes.node_client import NodeClient
from fleetctl.engines.greedy_answer import Answer
from fleetctl.engines.known_prompt import BadAnswerError, answer_of, latest_of_sglang, questions
from fleetctl.engines.table import engine_kind
from fleetctl.providers.spec import NodeSpec

ANSWER_LIMIT_S = 30.0  # longer than the window of the rates that tell progress
ASLEEP, CORE_STUCK = "asleep", "core_stuck"
_REFUSED = (HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY)
Progress = Callable[[str], float | None]
"""Steps or tokens a second that a node computes now; None: it does not say."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`reason`: why it can't serve, a word of phases; without one and without an answer nothing is known."""

    answer: Answer | None = None
    reason: str = ""
    detail: str = ""


class ForeignCheck:
    """Remembers of each node how it may be asked."""

    def __init__(self, client: NodeClient, progress: Progress) -> None:
        self._client = client
        self._progress = progress
        self._ways: dict[str, int] = {}

    async def ask(self, state: NodeState) -> Finding:
        """Raises NoAnswerError, NotAllowedError when it could not be asked."""
        spec, url = state.row.spec, state.url
        assert url is not None
        if await self._client.is_sleeping(url, spec.engine, spec.api_key):  # one that sleeps may die of a request
            return Finding(reason=ASLEEP, detail="it sleeps")
        try:
            return Finding(await self._answer(state.name, url, spec))
        except BadAnswerError as error:
            raise NoAnswerError(str(error)) from error
        except UnansweredError as error:
            if (rate := self._progress(state.name)) == 0:
                detail = f"no answer within {ANSWER_LIMIT_S:g} s, and it computes nothing meanwhile"
                return Finding(reason=CORE_STUCK, detail=detail)
            how = "it does not say whether it computes" if rate is None else "it computes for others"
            raise NoAnswerError(f"no answer within {ANSWER_LIMIT_S:g} s; {how}") from error

    def forget(self, node: str) -> None:
        """It is gone, or another process answers in its place."""
        self._ways.pop(node, None)

    async def _answer(self, node: str, url: str, spec: NodeSpec) -> Answer:
        latest = latest_of_sglang(await self._info(url, spec)) if spec.engine == "sglang" else None
        ways = questions(spec.engine, spec.model, latest)
        first = min(self._ways.get(node, 0), len(ways) - 1)
        for number, question in enumerate(ways[first:], first):
            try:
                told = await self._client.complete(
                    f"{url}{question.path}", question.body, timeout_s=ANSWER_LIMIT_S, api_key=spec.api_key
                )
            except BadStatusError as error:
                if error.status in _REFUSED and number + 1 < len(ways):
                    continue
                raise
            self._ways[node] = number
            return answer_of(spec.engine, told)
        raise AssertionError("each engine can be asked somehow")

    async def _info(self, url: str, spec: NodeSpec) -> dict[str, object]:
        for path in engine_kind(spec.engine).version_paths:
            answered = await self._client.probe(f"{url}{path}", spec.api_key)
            if answered.status == HTTPStatus.OK:
                try:
                    told = json.loads(answered.text)
                except (ValueError, RecursionError):
                    return {}
                return told if isinstance(told, dict) else {}
        return {}
