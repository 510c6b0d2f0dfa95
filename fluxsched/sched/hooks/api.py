"""Interface of plugins: a small class with some of the methods below, which the engine calls as it decides.

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

The points, in the order in which a job meets them; `OPTIONS` arrive as keyword arguments of the constructor:

    pre_enqueue(job)         PASS | Gate     asked on entry and on the events that the Gate names
    queue_sort(job)          a tuple         asked on entry; its jobs come in this order; one plugin at most
    pre_filter(shape, group) PASS | SKIP | Idset | Later | Never    once a shape and generation
    filter(shape, kind)      PASS | Later | Never                   once a shape, kind and generation
    pre_score(shape)         PASS | SKIP                            the same
    score(shape, kind)       0 to 100                               the same; `weight` (1) is the plugin's
    look(job, rank)          PASS | Later    about targets that were chosen; 64 a job and pass
    post_filter(job, view)   None | decisions Preempt               about a job that does not start; first answer counts
    reserve(job, fit)        PASS | Later    before the commit
    unreserve(job, fit)      told            after a failure at any later point, in the reverse order of reserve
    permit(job, fit, now_s)  PASS | Wait | Later                    after the commit
    pre_bind(job, fit)       PASS | Later    when permitted
    bind(job, fit)           a mapping of annotations | SKIP        the same; the first mapping counts
    post_bind(job, fit)      told            of the grant, and of each job that runs already when the scheduler starts
    on_free(job, fit)        told            when a job of which `post_bind` was told has freed everything
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple, Protocol

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Request
from fluxsched.core.quantities import Amounts
from fluxsched.sched.decisions import Preempt
from fluxsched.sched.loading import Option
from fluxsched.sched.pool.placement import Fits, Shape

__all__ = [
    "ARRIVAL", "EVENTS", "FREE", "LATERS_MAX", "LOOKS_MAX", "PASS", "POINTS", "READABLE", "SCORE_MAX", "SKIP", "START",
    "TARGETS", "Fits", "Gate", "GroupSeen", "Idset", "JobSeen", "Kind", "Later", "Never", "Option", "Pass", "Plugin",
    "Preempt", "Request", "Shape", "Skip", "Wait",
]  # fmt: skip

POINTS: Final = (
    "pre_enqueue", "queue_sort", "pre_filter", "filter", "look", "post_filter", "pre_score", "score", "reserve",
    "unreserve", "permit", "pre_bind", "bind", "post_bind", "on_free",
)  # fmt: skip
"""The methods that a plugin may have; it has at least one."""

READABLE: Final = ("user", "bank", "queue", "name")
"""Names that `READS` may have, besides `attributes.system.KEY` (and `.KEY.KEY`) without environment and files.

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
    """Answer that excludes the targets in question, whatever is free there: a job that could then never run is denied.
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
    """The ranks on hosts (RFC 29 hostlist) as `ranks_of("node[1-2]")`."""
    properties: Mapping[str, Idset]


class Plugin(Protocol):
    """Common attributes of plugins, which are classes with some of the POINTS. All but `name` is optional.

    `READS` names what makes jobs of different shapes (READABLE). `weight` is that of its scores. `generation` grows
    whenever its answers about shapes may differ from those before: they are asked for again as they are needed.
    """

    name: ClassVar[str]
    OPTIONS: ClassVar[Mapping[str, Option]]
    READS: ClassVar[Sequence[str]]
