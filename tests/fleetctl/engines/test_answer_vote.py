"""Who is wrong among nodes that should answer alike: examples, and what holds for any answers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fleetctl.engines.answer_vote import Verdict, vote
from fleetctl.engines.greedy_answer import Answer, Candidate, Token, difference


def said(*words: str, tie: tuple[int, str] | None = None, logprob: float = -0.01) -> Answer:
    """An answer of these tokens; `tie`: a place, and the token that was as good there."""
    tokens = [
        Token(word, logprob, (Candidate(word, logprob), Candidate("other", -4.0))) for number, word in enumerate(words)
    ]
    if tie is not None:
        place, other = tie
        tokens[place] = Token(words[place], -0.7, (Candidate(words[place], -0.7), Candidate(other, -0.75)))
    return Answer("".join(words), tuple(tokens))


GOOD, BAD = said("a", "b", "c"), said("a", "x", "c")


def verdicts(answers: dict[str, Answer], recorded: Answer | None = None) -> dict[str, str]:
    return {name: one.verdict.value for name, one in vote(answers, recorded).judged.items()}


def test_one_against_two_is_wrong() -> None:
    found = vote({"n1": GOOD, "n2": BAD, "n3": GOOD}, GOOD)
    assert {name: one.verdict.value for name, one in found.judged.items()} == {
        "n1": "right",
        "n2": "wrong",
        "n3": "right",
    }
    assert found.judged["n2"].why == "token 2 is 'x' where others say 'b' (2 of 3 nodes)"
    assert found.recorded == GOOD


def test_of_two_that_differ_nobody_knows_who_is_right() -> None:
    assert verdicts({"n1": GOOD, "n2": BAD}, GOOD) == {"n1": "unknown", "n2": "unknown"}


def test_a_first_answer_is_recorded_and_a_node_alone_is_held_to_it() -> None:
    first = vote({"n1": GOOD}, None)
    assert (first.recorded, first.judged["n1"].verdict) == (GOOD, Verdict.RIGHT)
    assert verdicts({"n1": GOOD}, GOOD) == {"n1": "right"}
    assert verdicts({"n1": BAD}, GOOD) == {"n1": "unknown"}, "it may be another model, or the first one was wrong"


def test_a_first_answer_that_was_wrong_is_outvoted_and_replaced() -> None:
    found = vote({"n1": BAD, "n2": GOOD, "n3": GOOD}, BAD)
    assert found.judged["n1"].verdict is Verdict.WRONG
    assert (found.recorded, found.was_replaced) == (GOOD, True)


def test_a_near_tie_is_no_fault_and_what_follows_it_says_nothing() -> None:
    tied = said("a", "b", "c", tie=(1, "x"))
    assert difference(tied, said("a", "x", "z")) == ""
    assert difference(said("a", "x", "z"), tied) == ""
    assert verdicts({"n1": tied, "n2": tied, "n3": said("a", "x", "z")}, tied) == dict.fromkeys(
        ("n1", "n2", "n3"), "right"
    )
    assert difference(tied, said("a", "q", "c")) != "", "it was not this one that was as good"


def test_a_log_probability_that_is_far_off_is_another_answer() -> None:
    assert difference(said("a"), said("a", logprob=-0.3)) == ""
    assert difference(said("a"), said("a", logprob=-1.5)) == "token 1: its log probability is off by 1.49"
    assert difference(said("a"), said("a", logprob=float("nan"))) != ""


def test_without_log_probabilities_the_text_decides() -> None:
    assert difference(Answer("abc"), GOOD) == ""
    assert difference(Answer("axc"), GOOD) == "'axc' where others say 'abc'"


def test_an_answer_that_ends_early_differs_unless_the_end_was_as_good() -> None:
    assert difference(said("a"), said("a", "b")) == "1 tokens where others say 2"
    assert difference(said("a"), said("a", "b", tie=(1, "</s>"))) == ""


words = st.lists(st.sampled_from("abc"), min_size=1, max_size=3)
ties = st.none() | st.tuples(st.just(0), st.sampled_from("abc"))
answers = st.builds(lambda text, tie: said(*text, tie=tie), words, ties)
fleets = st.dictionaries(st.sampled_from([f"n{i}" for i in range(9)]), answers, min_size=1)
records = st.none() | answers


@given(fleets, records)
def test_less_than_half_are_ever_taken_out_and_none_that_most_agree_with(
    fleet: dict[str, Answer], recorded: Answer | None
) -> None:
    found = vote(fleet, recorded)
    wrong = {name for name, one in found.judged.items() if one.verdict is Verdict.WRONG}
    assert found.judged.keys() == fleet.keys()
    assert 2 * len(wrong) < len(fleet)
    assert len(fleet) >= 3 or not wrong
    for name in wrong:
        friends = [other for other in fleet if not difference(fleet[name], fleet[other])]
        assert 2 * len(friends) <= len(fleet)


@given(fleets, records, st.randoms())
def test_the_order_in_which_nodes_are_asked_changes_nothing(
    fleet: dict[str, Answer], recorded: Answer | None, random: st.DataObject
) -> None:
    names = list(fleet)
    random.shuffle(names)  # type: ignore[attr-defined]
    assert vote({name: fleet[name] for name in names}, recorded) == vote(fleet, recorded)


@given(answers, answers, st.integers(3, 9), records)
def test_one_that_differs_from_all_others_is_the_one_that_is_wrong(
    good: Answer, bad: Answer, number: int, recorded: Answer | None
) -> None:
    fleet = {f"n{i}": good for i in range(number - 1)} | {"odd": bad}
    expected = "wrong" if difference(good, bad) else "right"
    found = verdicts(fleet, recorded)
    assert found.pop("odd") == expected
    assert set(found.values()) == {"right"}


@given(fleets, records)
def test_a_second_vote_on_the_same_answers_says_the_same(fleet: dict[str, Answer], recorded: Answer | None) -> None:
    first = vote(fleet, recorded)
    again = vote(fleet, first.recorded)
    assert {n: o.verdict for n, o in again.judged.items()} == {n: o.verdict for n, o in first.judged.items()}
    assert not again.was_replaced


@given(answers, answers)
def test_two_differ_or_agree_whoever_is_asked_first(one: Answer, other: Answer) -> None:
    assert bool(difference(one, other)) == bool(difference(other, one))
    assert difference(one, one) == ""
    assert Answer.from_json(one.to_json()) == one
