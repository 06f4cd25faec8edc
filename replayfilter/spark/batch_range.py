"""What Spark's offset log keeps of a batch: where it ends, and what else a second attempt needs to agree.

The source writes it when it plans a batch, and reads it again when the batch is tried again. It is JSON:

    {"orders": {"0": 1200, "1": 900},
     "@batch": {"time_us": 1700000000000000, "believed_us": 1700000000000000, "waited_us": 120000,
                "behind": {"orders": {"0": 50}}, "began": {"orders": {"0": 7, "1": 0}},
                "upstream": {"counted": 1699999999000000}}}

The topics are as Spark's Kafka connector writes them, so checkpoints of either source are read by this one.
``@`` can't begin the name of a topic. Ends count transaction markers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from replayfilter.core.batch_facts import BatchFacts
from replayfilter.core.input_partition import InputPartition

BATCH = "@batch"
CONNECTOR_FIRST_OFFSETS = "sources/0/0"  # in a checkpoint: where a connector's first batch began


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The end of a batch.

    ``ends``: next offset per input partition. ``time_us``: the batch time, microseconds since the epoch; None
    in logs of Spark's Kafka connector. ``behind``: offsets left to read per partition when the batch was
    planned, without those that had none left. ``began``: the first offset of each partition that this source
    has begun to read, since the logs of the first batches are deleted. ``waited_us``: how long the planner
    waited for records before it planned the batch. ``believed_us`` (None where it is not logged) and
    ``upstream``: see core/batch_facts.py.
    """

    ends: Mapping[InputPartition, int]
    time_us: int | None = None
    behind: Mapping[InputPartition, int] = field(default_factory=dict)
    began: Mapping[InputPartition, int] = field(default_factory=dict)
    waited_us: int = 0
    believed_us: int | None = None
    upstream: Mapping[str, int] = field(default_factory=dict)

    @property
    def facts(self) -> BatchFacts | None:
        """What the shards must know; None in logs of Spark's Kafka connector."""
        if self.time_us is None:
            return None
        believed = self.time_us if self.believed_us is None else self.believed_us
        return BatchFacts(self.time_us, believed, not self.behind, tuple(sorted(self.upstream.items())))

    def to_json(self) -> dict[str, Any]:
        """The end as the offset log keeps it."""
        if self.time_us is None:
            return _nested(self.ends)
        facts: dict[str, Any] = {"time_us": self.time_us, "waited_us": self.waited_us}
        facts |= {"believed_us": self.believed_us} if self.believed_us is not None else {}
        facts |= {"behind": _nested(self.behind), "began": _nested(self.began)}
        facts |= {"upstream": dict(self.upstream)} if self.upstream else {}
        return _nested(self.ends) | {BATCH: facts}

    @classmethod
    def from_json(cls, logged: Mapping[str, Any]) -> BatchEnd:
        """Read what :meth:`to_json` gave, or the offsets of Spark's Kafka connector.

        >>> BatchEnd.from_json({"t": {"0": 5}}) == BatchEnd({("t", 0): 5})
        True
        """
        facts = logged.get(BATCH, {})
        ends = _flat({topic: parts for topic, parts in logged.items() if topic != BATCH})
        behind, began = _flat(facts.get("behind", {})), _flat(facts.get("began", {}))
        waited, believed = facts.get("waited_us", 0), facts.get("believed_us")
        upstream = facts.get("upstream", {})
        return cls(ends, facts.get("time_us"), behind, began, waited, believed, upstream)


def last_line(entry: bytes) -> str:
    r"""The JSON in an entry of Spark's logs, which is its last line. Raises ValueError if there is none.

    >>> last_line(b'v1\n{"orders": {"0": 5}}')
    '{"orders": {"0": 5}}'
    """
    line = entry.decode("utf-8", "replace").rsplit("\n", 1)[-1]
    return line[line.index("{") :]


def _nested(flat: Mapping[InputPartition, int]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for (topic, partition), offset in flat.items():
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested


def _flat(nested: Mapping[str, Mapping[str, int]]) -> dict[InputPartition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, parts in nested.items()
        for partition, offset in parts.items()
    }
