"""The `module` service: scheduler modules as processes of their own, loaded, removed, reloaded and watched.

A module that ends, by a crash or by an exception of its plugin, affects nothing else: its loss is reported, its
resources stay with the running jobs, and its successor continues from hello. `supervision` decides which that is.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Mapping, Sequence

from fluxsched.config.policies import composed, default_name, policy_of
from fluxsched.config.reader import check_fallback, import_faults, recovery_of
from fluxsched.config.values import Recovery
from fluxsched.core.jobfields import SiteLimit
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.jobs.queues import DEFAULT_GROUP, QueueConfig
from fluxsched.messaging.peers import RpcRequest
from fluxsched.messaging.router import Handler, Router
from fluxsched.protocol import framing
from fluxsched.protocol.framing import Message
from fluxsched.protocol.messages.instance import (
    ModuleInfo,
    ModuleListResponse,
    ModuleLoadRequest,
    ModuleLoadResponse,
    ModuleRequest,
    ServiceRequest,
)
from fluxsched.sched.engine.policy_queue import WAIT
from fluxsched.sched.preemption import PREEMPT_TIMEOUT_S
from fluxsched.services.module_processes import (
    STATUS_EXITED,
    STATUS_FINALIZING,
    STATUS_INIT,
    STATUS_RUNNING,
    Module,
    ModuleStart,
    ModuleTable,
    StartModule,
    Supervision,
    troubles,
)
from fluxsched.services.scheduling import SchedulingService
from fluxsched.store.store import Writer
from fluxsched.system.log import logger
from fluxsched.system.loop import Turns

log = logger("module")

MODULES_MAX = 64
"""Modules of one instance; each is a process."""
TERMINATE_S = 5.0
"""Maximum time until a module must exit after SIGTERM, before it is killed (seconds)."""
BY_HAND = Recovery(restart=0, fallback=None)
"""A user who loads a module by hand watches it, and wants to see why it ended."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class ModuleService:
    """Service of the `module.*` and `service.*` topics."""

    def __init__(
        self,
        table: ModuleTable,
        router: Router,
        scheduling: SchedulingService,
        turns: Turns,
        start: StartModule,
        uri: str,
        pid: int,
        queues: Mapping[str, QueueConfig],
        trying: Writer,
        unsatisfiable: str = WAIT,
        preempt_timeout_s: float = PREEMPT_TIMEOUT_S,
        limits: Sequence[SiteLimit] = (),
    ) -> None:
        """Create the service. `trying` imports the policies of a module that is to be reloaded, which may take
        seconds.
        """
        self._table = table
        self.modules = table.by_name
        self._router = router
        self._scheduling = scheduling
        self._turns = turns
        self._start_process = start
        self._uri = uri
        self._pid = pid
        self._queues = queues
        self._trying = trying
        self._terms = unsatisfiable, preempt_timeout_s
        self._limits = tuple(limits)
        self._builtin: dict[str, Handler] = {}
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
        self.are_terminated = False
        """True once all modules were asked to exit, at the end of the instance."""
        self._supervision = Supervision(router, turns, lambda: self.modules.values(), self._spawn)
        scheduling.on_ready.append(self._check_ready)

    def add_builtin(self, stats: Mapping[str, Handler]) -> None:
        """List parts of the instance itself as modules, with the handlers of their statistics."""
        self._builtin.update(stats)

    # -- loading ------------------------------------------------------------------------------------------------

    def load(
        self,
        spec: str,
        name: str | None,
        groups: tuple[str, ...],
        ready: Callable[[str | None], None],
        recovery: Recovery = BY_HAND,
    ) -> Module:
        """Start a module; `ready` gets None once it serves its groups, else the reason why it never did."""
        groups = groups or (DEFAULT_GROUP,)
        specs = composed(spec, groups, self._queues)  # first: the name matters only for a valid policy
        name = name or default_name(spec, groups)
        if NAME.fullmatch(name) is None:
            raise InvalidValue(f"module name {name!r} is not 1 to 64 letters, digits, '_', '.' or '-'")
        present = self.modules.get(name)
        if name in self._builtin or (present is not None and present.is_live):
            raise Refused(f"module {name!r} is already loaded; give another --name", errno.EEXIST)
        if len(self.modules) >= MODULES_MAX:
            raise Refused(f"{MODULES_MAX} modules are loaded, which is the limit; remove one", errno.EMFILE)
        self._table.check_served(groups, None)
        module = Module(name, spec, specs, groups, recovery, self._turns.wall_s)
        module.on_ready.append(ready)
        self._spawn(module)
        self.modules[name] = module
        return module

    def _replace(self, old: Module, ready: Callable[[str | None], None]) -> None:
        """Start the successor of a module that has left.

        If the old one had served its groups, a failure of the new one is a later failure of the module: it is started
        again, or its fallback takes its place.
        """
        self._table.check_served(old.groups, old)
        specs = composed(old.spec, old.groups, self._queues)
        module = Module(old.name, old.spec, specs, old.groups, old.recovery, self._turns.wall_s)
        module.has_served = old.has_served
        module.on_ready.append(ready)
        self.modules[old.name] = module
        self._supervision.start(module)
        if module.process is None:
            module.tell_ready(module.error)

    def _spawn(self, module: Module) -> None:
        def ended() -> None:
            self._turns.post(lambda: self._exited(module))

        queues = [(name, group) for name, groups in _served(module, self._queues).items() for group in groups]
        wanted = ModuleStart(self._uri, module.name, module.specs, module.groups, queues, *self._terms, self._limits)
        module.spawn(self._start_process, wanted, ended)
        self._supervision.watch(module)

    def _check_ready(self) -> None:
        for module in self.modules.values():
            if module.status == STATUS_INIT and module.peer is not None and self._scheduling.is_ready(module.peer):
                module.status, module.has_served = STATUS_RUNNING, True
                module.tell_ready(None)

    def _exited(self, module: Module) -> None:
        expected = module.status == STATUS_FINALIZING
        why = module.ended()
        if module.peer is not None and not module.peer.gone:
            self._router.drop_peer(module.peer, why)
        if not expected:
            module.error = why
            if module.has_served:
                self._supervision.failed(module)
            else:
                never = "it never served its groups; load another with `fluxsched module load`"
                log.error("module %s ended: %s; %s", module.name, why, never)
        module.tell_ready(module.error or "removed before it was ready")
        self._when_free(module, module.tell_exit)

    def _when_free(self, module: Module, call: Callable[[], None]) -> None:
        """Call it when the services and groups of a module that has ended are free for its successor.

        The loss of its connection may be known a little later than its end.
        """
        if module.peer is None:
            call()
        else:
            self._router.when_lost(module.peer, call)

    def load_request(self, request: RpcRequest) -> None:
        """Perform `load` for a client, and answer once the module serves its groups."""
        wanted = request.payload(ModuleLoadRequest)
        if wanted.fallback is not None:
            check_fallback(wanted.fallback)
        recovery = recovery_of(wanted.restart, wanted.fallback, wanted.hung_after, BY_HAND)

        def ready(error: str | None) -> None:
            if error is not None:
                self.modules.pop(module.name, None)
            self._answer_load(request, module.name, error)

        module = self.load(wanted.spec, wanted.name, tuple(wanted.groups), ready, recovery)

    def _answer_load(self, request: RpcRequest, name: str, error: str | None) -> None:
        if error is None:
            process = self.modules[name].process
            assert process is not None
            request.respond(ModuleLoadResponse(name=name, pid=process.pid))
        else:
            request.error(errno.ENOEXEC, f"module {name}: {error}")

    # -- removal ------------------------------------------------------------------------------------------------

    def remove(self, name: str, gone: Callable[[], None]) -> None:
        """End a module; `gone` is called when its process has ended, and all its resources are free."""
        module = self._module(name)
        self._supervision.forget(module)
        if module.status == STATUS_EXITED:
            del self.modules[name]
            self._when_free(module, gone)
            return
        assert module.process is not None
        module.on_exit += [lambda: self._forget(module), gone]
        self._terminate(module)

    def _forget(self, module: Module) -> None:
        if self.modules.get(module.name) is module:
            del self.modules[module.name]

    def _terminate(self, module: Module) -> None:
        if module.status != STATUS_FINALIZING:
            assert module.process is not None
            module.status = STATUS_FINALIZING
            module.process.terminate()
            module.killer = self._turns.after(TERMINATE_S, module.process.kill)

    def _module(self, name: str) -> Module:
        module = self.modules.get(name)
        if module is None:
            known = ", ".join(self.modules) or "none"
            if name in self._builtin:
                raise Refused(f"module {name!r} is part of the instance; removable modules: {known}", errno.EPERM)
            every = ", ".join([*self._builtin, *self.modules])
            raise Refused(f"module {name!r} is not loaded; loaded modules: {every}", errno.ENOENT)
        return module

    def _remove_request(self, request: RpcRequest) -> None:
        self.remove(request.payload(ModuleRequest).name, lambda: request.respond())

    def _reload_request(self, request: RpcRequest) -> None:
        """Import the policies of a module anew in processes of their own; if that succeeds, replace the module."""
        module = self._module(request.payload(ModuleRequest).name)
        self._table.check_served(module.groups, module)
        specs = composed(module.spec, module.groups, self._queues)
        faults: list[str] = []

        def try_imports() -> None:
            try:
                faults.extend(import_faults(specs, module.recovery.hung_after_s))
            except OSError as exc:
                faults.append(f"no process can be started for its policy: {exc}")

        def tried() -> None:
            state = "is as it was" if module.status == STATUS_EXITED else "goes on with the policy that it has"
            if faults:
                request.error(errno.ENOEXEC, f"module {module.name} {state}: {'; '.join(faults)}")
            elif self.modules.get(module.name) is not module or module.status == STATUS_FINALIZING:
                request.error(errno.EBUSY, f"module {module.name} has just been removed or reloaded: reload it again")
            else:
                self.remove(module.name, replace)

        def replace() -> None:
            try:
                self._replace(module, lambda error: self._answer_load(request, module.name, error))
            except FluxschedError as exc:  # another module has taken the group meanwhile
                request.failed(exc)

        self._trying.run(try_imports, tried)

    def terminate(self) -> None:
        """Ask all modules to leave; none is started again (at the end of the instance)."""
        self.are_terminated = True
        for module in self.modules.values():
            self._supervision.forget(module)
            if module.is_running:
                self._terminate(module)

    @property
    def are_running(self) -> bool:
        """Return whether some module's process has not ended."""
        return any(module.process is not None and module.status != STATUS_EXITED for module in self.modules.values())

    def close(self) -> None:
        """End the running modules and wait for them (at the end of the instance)."""
        running = [m for m in self.modules.values() if m.process is not None and m.status != STATUS_EXITED]
        for module in running:
            module.status = STATUS_FINALIZING
            assert module.process is not None
            module.process.forget()
            module.process.terminate()
        for module in running:
            assert module.process is not None
            module.process.finish(TERMINATE_S)

    def policy_of(self, queue: str | None, group: str) -> str | None:
        """Return the policy that orders a queue of the group, with its options; None while no module serves the
        group.
        """
        for module in self.modules.values():
            if group in module.groups and module.status == STATUS_RUNNING:
                return policy_of(queue, module.specs)
        return None

    # -- other queues -------------------------------------------------------------------------------------------

    def faults(self, queues: Mapping[str, QueueConfig]) -> list[str]:
        """Return the objections to these queues: modules with a policy for a queue that would then not be theirs."""
        found = []
        for module in self.modules.values():
            try:
                composed(module.spec, module.groups, queues)
            except InvalidValue as fault:
                found.append(f"module {module.name}: {fault}")
        return found

    def reconfigure(self, queues: Mapping[str, QueueConfig], limits: Sequence[SiteLimit] = ()) -> list[str]:
        """Serve other queues, against which `faults` has nothing to say; the modules that are started anew for it.

        That is only where a module would otherwise not know which policy or which of its groups a queue belongs to, or
        obey other limits.
        """
        before, self._queues = self._queues, queues
        are_limits_same, self._limits = tuple(limits) == self._limits, tuple(limits)
        anew = []
        for module in self.modules.values():
            specs = [composed(module.spec, module.groups, each) for each in (before, queues)]
            served = [_served(module, each) for each in (before, queues)]
            if are_limits_same and specs[0] == specs[1] and (len(module.groups) == 1 or served[0] == served[1]):
                continue
            if module.specs == specs[0]:  # else its fallback serves, and continues
                module.specs = specs[1]
            if module.is_running:
                anew.append(module.name)
                self._start_anew(module)
        return anew

    def _start_anew(self, module: Module) -> None:
        """Start a module again; grants that the old process still sends are rejected, since their recipients are
        unknown to it.
        """
        if module.peer is not None:
            self._scheduling.remove_scheduler(module.peer)

        def again() -> None:
            self.modules[module.name] = module
            module.error = None
            self._supervision.start(module)

        self.remove(module.name, again)

    # -- reading and services -----------------------------------------------------------------------------------

    def _list(self, request: RpcRequest) -> None:
        mods = [
            ModuleInfo(
                name=name,
                path="builtin",
                idle=0,
                status=STATUS_RUNNING,
                services=[name],
                sendqueue=0,
                recvqueue=0,
                pid=self._pid,
            )
            for name in sorted(self._builtin)
        ]
        for module in self.modules.values():
            mods.append(
                ModuleInfo(
                    name=module.name,
                    path=module.specs,
                    idle=0,
                    status=module.status,
                    services=["sched", *sorted(module.peer.services)] if module.peer and module.is_running else [],
                    sendqueue=len(module.peer.outbox) if module.peer else 0,
                    recvqueue=0,
                    pid=module.process.pid if module.process else None,
                    groups=list(module.groups),
                    error=troubles(module),
                )
            )
        request.respond(ModuleListResponse(mods=mods))

    def _stats(self, request: RpcRequest) -> None:
        name = request.payload(ModuleRequest).name
        if name in self._builtin:
            self._builtin[name](request)
            return
        peer = self._module(name).peer
        if peer is None:
            raise Refused(f"module {name!r} is not running", errno.EAGAIN)
        self._router.call(
            peer,
            f"{name}.stats-get",
            None,
            lambda answer: self._stats_answer(request, name, answer),
            is_question=True,
        )

    def _stats_answer(self, request: RpcRequest, name: str, answer: object) -> None:
        if isinstance(answer, Message) and answer.errnum == errno.ETIMEDOUT:
            request.relay(answer)
        elif not isinstance(answer, Message) or answer.errnum:
            request.error(errno.EIO, f"module {name!r} did not answer")
        else:
            request.respond(framing.unpack(answer.payload, dict))

    def _service_add(self, request: RpcRequest) -> None:
        service = request.payload(ServiceRequest).service
        module = self.modules.get(service)
        if module is None or module.status not in (STATUS_INIT, STATUS_RUNNING):
            raise Refused(f"service {service!r}: only modules that this instance loads may add services", errno.EPERM)
        self._router.register(service, request.peer)
        request.peer.name = service
        module.peer = request.peer
        request.respond()

    def _service_remove(self, request: RpcRequest) -> None:
        self._router.unregister(request.payload(ServiceRequest).service, request.peer)
        request.respond()


def _served(module: Module, queues: Mapping[str, QueueConfig]) -> dict[str, tuple[str, ...]]:
    return {name: queue.groups for name, queue in queues.items() if queue.group in module.groups}
