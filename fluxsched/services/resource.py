"""The `resource` service: RFC 28 in both dialects, drain, groups, properties, status, watch and the RFC 44 journal.

Requests become calls of `resource.ResourceModule`, whose effects are performed here: streams through one
`AcquireServer` session an acquirer, rows through the store, and every answer after the store.

Law: a reader of the journal gets every event once, in order: what was sent as history is not sent again as news, and
none is sent before it is on disk. A watcher gets the state of all targets, then what has changed: all that jobs change
within WATCH_EVERY_S is one look at the targets that changed, worded once for all readers who know the same; a slow
reader's changes merge, so what is kept for one is bounded by the machine. Without a stream nothing is gathered.
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from math import inf
from typing import Any, Literal, NamedTuple, cast

import msgspec

from fluxsched.core.constraint import EVERYTHING, GROUP, parse_targets
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.outages import Outage
from fluxsched.core.resources import Children, GroupChange, ResourceSet
from fluxsched.core.topology import EMPTY_TOPOLOGY
from fluxsched.errors import InvalidValue, LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.grants import Grants
from fluxsched.jobs.queues import DEFAULT_GROUP
from fluxsched.jobs.states import NODE_FAILURE
from fluxsched.messaging.peers import Peer, RpcRequest
from fluxsched.messaging.router import Router, forget
from fluxsched.protocol import framing
from fluxsched.protocol.messages.instance import MachineChange
from fluxsched.protocol.messages.resource import (
    AssignRequest,
    DrainInfo,
    DrainReason,
    DrainRequest,
    ExpirationUpdateRequest,
    GroupInfo,
    GroupsResponse,
    IncludeRequest,
    MoveResponse,
    PartDrainInfo,
    PlannedOutage,
    PropertyRequest,
    ReleaseRequest,
    SchedStatusResponse,
    SpareInfo,
    StatusResponse,
    TargetsRequest,
    TargetsResponse,
    UndrainRequest,
)
from fluxsched.protocol.sessions import AcquireServer, AcquireState, read_acquire, to_messages
from fluxsched.resource.drain import ADD, PROGRAM_USERS, DrainReasons, checked_mode, drained_text
from fluxsched.resource.effects import (
    HISTORY_EVENTS_MAX,
    AcquisitionEnded,
    Journal,
    JournalEvent,
    RaiseJobs,
    ResourceEffect,
    Save,
    ToAcquirer,
)
from fluxsched.resource.inventory import GroupView, Inventory
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.outages import OutageRecord
from fluxsched.resource.parts import PartDrain, PartsRequest
from fluxsched.resource.spares import SpareTargets
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.module_processes import ModuleTable
from fluxsched.store.store import Store
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, Turns

log = logger("resource")

WITHHOLD = "[resource] withhold"
"""Reason of cores that the configuration withholds."""

PRINTS_KEPT = 4
"""Number of resource sets whose JSON is kept: the whole, and those acquired by a few groups."""


class Acquirer:
    """One `resource.acquire` stream: the request that it answers and the session that words the answers."""

    __slots__ = ("group", "request", "session")

    def __init__(self, request: RpcRequest, session: AcquireServer, group: str | None) -> None:
        self.request = request
        self.session = session
        self.group = group


class ResourceService:
    """Serves `resource.*`; other services reach the module through it."""

    def __init__(
        self,
        module: ResourceModule,
        effects: JobEffects,
        router: Router,
        store: Store,
        keep_expiration: Callable[[float, float], None],
        modules: ModuleTable,
        made_up: Callable[[ResourceSet], Idset],
    ) -> None:
        """`made_up` returns the targets that are not this machine."""
        self.module = module
        self.made_up = made_up
        self._modules = modules
        self._queues = effects.manager.queues
        self._grants = effects.manager.grants
        self._is_muted = False
        self.changed: list[Callable[[], None]] = []
        """Functions called when anything about the targets may have changed, except the resources held by jobs."""
        self._turns = turns = effects.turns
        self._slow = SlowReaders(router, turns)
        self._store = store
        self._raise_jobs = effects.raise_jobs
        self._keep_expiration = keep_expiration
        self._acquirers: dict[Hashable, Acquirer] = {}
        self._journal = JournalService(
            router, store, lambda: module.journal.events, lambda: self.printed(module.resources)
        )
        self._prints: deque[tuple[ResourceSet, dict[str, Any]]] = deque(maxlen=PRINTS_KEPT)
        router.serve(self._handlers())
        turns.at_end(self.publish)
        self.watch = ResourceWatch(self, self._grants, router, turns)
        effects.held.append(self.held)
        effects.unheld.append(self.unheld)

    def _handlers(self) -> dict[str, Callable[[RpcRequest], None]]:
        return {
            "resource.acquire": self._acquire,
            "resource.release": self._release,
            "resource.drain": self._drain,
            "resource.undrain": self._undrain,
            "resource.assign": self._assign,
            "resource.include": self._include,
            "resource.groups": self._groups,
            "resource.targets": self._resolve,
            "resource.status": self._status,
            "resource.sched-status": self.sched_status,
            "resource.property-add": self._property_add,
            "resource.property-remove": self._property_remove,
            "resource.expiration-update": self._expiration_update,
        }

    # -- acquisition --------------------------------------------------------------------------------------------

    def _acquire(self, request: RpcRequest) -> None:
        wanted = read_acquire(request.message)
        self._modules.check_acquirer((wanted.group or DEFAULT_GROUP,), request.peer)
        session = AcquireServer(wanted.typed, wanted.accept_update, wanted.accept_parts)
        acquirer = Acquirer(request, session, wanted.group)
        request.open_stream(lambda: self._end_acquirer(request))
        self._acquirers[request] = acquirer
        try:
            effects = self.module.acquire(request, wanted.group, wanted.typed)
        except Exception:
            del self._acquirers[request]
            raise
        self.perform(effects)

    def _end_acquirer(self, request: RpcRequest) -> None:
        if self._acquirers.pop(request, None) is not None:
            self.perform(self.module.disconnect(request, self._turns.wall_s))

    def _release(self, request: RpcRequest) -> None:
        wanted = request.payload(ReleaseRequest)
        targets = Idset.parse(wanted.targets)
        acquirer = self._acquirer_of(request.peer, wanted.group)
        if acquirer is None:
            raise RemoteProtocolError(
                f"resource.release: group {wanted.group!r} targets {wanted.targets}: not acquired by this peer"
            )
        self.perform(self.module.release(acquirer.request, wanted.group, targets, self._turns.wall_s))
        self.answer(request)

    def _acquirer_of(self, peer: Peer, group: str) -> Acquirer | None:
        for acquirer in self._acquirers.values():
            if acquirer.request.peer is peer and acquirer.group == group:
                return acquirer
        return None

    # -- administration -----------------------------------------------------------------------------------------

    def targets(self, text: str, among: Idset | None = None) -> Idset:
        """Return the targets that a text names (`core.targets`); of its sets those that are `among` them, if given.

        Raises InvalidValue naming all that is not known.
        """
        return parse_targets(text, self.module.resources, self._look_up, among)

    def _look_up(self, kind: str, name: str) -> Idset:
        if kind == GROUP:
            return self.module.targets_of_group(name)
        config, resources = self._queues.select(name, False, "list the targets of")[0].config, self.module.resources
        members = EMPTY
        for group in config.groups:
            members |= self.module.targets_of_group(group)
        requires = config.requires or EVERYTHING
        return requires.match(members, resources.properties, resources.ranks_of)

    def group_for(self, queue: str, targets: Idset) -> str:
        """Return the group of a queue to which targets are to be dedicated. Raises Refused (ENOENT), and InvalidValue
        naming those on which its jobs could not run.
        """
        config, resources = self._queues.select(queue, False, "dedicate targets to")[0].config, self.module.resources
        requires = config.requires or EVERYTHING
        if other := targets - requires.match(targets, resources.properties, resources.ranks_of):
            described = self.module.targets.describe(other)
            raise InvalidValue(f"cannot dedicate {described} to queue {queue!r}: its jobs require {requires}")
        return config.group

    def _resolve(self, request: RpcRequest) -> None:
        targets = self.targets(request.payload(TargetsRequest).targets)
        request.respond(TargetsResponse(str(targets)))

    def _drain(self, request: RpcRequest) -> None:
        wanted = request.payload(DrainRequest)
        targets = self.targets(wanted.targets, self.module.drainable)
        if not targets and wanted.targets:
            raise Refused(f"cannot drain {wanted.targets}: its targets are excluded or lost, or there are none")
        now_s = self._turns.wall_s
        until_s = inf if wanted.for_ is None else now_s + wanted.for_
        if parts := asked_parts(wanted):
            asked = PartsRequest(targets, parts, wanted.reason, wanted.mode, request.who, now_s, until_s)
            self.perform(self.module.drain_parts(asked))
        else:
            self.perform(self.module.drain(targets, wanted.reason, wanted.mode, request.who, now_s, until_s))
        self.answer(request)

    def _undrain(self, request: RpcRequest) -> None:
        wanted = request.payload(UndrainRequest)
        if parts := asked_parts(wanted):
            targets = self._present(wanted.targets)
            now_s = self._turns.wall_s
            asked = PartsRequest(targets, parts, wanted.reason, wanted.mode, request.who, now_s, only=wanted.only)
            self.perform(self.module.undrain_parts(asked))
            self.answer(request)
            return
        targets = self.targets(wanted.targets, self.module.drained_for(wanted.only))
        if not targets and wanted.targets:
            if checked_mode(wanted.mode, "undrain") == "none":
                none = f"none of its targets is {drained_text(wanted.only)}"
                raise Refused(f"cannot undrain {wanted.targets}: {none}", errno.EEXIST)
        else:
            now_s = self._turns.wall_s
            self.perform(self.module.undrain(targets, wanted.reason, wanted.mode, request.who, now_s, wanted.only))
        self.answer(request)

    def _assign(self, request: RpcRequest) -> None:
        wanted = request.payload(AssignRequest)
        self._move(request, self._present(wanted.targets), wanted.group, wanted.graceful)

    def _include(self, request: RpcRequest) -> None:
        wanted = request.payload(IncludeRequest)
        self._move(request, self._present(wanted.targets), None, wanted.graceful)

    def _present(self, text: str) -> Idset:
        return self.targets(text, self.module.targets.present)

    def _move(self, request: RpcRequest, targets: Idset, group: str | None, graceful: bool) -> None:
        now_s, user = self._turns.wall_s, request.who
        there = self.module.report.settled(targets, group)
        if group is None:
            self.perform(self.module.include(targets, now_s, graceful=graceful, user=user))
        else:
            self.perform(self.module.assign(targets, group, now_s, graceful=graceful, user=user))
        state = self.module.report.move_state(targets)
        moved = state.moved - there
        ending = sorted(self.module.report.ending(targets))
        done = MoveResponse(str(moved), str(state.leaving), str(state.draining), str(there), ending)
        self.answer(request, done)

    def _property_add(self, request: RpcRequest) -> None:
        self.perform(self.module.property_add(self._properties(request), self._turns.wall_s))
        self.answer(request)

    def _property_remove(self, request: RpcRequest) -> None:
        self.perform(self.module.property_remove(self._properties(request), self._turns.wall_s))
        self.answer(request)

    def _properties(self, request: RpcRequest) -> dict[str, Idset]:
        properties = request.payload(PropertyRequest).properties
        return {name: self._present(text) for name, text in properties.items()}

    def _expiration_update(self, request: RpcRequest) -> None:
        expiration_s = request.payload(ExpirationUpdateRequest).expiration
        self.set_expiration(expiration_s)
        self._keep_expiration(expiration_s, self._turns.wall_s)
        self.answer(request)

    def drain_host(self, host: str, reason: str, what: str) -> None:
        """Drain the targets of a host where a program of the site has failed, as the user `fluxsched:WHAT`, which no
        account can be; other reasons stay beside this one.
        """
        self.perform(self.program_drains(host, reason, f"{PROGRAM_USERS}{what}"))

    def program_drains(self, host: str, reason: str, user: str) -> list[ResourceEffect]:
        """Drain the targets of a host as such a user; there is no effect if all are drained for this already."""
        targets = self.module.resources.ranks_of(host) & self.module.drainable
        return self.module.drain(targets, reason, ADD, user, self._turns.wall_s) if targets else []

    def set_expiration(self, expiration_s: float) -> None:
        """Change when the whole resource set ends (seconds since the epoch, 0 for never)."""
        self.perform(self.module.set_expiration(expiration_s, self._turns.wall_s))

    def reload(
        self, inventory: Inventory, groups: Mapping[str, Idset], outages: Iterable[Outage], *, force: bool
    ) -> None:
        """Use another inventory and its configuration. Raises Refused when that cannot be."""
        self.perform(self.module.reload(inventory, groups, self._turns.wall_s, force, outages))

    def mute(self) -> None:
        """Send acquirers no further changes: the instance is being shut down, target by target."""
        self._is_muted = True
        self.module.spares.stop()

    # -- jobs ---------------------------------------------------------------------------------------------------

    def held(self, jobid: int, ranks: Idset) -> None:
        """Record that a job holds these targets."""
        self.watch.note_jobs(ranks)
        self.module.hold(jobid, ranks)

    def unheld(self, released: Sequence[tuple[int, Idset]]) -> None:
        """Record that each of these jobs no longer holds these targets."""
        unhold, now_s = self.module.unhold, self._turns.wall_s
        for jobid, ranks in released:
            self.watch.note_jobs(ranks)
            effects = unhold(jobid, ranks, now_s)
            if effects:  # rarely: targets that leave and were waited for
                self.perform(effects)

    # -- reading ------------------------------------------------------------------------------------------------

    def _status(self, request: RpcRequest) -> None:
        status = self.module.report.status()
        drain = drain_lines(status)
        sets = {name: str(status[name]) for name in ("online", "offline", "exclude", "torpid", "lost")}
        groups = {name: str(targets) for name, targets in status["groups"].items()}
        sets["made_up"] = str(self.made_up(status["R"]))
        parts = part_lines(self.module.parts.report(), self._grants)
        replaced = spare_lines(self.module.spares)
        sets["spares"] = str(self.module.spares.all)
        request.respond(
            StatusResponse(
                R=self.printed(status["R"]),
                drain=drain,
                groups=groups,
                parts=parts,
                replaced=replaced,
                withheld=withheld_lines(self.module),
                **sets,
            )
        )

    def sched_status(self, request: RpcRequest) -> None:
        """Respond with the resources that schedulers may use, those of them that are down, and those that are
        allocated.
        """
        status = self.module.report.sched_status(allocated(self._grants, self.module.resources))
        parts = {name: self.printed(resources) for name, resources in status.items()}
        spares, made_up = self.module.spares, self.made_up(status["all"])
        if spares.all:
            idle = self.module.resources.restrict(spares.idle)
            parts["spare"], made_up = self.printed(idle), made_up | self.made_up(idle)
        request.respond(SchedStatusResponse(**parts, made_up=str(made_up), replaced=spare_lines(spares)))

    def _groups(self, request: RpcRequest) -> None:
        request.respond(GroupsResponse([group_info(group) for group in self.module.report.groups()]))

    # -- effects ------------------------------------------------------------------------------------------------

    def perform(self, effects: Iterable[Any]) -> None:
        """Perform the module's effects, in order."""
        for one in effects:
            match one:
                case ToAcquirer(acquirer=key, change=change):
                    self._to_acquirer(key, change)
                case Journal(event=event):
                    self._journal.add(event)
                case Save(table=table, key=key, value=None):
                    self._store.remove("saved", (table, key))
                case Save(table=table, key=key, value=value):
                    self._store.add("saved", (table, key, msgspec.json.encode(value)))
                case RaiseJobs(jobids=jobids, note=note):
                    self._raise_jobs(jobids, note, NODE_FAILURE)
                case AcquisitionEnded(acquirer=key, errnum=errnum, text=text):
                    if (acquirer := self._acquirers.pop(key, None)) is not None:
                        acquirer.request.error(errnum, text)
        for changed in self.changed:
            changed()
        self._turns.wake()

    def _to_acquirer(self, key: Hashable, change: GroupChange) -> None:
        acquirer = self._acquirers.get(key)
        if acquirer is None or (self._is_muted and acquirer.session.state is not AcquireState.WAITING):
            return
        try:
            acquirer.session.add(change)
        except LimitExceeded as exc:
            acquirer.request.error(errno.EOVERFLOW, str(exc))
            self._turns.post(lambda: self._end_acquirer(acquirer.request))

    def printed(self, resources: ResourceSet) -> dict[str, Any]:
        """R as JSON, kept for the sets printed last: 16,384 different targets take 25 ms, and all ask for the same."""
        for known, printed in self._prints:
            if known is resources:
                return printed
        printed = resources.to_json()
        self._prints.append((resources, printed))
        return printed

    def publish(self) -> None:
        """Send collected changes at the end of a turn; the changes of a stream whose peer is slow wait and merge."""
        for acquirer in self._acquirers.values():
            if not acquirer.session.pending:
                continue
            if self._slow.must_wait(acquirer.request.peer):
                continue
            for change in acquirer.session.take():
                for message in to_messages(change, acquirer.session.typed, self.printed):
                    acquirer.request.respond(message)
        self._journal.publish()

    def answer(self, request: RpcRequest, payload: object = None) -> None:
        """Answer once all that was decided so far is on disk."""
        self._store.after_commit(lambda: request.respond(payload))

    def report(self) -> dict[str, Any]:
        """Return the statistics shown by `resource.stats-get`."""
        return {
            "acquirers": len(self._acquirers),
            "journal_streams": len(self._journal),
            "watch_streams": len(self.watch),
            "targets": len(self.module.resources.ranks),
            "journal_events": len(self.module.journal.events),
        }


def drain_lines(status: Mapping[str, Any]) -> dict[str, DrainInfo]:
    """Return the drains of a `ResourceModule.status()`, by targets."""
    return {
        str(targets): DrainInfo(
            timestamp=line.timestamp_s,
            reason=line.reason or "",
            user=line.user,
            state=cast("Literal['drained', 'draining']", line.state),
            until=line.until_s if line.until_s < inf else None,
            reasons=_reason_lines(line.reasons),
        )
        for targets, line in status["drain"].items()
    }


def _reason_lines(reasons: DrainReasons) -> tuple[DrainReason, ...]:
    return tuple([
        DrainReason(each.timestamp_s, each.reason or "", each.user, each.until_s if each.until_s < inf else None)
        for each in reasons
    ])  # fmt: skip


def part_lines(drains: Iterable[tuple[Idset, PartDrain]], grants: Grants) -> list[PartDrainInfo]:
    """Return the drains of parts; `draining` are those with cores or GPUs that jobs hold."""
    cores, gpus = grants.busy("core"), grants.busy("gpu")

    def is_held(rank: int, parts: Children) -> bool:
        return bool(cores.get(rank, 0) & parts.cores.mask or gpus.get(rank, 0) & parts.gpus.mask)

    return [
        PartDrainInfo(
            targets=str(targets),
            cores=str(line.parts.cores),
            gpus=str(line.parts.gpus),
            timestamp=line.timestamp_s,
            reason=line.reason or "",
            user=line.user,
            state="draining" if any(is_held(rank, line.parts) for rank in targets) else "drained",
            until=line.until_s if line.until_s < inf else None,
        )
        for targets, line in drains
    ]


def withheld_lines(module: ResourceModule) -> list[PartDrainInfo]:
    """Return the cores that the configuration withholds of targets, since when."""
    found = [(each.ranks & module.targets.present, each.children.cores) for each in module.targets.withheld.entries()]
    return [
        PartDrainInfo(
            targets=str(ranks), cores=str(cores), timestamp=module.withheld_s, reason=WITHHOLD, state="withheld"
        )
        for ranks, cores in found if ranks
    ]  # fmt: skip


def outage_lines(records: Iterable[OutageRecord]) -> list[PlannedOutage]:
    """Return planned outages, the next one first."""
    return [
        PlannedOutage(
            name=outage.name, targets=str(outage.targets), from_=outage.from_s, until=outage.until_s,
            every=outage.every_s or None, reason=outage.reason, user=record.user, on=record.is_on,
            configured=record.is_configured, end_jobs=outage.ends_jobs, queue=outage.queue,
            reservation=outage.is_reservation, users=outage.users,
        )
        for record in sorted(records, key=lambda record: record.outage.from_s)
        for outage in [record.outage]
    ]  # fmt: skip


def spare_lines(spares: SpareTargets) -> list[SpareInfo]:
    """Return the spares in service."""
    return [
        SpareInfo(
            target=each.target, replaces=each.replaces, replaces_host=each.replaces_key, group=each.group,
            timestamp=each.since_s,
        )
        for each in spares
    ]  # fmt: skip


def asked_parts(wanted: DrainRequest | UndrainRequest) -> Children:
    """Return the cores and GPUs that a request names."""
    return Children.parse({"core": wanted.cores, "gpu": wanted.gpus})


def group_info(group: GroupView) -> GroupInfo:
    """Return a group as a message."""
    acquirer = group.acquirer.peer.name if isinstance(group.acquirer, RpcRequest) else None
    return GroupInfo(
        name=group.name,
        targets=str(group.targets),
        leaving=str(group.leaving),
        incoming=str(group.incoming),
        acquired=acquirer is not None,
        dialect=cast("Literal['typed', 'plain'] | None", group.dialect),
        acquirer=acquirer,
    )


def allocated(grants: Grants, resources: ResourceSet) -> ResourceSet:
    """Return the resources held by jobs, core by core and with all amounts, out of all `resources`."""
    start_s, end_s = resources.starttime_s, resources.expiration_s
    resources = resources.with_topology(EMPTY_TOPOLOGY)
    return ResourceSet.build(grants.entries(), resources, start_s, end_s, None, grants.shared)


# ---- the journal

BATCH_EVENTS = 512
"""Events in one response: a history of thousands stays far below the message limit."""
STORED_EVENTS_MAX = HISTORY_EVENTS_MAX + 1
"""Events in the store after it was pruned."""
PRUNE_EVENTS = 1024
"""Number of further events after which the journal is pruned again."""


class JournalService:
    """The streams, the news of this turn, and the rows."""

    def __init__(
        self,
        router: Router,
        store: Store,
        history: Callable[[], Iterable[JournalEvent]],
        resources: Callable[[], dict[str, Any]],
    ) -> None:
        self._store = store
        self._history = history
        self._resources = resources
        self._streams: dict[RpcRequest, None] = {}
        self._unpublished_events: list[JournalEvent] = []
        self._unstored = 0
        """Events at the end of the history that are not on disk yet."""
        self._stored = PRUNE_EVENTS
        router.serve({"resource.journal": self._open})

    def __len__(self) -> int:
        return len(self._streams)

    def add(self, event: JournalEvent) -> None:
        """Add an event that the history has already."""
        self._unpublished_events.append(event)
        self._unstored += 1
        self._store.add("journal", (msgspec.json.encode(event),))
        self._stored += 1
        if self._stored > PRUNE_EVENTS:
            self._stored = 0
            self._store.remove("journal", (STORED_EVENTS_MAX,))

    def publish(self) -> None:
        """Send new events to the readers, once they are on disk."""
        news, self._unpublished_events = self._unpublished_events, []
        if news:
            self._store.after_commit(partial(self._tell_all, news))

    def _tell_all(self, news: list[JournalEvent]) -> None:
        self._unstored -= len(news)
        for request in self._streams:
            self._tell(request, news)

    def _open(self, request: RpcRequest) -> None:
        request.open_stream(lambda: forget(self._streams, request))
        self._store.when_idle(partial(self._begin, request))  # what was answered is in the history by then

    def _begin(self, request: RpcRequest) -> None:
        if not request.is_open:
            return
        events = list(self._history())
        self._tell(request, events[: len(events) - self._unstored])
        request.respond({"events": []})
        self._streams[request] = None

    def _tell(self, request: RpcRequest, events: Iterable[JournalEvent]) -> None:
        for batch in batches(events):
            defines = batch[0]["name"] == "resource-define"
            request.respond({"events": batch, "R": self._resources()} if defines else {"events": batch})


def batches(events: Iterable[JournalEvent]) -> Iterator[list[JournalEvent]]:
    """Yield the events in lists of BATCH_EVENTS at most, `resource-define` in one of its own."""
    batch: list[JournalEvent] = []
    for event in events:
        alone = event["name"] == "resource-define"
        if batch and (alone or len(batch) == BATCH_EVENTS):
            yield batch
            batch = []
        batch.append(event)
        if alone:
            yield batch
            batch = []
    if batch:
        yield batch


# ---- `resource.watch`

WATCH_EVERY_S = 0.1
"""The least time between two looks at what jobs changed: people see no more, and first answers of that time share them.
"""

CHANGE_EVERY_S, SHARE = 0.02, 0.1
"""The least time after a target was drained, went down or moved, which its administrator waits to see; and the share of
time that such looks may take, where they are not as rare as those at jobs by then.
"""

_KINDS = {"busy": "core", "busy_gpus": "gpu"}


class Look(NamedTuple):
    """Observed state of the resources; sets are values, so that two observations are compared quickly."""

    resources: ResourceSet
    states: dict[str, Idset]
    drained: frozenset[int]
    drains: dict[str, DrainInfo]
    parts: list[PartDrainInfo]
    withheld: list[PartDrainInfo]
    outages: list[PlannedOutage]
    groups: list[GroupView]
    made_up: Idset
    spares: Idset
    replaced: list[SpareInfo]


class MachineReader:
    """Reader of one stream: the last observation sent, and the targets whose number of busy cores or GPUs has changed
    since.
    """

    __slots__ = ("recounted", "told")

    def __init__(self) -> None:
        self.told: Look | None = None
        self.recounted: dict[str, frozenset[int]] = {}

    def recount(self, key: str, changed: frozenset[int]) -> None:
        """Add to the changed targets. Readers without other changes share one set."""
        before = self.recounted.get(key)
        self.recounted[key] = before | changed if before else changed


class ResourceWatch:
    """Service of `resource.watch`."""

    def __init__(self, service: ResourceService, grants: Grants, router: Router, turns: Turns) -> None:
        self._service = service
        self._module = service.module
        self._grants = grants
        self._turns = turns
        self._slow = SlowReaders(router, turns)
        self._readers: dict[RpcRequest, MachineReader] = {}
        self._behind = False
        """True if some reader has not received the last observation."""
        self._is_stale = False
        self._touched: list[Idset] = []
        self._counts: dict[str, dict[int, int]] = {}
        """Number by kind and target that jobs held at the last observation; no entry for none."""
        self._last: Look | None = None
        self._next_s = self._soon_s = 0.0
        self._timer: Timer | None = None
        self._timer_s = 0.0
        service.changed.append(self._note_change)
        router.serve({"resource.watch": self._open})
        turns.at_end(self._publish)

    def __len__(self) -> int:
        return len(self._readers)

    def note_jobs(self, ranks: Idset) -> None:
        """Note that a job holds more or less on these targets than before."""
        if self._readers:
            self._touched.append(ranks)

    def _note_change(self) -> None:
        self._is_stale = True

    def _open(self, request: RpcRequest) -> None:
        request.open_stream(lambda: self._end(request))
        if not self._readers:
            self._is_stale = True
            self._counts = {key: self._count(kind) for key, kind in _KINDS.items()}
        self._readers[request] = MachineReader()
        self._behind = True

    def _end(self, request: RpcRequest) -> None:
        forget(self._readers, request)
        if not self._readers:
            self._last, self._counts, self._touched, self._behind = None, {}, [], False

    # -- looking ------------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        """Send changes to the readers, as a hook at the end of a turn."""
        if not self._readers or not (self._touched or self._is_stale or self._behind):
            return
        due_s = self._soon_s if self._is_stale else self._next_s
        if self._timer is not None and self._timer.call is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        clock = self._turns.clock
        now_s = clock.monotonic_s()
        if now_s < due_s:
            self._timer, self._timer_s = self._turns.after(due_s - now_s, self._turns.wake), due_s
            return
        if self._touched or self._is_stale:
            self._look()
        self._tell()
        took_s = clock.monotonic_s() - now_s
        self._next_s = now_s + WATCH_EVERY_S
        self._soon_s = min(self._next_s, now_s + max(CHANGE_EVERY_S, took_s / SHARE))

    def _look(self) -> None:
        touched = self._take_touched()
        for key, changed in self._recount(touched).items():
            for reader in self._readers.values():
                reader.recount(key, changed)
        before, is_stale, self._is_stale = self._last, self._is_stale, False
        states = self._module.report.states()
        if before is not None and not is_stale and before.drained.isdisjoint(touched):
            self._last = before if states == before.states else before._replace(states=states)
            return
        status = self._module.report.status()  # a job that ends leaves drained what was draining
        resources, parts = status["R"], self._module.parts.report()
        self._last = Look(
            resources,
            states,
            frozenset(chain(*status["drain"], *[targets for targets, _ in parts])),
            drain_lines(status),
            part_lines(parts, self._grants),
            withheld_lines(self._module),
            outage_lines(self._module.outages),
            self._module.report.groups(),
            self._service.made_up(resources),
            self._module.spares.all,
            spare_lines(self._module.spares),
        )

    def _take_touched(self) -> set[int]:
        """Return the targets on which jobs began or ended: mostly one each."""
        touched, self._touched = self._touched, []
        found: set[int] = set()
        for ranks in touched:
            only = ranks.single()
            if only is None:
                found.update(ranks)
            else:
                found.add(only)
        return found

    def _count(self, kind: str) -> dict[int, int]:
        return {rank: mask.bit_count() for rank, mask in self._grants.busy(kind).items()}

    def _recount(self, touched: set[int]) -> dict[str, frozenset[int]]:
        """Count anew on these targets; those where it is another number now."""
        found: dict[str, frozenset[int]] = {}
        for key, kind in _KINDS.items():
            busy, counts, changed = self._grants.busy(kind), self._counts[key], list[int]()
            if not busy and not counts:
                continue
            for rank in touched:
                now = busy.get(rank, 0).bit_count()
                if now != counts.get(rank, 0):
                    changed.append(rank)
                    if now:
                        counts[rank] = now
                    else:
                        del counts[rank]
            if changed:
                found[key] = frozenset(changed)
        return found

    # -- telling ------------------------------------------------------------------------------------------------

    def _tell(self) -> None:
        now, self._behind = self._last, False
        assert now is not None, "there was a look"
        worded: dict[tuple[int, ...], msgspec.Raw | None] = {}
        for request, reader in self._readers.items():
            if self._slow.must_wait(request.peer):
                self._behind = True
                continue
            known: tuple[int, ...] = ()
            if reader.told is not None:
                known = id(reader.told), *map(id, reader.recounted.values())
            if known not in worded:
                worded[known] = self._word(reader, now)
            answer = worded[known]
            if answer is not None:
                request.respond(answer)
            reader.told, reader.recounted = now, {}

    def _word(self, reader: MachineReader, now: Look) -> msgspec.Raw | None:
        """Return the changes that a reader has not received; None if there are none."""
        told = reader.told
        if told is None:
            found = self._whole(now)
        else:
            found = {key: self._by_count(key, ranks) for key, ranks in reader.recounted.items()}
            if told is not now:
                found |= self._differences(told, now)
        return msgspec.Raw(framing.pack(MachineChange(**found))) if found else None

    def _whole(self, now: Look) -> dict[str, Any]:
        return {
            "R": self._service.printed(now.resources),
            "states": {name: str(ranks) for name, ranks in now.states.items() if ranks},
            **{key: self._by_count(key, counts) for key, counts in self._counts.items()},
            "drains": now.drains,
            "parts": now.parts,
            "withheld": now.withheld or None,
            "outages": now.outages,
            "groups": [group_info(group) for group in now.groups],
            "made_up": str(now.made_up),
            "spares": str(now.spares) if now.spares else None,
            "replaced": now.replaced or None,
        }

    def _differences(self, told: Look, now: Look) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if told.states != now.states:
            changed = [(name, ranks - told.states[name]) for name, ranks in now.states.items()]
            if states := {name: str(ranks) for name, ranks in changed if ranks}:
                found["states"] = states
        if told.resources is not now.resources:
            found["R"] = self._service.printed(now.resources)
        for name in ("drains", "parts", "withheld", "outages"):
            if getattr(told, name) != getattr(now, name):
                found[name] = getattr(now, name)
        if told.groups != now.groups:
            found["groups"] = [group_info(group) for group in now.groups]
        if told.made_up != now.made_up:
            found["made_up"] = str(now.made_up)
        if told.spares != now.spares:
            found["spares"] = str(now.spares)
        if told.replaced != now.replaced:
            found["replaced"] = now.replaced
        return found

    def _by_count(self, key: str, ranks: Iterable[int]) -> dict[str, str]:
        """Return targets by the number of their cores or GPUs that are held.

        The loop is written out: sets of a large machine, each with scattered targets, take seven times as long.
        """
        counts, found = self._counts[key], dict[int, list[str]]()
        first = last = held = -1
        for rank in sorted(ranks):
            count = counts.get(rank, 0)
            if count != held or rank != last + 1:
                if held >= 0:
                    found.setdefault(held, []).append(_run(first, last))
                first, held = rank, count
            last = rank
        if held >= 0:
            found.setdefault(held, []).append(_run(first, last))
        return {str(count): ",".join(runs) for count, runs in sorted(found.items())}


def _run(first: int, last: int) -> str:
    return f"{first}-{last}" if last > first else str(first)


# ---- limits of readers that are slow

SLOW_READER_RETRY_S = 0.02
"""Delay after which a stream whose peer has unsent bytes tries again; meanwhile its changes merge."""


class SlowReaders:
    """Asked by a service at the end of a turn, for each stream that has something to say."""

    def __init__(self, router: Router, turns: Turns) -> None:
        self._router = router
        self._turns = turns
        self._retry: Timer | None = None

    def must_wait(self, peer: Peer) -> bool:
        """Return whether the peer is to receive nothing now; if so, there will be another turn."""
        if not self._router.unsent_bytes(peer):
            return False
        if self._retry is None or self._retry.call is None:
            self._retry = self._turns.after(SLOW_READER_RETRY_S, self._turns.wake)
        return True
