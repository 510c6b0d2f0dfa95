"""Sections of a configuration, read key by key: whatever is wrong is noted with its path, and reading goes on.

Law: each key of a section is read once or is a fault, so that no slip of the pen is taken for a default.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, TypeAlias

from fluxsched.adapters.si.config.yaml_tree import YamlValue
from fluxsched.core.jsontext import shown
from fluxsched.core.text import kind_of, printable, some_of
from fluxsched.errors import InvalidParts

SectionPath: TypeAlias = tuple[str | int, ...]

FAULTS_TOLD_MAX = 100
"""Number of faults that the text of an error names; all of them are in `InvalidParts.faults`."""

_TRUE: Final = frozenset(("true", "yes", "on"))
_FALSE: Final = frozenset(("false", "no", "off"))
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def path_text(path: SectionPath) -> str:
    """Return a path as text: `partitions[0].queues[1].name`."""
    parts = [f"[{part}]" if isinstance(part, int) else f".{printable(part)}" for part in path]
    return "".join(parts).lstrip(".")


class ConfigFaults:
    """Faults of one configuration found so far."""

    def __init__(self) -> None:
        self.found: list[tuple[SectionPath, str]] = []

    def add(self, path: SectionPath, text: str) -> None:
        """Note one more fault with its path."""
        self.found.append((path, text))

    def check(self) -> None:
        """Raises InvalidParts if there are any: the text names FAULTS_TOLD_MAX of them, `faults` all, by path texts."""
        if not self.found:
            return
        parts = [(path_text(path), text) for path, text in self.found]
        told = [f"{path}: {text}" if path else text for path, text in parts[:FAULTS_TOLD_MAX]]
        if len(parts) > FAULTS_TOLD_MAX:
            told.append(f"and {len(parts) - FAULTS_TOLD_MAX} more")
        raise InvalidParts("; ".join(told), [((path,), text) for path, text in parts])


class Section:
    """A mapping at a path; `None` is an empty one. `end` notes the keys that are not among the `known`."""

    def __init__(self, value: YamlValue, path: SectionPath, faults: ConfigFaults) -> None:
        self.path = path
        self.faults = faults
        self.is_given = value is not None
        self.is_mapping = value is None or isinstance(value, dict)
        if not self.is_mapping:
            faults.add(path, f"must be a mapping, not {_kind(value)}")
        self._left: dict[str, YamlValue] = dict(value) if isinstance(value, dict) else {}
        self.known: list[str] = []

    def fault(self, key: str, text: str) -> None:
        """Notes what is wrong with a key."""
        self.faults.add((*self.path, key), text)

    def text(self, key: str, default: str = "") -> str:
        """A text; `default` where there is none."""
        value = self._take(key)
        if value is None:
            return default
        if not isinstance(value, str):
            self.fault(key, f"must be a text, not {_kind(value)}")
            return default
        return value

    def choice(self, key: str, choices: Sequence[str], default: str) -> str:
        """One of some words; an empty one is the default."""
        value = self.text(key) or default
        if value not in choices:
            self.fault(key, f"{shown(value)} is not one of {', '.join(choices)}")
            return default
        return value

    def flag(self, key: str) -> bool:
        """Return whether the flag is set; by default it is not."""
        value = self.text(key, "false").lower()
        if value not in _TRUE and value not in _FALSE:
            self.fault(key, f"{shown(value)} is neither true nor false")
        return value in _TRUE

    def whole(self, key: str, least: int, most: int) -> int:
        """A whole number, 0 by default."""
        value = self.text(key, "0")
        if _WHOLE.fullmatch(value) is None or not least <= int(value) <= most:
            self.fault(key, f"{shown(value)} is not a whole number within {least} and {most}")
            return 0
        return int(value)

    def section(self, key: str) -> Section:
        """Return the mapping below this key."""
        return Section(self._take(key), (*self.path, key), self.faults)

    def sections(self, key: str) -> list[Section]:
        """Return the list of mappings below this key."""
        return [Section(value if value is not None else {}, path, self.faults) for path, value in self._list(key)]

    def texts(self, key: str) -> list[str]:
        """A list of texts that are not empty."""
        found = []
        for path, value in self._list(key):
            if isinstance(value, str) and value:
                found.append(value)
            else:
                self.faults.add(path, f"must be a text that is not empty, not {_kind(value)}")
        return found

    def items(self) -> list[tuple[str, str]]:
        """All keys that are left, of a mapping of texts."""
        return [(key, self.text(key)) for key in list(self._left)]

    def end(self) -> None:
        """Notes the keys that are not known."""
        for key in self._left:
            self.fault(key, f"this key is not known here, only {some_of(sorted(self.known))}")

    def _list(self, key: str) -> list[tuple[SectionPath, YamlValue]]:
        value = self._take(key)
        if value is None:
            return []
        if not isinstance(value, list):
            self.fault(key, f"must be a list, not {_kind(value)}")
            return []
        return [((*self.path, key, at), part) for at, part in enumerate(value)]

    def _take(self, key: str) -> YamlValue:
        self.known.append(key)
        return self._left.pop(key, None)


def _kind(value: YamlValue) -> str:
    """Return the kind of a value, in the words of YAML."""
    words = {"an object": "a mapping", "an array": "a list", "a string": "a text", "null": "nothing"}
    return words.get(kind_of(value), "nothing") if value != "" else "an empty text"
