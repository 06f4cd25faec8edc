"""Producers that connect in the background, so that a lane is taken over quickly."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaException, Producer

from replayfilter.kafka.client_settings import Settings, refused_setting

KEPT_STANDBYS = 4
CONNECT_S = 0.08  # a new producer connects in the background; init_transactions before that takes 500 ms

# librdkafka logs every fenced producer as a fatal error, but here fences are normal. To see its log,
# configure this logger.
_log = logging.getLogger("replayfilter.librdkafka")
_log.addHandler(logging.NullHandler())


@dataclass(slots=True)
class _Standby:
    """A producer that is connected but has not initialised the lane."""

    producer: Producer
    created_at: float  # time.monotonic()


class Standbys:
    """The standbys of one worker. A lane's transactional id is ``<service>-<lane>``."""

    def __init__(self, settings: Settings, service: str) -> None:
        self._settings, self._service = settings, service
        self._standbys: dict[int, _Standby] = {}

    def prepare(self, lanes: Iterable[int]) -> None:
        """Create a standby for each of these lanes that has none; it connects in the background.

        Taking a lane over takes 4-8 ms with a standby, and about 90 ms without. At most
        :data:`KEPT_STANDBYS` are kept, those of the lanes that were here last.
        """
        for lane in lanes:
            standby = self._standbys.pop(lane) if lane in self._standbys else self._create(lane)
            self._standbys[lane] = standby  # at the end, as the one used last
            while len(self._standbys) > KEPT_STANDBYS:
                self._standbys.pop(next(iter(self._standbys)))

    def take(self, lane: int) -> Producer:
        """A producer for the lane that has had the time to connect; it belongs to the caller now."""
        standby = self._standbys.pop(lane, None) or self._create(lane)
        time.sleep(max(0.0, standby.created_at + CONNECT_S - time.monotonic()))
        return standby.producer

    def clear(self) -> None:
        """Drop all of them."""
        self._standbys.clear()

    def _create(self, lane: int) -> _Standby:
        settings = self._settings | {"transactional.id": f"{self._service}-{lane}"}
        try:
            return _Standby(Producer(settings, logger=_log), time.monotonic())
        except KafkaException as error:
            raise refused_setting(error) from error
