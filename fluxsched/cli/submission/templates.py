"""The templates of `fluxsched bulksubmit`: input lists, their combinations, and the expansion of `{}` and similar tags.

Law: text in, text out. Only the forms of PLACEHOLDER are replaced; any other brace, `{{id}}` of an output file among
them, stays as it is. `{cc}` is left for the pass that makes copies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, product
from math import prod
from typing import NamedTuple

from fluxsched.core.text import printable
from fluxsched.errors import InvalidValue, LimitExceeded

INPUTS_MAX = 100_000
"""Inputs of one list, and combinations of all lists: as many jobs as one command submits."""

VALUES_MAX = 1_000_000
"""Inputs of all jobs in all: ten for each of the most jobs."""

WIDTH_MAX = 1024
"""Characters that a placeholder may be padded to, as in `{:>8}`."""

LINKED, FROM_FILES = "+", "::::"
DELIMITERS = (":::", ":::+", "::::", "::::+")

PLACEHOLDER = re.compile(
    r"(?<!\{)\{(?:(?P<seq>seq1?)|(?P<index>\d{0,4})(?:\.(?P<method>[%/]{1,3}|\w+))?)(?::(?P<spec>[^{}]{0,20}))?\}(?!\})"
)

METHODS: Mapping[str, Callable[[str], object]] = {
    "%": lambda text: os.path.splitext(text)[0],
    "/": os.path.basename,
    "/%": lambda text: os.path.splitext(os.path.basename(text))[0],
    "//": os.path.dirname,
}
"""What stands behind the dot: without extension, without directory, without both, the directory."""

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\0": "\0"}

Methods = Mapping[str, Callable[[str], object]]


class Inputs(NamedTuple):
    """One list of inputs; a linked one goes along with the list before it."""

    values: tuple[str, ...]
    linked: bool = False


class InputRow(NamedTuple):
    """The inputs of one job, and its number from 0."""

    seq: int
    values: tuple[str, ...]

    def __str__(self) -> str:
        return f"input {self.seq + 1} ({', '.join(map(_quoted, self.values))})"


def _quoted(value: str) -> str:
    return f"'{printable(value)}'"


def split_words(words: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """The command, and the lists behind it: each delimiter with what follows it."""
    at = [place for place, word in enumerate(words) if word in DELIMITERS]
    ends = [*at, len(words)]
    lists = [(words[begin], tuple(words[begin + 1 : end])) for begin, end in pairwise(ends)]
    return tuple(words[: ends[0]]), lists


def read_inputs(
    lists: Iterable[tuple[str, tuple[str, ...]]], separator: str, read: Callable[[str], str]
) -> list[Inputs]:
    """The lists of inputs. `read` gives the text of a file, `-` being stdin, which is read if there is no list;
    `separator` may be written as `\\n`, `\\t` or `\\0`.

    Raises InvalidValue for a list that is empty or linked to none, LimitExceeded above INPUTS_MAX.
    """
    separator = _ESCAPES.get(separator, separator)
    found: list[Inputs] = []
    for delimiter, words in list(lists) or [(FROM_FILES, ("-",))]:
        linked = delimiter.endswith(LINKED)
        if linked and not found:
            raise InvalidValue(f"{delimiter} links inputs to preceding ones, but there are none")
        values = words
        if delimiter.startswith(FROM_FILES):
            if not words:
                raise InvalidValue(f"{delimiter} is not followed by a file")
            values = tuple(value for name in words for value in _values(read(name), separator))
        if not values:
            of = f" of {', '.join(words)}" if delimiter.startswith(FROM_FILES) and words else ""
            raise InvalidValue(f"the inputs{of} are empty: there is nothing to submit")
        if len(values) > INPUTS_MAX:
            raise LimitExceeded(f"{len(values)} inputs in one list exceed the limit of {INPUTS_MAX}")
        found.append(Inputs(values, linked))
    return found


def _values(text: str, separator: str) -> list[str]:
    if separator.lower() == "none":
        return text.split()
    parts = text.removesuffix("\n").split(separator)
    return parts[:-1] if parts[-1] == "" else parts


def combine(lists: Sequence[Inputs]) -> list[InputRow]:
    """All combinations, the last list changing first; a linked list is gone through, again and again, beside its own.

    Raises LimitExceeded above INPUTS_MAX or VALUES_MAX.
    """
    count = prod(len(inputs.values) for inputs in lists if not inputs.linked)
    if count > INPUTS_MAX:
        raise LimitExceeded(f"the inputs have more than {INPUTS_MAX} combinations: submit them in parts")
    if count * len(lists) > VALUES_MAX:
        what = f"{count} combinations of {len(lists)} inputs each"
        raise LimitExceeded(f"{what} are more than {VALUES_MAX} in all: submit them in parts")
    groups: list[list[list[str]]] = []
    for inputs in lists:
        if not inputs.linked:
            groups.append([[value] for value in inputs.values])
            continue
        for at, row in enumerate(groups[-1]):
            row.append(inputs.values[at % len(inputs.values)])
    rows = product(*groups)
    return [InputRow(seq, tuple(value for part in row for value in part)) for seq, row in enumerate(rows)]


def define(settings: Iterable[str]) -> Methods:
    """METHODS, and those of `--define NAME=CODE`: an expression of Python over the input `x`.

    Raises InvalidValue for what is no name or no expression.
    """
    made = dict(METHODS)
    for setting in settings:
        name, equals, code = setting.partition("=")
        if not equals or not name.isidentifier():
            raise InvalidValue(f"{setting!r} is not NAME=CODE, such as p2='2**int(x)'")
        try:
            compiled = compile(code, f"--define {name}", "eval")
        except (SyntaxError, ValueError) as error:
            raise InvalidValue(f"{setting!r}: {error}") from None
        made[name] = lambda x, compiled=compiled: eval(compiled, {"x": x})  # type: ignore[misc]
    return made


def fill(word: str, row: InputRow, methods: Methods) -> str:
    """The word with its placeholders replaced. Raises InvalidValue naming the placeholder that cannot be."""
    count = iter(range(len(row.values) + 1))

    def replaced(match: re.Match[str]) -> str:
        try:
            spec = match["spec"] or ""
            if any(int(number) > WIDTH_MAX for number in re.findall("[0-9]+", spec)):
                raise InvalidValue(f"it would be more than {WIDTH_MAX} characters wide")
            return format(_value(match, row, methods, count), spec)
        except InvalidValue as fault:
            raise InvalidValue(f"{match[0]} in {word!r}: {fault}") from None
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            # the user's own expression may raise anything, SystemExit too
            raise InvalidValue(f"{match[0]} in {word!r}: {type(fault).__name__}: {fault}") from fault

    return PLACEHOLDER.sub(replaced, word)


def _value(match: re.Match[str], row: InputRow, methods: Methods, count: Iterator[int]) -> object:
    if match["seq"]:
        return row.seq + (match["seq"] == "seq1")
    index = int(match["index"]) if match["index"] else 0 if match["method"] or len(row.values) == 1 else next(count)
    if index >= len(row.values):
        raise InvalidValue(f"there are {len(row.values)} inputs per job, counted from 0")
    value = row.values[index]
    if match["method"] is None:
        return value
    method = methods.get(match["method"])
    if method is None:
        raise InvalidValue(
            f"no method {match['method']!r}: the methods are {', '.join(methods)}, and those of --define"
        )
    return method(value)
