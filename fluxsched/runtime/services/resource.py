"""The `resource` service: RFC 28 in both dialects, drain, groups, properties, status and the RFC 44 journal.

Translates requests into calls of `resource.ResourceModule` and performs its effects: streams through one
`AcquireServer` session an acquirer, rows through the store, and every answer after the store (law 3).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

from fluxsched.core.constraint import EVERYTHING
from fluxsched.core.group_change import GroupChange
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import EMPTY_R, ResourceSet
from fluxsched.core.targets import GROUP, parse_targets
from fluxsched.core.topology import EMPTY_TOPOLOGY
from fluxsched.errors import LimitExceeded, Refused, RemoteProtocolError
from fluxsched.jobs.holdings.holdings import Holdings
from fluxsched.jobs.queue.queues import DEFAULT_GROUP, Queues
from fluxsched.protocol.messages.acquire import ReleaseRequest
from fluxsched.protocol.messages.resource import (
    AssignRequest,
    DrainInfo,
    DrainRequest,
    ExpirationUpdateRequest,
    GroupInfo,
    GroupsResponse,
    IncludeRequest,
    MoveResponse,
    PropertyRequest,
    ReloadRequest,
    SchedStatusResponse,
    StatusResponse,
    TargetsRequest,
    TargetsResponse,
    UndrainRequest,
)
from fluxsched.protocol.sessions.acquire_server import AcquireServer, read_acquire
from fluxsched.protocol.sessions.acquire_stream import AcquireState, to_messages
from fluxsched.resource import effects as effect
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.state.groups import GroupView
from fluxsched.resource.state.inventory import Inventory
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.modules.process import ModuleTable
from fluxsched.runtime.services.resource_journal import JournalService
from fluxsched.runtime.services.slow_readers import SlowReaders
from fluxsched.runtime.system.log import logger

log = logger("resource")

PrepareReload = Callable[[RpcRequest, ReloadRequest, Callable[[], None]], None]
Reload = Callable[[ReloadRequest], tuple[Inventory, Mapping[str, Idset], Callable[[], object]]]
"""Finds another inventory and its groups; the callable runs once they are in use, and returns the answer."""

PRINTS_KEPT = 4
"""Resource sets whose JSON is kept: the whole, and what a few groups acquired."""


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
        router: Router,
        store: Store,
        turns: Turns,
        raise_jobs: Callable[[Iterable[int], str], None],
        reload: Reload,
        keep_expiration: Callable[[float, float], None],
        queues: Queues,
        modules: ModuleTable,
    ) -> None:
        self.module = module
        self._modules = modules
        self._queues = queues
        self.muted = False
        """From now on acquirers get no changes: the instance is being taken down, target by target."""
        self.allocated: Callable[[], ResourceSet] = lambda: EMPTY_R
        self.made_up: Callable[[ResourceSet], Idset] = lambda resources: EMPTY
        """Which of these targets are not this machine."""
        self.changed: list[Callable[[], None]] = []
        """Called when anything about the targets may have changed, but for what jobs hold."""
        self.watch_streams: Callable[[], int] = lambda: 0
        """How many follow `resource.watch`."""
        self._slow = SlowReaders(router, turns)
        self._store = store
        self._turns = turns
        self._raise_jobs = raise_jobs
        self._reload = reload
        self._keep_expiration = keep_expiration
        self._acquirers: dict[Hashable, Acquirer] = {}
        self.prepare_reload: PrepareReload = lambda request, wanted, proceed: proceed()
        """Called before a reload; it calls `proceed` when what it takes long to find out is known."""
        self._journal = JournalService(
            router, store, lambda: module.journal.events, lambda: self.printed(module.resources)
        )
        self._prints: deque[tuple[ResourceSet, dict[str, Any]]] = deque(maxlen=PRINTS_KEPT)
        router.serve(self._handlers())
        turns.at_end(self.publish)

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
            "resource.reload": self._reload_request,
        }

    # -- acquisition --------------------------------------------------------------------------------------------

    def _acquire(self, request: RpcRequest) -> None:
        wanted = read_acquire(request.message)
        self._modules.check_acquirer((wanted.group or DEFAULT_GROUP,), request.peer)
        session = AcquireServer(wanted.typed, wanted.accept_update)
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
        self._answer(request)

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

    def _resolve(self, request: RpcRequest) -> None:
        targets = self.targets(request.payload(TargetsRequest).targets)
        request.respond(TargetsResponse(str(targets)))

    def _drain(self, request: RpcRequest) -> None:
        wanted = request.payload(DrainRequest)
        targets = self.targets(wanted.targets, self.module.drainable)
        if not targets and wanted.targets:
            raise Refused(f"cannot drain {wanted.targets}: its targets are excluded or lost, or there are none")
        self.perform(self.module.drain(targets, wanted.reason, wanted.mode, request.who, self._turns.wall_s))
        self._answer(request)

    def _undrain(self, request: RpcRequest) -> None:
        wanted = request.payload(UndrainRequest)
        targets = self.targets(wanted.targets, self.module.drained)
        if not targets and wanted.targets and wanted.mode is None:
            raise Refused(f"cannot undrain {wanted.targets}: none of its targets is drained", errno.EEXIST)
        if targets or not wanted.targets:
            effects = self.module.undrain(targets, wanted.reason, wanted.mode, request.who, self._turns.wall_s)
            self.perform(effects)
        self._answer(request)

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
        there = self.module.settled(targets, group)
        if group is None:
            self.perform(self.module.include(targets, now_s, graceful=graceful, user=user))
        else:
            self.perform(self.module.assign(targets, group, now_s, graceful=graceful, user=user))
        state = self.module.move_state(targets)
        moved = state.moved - there
        ending = sorted(self.module.ending(targets))
        done = MoveResponse(str(moved), str(state.leaving), str(state.draining), str(there), ending)
        self._answer(request, done)

    def _property_add(self, request: RpcRequest) -> None:
        self.perform(self.module.property_add(self._properties(request), self._turns.wall_s))
        self._answer(request)

    def _property_remove(self, request: RpcRequest) -> None:
        self.perform(self.module.property_remove(self._properties(request), self._turns.wall_s))
        self._answer(request)

    def _properties(self, request: RpcRequest) -> dict[str, Idset]:
        properties = request.payload(PropertyRequest).properties
        return {name: self._present(text) for name, text in properties.items()}

    def _expiration_update(self, request: RpcRequest) -> None:
        expiration_s = request.payload(ExpirationUpdateRequest).expiration
        self.set_expiration(expiration_s)
        self._keep_expiration(expiration_s, self._turns.wall_s)
        self._answer(request)

    def set_expiration(self, expiration_s: float) -> None:
        """Change when the whole resource set ends (seconds since the epoch, 0 for never)."""
        self.perform(self.module.set_expiration(expiration_s, self._turns.wall_s))

    def _reload_request(self, request: RpcRequest) -> None:
        self.reload(request, request.payload(ReloadRequest))

    def reload(self, request: RpcRequest, wanted: ReloadRequest) -> None:
        """Take over another inventory and answer `request`. Raises Refused when that cannot be."""
        def proceed() -> None:
            inventory, groups, accepted = self._reload(wanted)
            self.perform(self.module.reload(inventory, groups, self._turns.wall_s, force=wanted.force))
            self._answer(request, accepted())

        self.prepare_reload(request, wanted, proceed)

    # -- reading ------------------------------------------------------------------------------------------------

    def _status(self, request: RpcRequest) -> None:
        status = self.module.status()
        drain = drain_lines(status)
        sets = {name: str(status[name]) for name in ("online", "offline", "exclude", "torpid", "lost")}
        groups = {name: str(targets) for name, targets in status["groups"].items()}
        sets["made_up"] = str(self.made_up(status["R"]))
        request.respond(StatusResponse(R=self.printed(status["R"]), drain=drain, groups=groups, **sets))

    def sched_status(self, request: RpcRequest) -> None:
        """Answer what schedulers may use, what of it is down, and what is allocated."""
        status = self.module.sched_status(self.allocated())
        parts = {name: self.printed(resources) for name, resources in status.items()}
        request.respond(SchedStatusResponse(**parts, made_up=str(self.made_up(status["all"]))))

    def _groups(self, request: RpcRequest) -> None:
        request.respond(GroupsResponse([group_info(group) for group in self.module.groups()]))

    # -- effects ------------------------------------------------------------------------------------------------

    def perform(self, effects: Iterable[Any]) -> None:
        """Perform what the module decided, in order."""
        for one in effects:
            match one:
                case effect.ToAcquirer(acquirer=key, change=change):
                    self._to_acquirer(key, change)
                case effect.Journal(event=event):
                    self._journal.add(event)
                case effect.Save(table=table, key=key, value=None):
                    self._store.remove("saved", (table, key))
                case effect.Save(table=table, key=key, value=value):
                    self._store.add("saved", (table, key, msgspec.json.encode(value)))
                case effect.RaiseJobs(jobids=jobids, note=note):
                    self._raise_jobs(jobids, note)
                case effect.Ended(acquirer=key, errnum=errnum, text=text):
                    if (acquirer := self._acquirers.pop(key, None)) is not None:
                        acquirer.request.error(errnum, text)
        for changed in self.changed:
            changed()
        self._turns.wake()

    def _to_acquirer(self, key: Hashable, change: GroupChange) -> None:
        acquirer = self._acquirers.get(key)
        if acquirer is None or (self.muted and acquirer.session.state is not AcquireState.WAITING):
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
        """End-of-turn hook: word what has gathered; a stream whose peer is slow waits and merges."""
        for acquirer in self._acquirers.values():
            if not acquirer.session.pending:
                continue
            if self._slow.must_wait(acquirer.request.peer):
                continue
            for change in acquirer.session.take():
                for message in to_messages(change, acquirer.session.typed, self.printed):
                    acquirer.request.respond(message)
        self._journal.publish()

    def _answer(self, request: RpcRequest, payload: object = None) -> None:
        """Answer once all that was decided so far is on disk."""
        self._store.after_commit(lambda: request.respond(payload))

    def report(self) -> dict[str, Any]:
        """What `resource.stats-get` shows."""
        return {
            "acquirers": len(self._acquirers),
            "journal_streams": len(self._journal),
            "watch_streams": self.watch_streams(),
            "targets": len(self.module.resources.ranks),
            "journal_events": len(self.module.journal.events),
        }


def drain_lines(status: Mapping[str, Any]) -> dict[str, DrainInfo]:
    """The drains of a `ResourceModule.status()`, by targets."""
    return {
        str(targets): DrainInfo(
            timestamp=line.timestamp_s,
            reason=line.reason or "",
            user=line.user,
            state=cast("Literal['drained', 'draining']", line.state),
        )
        for targets, line in status["drain"].items()
    }


def group_info(group: GroupView) -> GroupInfo:
    """A group as a message."""
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


def allocated(holdings: Holdings, resources: ResourceSet) -> ResourceSet:
    """What jobs hold, core by core and with all amounts, out of all `resources`."""
    start_s, end_s = resources.starttime_s, resources.expiration_s
    resources = resources.with_topology(EMPTY_TOPOLOGY)
    return ResourceSet.build(holdings.entries(), resources, start_s, end_s, None, holdings.shared)
