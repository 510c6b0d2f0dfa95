"""Text that others wrote, and text for people: printed safely, read as JSON within bounds; configurations as TOML.

R and jobspec come as text from files and the command line, as objects from the wire; both are bounded before they are
believed. Depth is judged level by level, never by recursion, so no document can exhaust the stack.

Laws: what `printable` returns has no character that moves the cursor, starts an escape sequence, turns the direction of
writing or cannot be encoded; a text without such characters comes back as it is. Each fault of a document is an error
that names it. TOML that is printed (tables by their headers, what is in arrays on one line) is read back as the same
object by `tomllib`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NoReturn

from fluxsched.errors import InvalidValue, LimitExceeded

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


# ---- documents

TEXT_CHARS_MAX = 1 << 26
"""64 Mi characters: an R of 131,072 different targets takes 10 Mi, a jobspec with embedded files (RFC 37) less."""

PATH_KEYS_MAX = 64
"""Keys in a path such as `attributes.system.duration`: a jobspec is no deeper."""

SHOWN_CHARS: Final = 40
"""Number of characters of an offending value that an error repeats."""


def load_object(source: object, what: str) -> dict[str, Any]:
    """Return the JSON object that `source` is or holds; a dict is returned as it is, not copied.

    Raises InvalidValue, starting with `what`, for text that is not JSON or not an object, LimitExceeded above
    TEXT_CHARS_MAX or when nested too deeply to be read.
    """
    if isinstance(source, dict):
        return source
    if isinstance(source, Mapping):
        return dict(source)
    if not isinstance(source, str | bytes):
        raise InvalidValue(f"{what} must be a JSON object, not {kind_of(source)}")
    if len(source) > TEXT_CHARS_MAX:
        raise LimitExceeded(f"{what} of {len(source)} characters is above the limit of {TEXT_CHARS_MAX}")
    obj = _load(source, what)
    if not isinstance(obj, dict):
        raise InvalidValue(f"{what} must be a JSON object, not {kind_of(obj)}")
    return obj


def check_shape(obj: dict[str, Any], what: str, *, depth_limit: int, items_limit: int) -> int:
    """Return the number of members of an object, in all.

    Raise LimitExceeded if it is nested too deep or has too many. The limits are `depth_limit` and `items_limit`.

    Breadth first: the cost is a type test a member, and shared parts (which text cannot make) count as often as they
    are reached, so they cannot multiply unseen.
    """
    level: list[Any] = [obj]
    items = 0
    for _ in range(depth_limit):
        items += sum(map(len, level))
        if items > items_limit:
            raise LimitExceeded(f"{what} has more than {items_limit} members: the limit for one document")
        level = [v for c in level for v in (c.values() if isinstance(c, dict) else c) if isinstance(v, _CONTAINERS)]
        if not level:
            return items
    raise LimitExceeded(f"{what} is nested deeper than the limit of {depth_limit} levels")


def named(path: str, fault: InvalidValue) -> InvalidValue:
    """Return a fault of the same class with the path of the faulty part in front."""
    return type(fault)(f"{path}: {fault}", fault.errnum)


def shown(value: object) -> str:
    """Return a wrong value in an error text: short scalars as they are, of everything else the type, whatever its
    size.
    """
    if isinstance(value, str):
        return repr(value if len(value) <= SHOWN_CHARS else value[:SHOWN_CHARS] + "...")
    if isinstance(value, float) or (type(value) is int and abs(value) < 10**SHOWN_CHARS):
        return repr(value)
    return kind_of(value)


_CONTAINERS: Final = (dict, list, tuple)
_MAYBE_LONE: Final = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
"""A surrogate, perhaps half of a pair."""


def _check_texts(obj: object, what: str) -> None:
    """Raise InvalidValue with the path of a text that has a lone surrogate, which cannot be encoded."""
    todo: list[tuple[str, object]] = [("", obj)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, dict):
            todo += [(f"{path}.{printable(key)}", part) for key, part in value.items()]
            todo += [(f"{path}: the key", key) for key in value]
        elif isinstance(value, list):
            todo += [(f"{path}[{at}]", part) for at, part in enumerate(value)]
        elif isinstance(value, str) and _LONE.search(value):
            raise InvalidValue(f"{what}{path} is not Unicode text: '{printable(value[:SHOWN_CHARS])}' has half a pair")


_LONE: Final = re.compile(r"[\ud800-\udfff]")


def _load(text: str | bytes, what: str) -> Any:
    def refuse(constant: str) -> NoReturn:
        raise InvalidValue(f"{what}: {constant} is not JSON: give a finite number")

    try:
        text = text.decode() if isinstance(text, bytes) else text
        obj = json.loads(text, parse_constant=refuse)
        if _MAYBE_LONE.search(text):
            _check_texts(obj, what)
        return obj
    except UnicodeDecodeError as fault:
        raise InvalidValue(f"{what} is not UTF-8 text: look at byte {fault.start}") from None
    except InvalidValue:
        raise
    except RecursionError:
        raise LimitExceeded(f"{what} is nested too deeply to be read") from None
    except json.JSONDecodeError as fault:
        raise InvalidValue(f"{what} is not JSON: {fault}") from None
    except ValueError:
        raise LimitExceeded(f"{what} holds a number of thousands of digits") from None


def with_path(tree: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`tree` with the value at a period-delimited path replaced; only dictionaries on the path are copied.

    Raises LimitExceeded for a path of more than PATH_KEYS_MAX keys.
    """
    keys = path.count(".") + 1
    if keys > PATH_KEYS_MAX:
        raise LimitExceeded(f"{shown(path)} has {keys} keys, the limit is {PATH_KEYS_MAX}: use fewer periods")
    return _with_path(tree, path, value)


def _with_path(tree: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    key, _, rest = path.partition(".")
    if not rest:
        return {**tree, key: value}
    below = tree.get(key)
    return {**tree, key: _with_path(below if isinstance(below, Mapping) else {}, rest, value)}


# ---- TOML as people write it

_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(table: Mapping[str, Any]) -> str:
    """Return the text of a table of texts, numbers, booleans, arrays and tables, without JSON's null, which TOML
    lacks.
    """
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
    """Return a path of keys as TOML writes it: `fair.banks.optics`."""
    return ".".join(map(key_text, keys))


def key_text(key: str) -> str:
    """Return a key as it stands in a table or between the dots of a path."""
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)  # what json leaves as it is


def inline(value: object) -> str:
    """Return a value on one line."""
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
