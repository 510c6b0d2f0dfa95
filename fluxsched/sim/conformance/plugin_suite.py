"""Conformance suite for plugins (`plugin check`): ordinary days, failures at each point, permits that never come.

Law: a case is a function of a plugin, a policy and a source of chance. What it finds is noted with the plugin's judge,
or raised; it returns False where the plugin does not have what is tried. What is judged is the production code with the
plugin in it, between others; so what the engine owes plugins is judged as well. A rule is broken by its first failing
case, which is reported with its seed.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import CodeType
from typing import Any, Final, NamedTuple

from fluxsched.config.policies import check_files, check_policy
from fluxsched.core.idset import Idset
from fluxsched.core.jobid import format_f58
from fluxsched.errors import InvalidValue
from fluxsched.sched.hooks.api import PASS, SKIP, JobSeen, Later, Plugin
from fluxsched.sched.hooks.chain import SYSTEM
from fluxsched.sched.loading import is_file, parse_spec, policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sched.registry import check_plugin, make, make_plugin
from fluxsched.sim.conformance import plugin_site, suite
from fluxsched.sim.conformance.harness import HEAD, PROGRESS, Harness, RuleBroken
from fluxsched.sim.conformance.plugin_site import CALLS, RESERVED, PluginJudge, PluginSite, line_of, sizes_in
from fluxsched.sim.conformance.suite import CaseStuck, Finding, RuleVerdict, TimeLimit, all_unclear, tried, verdict_of
from fluxsched.sim.policy_guard import policy_faults
from fluxsched.system.clock import RandomSource, seeded

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
            raise RuleBroken("progress", f"job {format_f58(jobid)} waits on an idle machine: {why}")
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
            raise RuleBroken("policy", f"{broken} (law {broken.law!r} for policies)", broken.line) from None
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
    """Submit the same jobs, which all fail for so many passes and then start; return the number of those that started.
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
    plugin_site.RAISES: "raises no exception at any point",
    plugin_site.ANSWERS: "answers what its points may answer",
    plugin_site.PURE: "gives the same answer to the same question",
    plugin_site.HOLDS: "what it says of a shape holds until targets or its generation change",
    plugin_site.RESERVED: "is unreserved just for what it has reserved, in the reverse order of other plugins",
}
"""Laws that are judged in every case."""


class PluginRule(NamedTuple):
    """Rule for plugins: its text, and the case that tests it."""

    says: str
    case: Case


RULES: Final = {
    "progress": PluginRule("leaves no job waiting on an idle machine without a reason", ordinary),
    "policy": PluginRule("the laws for policies hold with it, on ordinary days", under_policy),
    "deterministic": PluginRule("has the same jobs start at the same times for the same input", deterministic),
    FAULTS: PluginRule("a failure at any point holds back just the jobs asked about", faults),
    LEAKS: PluginRule("keeps nothing of starts that failed and of jobs that ended", leaks),
    plugin_site.SKIPS: PluginRule("SKIP reaches the filter of its plugin alone", skips),
    plugin_site.TIMED_OUT: PluginRule("each wait for a permit has an end, after which nothing is held", permits),
    plugin_site.CALLS: PluginRule("questions about shapes stay within shapes times kinds of targets", calls),
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
    for kept in {name, *LAWS} - found.keys():
        counts[kept] += 1
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
