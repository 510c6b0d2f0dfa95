"""Interface of plugins, how the engine asks those of a queue, and the built-in one, which keeps to `[[limits]]`.

A plugin is a small class with some of the methods below, which the engine calls as it decides.

Law: a plugin answers and changes nothing but itself. Its answers about a shape hold for all jobs of that shape until
targets come, go or get other properties, or until the plugin's own `generation` grows; its answers about a job hold for
that job. A plugin that raises holds back the job that it was asked about, and nothing else.

    class Night:
        name = "night"
        READS = ("attributes.system.night",)

        def pre_enqueue(self, job):
            hour = job.now_s / 3600 % 24
            if job.label("attributes.system.night") is None or hour >= 22 or hour < 6:
                return PASS
            return Gate("waits for the night (22:00 to 06:00 UTC)", at_s=job.now_s + (22 - hour) * 3600)

rfc/plugins.md has all methods (points), in the order in which a job meets them: when each is called, and what it may
return. `OPTIONS` arrive as keyword arguments of the constructor.

The plugins of one queue in their order: which have which point, how each is asked, and what they read of jobs.

Law: whatever a plugin raises, and an answer that its point does not have, becomes a `PluginFault`, which names plugin
and line; nothing else of the pass notices. What was reserved is unreserved in the reverse order, all of it, whatever a
plugin raises meanwhile. What plugins read of a job (`READS`) are labels of its shape, so jobs with equal labels and
requests are of one shape. Tuples of one queue's `queue_sort` always compare: those of its first job settle how many
items there are, and of which kinds.

Limits of a site as a scheduler obeys them: a plugin of its own, before all others, of every queue.

Law: what a job gets is booked before it is committed, or it does not start; what ran before is a fact. The scheduler
counts the jobs of the groups that it serves, each with what it has now, so an elastic job grows as far as its limits
allow. Its `generation` grows only where a holder has, or had, no room for the largest shape that was asked about: far
below the limits all answers stay as they are, and a start costs a look at its own holders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from json import dumps
from math import isfinite, isnan
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from fluxsched.core.idset import Idset
from fluxsched.core.jobfields import NOTHING, BoundedAmounts, HolderKey, Holders, SiteLimit, least_amounts
from fluxsched.core.jobid import format_f58
from fluxsched.core.jobspec import Jobspec, Request
from fluxsched.core.quantities import Amounts
from fluxsched.core.reasons import WaitKind, cause
from fluxsched.errors import InvalidValue, LimitExceeded
from fluxsched.sched.decisions import Preempt
from fluxsched.sched.ledger import SizeRule
from fluxsched.sched.loading import Option, policy_line
from fluxsched.sched.pool.placement import Blocks, Fits, Labels, Part, Shape, parts_in

__all__ = [
    "ARRIVAL",
    "EVENTS",
    "FREE",
    "LATERS_MAX",
    "LOOKS_MAX",
    "PASS",
    "POINTS",
    "READABLE",
    "SCORE_MAX",
    "SKIP",
    "START",
    "TARGETS",
    "Fits",
    "Gate",
    "GroupSeen",
    "Idset",
    "JobSeen",
    "Kind",
    "Later",
    "Never",
    "Option",
    "Part",
    "Pass",
    "Plugin",
    "Preempt",
    "Request",
    "Shape",
    "Skip",
    "Wait",
]

POINTS: Final = (
    "pre_enqueue", "queue_sort", "pre_filter", "filter", "look", "post_filter", "pre_score", "score", "reserve",
    "unreserve", "permit", "pre_bind", "bind", "post_bind", "on_free",
)  # fmt: skip
"""The methods that a plugin may have; it has at least one."""

READABLE: Final = ("user", "bank", "queue", "name")
"""Names that `READS` may have, besides `attributes.system.KEY` (and `.KEY.KEY`) without environment and files; `user`
is the uid.

Jobs that differ in what is read are of different shapes: what few jobs have in common costs least.
"""

SCORE_MAX: Final = 100
"""The best score of one plugin; scores times weights are added up."""

LOOKS_MAX: Final = 64
"""Targets of one job that plugins look at in a pass, and jobs that `post_filter` is asked about in one."""

LATERS_MAX: Final = 64
"""Jobs of one shape that answers about single jobs hold back in a pass; then its others wait for the next pass."""

ARRIVAL, START, FREE, TARGETS = "arrival", "start", "free", "targets"

EVENTS: Final = (ARRIVAL, START, FREE, TARGETS)
"""Events that a Gate may wait for: a job of the queue arrived, started, or has freed everything; targets were added,
removed or changed.
"""


class Pass:
    """Type of PASS, the answer of a plugin that has no objection."""

    def __repr__(self) -> str:
        return "PASS"


class Skip:
    """Type of SKIP, the answer of a plugin that leaves a shape alone."""

    def __repr__(self) -> str:
        return "SKIP"


PASS: Final = Pass()
"""Answer of a plugin that has no objection."""

SKIP: Final = Skip()
"""Answer of a plugin that leaves a shape alone: its `filter` (or `score`) is not asked, or the next plugin binds."""


class Gate(NamedTuple):
    """Answer that keeps the job from the policy; asked again at `at_s` (wall time, seconds), and on these EVENTS."""

    why: str
    on: tuple[str, ...] = ()
    at_s: float | None = None


class Later(NamedTuple):
    """Answer that defers a job; asked again with the next pass, and one follows at `at_s` (wall time, seconds).

    About a shape the answer holds until `at_s`, or until the generation changes.
    """

    why: str
    at_s: float | None = None


class Never(NamedTuple):
    """Answer that excludes the targets in question, whatever is free there: a job that could then never run is
    denied.
    """

    why: str


class Wait(NamedTuple):
    """Answer that delays the start of a job, which holds its resources, until all plugins that gave it permit the job.

    After `timeout_s` (seconds) the job is queued again. The plugin is asked again whenever another job of the queue
    reaches its permit or is removed from it, and `sched.permit` answers in its place.
    """

    timeout_s: float
    why: str = ""


class JobSeen(NamedTuple):
    """One job as plugins see it, asked about at `now_s`; wall times in seconds, `duration_s` 0.0 for no limit.

    `adopted` is true in `post_bind` and `on_free` for a job that ran already when this scheduler started: none of its
    other points was asked. `shape` has what it asks for (`request`) and the labels that plugins read.
    """

    jobid: int
    priority: int
    userid: int
    t_submit_s: float
    duration_s: float
    shape: Shape
    now_s: float
    adopted: bool = False

    @property
    def request(self) -> Request:
        """Return the request of the job."""
        return self.shape.request

    def label(self, name: str) -> Any:
        """Return the value of a name in `READS`; None if the job has none.

        Objects and arrays of JSON are returned as text.
        """
        return self.shape.label(name)


class Kind(NamedTuple):
    """A class of equal targets: what each has in all, busy or not, and `ranks`, those of them that the group has."""

    ranks: Idset
    cores: int
    gpus: int
    amounts: Amounts
    properties: frozenset[str]


class GroupSeen(NamedTuple):
    """A group as `pre_filter` sees it: what it has, whatever is free or up; `generation` counts its changes."""

    name: str
    ranks: Idset
    generation: int
    ranks_of: Callable[[str], Idset]
    """The ranks of the group on hosts (RFC 29 hostlist), as `ranks_of("node[1-2]")`.

    Hosts without a target of the group add none, since a host may leave, or belong to another group; a text that is no
    hostlist raises InvalidValue.
    """
    properties: Mapping[str, Idset]


class Plugin(Protocol):
    """Common attributes of plugins, which are classes with some of the POINTS. Only `name` is required.

    `READS` names what makes jobs of different shapes (READABLE). `weight` is that of its scores. `generation` grows
    whenever its answers about shapes may differ from those before: they are asked for again as they are needed.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Option]]
    READS: ClassVar[Sequence[str]]


# ---- the plugins of a queue

PLUGINS_MAX = 16
"""Maximum number of plugins of one queue: each is asked about each job."""

WHY_CHARS_MAX = 500
"""Maximum number of characters of a plugin's reason."""

RETRY_S: Final = 10.0
"""Delay after a fault before the job, or the shape, is asked about again (seconds)."""

NO_GENERATION: Final = -1
"""Generation of a plugin whose `generation` cannot be read: its shapes wait."""

BEFORE_OFFER: Final = ("pre_enqueue", "queue_sort")
"""Points that a job meets before its policy sees it."""

Point = tuple[str, Callable[..., Any]]
"""The name of a plugin and its method."""


class PluginFault(NamedTuple):
    """Fault of a plugin, in words for the owner and the log."""

    why: str


class Filtering(NamedTuple):
    """Points of one plugin that are asked about shapes; None where it has no such point."""

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
        """Return a number that changes when a plugin's answers about shapes may differ from those before."""
        found = 0
        for plugin in self._changing:
            found += generation_of(plugin)
        return found

    def _with(self, point: str) -> list[Point]:
        return [(plugin.name, getattr(plugin, point)) for plugin in self.plugins if _has(plugin, point)]


def check_points(plugin: object) -> None:
    """Check a plugin's name and points. Raise InvalidValue if it has none of them."""
    name = getattr(plugin, "name", None)
    if not isinstance(name, str) or not name or not name.isprintable():
        raise InvalidValue(f"plugin {type(plugin).__name__}: name is {name!r}; it should be a text such as 'night'")
    if name == LIMITS and not isinstance(plugin, RunningLimits):
        raise InvalidValue(f"plugin {name!r} has the name of the site's own limits: name it otherwise")
    if not any(_has(plugin, point) for point in POINTS):
        raise InvalidValue(f"plugin {name!r} has none of the methods {', '.join(POINTS)}")


def generation_of(plugin: Any) -> int:
    """Return the generation of a plugin; 0 if it has none, NO_GENERATION if what it has is no number from 0."""
    found = ask(plugin.name, getattr, plugin, "generation", 0)
    return found if isinstance(found, int) and found >= 0 else NO_GENERATION


def ask(name: str, method: Callable[..., Any], *args: Any) -> Any:
    """Return the plugin's answer, or a PluginFault."""
    try:
        return method(*args)
    except Exception as fault:
        line = policy_line(fault)
        text = f"{type(fault).__name__}: {fault}"[:WHY_CHARS_MAX]
        failed = f"plugin {name!r} failed{f' at {line}' if line else ''}: {text}"
        return PluginFault(cause(failed, WaitKind.PLUGIN))


def wrong(name: str, point: str, answer: object, allowed: str) -> PluginFault:
    """Return the fault of a wrong answer; an answer that is a fault is returned as it is."""
    if isinstance(answer, PluginFault):
        return answer
    said = f"plugin {name!r}: {point} answered {repr(answer)[:WHY_CHARS_MAX]}; it should be {allowed}"
    return PluginFault(cause(said, WaitKind.PLUGIN))


def why_of(name: str, answer: Any) -> str:
    """Return the reason of an answer, with the plugin's name; limits of the site are no plugin to those who wait."""
    if name == LIMITS:
        said: str = answer.why
        return said
    return cause(f"plugin {name!r}: {str(answer.why)[:WHY_CHARS_MAX]}", WaitKind.PLUGIN)


def check_gate(name: str, answer: Any) -> Gate | PluginFault | None:
    """Check an answer of pre_enqueue; None stands for PASS."""
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
    """Check an answer of a point that may answer PASS or Later; None stands for PASS."""
    if is_pass(answer):
        return None
    if isinstance(answer, PluginFault):
        return answer
    if isinstance(answer, Later):
        why, at_s = _items(answer)
        if at_s is None or finite(at_s) is not None:
            return Later(why if isinstance(why, str) else str(why), finite(at_s))
        return wrong(name, point, answer, "a Later with a finite time")
    return wrong(name, point, answer, "PASS or Later")


def check_wait(name: str, answer: Wait) -> Wait | PluginFault:
    """Check a Wait that permit answered."""
    timeout_s, why = _items(answer)
    found = finite(timeout_s)
    if found is None or found <= 0:
        return wrong(name, "permit", answer, "a Wait of a positive time")
    return Wait(found, str(why))


def _items(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the fields of an answer, of any type: compiled, a field not of its declared type would raise when read."""
    return answer


def finite(value: object) -> float | None:
    """Return the number, None if it is none or not finite."""
    if not isinstance(value, (int, float)):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if isfinite(found) else None


def is_pass(answer: object) -> bool:
    """Return whether the answer is PASS."""
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


# ---- calls of plugins

ANNOTATION_KEYS_MAX = 64
"""Maximum number of annotations of one plugin and job; they are stored with the job."""


class Refusal(NamedTuple):
    """Refusal of a job's start: why, and when another pass is of use (wall time, seconds), None if after any event."""

    why: str
    at_s: float | None = None
    is_fault: bool = False


class PermitWaits(NamedTuple):
    """Plugins whose permit a job waits for, with the reasons, and for how long (seconds)."""

    whys: dict[str, str]
    timeout_s: float


def refusal(name: str, point: str, answer: Any) -> Refusal | None:
    """Return the refusal in the answer of a point that may answer PASS or Later; None for PASS."""
    found = check_later(name, point, answer)
    if found is None:
        return None
    if isinstance(found, PluginFault):
        return Refusal(found.why, None, True)
    return Refusal(why_of(name, found), found.at_s)


def objection(looks: Sequence[Point], job: JobSeen, rank: int) -> Refusal | None:
    """Return the first objection of a plugin to this target; None if there is none."""
    for name, method in looks:
        found = refusal(name, "look", ask(name, method, job, rank))
        if found is not None:
            return found
    return None


def reserve(chain: Chain, job: JobSeen, fit: Fits) -> tuple[list[str], Refusal | None]:
    """Return the plugins that have reserved, in their order, and the refusal of the next one, None if all have."""
    done: list[str] = []
    for name, method in chain.reserves:
        answer = ask(name, method, job, fit)
        if answer is not PASS:
            found = refusal(name, "reserve", answer)
            if found is not None:
                return done, found
        done.append(name)
    return done, None


def unreserve(chain: Chain, done: Sequence[str], job: JobSeen, fit: Fits, faults: list[str]) -> None:
    """Undo the reservations of these plugins, the last first."""
    for name in reversed(done):
        method = chain.unreserves.get(name)
        if method is not None:
            notify(((name, method),), job, fit, faults)


def notify(points: Sequence[Point], job: JobSeen, fit: Fits, faults: list[str]) -> None:
    """Call points that have no answer, and add their faults to `faults`."""
    for name, method in points:
        answer = ask(name, method, job, fit)
        if isinstance(answer, PluginFault):
            faults.append(f"{answer.why} (told of job {format_f58(job.jobid)})")


def permit(points: Sequence[Point], job: JobSeen, fit: Fits) -> PermitWaits | Refusal | None:
    """Asks these for their permit: None if all have given it."""
    whys: dict[str, str] = {}
    timeout_s = 0.0
    for name, method in points:
        answer = ask(name, method, job, fit, job.now_s)
        if isinstance(answer, Wait):
            wait = check_wait(name, answer)
            if isinstance(wait, PluginFault):
                return Refusal(wait.why, None, True)
            timeout_s = min(timeout_s, wait.timeout_s) if whys else wait.timeout_s
            whys[name] = wait.why
        else:
            found = refusal(name, "permit", answer)
            if found is not None:
                return found
    return PermitWaits(whys, timeout_s) if whys else None


def bind(chain: Chain, job: JobSeen, fit: Fits) -> Mapping[str, Any] | Refusal:
    """Asks for the last objections, then for annotations: those of the first plugin that does not skip."""
    for name, method in chain.pre_binds:
        found = refusal(name, "pre_bind", ask(name, method, job, fit))
        if found is not None:
            return found
    for name, method in chain.binds:
        answer = ask(name, method, job, fit)
        if isinstance(answer, Skip):
            continue
        if not _are_annotations(answer):
            allowed = f"a mapping of at most {ANNOTATION_KEYS_MAX} annotations, or SKIP"
            return Refusal(wrong(name, "bind", answer, allowed).why, None, True)
        return {name: dict(answer)}
    return {}


def _are_annotations(answer: Any) -> bool:
    if not isinstance(answer, Mapping) or len(answer) > ANNOTATION_KEYS_MAX:
        return False
    return all(isinstance(key, str) for key in answer)


def wait_text(whys: Mapping[str, str]) -> str:
    """Return the reason of a job that waits for permits: the plugins and their reasons."""
    texts = [f"plugin {name!r}: {why or 'has not permitted it yet'}" for name, why in whys.items()]
    return "; ".join(texts)


# ---- labels: what plugins read of jobs

READS_MAX = 16
"""Maximum number of names that the plugins of a queue read in all; each multiplies the shapes."""

LABEL_CHARS_MAX = 1000
"""Maximum number of characters of a label that is a text: it is kept for each shape."""

SYSTEM: Final = "attributes.system."
BULK: Final = ("environment", "files")
"""Parts of a jobspec that a scheduler does not receive (RFC 27)."""


def check_reads(plugin: str, reads: object) -> tuple[str, ...]:
    """Check the names in READS. Raise InvalidValue for one that a plugin cannot read."""
    if isinstance(reads, str) or not isinstance(reads, Sequence):
        raise InvalidValue(f"plugin {plugin!r}: READS is {reads!r}; it should be a tuple of names such as ('user',)")
    for name in reads:
        if not isinstance(name, str) or not (name in READABLE or name.startswith(SYSTEM)):
            allowed = ", ".join(READABLE)
            raise InvalidValue(f"plugin {plugin!r}: READS names {name!r}; it may name {allowed} and {SYSTEM}KEY")
        keys = name.removeprefix(SYSTEM).split(".")
        if not all(keys) or (name.startswith(SYSTEM) and keys[0] in BULK):
            raise InvalidValue(f"plugin {plugin!r}: READS names {name!r}, which schedulers are not sent: name a KEY")
    return tuple(reads)


def all_reads(reads: Sequence[Sequence[str]]) -> tuple[str, ...]:
    """Return the names that several plugins read, in a fixed order. Raise LimitExceeded above READS_MAX."""
    found = tuple(sorted({name for each in reads for name in each}))
    if len(found) > READS_MAX:
        raise LimitExceeded(f"plugins read {len(found)} labels of each job: the limit is {READS_MAX}; use fewer")
    return found


def labels_of(reads: Sequence[str], jobspec: Jobspec, userid: int) -> Labels:
    """Return the labels of a job, those that it has."""
    found = []
    for name in reads:
        value = _value(name, jobspec, userid)
        if value is not None:
            found.append((name, value))
    return tuple(found)


def _value(name: str, jobspec: Jobspec, userid: int) -> Any:
    if name == "user":
        return userid
    if name == "bank":
        return jobspec.sharing.bank
    if name == "queue":
        return jobspec.queue
    if name == "name":
        return jobspec.job_name
    found: Any = jobspec.bare.get("attributes", {}).get("system")
    for key in name.removeprefix(SYSTEM).split("."):
        if not isinstance(found, Mapping) or key not in found:
            return None
        found = found[key]
    if isinstance(found, (dict, list)):
        found = dumps(found, sort_keys=True)
    return found[:LABEL_CHARS_MAX] if isinstance(found, str) else found


# ---- orders of plugins

SORT_ITEMS_MAX = 8
"""Maximum number of items of a job's tuple."""


class Sorts:
    """The tuples of all queues of a scheduler."""

    def __init__(self, chains: Mapping[str, Chain]) -> None:
        self._chains = chains
        self._kinds: dict[str, tuple[type, ...]] = {}

    def check(self, queues: Collection[str], is_alone: bool) -> None:
        """Raise InvalidValue where only some jobs of a policy's queue would have a tuple.

        `queues` of a group have policies of their own; `is_alone` if there is one group, which has all others then.
        """
        shared = [scope for scope in self._chains if scope and scope not in queues] if is_alone else []
        for scope in shared:
            sort = self._chains[scope].sort
            if sort is not None:
                raise InvalidValue(
                    f"plugin {sort[0]!r} of queue {scope!r} has queue_sort, but that queue shares its order with "
                    "others: give it a policy of its own, or give the plugin to all"
                )
        general = self._chains.get("")
        if general is not None and general.sort is not None and shared:
            raise InvalidValue(
                f"plugin {general.sort[0]!r} of all queues has queue_sort, but queue {shared[0]!r} shares their order "
                "and has plugins of its own: give it a policy of its own"
            )

    def of(self, job: JobSeen) -> tuple[Any, ...] | PluginFault:
        """Return the tuple of a job, empty if no plugin sorts; checked to compare with those of all others."""
        scope = job.shape.scope or ""
        sort = self._chains[scope].sort
        if sort is None:
            return ()
        name, method = sort
        found = ask(name, method, job)
        if isinstance(found, PluginFault):
            return found
        allowed = f"a tuple of 1 to {SORT_ITEMS_MAX} numbers and texts, of the same kinds for all jobs"
        if not isinstance(found, tuple) or not 0 < len(found) <= SORT_ITEMS_MAX:
            return wrong(name, "queue_sort", found, allowed)
        kinds = tuple([_kind(one) for one in found])
        if not all(kind in (float, str) for kind in kinds) or self._kinds.setdefault(scope, kinds) != kinds:
            return wrong(name, "queue_sort", found, allowed)
        return found


def _kind(one: object) -> type:
    """Return the type by which keys are compared: float for all numbers except nan, which compares with none."""
    if isinstance(one, float) and isnan(one):
        return type(None)
    return float if isinstance(one, (int, float)) else type(one)


# ---- limits of a site (`[[limits]]`)

LIMITS: Final = "limits"
"""Name by which the hooks of the site's limits are known beside those of plugins."""


class RunningLimits(SizeRule):
    """Record of what the holders of each limit have, which says what they may start."""

    name: ClassVar[str] = LIMITS
    READS: ClassVar[Sequence[str]] = ("bank", "queue", "user")
    OPTIONS: ClassVar[Mapping[str, Option]] = {}

    def __init__(self, limits: Sequence[SiteLimit]) -> None:
        self._holders = Holders(limits)
        self._limits = self._holders.limits
        self._held: dict[HolderKey, BoundedAmounts] = {}
        self._asked: dict[HolderKey, BoundedAmounts] = {}
        """The most of each amount that a shape has which was asked about."""
        self._jobs: dict[int, tuple[Sequence[HolderKey], BoundedAmounts]] = {}
        self.generation = 0

    def pre_filter(self, shape: Shape, group: GroupSeen) -> Pass | Skip | Later:
        """Return whether one more job of the shape would exceed a limit; SKIP where none is about it."""
        keys = self._keys(shape)
        if not keys:
            return SKIP
        least = least_amounts(shape.request)
        for key in keys:
            self._asked[key] = tuple(map(max, self._asked.get(key, NOTHING), least))
        text = self._exceeded(keys, least)
        return PASS if text is None else Later(text)

    def reserve(self, job: JobSeen, fit: Fits) -> Pass | Later:
        """Book what the job gets, which may be more than it asks for."""
        keys, amounts = self._keys(job.shape), _amounts(fit.blocks)
        text = self._exceeded(keys, amounts)
        if text is not None:
            return Later(text)
        self._book(job.jobid, keys, amounts)
        return PASS

    def unreserve(self, job: JobSeen, fit: Fits) -> None:
        """Record that the job has not started."""
        self._free(job.jobid)

    def post_bind(self, job: JobSeen, fit: Fits) -> None:
        """Book a job that ran before this scheduler started, whatever it exceeds."""
        if job.adopted:
            self._book(job.jobid, self._keys(job.shape), _amounts(fit.blocks))

    def on_free(self, job: JobSeen, fit: Fits) -> None:
        """Record that the job holds nothing any more."""
        self._free(job.jobid)

    def refuses_extras(self, fit: Fits) -> bool:
        return self._exceeded(self._keys(fit.shape), _amounts(fit.blocks)) is not None

    def refuses_grow(self, jobid: int, fit: Fits) -> str:
        """See `SizeRule`; the job counts as running already."""
        keys, _ = self._jobs.get(jobid, ((), NOTHING))
        return self._exceeded(keys, (0, *_amounts(fit.blocks)[1:])) or ""

    def resized(self, jobid: int, blocks: Blocks) -> None:
        """Book what a job has after it has grown, or given something back."""
        keys, before = self._jobs.get(jobid, ((), NOTHING))
        after = _amounts(blocks)
        if keys and after != before:
            self._free(jobid)
            self._book(jobid, keys, after)

    def _keys(self, shape: Shape) -> tuple[HolderKey, ...]:
        return self._holders.of(shape.label("user"), shape.label("bank"), shape.label("queue"))

    def _exceeded(self, keys: Sequence[HolderKey], amounts: BoundedAmounts) -> str | None:
        for key in keys:
            text = self._limits[key[0]].exceeded(self._held.get(key, NOTHING), amounts)
            if text is not None:
                return text
        return None

    def _book(self, jobid: int, keys: Sequence[HolderKey], amounts: BoundedAmounts) -> None:
        if not keys:
            return
        for key in keys:
            has = self._held.get(key, NOTHING)
            self._held[key] = tuple([one + more for one, more in zip(has, amounts, strict=True)])
        self._jobs[jobid] = (keys, amounts)
        self.generation += self._has_no_room(keys)

    def _free(self, jobid: int) -> None:
        keys, amounts = self._jobs.pop(jobid, ((), NOTHING))
        self.generation += self._has_no_room(keys)
        for key in keys:
            left = tuple([has - less for has, less in zip(self._held[key], amounts, strict=True)])
            self._held[key] = left
            if not left[0]:
                del self._held[key]

    def _has_no_room(self, keys: Sequence[HolderKey]) -> bool:
        """Return whether a holder has no room for the largest shape, so that an answer about some shape may be no."""
        for key in keys:
            if self._limits[key[0]].exceeded(self._held[key], self._asked.get(key, NOTHING)) is not None:
                return True
        return False


def _amounts(blocks: Blocks) -> BoundedAmounts:
    """Return what these blocks of a job have of each of SIZES."""
    nodes = cores = gpus = 0
    for part in parts_in(blocks):
        nodes, cores, gpus = nodes + 1, cores + part.cores.bit_count(), gpus + part.gpus.bit_count()
    return (1, nodes, cores, gpus)


def with_limits(plugins: dict[str, list[Plugin]], limits: Sequence[SiteLimit]) -> dict[str, list[Plugin]]:
    """Return the plugins of each queue, by the empty name of those without plugins of their own, behind one that obeys
    these limits; they are counted over all queues.
    """
    bounding = [limit for limit in limits if any(most is not None for most in limit.sizes)]
    if not bounding:
        return plugins
    ours: Plugin = RunningLimits(bounding)
    return {queue: [ours, *plugins.get(queue, ())] for queue in dict.fromkeys(["", *plugins])}
