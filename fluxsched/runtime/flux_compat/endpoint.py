"""Opens the instance to stock Flux clients: which services they meet, and what a guest may ask.

A guest is another user than the owner, where the configuration lets them in at all (`access.allow-guest-user`). Law:
what is not named here, or served with `guests=True`, is the owner's.
"""

from __future__ import annotations

from fluxsched.runtime.flux_compat.instance import FluxInstanceService
from fluxsched.runtime.flux_compat.resource import FluxResourceService
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.messaging.router import Router
from fluxsched.runtime.services.instance import InstanceService
from fluxsched.runtime.services.modules.service import ModuleService
from fluxsched.runtime.services.resource import ResourceService

GUEST_TOPICS = frozenset(
    {
        "attr.get",
        "config.get",
        "instance.ping",
        "job-manager.ping",
        "job-manager.queue-list",
        "module.list",
        "resource.ping",
        "resource.sched-status",
        "resource.stats-get",
        "resource.status",
    }
)
"""What Flux lets its guests read, of the services that all clients share."""


class FluxEndpoint:
    """All services that only peers of a local socket meet."""

    def __init__(
        self,
        router: Router,
        resource: ResourceService,
        instance: InstanceService,
        modules: ModuleService,
        turns: Turns,
        started_s: float,
    ) -> None:
        router.admit_guests(GUEST_TOPICS)
        self.resource = FluxResourceService(resource, router, turns)
        self.instance = FluxInstanceService(
            instance, resource.module, modules.load_request, lambda: turns.wall_s - started_s, router
        )
