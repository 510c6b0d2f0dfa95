"""The plugins of one queue in their order: which have which point, and how each is asked.

Law: whatever a plugin raises, and an answer that its point does not have, becomes a `PluginFault`, which names plugin
and line; nothing else of the pass notices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, Final, NamedTuple

from fluxsched.errors import InvalidValue
from fluxsched.sched.fault_lines import policy_line
from fluxsched.sched.hooks.api import EVENTS, POINTS, Gate, Later, Pass, Plugin, Wait
from fluxsched.sched.hooks.labels import all_reads, check_reads

PLUGINS_MAX = 16
"""Of one queue: each is asked about each job."""

WHY_CHARS_MAX = 500
"""Of what a plugin gives as reason."""

RETRY_S: Final = 10.0
"""After a fault the job, or the shape, is asked about again no earlier."""

NO_GENERATION: Final = -1
"""Of a plugin whose `generation` cannot be read: its shapes wait."""

BEFORE_OFFER: Final = ("pre_enqueue", "queue_sort")
"""Points that a job meets before its policy sees it."""

Point = tuple[str, Callable[..., Any]]
"""The name of a plugin and its method."""


class PluginFault(NamedTuple):
    """What went wrong in a plugin, in words for the owner and the log."""

    why: str


class Filtering(NamedTuple):
    """What of one plugin is asked about shapes; None where it has no such point."""

    name: str
    pre_filter: Callable[..., Any] | None
    filter: Callable[..., Any] | None
    pre_score: Callable[..., Any] | None
    score: Callable[..., Any] | None
    weight: float
    plugin: Any


class Chain:
    """The plugins of the queue `scope`, empty for all queues without plugins of their own."""

    __slots__ = (
        "_changing", "binds", "filtering", "frees", "gates", "looks", "may_delegate", "permits", "plugins",
        "post_binds", "post_filters", "pre_binds", "reads", "reserves", "scope", "sort", "unreserves",
    )  # fmt: skip

    def __init__(self, scope: str, plugins: Sequence[Plugin]) -> None:
        if len(plugins) > PLUGINS_MAX:
            raise InvalidValue(f"queue {scope!r} has {len(plugins)} plugins: the limit is {PLUGINS_MAX}")
        self.scope = scope
        self.plugins = tuple(plugins)
        for plugin in plugins:
            check_points(plugin)
        names = [plugin.name for plugin in plugins]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise InvalidValue(f"plugin {twice[0]!r} is given twice to one queue: reasons and permits name plugins")
        self.reads = all_reads([check_reads(each.name, getattr(each, "READS", ())) for each in plugins])
        self.gates = self._with("pre_enqueue")
        sorts = self._with("queue_sort")
        if len(sorts) > 1:
            raise InvalidValue(f"plugins {sorts[0][0]!r} and {sorts[1][0]!r} both have queue_sort: one a queue may")
        self.sort: Point | None = sorts[0] if sorts else None
        self.filtering = [each for each in map(_filtering, plugins) if _asks_about_shapes(each)]
        self.looks = self._with("look")
        self.post_filters = self._with("post_filter")
        self.reserves = self._with("reserve")
        self.unreserves = dict(self._with("unreserve"))
        self.permits = self._with("permit")
        self.pre_binds = self._with("pre_bind")
        self.binds = self._with("bind")
        self.post_binds = self._with("post_bind")
        self.frees = self._with("on_free")
        later = [each for each in plugins if any(_has(each, point) for point in POINTS if point not in BEFORE_OFFER)]
        self.may_delegate = bool(later) and all(_has(each, "pre_filter") for each in later)
        self._changing: list[Any] = [plugin for plugin in plugins if ask(plugin.name, hasattr, plugin, "generation")]

    @property
    def generation(self) -> int:
        """Another number when a plugin's answers about shapes may differ from those before."""
        found = 0
        for plugin in self._changing:
            found += generation_of(plugin)
        return found

    def _with(self, point: str) -> list[Point]:
        return [(plugin.name, getattr(plugin, point)) for plugin in self.plugins if _has(plugin, point)]


def check_points(plugin: object) -> None:
    """Raises InvalidValue for a plugin without any point, and for one that cannot be told apart."""
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidValue(f"plugin {type(plugin).__name__}: name is {name!r}; it should be a text such as 'night'")
    if not any(_has(plugin, point) for point in POINTS):
        raise InvalidValue(f"plugin {name!r} has none of the methods {', '.join(POINTS)}")


def generation_of(plugin: Any) -> int:
    """That of one plugin; 0 if it has none, NO_GENERATION if what it has is no number from 0."""
    found = ask(plugin.name, getattr, plugin, "generation", 0)
    return found if isinstance(found, int) and found >= 0 else NO_GENERATION


def ask(name: str, method: Callable[..., Any], *args: Any) -> Any:
    """The plugin's answer, or a PluginFault."""
    try:
        return method(*args)
    except Exception as fault:
        line = policy_line(fault)
        text = f"{type(fault).__name__}: {fault}"[:WHY_CHARS_MAX]
        return PluginFault(f"plugin {name!r} failed{f' at {line}' if line else ''}: {text}")


def wrong(name: str, point: str, answer: object, allowed: str) -> PluginFault:
    """An answer that is not one; a fault stays as it is."""
    if isinstance(answer, PluginFault):
        return answer
    return PluginFault(f"plugin {name!r}: {point} answered {repr(answer)[:WHY_CHARS_MAX]}; it should be {allowed}")


def why_of(name: str, answer: Any) -> str:
    """The reason of an answer, with the plugin's name."""
    return f"plugin {name!r}: {str(answer.why)[:WHY_CHARS_MAX]}"


def check_gate(name: str, answer: Any) -> Gate | PluginFault | None:
    """What pre_enqueue may answer: None stands for PASS."""
    if isinstance(answer, PluginFault):
        return answer
    if isinstance(answer, Gate):
        why, on, at_s = _items(answer)
        if not isinstance(on, (tuple, list, set, frozenset)) or [event for event in on if event not in EVENTS]:
            return wrong(name, "pre_enqueue", answer, f"PASS, or a Gate on some of {EVENTS}")
        if at_s is not None and finite(at_s) is None:
            return wrong(name, "pre_enqueue", answer, "a Gate with a finite time")
        return Gate(str(why), tuple(on), finite(at_s))
    return None if is_pass(answer) else wrong(name, "pre_enqueue", answer, "PASS or Gate")


def check_later(name: str, point: str, answer: Any) -> Later | PluginFault | None:
    """What most points may answer: None stands for PASS."""
    if is_pass(answer):
        return None
    if isinstance(answer, PluginFault):
        return answer
    if isinstance(answer, Later):
        why, at_s = _items(answer)
        if at_s is None or finite(at_s) is not None:
            return Later(str(why), finite(at_s))
        return wrong(name, point, answer, "a Later with a finite time")
    return wrong(name, point, answer, "PASS or Later")


def check_wait(name: str, answer: Wait) -> Wait | PluginFault:
    """What permit may answer besides."""
    timeout_s, why = _items(answer)
    found = finite(timeout_s)
    if found is None or found <= 0:
        return wrong(name, "permit", answer, "a Wait of a positive time")
    return Wait(found, str(why))


def _items(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Of an answer, whatever they are: compiled, a field of another type than declared would raise where it is read."""
    return answer


def finite(value: object) -> float | None:
    """The number, None if it is none or not finite."""
    if not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if isfinite(found) else None


def is_pass(answer: object) -> bool:
    """Whether the answer is PASS."""
    return isinstance(answer, Pass)


def _has(plugin: object, point: str) -> bool:
    return callable(getattr(plugin, point, None))


def _filtering(plugin: Plugin) -> Filtering:
    points = [getattr(plugin, point, None) for point in ("pre_filter", "filter", "pre_score", "score")]
    weight = finite(getattr(plugin, "weight", 1.0))
    if weight is None:
        raise InvalidValue(f"plugin {plugin.name!r}: weight should be a number, that of its scores")
    return Filtering(plugin.name, points[0], points[1], points[2], points[3], weight, plugin)


def _asks_about_shapes(each: Filtering) -> bool:
    return each.pre_filter is not None or each.filter is not None or each.score is not None
