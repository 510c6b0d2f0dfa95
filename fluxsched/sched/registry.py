"""Finding a policy by the text that a user wrote, and checking it before it is used.

Law: what is wrong with a plugin is said before it decides anything, by name: what it has and what it should have.
A policy is named by one of ours, by an entry point of group `fluxsched.policies`, or by the file that holds it.

    >>> make(*parse_spec("fifo:placement=best-fit")).name
    'fifo'
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any, Final

from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.policies.conservative import Conservative
from fluxsched.sched.policies.easy import Easy
from fluxsched.sched.policies.fair.policy import Fair
from fluxsched.sched.policies.fifo import Fifo
from fluxsched.sched.policies.firstfit import FirstFit
from fluxsched.sched.policies.hybrid import Hybrid
from fluxsched.sched.policies.tree.policy import Tree
from fluxsched.sched.policy import YES, Option, Policy

ENTRY_POINT_GROUP: Final = "fluxsched.policies"

SPEC_CHARS_MAX = 4096
"""A policy with its options is one line of a command; a longer text is a mistake."""

OWN: Final[Mapping[str, type[Policy]]] = {
    "conservative": Conservative,
    "easy": Easy,
    "fair": Fair,
    "fifo": Fifo,
    "firstfit": FirstFit,
    "hybrid": Hybrid,
    "tree": Tree,
}


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """`NAME:key=value,key=value` -> name and options, still as texts; a key alone means yes.

    Raises InvalidValue naming the part.
    """
    if len(spec) > SPEC_CHARS_MAX:
        raise LimitExceeded(f"a policy with its options takes {len(spec)} characters: the limit is {SPEC_CHARS_MAX}")
    name, colon, rest = spec.partition(":")
    if not name:
        raise InvalidValue(f"{spec!r} names no policy: write NAME or NAME:key=value,key=value")
    options: dict[str, str] = {}
    for part in rest.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not key:
            raise InvalidValue(f"policy {spec!r}: {part!r} is not key=value")
        if key in options:
            raise InvalidValue(f"policy {spec!r}: option {key!r} is given twice")
        options[key] = value if equals else YES
    return name, options


def split_queues(specs: str) -> tuple[str, dict[str, str]]:
    """`SPEC;QUEUE=SPEC;...` -> the policy of most queues, and those of queues that have one of their own, as texts.

    The order is that in which queues are served. Raises InvalidValue naming the part.
    """
    general, *others = specs.split(";")
    own: dict[str, str] = {}
    for part in others:
        queue, equals, spec = part.partition("=")
        if not queue or not equals or ":" in queue:
            raise InvalidValue(f"{part!r} is not QUEUE=POLICY, as in 'easy;debug=fifo'")
        if queue in own:
            raise InvalidValue(f"queue {queue!r} is given two policies")
        own[queue] = spec
    return general, own


def join_queues(general: str, own: Mapping[str, str]) -> str:
    """The text that `split_queues` takes apart."""
    return ";".join([general, *[f"{queue}={spec}" for queue, spec in own.items()]])


def names_in(spec: str) -> list[str]:
    """The policies that a text names: one, and the one that it runs itself, if it is ours and does so."""
    name, options = parse_spec(spec)
    key = inner_option(name)
    return [name] if key is None else [name, options.get(key, str(OWN[name].OPTIONS[key].default))]


def inner_option(name: str) -> str | None:
    """The option of one of our policies that names another, which it runs; None if it runs none."""
    inner: str | None = getattr(OWN.get(name), "INNER", None)
    return inner


def has_plugin(spec: str) -> bool:
    """Whether a policy that is not ours is named: its code is to run in a process of its own."""
    return any(name not in OWN for name in names_in(spec))


def load(specs: str) -> tuple[Policy, dict[str, Policy]]:
    """The policies that `SPEC;QUEUE=SPEC;...` names, ready to use. Raises InvalidValue naming the queue at fault."""
    general, own = split_queues(specs)
    return make(*parse_spec(general)), {queue: _of_queue(queue, spec) for queue, spec in own.items()}


def _of_queue(queue: str, spec: str) -> Policy:
    try:
        return make(*parse_spec(spec))
    except InvalidValue as fault:
        raise type(fault)(f"queue {queue!r}: {fault}") from fault


def make(name: str, options: Mapping[str, str]) -> Policy:
    """A policy ready to use. Raises InvalidValue naming the policy, the option and what is allowed."""
    cls = find(name)
    check_class(cls)
    inner: str | None = getattr(cls, "INNER", None)
    own = options if inner is None else {key: value for key, value in options.items() if key in cls.OPTIONS}
    values = {key.replace("-", "_"): value for key, value in _values(cls, own).items()}
    if inner is not None:
        values[inner] = _inner(cls, str(values[inner]), {key: options[key] for key in options if key not in own})
    policy: Policy = cls(**values)
    return policy


def _inner(cls: type[Any], name: str, options: Mapping[str, str]) -> Policy:
    """The policy inside of another, with the options that the other does not have."""
    found = find(name)
    if getattr(found, "INNER", None) is not None:
        raise InvalidValue(f"policy {cls.name!r}: {cls.INNER}={name!r} runs another policy itself: name that one")
    try:
        return make(name, options)
    except InvalidValue as fault:
        own = ", ".join(sorted(cls.OPTIONS))
        raise type(fault)(f"policy {cls.name!r}: {fault}; its own options are {own}") from fault


def find(name: str) -> type[Any]:
    """The class: one of ours, else one in a file (`is_file`), else an entry point."""
    if name in OWN:
        return OWN[name]
    if is_file(name):
        return _in_file(name)
    found = {point.value: point for point in entry_points(group=ENTRY_POINT_GROUP, name=name)}
    if not found:
        raise unknown_policy(name)
    if len(found) > 1:
        raise InvalidValue(f"policy {name!r} is offered twice, by {' and '.join(sorted(found))}: remove one package")
    (point,) = found.values()
    try:
        loaded: type[Any] = point.load()
    except (ImportError, AttributeError, SyntaxError) as fault:
        raise InvalidValue(f"policy {name!r}: {point.value} cannot be loaded: {fault}") from fault
    return loaded


def is_file(name: str) -> bool:
    """Whether a policy of this name is one in a file."""
    return "/" in name or name.endswith(".py")


def unknown_policy(name: str) -> InvalidValue:
    """That there is no policy of this name, and which there are."""
    return InvalidValue(f"no policy {name!r}: there are {', '.join(known_policies())}; a file is named with its '.py'")


def known_policies() -> list[str]:
    """Names of policies: ours and those of packages."""
    return sorted({*OWN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def says(policy: object) -> str:
    """What a policy does, in one line: the first of its class's docstring."""
    lines = (inspect.getdoc(type(policy)) or "").splitlines()
    return lines[0] if lines else ""


def check_class(cls: object) -> None:
    """Raises InvalidValue with what the policy has and what it should have."""
    if not isinstance(cls, type):
        raise InvalidValue(f"policy {cls!r} is a {type(cls).__name__}; it should be a class")
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidValue(f"policy {cls.__name__}: name is {name!r}; it should be a text such as 'fifo'")
    options = getattr(cls, "OPTIONS", {})
    if not isinstance(options, Mapping) or not all(isinstance(option, Option) for option in options.values()):
        raise InvalidValue(f"policy {name!r}: OPTIONS should map names to Option(default, choices or parse, help)")
    schedule = getattr(cls, "schedule", None)
    if not callable(schedule):
        raise InvalidValue(f"policy {name!r} has no method schedule; it should have schedule(self, view, now_s)")
    has = [parameter.name for parameter in inspect.signature(schedule).parameters.values()]
    if has[1:] != ["view", "now_s"]:
        raise InvalidValue(f"policy {name!r}: schedule({', '.join(has)}) should be schedule(self, view, now_s)")


def _values(cls: type[Any], options: Mapping[str, str]) -> dict[str, object]:
    allowed: Mapping[str, Option] = getattr(cls, "OPTIONS", {})
    unknown = sorted(options.keys() - allowed.keys())
    if unknown:
        having = f"it has {', '.join(sorted(allowed))}" if allowed else "it has none"
        raise InvalidValue(f"policy {cls.name!r}: no option {', '.join(map(repr, unknown))}; {having}")
    return {
        key: _value(cls.name, key, options[key], option) if key in options else option.default
        for key, option in allowed.items()
    }


def _value(policy: str, key: str, text: str, option: Option) -> object:
    if option.choices and text not in option.choices:
        raise InvalidValue(f"policy {policy!r}: {key}={text!r} should be one of {', '.join(option.choices)}")
    try:
        return option.parse(text) if option.parse else text
    except ValueError as fault:
        raise InvalidValue(f"policy {policy!r}: {key}={text!r}: {fault}; {option.help}".rstrip("; ")) from fault


def _in_file(path: str) -> type[Any]:
    """The one class of a file that has `name` and `schedule`."""
    module = _load(path)
    own = [thing for thing in vars(module).values() if isinstance(thing, type) and thing.__module__ == module.__name__]
    policies = [cls for cls in own if hasattr(cls, "name") and hasattr(cls, "schedule")]
    if len(policies) != 1:
        names = ", ".join(cls.__name__ for cls in policies) or "none"
        raise InvalidValue(f"{path} should hold one policy, a class with `name` and `schedule`; it has {names}")
    return policies[0]


def _load(path: str) -> ModuleType:
    stem = path.rsplit("/", 1)[-1].removesuffix(".py")
    spec = importlib.util.spec_from_file_location(f"fluxsched_policy_{stem}", path)
    if spec is None or spec.loader is None:
        raise InvalidValue(f"{path} is not a Python file: a policy file ends in '.py'")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickles look their module up there
    try:
        spec.loader.exec_module(module)
    except (OSError, ImportError, SyntaxError) as fault:
        raise InvalidValue(f"policy file {path} cannot be loaded: {fault}") from fault
    return module
