"""The instance itself as a service: info, ready, stop, attributes, pings, agents, figures, the trace, admins' notices.

Law: a heartbeat in time keeps a target of an agent online; silence makes it torpid, then offline. Nothing is done for
figures on the way of a job: what is summed up is summed up when it is asked for, in time linear in classes of targets,
groups, queues, peers and targets in use, not in jobs. Without a reader of the trace no message is looked at; with one,
at most TRACE_MESSAGES_MAX are made into text in TRACE_EVERY_S, and the others counted (rfc/live.md).

A notice is a short text that every user of the instance sees, until a time or until it is removed. It is on disk before
its number is answered, and shown again after a restart. One whose time is over is in no answer; its row goes when
another notice is set or removed, so that no timer is needed.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from math import inf
from typing import Any, Final

import msgspec

from fluxsched import __version__
from fluxsched.config.reader import ResourceConfig
from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import UNPRINTABLE, some_of
from fluxsched.errors import InvalidValue, LimitExceeded, Refused
from fluxsched.jobs.manager import JobManager
from fluxsched.messaging.peers import Peer, RpcRequest, ping_answer, role_of
from fluxsched.messaging.router import (
    GOODBYE,
    LINE_CHARS_MAX,
    Handler,
    Router,
    content,
    cut,
    forget,
    is_sign_of_life,
    kind_of,
)
from fluxsched.protocol.framing import Message
from fluxsched.protocol.messages.common import WALL_TIME_MAX_S, AttrRequest, AttrResponse, InstanceInfo
from fluxsched.protocol.messages.instance import (
    AgentHeartbeat,
    AgentHello,
    AgentWelcome,
    GroupMetrics,
    MetricsResponse,
    Notice,
    NoticeAddRequest,
    NoticeAddResponse,
    NoticeRemoveRequest,
    NoticesResponse,
    PeerMetrics,
    QueueMetrics,
    TracedMessage,
    TraceRequest,
    TraceResponse,
)
from fluxsched.resource.module import ResourceModule
from fluxsched.services.job_effects import JobCounts
from fluxsched.services.resource import ResourceService, SlowReaders
from fluxsched.store.store import Store
from fluxsched.system.log import logger
from fluxsched.system.loop import Timer, Turns
from fluxsched.system.processes import resident_bytes


class InstanceService:
    """Serves `instance.*`, `attr.get` and the two questions that every service answers."""

    def __init__(
        self,
        router: Router,
        info: Callable[[], InstanceInfo],
        stop: Callable[[], None],
        restart: Callable[[], None] | None,
    ) -> None:
        """`restart` raises FluxschedError where the next start would fail; None where there is no restart."""
        self._router = router
        self._restart = restart
        self._info = info
        self._stop = stop
        self._waiting: list[Callable[[], None]] = []
        self.attributes: dict[str, str] = {}
        """Attributes served by `attr.get`."""
        router.serve(
            {
                "instance.info": self._answer,
                "instance.ready": self._ready,
                "instance.stop": self._stop_request,
                "instance.restart": self._restart_request,
                "instance.renounce": self._renounce,
                "instance.goodbye": lambda request: router.drop_peer(request.peer, GOODBYE),
                "attr.get": self._attr_get,
            }
        )

    def set_attributes(self, attributes: dict[str, str]) -> None:
        """Add to the attributes of the instance."""
        self.attributes.update(attributes)

    def serve_common(self, services: Mapping[str, Handler]) -> None:
        """Serve `NAME.ping` and `NAME.stats-get` of the built-in services; the latter is answered by the handler
        given.
        """
        for name, stats in services.items():
            self._router.serve(
                {
                    f"{name}.ping": lambda request: request.respond(ping_answer(request)),
                    f"{name}.stats-get": stats,
                }
            )

    def _ready(self, request: RpcRequest) -> None:
        """Answer once the agents are online and the schedulers are ready or have failed."""
        self.when_ready(lambda: self._answer(request))

    def _answer(self, request: RpcRequest) -> None:
        role = str(role_of(request.message.rolemask))
        request.respond(msgspec.structs.replace(self._info(), role=role, userid=request.userid))

    def _renounce(self, request: RpcRequest) -> None:
        request.peer.renounce()
        request.respond()

    def when_ready(self, call: Callable[[], None]) -> None:
        """Call now, or once the agents are online and the schedulers are ready or have failed."""
        if self._info().ready:
            call()
        else:
            self._waiting.append(call)

    def became_ready(self) -> None:
        """Call the functions that wait until the instance is ready."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()

    def _stop_request(self, request: RpcRequest) -> None:
        request.respond()
        self._stop()

    def _restart_request(self, request: RpcRequest) -> None:
        if self._restart is None:
            raise Refused("this instance cannot restart in place: stop it, and start it again", errno.ENOSYS)
        self._restart()
        request.respond()

    def _attr_get(self, request: RpcRequest) -> None:
        name = request.payload(AttrRequest).name
        value = self.attributes.get(name)
        if value is None:
            raise Refused(f"attribute {name!r} is unknown; known: {', '.join(sorted(self.attributes))}", errno.ENOENT)
        request.respond(AttrResponse(value=value))


# ---- target agents

log = logger("agent")
AGENTS_MAX = 1 << 20
"""Agents of one instance: one a target at the largest machine."""


class Agent:
    """One connected agent: its targets and when it was last heard (monotonic seconds)."""

    __slots__ = ("heard_s", "host", "offline", "targets", "torpid")

    def __init__(self, host: str, targets: Idset, heard_s: float) -> None:
        self.host = host
        self.targets = targets
        self.heard_s = heard_s
        self.torpid = False
        self.offline = False


class AgentService:
    """Serves `agent.*` and watches the silence."""

    def __init__(self, resource: ResourceService, router: Router, turns: Turns, settings: ResourceConfig) -> None:
        self._resource = resource
        self._module = resource.module
        self._turns = turns
        self._settings = settings
        self._agents: dict[Peer, dict[str, Agent]] = {}
        """Agents of each connection, by host."""
        self._count = 0
        self._reported = EMPTY
        self._gone: dict[str, float] = {}
        self._sweeping = False
        self._embedded: Idset = EMPTY
        self._present: set[str] = set()
        """Hosts whose targets the instance itself reports online."""
        router.serve({"agent.hello": self._hello, "agent.heartbeat": self._heartbeat})
        router.on_lost(self._lost)

    def embed(self, targets: Idset) -> None:
        """Have the instance itself report these targets online from now on."""
        self._embedded |= targets
        self._resource.perform(self._module.set_online(targets, self._turns.wall_s))

    def release(self, targets: Idset) -> None:
        """Have the instance itself report nothing more about these targets."""
        self._embedded -= targets

    def set_present(self, host: str, is_present: bool) -> None:
        """Have the instance itself report the targets of a host online, or offline."""
        targets = self._targets_on(host)
        if is_present:
            self._present.add(host)
            self.embed(targets)
        else:
            self._present.discard(host)
            self.release(targets)
            self._resource.perform(self._module.set_offline(targets, self._turns.wall_s))

    def _targets_on(self, host: str) -> Idset:
        return self._module.resources.ranks_of(host) - self._module.lost

    def reloaded(self, targets: Idset) -> None:
        """Reassign targets after a reload: agents get theirs back, and the instance reports these, its own."""
        for agent in self._all():
            if not agent.offline:
                back = agent.targets - self._module.lost
                self._resource.perform(self._module.set_online(back, self._turns.wall_s))
        for host in self._present:
            targets |= self._targets_on(host)
        self.embed(targets - self._reported)

    def brought(self, source: ResourceSet) -> ResourceSet:
        """Return the targets that agents report on hosts that `source` lacks, under the switches of `source`."""
        resources = self._module.resources
        found = resources.restrict(self._reported - resources.ranks_on(source.nodelist)[0])
        return found.with_topology(source.topology)

    def _hello(self, request: RpcRequest) -> None:
        wanted = request.payload(AgentHello)
        if wanted.host in self._agents.get(request.peer, {}):
            raise Refused(f"this connection is already registered for host {wanted.host}", errno.EEXIST)
        if self._count >= AGENTS_MAX:
            raise Refused(f"agents report for {AGENTS_MAX} hosts, which is the limit", errno.EMFILE)
        targets, joining = self._targets_of(wanted)
        if wanted.check:
            request.respond(AgentWelcome(targets=str(targets), interval_s=self._settings.heartbeat_s))
            return
        if joining is not None:
            self._resource.perform(self._module.add_targets(joining, self._turns.wall_s))
        hosts = self._agents.setdefault(request.peer, {})
        hosts[wanted.host] = Agent(wanted.host, targets, self._turns.clock.monotonic_s())
        self._count += 1
        request.peer.name = f"agent-{next(iter(hosts))}"
        self._reported |= targets
        self._gone.pop(wanted.host, None)
        self._resource.perform(self._module.set_lively(targets, self._turns.wall_s))
        self._resource.perform(self._module.set_online(targets, self._turns.wall_s))
        request.respond(AgentWelcome(targets=str(targets), interval_s=self._settings.heartbeat_s))
        log.info("agent of %s reports targets %s", wanted.host, targets)
        self._watch_silence()

    def _targets_of(self, wanted: AgentHello) -> tuple[Idset, ResourceSet | None]:
        """Return the targets that the agent may report, and the R by which an unknown host is to join, if that is
        allowed and nothing is wrong.
        """
        module, joining = self._module, None
        known = module.resources.ranks_of(wanted.host) - module.lost
        if not known and module.targets.dynamic and wanted.R is not None:
            joining = ResourceSet.parse(wanted.R)
            if set(joining.nodelist) != {wanted.host}:
                raise InvalidValue(f"R of host {wanted.host} is about {joining.nodelist}: give its own targets alone")
            known = module.targets.admit(joining).resources.ranks
        if not known:
            raise Refused(
                f"host {wanted.host!r} has no targets in this instance; known hosts: {module.resources.nodelist}",
                errno.ENOENT,
            )
        targets = known if wanted.ranks is None else Idset.parse(wanted.ranks)
        if targets - known or not targets:
            raise Refused(f"targets {wanted.ranks} are not all on host {wanted.host}, which has {known}", errno.EINVAL)
        if taken := targets & (self._reported | self._embedded):
            raise Refused(f"targets {taken} of host {wanted.host} have an agent already", errno.EEXIST)
        return targets, joining

    def _heartbeat(self, request: RpcRequest) -> None:
        request.payload(AgentHeartbeat)
        agents = self._agents.get(request.peer)
        if agents is None:
            raise Refused("agent.heartbeat: send agent.hello first", errno.EPROTO)
        request.respond()
        now_s = self._turns.wall_s
        for agent in agents.values():
            agent.heard_s = self._turns.clock.monotonic_s()
            if agent.torpid:
                agent.torpid = False
                self._resource.perform(self._module.set_lively(agent.targets, now_s))
            if agent.offline:
                agent.offline = False
                self._resource.perform(self._module.set_online(agent.targets - self._module.lost, now_s))

    def _all(self) -> Iterator[Agent]:
        for agents in self._agents.values():
            yield from agents.values()

    def _watch_silence(self) -> None:
        if not self._sweeping and (self._agents or self._gone):
            self._sweeping = True
            self._turns.after(self._settings.heartbeat_s / 2, self._sweep)

    def _sweep(self) -> None:
        self._sweeping = False
        monotonic_s, now_s = self._turns.clock.monotonic_s(), self._turns.wall_s
        for agent in self._all():
            silence_s = monotonic_s - agent.heard_s
            if silence_s >= self._settings.offline_after_s and not agent.offline:
                agent.offline = True
                self._resource.perform(self._module.set_offline(agent.targets, now_s))
            elif silence_s >= self._settings.torpid_after_s and not agent.torpid:
                agent.torpid = True
                self._resource.perform(self._module.set_torpid(agent.targets, now_s))
        self._lose(monotonic_s)
        self._watch_silence()

    def _lose(self, monotonic_s: float) -> None:
        """Lose hosts that have had no agent for too long, if targets may be lost."""
        limit_s = self._settings.lost_after_s
        for host, since_s in list(self._gone.items()):
            if limit_s is not None and monotonic_s - since_s >= limit_s:
                del self._gone[host]
                gone = self._module.resources.ranks_of(host) - self._reported - self._embedded - self._module.lost
                if gone and self._module.targets.dynamic:
                    self._resource.perform(self._module.set_lost(gone, self._turns.wall_s))

    def _lost(self, peer: Peer) -> None:
        agents = self._agents.pop(peer, None)
        if agents is None:
            return
        for agent in agents.values():
            self._count -= 1
            self._reported -= agent.targets
            self._resource.perform(self._module.set_offline(agent.targets - self._module.lost, self._turns.wall_s))
            if self._settings.lost_after_s is not None:
                self._gone[agent.host] = self._turns.clock.monotonic_s()
        self._watch_silence()


# ---- metrics


class MetricsService:
    """Service of `instance.metrics`: figures of all parts, read when they are asked for."""

    def __init__(
        self,
        module: ResourceModule,
        manager: JobManager,
        counts: JobCounts,
        store: Store,
        router: Router,
        started_s: float,
        faults: Callable[[], int],
    ) -> None:
        self._module = module
        self._manager = manager
        self._counts = counts
        self._store = store
        self._router = router
        self._started_s = started_s
        self._faults = faults
        self._lost = 0
        router.on_lost(self._note_lost)
        router.serve({"instance.metrics": self._metrics})

    def _note_lost(self, peer: Peer) -> None:
        self._lost += peer.dropped != GOODBYE

    def _metrics(self, request: RpcRequest) -> None:
        targets, usable = target_states(self._module)
        request.respond(
            MetricsResponse(
                version=__version__,
                starttime=self._started_s,
                resident_bytes=resident_bytes(),
                faults=self._faults(),
                targets={name: len(ranks) for name, ranks in targets.items()},
                cores=core_states(self._module.resources, usable, self._manager.grants.busy("core")),
                groups=tuple(
                    GroupMetrics(
                        group.name,
                        len(group.targets),
                        len(group.leaving),
                        len(self._module.usable(group.name)),
                        group.acquirer is not None,
                    )
                    for group in self._module.report.groups()
                ),
                queues=tuple(
                    QueueMetrics(queue.name or "", queue.active - queue.running, queue.running)
                    for queue in self._manager.queues
                ),
                jobs=self._counts.value(),
                store=self._store.metrics(),
                peers=self._peers(),
            )
        )

    def _peers(self) -> PeerMetrics:
        router = self._router
        peers = list(router.peers.values())
        return PeerMetrics(
            connected=len(peers),
            lost=self._lost,
            streams=sum(len(peer.streams) for peer in peers),
            open_requests=sum(peer.in_flight for peer in peers),
            unsent_messages=sum(len(peer.outbox) for peer in peers),
            unsent_bytes=sum(router.unsent_bytes(peer) for peer in peers),
            received=router.received,
            sent=router.sent,
            dropped=router.dropped,
        )


def target_states(module: ResourceModule) -> tuple[dict[str, Idset], Idset]:
    """Return each target in one state, the gravest that applies, and the targets on which jobs are or may be started.

    A target that leaves its group counts as what it is besides: allocated or free.
    """
    found = module.report.states()
    leaving = found.pop("leaving")
    found["allocated"] |= leaving & module.held
    found["free"] |= leaving - module.held
    return found, found["allocated"] | found["free"]


def core_states(resources: ResourceSet, usable: Idset, busy: dict[int, int]) -> dict[str, int]:
    """Return the number of cores that jobs hold, of free ones of usable targets, and of all others.

    `busy` has a mask a target.
    """
    total = on_usable = 0
    for entry in resources.entries:
        count = entry.children.count("core")
        total += len(entry.ranks) * count
        on_usable += len(entry.ranks & usable) * count
    allocated = sum([mask.bit_count() for mask in busy.values()])
    elsewhere = sum([busy.get(rank, 0).bit_count() for rank in resources.ranks - usable])
    free = on_usable - (allocated - elsewhere)
    return {"allocated": allocated, "free": free, "down": total - allocated - free}


# ---- traces of messages

TRACE_EVERY_S = 0.1
"""The least time between two answers."""
TRACE_MESSAGES_MAX = 256
"""Messages in one answer: 2,560 a second are more than can be read; their text takes 5 % of a core."""
TEXT_PAYLOAD_BYTES_MAX = 1 << 16
"""Size of a payload above which only the size is shown: unpacking an R of a large machine for its first words takes
milliseconds.
"""

_OWN = "instance.trace"


class TraceReader:
    """Reader of one stream: its topics, and the messages to be sent next."""

    __slots__ = ("beginnings", "dropped", "messages")

    def __init__(self, beginnings: tuple[str, ...]) -> None:
        self.beginnings = beginnings
        self.messages: list[TracedMessage] = []
        self.dropped = 0


class TraceService:
    """Service of `instance.trace`."""

    def __init__(self, router: Router, turns: Turns) -> None:
        self._router = router
        self._turns = turns
        self._slow = SlowReaders(router, turns)
        self._readers: dict[RpcRequest, TraceReader] = {}
        self._timer: Timer | None = None
        router.serve({_OWN: self._open})

    def _open(self, request: RpcRequest) -> None:
        wanted = request.payload(TraceRequest)
        request.open_stream(lambda: self._end(request))
        self._readers[request] = TraceReader(tuple(wanted.topics) or ("",))
        if len(self._readers) == 1:
            self._router.trace_to(self._note)

    def _end(self, request: RpcRequest) -> None:
        forget(self._readers, request)
        if not self._readers:
            self._router.trace_to(None)

    def _note(self, direction: str, message: Message) -> None:
        """Add a message to the readers that select it."""
        if message.topic.startswith(_OWN) or is_sign_of_life(message):
            return
        noted: TracedMessage | None = None
        for reader in self._readers.values():
            if not message.topic.startswith(reader.beginnings):
                continue
            if len(reader.messages) >= TRACE_MESSAGES_MAX:
                reader.dropped += 1
                continue
            noted = noted or _traced(direction, message, self._turns.wall_s)
            reader.messages.append(noted)
            if self._timer is None:
                self._timer = self._turns.after(TRACE_EVERY_S, self._tell)

    def _tell(self) -> None:
        self._timer = None
        for request, reader in self._readers.items():
            if not reader.messages:
                continue
            if self._slow.must_wait(request.peer):
                self._timer = self._timer or self._turns.after(TRACE_EVERY_S, self._tell)
                continue
            request.respond(TraceResponse(reader.messages, reader.dropped))
            reader.messages, reader.dropped = [], 0


def _traced(direction: str, message: Message, now_s: float) -> TracedMessage:
    arrow, _, peer = direction.partition(" ")
    size = len(message.payload or b"")
    text = content(message) if size <= TEXT_PAYLOAD_BYTES_MAX else f"{size} bytes"
    return TracedMessage(
        t=now_s,
        direction="<-" if arrow == "<-" else "->",
        peer=peer,
        type=kind_of(message),
        topic=message.topic,
        text=cut(text, LINE_CHARS_MAX),
    )


# ---- notices of admins

NOTICE: Final = "notice"
"""Kind of the rows of `saved`; the key is the number of the notice."""
NOTICES_MAX = 10
"""Notices at once: users read no more, and each command that submits on a terminal prints all of them."""
NOTICE_CHARS_MAX = 500
"""Characters of one notice: a few lines of a terminal."""


class NoticeService:
    """Service of the three `instance.notice-*` requests."""

    def __init__(self, router: Router, store: Store, turns: Turns, stored: Mapping[str, Any]) -> None:
        """Show what the last instance had: `stored` are the values of its rows of `saved`, by key."""
        self._store = store
        self._turns = turns
        found = [msgspec.convert(value, Notice) for value in stored.values()]
        self._notices = {one.id: one for one in sorted(found, key=lambda one: one.id)}
        self._latest = max(self._notices, default=0)
        """The last number given: no other notice gets it while the instance runs, for who removes one by its number."""
        router.serve(
            {
                "instance.notice-add": self._add,
                "instance.notice-remove": self._remove,
                "instance.notice-list": self._list,
            }
        )

    def _shown(self) -> list[Notice]:
        now_s = self._turns.wall_s
        return [one for one in self._notices.values() if one.until is None or one.until > now_s]

    def _add(self, request: RpcRequest) -> None:
        wanted, now_s = request.payload(NoticeAddRequest), self._turns.wall_s
        until_s = wanted.until if wanted.for_ is None else now_s + wanted.for_
        check_notice(wanted.text, now_s, inf if until_s is None else until_s)
        self._drop({*self._notices} - {one.id for one in self._shown()})
        if len(self._notices) >= NOTICES_MAX:
            raise LimitExceeded(f"{NOTICES_MAX} notices are shown, the limit: remove one")
        self._latest = number = self._latest + 1
        notice = Notice(id=number, text=wanted.text, user=request.who, timestamp=now_s, until=until_s)
        self._notices[number] = notice
        self._store.add("saved", (NOTICE, str(number), msgspec.json.encode(notice)))
        self._store.after_commit(lambda: request.respond(NoticeAddResponse(number)))

    def _remove(self, request: RpcRequest) -> None:
        numbers = request.payload(NoticeRemoveRequest).ids
        shown = {one.id for one in self._shown()}
        gone = shown if numbers is None else set(numbers)
        if unknown := sorted(gone - shown):
            there = f"those shown have the numbers {', '.join(map(str, shown))}" if shown else "none is shown"
            raise Refused(f"there is no notice {some_of([*map(str, unknown)])}: {there}", errno.ENOENT)
        self._drop({*self._notices} - shown | gone)
        self._store.after_commit(request.respond)

    def _drop(self, numbers: set[int]) -> None:
        for number in numbers:
            del self._notices[number]
            self._store.remove("saved", (NOTICE, str(number)))

    def _list(self, request: RpcRequest) -> None:
        request.respond(NoticesResponse(self._shown()))


def check_notice(text: str, now_s: float, until_s: float) -> None:
    """Raise InvalidValue for a text that is empty or cannot be printed on one line, and for an end that has passed;
    LimitExceeded for a text that is too long, and for an end after the year 9999.
    """
    if not text.strip():
        raise InvalidValue("a notice has a text")
    if len(text) > NOTICE_CHARS_MAX:
        raise LimitExceeded(f"a notice of {len(text)} characters is above the limit of {NOTICE_CHARS_MAX}: shorten it")
    if found := UNPRINTABLE.search(text):
        at = found.start()
        raise InvalidValue(f"a notice is one line of printable text: character {at + 1} is U+{ord(text[at]):04X}")
    if WALL_TIME_MAX_S < until_s < inf:
        raise LimitExceeded(
            f"the notice would end {until_s:.0f} s after 1970, above the limit of {WALL_TIME_MAX_S:.0f}: "
            "give an earlier end, or none"
        )
    if until_s <= now_s:
        raise InvalidValue(f"the end of the notice, {until_s:.0f} s after 1970, is not after now: give a later one")
