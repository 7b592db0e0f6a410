"""What nodes of other engines answer to the known prompt: recorded for good at the first look, voted on at each."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

import sqlalchemy as sa

from fleetctl.controller.database import StorageLostError
from fleetctl.controller.records import Records
from fleetctl.controller.tables import known_answers
from fleetctl.engines.answer_vote import Judged, vote
from fleetctl.engines.greedy_answer import Answer
from fleetctl.providers.spec import NodeSpec

MAX_RECORDED = 1000
"""Beyond so many the oldest go: each new revision brings one."""


@dataclass(frozen=True, slots=True)
class AnswerKey:
    """What an answer depends on. A pool is part of it: only its nodes stand for each other, on equal machines."""

    engine: str
    version: str
    model: str
    revision: str
    pool: str

    @classmethod
    def of(cls, spec: NodeSpec) -> AnswerKey:
        """The key of a node's answers, as far as it is known what it runs."""
        return cls(spec.engine, spec.facts.get("version", ""), spec.model, spec.revision, spec.pool)

    @property
    def digest(self) -> str:
        """As it is stored."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()


KEY_FIELDS = tuple(field.name for field in fields(AnswerKey))


@dataclass(frozen=True, slots=True)
class _Said:
    key: AnswerKey
    answer: Answer
    at: float


class KnownAnswers:
    """Owner of the recorded answers, and of each node's last one."""

    def __init__(self, records: Records, recorded: dict[AnswerKey, Answer], max_age_s: float) -> None:
        """An answer older than `max_age_s` has no vote."""
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._max_age_s = max_age_s
        self._recorded = recorded
        self._unsaved: set[AnswerKey] = set()
        self._said: dict[str, _Said] = {}

    @classmethod
    async def opened(cls, records: Records, max_age_s: float) -> KnownAnswers:
        """With what the database has."""
        return cls(records, await records.database.read(_read_all), max_age_s)

    async def judge(self, node: str, key: AnswerKey, answer: Answer) -> dict[str, Judged]:
        """Take the node's answer, and say what the vote is of all nodes of its key."""
        now = self._clock.now()
        self._said[node] = _Said(key, answer, now)
        peers = {
            name: said.answer
            for name, said in self._said.items()
            if said.key == key and now - said.at <= self._max_age_s
        }
        recorded = self._recorded.get(key)
        result = vote(peers, recorded)
        if result.recorded is not None and result.recorded != recorded:
            self._recorded[key] = result.recorded
            self._unsaved.add(key)
        if result.was_replaced:
            text = (
                f"most nodes of {key.model} in pool {key.pool} answer the known prompt otherwise than before: what they"
                " say is right from now on"
            )
            self._timeline.append_soon("answers.changed", text, data={"pool": key.pool, "model": key.model})
        await self._save(now)
        return dict(result.judged)

    def forget(self, node: str) -> None:
        """It is gone, or another process answers in its place: what it said is no vote."""
        self._said.pop(node, None)

    async def _save(self, now: float) -> None:
        """What could not be stored is stored at the next answer."""
        if not (keys := frozenset(self._unsaved)):
            return
        answers = {key: self._recorded[key] for key in keys}
        with contextlib.suppress(StorageLostError):
            await self._database.write(lambda c: _write(c, answers, now))
            self._unsaved -= keys


def _read_all(connection: sa.Connection) -> dict[AnswerKey, Answer]:
    found = {}
    for row in connection.execute(sa.select(known_answers.c.document)):
        of = {name: row.document[name] for name in KEY_FIELDS}
        found[AnswerKey(**of)] = Answer.from_json(row.document["answer"])
    return found


def _write(connection: sa.Connection, answers: Mapping[AnswerKey, Answer], now: float) -> None:
    for key, answer in answers.items():
        connection.execute(sa.delete(known_answers).where(known_answers.c.key == key.digest))
        document = {**asdict(key), "answer": answer.to_json()}
        connection.execute(sa.insert(known_answers).values(key=key.digest, document=document, recorded_at=now))
    newest = sa.select(known_answers.c.key).order_by(known_answers.c.recorded_at.desc()).limit(MAX_RECORDED)
    kept = [row.key for row in connection.execute(newest)]
    connection.execute(sa.delete(known_answers).where(known_answers.c.key.not_in(kept)))
