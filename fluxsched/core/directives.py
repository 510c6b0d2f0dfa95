"""Submission directives: options that a batch script carries (RFC 36).

Law: a directive is a line that begins with the sentinel, some non-word characters and `flux:` or `FLUX:`; the first one
decides which characters. What follows is words with the quotes of a shell and comments; it must be options. A
directive after the script proper has begun is an error, for it would be ignored. Every error names its line.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fluxsched.errors import InvalidValue, LimitExceeded

SCRIPT_BYTES_MAX = 1 << 20
"""A batch script is stored with its job, whose jobspec lives in memory and on disk: 1 MiB of shell is a mistake."""

_LINE: Final = re.compile(r"([^\w]*)((?:flux|FLUX):)(.*)")
_PART: Final = re.compile(
    r"(?P<space>\s+)|(?P<comment>#.*)"
    r"|(?P<triple>\"\"\"(?P<in_double>.*?)\"\"\"|'''(?P<in_single>.*?)''')"
    r"|(?P<open>\"\"\"|''')"
    r"|(?P<double>\"(?:[^\"\\]|\\.)*\")|(?P<single>'(?:[^'\\]|\\.)*')"
    r"|\\(?P<escaped>.)|(?P<plain>[^\s#\"'\\();<>|&]+)|(?P<stray>.)"
)
_ESCAPE: Final = re.compile(r"\\([\\\"'])")


class Directive(NamedTuple):
    """The options of one directive, and the line of the script that it begins on (counted from 1)."""

    line: int
    words: tuple[str, ...]


class _Literal:
    """A triple quoted string over several lines, from its opening line on."""

    def __init__(self, line: int, begin: str, quotes: str, words: list[str], joined: bool) -> None:
        self.line = line
        self.begin = begin.strip()
        self.indent = begin[: -len(begin.lstrip())]
        self.quotes = quotes
        self.words = words
        self.joined = joined
        self.lines: list[str] = []

    def take(self, text: str) -> bool:
        """Take one line; whether it closes the literal."""
        text = text.removeprefix(self.indent)
        closed = text.rstrip().endswith(self.quotes)
        self.lines.append(text.rstrip().removesuffix(self.quotes) if closed else text)
        return closed

    def finish(self) -> Directive:
        text = "\n".join(self.lines)
        if self.joined:
            self.words[-1] += text
        else:
            self.words.append(text)
        return _checked(self.line, self.words)


def parse_directives(script: str) -> list[Directive]:
    """The directives of a script, in order; lines whose options are commented out are left away.

    Raises InvalidValue that begins with the line: `line 6: ...`.
    """
    found: list[Directive] = []
    sentinel: tuple[str, str] | None = None
    ended = 0
    literal: _Literal | None = None
    number = 0
    for number, line in enumerate(script.split("\n"), 1):
        match = _LINE.match(line)
        if match is None:
            if literal is not None:
                raise _unterminated(literal, number)
            if sentinel is not None and not ended and line.strip() and not line.startswith(sentinel[0].rstrip()):
                ended = number
            continue
        if ended:
            raise InvalidValue(
                f"line {number}: {match[2]!r} after line {ended}, where the script itself begins: "
                "move all directives before it"
            )
        sentinel = _same(sentinel, (match[1], match[2]), number)
        if literal is None:
            literal = _read(number, match[3], found)
        elif literal.take(match[3]):
            found.append(literal.finish())
            literal = None
    if literal is not None:
        raise _unterminated(literal, number)
    return found


def check_script(script: str, name: str) -> None:
    """Refuse what cannot be a batch script: text without `#!`, or too much of it. `name` is used in the error."""
    size = len(script.encode("utf-8", "surrogateescape"))
    if size > SCRIPT_BYTES_MAX:
        raise LimitExceeded(
            f"{name}: a script of {size} bytes is above the limit of {SCRIPT_BYTES_MAX}: "
            "have a short script start the program that you mean"
        )
    if not script.startswith("#!"):
        raise InvalidValue(f"{name} does not begin with #! (such as #!/bin/sh): name its interpreter, or use --wrap")


def _same(first: tuple[str, str] | None, found: tuple[str, str], number: int) -> tuple[str, str]:
    if first is not None and first != found:
        wanted, given = "".join(first), "".join(found)
        raise InvalidValue(
            f"line {number}: sentinel {given!r} differs from {wanted!r} above: all directives of a script begin alike. "
            f"To leave one out write {wanted} # in front of its options"
        )
    return found


def _read(number: int, text: str, found: list[Directive]) -> _Literal | None:
    """Add the directive of a line, if it has one; the literal that it opens, if it does."""
    words: list[str] = []
    joined = False
    for part in _PART.finditer(text):
        kind = part.lastgroup
        if part["open"]:
            if text[part.end() :].strip():
                raise InvalidValue(f"line {number}: unclosed triple quote: {text.strip()}")
            return _Literal(number, text, part["open"], words, joined)
        if kind == "stray":
            raise InvalidValue(f"line {number}: {_stray(part['stray'])}: {text.strip()}")
        if kind in ("space", "comment"):
            joined = False
            continue
        if not joined:
            words.append("")
            joined = True
        words[-1] += _value(part)
    if words:
        found.append(_checked(number, words))
    return None


def _value(part: re.Match[str]) -> str:
    if part["triple"]:
        return part["in_double"] if part["in_double"] is not None else part["in_single"]
    quoted = part["double"] or part["single"]
    if quoted:
        return _ESCAPE.sub(lambda found: found[1] if found[1] in ("\\", quoted[0]) else found[0], quoted[1:-1])
    return part["escaped"] or part["plain"]


def _stray(character: str) -> str:
    if character in "\"'":
        return f"quote {character} is not closed"
    if character == "\\":
        return "a backslash at its end escapes nothing"
    return f"{character!r} means something to shells: quote it"


def _checked(number: int, words: list[str]) -> Directive:
    if not words[0].startswith("-"):
        raise InvalidValue(f"line {number}: unknown directive {words[0]!r}: it must begin with an option, such as -N4")
    return Directive(number, tuple(words))


def _unterminated(literal: _Literal, number: int) -> InvalidValue:
    return InvalidValue(f"line {number}: triple quote of line {literal.line} is not closed: {literal.begin}")
