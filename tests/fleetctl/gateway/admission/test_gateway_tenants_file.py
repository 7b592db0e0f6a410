"""The tenants file: what is right in it, what is told of what is wrong, and keys that are added to its text."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from fleetctl.gateway.admission.tenants_file import add_key, list_keys, read_node_key, read_tenants
from fleetctl.kit.api_key import digest_of, key_of, new_key
from fleetctl.kit.errors import BadInputError
from fleetctl.priority_class import PriorityClass
from tests.fixtures import ROOT

DAY = dt.date(2026, 11, 22)
KEYED = "a" * 64


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tenants.yaml"
    path.write_text(text)
    return path


def test_a_tenant_has_what_it_says_over_what_all_have(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        """
defaults: {class: batch, limits: {concurrency: 8, burst_s: 30}}
tenants:
  shop: {class: critical, weight: 2, models: ["llama-*"], limits: {output_tokens_per_min: 600}}
  crawl:
""",
    )
    book = read_tenants(path)
    shop, crawl = book.tenants["shop"], book.tenants["crawl"]
    assert (shop.priority, shop.weight, shop.models) == (PriorityClass.CRITICAL, 2, ("llama-*",))
    assert (shop.limits.output_tokens_per_min, shop.limits.concurrency, shop.limits.burst_s) == (600, 8, 30)
    assert (crawl.priority, crawl.limits.concurrency) == (PriorityClass.BATCH, 8)
    assert [shop.may_use(model) for model in ("llama-3", "qwen", None)] == [True, False, False]
    assert crawl.may_use(None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("tenants:\n  a: {class: gold}\n", ":2: tenants.a.class: "),
        ("tenants:\n  a:\n    limits:\n      concurrency: 0\n", ":4: tenants.a.limits.concurrency: "),
        ("tenants:\n  a:\n    limit: 1\n", ":3: tenants.a.limit: there is no such key"),
        ("tenants:\n  Big Shop:\n", ":2: tenants.Big Shop: no name for a tenant"),
        ("tenants:\n  other:\n", ":2: tenants.other: no name for a tenant"),
        ("tenants:\n  a:\n  a:\n", ":3: 'tenants.a' is given twice"),
        ("tenants:\n  a: {keys: [{sha256: xyz}]}\n", ":2: tenants.a.keys[0].sha256: "),
        (
            f"tenants:\n  a:\n    keys:\n    - sha256: {KEYED}\n  b:\n    keys:\n    - sha256: {KEYED}\n",
            ":7: tenants.b.keys[0]: tenant a has this key",
        ),
        ("tenants: [\n", ":2: not YAML: "),
        ("tenants:\n  ? [a]\n  : {}\n", ":2: not YAML: found unhashable key"),
        ("", ":1: file: "),
        ("defaults: {}\n", ":1: tenants: missing"),
    ],
)
def test_what_is_wrong_is_named_with_its_line_and_a_remedy(tmp_path: Path, text: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadInputError) as caught:
        read_tenants(path)
    assert caught.value.message.startswith(f"{path}{says}")
    assert "fleetctl gateway tenants check" in (caught.value.remedy or "")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"none\.yaml: No such file"):
        read_tenants(tmp_path / "none.yaml")


BLOCK = f"""# who may ask
tenants:
  shop:  # the shop
    class: critical
    keys:
      # the first one
      - {{sha256: "{KEYED}"}}

  # nobody yet
  crawl:
    class: batch
  empty:
defaults:
  limits: {{concurrency: 3}}
"""


@pytest.mark.parametrize("tenant", ["shop", "crawl", "empty", "new-one"])
def test_a_new_key_opens_for_its_tenant_and_leaves_the_rest_of_the_file_alone(tmp_path: Path, tenant: str) -> None:
    path = written(tmp_path, BLOCK)
    keys = [add_key(path, tenant, note="it's: ours", made=DAY) for _ in range(2)]
    book = read_tenants(path)
    assert [one.name for key in keys if (one := book.tenant_of(key.encode()))] == [tenant, tenant]
    now = iter(path.read_text().splitlines())
    assert all(line in now for line in BLOCK.splitlines()), "each line is there still, in its order"
    assert not any(key in path.read_text() for key in keys), "a key itself is kept nowhere"
    assert [row.note for row in list_keys(path) if row.tenant == tenant][-2:] == ["it's: ours"] * 2


def test_the_first_key_makes_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "tenants.yaml"
    key = add_key(path, "shop", note="", made=DAY)
    assert path.stat().st_mode & 0o077 == 0
    book = read_tenants(path)
    assert book.tenant_of(key.encode()) == book.tenants["shop"]
    assert (list_keys(path)[0].made, len(list_keys(path)[0].id)) == ("2026-11-22", 12)


def test_a_file_that_is_no_text_gets_no_key(tmp_path: Path) -> None:
    path = tmp_path / "tenants.yaml"
    path.write_bytes(b"\x91\x00")
    with pytest.raises(BadInputError, match=r"tenants\.yaml"):
        add_key(path, "shop", note="", made=DAY)
    assert path.read_bytes() == b"\x91\x00"


@pytest.mark.parametrize(
    "text",
    [
        "tenants: {}\n",
        "tenants: {shop: {}}\n",
        "tenants:\n  shop: {class: batch}\n",
        "tenants:\n  shop:\n    keys: []\n",
    ],
)
def test_a_file_written_on_one_line_is_left_as_it_is(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(BadInputError, match="written on one line"):
        add_key(path, "shop", note="", made=DAY)
    assert path.read_text() == text


def test_no_key_is_made_for_what_is_no_name_or_in_a_bad_file(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not a tenant's name"):
        add_key(tmp_path / "x.yaml", "a b", note="", made=DAY)
    path = written(tmp_path, "tenants:\n  a: 5\n")
    with pytest.raises(BadInputError, match=":2: "):
        add_key(path, "b", note="", made=DAY)
    assert path.read_text() == "tenants:\n  a: 5\n"


def test_a_key_that_only_begins_like_a_known_one_opens_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    key = add_key(path, "shop", note="", made=DAY)
    book = read_tenants(path)
    assert book.tenant_of(key[:-1].encode()) is None
    assert book.tenant_of(b"") is None
    (digest,) = book.names_by_digest
    assert book.tenant_of(digest.hex().encode()) is None, "who reads the file has no key"


@pytest.mark.parametrize(
    ("header", "key"),
    [
        (b"Bearer abc", b"abc"),
        (b"bearer  abc", b"abc"),
        (b"Bearer ", None),
        (b"Bearer a b", None),
        (b"Basic abc", None),
        (b"Bearer a\x00", None),
        (None, None),
    ],
)
def test_the_key_of_a_header(header: bytes | None, key: bytes | None) -> None:
    assert key_of(header) == key


def test_keys_are_long_and_never_the_same() -> None:
    keys = {new_key("flk-") for _ in range(100)}
    assert len(keys) == 100
    assert all(len(key) == 47 for key in keys)
    assert len(digest_of(b"x")) == 32


def test_the_nodes_key_is_the_first_line_that_holds_one(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# nodes\n\n  abc  \ndef\n")
    assert read_node_key(path) == "abc"
    assert read_node_key(None) is None
    path.write_text("# none\n")
    with pytest.raises(BadInputError, match="no key in it"):
        read_node_key(path)


def test_the_example_is_right() -> None:
    assert {"shop", "crawl"} <= set(read_tenants(ROOT / "docs" / "examples" / "tenants.yaml").tenants)
