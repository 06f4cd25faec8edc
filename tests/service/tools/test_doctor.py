"""``replayfilter doctor`` on a real broker, by its command line."""

from __future__ import annotations

import hashlib

from confluent_kafka import Producer
from typer.testing import CliRunner

from replayfilter import StampingProducer
from replayfilter.service.cli.main import app
from tests.support.topics import new_topic


def doctor(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["doctor", *arguments], env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_a_healthy_topic_with_replays_and_gaps(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "healthy", 3)
    with StampingProducer({"bootstrap.servers": bootstrap}, topic, 7) as producer:
        for source in range(5):
            for offset in [*range(0, 20), *range(15, 40), *range(50, 60)]:
                if offset == 15:
                    producer.begin_replay(source)
                producer.produce(source, offset, b"x")
    code, output = doctor(topic, "--bootstrap", bootstrap)
    assert code == 0, output
    assert "275 records read, 275 with a stamp in the key, 5 sources" in output
    assert "no problem found" in output
    (row,) = [line.split() for line in output.splitlines() if line.split()[:2] == ["7", "4"]]
    assert row[2:] == ["55", "0-59", "1", "10", "5", "0", "1"]


def test_sha1_keys_are_reported_and_do_not_disturb_stamps_in_the_header(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "sha1")
    with StampingProducer({"bootstrap.servers": bootstrap}, topic, 7, stamp="header") as producer:
        for offset in range(100):
            producer.produce(0, offset, b"x", key=hashlib.sha1(str(offset).encode()).digest())
    code, output = doctor(topic, "--bootstrap", bootstrap)
    assert code == 1
    assert "SHA-1" in output
    code, output = doctor(topic, "--bootstrap", bootstrap, "--stamp", "header")
    assert code == 0, output


def test_two_jobs_with_one_pid_and_a_smaller_sample(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "two-jobs")
    jobs = [StampingProducer({"bootstrap.servers": bootstrap}, topic, 7) for _ in range(2)]
    for offset in range(0, 60, 6):
        for job in jobs:
            for step in range(6):
                job.produce(0, offset + step, b"x")
            job.flush()
    code, output = doctor(topic, "--bootstrap", bootstrap, "--records", "80")
    assert code == 1, output
    assert "80 records read" in output
    assert "two jobs seem to write side by side" in output


def test_no_stamps_no_topic_no_records(bootstrap: str) -> None:
    topic = new_topic(bootstrap, "bare", 2)
    code, output = doctor(topic, "--bootstrap", bootstrap)
    assert (code, "the topic is empty" in output) == (0, True)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"x", b"user-1")
    producer.flush()
    code, output = doctor(topic, "--bootstrap", bootstrap, "--records", "0")
    assert (code, "no record has a stamp in the key; try --stamp header" in output) == (1, True)
    code, output = doctor("no-such-topic", "--bootstrap", bootstrap)
    assert (code, "there is no topic 'no-such-topic'" in output) == (1, True)
    assert doctor(topic, "--bootstrap", bootstrap, "--option", "linger")[0] == 2
