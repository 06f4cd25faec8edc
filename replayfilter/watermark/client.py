"""The clients of a watermark server: one that reports, one that waits.

The reporting one never blocks its caller: what is reported lies in memory, the latest of each kind, until
a thread of its own has brought it to the server. So nothing is dropped but what newer reports say better,
and memory is bounded by the number of origins and partitions, however long no server answers.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import httpx
import msgspec

from replayfilter.errors import WatermarkError
from replayfilter.watermark.api import Fault, Laggards, Report, Reported, Reports, StageLows, Window

log = logging.getLogger("replayfilter.watermark")

EVERY_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
ORIGINS = 5_000  # in one request: some 200 kB
BACKOFF_SECONDS = (0.2, 10.0)  # first and longest pause after a failure

_Key = tuple[str, str]
_Answer = TypeVar("_Answer")


class WatermarkClient:
    """Reports to the active one of some servers of a store, once a second.

        client = WatermarkClient(["http://127.0.0.1:8321"], token)
        client.report("orders", "orders-0", oldest=None, origins={"host-7": 1767225601000000})
        client.close()

    ``lows``: the last answer, watermarks by stage. ``fault``: why the last request failed, None if none did.
    """

    def __init__(self, servers: Sequence[str], token: str = "", every: float = EVERY_SECONDS) -> None:
        self.lows: Mapping[str, StageLows] = {}
        self.fault: str | None = None
        self._http = _Servers(servers, token)
        self._every = every
        self._session = time.time_ns() // 1_000
        self._sequence = 0
        self._pending: dict[_Key, Report] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._empty = threading.Event()
        self._empty.set()
        self._closing = self._given_up = False
        self._thread = threading.Thread(target=self._run, name="watermark-client", daemon=True)
        self._thread.start()

    def report(
        self,
        stage: str,
        partition: str = "",
        *,
        low: int | None = None,
        oldest: int | None = None,
        backlog: int | None = None,
        origins: Mapping[str, int] | None = None,
        idle: Iterable[str] = (),
        laggards: Laggards | None = None,
    ) -> None:
        """Say what is known of an input partition now, as in api.Report. Returns at once."""
        report = Report(stage, partition, low, oldest, backlog, dict(origins or {}), list(idle), laggards)
        with self._lock:
            before = self._pending.get((stage, partition))
            self._pending[stage, partition] = report if before is None else merged(before, report)
            self._empty.clear()

    def flush(self, seconds: float) -> bool:
        """Report now; whether all that was reported has been acknowledged within so many seconds."""
        self._wake.set()
        return self._empty.wait(seconds)

    def close(self, seconds: float = 5.0) -> bool:
        """Report what is left and end; False if no server took it within so many seconds."""
        self._closing = True
        done = self.flush(seconds)
        self._given_up = True
        self._wake.set()
        self._thread.join(TIMEOUT_SECONDS)
        self._http.close()
        return done

    def _run(self) -> None:
        pause, failures = self._every, 0
        while not self._given_up:
            self._wake.wait(pause)
            self._wake.clear()
            if self._send():
                if self._closing and self._empty.is_set():
                    return
                pause, failures = 0 if self._closing else self._every, 0
            else:
                first, longest = BACKOFF_SECONDS
                pause = min(first * 2**failures, longest) * random.uniform(0.5, 1)
                failures = min(failures + 1, 10)

    def _send(self) -> bool:
        with self._lock:
            taken, self._pending = self._pending, {}
        left = list(requests_of(taken.values()))
        try:
            lows: dict[str, StageLows] = {}
            while left:
                self._sequence += 1
                body = msgspec.json.encode(Reports(self._session, self._sequence, left[0]))
                answer = self._http.ask("POST", "/v1/report", Reported, body)
                lows |= answer.stages
                del left[0]
        except WatermarkError as error:
            if str(error) != self.fault:
                log.warning("%s; it will be tried again", error)
            self.fault = str(error)
            with self._lock:
                for report in (report for part in left for report in part):
                    key = report.stage, report.partition
                    newer = self._pending.get(key)
                    self._pending[key] = report if newer is None else merged(report, newer)
            return False
        self.fault, self.lows = None, {**self.lows, **lows}
        with self._lock:
            if not self._pending:
                self._empty.set()
        return True


def merged(older: Report, newer: Report) -> Report:
    """What is left to say of a partition when both were to be said.

    >>> both = merged(Report("s", origins={"a": 5}, oldest=4), Report("s", origins={"a": 3, "b": 1}))
    >>> both.origins, both.oldest
    ({'a': 5, 'b': 1}, None)
    """
    lows = [report.low for report in (older, newer) if report.low is not None]
    origins = dict(older.origins)
    for name, time_us in newer.origins.items():
        origins[name] = max(time_us, origins.get(name, time_us))
    idle = [name for name in older.idle if name not in newer.origins]
    return Report(
        newer.stage,
        newer.partition,
        max(lows, default=None),
        newer.oldest,
        newer.backlog,
        origins,
        list(dict.fromkeys([*idle, *newer.idle])),
        newer.laggards,
    )


def requests_of(reports: Iterable[Report]) -> Iterator[list[Report]]:
    """The reports in parts that a server takes at once."""
    part: list[Report] = []
    room = ORIGINS
    for report in reports:
        items = list(report.origins.items())
        for start in range(0, max(len(items), 1), ORIGINS):
            piece = dict(items[start : start + ORIGINS])
            if part and len(piece) >= room:
                yield part
                part, room = [], ORIGINS
            idle = report.idle if start == 0 else []
            part.append(msgspec.structs.replace(report, origins=piece, idle=idle))
            room -= len(piece) + 1
    if part:
        yield part


def watch(
    servers: Sequence[str], token: str, stage: str, end: int, timeout: float | None = None
) -> Iterator[Window]:
    """Yield a stage's window every second or so, until it is closed or ``timeout`` seconds are over.

    Raises WatermarkError if the server refuses the question, or if none answers until the time is over.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    http = _Servers(servers, token)
    try:
        while True:
            left = 5.0 if deadline is None else deadline - time.monotonic()
            path = f"/v1/stages/{stage}/wait?end={end}&seconds={int(min(max(left, 0), 2))}"
            try:
                window = http.ask("GET", path, Window)
            except _Unreachable:
                if left <= 0:
                    raise
                time.sleep(min(0.5, max(left, 0.01)))
                continue
            yield window
            if window.closed or (deadline is not None and time.monotonic() >= deadline):
                return
            time.sleep(0.2 if left > 1 else max(0.0, min(0.2, left)))
    finally:
        http.close()


class _Unreachable(WatermarkError):
    """No server answers, or none is the active one; asking again may help."""


class _Servers:
    """Asks the server that answered last, and the others when it doesn't."""

    def __init__(self, servers: Sequence[str], token: str) -> None:
        if not servers:
            raise WatermarkError("no watermark server is named; give a URL such as http://127.0.0.1:8321")
        self._urls = [url.rstrip("/") for url in servers]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)

    def ask(self, method: str, path: str, answer: type[_Answer], body: bytes | None = None) -> _Answer:
        """The answer of the active server, as a struct. WatermarkError if it refuses, or none is there."""
        said = ""
        for url in list(self._urls):
            try:
                response = self._http.request(method, url + path, content=body)
            except httpx.HTTPError as error:
                said = f"{url}: {str(error) or type(error).__name__}"
                continue
            except httpx.InvalidURL as error:
                raise WatermarkError(f"{url}: not a URL ({error}); write http://HOST:PORT") from None
            if response.status_code == 200:
                self._urls.sort(key=url.__ne__)  # this one first from now on
                return msgspec.json.decode(response.content, type=answer)
            said = f"{url}: {_words(response)}"
            if response.status_code < 500:
                raise WatermarkError(f"the watermark server refuses: {said}")
        raise _Unreachable(f"no watermark server answers: {said}; start one, or correct its URL")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _words(response: httpx.Response) -> str:
    try:
        fault = msgspec.json.decode(response.content, type=Fault)
    except msgspec.MsgspecError:
        return f"HTTP status {response.status_code}, not from a watermark server"
    return f"{fault.error} ({fault.where}: {fault.value}); {fault.remedy}"
