"""`pool-class=fluxsched.flux.broker.pool`: our pool (`flux/pool.py`) under Flux's own schedulers."""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from typing import Any

from flux.resource import InfeasibleRequest, InsufficientResources, ResourceSet  # type: ignore[import-not-found]
from flux.resource.ResourcePool import ResourcePool  # type: ignore[import-not-found]

from fluxsched.flux.pool import JobPool, PoolErrors
from fluxsched.system.clock import SystemClock


class FluxschedPool(ResourcePool):  # type: ignore[misc]
    """Flux's wrapper around our implementation; `log` is not used, Flux's schedulers log what they do."""

    def __init__(self, R: Any = None, log: Any = None, **options: str) -> None:  # noqa: N803
        parsed: Mapping[str, Any] = json.loads(R) if isinstance(R, str) else R
        errors = PoolErrors(
            lambda why: InsufficientResources(errno.ENOSPC, why), lambda why: InfeasibleRequest(errno.EOVERFLOW, why)
        )
        known = {key: value for key, value in options.items() if key in JobPool.known_options}
        self.impl = JobPool(parsed, errors, SystemClock.wall_s, **known)
        self.version = 1

    def copy_allocated(self) -> Any:
        """Return a copy of the resources that jobs hold."""
        return ResourceSet(self.impl.allocated())

    def copy_down(self) -> Any:
        """Return a copy of the resources that may not be used."""
        return ResourceSet(self.impl.down())

    def to_resource_set(self) -> Any:
        """Return all resources as a resource set."""
        return ResourceSet(self.impl.to_dict())


pool_class = FluxschedPool
