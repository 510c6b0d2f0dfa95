"""An instance of its own: resource module, job manager, executors and module host on one loop.

    async with Instance(settings) as instance:      # running; instance.uri is where clients connect
        ...

This file takes what the real world gives (directories, sockets, processes) and gives it back; `parts.assembly` puts the
services together from it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import Coroutine, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.protocol.messages.common import InstanceInfo
from fluxsched.runtime.access.access import Access
from fluxsched.runtime.access.keyring import ReadKeys, authorized_directory, authorized_keys, read_keyring
from fluxsched.runtime.client.enclosing import Enclosing, job_variables
from fluxsched.runtime.exec.base import Executor, Reports
from fluxsched.runtime.exec.cleanup.leftovers import PROGRAM
from fluxsched.runtime.exec.keeper.local_host import LocalKeeperHost
from fluxsched.runtime.exec.keeper.proxy import KeeperExecutor
from fluxsched.runtime.exec.timed import TimedExecutor
from fluxsched.runtime.exec.usage.memory import way_of_enforcing
from fluxsched.runtime.instance.parts.assembly import Assembly
from fluxsched.runtime.instance.parts.companion import Companion, metrics_kind, page_kind
from fluxsched.runtime.instance.parts.enclosed_targets import grace_of
from fluxsched.runtime.instance.parts.restarting import RESTART_S, HandedOver
from fluxsched.runtime.instance.parts.surroundings import Surroundings
from fluxsched.runtime.instance.run_directory import StateLock, kept_run_directory, make_run_directory, remove_dead
from fluxsched.runtime.instance.settings import Settings
from fluxsched.runtime.instance.shutdown import end_jobs, end_modules, until
from fluxsched.runtime.instance.stored_state import StateNotice, StoredState, read_store
from fluxsched.runtime.loop.store import Store
from fluxsched.runtime.loop.turns import Turns
from fluxsched.runtime.loop.writer import ThreadedWriter, ThreadPerCallWriter
from fluxsched.runtime.messaging.disk_guard import shortage
from fluxsched.runtime.messaging.listening import listen, local_uri, open_to_all, wants_keys
from fluxsched.runtime.services.modules.starter import ModuleProcesses
from fluxsched.runtime.storage.damage import make_sound
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.clock import generator_id
from fluxsched.runtime.system.live_instances import write_info
from fluxsched.runtime.system.logs.kept_logs import ENDED, begin_line, keep_log
from fluxsched.runtime.system.own_process import settle, uncollected
from fluxsched.runtime.system.paths import DATABASE_NAME, LOG_NAME
from fluxsched.runtime.system.private_files import SPOOL_NAME, private_state, user_name
from fluxsched.runtime.system.processes import boot_id, identity
from fluxsched.transport.base import Server

log = logs.logger("instance")

PAGE_S = 20.0
"""How long a start waits for its page (seconds)."""


class Instance:
    """A running instance; `ended` completes when it stops, with None or with the error that stopped it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._closing = False
        self.is_restarting = False
        """Whether it ends to start again in place."""
        self.program: int | None = None
        """Its initial program."""
        self._companions: list[Companion] = []
        self.page: str | None = None
        """What is to be said of the page when the instance is ready."""
        self._following: set[asyncio.Future[None]] = set()
        with ExitStack() as begun:
            outside = self._begin(begun)
            restored = self._read_store(outside)
            self._parts = parts = Assembly(settings, outside, restored)
            self.effects, self.streams, self.scheduling = parts.effects, parts.streams, parts.scheduling
            self.resource, self.modules, self.reloading = parts.resource, parts.modules, parts.reloading
            self.router, self.waits, self.faults = parts.router, parts.waits, parts.faults
            begun.callback(parts.modules.close)
            parts.load_schedulers()
            self._restore(restored)
            self._release = begun.pop_all()

    def _read_store(self, outside: Surroundings) -> StoredState:
        try:
            return read_store(outside.store, outside.state_notice)
        except (ValueError, LookupError, TypeError, AttributeError) as fault:
            raise self._unreadable(fault) from fault

    def _unreadable(self, fault: Exception) -> FluxschedError:
        path = (self.settings.statedir or self.run_directory) / DATABASE_NAME
        return FluxschedError(
            f"{path} is damaged: {fault}. Restore a backup into a new directory (fluxsched restore), or start with "
            "--salvage to continue without what cannot be read; the damaged file is kept"
        )

    def _begin(self, begun: ExitStack) -> Surroundings:
        """Take what the outside world gives; `begun` gives it back, also when a later step fails."""
        settings = self.settings
        handed = settings.handed
        if settings.statedir is not None:  # first, since the run directory belongs to it
            self._lock_state(begun, settings.statedir)
        self.run_directory, self._owner = self._make_run_directory() if handed is None else handed.directory
        self.local_uri = local_uri(self.run_directory)
        begun.callback(self._give_up)
        started_s = settings.clock.wall_s()
        self.ended: asyncio.Future[FluxschedError | None] = asyncio.get_running_loop().create_future()
        state = settings.statedir or self.run_directory
        if settings.statedir is None:
            self._lock_state(begun, state)
        (self.run_directory / LOG_NAME).unlink(missing_ok=True)  # that before a restart
        keep_log(begun, self.run_directory, settings.statedir, started_s)
        self.turns = Turns(settings.clock)
        path = self.run_directory / LOG_NAME
        logs.setup(path, settings.verbose, settings.log_format, lambda: self.turns.handling)
        begun.callback(self._say_ended)
        remove_dead(settings.clock)
        notice = self._check_state(state)
        self.store = Store(state / DATABASE_NAME, self.turns)
        begun.callback(self.store.close)
        background = ThreadedWriter(self.turns, "fluxsched-removal")
        begun.callback(background.close)
        access, read_keys = self._access()
        self.servers = self._listen(begun, access)
        self.uri = self.servers[0].endpoint
        return Surroundings(
            turns=self.turns,
            store=self.store,
            servers=self.servers,
            start_module=ModuleProcesses(self.run_directory).start,
            executors=self._executors,
            run_directory=self.run_directory,
            spool=state / SPOOL_NAME,
            disk_shortage=partial(shortage, state),
            memory_enforced=way_of_enforcing,
            environment=job_variables(self.uri, self.local_uri, settings.parent),
            generator_id=generator_id(),
            pid=os.getpid(),
            started_s=started_s,
            ended=self.ended,
            background=background,
            connecting=ThreadPerCallWriter(self.turns, "fluxsched-connect"),
            access=access,
            read_keys=read_keys,
            state_notice=StateNotice(notice),
            restart=self.restart,
        )

    def _lock_state(self, begun: ExitStack, state: Path) -> None:
        handed = self.settings.handed
        private_state(state)
        self._state_lock = StateLock(state, None if handed is None else handed.state_lock)
        begun.callback(self._let_go)

    def _make_run_directory(self) -> tuple[Path, int]:
        statedir = self.settings.statedir
        return make_run_directory() if statedir is None else kept_run_directory(statedir)

    def _access(self) -> tuple[Access, ReadKeys | None]:
        """Who may connect, and how the keys are read again if a port asks for keys."""
        settings, rules = self.settings, self.settings.config.access
        is_wanted = wants_keys(settings.bind, insecure_tcp=settings.insecure_tcp)
        keyring = read_keyring(rules) if is_wanted else None
        self._own_keys = None if keyring is None else keyring.own
        if keyring is None:
            return Access(rules), None
        if not keyring.authorized:
            log.warning(
                "no key is authorized yet, so no client can connect at a tcp port: `fluxsched keygen NAME` makes one, "
                "its .pub file belongs into %s, and `fluxsched config reload` has it read",
                authorized_directory(rules),
            )
        return Access(rules, keyring.authorized), authorized_keys

    def _check_state(self, state: Path) -> str | None:
        """See to it that the stored state can be used; what is to be told of it."""
        if self.settings.statedir is None:
            return None
        with os.scandir(state / SPOOL_NAME) as found:
            has_jobs = any(found)
        notice = make_sound(state / DATABASE_NAME, has_jobs, accept_loss=self.settings.salvage)
        if notice is not None:
            log.error("%s", notice)
        return notice

    def _listen(self, begun: ExitStack, access: Access) -> list[Server]:
        settings, servers = self.settings, list[Server]()
        own, insecure_tcp = self._own_keys, settings.insecure_tcp
        wanted = listen(self.run_directory, settings.bind, access, own, insecure_tcp=insecure_tcp)
        for server in settings.servers or wanted:
            begun.callback(server.close)
            servers.append(server)
        log.info("%s", begin_line(servers[0].endpoint, settings.statedir))
        self.is_open_to_all = open_to_all(tuple(server.endpoint for server in servers), user_name(os.getuid()))
        """What is to be said of tcp ports."""
        if self.is_open_to_all is not None:
            log.warning("listening at %s", self.is_open_to_all)
        return servers

    def _executors(self, reports: Reports) -> dict[str, Executor]:
        statedir, grace_s = self.settings.statedir, self.settings.config.kill_timeout_s
        cleared = self.run_directory if statedir is None else None
        host = LocalKeeperHost(statedir or self.run_directory, cleared, self._owner, grace_s)
        self._local = KeeperExecutor(self.turns, reports, host, grace_s, outlives=statedir is not None)
        return {"local": self._local, "test": TimedExecutor(self.turns, reports)}

    @uncollected()
    def _restore(self, restored: StoredState) -> None:
        if self.settings.handed is not None:
            restored.processes.pop(PROGRAM, None)  # it goes on
        try:
            self._parts.restore(restored)
        except InvalidValue as fault:  # an active job that its log contradicts
            raise self._unreadable(fault) from fault

    def began(self, program: int) -> None:
        """The initial program runs: without a state directory it must not outlive the instance either."""
        self.program = program
        record = None if self.settings.statedir is not None else identity(program, boot_id(), "")
        if record is not None:
            self.store.add("process", (PROGRAM, msgspec.json.encode(record)))
            self._local.guard()

    # -- running ------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Instance:
        try:
            self._parts.start(asyncio.get_running_loop())
        except FluxschedError:
            await self.close()
            raise
        if self.settings.enclosing is not None:
            self._follow(self.settings.enclosing)
        write_info(self.run_directory, msgspec.to_builtins(self.info()))
        config, directory = self.settings.config, self.run_directory
        self._companions = [
            Companion(self.turns, kind, self.uri, directory)
            for kind in (metrics_kind(config.metrics), page_kind(config.page, directory, self.settings.statedir))
            if kind is not None
        ]
        settle()
        try:
            await self._become_ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def _become_ready(self) -> None:
        """Wait until it is ready. Raises FluxschedError if it ends before, if a scheduler that was to be started never
        served its groups, or naming what is missing after the time limit. Later such a scheduler would be started
        again, or replaced; now the user who starts the instance can see the failure.
        """
        limit_s = self.settings.ready_within_s
        is_decided = await until(self.turns, lambda: self._parts.is_ready or self.ended.done(), limit_s)
        if self.ended.done() and (fault := self.ended.result()) is not None:
            raise fault
        if not is_decided:
            raise FluxschedError(
                f"the instance was not ready within {limit_s:g} s (StartOptions.ready_within_s): "
                f"{', '.join(self._parts.not_ready())}",
                errno.ETIMEDOUT,
            )
        if not self._parts.is_complete:
            failed = [one for one in self.modules.modules.values() if one.error and not one.has_served]
            raise FluxschedError("; ".join(f"module {one.name}: {one.error}" for one in failed))

    def _follow(self, enclosing: Enclosing) -> None:
        """Follow what becomes of the job around this instance."""

        def run(what: Coroutine[Any, Any, None]) -> None:
            task = asyncio.ensure_future(what)
            self._following.add(task)
            task.add_done_callback(self._following.discard)

        run(enclosing.follow(self._expires))
        if enclosing.is_elastic:
            targets = self._parts.enclosed_targets(enclosing.resources, lambda left: run(enclosing.say_left(left)))

            def sized(outer: ResourceSet, config: Mapping[str, Any]) -> None:
                self.turns.post(lambda: targets.follow(outer, grace_of(config)))

            run(enclosing.follow_size(sized))

    def _expires(self, expiration_s: float) -> None:
        self.turns.post(lambda: self.resource.set_expiration(expiration_s))

    async def page_served(self) -> None:
        """Wait until the page is served, if one is wanted."""
        for companion in self._companions:
            if companion.command == "web" and self.settings.handed is None:
                self.page = f"page: {await companion.written(PAGE_S)}"

    def info(self) -> InstanceInfo:
        """What `instance.info` answers."""
        return self._parts.info()

    def check(self) -> None:
        """Assert law 5 over the whole state: for tests."""
        self._parts.check()

    def restart(self) -> None:
        """End the instance, whose jobs and program go on. Raises FluxschedError if it could not start again."""
        self.settings.check_start()
        if self.store.fault is not None:
            raise Refused(f"{self.store.fault}: what is not written yet would be lost by a restart", errno.EIO)
        self.is_restarting = True
        self.stop()

    def handed_over(self) -> HandedOver:
        """What the next instance in this process needs of this one."""
        return HandedOver(os.getpid(), str(self.run_directory), self._owner, self.program, self._state_lock.fd)

    def _give_up(self) -> None:
        if not self.is_restarting:
            shutil.rmtree(self.run_directory, ignore_errors=True)
            os.close(self._owner)

    def _let_go(self) -> None:
        if not self.is_restarting:
            self._state_lock.release()

    def stop(self) -> None:
        """End the instance; `ended` completes."""
        self._parts.stop()

    def _fail(self, exc: BaseException) -> None:
        self._parts.fail(exc)

    def _say_ended(self) -> None:
        if not self.ended.done() or self.ended.result() is None:
            log.info(ENDED)

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave cleanly: modules end, running jobs are killed and their end is stored, the run directory goes; for a
        restart jobs and run directory stay. Idempotent.
        """
        if self._closing:
            return
        self._closing = True
        self.stop()
        if self.ended.result() is None:
            self.turns.post(self.scheduling.suspend)
            if not self.is_restarting:
                await end_jobs(self.effects, self.store, self._parts.clusters.is_out_of_reach)
        for task in list(self._following):
            task.cancel()
        await end_modules(self.modules, self.turns)
        for companion in self._companions:
            companion.close()
        for executor in self.effects.executors.values():
            if self.is_restarting:
                executor.leave(RESTART_S)
            elif self.ended.result() is None or self.settings.statedir is None:
                executor.close()
            else:  # the next instance goes on with the jobs
                executor.leave(0.0)
        self.router.flush()
        self.turns.stop()
        self._parts.sampling.stop()
        self._release.close()
