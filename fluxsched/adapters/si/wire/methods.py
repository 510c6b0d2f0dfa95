"""The RPCs of both services, as a table made from the descriptors: no generated stubs."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from fluxsched.adapters.si import messages


class Method(NamedTuple):
    """Method of a service: one RPC."""

    service: str
    name: str
    request: Any
    response: Any
    streams_requests: bool
    streams_responses: bool

    @property
    def path(self) -> str:
        """Return the path of the RPC in HTTP/2."""
        return f"/{self.service}/{self.name}"


def _methods(name: str, package: str) -> dict[str, Method]:
    service = messages.service(name, package)
    return {
        each.name: Method(
            service.full_name,
            each.name,
            messages.class_of(each.input_type),
            messages.class_of(each.output_type),
            each.client_streaming,
            each.server_streaming,
        )
        for each in service.methods
    }


SCHEDULER: Final = _methods("Scheduler", messages.PACKAGE)
"""Methods of the interface's own service."""
EXTRA: Final = _methods("Extra", messages.EXTRA_PACKAGE)
"""Methods of the service `Extra`."""
