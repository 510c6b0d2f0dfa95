"""On which line of a TOML text each key stands, which `tomllib` does not tell.

Law: the text has been accepted by `tomllib` before; so this only finds its way through valid TOML and judges nothing.
A path is the keys from the top, with the index of what is inside an array: `("resource", "config", 0, "hosts")`.
"""

from __future__ import annotations

import re
import tomllib
from typing import TypeAlias

Path: TypeAlias = tuple[str | int, ...]

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
        self._found: dict[Path, int] | None = None

    def of(self, path: Path) -> int:
        """The line of a key, or of the innermost table around it that the text names; 1 if it names none."""
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
        self._found: dict[Path, int] = {}
        self._lengths: dict[Path, int] = {}

    def lines(self) -> dict[Path, int]:
        table: Path = ()
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

    def _array_header(self) -> Path:
        self._at += 2
        *outer, last = self._key()
        array = (*self._resolved(tuple(outer)), last)
        index = self._lengths.get(array, 0)
        self._lengths[array] = index + 1
        self._note((*array, index))
        self._past("]")
        self._past("]")
        return (*array, index)

    def _resolved(self, keys: Path) -> Path:
        """Where a header leads: through an array of tables into its latest one."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self._lengths:
                path = (*path, self._lengths[path] - 1)
        return path

    def _pair(self, table: Path) -> None:
        self._peek()
        path = table + self._key()
        self._note(path)
        self._past("=")
        self._value(path)

    def _value(self, path: Path) -> None:
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

    def _key(self) -> Path:
        keys: list[str | int] = []
        while True:
            self._peek()
            bare = self._take(_BARE_KEY)
            keys.append(bare or next(iter(tomllib.loads(f"{self._take(_STRING)} = 0"))))
            if self._peek() != ".":
                return tuple(keys)
            self._at += 1

    def _peek(self) -> str:
        """The next character behind blanks and comments, "" at the end."""
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

    def _note(self, path: Path) -> None:
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        for length in range(1, len(path) + 1):
            self._found.setdefault(path[:length], self._line)
