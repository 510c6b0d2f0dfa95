"""Foreign classes by the text that a user wrote, their options, and the lines in which their code fails.

Law: what is wrong with a policy or a plugin is said before anything is decided, by name: what there is and what there
should be. `noun` is the word for it in errors, such as policy.
"""

from __future__ import annotations

import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from fluxsched.errors import InvalidValue, LimitExceeded

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

YES: Final = "yes"
"""The value of an option that is only named."""

SPEC_CHARS_MAX = 4096
"""A policy or a plugin with its options is one line of a command; a longer text is a mistake."""

PLUGIN_SIGN: Final = "|"
"""Separator before each plugin of a policy: `easy:order=sjf|quota:config=q.yaml|./night.py`."""


def parse_spec(spec: str, noun: str = "policy") -> tuple[str, dict[str, str]]:
    """`NAME:key=value,key=value` -> name and options, still as texts; a key alone means yes.

    Raises InvalidValue naming the part.
    """
    if len(spec) > SPEC_CHARS_MAX:
        raise LimitExceeded(f"a {noun} with its options takes {len(spec)} characters: the limit is {SPEC_CHARS_MAX}")
    name, colon, rest = spec.partition(":")
    if not name:
        raise InvalidValue(f"{spec!r} names no {noun}: write NAME or NAME:key=value,key=value")
    options: dict[str, str] = {}
    for part in split_options(rest) if colon else ():
        key, equals, value = part.partition("=")
        if not key:
            raise InvalidValue(f"{noun} {spec!r}: {part!r} is not key=value")
        if key in options:
            raise InvalidValue(f"{noun} {spec!r}: option {key!r} is given twice")
        options[key] = value if equals else YES
    return name, options


def split_options(text: str) -> list[str]:
    """`key=value,key=value` -> its parts; a comma in brackets belongs to a value, as in `hosts=node[1-2,7]`."""
    return re.split(r",(?![^\[\]]*\])", text)


def is_file(name: str) -> bool:
    """Return whether the name is that of a class in a file."""
    return "/" in name or name.endswith(".py")


def split_plugins(spec: str) -> tuple[str, list[str]]:
    """`POLICY|PLUGIN|PLUGIN` -> the policy, which may be empty, and the plugins, all as texts."""
    policy, *plugins = spec.split(PLUGIN_SIGN)
    return policy, plugins


def join_plugins(policy: str, plugins: list[str] | tuple[str, ...]) -> str:
    """Return the text that `split_plugins` takes apart."""
    return PLUGIN_SIGN.join([policy, *plugins])


def check_name(noun: str, cls: object, example: str) -> None:
    """Check a class and its name. Raise InvalidValue if it is no class, or has no usable name."""
    if not isinstance(cls, type):
        raise InvalidValue(f"{noun} {cls!r} is a {type(cls).__name__}; it should be a class")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidValue(f"{noun} {cls.__name__}: name is {name!r}; it should be a text such as {example!r}")
    options = getattr(cls, "OPTIONS", {})
    if not isinstance(options, Mapping) or not all(isinstance(option, Option) for option in options.values()):
        raise InvalidValue(f"{noun} {name!r}: OPTIONS should map names to Option(default, choices or parse, help)")


def option_values(noun: str, cls: type[Any], options: Mapping[str, str]) -> dict[str, object]:
    """Return the values of all options, given or default. Raise InvalidValue naming the option and what is allowed."""
    allowed: Mapping[str, Option] = getattr(cls, "OPTIONS", {})
    unknown = sorted(options.keys() - allowed.keys())
    if unknown:
        having = f"it has {', '.join(sorted(allowed))}" if allowed else "it has none"
        raise InvalidValue(f"{noun} {cls.name!r}: no option {', '.join(map(repr, unknown))}; {having}")
    return {
        key: _value(f"{noun} {cls.name!r}", key, options[key], option) if key in options else option.default
        for key, option in allowed.items()
    }


def _value(whose: str, key: str, text: str, option: Option) -> object:
    if option.choices and text not in option.choices:
        raise InvalidValue(f"{whose}: {key}={text!r} should be one of {', '.join(option.choices)}")
    try:
        return option.parse(text) if option.parse else text
    except ValueError as fault:
        meaning = f" ({key}: {option.help})" if option.help else ""
        raise InvalidValue(f"{whose}: {key}={text!r}: {fault}{meaning}") from fault


def offered(group: str) -> list[EntryPoint]:
    """Return the entry points of a group that packages offer.

    The reader is imported here: its import is a tenth of the start of a process that asks for none.
    """
    from importlib.metadata import entry_points

    return list(entry_points(group=group))


def in_packages(noun: str, group: str, name: str) -> type[Any] | None:
    """Return the class that a package offers under this name, as an entry point; None if none does."""
    found = {point.value: point for point in offered(group) if point.name == name}
    if not found:
        return None
    if len(found) > 1:
        raise InvalidValue(f"{noun} {name!r} is offered twice, by {' and '.join(sorted(found))}: remove one package")
    (point,) = found.values()
    try:
        loaded: type[Any] = point.load()
    except (ImportError, AttributeError, SyntaxError) as fault:
        raise InvalidValue(f"{noun} {name!r}: {point.value} cannot be loaded: {fault}") from fault
    return loaded


def in_file(noun: str, path: str, is_one: Callable[[type[Any]], bool], what: str) -> type[Any]:
    """Return the only class of a file for which `is_one` is true; `what` describes it in errors."""
    module = _load(noun, path)
    own = [thing for thing in vars(module).values() if isinstance(thing, type) and thing.__module__ == module.__name__]
    found = [cls for cls in own if is_one(cls)]
    if len(found) != 1:
        names = ", ".join(cls.__name__ for cls in found) or "none"
        if own and not found:
            names += f", since {' and '.join(cls.__name__ for cls in own)} lacks one of these"
        raise InvalidValue(f"{path} should hold one {noun}, a class with {what}; it has {names}")
    return found[0]


def _load(noun: str, path: str) -> ModuleType:
    stem = path.rsplit("/", 1)[-1].removesuffix(".py")
    spec = importlib.util.spec_from_file_location(f"fluxsched_{noun}_{stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidValue(f"{path} is not a Python file: a {noun} file ends in '.py'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
    except (OSError, ImportError, SyntaxError) as fault:
        raise InvalidValue(f"{noun} file {path} cannot be loaded: {fault}") from fault
    return module


# ---- faults in foreign code

OURS = Path(__file__).parents[1]
"""Frames of files in here are not the policy's."""

FOREIGN_LIKE: Final = (OURS / "sched" / "policies", OURS / "yunikorn" / "tree")
"""Except those of files in here."""


def checked(decisions: Any) -> Any:
    """Return what a policy's `schedule` has returned. Raises TypeError if it cannot be gone through."""
    if not hasattr(decisions, "__iter__"):
        raise TypeError(f"schedule returned {decisions!r}: it should be a generator, which yields decisions")
    return decisions


def raise_at(decisions: Iterator[object] | None, fault: Exception) -> None:
    """Raise the fault at the policy's own `yield`, so that its traceback includes the policy.

    Return if that cannot be done, or if the policy suppresses it: the caller raises it then.
    """
    throw = getattr(decisions, "throw", None)
    if throw is not None:
        with suppress(StopIteration):
            throw(fault)


def policy_line(fault: BaseException) -> str | None:
    """Return the innermost line of the policy in the fault's traceback, such as `mine.py:12`; None if there is none.

    The policy's file is that of the first frame outside of fluxsched: what it calls may lie deeper.
    """
    lines = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(fault.__traceback__)]
    own = next((file for file, _ in lines if _is_foreign(Path(file))), None)
    found = [f"{Path(file).name}:{line}" for file, line in lines if file == own]
    return found[-1] if found else None


def _is_foreign(file: Path) -> bool:
    if str(file).startswith("<frozen "):  # Python's own importing, between our call and the policy's first line
        return False
    file = OURS.parent / file  # compiled code names its files from there
    return OURS not in file.parents or any(folder in file.parents for folder in FOREIGN_LIKE)


# ---- options


@dataclass(frozen=True, slots=True)
class Option:
    """A default, then either the allowed texts or a parser of the text.

    `parse` raises ValueError for what is not allowed; `help` says what the option does and allows.
    """

    default: Any
    choices: tuple[str, ...] = ()
    parse: Callable[[str], object] | None = None
    help: str = ""
