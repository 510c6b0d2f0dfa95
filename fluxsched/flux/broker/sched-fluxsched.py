"""The broker module: `flux module load $(fluxsched flux module-path) policy=fifo ...` (flux-core 0.88 or later).

Flux runs this file in a process of its own, with its own Python. Everything that decides is in `bridge.py`; this file
implements its `BrokerHandle` with Flux's Python API. Law: no exception leaves a callback, since Flux would take the
broker down: it is logged with its traceback, and the module stops without an error.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import flux.constants  # type: ignore[import-not-found]
from _flux._core import ffi, lib  # type: ignore[import-not-found]
from flux.brokermod import BrokerModule  # type: ignore[import-not-found]
from flux.future import Future  # type: ignore[import-not-found]
from flux.job import JobID  # type: ignore[import-not-found]
from flux.kvs import RAW as KVS  # type: ignore[import-not-found]
from flux.kvs import KVSTxn, commit_async

# ruff: noqa: N999 (Flux takes the module's name from its file, and its schedulers are sched-NAME)


PYTHON_PATH = "python-path="
"""The option that names more directories for imports: `fluxsched flux install` writes it where it is needed."""

HOME = Path(__file__).resolve().parents[3]
"""Directory of the package that this file belongs to: behind all else, so that Flux's own packages come first."""


def guarded(callback: Callable[..., None]) -> Callable[..., None]:
    """Return a method that Flux calls: what it raises ends the module, not the broker."""

    @wraps(callback)
    def call(self: FluxHandle, *args: Any) -> None:
        try:
            callback(self, *args)
        except Exception as fault:
            for line in traceback.format_exc().splitlines():
                self.log(6, line)
            self.log(2, f"the scheduler ends: {type(fault).__name__}: {fault}")
            self.stop()

    return call


class FluxHandle:
    """`flux.handle.BrokerHandle` on a real broker."""

    def __init__(self, module: BrokerModule, level: int) -> None:
        self.name = module.name
        self.ascii = JobID(0).f58.startswith("f")
        self.bridge: Any = None
        self._module = module
        self._flux = module.handle
        self._level = level
        self._watchers: list[Any] = []
        self._timer = self._flux.timer_watcher_create(0.0, self._turn)
        self._is_leaving = False

    def serve(self, topics: tuple[str, ...]) -> None:
        """Hand the requests of these topics to the bridge."""
        for topic in topics:
            watcher = self._flux.msg_watcher_create(self._request, flux.constants.FLUX_MSGTYPE_REQUEST, topic)
            watcher.start()
            self._watchers.append(watcher)

    # ---- what Flux calls

    @guarded
    def _request(self, _flux: Any, _watcher: Any, message: Any, _args: Any) -> None:
        from fluxsched.flux.handle import BrokerRequest

        topic, payload = ffi.new("char *[1]"), ffi.new("char *[1]")
        lib.flux_request_decode(message.handle, topic, payload)
        self.bridge.receive(BrokerRequest(ffi.string(topic[0]).decode(), _bytes(payload[0]), message))

    @guarded
    def _turn(self, *_: Any) -> None:
        self.bridge.turn()

    @guarded
    def _reply(self, future: Any, read: Callable[[Any], bytes | None], done: Any, streaming: bool) -> None:
        from fluxsched.flux.handle import BrokerReply

        try:
            reply = BrokerReply(read(future))
        except OSError as fault:
            reply = BrokerReply(None, fault.errno or 5, fault.strerror or str(fault))
        done(reply)
        if streaming and not reply.errnum:
            future.reset()
        else:
            future.cb_handle = None  # it points at the future itself: without it the future and its tag are freed now

    @guarded
    def leave(self) -> None:
        """Wait for what the bridge still wants stored, since the reactor has stopped."""
        self._is_leaving = True
        self.bridge.leave()

    # ---- what the bridge calls

    def rpc(self, topic: str, payload: bytes | None, done: Any, *, streaming: bool = False) -> None:
        flags = flux.constants.FLUX_RPC_STREAMING if streaming else 0
        self._flux.rpc(topic, payload, flags=flags).then(self._reply_to, _rpc_payload, done, streaming)

    def commit(self, values: Mapping[str, bytes], done: Any) -> None:
        transaction = KVSTxn(self._flux)
        for key, value in values.items():
            transaction.put(key, value, raw=True)
        future = commit_async(self._flux, _kvstxn=transaction)
        if self._is_leaving:
            self._reply(future, _nothing, done, False)
        else:
            future.then(self._reply_to, _nothing, done, False)

    def lookup(self, key: str, done: Any) -> None:
        Future(KVS.flux_kvs_lookup(self._flux, None, 0, key)).then(self._reply_to, _value, done, False)

    def _reply_to(self, future: Any, read: Any, done: Any, streaming: bool) -> None:
        self._reply(future, read, done, streaming)

    def respond(self, request: Any, payload: bytes | None) -> None:
        self._flux.respond(request.token, payload)

    def fail(self, request: Any, errnum: int, text: str) -> None:
        self._flux.respond_error(request.token, errnum, text)

    def after(self, delay_s: float) -> None:
        self._timer.stop()  # a timer that runs is not reset: it is started again only where it does not
        self._timer.reset(after=delay_s)

    def log(self, level: int, text: str) -> None:
        if level <= self._level:
            self._flux.log(level, text)

    def debug(self, bit: int) -> bool:
        return bool(self._module.debug_test(bit))

    def stop(self) -> None:
        self._module.stop()


def _bytes(text: Any) -> bytes | None:
    return None if text == ffi.NULL else bytes(ffi.string(text))


def _rpc_payload(future: Any) -> bytes | None:
    payload = ffi.new("char *[1]")
    future.pimpl.flux_rpc_get(payload)
    return _bytes(payload[0])


def _value(future: Any) -> bytes | None:
    value = ffi.new("char *[1]")
    KVS.flux_kvs_lookup_get(future, value)
    return _bytes(value[0])


def _nothing(future: Any) -> None:
    future.get()


def mod_main(h: Any, *args: str) -> None:
    """Run the module, called by Flux.

    A ValueError is an option's fault: Flux shows it where the broker's errors go, not where the module is loaded, so it
    is in the log, too.
    """
    module = BrokerModule(h, *args)
    try:
        handle = _begin(module, args)
    except ValueError as fault:
        module.log.error(str(fault))
        raise
    from fluxsched.system.processes import settle

    settle()
    module.run()
    handle.leave()


def _begin(module: BrokerModule, args: tuple[str, ...]) -> FluxHandle:
    """Everything that can go wrong at load. Raises ValueError naming what is wrong and the remedy."""
    paths = [word.removeprefix(PYTHON_PATH) for word in args if word.startswith(PYTHON_PATH)]
    sys.path += [*filter(None, ":".join(paths).split(":")), str(HOME)]
    try:
        from fluxsched.flux.bridge import TOPICS, Bridge, read_site
        from fluxsched.flux.handle import parse_options
        from fluxsched.sched.policy import reads_fair
        from fluxsched.system.clock import SystemClock
    except ImportError as fault:
        raise ValueError(
            f"{sys.executable} cannot import fluxsched: {fault}; `fluxsched flux install` explains what to do"
        ) from fault

    options = parse_options([word for word in args if not word.startswith(PYTHON_PATH)], module.name)
    policies = [options.policy, *options.policies.values()]
    site = read_site(module.handle.rpc("config.get").get(), reads_fair=any(map(reads_fair, policies)))
    handle = FluxHandle(module, options.log_level)
    handle.bridge = Bridge(handle, options, SystemClock(), site)
    for service in ("sched", "feasibility"):
        module.handle.service_register(service).get()
    handle.serve((*TOPICS, f"{module.name}.stats-get"))
    handle.bridge.start()
    return handle
