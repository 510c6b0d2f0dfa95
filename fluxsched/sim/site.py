"""The simulated site: its machine, with groups, queues and switches, the events that change its targets, and the
production parts that serve it (resource module, scheduler session, scheduler), joined in memory.

The machine has equal targets, those of an R, or the trace's own. Of events `do` is drain, undrain, offline, online,
assign or include, as an administrator or an agent would cause them, or one of two that are made of these: `outage` (the
targets are gone for a while, and so are the jobs on them) and `maintenance` (an outage that is planned as long as
`notice` before it begins, like one of `fluxsched outage add`).

Law: resources and configuration are read by the instance's own readers, so a site simulates with its own files; hosts
in them that the machine does not have are left out. The file of events is ours, so every fault in it is an error with
its line, all at once. Where outages of a target overlap it is back when the last of them ends.

In the system, what would travel as a message passes as the value that it carries, and what follows from it is done
before anything else, in order; time is an argument. The resource module learns what jobs hold only if a site file moves
targets.

Jobspecs of the jobs of a trace.

Law: queues and banks decide as in an instance (`jobs.queues`): defaults, requirements and limits are theirs; a job that
they would refuse is refused here with their words. No rule is written here.

A plugin policy in our process: an exception, or an exit, becomes a refusal that names it.

Law: a bug of ours is never hidden. A simulation in which only policies of ours take part is not guarded. What a policy
does beyond Python's control (`os._exit`, a crash in C, a loop) cannot be noticed here: `policy check` runs
it in a separate process.
"""

from __future__ import annotations

import errno
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from fluxsched.config.discovery import MachineTopology
from fluxsched.config.inventory import Sources, build_inventory, fake_resources, read_resources
from fluxsched.config.policies import check_policies, composed
from fluxsched.config.reader import banks_of, load_config, queue_configs, read_file, recorded_config
from fluxsched.config.values import Config
from fluxsched.core.constraint import parse_targets
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobfields import parse_sharing
from fluxsched.core.jobid import exit_code
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.outages import Outage
from fluxsched.core.quantities import parse_duration
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import with_path
from fluxsched.core.topology import (
    SWITCH_LEVELS_MAX,
    SWITCHES_MAX,
    TOPOLOGY_BYTES_MAX,
    Switch,
    Topology,
    parse_topology_conf,
)
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused, RPCError
from fluxsched.jobs.queues import ANY_BANK, Banks, QueueConfig, Queues
from fluxsched.protocol.messages.jobs import HelloResponse
from fluxsched.protocol.sessions import AcquireClient, AcquireServer
from fluxsched.resource.effects import ResourceEffect, ToAcquirer
from fluxsched.resource.inventory import EXCLUDE, SPARES, Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.sched.decisions import Canceled, DecisionRefused, Denied, Granted, Grown, PluginFailed, Raise, Shrunk
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.fair.accounts import FairSettings
from fluxsched.sched.hooks import Plugin
from fluxsched.sched.loading import policy_line
from fluxsched.sched.policy import Policy
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.sched.registry import has_plugin, split_queues
from fluxsched.scheduler.session import (
    ACQUIRE,
    HELLO,
    RAISE,
    RELEASE,
    SHRINK,
    Effects,
    ErrorResponse,
    Fatal,
    OutgoingRequest,
    SchedulerSession,
    SessionEffect,
)
from fluxsched.sim.traces import Ask, Machine, Trace, TraceJob, machine_of, parts_jobspec
from fluxsched.system.files import read_text

DEFAULT: Final = "default"

QUEUES_SHOWN: Final = 10
"""Queues of a trace that an error names."""


@dataclass(frozen=True, slots=True)
class Site:
    """The resources, the groups beside `default`, the queues and the default queue; which banks there are, what is
    settled about fair shares, and how long a preempted job may take to end.
    """

    resources: ResourceSet
    groups: Mapping[str, Idset] = field(default_factory=dict)
    queues: Mapping[str | None, QueueConfig] = field(default_factory=dict)
    default_queue: str | None = None
    unsatisfiable: str = WAIT
    banks: Banks = ANY_BANK
    fair: FairSettings | None = None
    preempt_timeout_s: float = PREEMPT_TIMEOUT_S

    @property
    def acquired(self) -> list[str]:
        """The groups that the scheduler acquires: all but `exclude`."""
        return [DEFAULT, *(name for name in self.groups if name not in (DEFAULT, EXCLUDE, SPARES))]

    def under(self, specs: str, trace: Trace) -> tuple[Site, str]:
        """Return this site under the policies `SPEC;QUEUE=SPEC;...`, and these complete with what queues have
        configured.

        Without a configuration a queue is one that the trace names. Raises InvalidValue naming policy or queue.
        """
        _, own = check_policies(specs)
        named = {name: queue for name, queue in self.queues.items() if name is not None}
        if named or not own:
            return self, composed(specs, self.acquired, named)
        there = {str(job.queue) for job in trace.jobs if job.queue is not None}
        if missing := [name for name in own if name not in there]:
            known = ", ".join(sorted(there)[:QUEUES_SHOWN]) or "none"
            raise InvalidValue(f"queue {missing[0]!r} has a policy, but no jobs: {trace.name} has queues {known}")
        return replace(self, queues={None: QueueConfig(), **{name: QueueConfig(name) for name in own}}), specs


def site_of(
    trace: Trace,
    *,
    procs: int | None = None,
    nodes: int | None = None,
    cores: int | None = None,
    gpus: int | None = None,
    r_path: Path | None = None,
    config_path: Path | None = None,
) -> Site:
    """`procs` one-core targets, `nodes` of `cores` and `gpus`, the R in a file, the configured or the trace's machine.

    Raises InvalidValue when several of them are given, or none and the trace does not say what it ran on.
    """
    machine = machine_of(procs, nodes, cores, gpus, r_path)
    if config_path is not None:
        return _configured(config_path, r_path, machine, trace)
    if r_path is not None:
        return Site(read_resources(r_path))
    return Site(fake_resources(_spec(machine or _recorded(trace))))


def _configured(config_path: Path, r_path: Path | None, machine: Machine | None, trace: Trace) -> Site:
    """Return groups and queues of a configuration, on the machine given beside it, else on its own, else on the
    trace's.
    """
    config, faults = read_file(config_path)
    if r_path is None and machine is None and not (config.resource.path or config.resource.entries):
        machine = _recorded(trace)
    fake = None if machine is None else _spec(machine)
    return _site(config, build_inventory(config, r_path=r_path, fake=fake, topology=_nowhere, known=faults))


def recorded_site(raw: Mapping[str, Any], resources: ResourceSet) -> Site:
    """Return the site of a record: these resources under a configuration as `config.get` has it."""
    config, faults = recorded_config(raw)
    return _site(config, build_inventory(config, given=resources, topology=_nowhere, known=faults))


def changed_site(config_path: Path, resources: ResourceSet) -> Site:
    """Return these resources under another configuration, which may define others itself."""
    config, faults = read_file(config_path)
    given = None if config.resource.path or config.resource.entries else resources
    return _site(config, build_inventory(config, given=given, topology=_nowhere, known=faults))


def _site(config: Config, found: Sources) -> Site:
    return Site(
        found.inventory.resources, found.groups, queue_configs(config), config.defaults.queue, config.unsatisfiable,
        banks_of(config), config.fair, config.preempt_timeout_s,
    )  # fmt: skip


def _recorded(trace: Trace) -> Machine:
    if trace.machine is None:
        raise InvalidValue(f"{trace.name} does not define a machine: give procs, nodes or an R")
    return trace.machine


def _spec(machine: Machine) -> str:
    return f"{machine.targets}x{machine.cores}+{machine.gpus}"


def _nowhere() -> MachineTopology:
    """Return no topology: simulated targets are not on this machine."""
    return MachineTopology("", (), (), "simulated")


# ---- switches

_MADE_UP: Final = re.compile(r"[1-9][0-9]{0,8}(x[1-9][0-9]{0,8})*")


def with_switches(resources: ResourceSet, source: str) -> ResourceSet:
    """Return the machine under the switches of a file (Slurm's topology.conf, or `[topology]` of a `.toml`), or made-up
    ones: `16x8` are leaves of 16 targets, 8 of them under a switch, and all under one root. Raises InvalidValue.
    """
    if _MADE_UP.fullmatch(source):
        return resources.with_topology(_made_up(resources, [int(part) for part in source.split("x")]))
    path = Path(source)
    if path.suffix == ".toml":
        topology = load_config(path).network.topology
    else:
        topology = parse_topology_conf(read_text(path, "topology", TOPOLOGY_BYTES_MAX), source).topology
    there = topology.restrict(resources.nodelist.hosts)
    if not there:
        raise InvalidValue(f"{source}: none of its hosts is a target here: these are {resources.nodelist}"[:400])
    return resources.with_topology(there)


def _made_up(resources: ResourceSet, widths: list[int]) -> Topology:
    if len(widths) >= SWITCH_LEVELS_MAX:
        raise LimitExceeded(f"{len(widths)} levels of switches and a root are more than {SWITCH_LEVELS_MAX} levels")
    hosts, width = resources.nodelist.hosts, widths[0]
    count = -(-len(hosts) // width)
    if 2 * count > SWITCHES_MAX:
        raise LimitExceeded(f"leaves of {width} targets are {count} for {len(hosts)}: above {SWITCHES_MAX // 2}")
    found = [Switch(f"leaf{at}", Hostlist(hosts[at * width : (at + 1) * width])) for at in range(count)]
    level = [switch.name for switch in found]
    for height, width in enumerate([*widths[1:], len(hosts)], 1):
        if len(level) == 1:
            break
        above = [level[at : at + width] for at in range(0, len(level), width)]
        root = len(above) == 1
        names = ["root"] if root else [f"level{height}-{at}" for at in range(len(above))]
        made = [Switch(name, switches=tuple(below)) for name, below in zip(names, above, strict=True)]
        found += made
        level = [switch.name for switch in made]
    return Topology(found)


# ---- events of the site

SITE_BYTES_MAX = 1 << 26
"""A million events of 64 bytes: a change every minute for two years."""

FAULTS_SHOWN_MAX = 20
"""Enough to fix at a time."""

OUTAGE: Final = "strike"
"""The step of an outage that ends jobs: the targets go offline and take the jobs there with them."""

_PLAIN = {
    "drain": {"reason"}, "undrain": set(), "offline": set(), "online": set(), "assign": {"group", "graceful"},
    "include": {"graceful"}, "outage": {"for"}, "maintenance": {"for", "notice"},
}  # fmt: skip
_ENDED_BY = {OUTAGE: "online"}
_ALWAYS = {"at", "do", "targets"}
_NEEDED = {"assign": "group", "outage": "for", "maintenance": "for"}


PLAN: Final = "plan"
"""The step at which an outage is planned, `in_s` before it begins."""


class SiteEvent(NamedTuple):
    """One change: `do` is a plain one, OUTAGE or PLAN."""

    when_s: float
    do: str
    targets: Idset
    text: str = ""
    graceful: bool = False
    in_s: float = 0.0
    lasts_s: float = 0.0


def read_site(path: Path, resources: ResourceSet) -> list[SiteEvent]:
    """Return the steps of a file. Raises InvalidValue with a line for each fault."""
    text = read_text(path, "site file", SITE_BYTES_MAX)
    return parse_site(text.splitlines(), str(path), resources)


def parse_site(lines: Iterable[str], name: str, resources: ResourceSet) -> list[SiteEvent]:
    """Return steps in order of time, those of one time in the order of the lines."""
    steps: list[tuple[SiteEvent, int]] = []
    faults: list[str] = []
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            steps += _steps(_load(line), resources)
        except InvalidValue as fault:
            faults.append(f"{name}:{number}: {fault}")
    if faults:
        more = len(faults) - FAULTS_SHOWN_MAX
        raise InvalidValue("\n".join(faults[:FAULTS_SHOWN_MAX] + ([f"{name}: and {more} more"] if more > 0 else [])))
    return _joined(sorted(steps, key=_when_s))


def _when_s(row: tuple[SiteEvent, int]) -> float:
    return row[0].when_s


def _joined(rows: Iterable[tuple[SiteEvent, int]]) -> list[SiteEvent]:
    """Return the steps, in order of time, without the targets of an end that another outage goes on having."""
    open_at: Counter[tuple[str, int]] = Counter()  # by what ends it, and rank
    found: list[SiteEvent] = []
    for _, group in groupby(rows, _when_s):
        same = list(group)
        for step, change in same:
            if change > 0:
                open_at.update((_ENDED_BY[step.do], rank) for rank in step.targets)
        for step, change in same:
            if change < 0:
                open_at.subtract((step.do, rank) for rank in step.targets)
                step = step._replace(targets=Idset.of([rank for rank in step.targets if not open_at[step.do, rank]]))
            if step.targets:
                found.append(step)
    return found


def _load(line: str) -> dict[str, Any]:
    try:
        obj = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidValue("not JSON") from None
    do = obj.get("do") if isinstance(obj, dict) else None
    if not isinstance(do, str) or do not in _PLAIN:
        raise InvalidValue(f"do is {str(do)[:20]!r}, not one of {', '.join(_PLAIN)}")
    assert isinstance(obj, dict)
    if unknown := sorted(obj.keys() - _ALWAYS - _PLAIN[do]):
        allowed = ", ".join(sorted(_ALWAYS | _PLAIN[do]))
        raise InvalidValue(f"{do}: unknown key {', '.join(unknown)[:40]}: the keys are {allowed}")
    if missing := sorted({*_ALWAYS, _NEEDED.get(do, "do")} - obj.keys()):
        raise InvalidValue(f"{do} needs {', '.join(missing)}")
    for key in ("targets", "group", "reason"):
        if not isinstance(obj.get(key, ""), str):
            raise InvalidValue(f"{key} is not a text")
    return obj


def _steps(obj: dict[str, Any], resources: ResourceSet) -> list[tuple[SiteEvent, int]]:
    """Return the steps of a line; 1 with what lasts until a step with -1, else 0."""
    at_s = _time(obj, "at")
    targets = parse_targets(obj["targets"], resources)
    if not targets:
        raise InvalidValue("no targets: name at least one")
    do: str = obj["do"]
    if do == "outage":
        return [(SiteEvent(at_s, OUTAGE, targets), 1), (SiteEvent(at_s + _time(obj, "for"), "online", targets), -1)]
    if do == "maintenance":
        lasts_s, told_s = _time(obj, "for"), max(0.0, at_s - _time(obj, "notice"))
        plan = SiteEvent(told_s, PLAN, targets, "maintenance", in_s=at_s - told_s, lasts_s=lasts_s)
        return [
            (plan, 0),
            (SiteEvent(at_s, OUTAGE, targets), 1),
            (SiteEvent(at_s + lasts_s, "online", targets), -1),
        ]
    text = obj.get("group") or obj.get("reason") or ""
    return [(SiteEvent(at_s, do, targets, text, bool(obj.get("graceful"))), 0)]


def _time(obj: dict[str, Any], key: str) -> float:
    try:
        seconds = parse_duration(obj.get(key, 0))
    except InvalidValue as fault:
        raise InvalidValue(f"{key}: {fault}") from None
    if seconds == float("inf"):
        raise InvalidValue(f"{key}: give a finite time")
    return seconds


def effects_of(step: SiteEvent, module: ResourceModule, now_s: float) -> list[ResourceEffect]:
    """Return the effects of the event, as the resource module reports them."""
    targets = step.targets
    match step.do:
        case "drain":
            return module.drain(targets, step.text or None, "update", None, now_s)
        case "undrain":
            return module.undrain(targets, None, "update", None, now_s)
        case "online":
            return [*module.set_online(targets, now_s), *module.advance_outages(now_s)]
        case "plan":
            begin_s = now_s + step.in_s
            name = module.outages.name_for(None)
            outage = Outage(name, targets, begin_s, begin_s + step.lasts_s, reason=step.text)
            return module.add_outage(outage, None, now_s)
        case "assign":
            return module.assign(targets, step.text, now_s, step.graceful)
        case "include":
            return module.include(targets, now_s, step.graceful)
        case _:
            return [*module.advance_outages(now_s), *module.set_offline(targets, now_s)]


# ---- the production parts, joined in memory

ACQUIRER: Final = "scheduler"
"""The one peer of the resource module; it acquires every group."""


def virtual_text(time_s: float) -> str:
    """Return a time of the simulation: `3600 s`."""
    return f"{time_s:.15g} s"


class JobOwner(Protocol):
    """In place of a job manager: what becomes of its jobs."""

    def began(self, granted: Granted) -> None:
        """Record that a job got its resources."""

    def left(self, jobid: int, note: str) -> None:
        """Record that a waiting job was denied or canceled."""

    def raised(self, jobid: int, type: str, for_jobid: int | None) -> None:
        """Record that a running job gets a fatal exception: its targets left the group, or it is preempted for another
        job.
        """

    def grew(self, grown: Grown) -> None:
        """Record that a running job got more."""

    def shrank(self, shrunk: Shrunk) -> None:
        """Record that a running job is to leave targets."""


class SharedBy(NamedTuple):
    """Settings of fair shares and preemption, where a policy asks for them (see `Scheduler`)."""

    fair: FairSettings | None = None
    user_name: Callable[[int], str] = str
    preempt_timeout_s: float = PREEMPT_TIMEOUT_S


SHARED: Final = SharedBy()


class System:
    """One scheduler over all groups of a site, at time `now_s`; `running` are the jobs that it takes over."""

    def __init__(
        self,
        owner: JobOwner,
        resources: ResourceSet,
        policy: Policy,
        groups: Mapping[str, Idset],
        acquired: Sequence[str],
        queues: Mapping[str, str | tuple[str, ...]],
        now_s: float = 0.0,
        policies: Mapping[str, Policy] | None = None,
        unsatisfiable: str = WAIT,
        running: Sequence[HelloResponse] = (),
        sharing: SharedBy = SHARED,
        plugins: Mapping[str, Sequence[Plugin]] | None = None,
    ) -> None:
        self.module = ResourceModule(Inventory(resources, "configuration"), groups, now_s=now_s, online=resources.ranks)
        self.scheduler = Scheduler(
            policy, acquired, queues, policies, notify=False, unsatisfiable=unsatisfiable, time_text=virtual_text,
            fair=sharing.fair, user_name=sharing.user_name, preempt_timeout_s=sharing.preempt_timeout_s,
            plugins=plugins,
        )  # fmt: skip
        self.now_s = now_s
        self.refusal = ""  # what was wrong with the first grow or shrink that was refused
        self._session = SchedulerSession(self.scheduler, {group: AcquireClient(group) for group in acquired}, _read)
        self._owner = owner
        self._running = running
        self._pending: deque[SessionEffect] = deque()
        self._busy = False
        self._streams: dict[str, tuple[OutgoingRequest, AcquireServer]] = {}
        self.pass_on(self.module.start(now_s))
        self.perform(self._session.start())

    # ---- what happens

    def pass_on(self, effects: Iterable[ResourceEffect]) -> None:
        """Pass on the resource module's changes to their acquirer, and perform what follows."""
        for one in effects:
            if isinstance(one, ToAcquirer):
                self._streams[one.group][1].add(one.change)
        for call, server in list(self._streams.values()):
            for change in server.take():
                self.perform(self._session.answered(call, change, None, self.now_s))
        if self._session.has_work:
            self.perform(())

    def submit(self, jobid: int, priority: int, userid: int, t_submit_s: float, jobspec: Jobspec) -> None:
        """Ask for resources for a job, between passes."""
        effects = self.scheduler.alloc(jobid, priority, userid, t_submit_s, jobspec, self.now_s)
        if effects:
            self.perform(effects)

    def free(self, jobid: int) -> None:
        """Free all that a job holds, between passes."""
        effects = self.scheduler.free_all(jobid, self.now_s)
        if effects:
            self.perform(self._session.outgoing(effects))

    def free_part(self, jobid: int, resources: ResourceSet) -> None:
        """Free a part of what a job holds, which goes on, between passes."""
        effects = self.scheduler.free(jobid, resources, False, self.now_s)
        if effects:
            self.perform(self._session.outgoing(effects))

    def send(self, topic: str, message: Any) -> None:
        """Any other request to the scheduler. Raises what would be answered with an error."""
        self.perform(self._session.receive(topic, message, None, self.now_s))

    def run_pass(self, grants_max: int | None = None) -> bool:
        """One pass; it is dropped after `grants_max` grants. False if its policy cannot have asked for another."""
        session, began, may_wake = self._session, self._owner.began, False
        for effect in session.decide(self.now_s):
            if isinstance(effect, Granted):
                began(effect)
                if grants_max is not None:
                    grants_max -= 1
                    if not grants_max:
                        session.drop()
                        break
            elif isinstance(effect, Raise):
                self._owner.raised(effect.jobid, effect.type, effect.for_jobid)
            elif isinstance(effect, Grown | Shrunk):
                self._resize(effect)
            else:
                may_wake = True
                self.perform((effect,))
        if session.decided():
            self.perform(())
        return may_wake

    def _resize(self, effect: Grown | Shrunk) -> None:
        """Carry out a resize, as the job manager would store it."""
        if isinstance(effect, Shrunk):
            self._owner.shrank(effect)
            return
        self._owner.grew(effect)
        further = self.scheduler.grow_stored(effect.jobid, self.now_s)
        if further:
            self.perform(self._session.outgoing(further))

    def perform(self, effects: Effects) -> None:
        """Do what the session asks for, and all that follows, in order."""
        pending, session = self._pending, self._session
        pending.extend(effects)
        if self._busy:
            return  # the loop that is running continues with these
        self._busy = True
        try:
            while pending or session.has_work:
                if pending:
                    self._perform(pending.popleft())
                else:
                    pending.extend(session.work(1))
        finally:
            self._busy = False

    def _perform(self, one: SessionEffect) -> None:
        match one:
            case Granted():
                self._owner.began(one)
            case Denied(jobid, note):
                self._owner.left(jobid, note)
            case Canceled(jobid):
                self._owner.left(jobid, "canceled")
            case OutgoingRequest():
                self._call(one)
            case ErrorResponse(_, error):
                raise error
            case DecisionRefused(note):
                self.refusal = self.refusal or note
            case PluginFailed(note):  # what is simulated without it is of no use, as with a policy that raises
                raise InvalidValue(note)
            case Fatal(reason):
                raise AssertionError(f"the scheduler ends: {reason}")

    def _call(self, call: OutgoingRequest) -> None:
        """Pass a request of the scheduler on to the module that answers it."""
        message = call.message
        if call.topic == ACQUIRE:
            self._streams[call.group] = call, AcquireServer(message.typed, message.accept_update)
            self.pass_on(self.module.acquire(ACQUIRER, message.group, message.typed))
        elif call.topic == RELEASE:
            self.pass_on(self.module.release(ACQUIRER, message.group, Idset.parse(message.targets), self.now_s))
        elif call.topic == RAISE:
            self._owner.raised(message.id, message.type, None)
        elif call.topic == SHRINK:
            self._owner.shrank(Shrunk(message.id, Idset.parse(message.ranks), message.note))
            self.perform(self._session.answered(call, None, None, self.now_s))
        elif call.topic == HELLO:
            for job in self._running:
                self.perform(self._session.answered(call, job, None, self.now_s))
            self.perform(self._session.answered(call, None, RPCError("", errno.ENODATA), self.now_s))
        else:
            self.perform(self._session.answered(call, None, None, self.now_s))

    # ---- questions

    def usable(self) -> Idset:
        """Return the targets that the scheduler may use now."""
        usable = EMPTY
        for group in self._streams:
            usable |= self.module.usable(group)
        return usable

    def usable_cores(self) -> int:
        """Return the number of cores of usable targets."""
        return self.module.resources.restrict(self.usable()).count("core")

    def check(self) -> None:
        """Assert that nothing is held twice."""
        self.module.check()
        self.scheduler.check()


def _read(jobspec: Any) -> Jobspec:
    """Jobs enter with parsed jobspecs; what is told of jobs that run already is as in messages."""
    return jobspec if isinstance(jobspec, Jobspec) else Jobspec.parse(jobspec)


# ---- jobspecs of a trace

JobspecKey: TypeAlias = tuple[Ask, float | None, int | str | None, str | None, float | None, int]

COMMAND: Final = ("simulated",)


class TraceJobspecs:
    """Jobspecs by what decides them: needs, limit, queue, and how they share the machine."""

    def __init__(
        self, queues: Mapping[str | None, QueueConfig], default_queue: str | None, banks: Banks = ANY_BANK
    ) -> None:
        self._banks = banks
        self._queues = Queues(queues, default_queue) if queues else None
        self._asked: dict[Ask, Jobspec] = {}
        self._made: dict[JobspecKey, Jobspec | str] = {}

    def of(self, job: TraceJob) -> Jobspec | str:
        """Return the jobspec, or why an instance would not take the job."""
        key = (job.ask, job.limit_s, job.queue, job.bank, job.preemptible_after_s, job.requeue)
        known = self._made.get(key)
        if known is None:
            known = self._made[key] = self._make_or_refuse(job)
        return known

    def _make_or_refuse(self, job: TraceJob) -> Jobspec | str:
        try:
            return self._make(job)
        except (InvalidValue, Refused) as fault:
            return str(fault)

    def _make(self, job: TraceJob) -> Jobspec:
        base = self._asked.get(job.ask)
        if base is None:
            base = self._asked[job.ask] = _jobspec(job.ask)
        if job.limit_s:
            base = replace(base, duration_s=job.limit_s, raw=with_system(base, "duration", job.limit_s))
        base = _sharing(base, job)
        bank = self._banks.missing_in(base)
        if bank is not None:
            base = _sharing(base, job._replace(bank=bank))
        if self._queues is None:
            return base
        name = None if job.queue is None else str(job.queue)
        if name is not None and name in self._queues.names():
            base = replace(base, queue=name, raw=with_system(base, "queue", name))
        return self._queues.for_submit(base.queue).admit(base)


def _sharing(base: Jobspec, job: TraceJob) -> Jobspec:
    """With what the trace says of how the job shares the machine; it is not repeated in a whole jobspec."""
    bank, after_s, requeue = job.bank, job.preemptible_after_s, job.requeue or None
    if bank is None and after_s is None and requeue is None:
        return base
    for key, value in (("bank", bank), ("preemptible-after", after_s), ("fluxsched.requeue", requeue)):
        if value is not None:
            base = replace(base, raw=with_system(base, key, value))
    return replace(base, sharing=parse_sharing(base.raw["attributes"]["system"]))


def _jobspec(ask: Ask) -> Jobspec:
    if ask.jobspec is not None:
        raw = json.loads(ask.jobspec)
        raw.get("attributes", {}).get("system", {}).get("fluxsched", {}).pop("reservation", None)  # there are none here
        return Jobspec.parse(raw)
    if ask.parts is not None:
        return _of_parts(ask, ask.parts)
    return Jobspec.from_command(
        COMMAND,
        ntasks=None if isinstance(ask.nodes, str) and ask.nslots == 1 else ask.nslots,  # one a node of a range
        cores_per_task=ask.cores,
        gpus_per_task=ask.gpus,
        nodes=ask.nodes,
        exclusive=ask.exclusive,
        constraint=None if ask.constraint is None else json.loads(ask.constraint),
        elastic=ask.elastic,
        max_hops=ask.max_hops,
    )


def _of_parts(ask: Ask, parts: str) -> Jobspec:
    raw = parts_jobspec(parts)
    system = raw["attributes"]["system"]
    if ask.constraint is not None:
        system["constraints"] = json.loads(ask.constraint)
    settled: dict[str, object] = {"elastic": ask.elastic or None, "max-hops": ask.max_hops}
    system["fluxsched"] = {key: value for key, value in settled.items() if value is not None}
    return Jobspec.parse(raw)


def with_system(jobspec: Jobspec, key: str, value: object) -> dict[str, Any]:
    """Return the raw jobspec with one key of `attributes.system` set."""
    return with_path(jobspec.raw, f"attributes.system.{key}", value)


# ---- faults of policies


def exit_text(fault: SystemExit) -> str:
    """Return a text about a policy that has called `sys.exit`."""
    return f"ended the process with status {exit_code(fault)}"


@contextmanager
def policy_faults(policy: str, when: str = "", noun: str = "policy") -> Iterator[None]:
    """Whatever a policy, or another `noun`, raises within becomes an InvalidValue: with the fault, its line, `when`."""
    try:
        yield
    except FluxschedError:
        raise
    except SystemExit as fault:
        raise InvalidValue(f"{noun} {policy} {exit_text(fault)}{when}{_where(fault)}") from fault
    except Exception as fault:  # foreign code: whatever it raises is its author's to know
        text = str(fault)
        said = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
        raise InvalidValue(f"{noun} {policy} raised {said}{_where(fault)}") from fault


def is_foreign(specs: str) -> bool:
    """Return whether `SPEC;QUEUE=SPEC;...` names a policy of a plugin."""
    general, own = split_queues(specs)
    return any(map(has_plugin, (general, *own.values())))


def _where(fault: BaseException) -> str:
    line = policy_line(fault)
    return f" ({line})" if line else ""
