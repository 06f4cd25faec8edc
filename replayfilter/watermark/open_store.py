"""Opens the store that a config names."""

from __future__ import annotations

from replayfilter.watermark.server_config import ServerConfig
from replayfilter.watermark.store import Store


def open_store(config: ServerConfig) -> Store:
    """The store that a config names. Raises WatermarkError or BrokerError if it can't be used."""
    if (topic := config.server.store_topic) is None:
        from replayfilter.watermark.sqlite_store import SqliteStore

        return SqliteStore(config.server.store)
    from replayfilter.watermark.kafka_store import KafkaStore  # a file needs no Kafka client

    assert config.kafka is not None
    return KafkaStore(topic, config.kafka.bootstrap, config.kafka.expanded_options())
