"""The controller's tables. Runs and steps have their own, in `runbooks.journal`, in the same database."""

from __future__ import annotations

import sqlalchemy as sa

# 2: external_alerts and webhook_notices; 3: wanted_changes; 4: traffic_rules; 5: pools, revisions, nodes.pool and
# nodes.revision; 6: freezes, audit; 7: access_tokens; 8: rollouts, and what pools know of theirs. 9: leadership,
# members; 10: drain_receipts; 11: silences, incidents.imported; 12: known_answers; 13: node_failures, node_stints.
# 14: notifications.
# Versions so far only added tables, and columns that may be NULL (`ADDED_COLUMNS`).
SCHEMA_VERSION = 14

metadata = sa.MetaData()

meta = sa.Table(
    "controller_meta",
    metadata,
    sa.Column("key", sa.String(100), primary_key=True),
    sa.Column("value", sa.JSON, nullable=False),
)

nodes = sa.Table(
    "nodes",
    metadata,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("spec", sa.JSON, nullable=False),
    sa.Column("wanted", sa.Boolean, nullable=False),
    sa.Column("started", sa.Boolean, nullable=False),  # the provider was asked; false is work left to do
    sa.Column("route", sa.String(20), nullable=False),  # none, active, cordoned
    sa.Column("role", sa.String(20), nullable=False),  # member, or replacement while a run brings it in
    sa.Column("url", sa.String(500)),
    sa.Column("restart", sa.JSON),  # what the last restart replaced, and how far it got
    sa.Column("created_at", sa.Float, nullable=False),
    sa.Column("updated_at", sa.Float, nullable=False),
    # As in `spec`, to count by. NULL: written before there were pools.
    sa.Column("pool", sa.String(200), index=True),
    sa.Column("revision", sa.String(100)),
)

# What each pool should have; who may say so; what its new nodes are.
pools = sa.Table(
    "pools",
    metadata,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("model", sa.String(500), nullable=False),
    sa.Column("wanted_size", sa.Integer, nullable=False),
    sa.Column("revision", sa.String(100), nullable=False),
    sa.Column("owner", sa.String(20), nullable=False),  # person or autoscaler
    sa.Column("num_current", sa.Integer),  # nodes, at least, that are to be of `revision`; NULL: none
    # While a rollout is under way: the revision that it comes from, how many of its nodes stay, and why guards that
    # hold automation do not hold this.
    sa.Column("stable_revision", sa.String(100)),
    sa.Column("num_stable", sa.Integer),
    sa.Column("override", sa.Text),
    sa.Column("backoff", sa.JSON),  # of a start that fails again and again
    sa.Column("updated_at", sa.Float, nullable=False),
    sa.Column("updated_by", sa.String(200), nullable=False),
)


# Model directory, engine arguments, adapters and prompt template that nodes were started with. Never changed.
revisions = sa.Table(
    "revisions",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),  # hash of the document
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("created_at", sa.Float, nullable=False),
)

# How pools got from one revision to another; `document` is the whole rollout. One without an end for each pool.
rollouts = sa.Table(
    "rollouts",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("pool", sa.String(200), nullable=False, index=True),
    sa.Column("state", sa.String(20), nullable=False, index=True),
    sa.Column("started_at", sa.Float, nullable=False, index=True),
    sa.Column("document", sa.JSON, nullable=False),
)

# When each node began and ended to be wanted: what capacity floors are a share of, also after a restart.
wanted_changes = sa.Table(
    "wanted_changes",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False, index=True),
    sa.Column("node", sa.String(63), nullable=False, index=True),
    sa.Column("pool", sa.String(200), nullable=False),
    sa.Column("model", sa.String(500), nullable=False),
    sa.Column("wanted", sa.Boolean, nullable=False),
    sqlite_autoincrement=True,
)

# What gateways are ordered to do with requests; `document` is the whole rule.
traffic_rules = sa.Table(
    "traffic_rules",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("expires_at", sa.Float, index=True),  # NULL: until it is removed
    sa.Column("document", sa.JSON, nullable=False),
)

# Times in which automation does not act.
freezes = sa.Table(
    "freezes",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("made_by", sa.String(200), nullable=False),
    sa.Column("made_at", sa.Float, nullable=False),
    sa.Column("pool", sa.String(200)),  # NULL: the whole fleet
    sa.Column("expires_at", sa.Float),  # NULL: until it is ended
)

# Who changed what: append-only, each row's hash holds the one before (`fleetctl.kit.hash_chain`).
audit = sa.Table(
    "audit",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=False),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("via", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("hash", sa.String(64), nullable=False),
)

# Named tokens of the HTTP API. A token itself is nowhere: only its hash.
tokens = sa.Table(
    "access_tokens",
    metadata,
    sa.Column("sha256", sa.String(64), primary_key=True),
    sa.Column("name", sa.String(63), nullable=False, index=True),
    sa.Column("role", sa.String(20), nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("created_by", sa.String(200), nullable=False),
    sa.Column("expires_at", sa.Double),  # NULL: never
    sa.Column("revoked_at", sa.Double),
    sa.Column("revoked_by", sa.String(200), nullable=False),
    sa.Column("last_used_at", sa.Double),
)

# Who leads, where several controllers share the database: one row. See `leadership.py`.
leadership = sa.Table(
    "leadership",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("epoch", sa.BigInteger, nullable=False),  # the one of `run_meta` that its holder claimed
    sa.Column("holder", sa.String(32), nullable=False),  # a member's id
    sa.Column("url", sa.String(500), nullable=False),
    sa.Column("lease_s", sa.Double, nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),  # one more with each renewal
    sa.Column("released", sa.Boolean, nullable=False),
    sa.Column("taken_at", sa.Double, nullable=False),
)

# The controllers that are there, standbys too.
members = sa.Table(
    "members",
    metadata,
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("url", sa.String(500), nullable=False),
    sa.Column("host", sa.String(300), nullable=False),
    sa.Column("beat", sa.BigInteger, nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),  # by its own clock, for people
)

# What became of each request that a drained node held; `document` is the signed one, before the end what it held.
receipts = sa.Table(
    "drain_receipts",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("node", sa.String(63), nullable=False, index=True),
    sa.Column("instance", sa.String(200)),  # NULL: not known
    sa.Column("begun_at", sa.Double, nullable=False, index=True),
    sa.Column("ended_at", sa.Double),  # NULL: it goes on
    sa.Column("document", sa.JSON, nullable=False),
)

_PLACE = ("node", "host", "sku", "zone", "pool", "model", "revision")

# Every failure of a node that was seen, with where it was. One without an end stands.
node_failures = sa.Table(
    "node_failures",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("episode", sa.String(40), nullable=False),  # id of the first failure of the same cause
    sa.Column("kind", sa.String(20), nullable=False),
    sa.Column("at", sa.Double, nullable=False, index=True),
    sa.Column("ended_at", sa.Double),
    *(sa.Column(name, sa.String(500), nullable=False) for name in _PLACE),
    sa.Column("reason", sa.String(500), nullable=False),
    sa.Column("instance", sa.String(500), nullable=False),
    sa.Column("incident_id", sa.String(100)),
)

# When each node was watched, and where it was: what failures are a rate over.
node_stints = sa.Table(
    "node_stints",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("until", sa.Double, nullable=False, index=True),
    *(sa.Column(name, sa.String(500), nullable=False) for name in _PLACE),
)

incidents = sa.Table(
    "incidents",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("status", sa.String(20), nullable=False, index=True),
    sa.Column("opened_at", sa.Float, nullable=False, index=True),
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("postmortem", sa.String(1000)),
    sa.Column("blackbox", sa.String(1000)),
    # Of one that was read from a file: its record with runs and timeline, and where it is from. NULL: it is our own.
    sa.Column("imported", sa.JSON(none_as_null=True)),
)

# What was told, or is to be told, to whom; `document` is the whole notification. Stored before it is sent.
notifications = sa.Table(
    "notifications",
    metadata,
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("id", sa.String(40), nullable=False, unique=True),
    sa.Column("receiver", sa.String(63), nullable=False),
    sa.Column("state", sa.String(20), nullable=False, index=True),
    sa.Column("incident_id", sa.String(100), index=True),  # NULL: of several, or of none
    sa.Column("created_at", sa.Double, nullable=False, index=True),
    sa.Column("ends_thread", sa.Integer, nullable=False),  # 1: it says that the incident is resolved
    sa.Column("document", sa.JSON, nullable=False),
)

# Silences that are kept here and not in an Alertmanager.
silences = sa.Table(
    "silences",
    metadata,
    sa.Column("id", sa.String(100), primary_key=True),
    sa.Column("matchers", sa.JSON, nullable=False),
    sa.Column("starts_at", sa.Double, nullable=False),
    sa.Column("ends_at", sa.Double, nullable=False),
    sa.Column("created_by", sa.String(200), nullable=False),
    sa.Column("comment", sa.Text, nullable=False),
)

# What nodes of other engines answered to the known prompt first, by engine, version, model, revision and pool.
known_answers = sa.Table(
    "known_answers",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),  # SHA-256 of these five
    sa.Column("document", sa.JSON, nullable=False),
    sa.Column("recorded_at", sa.Double, nullable=False, index=True),
)

external_alerts = sa.Table(
    "external_alerts",
    metadata,
    sa.Column("fingerprint", sa.String(64), primary_key=True),  # Alertmanager's
    sa.Column("is_firing", sa.Boolean, nullable=False, index=True),
    sa.Column("heard_at", sa.Float, nullable=False, index=True),
    sa.Column("document", sa.JSON, nullable=False),
)

# What was taken from Alertmanager's webhook: repeats are known by their key, also after a restart.
webhook_notices = sa.Table(
    "webhook_notices",
    metadata,
    sa.Column("key", sa.String(64), primary_key=True),  # SHA-256 of the four below
    sa.Column("group_key", sa.Text, nullable=False),
    sa.Column("fingerprint", sa.String(64), nullable=False),
    sa.Column("starts_ns", sa.BigInteger),
    sa.Column("status", sa.String(20), nullable=False),
    sa.Column("first_at", sa.Float, nullable=False),
    sa.Column("last_at", sa.Float, nullable=False, index=True),
    sa.Column("times", sa.Integer, nullable=False),
)

events = sa.Table(
    "events",
    metadata,
    # Never reused, also after deletion: a reader's `after` must stay true.
    sa.Column("seq", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("at", sa.Float, nullable=False),
    sa.Column("kind", sa.String(100), nullable=False),
    sa.Column("text", sa.Text, nullable=False),
    sa.Column("incident_id", sa.String(100), index=True),
    sa.Column("run_id", sa.String(100)),
    sa.Column("node", sa.String(63)),
    sa.Column("data", sa.JSON, nullable=False),
    sqlite_autoincrement=True,
)

ADDED_COLUMNS = (
    nodes.c.pool,
    nodes.c.revision,
    pools.c.num_current,
    pools.c.stable_revision,
    pools.c.num_stable,
    pools.c.override,
    incidents.c.imported,
)
"""Columns that tables of an earlier version lack."""
