"""YAML text into plain values, bounded while it is read: mappings, lists, texts and None, for the schema to interpret.

Law: the value has at most CONFIG_NODES_MAX parts, aliases counted wherever they are used, and
CONFIG_DEPTH_MAX levels.
Scalars stay texts as they are written, so that `010` and `no` are what a schema makes of them.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from fluxsched.core.jsontext import shown
from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, LimitExceeded

YamlValue: TypeAlias = "dict[str, YamlValue] | list[YamlValue] | str | None"

CONFIG_CHARS_MAX = 1 << 20
"""Of one configuration: some ten thousand queues."""

CONFIG_NODES_MAX = 100_000
"""Mappings, lists, keys and scalars: reading so many takes a fifth of a second."""

CONFIG_DEPTH_MAX = 100
"""Levels of mappings and lists: a queue takes two."""

_NULLS: Final = frozenset(("", "~", "null", "Null", "NULL"))


def load_yaml(text: str) -> YamlValue:
    """The value of the one document, None without any. Raises InvalidValue with the line, LimitExceeded."""
    import yaml  # 20 ms, and an extra

    if len(text) > CONFIG_CHARS_MAX:
        raise LimitExceeded(f"a configuration of {len(text)} characters is above the limit of {CONFIG_CHARS_MAX}")
    loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
    builder = _Builder()
    try:
        for event in yaml.parse(text, Loader=loader):
            getattr(builder, f"on_{type(event).__name__}", _ignore)(event)
    except yaml.YAMLError as fault:
        raise InvalidValue(f"not YAML: {_fault_text(fault)}") from None
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
