"""How many persons a run needs: the facts of it that rules of approval look at, as the controller knows them."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.controller.access.tokens import Tokens
from fleetctl.controller.content.store import ContentStore
from fleetctl.controller.incidents.incident_book import IncidentBook
from fleetctl.controller.nodes.fleet import Fleet
from fleetctl.wire.identity import TokenRole
from runbooks.approval import NO_NEED, ApprovalFacts, ApprovalNeed, judge_approvals
from runbooks.run import ACTION, Run, taken_out
from runbooks.target import TargetKind


@dataclass(frozen=True, slots=True)
class ApprovalPolicy:
    """The rules in force, asked of one run at its request."""

    content: ContentStore
    tokens: Tokens
    fleet: Fleet
    book: IncidentBook

    def judge_need(self, run: Run, near_floor: bool) -> ApprovalNeed:
        """What the rules want. What brings a pool to the size that somebody asked for already needs nobody."""
        if run.unasked and run.incident_id is None:
            return NO_NEED
        rules = self.content.current.approvals.values()
        return judge_approvals(self._facts(run, near_floor), rules, self.num_approvers)

    @property
    def num_approvers(self) -> int:
        """Named identities that may approve."""
        return sum(token.role.includes(TokenRole.APPROVER) for token in self.tokens.valid())

    def _facts(self, run: Run, near_floor: bool) -> ApprovalFacts:
        actions = {step.action.verb.name for step in run.do_steps if step.command}
        incident = self.book.get(run.incident_id) if run.incident_id is not None else None
        diagnosis = incident.diagnosis if incident is not None else None
        return ApprovalFacts(
            actions=frozenset(actions if run.runbook == ACTION else {*actions, run.runbook}),
            pools=frozenset(self._pools(run)),
            risk=run.risk,
            is_override=bool(run.override),
            takes_out=bool(taken_out(run.do_steps)),
            near_floor=near_floor,
            by_automation=run.unasked,
            cause=None if diagnosis is None else diagnosis.cause,
            confidence=None if diagnosis is None else diagnosis.confidence,
        )

    def _pools(self, run: Run) -> set[str]:
        nodes = {target.name for target in run.targets if target.kind is TargetKind.NODE} | taken_out(run.do_steps)
        pools = {target.name for target in run.targets if target.kind is TargetKind.POOL}
        return pools | {state.row.spec.pool for name in nodes if (state := self.fleet.nodes.get(name)) is not None}
