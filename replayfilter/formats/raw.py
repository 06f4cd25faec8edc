"""The "raw" format: values are opaque, so keys and expiry keys come from the record's metadata."""

from __future__ import annotations

from collections.abc import Sequence

from replayfilter.formats.spec import RecordError


class RawReader:
    """An :class:`extractor.Reader` without columns. It accepts every value, null too."""

    def __call__(self, values: Sequence[bytes | None], errors: dict[int, RecordError]) -> list[list[object]]:
        """No columns."""
        return []
