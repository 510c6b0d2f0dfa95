"""Texts of other people, made fit for one line of a terminal.

Law: what `printable` returns has no character that moves the cursor, starts an escape sequence, turns the direction of
writing or cannot be encoded; a text without such characters comes back as it is.
"""

from __future__ import annotations

import re

_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}


def printable(text: str) -> str:
    """`text` on one line: control characters and bytes that are not UTF-8 become `\\n`, `\\x1b`, ..."""
    return _UNPRINTABLE.sub(_escape, text)


def printable_lines(text: str) -> str:
    """Like `printable`, but its lines stay lines."""
    return "\n".join(map(printable, text.split("\n")))


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if 0xDC80 <= code <= 0xDCFF:  # what Python makes of a byte that is not UTF-8
        code -= 0xDC00
    return _SHORT.get(found[0]) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")
