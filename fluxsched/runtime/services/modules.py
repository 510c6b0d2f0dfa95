"""The `module` service: scheduler modules as processes of their own, loaded, removed, reloaded and watched.

A module that ends, by a crash or by an exception of its plugin, takes nothing with it: its loss is reported, its
resources stay with the running jobs, and a reload goes on from hello.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.protocol import codec
from fluxsched.protocol.header import Message
from fluxsched.protocol.messages.modules import (
    ModuleInfo,
    ModuleListResponse,
    ModuleLoadRequest,
    ModuleLoadResponse,
    ModuleRequest,
    ServiceRequest,
)
from fluxsched.runtime.children import ExitWatch
from fluxsched.runtime.config_values import QueueSettings
from fluxsched.runtime.log import logger
from fluxsched.runtime.peers import Peer, Request
from fluxsched.runtime.policies import composed, default_name, policy_of
from fluxsched.runtime.router import Handler, Router, forget
from fluxsched.runtime.services.scheduling import DEFAULT_GROUP, SchedulingService
from fluxsched.runtime.turns import Timer, Turns

log = logger("module")

MODULES_MAX = 64
"""Modules of one instance; each is a process."""
TERMINATE_S = 5.0
"""How long a module may take to leave after SIGTERM before it is killed (seconds)."""
LAST_WORDS_BYTES = 4096
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
STATUS_INIT, STATUS_RUNNING, STATUS_FINALIZING, STATUS_EXITED = 0, 1, 2, 3
"""Module status numbers as Flux's `module.list` has them."""


class Module:
    """One scheduler module: its process, its connection and how it ended."""

    def __init__(self, name: str, spec: str, specs: str, groups: tuple[str, ...], since_s: float) -> None:
        self.name = name
        self.spec = spec
        self.specs = specs  # complete with the policies of queues
        self.groups = groups
        self.since_s = since_s
        self.process: subprocess.Popen[bytes] | None = None
        self.watch: ExitWatch | None = None
        self.peer: Peer | None = None
        self.status = STATUS_INIT
        self.error: str | None = None
        self.log_begin = 0
        self.on_ready: list[Callable[[str | None], None]] = []
        self.on_exit: list[Callable[[], None]] = []
        self.killer: Timer | None = None
        self.reported = False


class ModuleService:
    """Serves `module.*` and `service.*`."""

    def __init__(
        self,
        router: Router,
        scheduling: SchedulingService,
        turns: Turns,
        directory: Path,
        uri: Callable[[], str],
        queues: Mapping[str, QueueSettings],
    ) -> None:
        self.modules: dict[str, Module] = {}
        self._router = router
        self._scheduling = scheduling
        self._turns = turns
        self._directory = directory
        self._uri = uri
        self._queues = queues
        self.builtin: dict[str, Handler] = {}
        """The parts of the instance itself, and who answers what they have to say of themselves."""
        router.serve(
            {
                "module.load": self.load_request,
                "module.remove": self._remove_request,
                "module.reload": self._reload_request,
                "module.list": self._list,
                "module.stats": self._stats,
                "service.add": self._service_add,
                "service.remove": self._service_remove,
            }
        )
        scheduling.on_ready.append(self._check_ready)

    # -- loading ------------------------------------------------------------------------------------------------

    def load(
        self, spec: str, name: str | None, groups: tuple[str, ...], ready: Callable[[str | None], None]
    ) -> Module:
        """Start a module; `ready` gets None once it serves its groups, else the reason why it never did."""
        groups = groups or (DEFAULT_GROUP,)
        specs = composed(spec, groups, self._queues)  # first: whose name it is matters only if it is one
        name = name or default_name(spec, groups)
        if NAME.fullmatch(name) is None:
            raise InvalidValue(f"module name {name!r} is not 1 to 64 letters, digits, '_', '.' or '-'")
        present = self.modules.get(name)
        if name in self.builtin or (present is not None and present.status != STATUS_EXITED):
            raise Refused(f"module {name!r} is already loaded; give another --name", errno.EEXIST)
        if len(self.modules) >= MODULES_MAX:
            raise Refused(f"{MODULES_MAX} modules are loaded, which is the limit; remove one", errno.EMFILE)
        for group in groups:
            for other in self.modules.values():
                if group in other.groups and other.status != STATUS_EXITED:
                    raise Refused(f"group {group!r} is served by module {other.name!r}; remove it first", errno.EBUSY)
        module = Module(name, spec, specs, groups, self._turns.wall_s)
        module.on_ready.append(ready)
        self._spawn(module)
        self.modules[name] = module
        return module

    def _spawn(self, module: Module) -> None:
        command = [sys.executable, "-m", "fluxsched.runtime.schedmain", "--uri", self._uri(), "--name", module.name]
        command += [part for group in module.groups for part in ("--group", group)]
        serves = [f"{name}={queue.group}" for name, queue in self._queues.items() if queue.group in module.groups]
        command += [part for pair in serves for part in ("--queue", pair)]
        try:
            self._start(module, [*command, module.specs])
        except OSError as exc:
            if module.process is not None:
                module.process.kill()
                module.process.wait()
            raise Refused(f"cannot start module {module.name!r}: {exc}; load it again when that is mended") from exc

    def _start(self, module: Module, command: list[str]) -> None:
        with self._log_path(module.name).open("ab") as output:
            module.log_begin = output.tell()
            module.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
            )
        loop = asyncio.get_running_loop()
        module.watch = ExitWatch(loop, module.process.pid, lambda: self._turns.post(lambda: self._exited(module)))

    def _log_path(self, name: str) -> Path:
        return self._directory / f"{name}.log"

    def _check_ready(self) -> None:
        for module in self.modules.values():
            if module.status == STATUS_INIT and module.peer is not None and self._scheduling.is_ready(module.peer):
                module.status = STATUS_RUNNING
                self._tell_ready(module, None)

    def _tell_ready(self, module: Module, error: str | None) -> None:
        calls, module.on_ready = module.on_ready, []
        for call in calls:
            call(error)

    def _exited(self, module: Module) -> None:
        assert module.process is not None
        status = module.process.wait()
        expected, served = module.status == STATUS_FINALIZING, module.status == STATUS_RUNNING
        module.status = STATUS_EXITED
        if module.killer is not None:
            module.killer.cancel()
        if not expected:
            cut_off = module.peer.dropped if module.peer is not None else None
            module.error = cut_off or self._why_ended(module, status)
            advice = f"running jobs go on, `fluxsched module reload {module.name}` starts it again"
            never = "it never served its groups; load another with `fluxsched module load`"
            log.error("module %s ended: %s; %s", module.name, module.error, advice if served else never)
        self._tell_ready(module, module.error or "removed before it was ready")
        calls, module.on_exit = module.on_exit, []
        for call in calls:
            call()

    def _why_ended(self, module: Module, status: int) -> str:
        """A signal, or the last line that this process has written, which is its reason."""
        if status < 0:
            return f"ended by signal {-status} ({signal.strsignal(-status)})"
        try:
            text = self._log_path(module.name).read_bytes()[module.log_begin :][-LAST_WORDS_BYTES:]
        except OSError:
            text = b""
        lines = text.decode(errors="replace").strip().splitlines()
        return lines[-1] if lines and status else f"exit status {status}"

    def load_request(self, request: Request) -> None:
        """`load` what a client asks for, and answer once it serves its groups."""
        wanted = request.payload(ModuleLoadRequest)
        self._answer_when_ready(request, wanted.spec, wanted.name, tuple(wanted.groups))

    def _answer_when_ready(self, request: Request, spec: str, name: str | None, groups: tuple[str, ...]) -> None:
        def ready(error: str | None) -> None:
            if error is None:
                assert module.process is not None
                request.respond(ModuleLoadResponse(name=module.name, pid=module.process.pid))
            else:
                self.modules.pop(module.name, None)
                request.error(errno.ENOEXEC, f"module {module.name}: {error}")

        module = self.load(spec, name, groups, ready)

    # -- removal ------------------------------------------------------------------------------------------------

    def remove(self, name: str, gone: Callable[[], None]) -> None:
        """End a module; `gone` is called when its process has ended."""
        module = self._module(name)
        if module.status == STATUS_EXITED:
            del self.modules[name]
            gone()
            return
        assert module.process is not None
        module.on_exit += [lambda: forget(self.modules, name), gone]
        if module.status != STATUS_FINALIZING:
            module.status = STATUS_FINALIZING
            module.process.terminate()
            module.killer = self._turns.after(TERMINATE_S, module.process.kill)

    def _module(self, name: str) -> Module:
        module = self.modules.get(name)
        if module is None:
            known = ", ".join(self.modules) or "none"
            if name in self.builtin:
                raise Refused(f"module {name!r} is part of the instance; those that can go: {known}", errno.EPERM)
            every = ", ".join([*self.builtin, *self.modules])
            raise Refused(f"module {name!r} is not loaded; those that are: {every}", errno.ENOENT)
        return module

    def _remove_request(self, request: Request) -> None:
        self.remove(request.payload(ModuleRequest).name, lambda: request.respond())

    def _reload_request(self, request: Request) -> None:
        module = self._module(request.payload(ModuleRequest).name)

        def again() -> None:
            try:
                self._answer_when_ready(request, module.spec, module.name, module.groups)
            except FluxschedError as exc:
                request.error(exc.errnum, str(exc))

        self.remove(module.name, again)

    def close(self) -> None:
        """End all modules and wait for them (at the end of the instance)."""
        running = [m for m in self.modules.values() if m.process is not None and m.status != STATUS_EXITED]
        for module in running:
            module.status = STATUS_FINALIZING
            if module.watch is not None:
                module.watch.close()
            assert module.process is not None
            module.process.terminate()
        for module in running:
            assert module.process is not None
            try:
                module.process.wait(TERMINATE_S)
            except subprocess.TimeoutExpired:
                module.process.kill()
                module.process.wait()

    def policy_of(self, queue: str | None, group: str) -> str | None:
        """The policy that orders a queue of the group, with its options; None while no module serves the group."""
        for module in self.modules.values():
            if group in module.groups and module.status == STATUS_RUNNING:
                return policy_of(queue, module.specs)
        return None

    # -- reading and services -----------------------------------------------------------------------------------

    def _list(self, request: Request) -> None:
        mods = [
            ModuleInfo(
                name=name,
                path="builtin",
                idle=0,
                status=STATUS_RUNNING,
                services=[name],
                sendqueue=0,
                recvqueue=0,
                pid=os.getpid(),
            )
            for name in sorted(self.builtin)
        ]
        for module in self.modules.values():
            mods.append(
                ModuleInfo(
                    name=module.name,
                    path=module.specs,
                    idle=0,
                    status=module.status,
                    services=["sched", *sorted(module.peer.services)] if module.peer else [],
                    sendqueue=len(module.peer.outbox) if module.peer else 0,
                    recvqueue=0,
                    pid=module.process.pid if module.process else None,
                    groups=list(module.groups),
                    error=module.error,
                )
            )
        request.respond(ModuleListResponse(mods=mods))

    def _stats(self, request: Request) -> None:
        name = request.payload(ModuleRequest).name
        if name in self.builtin:
            self.builtin[name](request)
            return
        peer = self._module(name).peer
        if peer is None:
            raise Refused(f"module {name!r} is not running", errno.EAGAIN)
        self._router.call(
            peer,
            f"{name}.stats-get",
            None,
            lambda answer: self._stats_answer(request, name, answer),
        )

    def _stats_answer(self, request: Request, name: str, answer: object) -> None:
        if not isinstance(answer, Message) or answer.errnum:
            request.error(errno.EIO, f"module {name!r} did not answer")
        else:
            request.respond(codec.unpack(answer.payload, dict))

    def _service_add(self, request: Request) -> None:
        service = request.payload(ServiceRequest).service
        module = self.modules.get(service)
        if module is None or module.status not in (STATUS_INIT, STATUS_RUNNING):
            raise Refused(f"service {service!r}: only modules that this instance loads may add services", errno.EPERM)
        self._router.register(service, request.peer)
        request.peer.name = service
        module.peer = request.peer
        request.respond()

    def _service_remove(self, request: Request) -> None:
        self._router.unregister(request.payload(ServiceRequest).service, request.peer)
        request.respond()
