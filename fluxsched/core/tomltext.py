"""A configuration as TOML, as people wrote it: tables by their headers, what is in arrays on one line.

Law: what is printed is read back as the same object (`tomllib`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fluxsched.core.text import UNPRINTABLE

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """The text of a table of texts, numbers, booleans, arrays and tables, without JSON's null, which TOML lacks."""
    text = "\n".join(_lines(table, ())).strip()
    return f"{text}\n" if text else ""


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    table = _without_null(table)
    plain = [f"{key_text(key)} = {inline(value)}" for key, value in table.items() if not _is_header(value)]
    if path and (plain or not table):
        yield f"\n[{path_text(path)}]"
    yield from plain
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _lines(value, (*path, key))
        elif _is_header(value):
            for entry in value:
                yield f"\n[[{path_text((*path, key))}]]"
                yield from (f"{key_text(name)} = {inline(one)}" for name, one in _without_null(entry).items())


def _without_null(table: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in table.items() if value is not None}


def _is_header(value: object) -> bool:
    return isinstance(value, Mapping) or (
        isinstance(value, list) and bool(value) and all(isinstance(one, Mapping) for one in value)
    )


def path_text(keys: Iterable[str]) -> str:
    """A path of keys as TOML writes it: `fair.banks.optics`."""
    return ".".join(map(key_text, keys))


def key_text(key: str) -> str:
    """A key as it stands in a table or between the dots of a path."""
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)  # what json leaves as it is


def inline(value: object) -> str:
    """A value on one line."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case float() if not math.isfinite(value):
            return str(value)
        case list() | tuple():
            return f"[{', '.join([inline(one) for one in value if one is not None])}]"
        case Mapping():
            pairs = ", ".join([f"{key_text(key)} = {inline(one)}" for key, one in _without_null(value).items()])
            return f"{{ {pairs} }}" if pairs else "{}"
        case _:
            return str(value)
