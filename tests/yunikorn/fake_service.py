"""A scheduler service of a few lines, over real gRPC: it accepts all and allocates node by node, as a test tells it.

It shares nothing with ours but the messages, so a resource manager's side is tested against another implementation.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from fluxsched.yunikorn import messages
from fluxsched.yunikorn.wire import SCHEDULER, Address


class FakeService:
    """What it was sent is in `nodes`, `applications`, `asks` and `releases`; `allocates` False: asks wait."""

    def __init__(self) -> None:
        self.registrations: list[Any] = []
        self.nodes: dict[str, Any] = {}
        self.applications: dict[str, Any] = {}
        self.asks: dict[str, Any] = {}
        self.releases: list[Any] = []
        self.allocates = True
        self.refuses_nodes = ""
        self._uuids = 0

    async def register(self, request: Any, context: Any) -> Any:
        self.registrations.append(request)
        return messages.RegisterResourceManagerResponse()

    async def update_node(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            response = messages.NodeResponse()
            for node in request.nodes:
                if self.refuses_nodes:
                    response.rejected.add(nodeID=node.nodeID, reason=self.refuses_nodes)
                    continue
                self.nodes[node.nodeID] = node
                if node.action == messages.NodeInfo.CREATE:
                    response.accepted.add(nodeID=node.nodeID)
                elif node.action == messages.NodeInfo.DECOMISSION:
                    del self.nodes[node.nodeID]
            yield response

    async def update_application(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            response = messages.ApplicationResponse()
            for application in request.new:
                self.applications[application.applicationID] = application
                response.accepted.add(applicationID=application.applicationID)
            for removed in request.remove:
                self.applications.pop(removed.applicationID, None)
            yield response

    async def update_allocation(self, requests: Any, context: Any) -> Any:
        async for request in requests:
            response = messages.AllocationResponse()
            for ask in request.asks:
                self.asks[ask.allocationKey] = ask
                for _ in range(ask.maxAllocations if self.allocates else 0):
                    response.new.append(self.allocation(ask, self._next_node()))
            for release in request.releases.allocationsToRelease:
                self.releases.append(release)
            yield response

    def _next_node(self) -> str:
        names = sorted(self.nodes)
        return names[self._uuids % len(names)]

    def allocation(self, ask: Any, node: str) -> Any:
        self._uuids += 1
        return messages.Allocation(
            allocationKey=ask.allocationKey, UUID=f"u{self._uuids}", nodeID=node, applicationID=ask.applicationID,
            resourcePerAlloc=ask.resourceAsk, partitionName=ask.partitionName,
        )  # fmt: skip

    @asynccontextmanager
    async def at(self, path: Path) -> AsyncIterator[Address]:
        """Serves on a socket."""
        server = grpc.aio.server()
        does = {
            "UpdateNode": self.update_node, "UpdateApplication": self.update_application,
            "UpdateAllocation": self.update_allocation,
        }  # fmt: skip
        handlers = {
            name: grpc.stream_stream_rpc_method_handler(
                does[name], SCHEDULER[name].request.FromString, SCHEDULER[name].response.SerializeToString
            )
            for name in does
        }
        register = SCHEDULER["RegisterResourceManager"]
        handlers[register.name] = grpc.unary_unary_rpc_method_handler(
            self.register, register.request.FromString, register.response.SerializeToString
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(register.service, handlers),))
        address = Address(path=path)
        server.add_insecure_port(str(address))
        await server.start()
        try:
            yield address
        finally:
            await server.stop(0)
