"""The exact words that are run: nothing that a name, an option or a cursor holds is read by a shell."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fleetctl.kit.errors import BadInputError
from fleetctl.providers.hosts.commands import Commands
from fleetctl.providers.hosts.options import hosts_options
from fleetctl.providers.spec import NodeSpec
from fleetctl.settings.hosts import HostsSettings

NODE = {"name": "chat-1", "host": "gpu-1", "url": "http://gpu-1:8000", "model": "llama", "pool": "chat"}
REACH = ["ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", "gpu-1"]


def commands(**settings: Any) -> Commands:
    return Commands(hosts_options(HostsSettings(nodes=[NODE], **settings).model_dump()))


def place_of(**changes: Any) -> Any:
    (place,) = hosts_options(HostsSettings(nodes=[{**NODE, **changes}]).model_dump()).nodes
    return place


def test_the_defaults_are_ssh_and_systemctl() -> None:
    made, place = commands(), place_of()
    assert made.start(place) == [*REACH, "systemctl start --no-block -- vllm.service"]
    assert made.stop(place) == [*REACH, "systemctl stop --no-block -- vllm.service"]
    assert made.kill(place) == [*REACH, "systemctl kill --signal=SIGKILL -- vllm.service"]
    assert made.logs(place, 20)[-1] == "journalctl --unit=vllm.service --output=json --no-pager --lines=20"
    assert made.observe("gpu-1", ["a.service", "b@1.service"])[-1].endswith("-- a.service b@1.service")


def test_words_go_as_they_are_where_no_shell_is_on_the_way() -> None:
    made = commands(connect=["docker", "exec", "{host}", "{words}"])
    assert made.stop(place_of()) == ["docker", "exec", "gpu-1", "systemctl", "stop", "--no-block", "--", "vllm.service"]


@given(st.text(alphabet=st.characters(exclude_categories=("C",)), min_size=1, max_size=40))
def test_a_shell_gets_each_value_as_one_word_whatever_is_in_it(value: str) -> None:
    made = commands(start=["printf", "%s|", "{unit}", "{options}"], logs_after=["printf", "%s", "{cursor}"])
    command = made.logs_after(place_of(), value)[-1]
    assert subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True).stdout.decode() == value
    spec = NodeSpec("chat-1", options={"model": value})
    command = made.start(place_of(), spec)[-1]
    told = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=True).stdout.decode()
    assert told == f"vllm.service|--model|{value}|"


def test_what_is_filled_in_is_not_looked_at_for_places_again() -> None:
    made = commands(start=["run", "{options}"])
    assert made.start(place_of(), NodeSpec("chat-1", options={"model": "{host}{unit}"}))[-1] == (
        "run --model '{host}{unit}'"
    )


def test_a_value_with_a_line_break_is_refused() -> None:
    with pytest.raises(BadInputError, match="control character"):
        commands().logs_after(place_of(), "s=1\nrm -rf /")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"host": "-oProxyCommand=sh"}, "host"),
        ({"host": "gpu 1"}, "host"),
        ({"host": "gpu-1;reboot"}, "host"),
        ({"unit": "--now"}, "unit"),
        ({"unit": "a b.service"}, "unit"),
        ({"url": "gpu-1:8000"}, "url"),
    ],
)
def test_a_name_that_could_be_an_option_or_two_words_is_refused(changes: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        HostsSettings(nodes=[{**NODE, **changes}])


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"start": ["systemctl", "start", "{name}"]}, "start: {name} is none of {host}, {model}"),
        ({"connect": ["ssh", "{host}"]}, "connect: it has no {command} or {words}"),
        ({"observe": ["systemctl", "show", "x"]}, "observe: it has no {units}"),
        ({"observe": ["systemctl", "show", "--units={units}"]}, "{units} stands alone"),
        ({"nodes": [NODE, {**NODE, "name": "chat-2"}]}, "two have the host and unit gpu-1 vllm.service"),
    ],
)
def test_a_template_that_can_not_work_is_refused_with_what_is_wrong(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as error:
        HostsSettings(**{"nodes": [NODE], **settings})
    assert says in str(error.value)
