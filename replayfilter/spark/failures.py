"""One sentence for a failed query: Spark's own message is a page of Java and Python stack traces."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from py4j.protocol import Py4JError, Py4JJavaError

from replayfilter import errors
from replayfilter.errors import DeliveryError, ReplayfilterError, SparkLost, UnknownSchemas

_OURS = re.compile(
    rf"^(?:.*: )?replayfilter\.errors\.(\w+): (.+)$(?:\n{re.escape(errors.LANE_NOTE)}(\d+)$)?", re.MULTILINE
)
_CAUSE = re.compile(r"^Caused by: (?:[\w.$]+(?:Exception|Error)): (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(\w[\w.]*(?:Error|Exception): .+)$", re.MULTILINE)


def explain(text: str, again: str = "start the service again, which loses nothing") -> ReplayfilterError:
    r"""The error in the text of a StreamingQueryException; ``again``: what to do about one that isn't ours.

    >>> explain("Traceback ...\nreplayfilter.errors.DeliveryError: lane x-0 is lost; try again\n")
    DeliveryError('lane x-0 is lost; try again')
    """
    if ours := _OURS.findall(text):
        name, sentence, lane = ours[-1]
        kind = getattr(errors, name, DeliveryError)
        if kind is DeliveryError:
            return DeliveryError(sentence, int(lane) if lane else None)
        if kind is UnknownSchemas:
            return UnknownSchemas(map(int, re.findall(r"\d+", sentence)))
        return kind([sentence]) if kind is errors.ConfigError else kind(sentence)
    found = _PYTHON.findall(text) or _CAUSE.findall(text) or text.strip().splitlines()[:1] or ["no message"]
    return ReplayfilterError(
        f"the query failed: {found[-1].strip()}; {again}, and report this as a bug if it happens again"
    )


@contextlib.contextmanager
def jvm_errors() -> Iterator[None]:
    """Raise SparkLost if the JVM doesn't answer any more."""
    try:
        yield
    except Py4JJavaError:  # an exception from Java: the JVM is alive
        raise
    except (Py4JError, ConnectionError) as error:
        raise SparkLost(
            "Spark's Java process has ended while the service was running (it was killed, or ran out of "
            "memory); start the service again, which loses nothing, and give the machine more memory if it "
            "happens again"
        ) from error
