"""fluxsched: a Flux-style resource module and pluggable schedulers for HPC.

The names listed in `__all__` are the public ones. They are imported when first used, so that a command starts fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluxsched.client.aio import connect
    from fluxsched.client.blocking import connect_sync
    from fluxsched.client.executor import Executor, JobError
    from fluxsched.core.hostlist import Hostlist
    from fluxsched.core.idset import Idset
    from fluxsched.core.jobid import format_f58, parse_jobid
    from fluxsched.core.jobspec import Jobspec
    from fluxsched.core.resources import ResourceSet
    from fluxsched.errors import Disconnected, FluxschedError, RPCError
    from fluxsched.instance.instance import Instance
    from fluxsched.instance.launch import StartOptions, settings_of

__version__ = "0.2.0"

_HOME = {
    "Disconnected": "fluxsched.errors",
    "Executor": "fluxsched.client.executor",
    "FluxschedError": "fluxsched.errors",
    "Hostlist": "fluxsched.core.hostlist",
    "Idset": "fluxsched.core.idset",
    "Instance": "fluxsched.instance.instance",
    "JobError": "fluxsched.client.executor",
    "Jobspec": "fluxsched.core.jobspec",
    "RPCError": "fluxsched.errors",
    "ResourceSet": "fluxsched.core.resources",
    "StartOptions": "fluxsched.instance.launch",
    "connect": "fluxsched.client.aio",
    "connect_sync": "fluxsched.client.blocking",
    "format_f58": "fluxsched.core.jobid",
    "parse_jobid": "fluxsched.core.jobid",
    "settings_of": "fluxsched.instance.launch",
}

__all__ = [
    "Disconnected",
    "Executor",
    "FluxschedError",
    "Hostlist",
    "Idset",
    "Instance",
    "JobError",
    "Jobspec",
    "RPCError",
    "ResourceSet",
    "StartOptions",
    "connect",
    "connect_sync",
    "format_f58",
    "parse_jobid",
    "settings_of",
]


def __getattr__(name: str) -> Any:
    if name == "sim":  # `import fluxsched` suffices for `fluxsched.sim.run(...)`
        return import_module("fluxsched.sim")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'fluxsched' has no attribute {name!r}; its public names are in fluxsched.__all__")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
