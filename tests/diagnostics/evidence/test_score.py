"""Evidence, not order, decides: what each answer does to the causes."""

from __future__ import annotations

from dataclasses import replace

from diagnostics.diagnosis import AnswerWord, Evidence
from diagnostics.evidence.question import Question
from diagnostics.evidence.score import Fit, Ranking, rank_causes
from diagnostics.expectation import Expectation
from diagnostics.tree import Limit

NAMES = ("slow", "queue", "ttft", "arrivals", "hit_fell", "longer")
QUESTIONS = {
    name: Question(name, f"Is {name}?", "vector(1)", None, Limit(">", 0), None, "count", "a test") for name in NAMES
}
LATENCY = frozenset({"latency"})
CAUSES = {
    "slow_node": Expectation(
        "slow", LATENCY, (("slow",),), may=("queue", "ttft"), never=("arrivals",), where=frozenset({"node"})
    ),
    "overload": Expectation("load", LATENCY, (("queue",), ("arrivals",)), often=("ttft",)),
    "prefix": Expectation("hit", LATENCY, (("hit_fell",),), often=("ttft",), never=("longer",)),
    "long_prompts": Expectation("long", LATENCY, (("longer",),), often=("ttft", "hit_fell"), may=("queue",)),
}


def _rank(kind: str = "node", trees: tuple[str, ...] = ("latency",), **answers: AnswerWord) -> Ranking:
    readings = {name: Evidence(name, name, answers.get(name, "no")) for name in NAMES}
    return rank_causes(CAUSES, QUESTIONS, readings, trees, kind)


def _best(ranking: Ranking) -> tuple[str, ...]:
    return ranking.fits[0].causes


def test_cause_whose_consequences_are_seen_is_named_before_the_one_that_leaves_them_unexplained() -> None:
    ranking = _rank(slow="yes", queue="yes", ttft="yes")
    assert _best(ranking) == ("slow_node",)
    assert ranking.probability_of("slow_node") > 0.8


def test_fresh_no_to_a_must_and_fresh_yes_to_a_never_rule_a_cause_out() -> None:
    ranking = _rank(hit_fell="yes", longer="yes", ttft="yes")
    assert _best(ranking) == ("long_prompts",)
    assert {(one.cause, one.question) for one in ranking.excluded} >= {("prefix", "longer"), ("overload", "queue")}


def test_unknown_must_rules_nothing_out_and_names_nothing() -> None:
    ranking = _rank(slow="unknown", ttft="yes")
    assert "slow_node" not in {one.cause for one in ranking.excluded}
    assert ranking.best.causes == ()
    assert 0 < ranking.probability_of("slow_node") < ranking.fits[0].probability


def test_cause_that_hangs_on_what_nobody_can_tell_stays_behind_the_one_that_is_seen() -> None:
    flood = Expectation("flood", LATENCY, (("longer",), ("queue",)), often=("ttft",), may=("arrivals",))
    readings = {name: Evidence(name, name, "yes") for name in ("queue", "arrivals", "ttft")}
    readings["longer"] = Evidence("longer", "longer", "unknown")
    ranking = rank_causes({"overload": CAUSES["overload"], "flood": flood}, QUESTIONS, readings, ["latency"], "pool")
    assert _best(ranking) == ("overload",)
    assert ranking.probability_of("overload") > 0.8


def test_cause_that_is_named_only_when_it_is_seen_is_not_guessed_from_symptoms() -> None:
    idle = Expectation("idle", LATENCY, (("longer",), ("queue", "ttft")), only_seen=True)
    readings = {"longer": Evidence("longer", "longer", "unknown"), "ttft": Evidence("ttft", "ttft", "yes")}
    guessed = rank_causes({"idle": idle}, QUESTIONS, readings, ["latency"], "pool")
    assert guessed.probability_of("idle") == 0
    readings["longer"] = Evidence("longer", "longer", "yes")
    assert rank_causes({"idle": idle}, QUESTIONS, readings, ["latency"], "pool").probability_of("idle") > 0.8


def test_two_faults_that_explain_what_neither_explains_alone_are_named_together() -> None:
    ranking = _rank(hit_fell="yes", queue="yes", arrivals="yes", ttft="yes")
    assert set(_best(ranking)) == {"prefix", "overload"}


def test_what_two_causes_may_both_bring_about_speaks_for_no_pair() -> None:
    shared = NAMES[1:3]
    causes = {
        "hit": Expectation("hit", LATENCY, (("hit_fell",),), may=shared),
        "long": Expectation("long", LATENCY, (("longer",),), may=shared),
    }

    def pair_over_one(**answers: AnswerWord) -> float:
        readings = {name: Evidence(name, name, answers.get(name, "no")) for name in NAMES}
        scores = {one.causes: one.score for one in rank_causes(causes, QUESTIONS, readings, ["latency"], "pool").fits}
        return scores["hit", "long"] - scores["hit",]

    bare = pair_over_one(hit_fell="yes", longer="yes")
    assert abs(pair_over_one(hit_fell="yes", longer="yes", queue="yes", ttft="yes") - bare) < 1e-9


def test_beside_another_cause_a_never_must_be_what_that_one_mostly_has() -> None:
    def pairs(**beside: tuple[str, ...]) -> bool:
        causes = {
            "slow": Expectation("slow", LATENCY, (("slow",),), never=("queue",)),
            "hit": Expectation(
                "hit", LATENCY, (("hit_fell",),), may=beside.get("may", ()), often=beside.get("often", ())
            ),
        }
        readings = {
            name: Evidence(name, name, "yes" if name in ("slow", "hit_fell", "queue") else "no") for name in NAMES
        }
        fits = rank_causes(causes, QUESTIONS, readings, ["latency"], "node").fits
        return any(set(one.causes) == {"slow", "hit"} for one in fits)

    assert not pairs(may=("queue",))
    assert pairs(often=("queue",))


def test_what_tells_of_one_cause_alone_is_named_beside_one_whose_nature_rules_it_out() -> None:
    def pairs(base: float) -> bool:
        causes = {
            "path": Expectation("path", LATENCY, (("slow",),), never=("queue",)),
            "dead": Expectation("dead", LATENCY, (("queue", "hit_fell", "longer", "arrivals"),)),
        }
        questions = QUESTIONS | {"slow": replace(QUESTIONS["slow"], base=base)}
        readings = {name: Evidence(name, name, "yes" if name in ("slow", "queue") else "no") for name in NAMES}
        fits = rank_causes(causes, questions, readings, ["latency"], "node").fits
        return any(set(one.causes) == {"path", "dead"} for one in fits)

    assert pairs(0.01)
    assert not pairs(0.1)


def test_signs_that_one_cause_leaves_over_are_a_seconds_although_it_may_bring_about_what_rules_that_one_out() -> None:
    """All are slower because they preempt; that one of them is three times slower than the rest is not of that."""

    def pairs(*left_over: str, base: float = 0.02) -> bool:
        causes = {
            "slow": Expectation("slow", LATENCY, (("slow", "arrivals"),), never=("queue",)),
            "hit": Expectation("hit", LATENCY, (("hit_fell",),), may=("queue",)),
        }
        questions = QUESTIONS | {name: replace(QUESTIONS[name], base=base) for name in ("slow", "arrivals")}
        yes = ("hit_fell", "queue", *left_over)
        readings = {name: Evidence(name, name, "yes" if name in yes else "no") for name in NAMES}
        return set(_best(rank_causes(causes, questions, readings, ["latency"], "node"))) == {"slow", "hit"}

    assert pairs("slow", "arrivals")
    assert not pairs("slow")
    assert not pairs("slow", "arrivals", base=0.03)


def test_incident_whose_alert_speaks_for_itself_is_not_named_after_what_else_goes_on() -> None:
    causes = CAUSES | {"spent": Expectation("spent", frozenset({"gateway"}), (("longer",),))}
    questions = QUESTIONS | {"longer": replace(QUESTIONS["longer"], base=0.02)}
    yes = ("slow", "queue", "ttft", "longer")
    readings = {name: Evidence(name, name, "yes" if name in yes else "no") for name in NAMES}
    of_gateway = rank_causes(causes, questions, readings, ["gateway"], "node")
    of_latency = rank_causes(causes, questions, readings, ["latency"], "node")
    assert "spent" in _best(of_gateway)
    assert "slow_node" in _best(of_latency)


def test_one_cause_is_enough_where_it_explains_all() -> None:
    assert _best(_rank(arrivals="yes", queue="yes", ttft="yes")) == ("overload",)


def test_none_of_ours_where_no_must_is_seen() -> None:
    assert _best(_rank(ttft="yes")) == ()


def test_cause_of_a_node_is_not_judged_for_a_pool() -> None:
    assert _rank("pool", slow="yes").probability_of("slow_node") == 0


def test_alert_of_a_tree_that_a_cause_does_not_explain_speaks_against_it() -> None:
    alone, beside = _rank(slow="yes"), _rank(slow="yes", trees=("latency", "output"))
    assert beside.probability_of("slow_node") < alone.probability_of("slow_node")


def test_a_cause_that_stands_alone_is_no_second_one() -> None:
    deploy = Expectation("deploy", LATENCY, (("queue",),), often=("arrivals",), alone=True)
    causes = {"prefix": CAUSES["prefix"], "deploy": deploy}
    readings = {name: Evidence(name, name, "yes") for name in ("hit_fell", "queue", "arrivals", "ttft")}
    ranking = rank_causes(causes, QUESTIONS, readings, ["latency"], "pool")
    assert all(len(one.causes) < 2 for one in ranking.fits)
    beside = rank_causes(causes | {"deploy": replace(deploy, alone=False)}, QUESTIONS, readings, ["latency"], "pool")
    assert set(_best(beside)) == {"prefix", "deploy"}


def test_no_runner_up_is_likelier_than_the_cause_that_is_named() -> None:
    fits = (Fit(("a",), 3.0, 0.4), Fit(("b",), 2.5, 0.3), Fit(("b", "c"), 2.4, 0.25), Fit((), 0.0, 0.05))
    assert Ranking(fits, ()).best == fits[1]
    assert Ranking((fits[0], fits[3]), ()).best == fits[0]
    assert Ranking((fits[3], fits[0]), ()).best == fits[3]


def test_what_nobody_can_tell_keeps_no_cause_from_being_the_runner_up() -> None:
    unseen = Expectation("unseen", LATENCY, (("queue",), ("longer",)), often=("arrivals", "ttft"))
    seen = Expectation("seen", LATENCY, (("queue",),), often=("ttft",))
    readings = {name: Evidence(name, name, "yes") for name in ("queue", "arrivals", "ttft")}
    readings["longer"] = Evidence("longer", "longer", "unknown")
    causes = {"overload": CAUSES["overload"], "unseen": unseen, "seen": seen}
    ranking = rank_causes(causes, QUESTIONS, readings, ["latency"], "pool")
    assert ranking.probability_of("seen") > ranking.probability_of("unseen")
    assert ranking.next_to(["overload"], frozenset()) == "unseen"
    told = rank_causes(
        causes, QUESTIONS, readings | {"longer": Evidence("longer", "longer", "no")}, ["latency"], "pool"
    )
    assert told.next_to(["overload"], frozenset()) == "seen"


def test_of_two_runners_up_that_fit_alike_the_one_that_the_verdict_is_told_apart_from_comes_first() -> None:
    ranking = Ranking((), (), {"a": 5.0, "b": 2.0, "c": 1.0})
    assert ranking.next_to(["a"], frozenset()) == "b"
    assert ranking.next_to(["a"], frozenset({"c"})) == "c"
    assert ranking.next_to(["a", "b", "c"], frozenset()) is None


def test_neighbour_of_which_nothing_can_be_told_is_next_and_one_that_was_looked_at_in_vain_is_not() -> None:
    def ranked(why: str) -> Ranking:
        readings = {name: Evidence(name, name, "yes") for name in ("queue", "arrivals", "ttft")}
        readings["hit_fell"] = Evidence("hit_fell", "hit_fell", "unknown", why_unknown=why)
        return rank_causes(CAUSES, QUESTIONS, readings, ["latency"], "pool")

    assert ranked("no series has data").untold_of({"prefix"}) == "prefix"
    assert ranked("between yes and no").untold_of({"prefix"}) is None
    assert _best(ranked("no series has data")) == ("overload",)  # which is never named for it


def test_cause_that_one_answer_speaks_against_is_no_likelier_and_comes_next() -> None:
    ranking = _rank(hit_fell="yes", longer="yes", ttft="yes")
    assert _best(ranking) == ("long_prompts",)
    assert not any(one.causes == ("prefix",) for one in ranking.fits)
    looked = ranking.with_doubted
    assert looked.next_to(["long_prompts"], frozenset()) == "prefix"
    assert 0 < looked.probability_of("prefix") < looked.probability_of("long_prompts")


def test_cause_of_which_nothing_is_seen_or_that_much_speaks_against_is_not_doubted_but_out() -> None:
    assert "slow_node" not in _rank(slow="no", arrivals="yes", queue="yes").doubted
    never = ("arrivals", "queue", "hit_fell")
    often_wrong = {"slow_node": Expectation("slow", LATENCY, (("slow",),), never=never)}

    def doubted(*yes: str) -> bool:
        readings = {name: Evidence(name, name, "yes" if name in ("slow", *yes) else "no") for name in NAMES}
        return "slow_node" in rank_causes(often_wrong, QUESTIONS, readings, ["latency"], "node").doubted

    assert doubted("arrivals", "queue")
    assert not doubted("arrivals", "queue", "hit_fell")


def test_a_score_is_the_same_to_the_last_bit_in_whatever_order_answers_are_added() -> None:
    """Which of two that fit alike was named hung on the hash seed of the process."""
    names = [f"sign_{number}" for number in range(40)]
    questions = {name: replace(QUESTIONS["slow"], id=name, base=0.01 + 0.017 * i) for i, name in enumerate(names)}
    readings = {name: Evidence(name, name, "yes") for name in names}

    def score(ordered: list[str]) -> float:
        cause = Expectation("slow", LATENCY, ((ordered[0],),), often=tuple(ordered[1:20]), may=tuple(ordered[20:]))
        known = {name: readings[name] for name in ordered}
        return max(one.score for one in rank_causes({"a": cause}, questions, known, ["latency"], "node").fits)

    again = [names[0], *reversed(names[1:20]), *reversed(names[20:])]
    assert score(names) == score(again)
