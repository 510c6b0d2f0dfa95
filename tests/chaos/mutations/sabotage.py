"""A small sabotage of production code: a piece of one function's source is replaced, for as long as a block lasts.

The code of the function object itself is exchanged, so tables and callbacks that hold the function are sabotaged, too.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FunctionType
from typing import NamedTuple


class Sabotage(NamedTuple):
    """`where` is `module:Class.method` or `module:function`; `old` occurs once in its source."""

    name: str
    where: str
    old: str
    new: str


def function_of(where: str) -> FunctionType:
    """The function object, also behind a property or a generator's decorator."""
    module, _, path = where.partition(":")
    found: object = import_module(module)
    for part in path.split("."):
        found = inspect.getattr_static(found, part)
    found = getattr(found, "fget", None) or getattr(found, "__func__", None) or found
    found = getattr(found, "__wrapped__", found)
    assert isinstance(found, FunctionType), f"{where} is no plain function"
    return found


def sabotaged_source(one: Sabotage) -> str:
    """The function's source with the replacement. Raises ValueError when the code has changed since."""
    source = textwrap.dedent(inspect.getsource(function_of(one.where)))
    if source.count(one.old) != 1:
        raise ValueError(f"sabotage {one.name!r}: {one.old!r} occurs {source.count(one.old)} times in {one.where}")
    return source.replace(one.old, one.new)


@contextmanager
def sabotaged(one: Sabotage) -> Iterator[None]:
    """Production code with the fault, until the block ends."""
    function = function_of(one.where)
    made: dict[str, object] = {}
    lines = [line for line in sabotaged_source(one).splitlines() if not line.startswith("@")]
    text = "from __future__ import annotations\n" + "\n".join(lines)
    exec(compile(text, f"<{one.name}>", "exec"), function.__globals__ | {}, made)
    replaced = made[function.__name__]
    assert isinstance(replaced, FunctionType)
    before, function.__code__ = function.__code__, replaced.__code__
    try:
        yield
    finally:
        function.__code__ = before
