"""How a fault in the configuration is said: path, value with secrets masked, what is wrong, what to do."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from typing import Any

PREFIX = "REPLAYFILTER_"
Keys = Mapping[str, list[str]]  # the keys of each section

_VARIABLE = re.compile(r"\$\{[^}]*\}")
_SECRET = re.compile(
    r"password|passphrase|secret|token|credential|jaas|user\.info|ssl\.key|\.pem$", re.IGNORECASE
)
_IN_URL = re.compile(r"//[^/@]*@")


def variable_of(path: str) -> str:
    """The environment variable that sets a dotted path.

    >>> variable_of("kafka.bootstrap")
    'REPLAYFILTER_KAFKA__BOOTSTRAP'
    """
    return PREFIX + path.upper().replace(".", "__")


def shown(path: str, value: object) -> str:
    """``path = value`` as TOML has it, secrets masked; and the variable, where the value came from one."""
    text = json.dumps(_masked(path, value), default=str, ensure_ascii=False)
    if len(text) > 80:
        text = text[:77] + "..."
    variable = variable_of(path)
    given = any(name.upper() == variable for name in os.environ)
    return f"{path} = {text} (from {variable})" if given else f"{path} = {text}"


def _masked(path: str, value: object) -> object:
    if isinstance(value, dict):
        return {key: _masked(str(key), inner) for key, inner in value.items()}
    if isinstance(value, str) and _IN_URL.search(value):
        value = _IN_URL.sub("//***@", value)
    if not _SECRET.search(path) or (isinstance(value, str) and _VARIABLE.fullmatch(value)):
        return value
    return "***"


def explain(error: Any, keys: Keys) -> tuple[str, str]:
    """One of pydantic's errors as its path and a sentence."""
    path = ".".join(str(part) for part in error["loc"] if part != "[key]")
    setting = shown(path, error["input"])
    match error["type"]:
        case "extra_forbidden":
            return path, f"{setting}: no such key; {did_you_mean(path, keys)}"
        case "literal_error":
            return path, f"{setting}: not one of the choices; use {error['ctx']['expected']}"
        case "value_error":
            return path, f"{setting}: {error['ctx']['error']}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return path, f"{setting}: not a table; write [{path}] and its keys below"
    wanted = str(error["msg"]).removeprefix("Input should be ").split(", unable")[0]
    return path, f"{setting}: must be {wanted}; change it"


def did_you_mean(path: str, keys: Keys) -> str:
    """The nearest key to an unknown one, or what there is to choose from."""
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
    """Variables named like settings, of a section that there is not: pydantic would pass over them."""
    faults = {}
    for name in os.environ:
        section, delimiter, key = name.upper().removeprefix(PREFIX).lower().partition("__")
        if name.upper().startswith(PREFIX) and delimiter and section not in keys:
            path = f"{section}.{key}".replace("__", ".")
            faults[path] = f"{name} (environment): no such key; {did_you_mean(path, keys)}"
    return faults


def in_order(faults: Mapping[str, str], keys: Keys) -> list[str]:
    """The sentences, sorted as the keys stand in the documentation, unknown ones after their section's."""

    def place(path: str) -> tuple[int, int, str]:
        section, _, key = path.partition(".")
        own = keys.get(section, [])
        key = key.split(".")[0]
        return (
            list(keys).index(section) if section in keys else len(keys),
            own.index(key) if key in own else len(own),
            path,
        )

    return [faults[path] for path in sorted(faults, key=place)]
