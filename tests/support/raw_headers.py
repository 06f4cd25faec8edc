"""Records that the Python client can't write: their headers' names are any bytes."""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

_LIBRARY = next(Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*"))
_TOPIC, _PARTITION, _VALUE, _FLAGS, _HEADER, _END = 1, 3, 4, 7, 9, 0  # rd_kafka_vtype_t
_COPY = 2


def write_header(bootstrap: str, topic: str, value: bytes, name: bytes) -> None:
    """Write a record with one header of this name to partition 0, by librdkafka's own functions."""
    library = ctypes.CDLL(str(_LIBRARY))
    library.rd_kafka_conf_new.restype = library.rd_kafka_new.restype = ctypes.c_void_p
    settings, error = ctypes.c_void_p(library.rd_kafka_conf_new()), ctypes.create_string_buffer(512)
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), error, 512)
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, error, 512))
    sent = library.rd_kafka_producev(
        producer, _TOPIC, topic.encode(), _PARTITION, ctypes.c_int32(0), _FLAGS, _COPY,
        _VALUE, value, ctypes.c_size_t(len(value)), _HEADER, name, b"x", ctypes.c_ssize_t(1), _END,
    )  # fmt: skip
    assert (sent, library.rd_kafka_flush(producer, 20_000)) == (0, 0), error.value
    library.rd_kafka_destroy(producer)
