"""Untrusted text, made safe for one line of a terminal.

Law: what `printable` returns has no character that moves the cursor, starts an escape sequence, turns the direction of
writing or cannot be encoded; a text without such characters comes back as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

UNPRINTABLE: Final = re.compile(r"[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
NAMES_TOLD: Final = 20
"""More names than this are not read."""
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def is_text(text: str) -> bool:
    """Return whether `text` can be encoded as UTF-8: Python represents undecodable bytes as lone surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(text: str) -> str:
    """`text` on one line: control characters and bytes that are not UTF-8 become `\\n`, `\\x1b`, ..."""
    return UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Like `printable`, but its lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def some_of(names: Sequence[str]) -> str:
    """Names for an error text, safe to print: the first NAMES_TOLD, and how many more there are."""
    told = ", ".join(map(printable, names[:NAMES_TOLD]))
    more = len(names) - NAMES_TOLD
    return f"{told} and {more} more" if more > 0 else told or "none"


def there_are(names: Sequence[str]) -> str:
    """Return which names there are, for an error text: `there are a, b`, `there is only a`, `there are none`."""
    return f"there is only {printable(names[0])}" if len(names) == 1 else f"there are {some_of(names)}"


def not_among(wrong: Sequence[str], allowed: Sequence[str]) -> str:
    """Return an error text: `'x' is not one of a, b`, or `'x', 'y' are not among a, b`."""
    is_not = "is not one of" if len(wrong) == 1 else "are not among"
    return f"{', '.join([repr(printable(one)) for one in wrong])} {is_not} {', '.join(allowed)}"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2000 nodes`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun, for tables: `1 job`, `2,000 jobs`."""
    return f"{count} {noun}" if count == 1 else f"{count:,} {noun}s"


def kind_of(value: object) -> str:
    """Return the kind of a wrong value, in the words of JSON: `null`, `an object`, `a number`, ..."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    kinds = ((dict, "an object"), (list | tuple, "an array"), (str, "a string"), (int | float, "a number"))
    return next((name for kind, name in kinds if isinstance(value, kind)), type(value).__name__)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # what Python makes of a byte that is not UTF-8
        code -= 0xDC00
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
