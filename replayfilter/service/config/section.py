"""How a section of the config and its keys are declared.

docs/reference/configuration.md and schemas/config.schema.json are generated from these declarations
(``make docs``, ``make schemas``). ``""`` and ``[]`` mean "not set". Which keys are required depends on other
keys, so checks.py reports missing ones, not pydantic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

REQUIRED = "required"


def setting(
    default: object, meaning: str, examples: Sequence[object], unit: str = "", unset: str = "", **limits: Any
) -> Any:
    """A key of a section, with its documentation.

    ``examples`` are values as in the file: messages show the first, the documentation shows the last.
    ``unit`` is the unit or the allowed values, where the type doesn't say it. ``unset`` says what it means
    to leave the key out, where the default is not a value.
    """
    shown: dict[str, Any] = {name: text for name, text in (("unit", unit), ("unset", unset)) if text}
    return Field(
        default=default, description=meaning, examples=list(examples), json_schema_extra=shown, **limits
    )


class Section(BaseModel):
    """The base of all sections: an unknown key is an error, and values can't be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)
