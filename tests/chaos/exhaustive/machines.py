"""The machines of a small world behind symbols: what goes in and comes out is tuples, and so is what they are.

Law: nothing is decided here. A symbol becomes the message that it stands for, encoded and decoded as on its way, and a
machine's effects become symbols. `project` says all that the behaviour of a machine may depend on; `Memo` looks that up
again (search.py compares other histories of the same projection). A set of targets is a `Mask` everywhere, so that the
targets of anything can be exchanged.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator, Mapping
from itertools import permutations
from types import MappingProxyType
from typing import Any, ClassVar, Final, Protocol, TypeAlias

import msgpack

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import GroupChange, ResourceSet
from fluxsched.errors import InvalidValue, Refused, RemoteProtocolError, RPCError
from fluxsched.jobs import states as jobs
from fluxsched.jobs.manager import JobManager
from fluxsched.jobs.queues import QueueConfig
from fluxsched.protocol import framing
from fluxsched.protocol.messages import jobs as alloc
from fluxsched.protocol.messages.jobs import RaiseRequest
from fluxsched.protocol.messages.resource import AcquireRequest
from fluxsched.protocol.sessions import AcquireClient, AcquireServer, to_messages
from fluxsched.resource import effects as resource_effects
from fluxsched.resource.inventory import DEFAULT, EXCLUDE, Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.sched import decisions
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.policy import Option, Start, View
from fluxsched.scheduler.host import FREE
from fluxsched.scheduler.session import (
    ACQUIRE,
    HELLO,
    RAISE,
    READY,
    ErrorResponse,
    Fatal,
    Log,
    OutgoingRequest,
    SchedulerSession,
)
from tests.chaos.checkers.base import Violation
from tests.chaos.wire import cores_of, idset

TARGETS: Final = 3
OTHER: Final = "b"
"""The group beside `default`: it is configured, and empty at first, so that all targets are alike."""
QUEUES: Final = {"d": DEFAULT, "b": OTHER}
NOW_S: Final = 1.0
"""Time stands still: what happens when is what is tried in every order."""

Symbol: TypeAlias = tuple[Any, ...]
Outputs: TypeAlias = tuple[Symbol, ...]


class Mask(int):
    """A set of targets."""

    __slots__ = ()


NONE, ALL = Mask(0), Mask((1 << TARGETS) - 1)
PERMUTATIONS: Final = tuple(permutations(range(TARGETS)))
"""The first leaves all targets where they are."""
_EXCHANGED: Final = tuple(
    tuple(Mask(sum(1 << to for at, to in enumerate(one) if mask >> at & 1)) for mask in range(1 << TARGETS))
    for one in PERMUTATIONS
)
INVERSE: Final = tuple(
    PERMUTATIONS.index(tuple(one.index(target) for target in range(TARGETS))) for one in PERMUTATIONS
)
_COMPOSED: Final = tuple(
    tuple(PERMUTATIONS.index(tuple(second[first[target]] for target in range(TARGETS))) for second in PERMUTATIONS)
    for first in PERMUTATIONS
)
"""Of one after another: by the first and the second."""

_CORES: Final = {"core": "0"}
_R: Final = ResourceSet.parse(
    {
        "version": 1,
        "execution": {
            "R_lite": [{"rank": f"0-{TARGETS - 1}", "children": _CORES}],
            "nodelist": [f"n[0-{TARGETS - 1}]"],
            "starttime": 0.0,
            "expiration": 0.0,
        },
    }
)


def exchanged(value: Any, permutation: int) -> Any:
    """The same with its targets exchanged."""
    if type(value) is Mask:
        return _EXCHANGED[permutation][value]
    if type(value) is tuple:
        return tuple([exchanged(one, permutation) for one in value])
    if type(value) is frozenset:
        return frozenset([exchanged(one, permutation) for one in value])
    return value


def mask(targets: Idset | frozenset[int] | set[int]) -> Mask:
    """As a symbol."""
    return Mask(targets.mask) if isinstance(targets, Idset) else Mask(sum(1 << target for target in targets))


def broken(text: str) -> Violation:
    """What a machine said or did breaks a law."""
    return Violation("exhaustive", text)


class Machine(Protocol):
    """One of those below."""

    def apply(self, symbol: Symbol) -> Outputs: ...

    def project(self) -> tuple[Symbol, Symbol]: ...

    def check(self) -> None: ...


# ---- the resource module, with its ends of the streams


def read_acquire(payload: object, typed: bool) -> Symbol:
    """A response as RFC 28's draft words it: its keys are looked up here, in what travels."""
    said: dict[str, Any] = msgpack.unpackb(framing.pack(payload))
    try:
        if not typed:
            if "resources" in said:
                return "first", mask(set(cores_of(said["resources"]))), mask(idset(said["up"]))
            parts = (mask(idset(said.get(key) or "")) for key in ("up", "down", "shrink"))
            return "change", *parts
        kind = said["type"]
        if kind != "grow":
            if kind not in ("shrink", "online", "offline"):
                raise broken(f"a response of type {kind!r}")
            return kind, mask(idset(said["targets"]))
        joined, online, offline = cores_of(said["resources"]), idset(said["online"]), idset(said["offline"])
    except KeyError as missing:
        raise broken(f"a response without {missing}: {said}") from missing
    if online & offline or online | offline != set(joined):
        raise broken(f"online and offline do not share out the targets of a grow: {said}")
    return "grow", mask(set(joined)), mask(online)


def acquire_payload(symbol: Symbol) -> bytes:
    """The response that was read, for the scheduler's end."""
    kind, *masks = symbol
    texts = [str(Idset(one)) for one in masks]
    if kind == "grow":
        offline = str(Idset(masks[0] & ~masks[1]))
        said: dict[str, Any] = {"resources": _given(masks[0]), "online": texts[1], "offline": offline, "type": kind}
    elif kind == "first":
        said = {"resources": _given(masks[0]), "up": texts[1]}
    elif kind == "change":
        said = {key: text for key, text in zip(("up", "down", "shrink"), texts, strict=True) if text}
    else:
        said = {"type": kind, "targets": texts[0]}
    packed: bytes = msgpack.packb(said)
    return packed


def _given(targets: int) -> dict[str, Any]:
    return _R.restrict(Idset(targets)).to_json()


class ResourceMachine:
    """The resource module with what is stored of it, and its end of each acquirer's stream."""

    def __init__(self) -> None:
        self._rows: dict[tuple[resource_effects.Table, str], Any] = {}
        self._stored: dict[tuple[resource_effects.Table, str], Any] = {}
        self._promised: Symbol = ()
        self._streams: dict[int, AcquireServer] = {}
        self._out: list[Symbol] = []
        self._boot(ALL, ())
        self._commit()
        self._out.clear()

    def apply(self, symbol: Symbol) -> Outputs:
        """One event: what follows, or `refused` alone if nothing does."""
        kind, *values = symbol
        self._out = []
        try:
            getattr(self, f"_{kind}")(*values)
        except (Refused, InvalidValue) as fault:
            return (("refused", fault.errnum),)
        return tuple(self._out)

    # ---- events

    def _acquire(self, peer: int, group: str | None) -> None:
        request = AcquireRequest(group)
        self._streams[peer] = AcquireServer(request.typed, request.accept_update)
        try:
            self._perform(self.module.acquire(peer, group, request.typed))
        except Refused as fault:
            del self._streams[peer]
            self._out.append(("send", peer, ("refused", fault.errnum)))

    def _release(self, peer: int, group: str, targets: Mask) -> None:
        try:
            self._perform(self.module.release(peer, group, Idset(targets), NOW_S))
        except RemoteProtocolError as fault:
            raise broken(f"a release of {Idset(targets)} from {group} is refused: {fault}") from fault

    def _lost(self, peer: int) -> None:
        if self._streams.pop(peer, None) is not None:
            self._perform(self.module.disconnect(peer, NOW_S))

    def _drain(self, targets: Mask) -> None:
        self._perform(self.module.drain(Idset(targets), "broken", None, "ann", NOW_S))

    def _undrain(self, targets: Mask) -> None:
        self._perform(self.module.undrain(Idset(targets), None, None, "ann", NOW_S))

    def _online(self, targets: Mask) -> None:
        self._perform(self.module.set_online(Idset(targets), NOW_S))

    def _offline(self, targets: Mask) -> None:
        self._perform(self.module.set_offline(Idset(targets), NOW_S))

    def _assign(self, targets: Mask, group: str, graceful: bool) -> None:
        self._perform(self.module.assign(Idset(targets), group, NOW_S, graceful=graceful, user="ann"))

    def _include(self, targets: Mask) -> None:
        self._perform(self.module.include(Idset(targets), NOW_S, user="ann"))

    def _hold(self, jobid: int, targets: Mask) -> None:
        self._perform(self.module.hold(jobid, Idset(targets)))

    def _unhold(self, jobid: int, targets: Mask) -> None:
        self._perform(self.module.unhold(jobid, Idset(targets), NOW_S))

    def _publish(self, peer: int) -> None:
        """A turn ends, and the peer has taken what was sent before."""
        stream = self._streams[peer]
        for change in stream.take():
            for message in to_messages(change, stream.typed, ResourceSet.to_json):
                self._out.append(("send", peer, read_acquire(message, stream.typed)))

    def _commit(self) -> None:
        self._stored = dict(self._rows)
        self._promised = self._remembered()

    def _restart(self, online: Mask, held: Symbol) -> None:
        self._rows = dict(self._stored)
        self._streams.clear()
        self._boot(online, held)
        if self._remembered() != self._promised:
            raise broken(f"{self._promised} was stored, and {self._remembered()} is there after a restart")

    def _boot(self, online: Mask, held: Symbol) -> None:
        saved = [resource_effects.Saved(*row, value) for row, value in self._rows.items()]
        inventory, configured = Inventory(_R, "configuration"), {OTHER: EMPTY}
        self.module = ResourceModule(inventory, configured, saved, now_s=NOW_S, online=Idset(online))
        for jobid, targets in held:
            self.module.hold(jobid, Idset(targets))
        self._perform(self.module.start(NOW_S))

    def _remembered(self) -> Symbol:
        """What people were answered: which targets they have drained, and where each belongs."""
        module = self.module
        goals, drains = module._groups.goals, module._drains  # what is excluded is no longer drained
        drained = drains.having(drains.drained, lambda each: not each.for_move)
        return mask(drained - goals[EXCLUDE]), _by_name(goals)

    def _perform(self, effects: list[resource_effects.ResourceEffect]) -> None:
        for one in effects:
            if isinstance(one, resource_effects.ToAcquirer):
                stream = self._streams.get(one.acquirer)  # type: ignore[call-overload]
                if stream is not None:
                    stream.add(one.change)
            elif isinstance(one, resource_effects.Save):
                if one.value is None:
                    self._rows.pop((one.table, one.key), None)
                else:
                    self._rows[one.table, one.key] = one.value
            elif isinstance(one, resource_effects.RaiseJobs):
                self._out.append(("raise", *one.jobids))

    # ---- what it is

    def check(self) -> None:
        self.module.check()

    def project(self) -> tuple[Symbol, Symbol]:
        """All that matters, and what others may know of it: facts."""
        module = self.module
        groups, drains, monitor = module._groups, module._drains, module._monitor
        members = _by_name(groups.members)
        state = (
            members,
            _by_name(groups.leaving),
            _by_name(groups.goals),
            mask(groups.waiting),
            frozenset((name, mask(Idset.of([rank]))) for rank, name in groups.assigned.items()),
            mask(drains.drained),
            mask(drains.having(drains.drained, lambda each: each.for_move)),
            mask(drains.having(drains.drained, lambda each: not each.for_move)),
            mask(monitor.online),
            frozenset((jobid, mask(ranks)) for jobid, ranks in module._target_use._jobs.items()),
            frozenset(module._target_use._raised),
            frozenset(
                (one.acquirer, one.group, one.typed, mask(one.targets), mask(one.unreleased), mask(one.reported.online))
                for one in module._sessions
            ),
            frozenset((_text(row), mask(Idset.of([rank]))) for rank, row in module._moves._rows.items()),
            frozenset((peer, *_stream(stream)) for peer, stream in self._streams.items()),
            _stored(self._rows),
            _stored(self._stored),
            self._promised,
        )
        leaving = {name: ranks for name, ranks in groups.leaving.items() if ranks}
        facts = (
            members,
            _by_name(leaving),
            mask(monitor.online),
            mask(drains.drained),
            frozenset(peer for peer, stream in self._streams.items() if stream.pending),
            self._rows != self._stored,
            tuple(sorted((one.group, one.acquirer, one.typed) for one in module._sessions)),
            mask(groups.waiting),
            _by_name(groups.goals),
            tuple(sorted((jobid, mask(ranks)) for jobid, ranks in module._target_use._jobs.items())),
        )
        return state, facts


def _by_name(sets: Mapping[str, Idset]) -> Symbol:
    return tuple((name, mask(ranks)) for name, ranks in sorted(sets.items()) if ranks)


def _text(row: object) -> str:
    return json.dumps(row, sort_keys=True)


def _stored(rows: Mapping[tuple[resource_effects.Table, str], Any]) -> frozenset[Symbol]:
    """The rows by target; those of groups have none."""
    found = set[Symbol]()
    for (table, key), row in rows.items():
        if table != "group":
            found.add((table, _text(row), mask(Idset(1 << int(key[1:])))))
        else:
            found.add((table, key))
    return frozenset(found)


def _stream(stream: AcquireServer) -> Symbol:
    made = tuple(_change(change) for change in stream._made)
    grow = None if stream._grow is None else mask(stream._grow.ranks)
    sets = mask(stream.targets), mask(stream._online), mask(stream._reported)
    return stream.typed, stream.state.name, *sets, made, grow, bool(stream._updates)


def _change(change: GroupChange) -> Symbol:
    grow = None if change.grow is None else mask(change.grow.ranks)
    return grow, mask(change.shrink), mask(change.online), mask(change.offline)


# ---- the job manager


def jobspec_of(queue: str, targets: Mask) -> Jobspec:
    """A job that wants these very targets, so that every placement is tried, and all are alike."""
    known = _JOBSPECS.get((queue, targets))
    if known is None:
        hosts = [f"n{rank}" for rank in Idset(targets)]
        known = _JOBSPECS[queue, targets] = Jobspec.from_command(
            ["true"], nodes=len(hosts), queue=queue, constraint={"hostlist": hosts}
        )
    return known


_JOBSPECS: dict[tuple[str, int], Jobspec] = {}


class JobsMachine:
    """The job manager with what is stored of it, and what waits for the disk."""

    def __init__(self) -> None:
        self._stored: dict[int, dict[str, Any]] = {}
        self._rows: list[jobs.Persist] = []
        self._after: list[Symbol] = []
        self._promised: Symbol = ()
        self._asked: dict[int, Symbol] = {}
        self._out: list[Symbol] = []
        self._boot()

    def _boot(self) -> None:
        configs: dict[str | None, QueueConfig] = {name: QueueConfig(name, group) for name, group in QUEUES.items()}
        self.manager = JobManager(_no_new_id, configs, inactive_kept_max=0)

    def apply(self, symbol: Symbol) -> Outputs:
        """One event: what follows, or `refused` alone if nothing does."""
        kind, *values = symbol
        self._out = []
        try:
            getattr(self, f"_{kind}")(*values)
        except (Refused, InvalidValue, RemoteProtocolError) as fault:
            return (("refused", type(fault).__name__),)
        return tuple(self._out)

    # ---- events

    def _submit(self, jobid: int, queue: str, targets: Mask) -> None:
        spec = jobspec_of(queue, targets)
        self._perform(self.manager.requests.submit(jobid, spec, userid=1, now_s=NOW_S))
        self._asked[jobid] = queue, targets

    def _cancel(self, jobid: int) -> None:
        self._perform(self.manager.requests.raise_exception(jobid, "cancel", 0, "", 1, NOW_S))

    def _raise(self, jobid: int) -> None:
        """A job ends since its targets left; asked by a scheduler or by the instance."""
        self._perform(self.manager.requests.raise_exception(jobid, "exec", 0, "left", None, NOW_S))

    def _hello(self, peer: int, groups: tuple[str, ...]) -> None:
        for item in self.manager.allocation.hello(peer, groups):
            assert item.R is not None
            ranks, freed = mask(set(cores_of(item.R))), mask(Idset.parse(item.free or ""))
            told = item.id, *self._asked[item.id], ranks, freed
            self._out.append(("send", peer, ("hello", *told)))
        self._out.append(("send", peer, ("hello-end",)))

    def _ready(self, peer: int) -> None:
        _, effects = self.manager.allocation.ready(peer, None, NOW_S)
        self._out.append(("send", peer, ("ready",)))
        self._perform(effects)

    def _lost(self, peer: int) -> None:
        self._perform(self.manager.allocation.scheduler_lost(peer, NOW_S))

    def _granted(self, peer: int, jobid: int, targets: Mask, foreign: Mask) -> None:
        given = _given(targets)
        given["execution"]["starttime"] = NOW_S
        allocation = self.manager.allocation
        self._perform(
            allocation.alloc_granted(peer, jobid, given, None, NOW_S, lambda groups, ranks: ranks & Idset(foreign))
        )

    def _denied(self, peer: int, jobid: int) -> None:
        self._perform(self.manager.allocation.alloc_denied(peer, jobid, "never", NOW_S))

    def _canceled(self, peer: int, jobid: int) -> None:
        self._perform(self.manager.allocation.alloc_canceled(peer, jobid, NOW_S))

    def _ended(self, jobid: int) -> None:
        self._perform(self.manager.execution.finished(jobid, 0, NOW_S, release=True))

    def _finished(self, jobid: int) -> None:
        self._perform(self.manager.execution.finished(jobid, 0, NOW_S))

    def _released(self, jobid: int, targets: Mask, final: bool) -> None:
        self._perform(self.manager.execution.released(jobid, Idset(targets), final, NOW_S))

    def _failed(self, jobid: int) -> None:
        self._perform(self.manager.execution.exec_failed(jobid, "lost", NOW_S))

    def _commit(self) -> None:
        for one in self._rows:
            row = self._stored.setdefault(one.jobid, {"events": [], "jobspec": None, "R": None})
            row["events"] += one.events
            row["jobspec"] = one.jobspec or row["jobspec"]
            row["R"] = one.R or row["R"]
            if one.events[-1]["name"] == "clean":
                del self._stored[one.jobid], self._asked[one.jobid]
        self._rows.clear()
        self._promised = self._remembered()
        self._out += self._after
        self._after = []

    def _restart(self) -> None:
        self._rows.clear()
        self._after.clear()
        self._boot()
        self._asked = {jobid: asked for jobid, asked in self._asked.items() if jobid in self._stored}
        rows = [
            (jobid, row["events"], Jobspec.parse(row["jobspec"]), row["R"])
            for jobid, row in sorted(self._stored.items())
        ]
        restored = self.manager.restore(rows, NOW_S)
        known = {job.id: (job.state.name, mask(job.held)) for job in self.manager.jobs.active.values()}
        for jobid, state, held in self._promised:
            if jobid not in self._stored or (jobid in restored.orphans and known.get(jobid) != (state, held)):
                raise broken(f"job {jobid} was stored in {state} with {held}, and {known.get(jobid)} is there now")
            if state not in ("RUN", "CLEANUP") and known.get(jobid) != (state, held):
                raise broken(f"job {jobid} was stored in {state}, and {known.get(jobid)} is there now")
        self._perform(restored.effects)

    def _remembered(self) -> Symbol:
        active = self.manager.jobs.active.values()
        return tuple(sorted((job.id, job.state.name, mask(job.held)) for job in active))

    def _perform(self, effects: list[jobs.Effect]) -> None:
        for one in effects:
            match one:
                case jobs.Persist():
                    self._rows.append(one)
                case jobs.ToScheduler(peer, alloc.AllocRequest(id=jobid)):
                    self._out.append(("send", peer, ("alloc", jobid, *self._asked_of(jobid))))
                case jobs.ToScheduler(peer, alloc.FreeRequest(jobid, r, final)):
                    self._out.append(("send", peer, ("free", jobid, mask(set(cores_of(r))), final)))
                case jobs.ToScheduler(peer, alloc.SchedCancelRequest(jobid)):
                    self._out.append(("send", peer, ("cancel", jobid)))
                case jobs.TargetsGranted():
                    self._out.append(("hold", one.jobid, mask(one.ranks)))
                case jobs.TargetsFreed():
                    self._after.append(("unhold", one.jobid, mask(one.ranks)))
                case jobs.StartShells():
                    self._after.append(("start", one.jobid, mask(set(cores_of(one.R)))))

    def _asked_of(self, jobid: int) -> Symbol:
        if jobid not in self._asked:  # it is being submitted
            jobspec = self.manager.jobs.active[jobid].jobspec
            assert jobspec is not None
            system = jobspec.raw["attributes"]["system"]
            hosts = system["constraints"]["hostlist"]
            self._asked[jobid] = system["queue"], mask({int(host[1:]) for host in hosts})
        return self._asked[jobid]

    # ---- what it is

    def check(self) -> None:
        self.manager.check()

    def project(self) -> tuple[Symbol, Symbol]:
        """All that matters, and what others may know of it: facts."""
        active = self.manager.jobs.active
        known = frozenset(
            (
                job.id, self._asked[job.id], job.state.name, job.request, mask(job.held), mask(job.ranks),
                job.executing, job.status is None, job.fatal is None,
            )
            for job in active.values()
        )  # fmt: skip
        links = frozenset(
            (
                link.scheduler, link.groups, link.ready, frozenset(link.outstanding),
                tuple((free.id, mask(set(cores_of(free.R))), free.final) for free in link.deferred),
            )
            for link in self.manager.links
        )  # fmt: skip
        stored = frozenset((jobid, _history(row["events"])) for jobid, row in self._stored.items())
        rows = tuple((one.jobid, _history(one.events)) for one in self._rows)
        state = known, links, stored, rows, tuple(self._after), self._promised, frozenset(self._asked.items())
        holds = tuple(sorted((job.id, mask(job.held)) for job in active.values() if job.held))
        outstanding = frozenset(jobid for link in self.manager.links for jobid in link.outstanding)
        facts = (
            tuple(sorted((job.id, job.state.name, job.executing, job.status is None) for job in active.values())),
            holds,
            outstanding | frozenset(self._stored),
            bool(self._rows or self._after),
            frozenset(link.scheduler for link in self.manager.links),
            {jobid: QUEUES[queue] for jobid, (queue, _) in self._asked.items()},
            frozenset(one[1] for one in self._after if one[0] == "start"),
        )
        return state, facts


def _no_new_id(now_s: float) -> int:
    raise AssertionError("no job is submitted again here")


def _history(events: list[jobs.Event]) -> Symbol:
    """What a log says, in a form that does not grow: of what may repeat only the first."""
    found: dict[Symbol, None] = {}
    for event in events:
        context = event.get("context", {})
        match event["name"]:
            case "flux-restart" | "priority":
                continue
            case "release":
                text = context["ranks"]
                shown: Symbol = ("release", "all" if text == "all" else mask(idset(text)))
            case "exception":
                shown = "exception", context["type"]
            case name:
                shown = (name,)
        found[shown] = None
    return tuple(found)


# ---- a scheduler


class Greedy:
    """Starts whatever fits."""

    name: ClassVar[str] = "greedy"
    OPTIONS: ClassVar[Mapping[str, Option]] = MappingProxyType({})

    def schedule(self, view: View, now_s: float) -> Iterator[Start]:
        """The jobs in order, each where it wants to be."""
        for job in list(view.queue):
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)


class SchedulerMachine:
    """A scheduler's session over one group, with its scheduler, ledger and acquire stream."""

    def __init__(self) -> None:
        self._out: list[Symbol] = []
        self._kept: list[Symbol] = []
        self._calls: dict[str, OutgoingRequest] = {}
        self._asked: dict[int, Symbol] = {}
        self._ended = ""
        self._has_begun = False

    def apply(self, symbol: Symbol) -> Outputs:
        """One message, or a turn of its own."""
        kind, *values = symbol
        self._out = []
        handler = getattr(self, f"_{kind.replace('-', '_')}", None)
        if handler is None:
            self._told(symbol)
        else:
            handler(*values)
        if kind != "begin":
            if self._session.kept:
                self._kept.append(symbol)
            self._perform(self._session.work(1000))
            if not self._session.kept:
                self._kept.clear()
        return tuple(self._out)

    # ---- messages

    def _begin(self, group: str | None) -> None:
        name = DEFAULT if group is None else group
        queues = {queue: at for queue, at in QUEUES.items() if at == name}
        self.scheduler = Scheduler(Greedy(), (name,), queues, notify=False)
        self._stream = AcquireClient(group)
        self._session = SchedulerSession(self.scheduler, {name: self._stream}, _read)
        self._group = self.scheduler.group(name)
        self._has_begun = True
        self._perform(self._session.start())

    def _told(self, symbol: Symbol) -> None:
        """A response of the acquire stream."""
        self._answer(ACQUIRE, acquire_payload(symbol))

    def _refused(self, errnum: int) -> None:
        self._answer(ACQUIRE, None, RPCError("refused", errnum))

    def _hello(self, jobid: int, queue: str, wanted: Mask, targets: Mask, freed: Mask) -> None:
        given = _given(targets)
        given["execution"]["starttime"] = NOW_S
        spec = jobspec_of(queue, wanted)
        self._asked[jobid] = queue, wanted
        item = alloc.HelloResponse(jobid, 16, 1, NOW_S, str(Idset(freed)), given, spec)  # type: ignore[arg-type]
        self._answer(HELLO, item)

    def _hello_end(self) -> None:
        self._answer(HELLO, None, RPCError("", errno.ENODATA))

    def _ready(self) -> None:
        self._answer(READY, alloc.ReadyResponse(0))

    def _raise_failed(self, jobid: int) -> None:
        call = OutgoingRequest(RAISE, RaiseRequest(id=jobid, type="exec", severity=0, note=""))
        self._perform(self._session.answered(call, None, RPCError("it ended", errno.EINVAL), NOW_S))

    def _alloc(self, jobid: int, queue: str, targets: Mask) -> None:
        self._asked[jobid] = queue, targets
        spec = jobspec_of(queue, targets)
        self._receive("sched.alloc", alloc.AllocRequest(jobid, 16, 1, spec, NOW_S))  # type: ignore[arg-type]

    def _free(self, jobid: int, targets: Mask, final: bool) -> None:
        request = framing.pack(alloc.FreeRequest(jobid, _given(targets), final))
        self._receive("sched.free", framing.unpack(request, FREE))

    def _cancel(self, jobid: int) -> None:
        self._receive("sched.cancel", alloc.SchedCancelRequest(jobid))

    def _decide(self) -> None:
        for effect in self._session.decide(NOW_S):
            self._perform([effect])
        self._session.decided()

    def _receive(self, topic: str, message: Any) -> None:
        self._perform(self._session.receive(topic, message, topic, NOW_S))

    def _answer(self, topic: str, answer: Any, error: RPCError | None = None) -> None:
        self._perform(self._session.answered(self._calls[topic], answer, error, NOW_S))

    def _perform(self, effects: Any) -> None:
        for one in effects:
            match one:
                case decisions.Granted():
                    self._out.append(("granted", one.jobid, mask(set(cores_of(one.R)))))
                case decisions.Denied():
                    self._out.append(("denied", one.jobid))
                case decisions.Canceled():
                    self._out.append(("canceled", one.jobid))
                case OutgoingRequest():
                    self._calls[one.topic] = one
                    self._out.append(_called(one))
                case decisions.Raise():
                    self._perform(self._session.outgoing([one]))
                case Fatal(reason):
                    self._ended = reason
                    self._out.append(("end", reason))
                case ErrorResponse(topic, error):
                    if topic != "sched.free" or self._stream.typed:
                        raise broken(f"a scheduler refuses what it is told: {error}")
                    # in the plain dialect a job beyond what was acquired is not taken over, and its end is no news
                case decisions.Annotated() | Log():
                    pass
                case _:
                    raise broken(f"a scheduler asks for {one}")

    # ---- what it is

    def check(self) -> None:
        self.scheduler.check()

    def project(self) -> tuple[Symbol, Symbol]:
        """All that matters, and what others may know of it: facts."""
        if not self._has_begun:
            return ("off",), ("off", "", True, False, frozenset())
        group, ledger, pool = self._group, self._group.ledger, self._group.pool
        waiting = frozenset(job.jobid for queue in group.queues.values() for job in queue.jobs.everyone())
        aside = frozenset(group.set_aside)
        free = Idset.of([rank for rank in pool.ranks if pool.free_ids(rank)[0]])
        held = frozenset((one.jobid, mask(Idset.of(one.parts)), one.must_end) for one in ledger)
        known = waiting | aside | {one.jobid for one in ledger}
        asked = frozenset((jobid, self._asked.get(jobid)) for jobid in waiting | aside)
        state = (
            self._session.state.name,
            tuple(self._kept),
            self._ended,
            (self._stream.group, self._stream.state.name, mask(self._stream.acquired), mask(self._stream.leaving)),
            (mask(pool.ranks), mask(pool.down), mask(free), group.grown, group.changed, mask(group.leaving)),
            held,
            frozenset((jobid, mask(Idset.of([rank]))) for rank, ids in ledger._uncounted.items() for jobid in ids),
            asked,
            aside,
        )
        facts = (
            self._session.state.name,
            group.name,
            self._stream.typed,
            self._session.state.name == "READY" and group.changed and bool(waiting),
            known,
        )
        return state, facts


def _read(jobspec: Any) -> Jobspec:
    assert isinstance(jobspec, Jobspec)
    return jobspec


def _called(call: OutgoingRequest) -> Symbol:
    """A request, read as the other end would."""
    said: dict[str, Any] = msgpack.unpackb(framing.pack(call.message)) if call.message is not None else {}
    match call.topic:
        case "resource.acquire":
            if not call.streaming:
                raise broken("an acquire request that asks for no stream")
            return "acquire", said.get("group")
        case "resource.release":
            return "release", said["group"], mask(idset(said["targets"]))
        case "job-manager.sched-hello":
            return "hello", tuple(said.get("groups") or (DEFAULT,))
        case "job-manager.sched-ready":
            return ("ready",)
        case "job-manager.raise":
            return "raise", said["id"]
    raise broken(f"a scheduler calls {call.topic}")


# ---- machines by what they are


class Memo:
    """A machine's steps, looked up by what it is: each is worked out once, by the machine itself.

    Law: a state is a number; `permuted` has its number after each exchange of targets. A machine is brought to a state
    by what was done to it the first time, so nothing is copied. What holds for targets holds for them exchanged: a step
    of an exchanged state is derived, and each `VERIFIED`th is worked out nevertheless and compared.
    """

    VERIFIED = 64

    def __init__(self, make: Callable[[], Machine], own_checks: bool) -> None:
        self._make = make
        self._own_checks = own_checks
        self.permuted: list[tuple[int, ...]] = []
        self.facts: list[Symbol] = []
        self.states: list[Symbol] = []
        self._numbers: dict[Symbol, int] = {}
        self._origins: list[tuple[int, Symbol] | None] = []
        """The state before, and what was done to it; None for the first."""
        self._others: dict[int, tuple[int, Symbol]] = {}
        """Another origin of a state, the last that was found."""
        self._steps: list[dict[Symbol, tuple[int, Outputs]]] = []
        self._derived = 0
        self.first = self._enter(make().project(), None)

    def __len__(self) -> int:
        return len(self._numbers)

    def step(self, state: int, symbol: Symbol) -> tuple[int, Outputs]:
        """The state after it, and what comes out."""
        found = self._steps[state].get(symbol)
        if found is None:
            found = self._derive(state, symbol)
            self._steps[state][symbol] = found
        return found

    def _derive(self, state: int, symbol: Symbol) -> tuple[int, Outputs]:
        for permutation, other in enumerate(self.permuted[state]):
            there = self._steps[other].get(exchanged(symbol, permutation))
            if there is not None:
                back = INVERSE[permutation]
                self._derived += 1
                derived = self.permuted[there[0]][back], exchanged(there[1], back)
                if self._derived % self.VERIFIED == 0 and derived != (own := self._work_out(state, symbol)):
                    raise broken(f"targets are not alike: {symbol} of {state} makes {own}, exchanged {derived}")
                return derived
        return self._work_out(state, symbol)

    def _work_out(self, state: int, symbol: Symbol) -> tuple[int, Outputs]:
        machine = self.machine(state)
        outputs = machine.apply(symbol)
        if self._own_checks:
            machine.check()
        return self._enter(machine.project(), (state, symbol)), outputs

    def machine(self, state: int) -> Machine:
        """A machine in this state, made by what was done to it."""
        return self._made_by(self._origins[state])

    def _made_by(self, origin: tuple[int, Symbol] | None) -> Machine:
        done = []
        while origin is not None:
            done.append(origin[1])
            origin = self._origins[origin[0]]
        machine = self._make()
        for symbol in reversed(done):
            machine.apply(symbol)
        return machine

    def audit(self, states_max: int) -> int:
        """Compare what follows after two histories of one state, of so many states; returns how many steps there were.

        Raises Violation where `project` left out something that matters.
        """
        compared = 0
        every = max(1, len(self._others) // states_max)
        for state, origin in list(self._others.items())[::every]:
            for symbol, known in list(self._steps[state].items()):
                machine = self._made_by(origin)
                try:
                    found = machine.apply(symbol), self._numbers.get(machine.project()[0])
                except Violation as fault:
                    found = (("broken", str(fault)),), None
                if found != known[::-1]:
                    what = f"{symbol} after two histories of one state makes {found[0]} and {known[1]}"
                    raise broken(f"{what}: {self.states[state]}")
                compared += 1
        return compared

    def _enter(self, projected: tuple[Symbol, Symbol], origin: tuple[int, Symbol] | None) -> int:
        state, facts = projected
        number = self._numbers.get(state)
        if number is not None:
            if origin is not None:
                self._others[number] = origin
            return number
        images = [exchanged(state, permutation) for permutation in range(len(PERMUTATIONS))]
        for permutation, image in enumerate(images):
            if image not in self._numbers:
                self._numbers[image] = len(self.states)
                self.states.append(image)
                self.facts.append(exchanged(facts, permutation))
                self.permuted.append(())
                self._steps.append({})
                before = None
                if origin is not None:
                    before = self.permuted[origin[0]][permutation], exchanged(origin[1], permutation)
                self._origins.append(before)
        numbers = [self._numbers[image] for image in images]
        for composed, own in zip(_COMPOSED, numbers, strict=True):
            self.permuted[own] = tuple([numbers[other] for other in composed])
        return numbers[0]


class Values:
    """Numbers for values that are no machine: what is under way, what runs, what was told."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.permuted: list[tuple[int, ...]] = []
        self._numbers: dict[Any, int] = {}

    def number(self, value: Any) -> int:
        """That of a value; its exchanges get theirs."""
        known = self._numbers.get(value)
        if known is not None:
            return known
        images = [exchanged(value, permutation) for permutation in range(len(PERMUTATIONS))]
        for image in images:
            if image not in self._numbers:
                self._numbers[image] = len(self.values)
                self.values.append(image)
                self.permuted.append(())
        numbers = [self._numbers[image] for image in images]
        for composed, own in zip(_COMPOSED, numbers, strict=True):
            self.permuted[own] = tuple([numbers[other] for other in composed])
        return numbers[0]
