"""The form of an error in a configuration: path and value (secrets masked), what is wrong, what to do."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

from replayfilter.settings.variables import PREFIX, is_reference, is_set_by_variable, variable_of

Keys = Mapping[str, list[str]]  # the keys of each section

_SHOWN_CHARACTERS = 80
_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|jaas|user\.info|ssl\.key|\.pem$", re.IGNORECASE
)
_IN_URL = re.compile(r"//[^/@]*@")


def format_setting(path: str, value: object) -> str:
    """``path = value`` as in TOML, with secrets masked, and the variable that set it, if one did."""
    text = json.dumps(_masked(path, value), default=str, ensure_ascii=False)
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 3] + "..."
    source = f" (from {variable_of(path)})" if is_set_by_variable(path) else ""
    return f"{path} = {text}{source}"


def _masked(path: str, value: object) -> object:
    if isinstance(value, dict):
        return {key: _masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, str) and _IN_URL.search(value):
        value = _IN_URL.sub("//***@", value)
    if not is_secret(path) or (isinstance(value, str) and is_reference(value)):
        return value
    return "***"


def is_secret(name: str) -> bool:
    """Whether the name of a setting says that its value is a secret.

    >>> is_secret("sasl.password"), is_secret("sasl.mechanism")
    (True, False)
    """
    return _SECRET.search(name) is not None


def explain(error: Any, keys: Keys) -> str:
    """The message for one of pydantic's errors."""
    path = path_of(error)
    setting = format_setting(path, error["input"])
    match error["type"]:
        case "extra_forbidden":
            return f"{setting}: no such key; {did_you_mean(path, keys)}"
        case "literal_error":
            return f"{setting}: not one of the choices; use {error['ctx']['expected']}"
        case "value_error":
            return f"{setting}: {error['ctx']['error']}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return f"{setting}: not a table; write [{path}] and its keys below"
    wanted = str(error["msg"]).removeprefix("Input should be ").split(", unable")[0]
    return f"{setting}: must be {wanted}; change it"


def path_of(error: Any) -> str:
    """The dotted path of the value that one of pydantic's errors is about."""
    return ".".join(str(part) for part in error["loc"] if part != "[key]")


def did_you_mean(path: str, keys: Keys) -> str:
    """A remedy for an unknown key: the most similar one, or a list of those that exist."""
    section, _, key = path.partition(".")
    known = [f"{name}.{own}" for name, names in keys.items() for own in names]
    if key:
        near = difflib.get_close_matches(path, known, 1, 0.7) or [k for k in known if k.endswith(f".{key}")]
    else:
        near = difflib.get_close_matches(path, keys, 1) or [k for k in known if k.endswith(f".{path}")]
    if near:
        return f"did you mean {near[0]}?"
    if key and section in keys:
        return f"{section} has {', '.join(keys[section])}"
    return f"the sections are {', '.join(keys)}"


def unknown_variables(keys: Keys) -> dict[str, str]:
    """An error for each variable that names a section that doesn't exist: pydantic would ignore it."""
    errors = {}
    for name in os.environ:
        section, delimiter, key = name.upper().removeprefix(PREFIX).lower().partition("__")
        if name.upper().startswith(PREFIX) and delimiter and section not in keys:
            path = f"{section}.{key}".replace("__", ".")
            errors[path] = f"{name} (environment): no such key; {did_you_mean(path, keys)}"
    return errors


def in_documented_order(errors: Mapping[str, str], keys: Keys) -> list[str]:
    """The messages, in the order in which the documentation lists the keys; unknown keys come last.

    ``errors`` maps the path of each wrong value to its message.
    """

    def position(path: str) -> tuple[int, int, str]:
        section, _, key = path.partition(".")
        own = keys.get(section, [])
        key = key.split(".")[0]
        return (
            list(keys).index(section) if section in keys else len(keys),
            own.index(key) if key in own else len(own),
            path,
        )

    return [errors[path] for path in sorted(errors, key=position)]
