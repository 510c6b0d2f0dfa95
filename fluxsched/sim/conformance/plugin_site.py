"""Small machine with a scheduler, a policy and plugins in virtual time, and the judge of each answer of a plugin.

Law: the engine is given exactly the points that the plugin has, and its answers as they are. What is found is noted,
since the engine takes what a plugin raises as a fault of that job alone. The scheduler is the production code; what
this keeps is what came of it: who waits, runs, has ended, was denied.
"""

from __future__ import annotations

import inspect
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from math import inf
from os.path import basename
from typing import Any, Final, NamedTuple

from fluxsched.config.inventory import fake_resources
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.sched.decisions import Denied, Granted, PluginFailed, Raise
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.sched.hooks.api import POINTS, SCORE_MAX, Gate, Later, Never, Pass, Plugin, Skip, Wait
from fluxsched.sched.loading import policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sim.conformance.harness import BEGIN_S, RuleBroken

PARTS_MAX = 100_000
"""Objects that are looked at in one plugin; more are not counted."""

DEPTH_MAX = 12
"""Levels of attributes and containers below a plugin."""


def sizes_in(plugin: object) -> dict[str, int]:
    """Sizes of dicts, lists, sets and deques, added up by the path of attributes that leads to them."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    left: list[tuple[str, Any, int]] = [("", plugin, 0)]
    while left and len(seen) < PARTS_MAX:
        path, thing, depth = left.pop()
        if id(thing) in seen or depth > DEPTH_MAX or isinstance(thing, (str, bytes, int, float, type)):
            continue
        seen.add(id(thing))
        if isinstance(thing, (Mapping, list, tuple, set, frozenset, deque)):
            if not isinstance(thing, (tuple, frozenset)):
                found[path] = found.get(path, 0) + len(thing)
            parts = [*thing.keys(), *thing.values()] if isinstance(thing, Mapping) else [*thing]
            left += [(path, part, depth + 1) for part in parts]
        else:
            left += [(f"{path}.{name}".lstrip("."), part, depth + 1) for name, part in _attributes(thing)]
    return found


def _attributes(thing: object) -> Iterator[tuple[str, Any]]:
    names = {*getattr(thing, "__dict__", ())}
    for cls in type(thing).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        names.update((slots,) if isinstance(slots, str) else slots)
    for name in sorted(names):
        value = getattr(thing, name, None)
        if not callable(value):
            yield name, value


# ---- the judge of plugins

RAISES, ANSWERS, PURE, HOLDS, CALLS = "raises", "answers", "pure", "holds", "calls"
SKIPS, RESERVED, TIMED_OUT = "skip", "reserved", "permit"
"""Laws, by the names of the rules that they belong to."""

WAIT_MAX_S = 86_400.0
"""The longest that a job may hold resources while it waits for a permit: a day."""

LATE_S: Final = 1e-6
"""Tolerance for rounding when times are compared (seconds)."""

ANSWERS_OF: Final[Mapping[str, tuple[type, ...]]] = {
    "pre_enqueue": (Pass, Gate),
    "queue_sort": (tuple,),
    "pre_filter": (Pass, Skip, Idset, Later, Never),
    "filter": (Pass, Later, Never),
    "look": (Pass, Later),
    "pre_score": (Pass, Skip),
    "score": (int, float),
    "reserve": (Pass, Later),
    "permit": (Pass, Wait, Later),
    "pre_bind": (Pass, Later),
    "bind": (Mapping, Skip),
}
"""Types of answers of the points that answer anything; `post_filter` is called by the engine alone."""

ABOUT_SHAPES: Final = ("pre_filter", "filter", "pre_score", "score")
AFTER_CHOICE: Final = ("look", "reserve", "permit", "pre_bind", "bind", "post_bind")
BOOKINGS: Final = ("reserve", "unreserve", "post_bind", "on_free", "post_filter")
"""Calls that change what a plugin knows: all others are questions, which may be asked twice."""


class Injected(Exception):
    """Exception that a plugin is made to raise."""


class Noted(NamedTuple):
    """First violation of a law that was found; `line` is the plugin's."""

    what: str
    line: str | None


class PluginJudge:
    """A plugin around the plugin; `now_s` is to be kept up to date.

    `found` is what was found, by law. `held_back` are reasons that it has given. `failing` has points that are to
    raise, and how often. `reserved` and `bound` are the jobs of which it was told, `waiting` those that it has wait for
    a permit, with the end of that.
    """

    def __init__(self, plugin: Any, failing: Mapping[str, int] | None = None) -> None:
        self.plugin = plugin
        self.name: str = plugin.name
        self.OPTIONS: Mapping[str, Any] = {}
        self.READS = getattr(plugin, "READS", ())
        self.now_s = 0.0
        self.found: dict[str, Noted] = {}
        self.held_back: list[str] = []
        self.failing = Counter(failing or {})
        self.reserved: dict[int, None] = {}
        self.bound: set[int] = set()
        self.waiting: dict[int, float] = {}
        self.unreserved = 0
        self.calls: Counter[str] = Counter()
        self._met: set[int] = set()  # jobs that were not left to the policy alone
        self._skipped: set[tuple[str, int]] = set()
        self._said: dict[tuple[str, int, int], tuple[int, Any, Callable[[], Any]]] = {}
        for point in POINTS:
            method = getattr(plugin, point, None)
            if callable(method):
                setattr(self, point, partial(self._call, point, method))

    def __getattr__(self, name: str) -> Any:
        """Return an optional attribute that the engine reads of plugins that have it."""
        if name in ("generation", "weight"):
            return getattr(self.plugin, name)
        raise AttributeError(name)

    def note(self, law: str, what: str, line: str | None = None) -> None:
        """Note what was found, unless something was before."""
        self.found.setdefault(law, Noted(what, line))

    # ---- calls

    def _call(self, point: str, method: Callable[..., Any], *args: Any) -> Any:
        self.calls[point] += 1
        line = line_of(method)
        self._before(point, args, line)
        if self.failing[point]:
            self.failing[point] -= 1
            raise Injected(f"{point} was made to fail")
        before = self._generation
        try:
            answer = method(*args)
            again = answer if point in BOOKINGS else method(*args)
        except Exception as fault:
            self.note(RAISES, f"{point} raises {type(fault).__name__}: {fault}", policy_line(fault) or line)
            raise
        if not same(answer, again):
            self.note(PURE, f"{point} answers {answer!r}, and {again!r} when it is asked again", line)
        if point not in BOOKINGS and self._generation != before:
            self.note(CALLS, f"{point} changes `generation`, though it is only asked: so it is asked for ever", line)
        self._judge(point, args, answer, line)
        return answer

    def _before(self, point: str, args: tuple[Any, ...], line: str | None) -> None:
        """Check that the engine has made the calls that must precede this one, and none that must not."""
        jobid = getattr(args[0], "jobid", 0)
        if point in AFTER_CHOICE:
            self._met.add(jobid)
        if point == "unreserve":
            self.unreserved += 1
            self.waiting.pop(jobid, None)
            if jobid in self.reserved:
                del self.reserved[jobid]
            else:
                self.note(RESERVED, f"unreserve of job {format_f58(jobid)}, for which nothing is reserved", line)
        elif point == "on_free":
            self.bound.discard(jobid)
        elif point in ("filter", "score"):
            asked_before = "pre_filter" if point == "filter" else "pre_score"
            if (asked_before, args[0].number) in self._skipped:
                self.note(SKIPS, f"{point} is asked about a shape that {asked_before} has skipped", line)

    def _judge(self, point: str, args: tuple[Any, ...], answer: Any, line: str | None) -> None:
        allowed = ANSWERS_OF.get(point)
        if allowed is not None and (not isinstance(answer, allowed) or isinstance(answer, bool)):
            names = ", ".join(kind.__name__ for kind in allowed)
            self.note(ANSWERS, f"{point} answers {answer!r}: it should be one of {names}", line)
        if point == "score" and isinstance(answer, (int, float)) and not 0 <= answer <= SCORE_MAX:
            self.note(ANSWERS, f"score answers {answer!r}: it should be within 0 and {SCORE_MAX}", line)
        if isinstance(answer, (Gate, Later, Never, Wait)) and str(answer.why).strip():
            self.held_back.append(str(answer.why))
        if point in ABOUT_SHAPES:
            self._hold(point, args, answer, partial(getattr(self.plugin, point), *args), line)
        elif point == "reserve" and isinstance(answer, Pass) and "unreserve" in vars(self):
            self.reserved[args[0].jobid] = None
        elif point == "permit" and isinstance(answer, Wait):
            self._wait(args[0].jobid, args[2], answer, line)

    def _hold(self, point: str, args: tuple[Any, ...], answer: Any, again: Callable[[], Any], line: str | None) -> None:
        """Check that an answer about a shape holds until the targets or the plugin's generation change."""
        shape = args[0].number
        if isinstance(answer, Skip):
            self._skipped.add((point, shape))
        else:
            self._skipped.discard((point, shape))
        ranks = args[1].ranks.mask if len(args) > 1 else 0
        self._said[point, shape, ranks] = self._generation, answer, again

    def _wait(self, jobid: int, now_s: float, answer: Wait, line: str | None) -> None:
        if not 0 < answer.timeout_s <= WAIT_MAX_S:
            what = f"permit waits for {answer.timeout_s!r} s: it should be above 0, and {WAIT_MAX_S:g} at most"
            self.note(TIMED_OUT, what, line)
            return
        self.waiting.setdefault(jobid, now_s + answer.timeout_s)

    @property
    def _generation(self) -> int:
        found: int = getattr(self.plugin, "generation", 0)
        return found

    # ---- between calls

    def granted(self, jobid: int) -> None:
        """Take note that a job has started."""
        self.waiting.pop(jobid, None)
        self.reserved.pop(jobid, None)
        if jobid in self._met and "on_free" in vars(self):
            self.bound.add(jobid)

    def targets_changed(self) -> None:
        """Answers about shapes need not hold any longer."""
        self._said.clear()

    def check(self) -> None:
        """Check that the plugin's answers about shapes still hold, and that no job waits for a permit for longer than
        it should.
        """
        for (point, _, _), (generation, answer, again) in self._said.items():
            if generation != self._generation or getattr(answer, "at_s", None) is not None or point in self.found:
                continue
            try:
                now = again()
            except Exception as fault:  # its own bug: it answered before
                self.note(RAISES, f"{point} raises {type(fault).__name__}: {fault}", policy_line(fault))
                continue
            if not same(answer, now):
                line = line_of(getattr(self.plugin, point))
                what = f"{point} answered {answer!r}, and now {now!r}, though `generation` is still {generation}"
                self.note(HOLDS, what, line)
        late = [jobid for jobid, by_s in self.waiting.items() if self.now_s > by_s + LATE_S]
        if late:
            self.note(TIMED_OUT, f"job {format_f58(late[0])} still waits for a permit, after the time that was set")


def same(one: Any, other: Any) -> bool:
    """Return whether two answers are equal."""
    if isinstance(one, (Pass, Skip)) or isinstance(other, (Pass, Skip)):
        return type(one) is type(other)
    return bool(one == other)


def line_of(method: Any) -> str | None:
    """`mine.py:12`, where a method begins."""
    code = getattr(inspect.unwrap(getattr(method, "__func__", method)), "__code__", None)
    return None if code is None else f"{basename(code.co_filename)}:{code.co_firstlineno}"


# ---- the site of plugins

MACHINE: Final = "4x4+1"
URGENCY: Final = 16

EFFECTS_MAX = 10_000
"""Effects of one turn: with some hundred jobs there are some hundred."""


class PluginSite:
    """`judges` are told the time; `failures` are what the scheduler said of plugins that failed."""

    def __init__(
        self,
        policy: Policy,
        plugins: Sequence[Plugin],
        judges: Sequence[PluginJudge] = (),
        machine: str = MACHINE,
        begin_s: float = BEGIN_S,
    ) -> None:
        self.now_s = begin_s
        self.judges = judges
        self.scheduler = Scheduler(deepcopy(policy), plugins={"": plugins})
        resources = fake_resources(machine)
        self.ranks = resources.ranks
        self.waiting: set[int] = set()
        self.running: dict[int, float] = {}
        self.started: list[tuple[int, float]] = []
        self.denied: set[int] = set()
        self.failures: list[str] = []
        self._run_s: dict[int, float] = {}
        self._last = 0
        self.scheduler.grown(DEFAULT_GROUP, resources, resources.ranks, EMPTY, self.now_s)

    def submit(self, run_s: float, system: Mapping[str, Any] | None = None, userid: int = 0, **asked: Any) -> int:
        """Add a job with attributes of its own; its limit is a little above its run time."""
        self._last += 1
        jobid = self._last
        raw = Jobspec.from_command(["true"], duration_s=run_s * 1.5, **asked).raw
        raw["attributes"]["system"].update(system or {})
        self._run_s[jobid] = run_s
        self.waiting.add(jobid)
        self._tell_time()
        self._apply(self.scheduler.alloc(jobid, URGENCY, userid, self.now_s, raw, self.now_s))
        return jobid

    def turn(self) -> int:
        """One turn of the scheduler; returns how many jobs have started."""
        self._tell_time()
        before = len(self.started)
        left = EFFECTS_MAX
        for effect in self.scheduler.schedule(self.now_s):
            self._apply([effect])
            left -= 1
            if not left:
                raise RuleBroken("calls", f"more than {EFFECTS_MAX} effects come of one turn: it would never end")
        self.scheduler.check()
        for judge in self.judges:
            judge.check()
        return len(self.started) - before

    def advance(self, to_s: float) -> None:
        """Time goes to the next end of a job, or the next time that the scheduler names, `to_s` at most."""
        next_s = min([to_s, self.scheduler.next_notice_s, *self.running.values()])
        self.now_s = max(self.now_s, next_s)
        self._tell_time()
        for jobid in [jobid for jobid, end_s in self.running.items() if end_s <= self.now_s]:
            self.end(jobid)

    def run(self, for_s: float, instants: int = 300) -> None:
        """Turn after turn, until the time is over, nothing waits or runs, or something was found."""
        end_s = self.now_s + for_s
        for _ in range(instants):
            self.turn()
            if self.now_s >= end_s or not (self.waiting or self.running) or any(judge.found for judge in self.judges):
                return
            self.advance(end_s)

    def end(self, jobid: int) -> None:
        """End a running job, or cancel a waiting one."""
        if self.running.pop(jobid, None) is not None:
            self._apply(self.scheduler.free_all(jobid, self.now_s))
        elif jobid in self.waiting:
            self.waiting.discard(jobid)
            self._apply(self.scheduler.cancel(jobid))

    def end_all(self) -> None:
        """Nothing waits or runs any more."""
        for jobid in [*self.waiting, *self.running]:
            self.end(jobid)
        self.turn()

    def offline(self, targets: Idset) -> None:
        """Targets go down, and others come back."""
        for judge in self.judges:
            judge.targets_changed()
        self._apply(self.scheduler.went_online(self.ranks, self.now_s))
        self._apply(self.scheduler.went_offline(targets, self.now_s))

    def nudge(self) -> None:
        """Something happens, so that there is another pass, and nothing comes of it."""
        first = Idset.of([next(iter(self.ranks))])
        self._apply(self.scheduler.went_offline(first, self.now_s))
        self._apply(self.scheduler.went_online(first, self.now_s))

    def why(self, jobid: int) -> str:
        """Return the reason that the owner of the job is shown."""
        return str(self.scheduler.why(jobid, self.now_s).reason)

    def _tell_time(self) -> None:
        for judge in self.judges:
            judge.now_s = self.now_s

    def _apply(self, effects: Sequence[object]) -> None:
        for effect in effects:
            if isinstance(effect, Granted):
                self.waiting.discard(effect.jobid)
                self.running[effect.jobid] = self.now_s + self._run_s[effect.jobid]
                self.started.append((effect.jobid, self.now_s))
                for judge in self.judges:
                    judge.granted(effect.jobid)
            elif isinstance(effect, Denied):
                self.waiting.discard(effect.jobid)
                self.denied.add(effect.jobid)
            elif isinstance(effect, PluginFailed):
                self.failures.append(effect.note)
            elif isinstance(effect, Raise):
                self.running[effect.jobid] = min(self.running.get(effect.jobid, inf), self.now_s)
