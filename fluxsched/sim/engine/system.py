"""The production parts joined in memory: resource module, acquire sessions, scheduler.

Law: no rule is written here. A change of a group passes as a value, without a codec: from the resource module through
the two ends of its stream into the scheduler; releases go back the same way.
Jobs are held for the resource module only while a site file moves targets, since nothing else asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fluxsched.core.idset import EMPTY, Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.protocol.sessions.acquire_client import AcquireClient
from fluxsched.protocol.sessions.acquire_server import AcquireServer
from fluxsched.resource import effects as told
from fluxsched.resource.module import ResourceModule
from fluxsched.resource.state.inventory import Inventory
from fluxsched.sched import effects as done
from fluxsched.sched.engine.group_changes import apply
from fluxsched.sched.engine.scheduler import Scheduler
from fluxsched.sched.engine.set_aside import WAIT
from fluxsched.sched.policy import Policy

ACQUIRER = "scheduler"
"""The one peer of the resource module; it acquires every group."""


def virtual_text(time_s: float) -> str:
    """A time of the simulation: `3600 s`."""
    return f"{time_s:.15g} s"


class System:
    """One scheduler over all groups of a site; `out` collects what it answers to jobs until somebody takes it."""

    def __init__(
        self,
        resources: ResourceSet,
        policy: Policy,
        groups: Mapping[str, Idset],
        acquired: Sequence[str],
        queues: Mapping[str, str],
        now_s: float = 0.0,
        policies: Mapping[str, Policy] | None = None,
        unsatisfiable: str = WAIT,
    ) -> None:
        self.module = ResourceModule(
            Inventory(resources, "configuration"), groups, now_s=now_s, online=resources.ranks
        )
        self.scheduler = Scheduler(
            policy, acquired, queues, policies, telling=False, unsatisfiable=unsatisfiable, time_text=virtual_text
        )
        self.out: list[done.Effect] = []
        self.now_s = now_s
        self._streams: dict[str, tuple[AcquireServer, AcquireClient]] = {}
        self.tell(self.module.start(now_s))
        for group in acquired:
            self._open(group)

    def tell(self, effects: Iterable[told.Effect]) -> None:
        """Pass on what the resource module tells acquirers, and what follows from it, until nothing is left."""
        pending = list(effects)
        while pending:
            for one in pending:
                if isinstance(one, told.ToAcquirer):
                    self._streams[one.group][0].add(one.change)
            pending = [effect for group in self._streams for effect in self._deliver(group)]

    def perform(self, effects: Iterable[done.Effect]) -> None:
        """Releases go to the resource module; everything else is for jobs and waits in `out`."""
        for one in effects:
            if isinstance(one, done.Release):
                self.tell(self._released(one))
            else:
                self.out.append(one)

    def usable_cores(self) -> int:
        """Cores on targets that the scheduler may use now."""
        usable = EMPTY
        for group in self._streams:
            usable |= self.module.usable(group)
        return self.module.resources.restrict(usable).count("core")

    def check(self) -> None:
        """Asserts law 5 over everything."""
        self.module.check()
        self.scheduler.check()

    def _open(self, group: str) -> None:
        client = AcquireClient(group)
        request = client.request()
        assert request is not None, "the typed dialect has a request"
        self._streams[group] = AcquireServer(request.typed, request.accept_update), client
        self.tell(self.module.acquire(ACQUIRER, request.group, request.typed))

    def _deliver(self, group: str) -> list[told.Effect]:
        """What waits in a stream reaches the scheduler; returns what the resource module answers to its releases."""
        server, client = self._streams[group]
        answers: list[told.Effect] = []
        for change in server.take():
            client.accept(change)
            for one in apply(self.scheduler, group, change, typed=True, now_s=self.now_s):
                if isinstance(one, done.Release):
                    answers += self._released(one)
                else:
                    self.out.append(one)
        return answers

    def _released(self, release: done.Release) -> list[told.Effect]:
        request = self._streams[release.group][1].release(release.targets)
        return self.module.release(ACQUIRER, request.group, Idset.parse(request.targets), self.now_s)

