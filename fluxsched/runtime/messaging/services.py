"""Which handler answers a topic: those of the instance, those for local peers only, and peers that serve a service."""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping

from fluxsched.errors import FluxschedError
from fluxsched.runtime.messaging import limits
from fluxsched.runtime.messaging.peers import Peer, RpcRequest

Handler = Callable[[RpcRequest], None]


class Services:
    """A table of handlers; `cancel` answers the cancel topic of a stream that has none of its own."""

    def __init__(self, cancel: Handler) -> None:
        self.handlers: dict[str, Handler] = {}
        self._cancel = cancel
        self._names: set[str] = set()
        self._local_handlers: dict[str, Handler] = {}
        self._local_names: set[str] = set()
        self._absent_local: dict[str, str] = {}
        self._tables = {False: (self.handlers,), True: (self._local_handlers, self.handlers)}
        """Where to look for a handler, by whether the peer speaks JSON."""
        self._remote: dict[str, Peer] = {}

    def serve(self, handlers: Mapping[str, Handler]) -> None:
        """See `Router.serve`."""
        for topic, handler in handlers.items():
            self.handlers[topic] = handler
            self._names.add(topic.split(".", 1)[0])

    def serve_local(self, handlers: Mapping[str, Handler]) -> None:
        """See `Router.serve_local`."""
        for topic, handler in handlers.items():
            self._local_handlers[topic] = handler
            self._local_names.add(topic.split(".", 1)[0])

    def absent_local(self, services: Mapping[str, str]) -> None:
        """See `Router.absent_local`."""
        self._absent_local.update(services)

    def guard(self, guards: Mapping[str, Callable[[Handler], Handler]]) -> None:
        """See `Router.guard`."""
        for handlers in (self.handlers, self._local_handlers):
            for topic in guards.keys() & handlers.keys():
                handlers[topic] = guards[topic](handlers[topic])

    def register(self, service: str, peer: Peer) -> None:
        """See `Router.register`."""
        if service in self._names or service in self._remote:
            raise FluxschedError(f"service {service!r} is already registered", errno.EEXIST)
        limits.check_services(len(peer.services))
        self._remote[service] = peer
        peer.services.add(service)

    def unregister(self, service: str, peer: Peer) -> None:
        """See `Router.unregister`."""
        if self._remote.get(service) is not peer:
            raise FluxschedError(f"service {service!r} is not registered by this peer", errno.ENOENT)
        del self._remote[service]
        peer.services.discard(service)

    def lost(self, peer: Peer) -> None:
        """The peer serves nothing any more."""
        for service in peer.services:
            self._remote.pop(service, None)

    def find(self, topic: str, *, json: bool) -> Handler | Peer:
        """What answers a topic. Raises FluxschedError (ENOSYS), as Flux's broker words it."""
        for handlers in self._tables[json]:
            handler = handlers.get(topic)
            if handler is not None:
                return handler
            if topic.endswith("-cancel") and topic.removesuffix("-cancel") in handlers:
                return self._cancel
        if json and (handler := self._local_handlers.get(each_jobs(topic))) is not None:
            return handler
        service = topic.split(".", 1)[0]
        if service in self._remote:
            return self._remote[service]
        if service in self._names or (json and service in self._local_names):
            raise FluxschedError(f"Unknown service method '{topic}'", errno.ENOSYS)
        remedy = self._absent_local.get(service) if json else None
        text = f"No service matching {topic} is registered"
        raise FluxschedError(f"{text}: {remedy}" if remedy else text, errno.ENOSYS)


def each_jobs(topic: str) -> str:
    """The name under which `serve_local` knows a topic that each job has of its own: `shell-*.stdin`."""
    kind, _, rest = topic.partition("-")
    return f"{kind}-*.{rest.rpartition('.')[2]}"
