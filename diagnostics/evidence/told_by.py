"""Which engines can answer a question, so that a verdict says what its engines never tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

from alerts.evaluation.builtin import builtin_rule_files
from alerts.evaluation.rules import load_rule_files
from alerts.review.catalog import builtin_catalog
from alerts.review.coverage import GPU_EXPORTER, answering_engines, covered_engines
from diagnostics.query import NO_DATA, RunQuery, sample_query, scope_matcher


def untold(templates: Mapping[str, str], scope: Mapping[str, str], run_query: RunQuery) -> dict[str, str]:
    """Of questions that found no series, by id: why, of those that none of the scope's engines can answer.

    By the built-in signals: what a user's own tell has a series, or may have one.
    """
    engines = _engines_in(scope, run_query) if templates else ()
    if not engines:
        return {}
    programs = builtin_catalog().engines
    named = " and ".join(programs.get(engine, engine) for engine in engines)
    why = f"{NO_DATA}: {named} {'tells' if len(engines) == 1 else 'tell'} none"
    return {name: why for name, template in templates.items() if not _tells(template) & set(engines)}


def _engines_in(scope: Mapping[str, str], run_query: RunQuery) -> tuple[str, ...]:
    """The engines of its nodes; none where one of them is of no kind that the signals know."""
    here = scope_matcher(scope)
    found = tuple(
        engine
        for engine in covered_engines_once()
        if run_query(f'count(llm:up{{engine="{engine}",{here}}})').value is not None
    )
    known = "|".join(found)
    stranger = run_query(f'count(llm:up{{engine!~"{known}",{here}}})').value
    return found if stranger is None else ()


@lru_cache(maxsize=1)
def covered_engines_once() -> tuple[str, ...]:
    """As the signals files have them."""
    return tuple(engine for engine in covered_engines() if engine != GPU_EXPORTER)


@lru_cache(maxsize=1024)
def _tells(template: str) -> frozenset[str]:
    return _answering()(sample_query(template))


@lru_cache(maxsize=1)
def _answering() -> Callable[[str], frozenset[str]]:
    return answering_engines(load_rule_files(builtin_rule_files()))
