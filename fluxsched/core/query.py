"""The constraint query syntax (RFC 35) that people type after `--requires`, compiled to an RFC 31 object.

Law: only syntax is judged here, with the position of the fault; what the values mean is `core.constraint`'s to say.
Terms side by side are joined by `and`, which binds tighter than `or`; `!` is short for `not`, `-` negates one term.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fluxsched.errors import InvalidValue, LimitExceeded

TEXT_CHARS_MAX = 1 << 16
"""The longest query: half of what one command line argument may have."""

NESTING_MAX = 32
"""Parentheses and negations inside each other: as deep as a constraint may be, and a bound to the recursion."""

_OPERATORS: Final[Mapping[str, str]] = {
    "properties": "properties",
    "property": "properties",
    "hostlist": "hostlist",
    "hosts": "hostlist",
    "host": "hostlist",
    "ranks": "ranks",
    "rank": "ranks",
}
_WORDS: Final[Mapping[str, str]] = {"and": "&", "&&": "&", "&": "&", "or": "|", "||": "|", "|": "|", "not": "!"}
_TOKEN: Final = re.compile(r"""\s*(&{1,2}|\|{1,2}|[()!-]|(?:[^()|&\s"'!]|"[^"]*"|'[^']*')+)""")
_QUOTES: Final = re.compile(r""""([^"]*)"|'([^']*)'""")
_Object = dict[str, object]


def parse_query(text: str) -> _Object:
    """The RFC 31 object of a query such as `ssd & !gpu | host:node[0-3] rank:0-3`; a bare term is a property.

    Commas separate properties that are all required. Raises InvalidValue naming the position of a syntax error,
    LimitExceeded above TEXT_CHARS_MAX or NESTING_MAX.
    """
    if len(text) > TEXT_CHARS_MAX:
        raise LimitExceeded(f"constraint of {len(text)} characters is above the limit of {TEXT_CHARS_MAX}")
    reader = _Reader(_tokens(text))
    parsed = reader.alternatives(0)
    reader.expect("")
    return parsed


def _tokens(text: str) -> list[tuple[str, int]]:
    """Tokens with their positions, `and or not` as signs, `""` at the end."""
    tokens, at, end = [], 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None:
            raise InvalidValue(f"constraint: unclosed quote {text[at:].lstrip()[:20]!r} at position {at}")
        tokens.append((_WORDS.get(match[1], match[1]), match.start(1)))
        at = match.end()
    return [*tokens, ("", end)]


class _Reader:
    """Recursive descent, a method a precedence."""

    def __init__(self, tokens: list[tuple[str, int]]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> str:
        return self._tokens[self._next][0]

    def _skip(self, *signs: str) -> bool:
        found = self._peek() in signs
        self._next += found
        return found

    def expect(self, sign: str) -> None:
        token, at = self._tokens[self._next]
        if token != sign:
            wanted = repr(sign) if sign else "the end"
            raise InvalidValue(f"constraint: {token[:40]!r} at position {at} where {wanted} should be")
        self._next += 1

    def alternatives(self, depth: int) -> _Object:
        terms = [self._conjunction(depth)]
        while self._skip("|"):
            terms.append(self._conjunction(depth))
        return terms[0] if len(terms) == 1 else {"or": terms}

    def _conjunction(self, depth: int) -> _Object:
        terms = [self._negation(depth)]
        while self._skip("&") or self._peek() not in ("|", ")", ""):
            terms.append(self._negation(depth))
        return terms[0] if len(terms) == 1 else {"and": terms}

    def _negation(self, depth: int) -> _Object:
        if depth > NESTING_MAX:
            at = self._tokens[self._next][1]
            raise LimitExceeded(f"constraint: nested deeper than the limit of {NESTING_MAX} at position {at}")
        if self._skip("!"):
            return {"not": [self._negation(depth + 1)]}
        if self._skip("("):
            inside = self.alternatives(depth + 1)
            self.expect(")")
            return inside
        return {"not": [self._term()]} if self._skip("-") else self._term()

    def _term(self) -> _Object:
        token, at = self._tokens[self._next]
        if token in ("", "&", "|", "!", "(", ")", "-"):
            raise InvalidValue(f"constraint: {token or 'end'!r} at position {at} where a term should be")
        self._next += 1
        name, colon, operand = token.partition(":") if token[0] not in "\"'" else ("", "", "")
        operator = _OPERATORS.get(name) if colon else "properties"
        if operator is None:
            known = ", ".join(_OPERATORS)
            raise InvalidValue(f"constraint: unknown operator {name[:40]!r} at position {at}: use {known}")
        value = _QUOTES.sub(lambda match: match[1] or match[2] or "", operand if colon else token)
        if not value:
            raise InvalidValue(f"constraint: {token[:40]!r} at position {at} has no value")
        return {operator: value.split(",") if operator == "properties" else [value]}
