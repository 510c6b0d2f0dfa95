"""Reader of YAML sections: text into bounded plain values, then key by key, with every fault noted by its path.

Laws: a text gives mappings, lists, texts and None, at most CONFIG_NODES_MAX parts, aliases counted wherever they are
used, and CONFIG_DEPTH_MAX levels. Scalars stay texts as they are written, so that `010` and `no` are what a schema
makes of them. Each key of a section is read once or is a fault, so that no slip of the pen is taken for a default;
reading goes on after a fault.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

from fluxsched.core.text import kind_of, printable, shown, some_of
from fluxsched.errors import InvalidParts, InvalidValue, LimitExceeded

YamlValue: TypeAlias = "dict[str, YamlValue] | list[YamlValue] | str | None"

CONFIG_CHARS_MAX = 1 << 20
"""Of one configuration: some ten thousand queues."""

CONFIG_NODES_MAX = 100_000
"""Mappings, lists, keys and scalars: reading so many takes a fifth of a second."""

CONFIG_DEPTH_MAX = 100
"""Levels of mappings and lists: a queue takes two."""

_TOO_DEEP: Final = "exceeded maximum nesting depth"
"""How PyYAML (since 6.0.4) words its own limit, which it may reach before the first of the levels is an event."""

_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))


def load_yaml(text: str) -> YamlValue:
    """Return the value of the one document, None without any. Raises InvalidValue with the line, LimitExceeded."""
    import yaml  # 20 ms, and an extra

    if len(text) > CONFIG_CHARS_MAX:
        raise LimitExceeded(f"a configuration of {len(text)} characters is above the limit of {CONFIG_CHARS_MAX}")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            getattr(builder, f"on_{type(event).__name__}", _ignore)(event)
    except yaml.YAMLError as fault:
        what = _fault_text(fault)
        if what.endswith(_TOO_DEEP):
            raise LimitExceeded(f"{what}; the limit is {CONFIG_DEPTH_MAX} levels") from None
        raise InvalidValue(f"not YAML: {what}") from None
    except UnicodeEncodeError as fault:
        raise InvalidValue(f"not YAML: character {fault.start} is a lone surrogate, which is not text") from None
    return builder.document


def _fault_text(fault: Any) -> str:
    """Return place and kind of a fault in one line; the parser's own text names no file, and takes several."""
    mark = getattr(fault, "problem_mark", None)
    if mark is None:
        return printable(" ".join(str(fault).split()))
    what = ", ".join(filter(None, (fault.context, fault.problem)))
    return f"line {mark.line + 1}, column {mark.column + 1}: {printable(what)}"


class _Open:
    """A mapping or list that has begun; `size` counts its parts, `key` is that of the mapping's next value."""

    __slots__ = ("anchor", "key", "size", "value")

    def __init__(self, value: dict[str, YamlValue] | list[YamlValue], anchor: str | None) -> None:
        self.value = value
        self.anchor = anchor
        self.size = 1
        self.key: str | None = None


class _Builder:
    """Takes the parser's events; the methods are called as those are."""

    def __init__(self) -> None:
        self.document: YamlValue = None
        self._documents = 0
        self._open: list[_Open] = []
        self._anchors: dict[str, tuple[YamlValue, int]] = {}  # value and size of what is complete
        self._size = 0

    def on_DocumentStartEvent(self, event: Any) -> None:  # noqa: N802
        self._documents += 1
        if self._documents > 1:
            raise InvalidValue(f"{_line(event)}: a second document begins: give one")

    def on_ScalarEvent(self, event: Any) -> None:  # noqa: N802
        _check_tag(event)
        value = None if event.implicit[0] and event.value in _NULLS else event.value
        self._put(value, event, 1)
        self._keep(event.anchor, value, 1)

    def on_AliasEvent(self, event: Any) -> None:  # noqa: N802
        if event.anchor not in self._anchors:
            raise InvalidValue(f"{_line(event)}: there is no complete anchor {shown(event.anchor)} for an alias")
        value, size = self._anchors[event.anchor]
        self._put(value, event, size)

    def on_MappingStartEvent(self, event: Any) -> None:  # noqa: N802
        self._begin({}, event)

    def on_SequenceStartEvent(self, event: Any) -> None:  # noqa: N802
        self._begin([], event)

    def on_MappingEndEvent(self, event: Any) -> None:  # noqa: N802
        self._end(event)

    def on_SequenceEndEvent(self, event: Any) -> None:  # noqa: N802
        self._end(event)

    def _begin(self, value: dict[str, YamlValue] | list[YamlValue], event: Any) -> None:
        _check_tag(event)
        if len(self._open) >= CONFIG_DEPTH_MAX:
            raise LimitExceeded(f"{_line(event)}: nested deeper than the limit of {CONFIG_DEPTH_MAX} levels")
        self._size += 1
        self._open.append(_Open(value, event.anchor))

    def _end(self, event: Any) -> None:
        ended = self._open.pop()
        self._keep(ended.anchor, ended.value, ended.size)
        self._put(ended.value, event, ended.size, is_counted=True)

    def _put(self, value: YamlValue, event: Any, size: int, *, is_counted: bool = False) -> None:
        """Into what is open. Whatever an alias stands for counts again."""
        if not is_counted:
            self._size += size
        if self._size > CONFIG_NODES_MAX:
            raise LimitExceeded(f"{_line(event)}: more than {CONFIG_NODES_MAX} parts, with those that aliases repeat")
        if not self._open:
            self.document = value
            return
        into = self._open[-1]
        into.size += size
        if isinstance(into.value, list):
            into.value.append(value)
        elif into.key is not None:
            into.value[into.key] = value
            into.key = None
        elif not isinstance(value, str):
            raise InvalidValue(f"{_line(event)}: a key must be a text")
        elif value in into.value:
            raise InvalidValue(f"{_line(event)}: the key {shown(value)} is given twice")
        else:
            into.key = value

    def _keep(self, anchor: str | None, value: YamlValue, size: int) -> None:
        if anchor is not None:
            self._anchors[anchor] = (value, size)


def _check_tag(event: Any) -> None:
    if event.tag not in (None, "!"):
        raise InvalidValue(f"{_line(event)}: remove the tag {shown(event.tag)}: a value's type follows from its key")


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}"


def _ignore(event: Any) -> None:
    pass


# ---- sections

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
        """Raise InvalidParts if there are any: the text names FAULTS_TOLD_MAX of them, `faults` all, by path texts."""
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
        """Note what is wrong with a key."""
        self.faults.add((*self.path, key), text)

    def text(self, key: str, default: str = "") -> str:
        """Return a text; `default` where there is none."""
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
        """Return a whole number, 0 by default."""
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
        """Return a list of texts that are not empty."""
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
        """Note the keys that are not known."""
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
