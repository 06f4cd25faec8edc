"""`replayfilter transactions`: what is open in a service's topics, and an end for its own transactions."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from rich.console import Console
from typer.testing import CliRunner

from replayfilter.demo.walkthrough import write_config
from replayfilter.errors import BrokerError
from replayfilter.service.cli.main import app
from replayfilter.service.config.loader import config_from
from replayfilter.service.config.model import Config
from replayfilter.service.tools.transactions.open_transactions import (
    HeldBack,
    OpenTransactions,
    await_end_of_service,
    end_transactions,
    find_open,
    own_ids,
)
from replayfilter.service.tools.transactions.transactions_report import abort_transactions, list_transactions
from tests.support.deployment import Deployment
from tests.support.service_process import wait_for


def begun(deployment: Deployment, id_: str, topic: str, partition: int = 0) -> Producer:
    """A producer with an open transaction of one record."""
    producer = Producer({"bootstrap.servers": deployment.bootstrap, "transactional.id": id_, "log_level": 0})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic, b"v", partition=partition)
    producer.flush()
    return producer


def config_of(deployment: Deployment) -> Config:
    return config_from(deployment.data())


def listed(deployment: Deployment) -> str:
    console = Console(width=200)
    with console.capture() as printed:
        list_transactions(config_of(deployment), console)
    return printed.get()


def aborted(deployment: Deployment, answer: bool = True) -> tuple[bool, str]:
    console, asked = Console(width=200), []

    def confirm(question: str) -> bool:
        asked.append(question)
        return answer

    with console.capture() as printed:
        done = abort_transactions(config_of(deployment), console, confirm, limit=0)
    return done, "".join(asked) + printed.get()


def test_nothing_is_open(deployment: Deployment) -> None:
    deployment.create()
    nothing = f"no transaction of {deployment.name} is open\n"
    assert listed(deployment) == nothing
    assert aborted(deployment) == (True, nothing)


def test_whose_transactions_are_open_and_what_they_hold_back(deployment: Deployment) -> None:
    """A killed service, and someone else in the input; a transaction elsewhere is not of interest."""
    deployment.create()
    name, unique = deployment.name, f"{deployment.name}.unique"
    own = begun(deployment, f"{name}-1", unique, 1)
    group = Consumer({"bootstrap.servers": deployment.bootstrap, "group.id": name})
    own.send_offsets_to_transaction([TopicPartition(name, 1, 1)], group.consumer_group_metadata())
    other = begun(deployment, f"{name}-1-etl", name)
    deployment.cluster.create({f"{name}.elsewhere": 1})
    elsewhere = begun(deployment, f"{name}-elsewhere", f"{name}.elsewhere")
    _, *rows, first, second = listed(deployment).splitlines()
    assert [re.split(r"  +", row)[:3] for row in rows] == [
        [f"{name}-1", "this service", "open"],
        [f"{name}-1-etl", "other", "open"],
    ]
    assert re.search(rf"60 s +__consumer_offsets-\d, {unique}-1$", rows[0])
    assert first.startswith(f"held back: {name}-0 can be read up to offset 0, 1 offsets before its end, for")
    assert first.endswith(f"s by {name}-1-etl")
    assert second.startswith(f"held back: {unique}-1 can be")
    assert second.endswith(f"s by {name}-1")
    for producer in (own, other, elsewhere):
        producer.abort_transaction()
    group.close()


def test_only_the_own_transactions_are_aborted(deployment: Deployment) -> None:
    deployment.create()
    name, unique = deployment.name, f"{deployment.name}.unique"
    lane, first = begun(deployment, f"{name}-1", unique), begun(deployment, f"{name}-first", unique, 1)
    other = begun(deployment, f"{name}-x", name)
    done, text = aborted(deployment, answer=False)
    assert (done, f"Abort {name}-1, {name}-first?" in text) == (False, True)
    assert len(find_open(config_of(deployment), deployment.cluster).own) == 2
    done, text = aborted(deployment)
    assert done
    *_, said, left = text.splitlines()
    assert said.startswith(f"aborted: {name}-1, {name}-first; nothing of it was delivered")
    assert left.startswith(f"still held back: {name}-0 can be read up to offset 0")
    for producer in (lane, first):
        with pytest.raises(KafkaException):
            producer.commit_transaction()
    other.commit_transaction()
    assert listed(deployment) == f"no transaction of {name} is open\n"
    outputs = deployment.cluster.end_offsets([(unique, 0), (unique, 1)])
    assert set(outputs.values()) == {2}  # the aborted record, and the marker


def test_a_service_that_is_alive_is_refused(deployment: Deployment) -> None:
    deployment.create()
    name, said = deployment.name, list[str]()
    await_end_of_service(deployment.cluster, name, "why", said.append)
    assert said == []
    own = begun(deployment, f"{name}-0", f"{name}.unique")
    member = Consumer({"bootstrap.servers": deployment.bootstrap, "group.id": name})
    member.subscribe([name])
    wait_for(lambda: member.poll(0.1) is None and bool(deployment.cluster.members(name)), 60, "not joined")
    with pytest.raises(BrokerError, match="a service of this name is running; stop it, since its trans"):
        aborted(deployment)
    assert listed(deployment).startswith("a service of this name is running at")
    own.commit_transaction()
    member.close()
    await_end_of_service(deployment.cluster, name, "why", said.append)


def test_without_the_log_the_lanes_say_which_ids_there_are(deployment: Deployment) -> None:
    deployment.create()
    config, held = config_of(deployment), HeldBack((f"{deployment.name}.unique", 0), 3, 5)
    unknown = OpenTransactions([], [], [held], "not authorized")
    with pytest.raises(BrokerError, match=r"isn't known \(not authorized\).*READ topic __transaction_state"):
        own_ids(config, unknown)
    lanes = [f"{deployment.name}-{lane}" for lane in range(deployment.started({0: 0, 1: 0}).lanes)]
    assert own_ids(config, unknown) == lanes
    assert own_ids(config, unknown, lanes=1) == lanes[:1]
    assert own_ids(config, replace(unknown, held_back=[])) == []


def test_a_transactional_id_that_may_not_be_used_is_named(deployment: Deployment) -> None:
    options = {"transaction.timeout.ms": "2000000000"}  # more than the broker allows
    config = config_from(deployment.data(kafka={"options": options}))
    with pytest.raises(BrokerError, match=f"the transaction of {deployment.name}-0 could not be ended: "):
        end_transactions(config, [f"{deployment.name}-0"])


def test_the_command_line_asks_before_it_aborts(deployment: Deployment, tmp_path: Path) -> None:
    deployment.create()
    path = str(write_config(tmp_path, deployment.bootstrap, deployment.name))
    left = begun(deployment, f"{deployment.name}-0", f"{deployment.name}.unique")
    runner = CliRunner()
    listed = runner.invoke(app, ["transactions", "list", path])
    assert (listed.exit_code, f"{deployment.name}-0 " in listed.stdout) == (0, True)
    refused = runner.invoke(app, ["transactions", "abort", path], input="n\n")
    assert (refused.exit_code, f"Abort {deployment.name}-0?" in refused.stdout) == (1, True)
    ended = runner.invoke(app, ["transactions", "abort", path, "--yes"])
    assert (ended.exit_code, f"aborted: {deployment.name}-0;" in ended.stdout) == (0, True)
    with pytest.raises(KafkaException):
        left.commit_transaction()
