"""Notices what happens to the topics while the service runs: they get more partitions, or they are gone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replayfilter.errors import BrokerError
from replayfilter.kafka.admin import Cluster, Topic
from replayfilter.service.monitor.poller import Poller
from replayfilter.spark.pipeline_settings import PipelineSettings

POLL_SECONDS = 20.0


class TopicsPoller(Poller):
    """Asks for the topics every 20 seconds; ``topics`` are those that the service started with.

    ``changed`` is called with all topics when one has more partitions or another id, and ``info`` with a
    message about it. ``gone`` is called with messages for topics that don't exist any more, or have fewer
    partitions, in two polls in a row: a broker that has just started may not know all topics.
    """

    def __init__(
        self,
        settings: PipelineSettings,
        topics: Mapping[str, Topic],
        changed: Callable[[Mapping[str, Topic]], None],
        gone: Callable[[list[str]], None],
        info: Callable[[str], None],
    ) -> None:
        super().__init__("topics-poller", POLL_SECONDS)
        self._settings, self._topics = settings, dict(topics)
        self._changed, self._gone, self._info = changed, gone, info
        self._cluster = self._connect()
        self._problems: list[str] = []

    def _connect(self) -> Cluster:
        return Cluster(self._settings.bootstrap, self._settings.options)

    def poll(self) -> None:
        """Ask once. A broker that is away is not reported here: the query and the lag poller do that."""
        try:
            found = self._cluster.topics(self._topics)
        except BrokerError:
            self._cluster = self._connect()  # the old client may be refused for minutes
            return
        before, self._problems = self._problems, self._problems_of(found)
        if self._problems:
            if self._problems == before:
                self._gone(self._problems)
        elif found != self._topics:
            for name, now in found.items():
                if now.partitions > (count := self._topics[name].partitions):
                    self._info(
                        f"topic {name} has {now.partitions} partitions now, {count} before; all are used"
                    )
            self._topics = found
            self._changed(found)

    def _problems_of(self, found: Mapping[str, Topic]) -> list[str]:
        gone = [
            f"there is no topic {name} at {self._settings.bootstrap} any more; create it again with "
            f"{topic.partitions} partitions or correct the config, then start the service again"
            for name, topic in self._topics.items()
            if name not in found
        ]
        return gone + [
            f"topic {name} has {topic.partitions} partitions, {self._topics[name].partitions} before, so it "
            "was deleted and created again; give it as many as before, then start the service again"
            for name, topic in found.items()
            if topic.partitions < self._topics[name].partitions
        ]
