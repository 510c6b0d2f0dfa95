"""An instance of its own: resource module, job manager, executors and module host on one loop.

    async with Instance(settings) as instance:      # running; instance.uri is where clients connect
        ...

This file takes what the real world gives (directories, sockets, processes) and gives it back; `assembly` puts the
services together from it. Law: of run directories only what certainly has no owner is removed, and a start never fails
or waits long for it; the sweeper holds the owner's lock, so of several starts one removes a directory. The processes
that serve the instance's figures and its page are no part of its work: one that cannot be started, or ends, is logged
and tried again, and ends nothing else. In an instance of a site, which belongs to root, users submit jobs themselves
and their tasks run as them: what would run a user's job as another user is refused at the start, also a state in which
users have jobs without `run-as-user`, for they would run as root.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import shutil
import sqlite3
import stat
import sys
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec

from fluxsched.client.find import write_info
from fluxsched.config.reader import Config
from fluxsched.config.submit_filters import FilterProcess
from fluxsched.config.values import MetricsSettings, PageSettings
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import is_text, printable, some_of
from fluxsched.errors import FluxschedError, InvalidValue, Refused
from fluxsched.executor.base import Executor, Reports, TaskSettings
from fluxsched.executor.cleanup import (
    OWNER_BYTES_MAX,
    PROGRAM,
    SWEEP_S,
    check_socket_room,
    own,
    owned_prefix,
    remove_dead,
    remove_if_dead,
)
from fluxsched.executor.proxy import KeeperExecutor, LocalKeeperHost
from fluxsched.executor.timed import TimedExecutor
from fluxsched.executor.usage import way_of_enforcing
from fluxsched.instance.assembly import (
    Assembly,
    InstanceEnd,
    InstanceEnvironment,
    Settings,
    StateNotice,
    StoredState,
    read_store,
)
from fluxsched.instance.enclosing import Enclosing, grace_of, job_variables
from fluxsched.instance.hosts import InstanceHosts
from fluxsched.instance.restarts import RESTART_S, HandedOver
from fluxsched.messaging.keys import ReadKeys, authorized_directory, authorized_keys, read_keyring
from fluxsched.messaging.peers import Access
from fluxsched.messaging.router import LOCAL_SCHEME, listen, local_uri, open_to_all, shortage, wants_keys
from fluxsched.protocol.messages.common import InstanceInfo
from fluxsched.services.job_effects import JobEffects
from fluxsched.services.keepers import KeeperConnections
from fluxsched.services.module_processes import ChildProcess, ModuleProcesses
from fluxsched.services.modules import TERMINATE_S, ModuleService
from fluxsched.store.integrity import recorded_commit
from fluxsched.store.repair import make_sound
from fluxsched.store.store import ImmediateWriter, Store, ThreadedWriter, ThreadPerCallWriter
from fluxsched.system.clock import SystemClock, generator_id
from fluxsched.system.files import (
    ADDRESS_NAME,
    DATABASE_NAME,
    ENDED,
    LOG_NAME,
    PAGE_NAME,
    SOCKET_NAME,
    SPOOL_NAME,
    base_directory,
    begin_line,
    keep_log,
    private_state,
    user_name,
)
from fluxsched.system.log import logger, set_up_logging
from fluxsched.system.loop import Turns
from fluxsched.system.processes import Restarts, boot_id, identity, settle, uncollected
from fluxsched.transport.base import Server

log = logger("instance")

ABSENT_S = 30.0
"""Time after which hosts whose keepers have not connected are named (seconds)."""
FILTERS_LOG = "submit-filters.log"
"""Output of the submit filters, in the run directory."""
PAGE_S = 20.0
"""Maximum time for which a start waits for its page (seconds)."""


class Instance:
    """A running instance; `ended` completes when it stops, with None or with the error that stopped it."""

    def __init__(self, settings: Settings) -> None:
        """Create an instance that serves once it is entered. Raises InvalidValue for other things than `Settings`."""
        if not isinstance(settings, Settings):
            given = type(settings).__name__
            raise InvalidValue(f"an Instance takes Settings, not {given}: Instance(settings_of(StartOptions(...)))")
        self.settings = settings
        self._closing = False
        self.is_restarting = False
        """True if the instance ends to start again in place."""
        self.program: int | None = None
        """Process id of the initial program."""
        self._hosts: InstanceHosts | None = None
        self._helpers: list[HelperProcess] = []
        self.page: str | None = None
        """Text about the page, for when the instance is ready."""
        self._following: set[asyncio.Future[None]] = set()
        with ExitStack() as begun:
            outside = self._begin(begun)
            restored = self._read_store(outside)
            check_state(restored.is_sites, settings.config)
            self._parts = parts = Assembly(settings, outside, restored)
            self.effects, self.streams, self.scheduling = parts.effects, parts.streams, parts.scheduling
            self.resource, self.modules, self.reloading = parts.resource, parts.modules, parts.reloading
            self.router, self.waits, self.faults = parts.router, parts.waits, parts.faults
            begun.callback(parts.modules.close)
            begun.callback(parts.filters.close)
            if self._hosts is not None:
                KeeperConnections(parts.router, self._hosts.arrived)
            parts.load_schedulers()
            self._restore(restored)
            self._release = begun.pop_all()

    def _read_store(self, outside: InstanceEnvironment) -> StoredState:
        try:
            return read_store(outside.store, outside.state_notice)
        except (sqlite3.Error, ValueError, LookupError, TypeError, AttributeError) as fault:
            raise self._unreadable(fault) from fault

    def _unreadable(self, fault: Exception) -> FluxschedError:
        path = (self.settings.statedir or self.run_directory) / DATABASE_NAME
        return FluxschedError(
            f"{path} is damaged: {fault}. Restore a backup into a new directory (fluxsched restore), or start with "
            "--salvage to continue without what cannot be read; the damaged file is kept"
        )

    def _begin(self, begun: ExitStack) -> InstanceEnvironment:
        """Acquire the instance's outside resources; `begun` releases them, also when a later step fails."""
        settings = self.settings
        check_site(settings.config, settings.bind, has_engine=settings.engine is not None)
        state = self._claim_directories(begun)
        started_s = settings.clock.wall_s()
        end = InstanceEnd(asyncio.get_running_loop())
        self.ended = end.ended
        self.turns = Turns(settings.clock, end.fail, end.faults.note)
        self._open_log(begun, started_s)
        remove_dead(settings.clock)
        notice = self._check_state(state)
        self.store = Store(state / DATABASE_NAME, self.turns, failed=end.fail)
        begun.callback(self.store.close)
        background = ThreadedWriter(self.turns, "fluxsched-removal")
        begun.callback(background.close)
        filtering = ThreadedWriter(self.turns, "fluxsched-ingest") if settings.config.ingest.filters else None
        if filtering is not None:
            begun.callback(filtering.close)
        access, read_keys = self._access()
        self.servers = self._listen(begun, access)
        self.uri = self.servers[0].endpoint
        keepers = None
        if settings.engine is not None:
            begun.callback(self._end_engine)
            keepers = settings.engine.listen(access)
            begun.callback(keepers.close)
        return InstanceEnvironment(
            turns=self.turns,
            store=self.store,
            servers=self.servers,
            start_module=ModuleProcesses(self.run_directory).start,
            executors=self._executors,
            run_directory=self.run_directory,
            tasks=self._task_settings(state),
            disk_shortage=partial(shortage, state),
            memory_enforced=way_of_enforcing,
            generator_id=generator_id(),
            pid=os.getpid(),
            started_s=started_s,
            end=end,
            background=background,
            filtering=filtering or ImmediateWriter(),
            start_filters=partial(
                FilterProcess,
                settings.config.ingest.filters,
                self.run_directory / FILTERS_LOG,
                settings.config.ingest.timeout_s,
            ),
            connecting=ThreadPerCallWriter(self.turns, "fluxsched-connect"),
            access=access,
            read_keys=read_keys,
            state_notice=StateNotice(notice),
            restart=self.restart,
            keepers=keepers,
        )

    def _claim_directories(self, begun: ExitStack) -> Path:
        """Claim the run directory and that of the state; return the latter."""
        statedir, handed = self.settings.statedir, self.settings.handed
        if statedir is not None:  # first, since the run directory belongs to it
            self._lock_state(begun, statedir)
        self.run_directory, self._owner = self._make_run_directory() if handed is None else handed.directory
        self.local_uri = local_uri(self.run_directory)
        begun.callback(self._give_up)
        if statedir is None:
            self._lock_state(begun, self.run_directory)
        return statedir or self.run_directory

    def _open_log(self, begun: ExitStack, started_s: float) -> None:
        settings, path = self.settings, self.run_directory / LOG_NAME
        path.unlink(missing_ok=True)  # that before a restart
        keep_log(begun, self.run_directory, settings.statedir, started_s)
        set_up_logging(path, settings.verbose, settings.log_format, lambda: self.turns.handling)
        begun.callback(self._say_ended)

    def _task_settings(self, state: Path) -> TaskSettings:
        addresses, run_as_user = (self.uri, self.local_uri), self.settings.config.access.run_as_user
        if run_as_user:
            addresses = task_addresses(*addresses, self.settings.bind)
        return TaskSettings(
            job_variables(*addresses, self.settings.parent), state / SPOOL_NAME, run_as_user=run_as_user
        )

    def _end_engine(self) -> None:
        """End the engine, or leave it to the next instance, which goes on with the jobs on its hosts."""
        engine = self.settings.engine
        assert engine is not None, "there is one to end"
        if self.is_restarting:
            engine.detach()
        elif self.settings.statedir is None or (self.ended.done() and self.ended.result() is None):
            engine.close()
        elif self.ended.done():  # the next instance goes on with the jobs
            engine.detach()
        else:
            engine.abandon()

    def _lock_state(self, begun: ExitStack, state: Path) -> None:
        handed = self.settings.handed
        private_state(state)
        self._state_lock = StateLock(state, None if handed is None else handed.state_lock)
        begun.callback(self._let_go)

    def _make_run_directory(self) -> tuple[Path, int]:
        statedir = self.settings.statedir
        return make_run_directory() if statedir is None else kept_run_directory(statedir)

    def _access(self) -> tuple[Access, ReadKeys | None]:
        """Return the users who may connect, and the function that reads the keys again if a port asks for keys."""
        settings, rules = self.settings, self.settings.config.access
        is_wanted = wants_keys(settings.bind, insecure_tcp=settings.insecure_tcp)
        keyring = read_keyring(rules) if is_wanted else None
        self._own_keys = None if keyring is None else keyring.own
        if keyring is None:
            return Access(rules), None
        if not keyring.authorized:
            log.warning(
                "no key is authorized yet, so no client can connect at a tcp port: `fluxsched keygen NAME` makes one, "
                "its .pub file belongs in %s, and `fluxsched config reload` has it read",
                authorized_directory(rules),
            )
        return Access(rules, keyring.authorized), authorized_keys

    def _check_state(self, state: Path) -> str | None:
        """Ensure that the stored state can be used; return the notice about it."""
        if self.settings.statedir is None:
            return None
        database = state / DATABASE_NAME
        with os.scandir(state / SPOOL_NAME) as found:
            has_jobs = any(found) or bool(recorded_commit(database))  # many jobs leave nothing in the spool directory
        notice = make_sound(database, has_jobs, accept_loss=self.settings.salvage)
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
        """Warning about tcp ports that are open to all users."""
        if self.is_open_to_all is not None:
            log.warning("listening at %s", self.is_open_to_all)
        return servers

    def _executors(self, reports: Reports) -> dict[str, Executor]:
        statedir, grace_s = self.settings.statedir, self.settings.config.kill_timeout_s
        cleared = self.run_directory if statedir is None else None
        host = LocalKeeperHost(statedir or self.run_directory, cleared, self._owner, grace_s)
        self._local = KeeperExecutor(self.turns, reports, host, grace_s, outlives=statedir is not None)
        executors: dict[str, Executor] = {"local": self._local, "test": TimedExecutor(self.turns, reports)}
        if self.settings.held is not None:
            self._hosts = InstanceHosts(
                self.turns, reports, self.settings.held, self._set_present, grace_s, outlives=statedir is not None
            )
            executors |= {"local": self._hosts.executor, "here": self._local}
        return executors

    def _host_reported(self, host: str) -> None:
        """Take in a host that has reported only now: it comes online once its keeper is connected."""
        assert self._hosts is not None, "an engine holds hosts"
        self._hosts.add(host)
        try:
            self._parts.reloading.take_hosts()
        except FluxschedError as fault:
            remedy = "correct that, then run `fluxsched resource reload`"
            log.error("host %s has no targets: the resources cannot be read again: %s: %s", host, fault, remedy)

    def _set_present(self, host: str, is_present: bool) -> None:
        self._parts.set_present(host, is_present)

    @uncollected()
    def _restore(self, restored: StoredState) -> None:
        if self.settings.handed is not None:
            restored.processes.pop(PROGRAM, None)  # it goes on
        try:
            self._parts.restore(restored)
        except (sqlite3.Error, InvalidValue) as fault:  # of active jobs, which their logs may contradict
            raise self._unreadable(fault) from fault

    def began(self, program: int) -> None:
        """Note the initial program: without a state directory it must not outlive the instance either."""
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
        for server in () if self._hosts is None else self._hosts.servers:
            self.router.add_server(server)
        if self.settings.enclosing is not None:
            self._follow(self.settings.enclosing)
        if self.settings.engine is not None:
            self.settings.engine.on_report(self._host_reported)
            self.settings.engine.introduce(self.settings.statedir or self.run_directory, self.turns)
            self._run(self.settings.engine.follow_allocation(self._expires))
            self.turns.after(ABSENT_S, self._name_absent)
        write_info(self.run_directory, msgspec.to_builtins(self.info()))
        config, directory = self.settings.config, self.run_directory
        self._helpers = [
            HelperProcess(self.turns, kind, self.uri, directory)
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
        """Wait until it is ready.

        Raises FluxschedError if it ends before, if a scheduler that was to be started never served its groups, or
        naming what is missing after the time limit. Later such a scheduler would be started again, or replaced; now the
        user who starts the instance can see the failure.
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
        """Follow the changes of the job around this instance."""

        self._run(enclosing.follow(self._expires))
        if enclosing.is_elastic:
            targets = self._parts.enclosed_targets(
                enclosing.resources, lambda left: self._run(enclosing.say_left(left))
            )

            def sized(outer: ResourceSet, config: Mapping[str, Any]) -> None:
                self.turns.post(lambda: targets.follow(outer, grace_of(config)))

            self._run(enclosing.follow_size(sized))

    def _run(self, what: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine until it is done, at most until the instance ends."""
        task = asyncio.ensure_future(what)
        self._following.add(task)
        task.add_done_callback(self._following.discard)

    def _expires(self, expiration_s: float) -> None:
        self.turns.post(lambda: self.resource.set_expiration(expiration_s))

    def _name_absent(self) -> None:
        if self._hosts is None or self.settings.engine is None or not (absent := self._hosts.absent):
            return
        endpoint = self.settings.engine.introduction.endpoint
        text = "no job can run on %s: no keeper has connected within %g s; do they reach %s ([engine] address)?"
        log.warning(text, some_of(absent), ABSENT_S, endpoint)

    async def page_served(self) -> None:
        """Wait until the page is served, if one is wanted."""
        for helper in self._helpers:
            if helper.command == "web" and self.settings.handed is None:
                self.page = f"page: {await helper.written(PAGE_S)}"

    def info(self) -> InstanceInfo:
        """Return the response of `instance.info`."""
        return self._parts.info()

    def check(self) -> None:
        """Assert that nothing is held twice, over the whole state: for tests."""
        self._parts.check()

    def restart(self) -> None:
        """End the instance, whose jobs and program continue. Raises FluxschedError if it could not start again."""
        self.settings.check_start()
        if self.store.fault is not None:
            raise Refused(f"{self.store.fault}: changes that are not written yet would be lost by a restart", errno.EIO)
        self.is_restarting = True
        self.stop()

    def handed_over(self) -> HandedOver:
        """Return the state of this instance that the next one in this process needs."""
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

    def _say_ended(self) -> None:
        if not self.ended.done() or self.ended.result() is None:
            log.info(ENDED)

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End the instance cleanly: modules end, running jobs are killed and their end is stored, the run directory is
        removed; for a restart jobs and run directory are kept. Idempotent.
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
        for helper in self._helpers:
            helper.close()
        if self._parts.notify is not None:
            self._parts.notify.close()
        self._parts.job_notify.close()
        for executor in self.effects.executors.values():
            if self.is_restarting:
                executor.detach(RESTART_S)
            elif self.ended.result() is None or self.settings.statedir is None:
                executor.close()
            else:  # the next instance goes on with the jobs
                executor.detach(0.0)
        self.router.flush()
        self.turns.stop()
        self._parts.sampling.stop()
        self._release.close()


# ---- shutdown

CHECK_S = 0.005
"""Interval of checking a condition (seconds)."""
KILLED_S = 1.0
"""Maximum time until a module that has to be killed must be gone (seconds)."""
END_JOBS_S = 15.0
"""Maximum time for which a shutdown waits until running jobs are killed and their end is stored (seconds)."""


async def until(turns: Turns, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """Return whether `condition` came true within `timeout_s` (None: no limit)."""
    begin_s = turns.clock.monotonic_s()
    while not condition():
        if timeout_s is not None and turns.clock.monotonic_s() - begin_s > timeout_s:
            return False
        await asyncio.sleep(CHECK_S)
    return True


async def end_jobs(effects: JobEffects, store: Store, is_out_of_reach: Callable[[int], bool]) -> None:
    """Raise a fatal exception on every job with resources; wait until all are inactive and stored, but for those that
    are out of reach.
    """
    manager, turns = effects.manager, effects.turns

    def holding() -> list[int]:
        return [jobid for jobid, job in manager.jobs.active.items() if job.held]

    turns.post(lambda: effects.raise_jobs(holding(), "the instance is shutting down"))
    await until(turns, lambda: all(map(is_out_of_reach, holding())), END_JOBS_S)
    stored = asyncio.Event()
    turns.post(lambda: store.after_commit(stored.set))
    await until(turns, lambda: stored.is_set() or store.fault is not None, END_JOBS_S)


async def end_modules(modules: ModuleService, turns: Turns) -> None:
    """Ask all schedulers to leave, answer what they want kept, and end those that do not go."""
    turns.post(modules.terminate)
    await until(turns, lambda: modules.are_terminated and not modules.are_running, TERMINATE_S + KILLED_S)
    modules.close()


# ---- the run directory


LOOK_S = 0.01
"""Interval in which a start checks whether another process has removed a directory (seconds)."""


def make_run_directory() -> tuple[Path, int]:
    """Return a new private run directory, and the descriptor whose closing ends the ownership."""
    base = base_directory()
    if not is_text(str(base)):
        raise FluxschedError(f"directory '{printable(str(base))}' is not UTF-8 text: set XDG_RUNTIME_DIR")
    check_socket_room(base, "XDG_RUNTIME_DIR")
    path = Path(tempfile.mkdtemp(prefix=owned_prefix(), dir=base))
    try:
        return path, own(path)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def kept_run_directory(state: Path) -> tuple[Path, int]:
    """Return the run directory of the last instance on a state directory, made anew, so that the address is kept;
    another one if there is none yet, or its name is not available. The caller holds the lock of the state directory.
    """
    path = _kept(state)
    if path is not None and (fd := _made_again(path)) is not None:
        return path, fd
    path, fd = make_run_directory()
    draft = state / f".{ADDRESS_NAME}"
    try:
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            json.dump({"run_directory": str(path), "inode": state.stat().st_ino}, file)
        draft.replace(state / ADDRESS_NAME)
    except OSError as fault:
        # a disk that takes no address takes no state either, which ends the start with its own error
        log.info("the next start will have another address: %s cannot be written: %s", draft, fault.strerror)
    return path, fd


def _kept(state: Path) -> Path | None:
    """Return the directory noted there by `kept_run_directory`; None for nonsense, and in a copy of a state
    directory.
    """
    try:
        with (state / ADDRESS_NAME).open("rb") as file:
            found = json.loads(file.read(OWNER_BYTES_MAX))
        path, inode = Path(found["run_directory"]), found["inode"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    is_one = path.is_absolute() and path.name.startswith(owned_prefix())
    return path if is_one and inode == state.stat().st_ino else None


def _made_again(path: Path) -> int | None:
    """Make a directory of this name, after removing a killed instance's leftovers; return None if that is
    impossible.
    """
    until_s = SystemClock.monotonic_s() + SWEEP_S
    while True:
        try:
            path.mkdir(mode=0o700)
            path.chmod(0o700)
            return own(path)
        except FileExistsError:
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                log.warning("%s belongs to another user: this instance has another address than the last one", path)
                return None
            remove_if_dead(path)
            if path.exists() and SystemClock.monotonic_s() > until_s:  # by now its next start would have removed it
                log.warning("%s is in use: this instance has another address than the last one", path)
                return None
            SystemClock.sleep(LOOK_S)
        except OSError as fault:
            log.warning("%s: %s: this instance has another address than the last one", path, fault.strerror)
            return None


DYING_S = 1.0
"""Maximum time for which the lock of an instance that was killed may outlast it (seconds): that of its last thread."""


class StateLock:
    """Holds a state directory for this process; a second instance on it is refused.

    The lock's file is removed while the lock is held, so it is never another instance's.
    """

    def __init__(self, state: Path, held: int | None = None) -> None:
        """`held` is the descriptor of a lock that this process had before it executed itself anew."""
        self._path = state / "lock"
        self.fd = _locked(self._path) if held is None else held
        while not os.fstat(self.fd).st_nlink:  # its owner has just removed it: this one excludes no other
            os.close(self.fd)
            self.fd = _locked(self._path)

    def release(self) -> None:
        """Let others have the directory."""
        with contextlib.suppress(OSError):  # a directory that is gone, or read-only by now
            self._path.unlink()
        os.close(self.fd)


@contextlib.contextmanager
def lock_state(state: Path) -> Iterator[None]:
    """Hold the state directory meanwhile; see `StateLock`."""
    lock = StateLock(state)
    try:
        yield
    finally:
        lock.release()


def _locked(path: Path) -> int:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    until_s = SystemClock.monotonic_s() + DYING_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if SystemClock.monotonic_s() < until_s:
                SystemClock.sleep(CHECK_S)
                continue
            os.close(fd)
            known = _kept(path.parent)
            there = "" if known is None else f", at ipc://{known / SOCKET_NAME}"
            raise FluxschedError(
                f"state directory {path.parent} is used by another instance{there}: stop it or name another"
            ) from None
        return fd


# ---- helper processes

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0
"""Delay between the end of the process and its next start, and the maximum (seconds): the delay doubles each time, up
to the maximum, and is reset after a run that was longer than the maximum.
"""
HELPER_CHECK_S = 0.02
END_S = 2.0
"""Maximum time until the process must end (seconds)."""


class HelperProcessKind(NamedTuple):
    """Kind of process to run: the command of ours with its options, and its name in the log."""

    command: str
    what: str
    options: Sequence[str]
    writes: Path | None = None
    """The file that it writes anew once it serves."""


def metrics_kind(settings: MetricsSettings) -> HelperProcessKind | None:
    """Return the kind of `fluxsched metrics`; None if the configuration requests none."""
    if settings.bind is None:
        return None
    return HelperProcessKind("metrics", "the exporter of metrics", _bound(settings.bind, settings.public))


def page_kind(settings: PageSettings, directory: Path, statedir: Path | None) -> HelperProcessKind | None:
    """Return the kind of `fluxsched web`, which writes its address to the run directory; None if the page is not
    requested.

    With a state directory the address is there, and the run directory has a link to it: it is the same after any end.
    """
    if settings.bind is None:
        return None
    names = [word for name in settings.names for word in ("--name", name)]
    file = directory / PAGE_NAME if statedir is None else statedir.absolute() / PAGE_NAME
    if statedir is not None and not (directory / PAGE_NAME).is_symlink():
        (directory / PAGE_NAME).unlink(missing_ok=True)
        (directory / PAGE_NAME).symlink_to(file)
    options = [*_bound(settings.bind, settings.public), *names, "--address-file", str(file)]
    return HelperProcessKind("web", "the server of the page", options, file)


def _bound(bind: str, public: bool) -> list[str]:
    return ["--bind", bind, *(["--public"] if public else [])]


class HelperProcess:
    """Runs a command of ours for the instance at `uri` until `close`."""

    def __init__(self, turns: Turns, kind: HelperProcessKind, uri: str, directory: Path) -> None:
        self._turns, self.command = turns, kind.command
        self._process: ChildProcess | None = None
        self._restarts = Restarts(turns, self._start, AGAIN_S, AGAIN_MAX_S)
        self.why_ended: str | None = None
        """Why it ended last, if it has."""
        self._what, self._said = kind.what, logger(kind.command)
        self._words = [sys.executable, "-P", "-m", "fluxsched", kind.command, "--uri", uri, *kind.options]
        self._words += ["--instance", str(os.getpid())]
        self._log = directory / f"{kind.command}.log"
        self._file, self._before = kind.writes, _version(kind.writes)
        self._restarts.begin()

    def _start(self) -> None:
        try:
            self._process = ChildProcess(self._words, self._log, lambda: self._turns.post(self._ended))
        except OSError as exc:
            self._fail(str(exc))

    def _ended(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._fail(process.why_ended(""))

    def _fail(self, why: str) -> None:
        self.why_ended = why
        self._said.error("%s ended: %s; it is started again in %g s", self._what, why, self._restarts.ended())

    async def written(self, timeout_s: float) -> str:
        """Return the text that the process writes to its file once it serves; or a text that it does not, and why."""
        end_s = self._turns.clock.monotonic_s() + timeout_s
        while self._file is None or _version(self._file) in (None, self._before):  # it may be there from a restart
            if self.why_ended is not None or self._turns.clock.monotonic_s() > end_s:
                return f"none: {self.why_ended or 'it is not served yet'}"
            await asyncio.sleep(HELPER_CHECK_S)
        return self._file.read_text().strip()

    def close(self) -> None:
        """End the process, and do not start it again."""
        self._restarts.cancel()
        if self._process is not None:
            self._process.forget()
            self._process.terminate()
            self._process.finish(END_S)


def _version(file: Path | None) -> tuple[int, int] | None:
    """Return the identity of a file, which a file that replaces it does not have; None if there is none."""
    try:
        status = None if file is None else file.stat()
    except FileNotFoundError:
        return None
    return None if status is None else (status.st_ino, status.st_mtime_ns)


# ---- an instance of a site

SITE_KEY = "[access] run-as-user"
IPC_SCHEME = "ipc://"
ROOT = 0


def check_site(config: Config, bind: Iterable[str], *, has_engine: bool) -> None:
    """Raise Refused if this instance is to be a site's and cannot be."""
    if not config.access.run_as_user:
        return
    if os.geteuid() != ROOT:
        raise Refused(f"{SITE_KEY}: only root can run tasks as their users: start the instance as root", errno.EPERM)
    if config.clusters:
        text = "jobs of a [[cluster]] would run as its owner: remove one or the other"
        raise Refused(f"{SITE_KEY}: {text}", errno.EINVAL)
    if has_engine:
        text = "tasks on other hosts run as the owner of their keepers: start it with --engine none"
        raise Refused(f"{SITE_KEY}: {text}", errno.EINVAL)
    if not any(endpoint.startswith(IPC_SCHEME) for endpoint in bind):
        text = "users need a socket that they reach, as with --bind ipc:///run/fluxsched/site"
        raise Refused(f"{SITE_KEY}: {text}", errno.EINVAL)


def check_state(is_sites: bool, config: Config) -> None:
    """Raise Refused for the state of a site if this instance is none: users' jobs in it would run as root."""
    if is_sites and not config.access.run_as_user:
        text = "its jobs run as their users, and would run as root: set run-as-user = true, or name another state"
        raise Refused(f"the state is that of an instance with {SITE_KEY}: {text}", errno.EPERM)


def task_addresses(uri: str, local_uri: str, bind: Iterable[str]) -> tuple[str, str]:
    """Return the addresses at which tasks of a site's instance find it: sockets that all users reach, as far as there
    are such.
    """
    given = list(bind)
    shared = [[one for one in given if one.startswith(scheme)] for scheme in (IPC_SCHEME, LOCAL_SCHEME)]
    return (shared[0] or [uri])[0], (shared[1] or [local_uri])[0]
