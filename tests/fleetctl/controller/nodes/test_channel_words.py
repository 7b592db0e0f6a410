"""A message in the words of Slack, PagerDuty and Opsgenie, as their APIs want them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fleetctl.controller.nodes.channel_words import ChannelKind, kind_and_url, message_for
from fleetctl.controller.nodes.outreach import _read_channel
from runbooks.ports import PermanentError

FACTS = {"run": "run-1", "incident": "inc-7", "reason": "TTFT p95 > 2 s & rising", "node": None}
TEXT = "node-2 is being replaced <!channel>"


@pytest.mark.parametrize(
    ("line", "kind", "url"),
    [
        ("https://hooks.slack.com/services/T/B/x", ChannelKind.slack, "https://hooks.slack.com/services/T/B/x"),
        ("https://events.pagerduty.com/v2/enqueue", ChannelKind.pagerduty, "https://events.pagerduty.com/v2/enqueue"),
        ("https://api.eu.opsgenie.com/v2/alerts", ChannelKind.opsgenie, "https://api.eu.opsgenie.com/v2/alerts"),
        ("https://chat.example/hook", ChannelKind.generic, "https://chat.example/hook"),
        ("https://hooks.slack.com.evil.example/x", ChannelKind.generic, "https://hooks.slack.com.evil.example/x"),
        ("slack  https://mattermost.example/hooks/x ", ChannelKind.slack, "https://mattermost.example/hooks/x"),
        ("slak https://mattermost.example/hooks/x", None, "https://mattermost.example/hooks/x"),
    ],
)
def test_whose_words_are_wanted_is_known_from_the_url_or_said(line: str, kind: ChannelKind | None, url: str) -> None:
    assert kind_and_url(line) == (kind, url)


def test_slack_gets_one_text_with_what_to_type_and_nothing_in_it_calls_a_channel() -> None:
    made = message_for(ChannelKind.slack, "https://s", "", TEXT, "k", FACTS)
    assert set(made.body) == {"text"}
    assert "fleetctl incident show inc-7" in made.body["text"]
    assert "&lt;!channel&gt;" in made.body["text"]
    assert "&gt; 2 s &amp; rising" in made.body["text"]
    assert "Authorization" not in made.headers


def test_pagerduty_gets_an_event_that_is_one_with_the_others_of_its_incident() -> None:
    first = message_for(ChannelKind.pagerduty, "https://p", "routing", TEXT, "run-1-do-0", FACTS)
    again = message_for(ChannelKind.pagerduty, "https://p", "routing", "other", "run-2-do-0", FACTS)
    assert (first.body["routing_key"], first.body["event_action"]) == ("routing", "trigger")
    assert first.body["dedup_key"] == again.body["dedup_key"] == "inc-7"
    assert set(first.body["payload"]) >= {"summary", "source", "severity"}
    assert first.body["payload"]["severity"] in ("critical", "error", "warning", "info")
    long = message_for(ChannelKind.pagerduty, "https://p", "routing", "x" * 5000, "k", {})
    assert (len(long.body["payload"]["summary"]), long.body["dedup_key"]) == (1024, "k")
    assert "routing" not in str(first.headers)


def test_opsgenie_gets_an_alert_under_its_key() -> None:
    made = message_for(ChannelKind.opsgenie, "https://o", "secret", "x" * 500, "k", FACTS)
    assert made.headers["Authorization"] == "GenieKey secret"
    assert (len(made.body["message"]), made.body["alias"], len(made.body["description"])) == (130, "inc-7", 500)
    assert "node" not in made.body["details"], "what is not known is left out"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slak https://s.example/x\n", "before the URL stands one of"),
        ("https://events.pagerduty.com/v2/enqueue\n", "second line of its file is to be its pagerduty key"),
        ("ftp://x\n", "no URL"),
    ],
)
def test_a_file_that_can_not_be_a_channel_is_told_without_what_is_in_it(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "oncall"
    file.write_text(text)
    with pytest.raises(PermanentError, match=says) as caught:
        _read_channel("oncall", file)
    assert "example" not in str(caught.value)
