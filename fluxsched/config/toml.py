"""Reader of TOML documents that finds all faults in one pass, each with its line.

Law: the keys that a reader asks for are the known ones; all others are unknown keys. A fault is recorded and the reader
continues with a default, as a compiler does; `raise_faults` raises them all at the end. `tomllib` does not tell lines,
so they are found in the text, which it has accepted before: valid TOML only, and nothing is judged. A `KeyPath` is the
keys from the top, with the index of what is inside an array: `("resource", "config", 0, "hosts")`.
"""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fluxsched.core.quantities import AMOUNT_KINDS_MAX, Amounts, check_kind, parse_amount, parse_duration
from fluxsched.core.text import check_shape, counted, key_text, load_object, path_text, shown
from fluxsched.errors import InvalidValue, LimitExceeded

KeyPath: TypeAlias = tuple[str | int, ...]
Default = TypeVar("Default", float, None)

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})' r"|'''.*?'''(?:'{0,2})" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'", re.DOTALL
)
_SCALAR = re.compile(r"[^,\]}\n#]+")


class Lines:
    """The lines of one text, counted from 1; found on the first question, since most texts have no fault to report."""

    def __init__(self, text: str) -> None:
        self._text = text.replace("\r\n", "\n")
        self._found: dict[KeyPath, int] | None = None

    def of(self, path: KeyPath) -> int:
        """Return the line of a key, or of the innermost table around it that the text names; 1 if it names none."""
        if self._found is None:
            self._found = _Scan(self._text).lines()
        while path and path not in self._found:
            path = path[:-1]
        return self._found.get(path, 1)


class _Scan:
    """One walk through a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted_to = 0
        self._found: dict[KeyPath, int] = {}
        self._lengths: dict[KeyPath, int] = {}

    def lines(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._peek():
            if self._text.startswith("[[", self._at):
                table = self._array_header()
            elif self._peek() == "[":
                self._at += 1
                table = self._resolved(self._key())
                self._note(table)
                self._past("]")
            else:
                self._pair(table)
        return self._found

    def _array_header(self) -> KeyPath:
        self._at += 2
        *outer, last = self._key()
        array = (*self._resolved(tuple(outer)), last)
        index = self._lengths.get(array, 0)
        self._lengths[array] = index + 1
        self._note((*array, index))
        self._past("]")
        self._past("]")
        return (*array, index)

    def _resolved(self, keys: KeyPath) -> KeyPath:
        """Return the path to which a header refers: through an array of tables into its latest one."""
        path: KeyPath = ()
        for key in keys:
            path = (*path, key)
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        self._peek()
        path = table + self._key()
        self._note(path)
        self._past("=")
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        match self._peek():
            case "{":
                self._at += 1
                while self._peek() != "}":
                    self._pair(path)
                    self._past(",")
                self._at += 1
            case "[":
                self._at += 1
                index = 0
                while self._peek() != "]":
                    self._note((*path, index))
                    self._value((*path, index))
                    self._past(",")
                    index += 1
                self._at += 1
            case _:
                self._take(_STRING) or self._take(_SCALAR)

    def _key(self) -> KeyPath:
        keys: list[str | int] = []
        while True:
            self._peek()
            bare = self._take(_BARE_KEY)
            keys.append(bare or next(iter(tomllib.loads(f"{self._take(_STRING)} = 0"))))
            if self._peek() != ".":
                return tuple(keys)
            self._at += 1

    def _peek(self) -> str:
        """Return the next character behind blanks and comments, "" at the end."""
        self._take(_BLANK)
        return self._text[self._at : self._at + 1]

    def _past(self, mark: str) -> None:
        if self._peek() == mark:
            self._at += 1

    def _take(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            return ""
        self._at = match.end()
        return match[0]

    def _note(self, path: KeyPath) -> None:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        for length in range(1, len(path) + 1):
            self._found.setdefault(path[:length], self._line)


# ---- sections, key by key

DEPTH_MAX = 16
"""Tables inside tables: the deepest that we know has seven levels."""

MEMBERS_MAX = 1 << 20
"""Keys and array items in all: several for each of 131,072 hosts that all differ."""

FAULTS_SHOWN_MAX = 100
"""One mistake can cause thousands, and what scrolls off the screen does not help."""

JSON = ".json"
"""A file of this name is JSON, as Flux's brokers take it too; of its keys no lines are known."""

_WORDS = {bool: "a boolean", int: "an integer", float: "a number", str: "a string", list: "an array", dict: "a table"}
_AT_LINE = re.compile(r" \(at line ([0-9]+), column ([0-9]+)\)$")
_HUGE = re.compile(r"[0-9][0-9_]{999,}")


class TomlFault(NamedTuple):
    """Fault of a key or a table of a file: `text` names the key, `path` is its position."""

    line: int
    text: str
    path: KeyPath = ()


def raise_faults(name: str, faults: Iterable[TomlFault]) -> None:
    """Raise InvalidValue with all faults of the file `name`, a line each, in the order of the file."""
    found = [f"{name}:{fault.line}: {fault.text}" for fault in sorted(faults, key=lambda fault: fault[:2])]
    if len(found) > FAULTS_SHOWN_MAX:
        more = len(found) - FAULTS_SHOWN_MAX
        found[FAULTS_SHOWN_MAX:] = [f"{name}: and {counted(more, 'more fault')}; fix these first"]
    if found:
        raise InvalidValue("\n".join(found))


class Document:
    """One configuration, the lines of its text if it has one, and the faults found so far."""

    def __init__(self, raw: dict[str, Any], name: str, text: str = "") -> None:
        self.name = name
        self.lines = Lines(text)
        self.raw = raw
        self.faults: list[TomlFault] = []

    @classmethod
    def parse(cls, text: str, name: str) -> Document:
        """Return the document of a text in TOML, or in JSON by its name. Raises InvalidValue for what is neither."""
        return cls(_load(text, name), name, "" if name.endswith(JSON) else text)

    @property
    def root(self) -> TomlTable:
        """Return the table that contains all others."""
        return TomlTable(self, (), self.raw)

    def where(self, path: KeyPath) -> str:
        """Return the position of a key as `file:line`."""
        return f"{self.name}:{self.lines.of(path)}"

    def fault(self, path: KeyPath, text: str) -> None:
        """Note a fault of a key or a table."""
        self.faults.append(TomlFault(self.lines.of(path), text, path))


class TomlTable:
    """One table being read; `done` reports keys that were not asked for."""

    def __init__(self, document: Document, path: KeyPath, obj: dict[str, Any]) -> None:
        self.path = path
        self._document = document
        self._obj = obj
        self._asked: set[str] = set()

    def __contains__(self, key: str) -> bool:
        self._asked.add(key)
        return key in self._obj

    def has_text(self, key: str) -> bool:
        """Return whether the key has a string, for a key that may be a table or the short form of one."""
        return isinstance(self._obj.get(key), str)

    def fault(self, key: str | None, text: str) -> None:
        """Note a fault of a key of this table, or of the table (None)."""
        self.fault_at(() if key is None else (key,), text)

    def fault_at(self, path: tuple[str, ...], text: str) -> None:
        """Note a fault of a key in the tables below this one, by its path relative to this table."""
        at = (*self.path, *path)
        place = f"{_title(at[:-1])} {key_text(path[-1])}: " if path else f"{_title(at)} "
        self._document.fault(at, place.lstrip() + text)

    def text(self, key: str, parse: Callable[[str], object] | None = None) -> str | None:
        """Return a string that `parse`, if given, accepts; None if absent or faulty."""
        value = self._get(key, str)
        return value if value is not None and self.accepts(key, parse, value) else None

    def choice(self, key: str, allowed: Sequence[str]) -> str | None:
        """Return the value of a key that must be one of the allowed words; None if absent or faulty."""
        value: str | None = self._get(key, str)
        if value is None or value in allowed:
            return value
        self.fault(key, f"{shown(value)} is not one of {', '.join(allowed)}")
        return None

    def texts(self, key: str, parse: Callable[[str], object] | None = None) -> tuple[str, ...]:
        """Return an array of strings, each of which `parse`, if given, accepts."""
        found = []
        for at, value in enumerate(self._get(key, list) or ()):
            if not isinstance(value, str):
                self.fault(key, f"item {at} must be a string, not {_word(value)}")
            elif self.accepts(key, parse, value):
                found.append(value)
        return tuple(found)

    def joined(self, key: str) -> str:
        """Return a string, or an array of strings joined by commas, for a list that may also be one text; "" if
        absent.
        """
        if isinstance(self._obj.get(key), list):
            return ",".join(self.texts(key))
        value: str | None = self._get(key, str, list)
        return value or ""

    def integer(self, key: str, lowest: int) -> int | None:
        """Return an integer of at least `lowest`; None if absent or faulty."""
        value: int | None = self._get(key, int)
        if value is not None and value < lowest:
            self.fault(key, f"{value} is below {lowest}, the lowest value allowed")
            return None
        return value

    def number(self, key: str) -> float | None:
        """Return an integer or a real; None if absent or faulty."""
        return self._real(key, self._get(key, int, float))

    def number_or_text(self, key: str, parse: Callable[[str], float]) -> float | None:
        """Return a number, or a text that `parse` converts to one; None if absent or faulty."""
        value = self._get(key, int, float, str)
        if not isinstance(value, str):
            return self._real(key, value)
        return parse(value) if self.accepts(key, parse, value) else None

    def number_or_table(self, key: str) -> float | TomlTable | None:
        """Return a number, or a table with more details."""
        value = self._get(key, int, float, dict)
        return self.table(key) if isinstance(value, dict) else self._real(key, value)

    def _real(self, key: str, value: int | float | None) -> float | None:
        try:
            return None if value is None else float(value)
        except OverflowError:
            self.fault(key, "is beyond the range of a double: give a smaller number")
            return None

    def flag(self, key: str) -> bool | None:
        """Return the value of a boolean key; None if absent or faulty."""
        value: bool | None = self._get(key, bool)
        return value

    def amounts(self, key: str) -> Amounts:
        """Return a table of countable resources: name = a whole number, or a text such as "512GiB"."""
        table, found = self.table(key), {}
        for kind in table.names(AMOUNT_KINDS_MAX):
            value = table._get(kind, str, int)
            try:
                if value is not None:
                    found[check_kind(kind)] = parse_amount(value)
            except InvalidValue as fault:
                table.fault(kind, str(fault))
        return tuple(sorted(found.items()))

    def duration_s(self, key: str) -> float | None:
        """Return a duration (RFC 23: a string with a unit, or a number of seconds), in seconds; `infinity` is
        math.inf.
        """
        value = self._get(key, str, int, float)
        if value is None or (isinstance(value, float) and not math.isfinite(value)):
            if value is not None:
                self.fault(key, f"{value} is not a duration: write 'infinity' or a text such as '1.5h'")
            return None
        try:
            return parse_duration(value)
        except InvalidValue as fault:
            self.fault(key, str(fault))
            return None

    def duration_within(self, key: str, default: Default, lowest_s: float, most_s: float = math.inf) -> float | Default:
        """Return a finite duration (seconds) within bounds; the default if none is given, or it is faulty."""
        found = self.duration_s(key)
        if found is None or (lowest_s <= found <= most_s and math.isfinite(found)):
            return default if found is None else found
        most = f"{most_s:g} s" if math.isfinite(most_s) else "infinity"
        self.fault(key, f"{found:g} s is not within {lowest_s:g} s and {most}")
        return default

    def table(self, key: str) -> TomlTable:
        """Return a table below this one, empty if it is not there."""
        return TomlTable(self._document, (*self.path, key), self._get(key, dict) or {})

    def tables(self, key: str) -> list[TomlTable]:
        """Return an array of tables (`[[...]]`)."""
        if isinstance(self._obj.get(key), dict):
            self._asked.add(key)
            header = _title((*self.path, key, 0))
            self.fault(key, f"must be an array of tables, not a table: write {header} for [{header[2:-2]}]")
            return []
        found = []
        for at, value in enumerate(self._get(key, list) or ()):
            if isinstance(value, dict):
                found.append(TomlTable(self._document, (*self.path, key, at), value))
            else:
                self.fault(key, f"item {at} must be a table, not {_word(value)}")
        return found

    def names(self, limit: int) -> list[str]:
        """Return all keys, for a table whose keys are names that the site chose."""
        if len(self._obj) > limit:
            self.fault(None, f"{len(self._obj)} names are above the limit of {limit}")
            self._asked.update(self._obj)
            return []
        return list(self._obj)

    def accepts(self, key: str, parse: Callable[[str], object] | None, value: str) -> bool:
        """Return whether `parse` accepts the value; note its error otherwise."""
        try:
            if parse is not None:
                parse(value)
        except InvalidValue as fault:
            self.fault(key, str(fault))
            return False
        return True

    def done(self) -> None:
        """Report the keys that were not asked for as unknown."""
        known = sorted(self._asked)
        for key in self._obj.keys() - self._asked:
            close = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            text = f"{_title(self.path)} unknown key {shown(key)}; known keys: {', '.join(known)}{hint}"
            self._document.fault((*self.path, key), text.lstrip())

    def _get(self, key: str, *kinds: type) -> Any:
        self._asked.add(key)
        value = self._obj.get(key)
        if value is None or (isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))):
            return value
        words = [_WORDS[kind] for kind in kinds if kind is not int or float not in kinds]
        self.fault(key, f"must be {' or '.join(words)}, not {_word(value)}")
        return None


def _title(path: KeyPath) -> str:
    """Return the table in the form of its header: `[resource.groups]`, `[[scheduler]]`, nothing for the root."""
    dotted = path_text([key for key in path if isinstance(key, str)])
    if not dotted:
        return ""
    return f"[[{dotted}]]" if isinstance(path[-1], int) else f"[{dotted}]"


def _word(value: object) -> str:
    return _WORDS.get(type(value), "a date or time")


def _load(text: str, name: str) -> dict[str, Any]:
    try:
        raw = load_object(text, name) if name.endswith(JSON) else tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        said = str(fault)
        at = _AT_LINE.search(said)
        line = int(at[1]) if at else text.count("\n") + 1
        raise InvalidValue(f"{name}:{line}: not TOML: {_AT_LINE.sub('', said)}") from None
    except RecursionError:
        raise LimitExceeded(f"{name} is nested too deeply to be read") from None
    except InvalidValue:
        raise
    except ValueError:  # int() takes 4,300 digits (sys.set_int_max_str_digits), and does not say where
        found = _HUGE.search(text)
        line = text.count("\n", 0, found.start() if found else len(text)) + 1
        raise LimitExceeded(f"{name}:{line}: a number of thousands of digits: the largest is 2**63 - 1") from None
    check_shape(raw, name, depth_limit=DEPTH_MAX, items_limit=MEMBERS_MAX)
    return raw
