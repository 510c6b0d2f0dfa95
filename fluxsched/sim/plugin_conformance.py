"""Small machine with a scheduler, a policy and plugins in virtual time, and the judge of each answer of a plugin.

Law: the engine is given exactly the points that the plugin has, and its answers as they are. What is found is noted,
since the engine takes what a plugin raises as a fault of that job alone. The scheduler is the production code; what
this keeps is what came of it: who waits, runs, has ended, was denied.

Conformance suite for plugins (`plugin check`): ordinary days, failures at each point, permits that never come.

Law: a case is a function of a plugin, a policy and a source of chance. What it finds is noted with the plugin's judge,
or raised; it returns False where the plugin does not have what is tried. What is judged is the production code with the
plugin in it, between others; so what the engine owes plugins is judged as well. A rule is broken by its first failing
case, which is reported with its seed.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from functools import partial
from math import inf
from os.path import basename
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

from fluxsched.config.inventory import fake_resources
from fluxsched.config.policies import check_files, check_policy
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import InvalidValue
from fluxsched.sched.decisions import Denied, Granted, PluginFailed, Raise
from fluxsched.sched.engine.scheduler import DEFAULT_GROUP, Scheduler
from fluxsched.sched.hooks import (
    PASS,
    POINTS,
    SCORE_MAX,
    SKIP,
    SYSTEM,
    Gate,
    JobSeen,
    Later,
    Never,
    Pass,
    Plugin,
    Skip,
    Wait,
)
from fluxsched.sched.loading import is_file, parse_spec, policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import check_plugin, make, make_plugin
from fluxsched.sim import conformance as suite
from fluxsched.sim.conformance import CaseStuck, Finding, RuleVerdict, TimeLimit, all_unclear, tried, verdict_of
from fluxsched.sim.harness import BEGIN_S, HEAD, PROGRESS, Harness, RuleBroken
from fluxsched.sim.site import policy_faults
from fluxsched.system.clock import RandomSource, seeded

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

WRITTEN: Final[Mapping[type, str]] = {Pass: "PASS", Skip: "SKIP"}
"""Names that stand in plugins for the only values of these types."""

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
            names = ", ".join(WRITTEN.get(kind, kind.__name__) for kind in allowed)
            self.note(ANSWERS, f"{point} answers {answer!r}: it should be one of {names}", line)
        if point == "score" and isinstance(answer, (int, float)) and not 0 <= answer <= SCORE_MAX:
            self.note(ANSWERS, f"score answers {answer!r}: it should be within 0 and {SCORE_MAX}", line)
        if isinstance(answer, (Gate, Later, Never, Wait)) and str(answer.why).strip():
            self.held_back.append(str(answer.why))
        elif point == "pre_filter" and isinstance(answer, Idset) and not args[1].ranks <= answer:
            self.held_back.append("some targets are left out")  # the engine's words are: it leaves it only these
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
    """Small machine in virtual time, with a scheduler under a policy and plugins, for tests of plugins.

    `waiting`, `running`, `started` and `denied` have the jobs, `failures` what the scheduler reported of plugins that
    failed. `judges` are for the suite of `plugin check`, which observes plugins through them; tests need none.
    """

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
        """Run the passes that are due at this instant; return how many jobs have started."""
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


# ---- one try of a plugin

FAULTS, LEAKS = "faults", "leaks"

DAY_S: Final = 86_400.0
HOUR_S: Final = 3_600.0
INSTANTS: Final = 12
FEW_INSTANTS: Final = 40
ARRIVALS: Final = 4
STEP_S: Final = 600.0

FAILURES: Final = 3
"""Number of times that a point is made to fail."""

ROUNDS: Final = 4
PASSES: Final = 8
"""Passes of a round in which each start fails."""

EQUAL_JOBS: Final = 100

LATER_POINTS: Final = ("permit", "pre_bind")
"""Points after reserve at which another plugin says no, so that all is to be unreserved."""

REMEDY: Final = "a plugin that holds a job back gives a reason: with a Gate, Later, Never or Wait, or by an Idset"

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,31}")


class Tried(NamedTuple):
    """Policy and plugin under test in a case: each site gets a copy of the policy and a plugin of its own."""

    policy: Policy
    make: Callable[[], Plugin]

    def site(self, others: tuple[Any, ...] = (), failing: dict[str, int] | None = None, **of: Any) -> TriedSite:
        """Return the plugin between others, judged."""
        judge = PluginJudge(self.make(), failing)
        plugins = [*others[:1], judge, *others[1:]]
        return TriedSite(PluginSite(self.policy, plugins, [judge], **of), judge)


class TriedSite(NamedTuple):
    """A site, and the judge of the plugin on it."""

    site: PluginSite
    judge: PluginJudge


Case = Callable[[Tried, RandomSource, list[PluginJudge]], bool]
"""Judges are added to the list as they are made, so that what they note is not lost if the case raises."""


# ---- jobs


def words_of(plugin: object) -> list[str]:
    """Return the short texts in a plugin's own code: what it compares labels with is mostly among them."""
    found: dict[str, None] = {}
    for _, method in inspect.getmembers(type(plugin), inspect.isfunction):
        codes: list[CodeType] = [method.__code__]
        while codes:
            for const in codes.pop().co_consts:
                if isinstance(const, CodeType):
                    codes.append(const)
                elif isinstance(const, str) and _WORD.fullmatch(const):
                    found[const] = None
    return [*found][:20]


def arrive(tried: TriedSite, chance: RandomSource, jobs: int) -> None:
    """Add some jobs of any kind, with any labels that the plugin reads."""
    words = words_of(tried.judge.plugin)
    for _ in range(jobs):
        system: dict[str, Any] = {}
        for name in tried.judge.READS:
            value = chance.choice([None, "a", "b", *words, *words])
            if value is None or name == "user":
                continue
            keys = [name] if name in ("bank", "queue") else name.removeprefix(SYSTEM).split(".")
            into = system if name != "name" else system.setdefault("job", {})
            for key in keys[:-1]:
                into = into.setdefault(key, {})
            if isinstance(into, dict):
                into[keys[-1]] = chance.choice([value, chance.randint(1, 3)]) if name.startswith(SYSTEM) else value
        kind = chance.random()
        asked: dict[str, Any] = {"cores_per_task": chance.randint(1, 3)}
        if kind < 0.3:
            asked = {"nodes": chance.randint(1, 3), "exclusive": chance.random() < 0.5}
        elif kind < 0.5:
            asked = {"ntasks": chance.randint(2, 6)}
        tried.site.submit(chance.choice((30.0, 300.0, 2_000.0)), system, chance.randint(0, 2), **asked)


# ---- the cases


def ordinary(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Jobs and targets come and go for some hours, then there is time for all of them."""
    there = _ordinary(tried, chance, judges)
    site, judge = there
    for jobid in sorted(site.waiting):
        if not judge.held_back and not judge.found:
            why = site.why(jobid)
            what = f"job {format_f58(jobid)} waits on an idle machine: {why}; {REMEDY}"
            raise RuleBroken("progress", what)
    site.end_all()
    _check_empty(there)
    return True


def _ordinary(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> TriedSite:
    there = tried.site()
    judges.append(there.judge)
    site = there.site
    for _ in range(INSTANTS):
        arrive(there, chance, chance.randint(0, ARRIVALS))
        site.turn()
        what = chance.random()
        if what < 0.2:
            site.offline(Idset.of([rank for rank in site.ranks if chance.random() < 0.5]))
        elif what < 0.3 and site.waiting:
            site.end(chance.choice(sorted(site.waiting)))
        site.advance(site.now_s + chance.uniform(1.0, STEP_S))
    site.offline(Idset.of([]))
    site.run(2 * DAY_S)
    return there


def under_policy(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Return the ordinary days of the suite for policies, with their laws; a plugin that holds jobs back may leave
    some.
    """
    judge: Any = PluginJudge(tried.make())
    judges.append(judge)
    try:
        suite.ordinary(lambda machine: Harness(tried.policy, machine, plugins=[judge]), chance)
    except RuleBroken as broken:
        if broken.law not in (PROGRESS, HEAD) or not judge.held_back:
            remedy = f"; {REMEDY}" if broken.law == PROGRESS else ""
            raise RuleBroken("policy", f"{broken} (law {broken.law!r} for policies){remedy}", broken.line) from None
    return True


def deterministic(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Check that the same days, passed twice, give the same starts."""
    seed = chance.getrandbits(32)
    one, other = [_ordinary(tried, seeded(seed), judges).site.started for _ in range(2)]
    for first, second in zip(one, other, strict=False):
        if first != second:
            raise RuleBroken("deterministic", f"job {first[0]} starts the first time, and {second[0]} the second")
    return True


def faults(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Each point is made to raise some times: only jobs that are asked about wait, and nothing is held for them."""
    points = [name for name in vars(PluginJudge(tried.make())) if name in FAILING]
    for point in points:
        there = tried.site(failing={point: FAILURES})
        judges.append(there.judge)
        site, judge = there
        arrive(there, chance, 3 * ARRIVALS)
        site.run(HOUR_S, FEW_INSTANTS)
        failed = FAILURES - judge.failing[point]
        if failed and not any(judge.name in note and point in note for note in site.failures):
            raise RuleBroken(FAULTS, f"{point} has failed {failed} times, and nothing is said of it")
        site.end_all()
        _check_empty(there)
    return bool(points)


FAILING: Final = (
    "pre_enqueue", "queue_sort", "pre_filter", "filter", "look", "pre_score", "score", "reserve", "permit",
    "pre_bind", "bind", "post_bind", "on_free", "unreserve",
)  # fmt: skip
"""Points that are made to fail; what `post_filter` answers are decisions, which are judged where they are made."""


class Objector:
    """Says no at one point after reserve, as long as it is told to."""

    name = "objector"

    def __init__(self, point: str) -> None:
        self.objects = True
        setattr(self, point, self._say)

    def _say(self, job: JobSeen, fit: object, now_s: float = 0.0) -> Any:
        return Later("not for now") if self.objects else PASS


class Bystander:
    """Reserves before the plugin, so it is to be unreserved after it."""

    name = "bystander"

    def __init__(self) -> None:
        self.judge: PluginJudge | None = None

    def reserve(self, job: JobSeen, fit: object) -> Any:
        return PASS

    def unreserve(self, job: JobSeen, fit: object) -> None:
        judge = self.judge
        if judge is not None and job.jobid in judge.reserved:
            judge.note(RESERVED, f"job {format_f58(job.jobid)} is unreserved, but not in the reverse order of reserve")


def leaks(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Have starts fail after reserve, again and again; then as many jobs start as at first, and nothing is kept of
    them.
    """
    for point in LATER_POINTS:
        bystander, objector = Bystander(), Objector(point)
        there = tried.site((bystander, objector))
        judge = bystander.judge = there.judge
        judges.append(judge)
        seed = chance.getrandbits(32)
        starts, kept = [], []
        for turn in range(ROUNDS):
            if judge.found:
                return True
            starts.append(_round(there, objector, seed, PASSES if turn else 0))
            kept.append(sizes_in(judge.plugin))
        if starts[-1] < starts[0]:
            line = _line(judge, "unreserve" if judge.unreserved else "on_free")
            raise RuleBroken(
                LEAKS, f"{starts[0]} jobs start at first, and {starts[-1]} after starts that have failed: unreserve "
                "and on_free should give back what reserve takes", line
            )  # fmt: skip
        grown = [name for name in kept[-1] if kept[1].get(name, 0) < kept[2].get(name, 0) < kept[3][name]]
        if grown:
            raise RuleBroken(
                LEAKS, f"{grown[0]} grows from {kept[1].get(grown[0], 0)} to {kept[3][grown[0]]} parts and no job is "
                "left: unreserve and on_free should forget a job", _line(judge, "on_free")
            )  # fmt: skip
    return True


def _round(there: TriedSite, objector: Objector, seed: int, passes: int) -> int:
    """Submit the same jobs, which all fail for so many passes and then start; return the number of those that
    started.
    """
    site, before = there.site, len(there.site.started)
    objector.objects = passes > 0
    arrive(there, seeded(seed), 3 * ARRIVALS)
    for _ in range(passes):
        site.turn()
        site.nudge()
    objector.objects = False
    site.nudge()
    site.run(HOUR_S, FEW_INSTANTS)
    site.end_all()
    _check_empty(there)
    site.now_s = (site.now_s // DAY_S + 1) * DAY_S + 100.0  # at the same time of another day
    return len(site.started) - before


def _line(judge: PluginJudge, point: str) -> str | None:
    method = getattr(judge.plugin, point, None) or getattr(judge.plugin, "reserve", None)
    return None if method is None else line_of(method)


class Skipper:
    """Skips every shape, so its filter is never to be asked; others' are."""

    name = "skipper"

    def __init__(self) -> None:
        self.asked = 0

    def pre_filter(self, shape: object, group: object) -> Any:
        return SKIP

    def filter(self, shape: object, kind: object) -> Any:
        self.asked += 1
        return PASS


def skips(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Another plugin skips all shapes: this one is asked as without it."""
    skipper = Skipper()
    alone, beside = tried.site(), tried.site((skipper,))
    judges += [alone.judge, beside.judge]
    seed = chance.getrandbits(32)
    for there in (alone, beside):
        arrive(there, seeded(seed), 3 * ARRIVALS)
        there.site.run(STEP_S)
    if skipper.asked:
        raise RuleBroken("skip", "the filter of a plugin is asked, though it has skipped the shape")
    if alone.site.started != beside.site.started:
        raise RuleBroken("skip", "other jobs start when another plugin skips all shapes")
    return alone.judge.calls["filter"] > 0


def permits(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Jobs come one by one, so that what one waits for may never come: each wait for a permit has its end."""
    there = tried.site()
    judges.append(there.judge)
    site, judge = there
    has_waited = False
    for _ in range(INSTANTS):
        arrive(there, chance, 1)
        site.turn()
        waited = dict(judge.waiting)
        has_waited |= bool(waited)
        site.run(max(waited.values(), default=site.now_s) - site.now_s + 1.0, instants=50)
        site.end_all()
        _check_empty(there)
    return has_waited


def calls(tried: Tried, chance: RandomSource, judges: list[PluginJudge]) -> bool:
    """Many equal jobs on targets of four kinds: questions about shapes stay within shapes times kinds."""
    there = tried.site(machine="4x4+1")
    judges.append(there.judge)
    site, judge = there
    seed = chance.getrandbits(32)
    for _ in range(EQUAL_JOBS):
        arrive(there, seeded(seed), 1)
    site.turn()
    bookings = sum(judge.calls[point] for point in ("reserve", "unreserve", "post_bind", "on_free", "permit"))
    generations = 1 + (bookings if hasattr(judge.plugin, "generation") else 0)
    for point in ("pre_filter", "filter", "pre_score", "score"):
        if judge.calls[point] > generations:
            raise RuleBroken(
                CALLS, f"{point} is asked {judge.calls[point]} times about {EQUAL_JOBS} equal jobs on equal targets",
                _line(judge, point),
            )  # fmt: skip
    site.end_all()
    return True


def _check_empty(there: TriedSite) -> None:
    """No job is left, so nothing is reserved or told to run."""
    site, judge = there
    for law, jobs in ((RESERVED, judge.reserved.keys()), (LEAKS, judge.bound)):
        left = sorted(jobs - site.running.keys() - site.waiting)
        if left and not judge.failing:
            raise RuleBroken(law, f"job {format_f58(left[0])} has ended, and the plugin was not notified")


# ---- the suite

CASES: Final = 3
"""Number of cases of each rule."""

LAWS: Final = {
    RAISES: "raises no exception at any point",
    ANSWERS: "answers what its points may answer",
    PURE: "gives the same answer to the same question",
    HOLDS: "what it says of a shape holds until targets or its generation change",
    RESERVED: "is unreserved just for what it has reserved, in the reverse order of other plugins",
}
"""Laws that are judged in every case."""


class PluginRule(NamedTuple):
    """Rule for plugins: its text, and the case that tests it."""

    says: str
    case: Case


RULES: Final = {
    "progress": PluginRule("leaves no job waiting on an idle machine without a reason", ordinary),
    "policy": PluginRule("the laws for policies hold with it, in ordinary cases", under_policy),
    "deterministic": PluginRule("has the same jobs start at the same times for the same input", deterministic),
    FAULTS: PluginRule("a failure at any point holds back just the jobs asked about", faults),
    LEAKS: PluginRule("keeps nothing of starts that failed and of jobs that ended", leaks),
    SKIPS: PluginRule("SKIP reaches the filter of its plugin alone", skips),
    TIMED_OUT: PluginRule("each wait for a permit has an end, after which nothing is held", permits),
    CALLS: PluginRule("questions about shapes stay within shapes times kinds of targets", calls),
}

ALL_SAYS: Final = {**LAWS, **{name: rule.says for name, rule in RULES.items()}}


def examine_plugin(
    policy: Policy,
    make: Callable[[], Plugin],
    seed: int = 0,
    *,
    cases: int = CASES,
    rules: Sequence[str] = tuple(RULES),
    time_limit: TimeLimit = lambda limit_s, fault: nullcontext(),
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """All rules, or some, on the plugins that `make` makes; `began` is called for each case before it begins.

    After a case that does not end there is no other.
    """
    findings: dict[str, Finding] = {}
    counts = dict.fromkeys(ALL_SAYS, 0)
    claims: set[str] = set()
    try:
        for name in rules:
            for at in range(seed, seed + cases):
                began(name, at)
                if _try(name, at, Tried(policy, make), time_limit, findings, counts, claims):
                    break  # it takes long to go on with what fails again and again
    except CaseStuck as stuck:
        findings.setdefault("progress", Finding(at, f"{stuck} (case {name!r})", policy_line(stuck)))
    for name, says in ALL_SAYS.items():
        verdict = verdict_of(counts[name], name in LAWS or name in claims, name in findings)
        yield RuleVerdict(name, verdict, counts[name], says, findings.get(name))


def _try(
    name: str,
    seed: int,
    what: Tried,
    time_limit: TimeLimit,
    findings: dict[str, Finding],
    counts: dict[str, int],
    claims: set[str],
) -> bool:
    """One case, and all that it has found; whether that is anything."""
    judges: list[PluginJudge] = []
    case = partial(RULES[name].case, what, seeded(seed), judges)
    claimed, law, finding = tried(name, seed, case, time_limit)
    found = {law: finding} if finding is not None else {}
    for judge in judges:
        for noted, (text, line) in judge.found.items():
            found.setdefault(noted, Finding(seed, text, line))
    for broken, each in found.items():
        findings.setdefault(broken, each)
    for judged in {name, *LAWS, *found}:
        counts[judged] += 1
    if claimed or name in found:
        claims.add(name)
    return bool(found)


# ---- the plugin that is tried


def check_words(spec: str, policy: str) -> None:
    """Raise InvalidValue for words that name no plugin, policy or file; no code of a plugin is run."""
    check_plugin(spec)
    name = spec.partition(":")[0]
    if is_file(name) and not Path(name).is_file():
        raise InvalidValue(f"there is no file {name}")
    check_policy(policy)
    check_files(policy)


def check(
    spec: str,
    policy: str,
    seed: int,
    time_limit: TimeLimit,
    began: Callable[[str, int], None] = lambda rule, seed: None,
) -> Iterator[RuleVerdict]:
    """Yield the suite on a plugin, `NAME:key=value` or a file; `began` is called before each case, with rule and seed.

    Raises InvalidValue if plugin or policy cannot be made.
    """
    with policy_faults(spec, " while it was imported", "plugin"):
        _made(spec)
    with policy_faults(policy, " while it was imported"):
        under = make(*parse_spec(policy))
    return examine_plugin(under, partial(_made, spec), seed, time_limit=time_limit, began=began)


def _made(spec: str) -> Plugin:
    return make_plugin(spec)


def unclear(case: tuple[str, int] | None, what: str) -> Iterator[RuleVerdict]:
    """Yield the report when the suite itself ended early."""
    return all_unclear(ALL_SAYS, case, what)
