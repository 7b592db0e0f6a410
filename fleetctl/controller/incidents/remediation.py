"""From a named cause to a proposed runbook, once per incident. Whether it runs unasked is the policy's word."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import structlog
from pydantic import TypeAdapter

from diagnostics.incident import Incident, IncidentStatus
from diagnostics.scope import is_wide
from fleetctl.controller.alertmanager.automation import Automation
from fleetctl.controller.content.content import Content
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.by_hand import in_force_words, missing_words, words_for_node
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.incidents.new_node_names import NO_NAMES, given_names, new_nodes, with_new_nodes
from fleetctl.controller.nodes.node_row import get_node
from fleetctl.controller.records import Records
from fleetctl.controller.rollouts.deploy_before import deploy_before, nothing_to_take_back
from fleetctl.controller.rollouts.rollout import Rollout
from fleetctl.settings.controller import ControllerSettings, PolicyName
from fleetctl.traffic_rule import RuleSpec, TrafficRule
from runbooks.breaker import Breaker, BreakerState
from runbooks.errors import RunbookError
from runbooks.executor import Executor
from runbooks.guard import Policy, needs_person
from runbooks.journal import Journal
from runbooks.page import Page
from runbooks.ports import Lookup
from runbooks.run import ACTIVE, Run, RunStatus
from runbooks.template import fill
from runbooks.value import ValueType

log = structlog.get_logger()

_BREAKER_VALUES = {BreakerState.CLOSED: 0.0, BreakerState.HALF_OPEN: 0.5, BreakerState.OPEN: 1.0}
WATCH_EVERY_S = 5.0  # between two looks at it, for people: each start looks by itself
ROLLBACK_PAGE = "rollback-pool"
WITHDRAWER = "controller"  # who cancels what it proposed itself
MAX_SEEN_TOKENS = 1e8
_SPEC: TypeAdapter[RuleSpec] = TypeAdapter(RuleSpec)
LIKELY_HOLD_S = 10.0  # a cause that is only likely must stand this long before something is proposed


class _ImpossibleError(Exception):
    """Why nothing can be proposed, in the timeline's words."""


class Remediation:
    """Proposes the page that treats a named cause, and approves it where the policy is `run`."""

    def __init__(
        self,
        content: ContentStore,
        executor: Executor,
        journal: Journal,
        lookup: Lookup,
        book: IncidentBook,
        automation: Automation,
        records: Records,
        settings: ControllerSettings,
        rollouts: Callable[[], Awaitable[Sequence[Rollout]]],
        rules: Callable[[], Awaitable[Sequence[TrafficRule]]],
    ) -> None:
        """`rollouts`: all that are stored. `rules`: those in force."""
        self._rollouts = rollouts
        self._rules = rules
        self._content = content
        self._executor = executor
        self._journal = journal
        self._lookup = lookup
        self._book = book
        self._automation = automation
        self._database = records.database
        self._timeline = records.timeline
        self._clock = records.clock
        self._settings = settings
        # By open incident, for the cause that it has now: one that comes back is treated, and told, anew.
        self._settled: dict[str, tuple[int, str, float | None, bool]] = {}
        self._told_once: dict[str, str] = {}  # by open incident: what is asked again until it is over, and said once
        self._metrics = records.metrics
        self.breaker = Breaker()
        """As of the last look at it."""
        self._watch_due_at = -math.inf
        self._held: set[str] | None = None  # runs that would start but for a restraint; None: not read yet

    async def propose_runbooks(self) -> None:
        """Propose, or run, what treats each open incident's cause; once for each. Start what was held up."""
        now = self._clock.now()
        await self._watch_waiting_and_breaker()
        await self._release_held()
        incidents = self._book.open_incidents()
        self._forget_all_but({incident.id for incident in incidents})
        for incident in incidents:
            diagnosis = incident.diagnosis
            if diagnosis is None or diagnosis.cause is None or incident.cleared_at is not None:
                continue
            if diagnosis.confidence != "confirmed" and now - diagnosis.said_since < LIKELY_HOLD_S:
                continue
            if diagnosis.awaits:
                continue  # a scrape that fails is not yet a node that is gone
            named = self._content.current.causes.get(diagnosis.cause)
            is_elsewhere = named is not None and named.not_by_deploy and diagnosis.confidence == "confirmed"
            deploy = None if is_elsewhere else await self._deploy_of(incident)
            key = (incident.reopened, diagnosis.cause, incident.widened_at, deploy is not None)
            if self._settled.get(incident.id) == key or not self._automation.may_propose(incident):
                continue
            # The guards' first word on a run is final: not before they can look, e.g. right after a start.
            if await self._lookup.serving_nodes() is not None and await self._propose(
                incident, diagnosis.cause, deploy
            ):
                self._settled[incident.id] = key

    def _forget_all_but(self, open_ids: Collection[str]) -> None:
        self._settled = {one: key for one, key in self._settled.items() if one in open_ids}
        self._told_once = {one: why for one, why in self._told_once.items() if one in open_ids}

    async def _deploy_of(self, incident: Incident) -> Rollout | None:
        """The rollout that the incident began with, while nobody has answered whether it is to be rolled back."""
        if ROLLBACK_PAGE not in self._content.current.pages:
            return None
        rollouts = await self._rollouts()
        if not rollouts:
            return None
        onset = incident.onset_at or incident.opened_at
        if (pool := incident.scope.get("pool")) and deploy_before(rollouts, pool, onset) is None:
            return None  # whatever its node's revision is
        name = incident.scope.get("node", "")
        node = await self._database.read(lambda c: get_node(c, name))
        pool = node.spec.pool if node is not None else incident.scope.get("pool", "")
        revision = node.spec.revision if node is not None else incident.scope.get("revision", "")
        found = deploy_before(rollouts, pool, onset, revision=revision)
        runs = await self._database.call(lambda: self._journal.list(incident_id=incident.id)) if found else ()
        is_answered = any(_is_answered_rollback(run) for run in runs)
        return None if is_answered else found

    async def _propose(self, incident: Incident, cause: str, deploy: Rollout | None = None) -> bool:
        """Whether the question is settled; not while the incident's scope changes under it.

        `deploy`: what it began with. To take that back is proposed first, whatever the cause, and never runs unasked.
        """
        runs = await self._database.call(lambda: self._journal.list(incident_id=incident.id))
        if any(run.status.is_active and not run.dry_run for run in runs):
            return False  # one remedy at a time: what it changes is measured, and a second would be refused its nodes
        try:
            page = await self._page_that_treats(incident, cause, deploy, runs)
            if page is None:
                return True
            if (standing := blocking_run(runs, page.name, incident)) is not None:
                log.info("remediation.kept", incident_id=incident.id, run_id=standing.id, status=standing.status)
                return True
            inputs = await self._inputs_of(page, incident, cause, deploy)
            current = self._book.get(incident.id)
            if current is None or (current.scope, current.part_of) != (incident.scope, incident.part_of):
                return False  # it widened meanwhile: what suits one node is no remedy for all of them
            return await self._ask_for(page, inputs, incident, cause, deploy, runs)
        except _ImpossibleError as why:
            await self._say_impossible(incident, str(why))
            return True

    async def _page_that_treats(
        self, incident: Incident, cause: str, deploy: Rollout | None, runs: Sequence[Run]
    ) -> Page | None:
        """The page to propose; None: its rollback was answered, and its run says how. What was proposed for an earlier
        cause is withdrawn. Raises _ImpossibleError."""
        content = self._content.current
        page = content.pages[ROLLBACK_PAGE] if deploy is not None else content.page_for_cause(cause)
        if page is not None and page.name == ROLLBACK_PAGE and deploy is None:
            await self._withdraw_others(incident, None)
            if any(_is_answered_rollback(run) for run in runs):
                return None
            onset = incident.onset_at or incident.opened_at
            raise _ImpossibleError(nothing_to_take_back(await self._rollouts(), incident.scope.get("pool", ""), onset))
        await self._withdraw_others(incident, page)
        if page is None:
            known = content.causes.get(cause)
            why = f": {known.no_page}" if known is not None and known.no_page else ""
            raise _ImpossibleError(f"no runbook treats {cause}{why}")
        if page.is_by_hand:
            words = f"no command mends {cause}; what a person does says `fleetctl runbook show {page.name}`"
            raise _ImpossibleError(words)
        return page

    async def _inputs_of(self, page: Page, incident: Incident, cause: str, deploy: Rollout | None) -> dict[str, str]:
        """What the page is to be run with: by the incident's place, and by what the fleet measures. Raises
        _ImpossibleError."""
        nodes = await self._lookup.nodes() or ()
        used = {node.name for node in nodes}
        scope = {**incident.scope, **({"pool": deploy.pool} if deploy is not None else {})}
        its = incident.diagnosis.its_node if incident.diagnosis is not None else ""
        if its and "node" in page.inputs and "node" not in scope:
            if (own := self._own_incident(its, cause)) is not None:
                raise _ImpossibleError(f"{its} has an incident of its own, and its remedy there: {own}")
            if not any(node.name == its and node.wanted for node in nodes):
                raise _ImpossibleError(f"{its}, which the verdict names, was taken out")
            scope |= {"node": its}
        inputs, missing = inputs_from_scope(page, scope, used, given_names(nodes))
        if missing:
            raise _ImpossibleError(missing_words(page, scope, missing, incident.id))
        return inputs | await seen_inputs(page, inputs, self._lookup.evaluate)

    async def _ask_for(
        self,
        page: Page,
        inputs: Mapping[str, str],
        incident: Incident,
        cause: str,
        deploy: Rollout | None,
        runs: Sequence[Run],
    ) -> bool:
        """Propose the page, or let it start. False: the same stands elsewhere, and it is asked again. Raises
        _ImpossibleError."""
        confirmed = incident.diagnosis is not None and incident.diagnosis.confidence == "confirmed"
        unasked = confirmed and deploy is None and self._may_run(page, incident, cause)
        reason = incident.diagnosis.title if incident.diagnosis else cause
        if deploy is not None:
            reason = f"it began with {deploy.id}, {deploy.from_revision} to {deploy.to_revision}: {reason}"[:2000]
        again = f":{incident.reopened}" if incident.reopened else ""
        if withdrawn := sum(run.runbook == page.name and is_withdrawn(run) for run in runs):
            again += f":after-{withdrawn}"
        try:
            if why := await self._executor.why_never(page.name, inputs):
                raise _ImpossibleError(f"{page.name}: {why}{words_for_node(incident.scope.get('node'))}")
            if why := await self._in_force(page, inputs) or await self._asked_elsewhere(
                page, inputs, incident, unasked=unasked
            ):
                if self._told_once.get(incident.id) != why:
                    self._told_once[incident.id] = why
                    await self._say_impossible(incident, why)
                return False
            run = await self._executor.propose(
                page.name,
                inputs,
                reason=reason,
                incident_id=incident.id,
                requested_by=f"policy:{cause}" if unasked else "controller",
                idempotency_key=f"{incident.id}:{page.name}{again}",
                unasked=unasked,
            )
        except RunbookError as error:
            raise _ImpossibleError(f"{page.name}: {error}") from error
        if self._held is not None and run.unasked and run.status is RunStatus.PROPOSED:
            self._held.add(run.id)
        return True

    def _own_incident(self, node: str, cause: str) -> str | None:
        """The open incident of a node alone that was given this cause too; None: there is none."""
        own = (one for one in self._book.open_incidents() if one.scope.get("node") == node)
        return next((one.id for one in own if one.diagnosis is not None and one.diagnosis.cause == cause), None)

    async def _asked_elsewhere(
        self, page: Page, inputs: Mapping[str, str], incident: Incident, *, unasked: bool
    ) -> str:
        """That the same is proposed, or done, to the same place for another incident, in words; "" where it is not.

        What may run unasked here waits for nobody's answer there: that proposal is taken back.
        """
        chosen = new_nodes(page, inputs).keys() | {name for name, spec in page.inputs.items() if spec.seen}
        given = {name: value for name, value in inputs.items() if name not in chosen}
        for run in await self._database.call(lambda: self._journal.list({RunStatus.PROPOSED, *ACTIVE})):
            is_same = run.runbook == page.name and not run.dry_run and given.items() <= run.inputs.items()
            if not is_same or run.incident_id in (None, incident.id):
                continue
            if not (unasked and run.status is RunStatus.PROPOSED):
                of = given.get("node") or given.get("pool")
                return f"{page.name}{f' of {of}' if of else ''} is {run.status.value} for {run.incident_id} already"
            await self._withdraw(run, f"it runs for {incident.id}")
        return ""

    async def _in_force(self, page: Page, inputs: Mapping[str, str]) -> str:
        """That the rules stand which the page would make, in words; "" where it makes others, or none."""
        orders = await self._executor.rules_of(page.name, inputs)
        if not orders:
            return ""
        wanted = {name: _SPEC.validate_python(spec) for name, spec in orders.items()}
        return in_force_words(page.name, wanted, await self._rules())

    async def _watch_waiting_and_breaker(self) -> None:
        """Tell what waits for a person, when automation stops because it does not help, and when it goes on."""
        now = self._clock.now()
        if now < self._watch_due_at:
            return
        self._watch_due_at = now + WATCH_EVERY_S
        waiting = await self._database.call(lambda: self._journal.list({RunStatus.PROPOSED}))
        self._metrics.tell_proposals(waiting, now)
        before, self.breaker = self.breaker, await self._executor.breaker()
        self._metrics.breaker_open.set(_BREAKER_VALUES[self.breaker.state])
        if before.state is self.breaker.state:
            return
        text = self.breaker.words or "breaker: automation goes on, its last run helped"
        await self._timeline.append(f"breaker.{self.breaker.state}", text, data={"runs": list(self.breaker.useless)})

    async def _release_held(self) -> None:
        """Start what automation would have run, once nothing holds it and if its incident and cause still stand."""
        if self._held is None:
            waiting = await self._database.call(lambda: self._journal.list({RunStatus.PROPOSED}))
            self._held = {run.id for run in waiting if run.unasked}
        for run_id in sorted(self._held):
            run = await self._database.call(lambda run_id=run_id: self._journal.get(run_id))  # type: ignore[misc]
            if run.status is not RunStatus.PROPOSED:
                self._held.discard(run_id)
                continue
            incident = self._book.get(run.incident_id or "")
            if incident is None or not self._still_treats(run, incident):
                continue
            try:
                await self._executor.release(run_id)
            except RunbookError as error:  # somebody answered in this very moment, or a freeze began
                log.info("run.not_released", run_id=run_id, why=str(error))

    def _still_treats(self, run: Run, incident: Incident) -> bool:
        """Whether the run is still what automation would start for the incident as it is now."""
        diagnosis = incident.diagnosis
        if diagnosis is None or diagnosis.cause is None or diagnosis.confidence != "confirmed" or diagnosis.awaits:
            return False
        page = self._content.current.page_for_cause(diagnosis.cause)
        return (
            incident.status is not IncidentStatus.RESOLVED
            and incident.cleared_at is None
            and page is not None
            and page.name == run.runbook
            and self._may_run(page, incident, diagnosis.cause)
        )

    def _may_run(self, page: Page, incident: Incident, cause: str) -> bool:
        """Whether the page may start for the incident's confirmed cause without a person."""
        return (
            self._automation.may_run_unasked(incident)
            and is_for_scope(page, incident.scope)
            and not self._is_part_of_open(incident)
            and not needs_person(Policy(self._policy_for(self._content.current, cause)), page.risk)
        )

    async def _withdraw_others(self, incident: Incident, page: Page | None) -> None:
        """Cancel what we proposed for a cause that was replaced since, as far as nobody answered."""
        for run in await self._database.call(lambda: self._journal.list(incident_id=incident.id)):
            is_ours = run.requested_by == "controller" or run.requested_by.startswith("policy:")
            if run.status is RunStatus.PROPOSED and is_ours and (page is None or run.runbook != page.name):
                await self._withdraw(run, "its cause was replaced before anybody answered")

    async def _withdraw(self, run: Run, why: str) -> None:
        try:
            await self._executor.cancel(run.id, WITHDRAWER, why)
        except RunbookError as error:  # somebody answered in this very moment: that stands
            log.info("run.not_withdrawn", run_id=run.id, why=str(error))

    def _is_part_of_open(self, incident: Incident) -> bool:
        """Whether a wider incident stands that explains it: then its node is not treated by itself unasked."""
        wider = self._book.get(incident.part_of) if incident.part_of is not None else None
        return wider is not None and wider.status is not IncidentStatus.RESOLVED

    def _policy_for(self, content: Content, cause: str) -> PolicyName:
        """What content says of the cause; else the settings, where `run` may be for named causes only."""
        if (named := content.policies.get(cause)) is not None:
            return named
        is_left_out = bool(self._settings.policy_causes) and cause not in self._settings.policy_causes
        return "ask" if self._settings.policy == "run" and is_left_out else self._settings.policy

    async def _say_impossible(self, incident: Incident, why: str) -> None:
        await self._timeline.append(
            "remediation.not_proposed", why, incident_id=incident.id, node=incident.scope.get("node")
        )


def is_for_scope(page: Page, scope: Mapping[str, str]) -> bool:
    """Whether the page may run unasked for the scope. One wider than a node needs a page that takes no node and takes
    every place that the scope names: a node's remedy is never repeated over a zone."""
    if page.is_by_hand:
        return False
    if not is_wide(scope):
        return True
    takes_node = any(spec.type in (ValueType.NODE, ValueType.NEW_NODE) for spec in page.inputs.values())
    return not takes_node and all(name in page.inputs for name in scope)


def blocking_run(runs: Sequence[Run], runbook: str, incident: Incident) -> Run | None:
    """A run that already stands for this remedy: one that is not over, or that did not help and is not repeated."""
    for run in runs:
        if run.runbook != runbook or run.dry_run or is_withdrawn(run):
            continue
        repeatable = run.status in (RunStatus.SUCCEEDED, RunStatus.EXPIRED, RunStatus.CANCELLED)
        if not repeatable or not incident.reopened:
            return run
    return None


def _is_answered_rollback(run: Run) -> bool:
    return run.runbook == ROLLBACK_PAGE and run.status.is_terminal and not is_withdrawn(run)


def is_withdrawn(run: Run) -> bool:
    """Whether we took the proposal back before anybody's word on it: no reason against it when its cause comes back."""
    return run.status is RunStatus.CANCELLED and run.cancelled_by == WITHDRAWER and run.decided_by is None


def inputs_from_scope(
    page: Page, scope: Mapping[str, str], used: Collection[str], given: Mapping[str, Sequence[str]] = NO_NAMES
) -> tuple[dict[str, str], list[str]]:
    """Inputs of the page, and the required ones that the scope does not give.

    A new node's name follows from the node it is to replace, the names ever used and those that can be had (`given`),
    and from nothing else.
    """
    inputs = with_new_nodes(page, {name: scope[name] for name in page.inputs if name in scope}, used, given)
    missing = [
        name for name, spec in page.inputs.items() if name not in inputs and spec.required and spec.default is None
    ]
    return inputs, missing


async def seen_inputs(
    page: Page, inputs: Mapping[str, str], evaluate: Callable[[str], Awaitable[float | None]]
) -> dict[str, str]:
    """Thresholds that the page takes from what the fleet measures, to two digits; where that is not known, none: its
    default stands."""
    known = {name: spec.default for name, spec in page.inputs.items() if spec.default is not None} | dict(inputs)
    found = {}
    for name, spec in page.inputs.items():
        if not spec.seen or name in inputs:
            continue
        value = await evaluate(fill(spec.seen, known))
        if value is not None and 1 <= value < MAX_SEEN_TOKENS:
            found[name] = f"{float(f'{value:.2g}'):.0f}"
    return found
