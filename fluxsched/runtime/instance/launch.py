"""Start and stop an instance, and run an agent: what `fluxsched start`, `stop` and `agent` call."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

from fluxsched.core.resources import ResourceSet
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, Refused
from fluxsched.jobs.queue.queues import DEFAULT_GROUP
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.runtime.client.blocking import Handle
from fluxsched.runtime.client.enclosing import Parent, enclosing_job, initial_variables, inside, job_around
from fluxsched.runtime.config.check import read_site
from fluxsched.runtime.config.policies import check_files, composed
from fluxsched.runtime.config.reader import Config
from fluxsched.runtime.config.toml_reader import TomlFault, raise_faults
from fluxsched.runtime.config.values import SchedulerSettings
from fluxsched.runtime.instance.agent import agent
from fluxsched.runtime.instance.initial_program import run_program
from fluxsched.runtime.instance.instance import Instance
from fluxsched.runtime.instance.parts.enclosed_targets import cannot_reload
from fluxsched.runtime.instance.parts.kept_changes import request_of, stored_changes, with_changes
from fluxsched.runtime.instance.parts.restarting import HandedOver, restart
from fluxsched.runtime.instance.settings import READY_S, Settings
from fluxsched.runtime.instance.start_arguments import check_start
from fluxsched.runtime.inventory.discovery import discover
from fluxsched.runtime.inventory.expiry import unexpired
from fluxsched.runtime.inventory.sources import Sources, build_inventory
from fluxsched.runtime.messaging.listening import TCP_SCHEME
from fluxsched.runtime.messaging.tracing import printer
from fluxsched.runtime.system import log as logs
from fluxsched.runtime.system.clock import SystemClock, sleep
from fluxsched.runtime.system.live_instances import find_uri
from fluxsched.runtime.system.logs.kept_logs import untold_end
from fluxsched.runtime.system.paths import PAGE_NAME, level_here
from fluxsched.runtime.system.private_files import private_state
from fluxsched.runtime.system.processes import stat_of
from fluxsched.runtime.system.service_manager import ServiceManager

__all__ = [
    "PAGE_NAME",
    "StartOptions",
    "agent",
    "check_config",
    "check_start",
    "restart",
    "schedulers_of",
    "settings_of",
    "start",
    "start_daemon",
    "stop",
]

OPEN_FILES_MIN = 64
"""With fewer an instance fails somewhere between its sockets, its store and its first job."""
SWITCH_S = 0.0005
"""How long a thread keeps the interpreter when another wants it (seconds). Python's 5 ms are paid for each row that the
store's writer stores beside a busy loop: a submit beside three clients that list took 170 ms, and takes 40 ms so."""
STOP_POLL_S = 0.02
DAEMON_START_S = 60.0
"""How long a daemon may take to come up before its starter gives up (seconds)."""


StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of `fluxsched start`. A relative path counts from the working directory."""

    config: StrPath | None = None
    r_path: StrPath | None = None
    fake: str | None = None
    schedulers: tuple[str, ...] = ()
    test_size: int | None = None
    statedir: StrPath | None = None
    salvage: bool = False
    """Start on what can be read of a damaged state, though something is lost."""
    command: tuple[str, ...] = ()
    daemon: bool = False
    bind: tuple[str, ...] = ()
    insecure_tcp: bool = False
    """Bind tcp endpoints though every account of the machine can do there all that the owner can."""
    verbose: int = 0
    log_format: str | None = None
    """How the log is written; None: as the configuration says."""
    trace: str | None = None
    """Show messages on stderr: of the topics with these beginnings (comma-separated), all when empty."""
    nested: bool = False
    """A job of another instance (`batch`, `alloc`), which is sent the addresses of this one."""
    web: bool = False
    """Serve a page, too: where the configuration says, else at any free port of loopback."""
    stays: bool = False
    """No initial program: it runs, in the foreground, until it is stopped."""
    ready_within_s: float | None = READY_S
    """How long an embedded instance may take to be ready; None: no limit."""

    def path(self, name: Literal["config", "r_path", "statedir"]) -> Path | None:
        """One of the paths. Raises InvalidValue for an empty text, as of a variable that is not set."""
        given: StrPath | None = getattr(self, name)
        if given is not None and not os.fspath(given):
            raise InvalidValue(f"StartOptions.{name} is empty: is a variable unset?")
        return None if given is None else Path(given)


def settings_of(options: StartOptions, *, trying: bool = False) -> Settings:
    """Everything an instance needs, with all errors of config and sources found before anything starts.

    With `trying` also those of policies, which are imported for it.
    """
    logs.setup(None, options.verbose)  # what is to be said of these, before the instance has its own log
    if options.nested and enclosing_job() is None:
        raise FluxschedError("--nested is for jobs of an instance: submit one with fluxsched batch")
    file, r_path, statedir = options.path("config"), options.path("r_path"), options.path("statedir")
    if statedir is not None and statedir.exists():
        private_state(statedir)  # here, so that the user who starts the instance sees warnings
    config, faults = read_site(file, trying=trying)
    if options.web:
        config = replace(config, page=config.page.wanted())
    explicit = r_path or options.fake or options.test_size or config.resource.path or config.resource.entries
    enclosing = None if explicit else job_around()

    is_following = enclosing is not None and enclosing.is_elastic

    def as_is(found: Sources) -> Sources:
        return found

    def sources(
        config: Config, faults: Iterable[TomlFault], changed: Callable[[Sources], Sources] = as_is
    ) -> Sources:
        found = build_inventory(
            config,
            r_path=r_path, fake=options.fake, test_size=options.test_size,
            enclosing=None if enclosing is None else enclosing.resources,
            is_elastic=is_following,
            topology=discover,
            known=faults,
            changed=changed,
        )  # fmt: skip
        return unexpired(found, r_path or config.resource.path, SystemClock.wall_s())

    def reload(wanted: ReloadRequest) -> tuple[Config, Sources]:
        again, faults = read_site(file)
        if wanted.R is not None:
            found = build_inventory(again, given=ResourceSet.parse(wanted.R), topology=discover, known=faults)
            return again, unexpired(found, None, SystemClock.wall_s())
        if wanted.path is not None:
            found = build_inventory(again, r_path=Path(wanted.path), topology=discover, known=faults)
            return again, unexpired(found, wanted.path, SystemClock.wall_s())
        return again, sources(again, faults)

    def at_start(config: Config, faults: Iterable[TomlFault]) -> Sources:
        rows, now_s = stored_changes(statedir), SystemClock.wall_s()
        here = discover() if rows else None
        try:
            return sources(config, faults, lambda found: with_changes(found, rows, now_s, here))
        except InvalidValue as fault:
            if "R" not in rows:
                raise
            remedy = "correct the configuration, or name other resources (--R, --fake), which replace them"
            raise type(fault)(f"{fault}\nR may be that of {request_of(rows['R'])}: {remedy}", fault.errnum) from None

    return Settings(
        sources=at_start(config, faults),
        reload=cannot_reload if is_following else reload,
        try_imports=lambda: _try_policies(file),
        config=config,
        statedir=statedir,
        salvage=options.salvage,
        enclosing=enclosing,
        parent=Parent.find(),
        schedulers=schedulers_of(options, config),
        bind=options.bind,
        insecure_tcp=options.insecure_tcp,
        verbose=options.verbose,
        log_format=options.log_format or config.log_format,
        trace=None if options.trace is None else printer(sys.stderr, tuple(options.trace.split(","))),
        check_start=lambda: cannot_reload(None) if is_following else at_start(*read_site(file)),
        ready_within_s=options.ready_within_s,
    )


def _try_policies(path: Path | None) -> None:
    """Import all policies of a configuration. Raises InvalidValue with all its faults."""
    config, faults = read_site(path, trying=True)
    raise_faults(config.name, faults)


def check_config(options: StartOptions) -> str:
    """What an instance with this configuration would have, in words. Raises InvalidValue with all faults."""
    settings = settings_of(options, trying=True)
    targets, config = len(settings.sources.inventory.resources.ranks), settings.config
    counts = (("target", targets), ("queue", len(config.queues) or 1), ("scheduler", len(settings.schedulers)))
    return ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts)


def schedulers_of(options: StartOptions, config: Config) -> tuple[SchedulerSettings, ...]:
    """`--scheduler` decides for the group default; without it the config does, else fifo.

    Raises InvalidValue for an unknown policy, and for one of a queue that is not the scheduler's.
    """
    if "none" in options.schedulers:
        return ()
    found = config.schedulers or (SchedulerSettings("fifo"),)
    if options.schedulers:
        found = tuple(map(SchedulerSettings, options.schedulers))
    for one in found:
        check_files(composed(one.policy, one.groups or (DEFAULT_GROUP,), config.queues))
    return found


def check_open_files() -> None:
    """Raises Refused where a process may have too few open files for an instance."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        remedy = f"allow more (`ulimit -n {OPEN_FILES_MIN}`" + ("" if hard >= OPEN_FILES_MIN else ", as root") + ")"
        text = f"{soft} open files are allowed, an instance needs {OPEN_FILES_MIN} at least: {remedy}"
        raise Refused(text, errno.EMFILE)


def start(options: StartOptions) -> int:
    """Run an instance in this process until its command ends, or it is stopped; the exit status."""
    check_open_files()
    manager, handed = ServiceManager.take(), HandedOver.take()
    settings = replace(settings_of(options), handed=handed, ready_within_s=None)
    _tell_last_end(options.path("statedir"))

    def ready(instance: Instance) -> None:
        _say(instance.page)
        manager.tell("READY=1", f"STATUS={instance.info().size} targets, at {instance.uri}")

    found: int | HandedOver = 1
    try:
        found = asyncio.run(_run(settings, options, ready))
    finally:
        if isinstance(found, int):
            manager.tell("STOPPING=1")
    if isinstance(found, HandedOver):
        manager.give_back()
        found.execute()
    return found


async def _run(settings: Settings, options: StartOptions, ready: Callable[[Instance], None]) -> int | HandedOver:
    """Run an instance until it ends; the exit status, or what it hands over to the next one in this process."""
    sys.setswitchinterval(SWITCH_S)
    loop = asyncio.get_running_loop()
    instance = Instance(settings)
    for signum in (signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(signum, instance.stop)
    async with instance:
        await instance.page_served()
        ready(instance)
        status = 0
        if options.nested and settings.enclosing is not None:
            await settings.enclosing.tell(instance.uri, instance.local_uri)
        if options.daemon or options.stays:
            await instance.ended
        else:
            status = await _command(instance, options)
        error = instance.ended.result() if instance.ended.done() else None
    if error is not None:
        raise error
    return instance.handed_over() if instance.is_restarting else status


async def _command(instance: Instance, options: StartOptions) -> int:
    """Run the initial program inside the instance; its exit status."""
    handed = instance.settings.handed
    program = None if handed is None else handed.program
    if not (options.command or options.nested or program):  # what a command writes is its own; a shell's user has eyes
        _tell_user(instance.local_uri, _made_up(instance))
    words = list(options.command) or [os.environ.get("SHELL", "/bin/sh")]
    environment = inside(os.environ, initial_variables(instance.effects.environment, instance.settings.parent))
    return await run_program(
        words, environment, instance.ended, instance.began, program=program, goes_on=lambda: instance.is_restarting
    )


def _tell_last_end(statedir: Path | None) -> None:
    """Say once if an instance was lost; of those inside jobs that is nothing unusual."""
    _say(None if level_here() else untold_end(statedir))


def _tell_user(uri: str, targets: str | None) -> None:
    """What is worth knowing before the first command."""
    _say(targets)
    _say(f"for Flux's own commands: export FLUX_URI={uri}")


def _say(text: str | None) -> None:
    if text is not None:
        sys.stderr.write(f"fluxsched: start: {text}\n")


def _made_up(instance: Instance) -> str | None:
    """That tasks run here whatever the target is called; None where all targets are this machine."""
    resources = instance.resource.module.resources
    made_up = instance.resource.made_up(resources)
    if not made_up:
        return None
    some = "its targets are" if made_up == resources.ranks else f"{len(made_up)} of its targets are"
    return f"{some} made up: tasks on them run on this machine"


def start_daemon(options: StartOptions) -> str:
    """Start an instance in the background; its uri, once it is ready."""
    check_open_files()
    ServiceManager.take()  # our exit tells the program that started us
    handed = HandedOver.take()
    settings = replace(settings_of(options), handed=handed, ready_within_s=None)
    if handed is not None:  # this is the daemon
        _run_daemon(settings, options, lambda instance: None, logs.logger("instance").critical)
    _tell_last_end(options.path("statedir"))
    read_end, write_end = os.pipe()
    if os.fork() == 0:
        os.close(read_end)
        _daemonize(settings, options, write_end)
    os.close(write_end)
    os.wait()
    with os.fdopen(read_end) as file:
        answer = _daemons_answer(file)
    if "error" in answer:
        raise FluxschedError(str(answer["error"]))
    if answer["open"] is not None:
        sys.stderr.write(f"fluxsched: start: warning: listening at {answer['open']}\n")
    if answer["state_notice"] is not None:
        sys.stderr.write(f"fluxsched: start: warning: {answer['state_notice']}\n")
    _say(answer["page"])
    _tell_user(answer["local_uri"], answer["made_up"])
    return str(answer["uri"])


def _daemons_answer(file: TextIO) -> dict[str, Any]:
    if not select.select([file], [], [], DAEMON_START_S)[0]:
        return {"error": f"the instance was not ready within {DAEMON_START_S:g} s: try it without --daemon, with -v"}
    found: dict[str, Any] = json.loads(file.read() or '{"error": "the instance ended before it was ready"}')
    return found


def _daemonize(settings: Settings, options: StartOptions, tell_fd: int) -> None:
    """In the child: leave the terminal, run, and never return."""
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)

    def tell(instance: Instance) -> None:
        found = {"uri": instance.uri, "local_uri": instance.local_uri, "open": instance.is_open_to_all}
        found["page"] = instance.page
        found["made_up"], found["state_notice"] = _made_up(instance), instance.info().state_notice
        os.write(tell_fd, json.dumps(found).encode())
        os.close(tell_fd)

    def failed(text: str) -> None:
        try:
            os.write(tell_fd, json.dumps({"error": text}).encode())
        except OSError:
            logs.logger("instance").critical("%s", text)

    _run_daemon(settings, options, tell, failed)


def _run_daemon(
    settings: Settings, options: StartOptions, ready: Callable[[Instance], None], failed: Callable[[str], None]
) -> NoReturn:
    status = 1
    try:
        found = asyncio.run(_run(settings, replace(options, daemon=True), ready))
        if not isinstance(found, int):
            found.execute()
        status = found
    except Exception as exc:  # last resort of the daemon: the process that started it must report why
        failed(str(exc))
    finally:
        os._exit(status)


def stop(uri: str | None, timeout_s: float = 30.0) -> str:
    """Stop the instance at `uri`, else the only one of this user, and wait until its process is gone; where it was.

    Raises Refused naming all, if there are several.
    """
    uri = find_uri(uri, only=True)
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    while (pid := _ask_to_stop(uri)) is None:
        if clock.monotonic_s() > until_s:
            raise FluxschedError(f"{uri} closes each connection within {timeout_s:g} s", errno.ETIMEDOUT)
        sleep(STOP_POLL_S)
    while _answers(uri) if uri.startswith(TCP_SCHEME) else _alive(pid):
        if clock.monotonic_s() > until_s:
            raise FluxschedError(f"instance {uri} (process {pid}) did not end within {timeout_s:g} s", errno.ETIMEDOUT)
        sleep(STOP_POLL_S)
    return uri


def _ask_to_stop(uri: str) -> int | None:
    """The process that will end; None if it closed the connection before it said which it is: ask again.

    A process that is being killed still accepts connections until the last of its threads is gone.
    """
    pid = None
    with Handle(uri) as handle, suppress(Disconnected):
        pid = int(handle.rpc("instance.info")["pid"])
        handle.rpc("instance.stop")
    return pid


def _answers(uri: str) -> bool:
    """Whether something listens there still: of a process on another machine nothing else is known."""
    try:
        Handle(uri).close()
    except Disconnected:
        return False
    return True


def _alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive
