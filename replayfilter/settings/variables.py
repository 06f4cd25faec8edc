"""Environment variables: those that set a key, and ``${NAME}`` inside a value.

REPLAYFILTER_SECTION__KEY sets ``section.key``. ``${NAME}`` in a value is replaced by the variable NAME, so
that a secret need not be in a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from replayfilter.errors import ConfigError

PREFIX = "REPLAYFILTER_"
_REFERENCE = re.compile(r"\$\{([^}]*)\}")


def variable_of(path: str) -> str:
    """The environment variable that sets a dotted path.

    >>> variable_of("kafka.bootstrap")
    'REPLAYFILTER_KAFKA__BOOTSTRAP'
    """
    return PREFIX + path.upper().replace(".", "__")


def is_set_by_variable(path: str) -> bool:
    """Whether the environment sets a dotted path; the case of the variable's name doesn't matter."""
    variable = variable_of(path)
    return any(name.upper() == variable for name in os.environ)


def expand(text: str) -> str:
    """``text`` with each ${NAME} replaced; KeyError if a variable is not set. Don't log it."""
    return _REFERENCE.sub(lambda found: os.environ[found[1]], text)


def expanded(option: str, given: Mapping[str, str]) -> dict[str, str]:
    """The settings that were given by a command's ``option``, each ${NAME} in a value replaced.

    Raises ConfigError that names the variables that are not set.
    """
    errors = [
        f"{option} {name}: needs the environment variable {', '.join(missing)}, which is not set; set it"
        for name, text in given.items()
        if (missing := unset_variables(text))
    ]
    if errors:
        raise ConfigError(errors)
    return {name: expand(text) for name, text in given.items()}


def unset_variables(text: str) -> list[str]:
    """The variables that ``text`` refers to and that are not set.

    >>> unset_variables("${NO_SUCH_VARIABLE}:${PATH}")
    ['NO_SUCH_VARIABLE']
    """
    return [name for name in _REFERENCE.findall(text) if name not in os.environ]


def is_reference(text: str) -> bool:
    """Whether ``text`` is one ${NAME} and nothing else, so that it holds no secret itself."""
    return _REFERENCE.fullmatch(text) is not None
