"""A Kafka cluster of three real brokers, each of which clients reach through a hostile network."""

from __future__ import annotations

import os
import signal
import uuid
from base64 import urlsafe_b64encode
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from replayfilter.devbroker import DevBroker, free_port
from tests.support.hostile_proxy import HostileProxy

NODES = (1, 2, 3)


class Node(DevBroker):
    """One broker and controller of a cluster.

    It has two listeners for clients: PLAINTEXT for the other brokers and the tests, and one at the port
    ``behind`` that tells clients to use the proxy at the port ``public``.
    """

    def __init__(self, node: int, cluster_id: str, controllers: list[int], public: int) -> None:
        super().__init__()
        self._node, self._cluster_id, self._controller = node, cluster_id, controllers[node - 1]
        self._voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in zip(NODES, controllers, strict=True))
        self._public, self.behind = public, free_port()

    def properties(self) -> str:
        lines = dict(line.split("=", 1) for line in super().properties().splitlines())
        inside = f"PLAINTEXT://127.0.0.1:{self._port}"
        replicated = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        lines |= {
            "node.id": str(self._node),
            "controller.quorum.voters": self._voters,
            "listeners": f"{inside},OUTSIDE://127.0.0.1:{self.behind},CONTROLLER://127.0.0.1:{self._controller}",
            "advertised.listeners": f"{inside},OUTSIDE://127.0.0.1:{self._public}",
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OUTSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "default.replication.factor": "3",
            "min.insync.replicas": "2",
            **{f"{topic}.replication.factor": "3" for topic in replicated},
            **{f"{topic}.min.isr": "2" for topic in replicated[1:]},
            "leader.imbalance.check.interval.seconds": "5",  # a restarted broker soon leads again
        }
        return "".join(f"{key}={value}\n" for key, value in lines.items())

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the broker's process."""
        assert self.pid is not None
        os.kill(self.pid, number)


class BrokerCluster:
    """Three brokers that replicate everything. Entering the context starts them, and leaving stops them.

    ``outside`` is the address of the brokers through the proxies, ``inside`` the one without.
    """

    def __init__(self) -> None:
        public, controllers = [free_port() for _ in NODES], [free_port() for _ in NODES]
        cluster_id = urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        self.nodes = [Node(i, cluster_id, controllers, port) for i, port in zip(NODES, public, strict=True)]
        self.proxies = [
            HostileProxy(port, node.behind) for port, node in zip(public, self.nodes, strict=True)
        ]
        self.inside = ",".join(node.bootstrap for node in self.nodes)
        self.outside = ",".join(f"127.0.0.1:{port}" for port in public)
        self._running = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as running, ThreadPoolExecutor(len(NODES)) as aside:
            for node in self.nodes:
                running.push(node)
            for proxy in self.proxies:
                running.enter_context(proxy)
            list(aside.map(DevBroker.start, self.nodes))  # none answers before a second one has started
            self._running = running.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._running.close()
