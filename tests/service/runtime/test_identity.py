"""The identity file of a checkpoint: its bytes stay the same from version to version."""

from __future__ import annotations

from replayfilter.service.runtime.checkpoint import Identity

# Written by a version in which the last field but one was called ``remember_origin`` in the code too.
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


def test_the_bytes_written_are_those_of_earlier_versions() -> None:
    assert IDENTITY.to_bytes() == STORED
