"""The "raw" format: values are opaque, so keys and expiry keys come from the record's metadata."""

from __future__ import annotations

from replayfilter.formats.spec import RecordColumns, RecordError


class RawReader:
    """An :class:`extractor.Reader` without columns. It accepts every value, null too."""

    needs = frozenset[str]()
    as_text = False

    def __call__(self, batch: RecordColumns, errors: dict[int, RecordError]) -> list[list[object]]:
        """No columns."""
        return []
