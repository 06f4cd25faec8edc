"""The identity file of a checkpoint: its bytes stay the same from version to version."""

from __future__ import annotations

from dataclasses import replace

from replayfilter.service.runtime.checkpoint import Identity, differences

# Written by a version in which ``remember_first`` was called ``remember_origin`` in the code too, and which
# had no ``scope``.
STORED = b"""{
  "service": "orders",
  "shards": 4,
  "lanes": 4,
  "format": "json",
  "dedup": true,
  "key": [
    "event_id"
  ],
  "expiry_key": "ts",
  "unit": "ms",
  "clock": "tuple",
  "span": 300000,
  "match": "window",
  "cluster_id": "5L6g3nShT-eMCtK--X86sw",
  "topic_ids": {
    "orders": "8eAGeqXRQVyZ4kdcsjdKOw"
  },
  "remember_origin": true,
  "version": 1
}
"""

IDENTITY = Identity(
    service="orders",
    shards=4,
    lanes=4,
    format="json",
    dedup=True,
    key=["event_id"],
    expiry_key="ts",
    unit="ms",
    clock="tuple",
    span=300_000,
    match="window",
    cluster_id="5L6g3nShT-eMCtK--X86sw",
    topic_ids={"orders": "8eAGeqXRQVyZ4kdcsjdKOw"},
    remember_first=True,
)


def test_a_file_written_by_an_earlier_version_is_read() -> None:
    assert Identity.from_bytes(STORED) == IDENTITY


def test_the_bytes_written_are_those_of_earlier_versions_with_the_scope() -> None:
    assert IDENTITY.to_bytes() == STORED.replace(b'  "version"', b'  "scope": "input",\n  "version"')
    assert Identity.from_bytes(IDENTITY.to_bytes()) == IDENTITY


def test_the_scope_belongs_to_the_state() -> None:
    within = replace(IDENTITY, scope="partition")
    assert Identity.from_bytes(within.to_bytes()) == within
    (message,) = differences(IDENTITY, within)
    assert message == (
        'dedup.scope: the checkpoint was created with "input", but the config says "partition"; set it back, '
        "or set a new service.checkpoint and fill it with: replayfilter rebuild CONFIG"
    )
