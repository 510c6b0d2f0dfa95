"""One option of a policy or a plugin, as users write it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Option:
    """A default, then either the allowed texts or a parser of the text.

    `parse` raises ValueError for what is not allowed; `help` says what the option does and allows.
    """

    default: Any
    choices: tuple[str, ...] = ()
    parse: Callable[[str], object] | None = None
    help: str = ""
