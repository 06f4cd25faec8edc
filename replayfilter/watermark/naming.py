"""Rosters from naming services: DNS, a URL that lists names, or the endpoints of a Kubernetes service.

A thread asks for them, so that a slow answer holds up no report.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec

from replayfilter.watermark.roster_file import checked_names, names_in

log = logging.getLogger("replayfilter.watermark")

POLL_SECONDS = 5.0
TIMEOUT_SECONDS = 5.0
MAX_BYTES = 16_000_000
DNS = "dns:"
_URLS = ("http://", "https://")


def is_naming_service(roster: str) -> bool:
    """Whether a roster is a naming service, and not a file.

    >>> [is_naming_service(roster) for roster in ("dns:web.shop.svc", "http://names/web", "hosts.txt")]
    [True, True, False]
    """
    return roster.startswith((DNS, *_URLS))


def ask(roster: str) -> list[str]:
    """The origins that a naming service names now; ValueError, with a message, if it can't be used."""
    names = _resolve(roster.removeprefix(DNS)) if roster.startswith(DNS) else _get(roster)
    return checked_names(((f"{roster}: name {number}", name) for number, name in enumerate(names, 1)), roster)


def _resolve(host: str) -> list[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"{DNS}{host}: can't be resolved ({reason}); check the name and the DNS") from None
    return sorted({str(address[0]) for *_, address in found})


def _get(url: str) -> list[str]:
    body = bytearray()
    try:
        with (
            httpx.Client(timeout=TIMEOUT_SECONDS, trust_env=False) as http,
            http.stream("GET", url) as response,
        ):
            if response.status_code != 200:
                raise ValueError(f"{url}: answers {response.status_code}; check the URL and who may read it")
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_BYTES:
                    raise ValueError(f"{url}: more than {MAX_BYTES:,} bytes; give a shorter list")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ValueError(
            f"{url}: can't be read ({str(error) or type(error).__name__}); check the URL"
        ) from None
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{url}: not UTF-8 at byte {error.start}; answer in UTF-8") from None
    if not text.lstrip().startswith(("[", "{")):
        return [name for _, name in names_in(text)]
    try:
        return list(_names_in_json(msgspec.json.decode(text)))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        raise ValueError(
            f"{url}: answers neither a JSON list of names, nor Kubernetes' Endpoints or EndpointSlices, nor "
            "one name per line; give one of these"
        ) from None


def _names_in_json(document: Any) -> Iterator[str]:
    """The names in a list, or in an object of Kubernetes. Pods that are not ready now are expected too."""
    if isinstance(document, list):
        if not all(isinstance(name, str) for name in document):
            raise TypeError
        yield from document
        return
    kind = document["kind"]
    if kind.endswith("List"):
        for item in document["items"]:
            yield from _names_in_json({"kind": kind.removesuffix("List"), **item})
    elif kind == "EndpointSlice":
        for endpoint in document["endpoints"] or []:
            yield _name_of_pod(endpoint) or str(endpoint["addresses"][0])
    elif kind == "Endpoints":
        for subset in document.get("subsets") or []:
            for address in [*(subset.get("addresses") or []), *(subset.get("notReadyAddresses") or [])]:
                yield _name_of_pod(address) or str(address["ip"])
    else:
        raise KeyError(kind)


def _name_of_pod(endpoint: dict[str, Any]) -> str | None:
    name = (endpoint.get("targetRef") or {}).get("name") or endpoint.get("hostname")
    return None if name is None else str(name)


class Answer(NamedTuple):
    """The last answer of a naming service: origins, or an error. ``number`` is another after each change."""

    number: int
    origins: list[str]
    error: str | None


class NamingPoller:
    """Asks some naming services every few seconds. ``answers``: by roster, the last one, if there is any."""

    def __init__(self, rosters: Iterable[str], every: float = POLL_SECONDS) -> None:
        self.answers: dict[str, Answer] = {}
        self._rosters, self._every = sorted(set(rosters)), every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="naming-poller", daemon=True)

    def start(self) -> None:
        """Start to ask, if there is anything to ask."""
        if self._rosters:
            self._thread.start()

    def stop(self) -> None:
        """Stop asking. An answer that is on its way is not waited for."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            for roster in self._rosters:
                origins, error = [], None
                try:
                    origins = ask(roster)
                except ValueError as refused:
                    error = str(refused)
                before = self.answers.get(roster)
                if before is None or (before.origins, before.error) != (origins, error):
                    self.answers[roster] = Answer(before.number + 1 if before else 1, origins, error)
            self._stopping.wait(self._every)
