"""The `agent` service: target agents report that their targets are alive.

A heartbeat in time keeps a target online and lively; silence makes it torpid, then offline; the agent's disconnect
makes it offline at once. In a dynamic inventory an unknown host that says hello becomes a new target, and one that
stays offline too long is lost. The embedded agent of an instance of its own needs no heartbeat: it is the instance.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import InvalidValue, Refused
from fluxsched.protocol.messages.agents import AgentHeartbeat, AgentHello, AgentWelcome
from fluxsched.runtime.config.reader import ResourceConfig
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.resource import ResourceService
from fluxsched.runtime.system.log import logger

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
        """Of each connection, by host."""
        self._count = 0
        self._reported = EMPTY
        self._gone: dict[str, float] = {}
        self._sweeping = False
        self.embedded: Idset = EMPTY
        self.on_change: list[Callable[[], None]] = []
        router.serve({"agent.hello": self._hello, "agent.heartbeat": self._heartbeat})
        router.on_lost(self._lost)

    def embed(self, targets: Idset) -> None:
        """The instance itself reports these targets online from now on."""
        self.embedded |= targets
        self._resource.perform(self._module.set_online(targets, self._turns.wall_s))

    def reloaded(self, targets: Idset) -> None:
        """After a reload: agents get their targets back, and the instance reports these, its own."""
        for agent in self._all():
            if not agent.offline:
                back = agent.targets - self._module.lost
                self._resource.perform(self._module.set_online(back, self._turns.wall_s))
        self.embed(targets - self._reported)

    def _hello(self, request: RpcRequest) -> None:
        wanted = request.payload(AgentHello)
        if wanted.host in self._agents.get(request.peer, {}):
            raise Refused(f"this connection is already registered for host {wanted.host}", errno.EEXIST)
        if self._count >= AGENTS_MAX:
            raise Refused(f"agents report for {AGENTS_MAX} hosts, which is the limit", errno.EMFILE)
        targets = self._targets_of(wanted)
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
        self._changed()

    def _targets_of(self, wanted: AgentHello) -> Idset:
        """The targets that the agent may report; an unknown host joins, if that is allowed and nothing is wrong."""
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
        if taken := targets & (self._reported | self.embedded):
            raise Refused(f"targets {taken} of host {wanted.host} have an agent already", errno.EEXIST)
        if joining is not None:
            self._resource.perform(module.add_targets(joining, self._turns.wall_s))
        return targets

    def _heartbeat(self, request: RpcRequest) -> None:
        request.payload(AgentHeartbeat)
        agents = self._agents.get(request.peer)
        if agents is None:
            raise Refused("agent.heartbeat: say agent.hello first", errno.EPROTO)
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
        """Hosts without an agent for too long are lost, if targets may be."""
        limit_s = self._settings.lost_after_s
        for host, since_s in list(self._gone.items()):
            if limit_s is not None and monotonic_s - since_s >= limit_s:
                del self._gone[host]
                gone = self._module.resources.ranks_of(host) - self._reported - self.embedded - self._module.lost
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
        self._changed()

    def _changed(self) -> None:
        for call in self.on_change:
            call()
