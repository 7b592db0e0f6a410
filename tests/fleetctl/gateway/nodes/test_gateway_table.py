from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.gateway.nodes.table import Routing, Table, load_table, store_table
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.routing import Route, RouteState, RoutingTable


def make_table(*routes: Route, version: int = 3) -> Table:
    return Table.from_wire(RoutingTable(version=version, routes=list(routes)))


def make_route(node: str, *, state: RouteState = RouteState.ACTIVE, model: str = "demo", url: str = "") -> Route:
    return Route(node=node, url=url or f"http://{node}:8000/", state=state, model=model)


def test_only_active_routes_take_requests() -> None:
    table = make_table(make_route("a"), make_route("b", state=RouteState.CORDONED))
    assert [e.node for e in table.active] == ["a"]
    assert [e.node for e in table.endpoints] == ["a", "b"]


def test_a_model_goes_to_its_nodes_and_an_unknown_name_to_all() -> None:
    table = make_table(make_route("a", model="small"), make_route("b", model="large"))
    assert [e.node for e in table.candidates("large")] == ["b"]
    assert [e.node for e in table.candidates("some-adapter")] == ["a", "b"]
    assert [e.node for e in table.candidates(None)] == ["a", "b"]


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://", "http://[bad", "http://x/?a=1"])
def test_routes_that_lead_nowhere_are_rejected_and_named(url: str) -> None:
    table = make_table(make_route("a"), make_route("b", url=url))
    assert [e.node for e in table.endpoints] == ["a"]
    assert table.rejected == ("b",)


def test_a_stored_table_comes_back_equal(tmp_path: Path) -> None:
    table = make_table(make_route("a"), make_route("b", state=RouteState.CORDONED), version=9)
    path = tmp_path / "new" / "folder" / "table.json"
    store_table(path, table, 123.0)
    assert load_table(path) == (table, 123.0)
    assert [p.name for p in path.parent.iterdir()] == ["table.json"]


def test_no_stored_table_is_none(tmp_path: Path) -> None:
    assert load_table(tmp_path / "absent.json") is None


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "JSON"),
        ('{"stored_at": 1, "table": {"version": 1, "rou', "JSON"),
        ('{"stored_at": 1, "table": {"version": "x", "routes": []}}', "table.version"),
        (json.dumps({"format": 2, "stored_at": 1, "table": {"version": 1, "routes": []}}), "format 2"),
    ],
)
def test_a_damaged_table_names_the_file_and_place(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(BadInputError, match=says) as caught:
        load_table(path)
    assert str(path) in caught.value.message
    assert caught.value.remedy


def test_age_is_unknown_without_a_table_and_grows_with_time() -> None:
    now = 100.0
    routing = Routing(now=lambda: now)
    assert routing.age_s() is None
    routing.replace(make_table(), 90.0)
    assert routing.age_s() == 10.0
    routing.confirm(now)
    assert routing.age_s() == 0.0


def test_a_route_keeps_every_fact_on_its_way_in_and_out() -> None:
    route = Route(node="a", url="https://a:8000//", state=RouteState.CORDONED, pool="long", model="m")
    table = make_table(route, version=7)
    (endpoint,) = table.endpoints
    assert (endpoint.node, endpoint.base, endpoint.state) == ("a", "https://a:8000", RouteState.CORDONED)
    assert (endpoint.pool, endpoint.model, table.version, table.rejected) == ("long", "m", 7, ())
    kept = route.model_copy(update={"url": "https://a:8000"})
    assert table.to_wire() == RoutingTable(version=7, routes=[kept])


def test_a_second_route_of_a_node_and_one_without_a_name_are_rejected_and_the_rest_is_kept() -> None:
    table = make_table(make_route("a"), make_route("a", url="http://other"), make_route(""), make_route("b"))
    assert [e.node for e in table.endpoints] == ["a", "b"]
    assert table.endpoints[0].base == "http://a:8000"
    assert table.rejected == ("a", "")


def test_cordoned_nodes_are_no_candidates_even_for_their_own_model() -> None:
    table = make_table(make_route("a", model="m", state=RouteState.CORDONED), make_route("b", model="other"))
    assert [e.node for e in table.candidates("m")] == ["b"]


def test_age_is_never_negative_when_the_clock_goes_back() -> None:
    routing = Routing(now=lambda: 50.0)
    routing.replace(make_table(), 60.0)
    assert routing.age_s() == 0.0
    assert routing.table == make_table()


def test_a_table_that_cannot_be_read_names_the_file_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as caught:
        load_table(tmp_path)  # a folder where the file should be
    assert str(tmp_path) in caught.value.message
    assert caught.value.remedy == "make the run folder readable"


def test_a_file_that_is_no_json_is_named_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text("[")
    with pytest.raises(BadInputError) as caught:
        load_table(path)
    assert caught.value.message.startswith(f"{path}: file: ")
    assert caught.value.remedy == "delete the file: the next table replaces it"


def test_what_is_stored_says_its_format_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    store_table(path, make_table(make_route("a"), version=1), 1.0)
    store_table(path, make_table(make_route("b"), version=2), 2.0)
    stored = json.loads(path.read_text())
    assert (stored["format"], stored["stored_at"], stored["table"]["version"]) == (1, 2.0, 2)
    path.write_text(json.dumps({key: value for key, value in stored.items() if key != "format"} | {"new": 1}))
    assert load_table(path) == (make_table(make_route("b"), version=2), 2.0), "fields of other releases do no harm"
