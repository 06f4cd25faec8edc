"""The clients of a watermark server: one reports progress, one follows other stages, one waits for a window.

The reporting client never blocks its caller. Reports stay in memory until a thread has sent them. A newer
report of a partition is merged with the older one, so memory is bounded by the number of origins and
partitions, however long no server responds.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote

import httpx
import msgspec

from replayfilter.errors import WatermarkError
from replayfilter.watermark.api import (
    DEFAULT_APP,
    ErrorBody,
    Laggards,
    Report,
    Reported,
    Reports,
    StageLows,
    Upstream,
    Window,
)

log = logging.getLogger("replayfilter.watermark")

REPORT_INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
MAX_ORIGINS_PER_REQUEST = 5_000  # about 200 kB
BACKOFF_SECONDS = (0.2, 10.0)  # the first and the longest pause after a failure

_StagePartition = tuple[str, str]
_Response = TypeVar("_Response")


class WatermarkClient:
    """Reports to the active one of some servers with a common store, once a second.

        client = WatermarkClient(["http://127.0.0.1:8321"], token)
        client.report("orders", "orders-0", oldest=None, origins={"host-7": 1767225601000000})
        client.close()

    All its stages are of the application ``app``. ``lows``: the watermarks in the last response, by stage.
    ``last_error``: why the last request failed; None if it succeeded.
    """

    def __init__(
        self,
        servers: Sequence[str],
        token: str = "",
        every: float = REPORT_INTERVAL_SECONDS,
        app: str = DEFAULT_APP,
    ) -> None:
        self.lows: Mapping[str, StageLows] = {}
        self.last_error: str | None = None
        self._http = _ServerPool(servers, token)
        self._every, self._app = every, app
        self._session = time.time_ns() // 1_000
        self._sequence = 0
        self._pending: dict[_StagePartition, Report] = {}
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._all_sent = threading.Event()
        self._all_sent.set()
        self._closing = self._given_up = False
        self._thread = threading.Thread(target=self._run, name="watermark-client", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> str | None:
        """The name of ``last_error`` in earlier versions."""
        return self.last_error

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
        """Report the present state of an input partition; see api.Report. Returns at once."""
        report = Report(stage, partition, low, oldest, backlog, dict(origins or {}), list(idle), laggards)
        with self._lock:
            before = self._pending.get((stage, partition))
            self._pending[stage, partition] = report if before is None else merge_reports(before, report)
            self._all_sent.clear()

    def flush(self, seconds: float) -> bool:
        """Send all reports now; returns whether a server acknowledged them within ``seconds``."""
        self._wake.set()
        return self._all_sent.wait(seconds)

    def close(self, seconds: float = 5.0) -> bool:
        """Send what is left and stop; returns whether a server acknowledged it within ``seconds``."""
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
                if self._closing and self._all_sent.is_set():
                    return
                pause, failures = 0 if self._closing else self._every, 0
            else:
                first, longest = BACKOFF_SECONDS
                pause = min(first * 2**failures, longest) * random.uniform(0.5, 1)
                failures = min(failures + 1, 10)

    def _send(self) -> bool:
        with self._lock:
            taken, self._pending = self._pending, {}
        left = list(split_reports(taken.values()))
        try:
            lows: dict[str, StageLows] = {}
            while left:
                self._sequence += 1
                body = msgspec.json.encode(Reports(self._session, self._sequence, left[0], self._app))
                lows |= self._http.request("POST", "/v1/report", Reported, body).stages
                del left[0]
        except WatermarkError as error:
            if str(error) != self.last_error:
                log.warning("%s; the report will be sent again", error)
            self.last_error = str(error)
            with self._lock:
                for report in (report for part in left for report in part):
                    key = report.stage, report.partition
                    newer = self._pending.get(key)
                    self._pending[key] = report if newer is None else merge_reports(report, newer)
            return False
        self.last_error, self.lows = None, {**self.lows, **lows}
        with self._lock:
            if not self._pending:
                self._all_sent.set()
        return True


@dataclass(frozen=True, slots=True)
class UpstreamStages:
    """The stages before ``stage`` of ``app``, as the servers' config declares them. It can be pickled."""

    servers: tuple[str, ...]
    token: str = field(repr=False)
    stage: str
    app: str = DEFAULT_APP

    def follow(self) -> UpstreamFollower:
        """Begin to ask for their watermarks, once a second."""
        return UpstreamFollower(self)


class UpstreamFollower:
    """Asks the active server for the watermarks of some upstream stages, in a thread.

    ``lows``: by stage, the last answer; None until all of them have a watermark. ``last_error``: why the last
    request failed; None if it succeeded.
    """

    def __init__(self, stages: UpstreamStages, every: float = REPORT_INTERVAL_SECONDS) -> None:
        self.lows: Mapping[str, int] | None = None
        self.last_error: str | None = None
        self._path = in_app(f"/v1/stages/{stages.stage}/upstream", stages.app)
        self._http = _ServerPool(stages.servers, stages.token)
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watermark-follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop asking."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                found = self._http.request("GET", self._path, Upstream).lows
                known = {stage: low for stage, low in found.items() if low is not None}
                self.lows, self.last_error = known if len(known) == len(found) else None, None
            except WatermarkError as error:  # the service's reports go there too, and their client logs it
                self.last_error = str(error)
            self._stopping.wait(self._every)
        self._http.close()


def merge_reports(older: Report, newer: Report) -> Report:
    """One report that has the effect of two reports of the same partition.

    >>> merged = merge_reports(Report("s", origins={"a": 5}, oldest=4), Report("s", origins={"a": 3, "b": 1}))
    >>> merged.origins, merged.oldest
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


def split_reports(reports: Iterable[Report]) -> Iterator[list[Report]]:
    """The reports in parts, each small enough for one request. A report with many origins is split too."""
    part: list[Report] = []
    room = MAX_ORIGINS_PER_REQUEST
    for report in reports:
        items = list(report.origins.items())
        for start in range(0, max(len(items), 1), MAX_ORIGINS_PER_REQUEST):
            origins = dict(items[start : start + MAX_ORIGINS_PER_REQUEST])
            if part and len(origins) >= room:
                yield part
                part, room = [], MAX_ORIGINS_PER_REQUEST
            idle = report.idle if start == 0 else []
            part.append(msgspec.structs.replace(report, origins=origins, idle=idle))
            room -= len(origins) + 1
    if part:
        yield part


def poll_window(
    servers: Sequence[str],
    token: str,
    stage: str,
    end: int,
    timeout: float | None = None,
    app: str = DEFAULT_APP,
) -> Iterator[Window]:
    """Yield a stage's window about every two seconds, until it is closed or ``timeout`` seconds are over.

    Raises WatermarkError if the server refuses the request, or if no server responds before the timeout.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    http = _ServerPool(servers, token)
    try:
        while True:
            left = 5.0 if deadline is None else deadline - time.monotonic()
            path = in_app(f"/v1/stages/{stage}/wait?end={end}&seconds={int(min(max(left, 0), 2))}", app)
            try:
                window = http.request("GET", path, Window)
            except _UnreachableError:
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


def in_app(path: str, app: str) -> str:
    """A path with the parameter app. The default one is left out, so that older servers answer.

    >>> in_app("/v1/low", "default"), in_app("/v1/low", "eu"), in_app("/v1/stages/web/wait?end=5", "eu")
    ('/v1/low', '/v1/low?app=eu', '/v1/stages/web/wait?end=5&app=eu')
    """
    return path if app == DEFAULT_APP else f"{path}{'&' if '?' in path else '?'}app={quote(app, safe='')}"


def get(servers: Sequence[str], token: str, path: str, response_type: type[_Response]) -> _Response:
    """The active server's response to a GET. Raises WatermarkError if it refuses, or if none responds."""
    http = _ServerPool(servers, token)
    try:
        return http.request("GET", path, response_type)
    finally:
        http.close()


watch = poll_window  # its name in earlier versions


class _UnreachableError(WatermarkError):
    """No server responds, or none of them is active; a later request may succeed."""


class _ServerPool:
    """Sends a request to the server that responded last, and to the others if that one fails."""

    def __init__(self, servers: Sequence[str], token: str) -> None:
        if not servers:
            raise WatermarkError("no watermark server is given; give a URL such as http://127.0.0.1:8321")
        self._urls = [url.rstrip("/") for url in servers]
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.Client(headers=headers, timeout=TIMEOUT_SECONDS, trust_env=False)

    def request(
        self, method: str, path: str, response_type: type[_Response], body: bytes | None = None
    ) -> _Response:
        """The response of the active server, as a struct. WatermarkError if it refuses, or none responds."""
        last_error = ""
        for url in list(self._urls):
            try:
                response = self._http.request(method, url + path, content=body)
            except httpx.HTTPError as error:
                last_error = f"{url}: {str(error) or type(error).__name__}"
                continue
            except httpx.InvalidURL as error:
                raise WatermarkError(f"{url}: not a URL ({error}); write http://HOST:PORT") from None
            if response.status_code == 200:
                self._urls.sort(key=url.__ne__)  # this one first from now on
                return msgspec.json.decode(response.content, type=response_type)
            last_error = f"{url}: {_describe_error(response)}"
            if response.status_code < 500:
                raise WatermarkError(f"the watermark server refuses the request: {last_error}")
        raise _UnreachableError(f"no watermark server responds: {last_error}; start one, or correct its URL")

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def _describe_error(response: httpx.Response) -> str:
    try:
        error = msgspec.json.decode(response.content, type=ErrorBody)
    except msgspec.MsgspecError:
        return f"HTTP status {response.status_code}, not from a watermark server"
    return f"{error.error} ({error.where}: {error.value}); {error.remedy}"
