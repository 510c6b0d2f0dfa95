"""`instance.metrics`: what an instance tells monitoring (rfc/operations.md).

Law: nothing here is done for each job or target on the way of a job; what is summed up is summed up when it is asked
for, in time linear in classes of targets, groups, queues, peers and targets in use, not in jobs.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxsched import __version__
from fluxsched.core.idset import Idset
from fluxsched.core.resources import ResourceSet
from fluxsched.jobs.manager import JobManager
from fluxsched.protocol.messages.metrics import GroupMetrics, MetricsResponse, PeerMetrics, QueueMetrics
from fluxsched.resource.module import ResourceModule
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.messaging.peers import Peer, RpcRequest
from fluxsched.runtime.messaging.router import GOODBYE, Router
from fluxsched.runtime.services.jobs.counts import JobCounts
from fluxsched.runtime.system.own_process import resident_bytes


class MetricsService:
    """Serves `instance.metrics`."""

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
                cores=core_states(self._module.resources, usable, self._manager.holdings.busy("core")),
                groups=tuple(
                    GroupMetrics(
                        group.name,
                        len(group.targets),
                        len(group.leaving),
                        len(self._module.usable(group.name)),
                        group.acquirer is not None,
                    )
                    for group in self._module.groups()
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
    """Each target in one state, the gravest that applies, and those that jobs may be put on or are on.

    A target that leaves its group counts as what it is besides: allocated or free.
    """
    found = module.states()
    leaving = found.pop("leaving")
    found["allocated"] |= leaving & module.held
    found["free"] |= leaving - module.held
    return found, found["allocated"] | found["free"]


def core_states(resources: ResourceSet, usable: Idset, busy: dict[int, int]) -> dict[str, int]:
    """Cores that jobs hold; free ones of usable targets; all others. `busy` has a mask a target."""
    total = on_usable = 0
    for entry in resources.entries:
        count = entry.children.count("core")
        total += len(entry.ranks) * count
        on_usable += len(entry.ranks & usable) * count
    allocated = sum([mask.bit_count() for mask in busy.values()])
    elsewhere = sum([busy.get(rank, 0).bit_count() for rank in resources.ranks - usable])
    free = on_usable - (allocated - elsewhere)
    return {"allocated": allocated, "free": free, "down": total - allocated - free}
