"""The settings that decide about records, recorded in the checkpoint before a query starts with them.

A batch may be delivered in part when the service is killed. If it were finished with other settings, one lane
would have delivered a record as expired and the state would remember its key as unique. Therefore
``decisions.json`` keeps the settings that the last batch was begun with, and an unfinished batch is finished
with those. Only then does the file get the new settings, and after that the query starts with them. A batch
that was never routed, for example because its settings refuse it, is decided by the new settings.

The same file records which schemas the registry did not know: see formats/registry.py.

What isn't in it may change at any moment: how the service is operated, secrets, and rosters and mark changes,
which have rules of their own (watermark_state.py, mark_changes.py).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Protocol

from pydantic import TypeAdapter

from replayfilter.errors import CheckpointDamaged, CheckpointError, RegistryError
from replayfilter.formats import KeySpec
from replayfilter.formats.schema_header import shown_id
from replayfilter.formats.spec import MAX_UNKNOWN
from replayfilter.service.monitor.poller import Poller
from replayfilter.service.runtime.checkpoint import DECISIONS, SPARK, unfinished_batch
from replayfilter.spark.checkpoint_folder import CheckpointFolder
from replayfilter.spark.pipeline_settings import PipelineSettings
from replayfilter.spark.query import SettingsChange

FORMAT = 1
# All other settings decide, also those that are added later.
_OPERATIONAL = {
    "checkpoint", "bootstrap", "master", "options", "starting", "batch_records", "batch_bytes", "interval_us",
    "cache_bytes", "max_message_bytes", "mark_changes", "membership", "log_level", "upstream",
}  # fmt: skip
_OPERATIONAL_REGISTRY = {"registry", "options"}
_STATE_FILE = re.compile(r"(\d+)_.*\.(?:zip|changelog)")  # the state after batch n - 1

POLL_SECONDS = 60.0  # between requests for the schemas that are recorded as unknown; one for each id

_SETTINGS = TypeAdapter(PipelineSettings)

Decisions = dict[str, Any]  # settings as JSON


class RecordedDecisions:
    """Reads and writes the file; see :class:`replayfilter.spark.query.BegunBatch`.

    ``info`` is called with a message when a batch is finished with its own settings.
    """

    def __init__(self, checkpoint: CheckpointFolder, info: Callable[[str], None]) -> None:
        self._checkpoint, self._info = checkpoint, info

    def settings_for_start(self, wanted: PipelineSettings) -> tuple[PipelineSettings, bool]:
        """The settings to start with, and whether they are only for the begun batch."""
        batch, (recorded, since) = unfinished_batch(self._checkpoint), self._read()
        asked = _decisions_of(wanted)
        if batch is not None and recorded is not None and self._was_routed(batch):
            begun_with = _apply(recorded, wanted)
            if _comparable(_decisions_of(begun_with)) != _comparable(asked):
                self._info(f"finishing batch {batch} with the settings it was begun with")
                return begun_with, True
        elif recorded != asked:
            first = batch + 1 if batch is not None and recorded is None else since
            self._write(asked, first)
        return wanted, False

    def record_unknown(self, wanted: PipelineSettings, ids: Collection[int]) -> PipelineSettings:
        """Record that the schemas ``ids`` are unknown; the wanted settings with this.

        They are unknown for the batch that has just failed, too. Nothing of it is delivered: no record is
        routed before all are decoded. Raises RegistryError if an earlier attempt did route them, since it
        knew the ids.
        """
        batch, (recorded, since) = unfinished_batch(self._checkpoint), self._read()
        listed = ", ".join(map(shown_id, sorted(ids)))
        if batch is not None and batch >= since and self._was_routed(batch):
            raise RegistryError(
                f"the schema registry no longer knows the ids {listed}, which it knew when batch {batch} was "
                "begun and perhaps delivered in part; register their schemas under the same ids again"
            )
        self._info(f"the schema registry does not know the ids {listed}; their records are errors")
        begun_with = _apply(recorded, wanted) if recorded is not None else wanted
        self._write(_decisions_of(with_unknown(begun_with, ids)), since)
        return with_unknown(wanted, ids)

    def _was_routed(self, batch: int) -> bool:
        """Whether an attempt of this batch got as far as writing the state after it.

        If none did, nothing of the batch is delivered: all of it is routed before any of it is delivered.
        """
        shards = self._checkpoint.names(f"{SPARK}/state/0")
        names = (name for shard in shards for name in self._checkpoint.names(f"{SPARK}/state/0/{shard}"))
        return any(int(found[1]) == batch + 1 for name in names if (found := _STATE_FILE.fullmatch(name)))

    def _read(self) -> tuple[Decisions | None, int]:
        """The recorded decisions, None if there are none; and the first batch that was begun with any."""
        content = self._checkpoint.read(DECISIONS)
        if content is None:
            return None, 0
        remedy = "restore it, or use the version of replayfilter that wrote it"
        try:
            values = json.loads(content)
            if values["version"] != FORMAT:
                raise CheckpointError(
                    f"{DECISIONS} has format {values['version']}, this version reads {FORMAT}; {remedy}"
                )
            return dict(values["decisions"]), int(values["first_batch"])
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointDamaged(f"{DECISIONS} in the checkpoint is damaged ({error}): {remedy}") from None

    def _write(self, decisions: Decisions, first_batch: int) -> None:
        values = {"version": FORMAT, "first_batch": first_batch, "decisions": decisions}
        self._checkpoint.write(DECISIONS, json.dumps(values, indent=2).encode() + b"\n")


class Query(Protocol):
    """The part of :class:`replayfilter.spark.query.Service` that the poller uses."""

    @property
    def settings(self) -> PipelineSettings:
        """The current settings."""

    def restart_with(self, change: SettingsChange) -> None:
        """Restart with changed settings after the current batch."""


class UnknownSchemasPoller(Poller):
    """Asks the registry every minute for the ids that the query's settings have as unknown.

    Once the registry knows one, the query restarts without it. ``info`` is called with a message about it.
    """

    def __init__(self, query: Query, info: Callable[[str], None]) -> None:
        super().__init__("unknown-schemas-poller", POLL_SECONDS)
        self._query, self._info = query, info

    def poll(self) -> None:
        """Ask once. A registry that is down is not reported here: the tasks that need it do that."""
        keys = self._query.settings.keys
        if keys.schemas is None or not keys.schemas.unknown:
            return
        from replayfilter.formats.registry import Registry  # its import takes half a second

        spec = keys.schemas
        try:
            known = set(Registry(keys.format, spec.registry, dict(spec.options)).types(spec.unknown))
        except RegistryError:
            return
        if known:
            ids = ", ".join(map(shown_id, sorted(known)))
            self._info(f"the schema registry knows the ids {ids} now; they count from the next batch on")
            self._query.restart_with(lambda now: _without_unknown(now, known))


def _without_unknown(settings: PipelineSettings, known: set[int]) -> PipelineSettings:
    """The settings in which the schemas ``known`` are no longer unknown."""
    spec = settings.keys.schemas
    if spec is None:
        return settings
    unknown = tuple(id_ for id_ in spec.unknown if id_ not in known)
    return replace(settings, keys=settings.keys.with_schemas(replace(spec, unknown=unknown)))


def _decisions_of(settings: PipelineSettings) -> Decisions:
    values = _SETTINGS.dump_python(
        settings,
        mode="json",
        exclude={
            **dict.fromkeys(_OPERATIONAL, True),
            "keys": {"avro": _OPERATIONAL_REGISTRY, "protobuf": _OPERATIONAL_REGISTRY},
        },
    )
    return dict(values)


def _apply(recorded: Decisions, settings: PipelineSettings) -> PipelineSettings:
    """The settings with the recorded decisions. Raises CheckpointError if this version can't read them."""
    try:
        values = _SETTINGS.dump_python(settings, mode="json", exclude={"upstream"})
        found = _SETTINGS.validate_python(values | recorded)
    except ValueError as error:
        raise CheckpointError(
            f"{DECISIONS} in the checkpoint can't be read ({str(error).splitlines()[0]}): finish the "
            "batch with the version of replayfilter that began it"
        ) from None
    return replace(found, keys=_with_registry(found.keys, settings.keys), upstream=settings.upstream)


def _with_registry(keys: KeySpec, now: KeySpec) -> KeySpec:
    if keys.schemas is None or now.schemas is None:
        return keys
    registry, options = now.schemas.registry, now.schemas.options
    return keys.with_schemas(replace(keys.schemas, registry=registry, options=options))


def with_unknown(settings: PipelineSettings, ids: Collection[int]) -> PipelineSettings:
    """The settings in which the schemas ``ids`` are unknown, too."""
    spec = settings.keys.schemas
    assert spec is not None, "only Avro and Protobuf have schema ids"
    unknown = tuple(dict.fromkeys([*spec.unknown, *sorted(ids)]))[:MAX_UNKNOWN]
    return replace(settings, keys=settings.keys.with_schemas(replace(spec, unknown=unknown)))


def _comparable(decisions: Decisions) -> Decisions:
    """The decisions without the content of the roster: what it changes counts from the next batch on."""
    rules = decisions["rules"]
    return decisions | {"rules": rules | {"watermark": rules["watermark"] is not None}}
