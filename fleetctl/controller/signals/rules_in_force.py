"""The series and the rules over them: both follow the content in force."""

from __future__ import annotations

from collections.abc import Sequence

from alerts.evaluation.engine import RuleEngine
from alerts.evaluation.rules import RuleGroup, lookback_s_by_metric
from alerts.evaluation.target_liveness import CLEAR_AFTER_S
from alerts.series.store import SeriesStore
from fleetctl.controller.content.content import Content
from fleetctl.controller.signals.prometheus_signals import rules_for, window_s
from fleetctl.kit.clock import Clock
from fleetctl.settings.signals import SignalSettings

MIN_RETENTION_S = 3600.0  # for people, trees and black boxes
LOOKBACK_MARGIN_S = 300.0


class RulesInForce:
    """One series store and one rule engine for the controller's life; `exchange` gives both other rules."""

    def __init__(self, content: Content, settings: SignalSettings, clock: Clock) -> None:
        self._prometheus = settings.prometheus
        self._clock = clock
        clear_after_s = CLEAR_AFTER_S
        if self._prometheus is not None:
            clear_after_s = max(CLEAR_AFTER_S, window_s(self._prometheus))
        self.groups = self._groups_of(content)
        self.store = SeriesStore(retention_s=retention_s(self.groups), max_bytes=settings.max_history_mb << 20)
        self.engine = RuleEngine(self.groups, self.store, clear_after_s=clear_after_s)

    def exchange(self, content: Content) -> None:
        """Put another content's rules in force. What stays keeps its state; series are kept as long as they need."""
        self.groups = self._groups_of(content)
        self.store.keep_at_least(retention_s(self.groups))
        self.engine.replace_groups(self.groups, self._clock.now())

    def _groups_of(self, content: Content) -> list[RuleGroup]:
        return list(content.groups) if self._prometheus is None else rules_for(self._prometheus, content)


def retention_s(groups: Sequence[RuleGroup]) -> float:
    """An hour; longer when a rule reads what we do not record further back."""
    recorded = {rule.name for group in groups for rule in group.rules if rule.kind == "record"}
    lookbacks_s = [reach_s for name, reach_s in lookback_s_by_metric(groups).items() if name not in recorded]
    return max([MIN_RETENTION_S, *(reach_s + LOOKBACK_MARGIN_S for reach_s in lookbacks_s)])
