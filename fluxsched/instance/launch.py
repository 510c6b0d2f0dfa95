"""Start and stop of an instance, its initial program, agents, and commands inside another instance.

These are what `fluxsched start`, `stop`, `agent`, `alloc` and `proxy` call; arguments are checked before anything
starts. Law: when the instance is stopped first, the initial program's whole session ends with it: the program, what
descends from it, and what it orphaned, which became ours. What started a session of its own (`setsid`, a daemon) is
left alone. The program remains in our process group, so that a terminal's signals and job control reach it. A command
of `alloc` or `proxy` is this process's child, at this terminal, bound to the processors of the instance, and ends with
that: it is asked to, and killed if it does not.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Literal, NoReturn, TextIO

from fluxsched.client.blocking import Handle, ReadableFile
from fluxsched.client.find import find_uri, local_uri_of
from fluxsched.config.discovery import discover
from fluxsched.config.inventory import Sources, build_inventory, fake_resources, unchanged, unexpired
from fluxsched.config.policies import check_files, check_policies, composed
from fluxsched.config.reader import Config, load_config, read_site
from fluxsched.config.toml import TomlFault, raise_faults
from fluxsched.config.values import JOB_ENGINE, NO_ENGINE, EngineSettings, SchedulerSettings, parse_engine
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import counted, some_of
from fluxsched.engine.engines import LOOPBACK
from fluxsched.engine.process import StartedEngine, start_engine, supposed_resources
from fluxsched.engine.report import within_job
from fluxsched.errors import Disconnected, FluxschedError, InvalidValue, Refused, RPCError
from fluxsched.executor.cleanup import adopt_orphans, all_living, with_descendants
from fluxsched.instance.assembly import READY_S, Settings
from fluxsched.instance.enclosing import (
    Enclosing,
    Parent,
    cannot_reload,
    enclosing_job,
    environment_of,
    initial_variables,
    inside,
    job_around,
)
from fluxsched.instance.instance import Instance, lock_state
from fluxsched.instance.restarts import (
    RANKS,
    HandedOver,
    has_running_jobs,
    request_of,
    restart,
    stored_changes,
    with_changes,
    with_ranks,
)
from fluxsched.jobs.queues import DEFAULT_GROUP, QueueConfig
from fluxsched.messaging.router import TCP_SCHEME, printer
from fluxsched.protocol.messages.resource import ReloadRequest
from fluxsched.system import log
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import PAGE_NAME, level_here, private_state, untold_end
from fluxsched.system.loop import ExitWatch
from fluxsched.system.processes import PATH_VARIABLE, ServiceManager, signal_exactly, stat_of

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
"""Minimum limit of open files; with fewer an instance fails somewhere between its sockets, its store and its first job.
"""
SWITCH_S = 0.0005
"""Time for which a thread keeps the interpreter when another wants it (seconds).

Python's 5 ms are spent for each row that the store's writer stores beside a busy loop: a submit beside three clients
that list took 170 ms, and takes 40 ms with this value.
"""
STOP_POLL_S = 0.02
DAEMON_START_S = 60.0
"""Maximum time until a daemon must be up, after which its starter gives up (seconds)."""


StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The options of `fluxsched start`. A relative path counts from the working directory."""

    config: StrPath | None = None
    r_path: StrPath | None = None
    fake: str | None = None
    schedulers: tuple[str, ...] = ()
    test_size: int | None = None
    engine: str | None = None
    """slurm, flux, ssh:HOSTLIST, auto or none: where the hosts come from; None: as configured."""
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
    """Format of the log; None: as configured."""
    trace: str | None = None
    """Show messages on stderr: of the topics with these beginnings (comma-separated), all when empty."""
    nested: bool = False
    """True for a job of another instance (`batch`, `alloc`), which is sent the addresses of this one."""
    web: bool = False
    """Serve a page, too: where the configuration says, else at any free port of loopback."""
    stays: bool = False
    """True without an initial program: the instance runs, in the foreground, until it is stopped."""
    ready_within_s: float | None = READY_S
    """Maximum time until an embedded instance must be ready; None: no limit."""

    def __post_init__(self) -> None:
        """Refuse one text where several may be given, since its characters would be taken for them: InvalidValue."""
        for name in ("schedulers", "command", "bind"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise InvalidValue(f"StartOptions.{name} is one text: give a tuple, ({given!r},)")

    def path(self, name: Literal["config", "r_path", "statedir"]) -> Path | None:
        """Return one of the paths. Raises InvalidValue for an empty text, as of a variable that is not set."""
        given: StrPath | None = getattr(self, name)
        if given is not None and not os.fspath(given):
            raise InvalidValue(f"StartOptions.{name} is empty: is a variable unset?")
        return None if given is None else Path(given)


def settings_of(options: StartOptions, *, trying: bool = False, handed: HandedOver | None = None) -> Settings:
    """Everything an instance needs, with all errors of config and sources found before anything starts.

    An engine is started then, and the instance ends it: this blocks until its hosts have reported. With `trying` it is
    only asked for its hosts, and the errors of policies are found, too, which are imported for it.
    """
    log.set_up_logging(None, options.verbose)  # what is to be said of these, before the instance has its own log
    if options.nested and enclosing_job() is None:
        raise FluxschedError("--nested is for jobs of an instance: submit one with fluxsched batch")
    file, statedir = options.path("config"), options.path("statedir")
    if statedir is not None and statedir.exists():
        private_state(statedir)  # here, so that the user who starts the instance sees warnings
    config, faults = read_site(file, trying=trying)
    if options.web:
        config = replace(config, page=config.page.wanted())
    around = _job_of_hosts(options, config)
    wanted = _engine_of(options, config) if around is None else _engine_of_job(config, around)
    engine = None
    if wanted.kind != NO_ENGINE:
        raise_faults(config.name, faults)
    if trying:
        supposed = supposed_resources(wanted, os.environ)
    else:
        engine, supposed = _started(wanted, statedir, handed), None

    def reported() -> ResourceSet | None:
        found = supposed if engine is None else engine.resources()
        return found if found is None or around is None else within_job(found, around.resources)

    try:
        return _settings(options, config, faults, engine, reported, around)
    except BaseException:
        if engine is not None:
            engine.abandon()
        raise


def _engine_of(options: StartOptions, config: Config) -> EngineSettings:
    """Return the settings of the engine; that of the configuration gives way to resources that the options name."""
    named = {"--R": options.r_path, "--fake": options.fake, "--test-size": options.test_size}
    given = [name for name, value in named.items() if value is not None]
    if options.engine is None:
        return EngineSettings() if given else config.engine
    found = config.engine.named(options.engine)
    if given and found.kind != NO_ENGINE:
        raise InvalidValue(f"--engine and {' and '.join(given)} exclude each other: each replaces all resources")
    return found


def _job_of_hosts(options: StartOptions, config: Config) -> Enclosing | None:
    """Return the job around this process if the instance is to have its hosts, and these are not this one alone."""
    named = (options.r_path, options.fake, options.test_size, options.engine, config.resource.path)
    if any(one is not None for one in named) or config.resource.entries or config.engine.kind != NO_ENGINE:
        return None
    around = job_around()
    if around is None or not around.engine:
        return None
    if around.is_elastic:
        text = "an instance in an elastic job of an instance on several hosts would not follow it to other hosts"
        raise Refused(f"{text}: submit it without --elastic, or start it with --engine none for this host alone")
    return around if len(around.resources.nodelist.unique()) > 1 else None


def _engine_of_job(config: Config, around: Enclosing) -> EngineSettings:
    """Return the settings of the engine of an instance that is a job over several hosts."""
    address = config.engine.address
    if address is None and around.engine_address == LOOPBACK:  # the names may be those of no host
        address = LOOPBACK
    return replace(config.engine, kind=JOB_ENGINE, address=address)


def _started(wanted: EngineSettings, statedir: Path | None, handed: HandedOver | None) -> StartedEngine | None:
    """Start the engine, or take up that of the instance before."""
    directory = statedir if statedir is not None or handed is None else handed.directory[0]
    alone = nullcontext() if statedir is None or handed is not None or not statedir.exists() else lock_state(statedir)
    with alone:  # else the keepers could be those of an instance that runs
        return start_engine(wanted, os.environ, directory, is_kept=statedir is not None)


def _settings(
    options: StartOptions,
    config: Config,
    faults: list[TomlFault],
    engine: StartedEngine | None,
    reported: Callable[[], ResourceSet | None],
    around: Enclosing | None,
) -> Settings:
    """Return the settings of an instance on the hosts that have reported, if there is an engine."""
    explicit = (
        options.path("r_path") or options.fake or options.test_size or reported()
        or config.resource.path or config.resource.entries
    )  # fmt: skip
    enclosing = around if around is not None else None if explicit else job_around()
    reader = _SiteReader(options, engine, reported, enclosing)
    return Settings(
        sources=reader.at_start(config, faults),
        held=engine,
        engine=engine,
        reload=cannot_reload if reader.is_following else reader.reload,
        try_imports=lambda: _try_policies(options.path("config")),
        config=config,
        statedir=options.path("statedir"),
        salvage=options.salvage,
        enclosing=enclosing,
        parent=Parent.find(),
        schedulers=schedulers_of(options, config),
        bind=options.bind,
        insecure_tcp=options.insecure_tcp,
        verbose=options.verbose,
        log_format=options.log_format or config.log_format,
        trace=None if options.trace is None else printer(sys.stderr, tuple(options.trace.split(","))),
        check_start=reader.check_start,
        ready_within_s=options.ready_within_s,
    )


@dataclass(frozen=True, slots=True)
class _SiteReader:
    """Reads configuration and resources of one instance: when it starts, at reloads, and to try whether it would start.

    `reported` returns the R of the engine's hosts, if there is one.
    """

    options: StartOptions
    engine: StartedEngine | None
    reported: Callable[[], ResourceSet | None]
    enclosing: Enclosing | None

    @property
    def is_following(self) -> bool:
        """Return whether the resources are those of an elastic job, which the instance follows."""
        return self.enclosing is not None and self.enclosing.is_elastic

    def at_start(self, config: Config, faults: Iterable[TomlFault]) -> Sources:
        """Return the resources of this configuration as the requests that the state directory keeps changed them."""
        statedir = self.options.path("statedir")
        rows, now_s = stored_changes(statedir), SystemClock.wall_s()
        here = discover() if "R" in rows else None
        try:
            found = self._sources(config, faults, lambda found: with_changes(found, rows, now_s, here))
        except InvalidValue as fault:
            if "R" not in rows:
                raise
            remedy = "correct the configuration, or name other resources (--R, --fake), which replace them"
            raise type(fault)(f"{fault}\nR may be that of {request_of(rows['R'])}: {remedy}", fault.errnum) from None
        if statedir is None or self.enclosing is not None:  # the enclosing job's R says which targets are which
            return found
        return with_ranks(found, rows.get(RANKS), partial(has_running_jobs, statedir))

    def check_start(self) -> None:
        """Read all anew as a start would. Raises what the start would raise."""
        if self.is_following:
            cannot_reload(None)
        else:
            self.at_start(*read_site(self.options.path("config")))

    def reload(self, wanted: ReloadRequest) -> tuple[Config, Sources]:
        """Return the configuration, read anew, and its resources, or those that the request names."""
        config, faults = read_site(self.options.path("config"))
        if wanted.R is None and wanted.path is None:
            return config, self._sources(config, faults)
        if wanted.R is not None:
            found = build_inventory(config, given=ResourceSet.parse(wanted.R), topology=discover, known=faults)
        else:
            found = build_inventory(config, r_path=Path(str(wanted.path)), topology=discover, known=faults)
        found = found if self.engine is None else found.held_by_keepers()
        return config, unexpired(found, None if wanted.R is not None else wanted.path, SystemClock.wall_s())

    def _sources(
        self, config: Config, faults: Iterable[TomlFault], changed: Callable[[Sources], Sources] = unchanged
    ) -> Sources:
        options, engine, r_path = self.options, self.engine, self.options.path("r_path")
        found = build_inventory(
            config,
            r_path=r_path, fake=options.fake, test_size=options.test_size,
            reported=self.reported(),
            enclosing=None if self.enclosing is None else self.enclosing.resources,
            is_elastic=self.is_following,
            topology=discover,
            known=faults,
            changed=changed,
        )  # fmt: skip
        source = r_path or (config.resource.path if engine is None else f"engine {engine.identity}")
        return unexpired(found, source, SystemClock.wall_s())


def _try_policies(path: Path | None) -> None:
    """Import all policies of a configuration. Raises InvalidValue with all its faults."""
    config, faults = read_site(path, trying=True)
    raise_faults(config.name, faults)


def check_config(options: StartOptions) -> str:
    """Return a summary of an instance with this configuration, in words. Raises InvalidValue with all faults."""
    settings = settings_of(options, trying=True)
    targets, config = len(settings.sources.inventory.resources.ranks), settings.config
    counts = (("target", targets), ("queue", len(config.queues) or 1), ("scheduler", len(settings.schedulers)))
    return ", ".join(f"{count} {what}{'s' * (count != 1)}" for what, count in counts)


def schedulers_of(options: StartOptions, config: Config) -> tuple[SchedulerSettings, ...]:
    """Return the schedulers: `--scheduler` decides for the group default; without it the config does, else fifo.

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
    """Raise Refused where a process may have too few open files for an instance."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES_MIN:
        remedy = f"allow more (`ulimit -n {OPEN_FILES_MIN}`" + ("" if hard >= OPEN_FILES_MIN else ", as root") + ")"
        text = f"{soft} open files are allowed, an instance needs {OPEN_FILES_MIN} at least: {remedy}"
        raise Refused(text, errno.EMFILE)


def start(options: StartOptions) -> int:
    """Run an instance in this process until its command ends, or it is stopped; the exit status."""
    check_open_files()
    manager, handed = ServiceManager.take(), HandedOver.take()
    settings = replace(settings_of(options, handed=handed), handed=handed, ready_within_s=None)
    _tell_last_end(options.path("statedir"))

    def ready(instance: Instance) -> None:
        _say(instance.page)
        manager.tell("READY=1", f"STATUS={counted(instance.info().size, 'target')}, at {instance.uri}")

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
    try:
        instance = Instance(settings)
    except BaseException:
        if settings.engine is not None:
            settings.engine.abandon()
        raise
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
        _tell_user(instance.local_uri, _targets_note(instance))
    words = list(options.command) or [os.environ.get("SHELL", "/bin/sh")]
    environment = inside(os.environ, initial_variables(instance.effects.settings.environment, instance.settings.parent))
    return await run_program(
        words, environment, instance.ended, instance.began, program=program, goes_on=lambda: instance.is_restarting
    )


def _tell_last_end(statedir: Path | None) -> None:
    """Say once if an instance was lost; of those inside jobs that is nothing unusual."""
    _say(None if level_here() else untold_end(statedir))


def _tell_user(uri: str, targets: str | None) -> None:
    """Print the facts that the user needs before the first command."""
    _say(targets)
    _say(f"for Flux's own commands: export FLUX_URI={uri}")


def _say(text: str | None) -> None:
    if text is not None:
        sys.stderr.write(f"fluxsched: start: {text}\n")


def _targets_note(instance: Instance) -> str | None:
    """Return a note of the engine's hosts, or that tasks run on this machine whatever target they have; None if all
    targets are this machine.
    """
    resources = instance.resource.module.resources
    if (engine := instance.settings.engine) is not None:
        return f"its targets are the hosts of {engine.identity}: {resources.nodelist}"
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
    settings = replace(settings_of(options, handed=handed), handed=handed, ready_within_s=None)
    if handed is not None:  # this is the daemon
        _run_daemon(settings, options, lambda instance: None, log.logger("instance").critical)
    _tell_last_end(options.path("statedir"))
    read_end, write_end = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read_end)
        _daemonize(settings, options, write_end)
    os.close(write_end)
    os.waitpid(child, 0)  # and not that of an engine, which is ours, too
    with os.fdopen(read_end) as file:
        answer = _daemons_answer(file)
    if "error" in answer:
        raise FluxschedError(str(answer["error"]))
    if answer["open"] is not None:
        sys.stderr.write(f"fluxsched: start: warning: listening at {answer['open']}\n")
    if answer["state_notice"] is not None:
        sys.stderr.write(f"fluxsched: start: warning: {answer['state_notice']}\n")
    _say(answer["page"])
    _tell_user(answer["local_uri"], answer["targets"])
    return str(answer["uri"])


def _daemons_answer(file: TextIO) -> dict[str, Any]:
    if not select.select([file], [], [], DAEMON_START_S)[0]:
        return {"error": f"the instance was not ready within {DAEMON_START_S:g} s: try it without --daemon, with -v"}
    found: dict[str, Any] = json.loads(file.read() or '{"error": "the instance ended before it was ready"}')
    return found


def _daemonize(settings: Settings, options: StartOptions, tell_fd: int) -> None:
    """Leave the terminal in the child and run the instance; never return."""
    os.setsid()
    if os.fork() != 0:
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)

    def tell(instance: Instance) -> None:
        found = {"uri": instance.uri, "local_uri": instance.local_uri, "open": instance.is_open_to_all}
        found["page"] = instance.page
        found["targets"], found["state_notice"] = _targets_note(instance), instance.info().state_notice
        os.write(tell_fd, json.dumps(found).encode())
        os.close(tell_fd)

    def failed(text: str) -> None:
        try:
            os.write(tell_fd, json.dumps({"error": text}).encode())
        except OSError:
            log.logger("instance").critical("%s", text)

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
    """Stop the instance at `uri`, else the only one of this user, wait until its process is gone, and return its URI.

    Raises Refused naming all, if there are several.
    """
    uri = find_uri(uri, only=True)
    clock = SystemClock()
    until_s = clock.monotonic_s() + timeout_s
    while (pid := _ask_to_stop(uri)) is None:
        if clock.monotonic_s() > until_s:
            raise FluxschedError(f"{uri} closes each connection within {timeout_s:g} s", errno.ETIMEDOUT)
        SystemClock.sleep(STOP_POLL_S)
    while _answers(uri) if uri.startswith(TCP_SCHEME) else _is_alive(pid):
        if clock.monotonic_s() > until_s:
            raise FluxschedError(f"instance {uri} (process {pid}) did not end within {timeout_s:g} s", errno.ETIMEDOUT)
        SystemClock.sleep(STOP_POLL_S)
    return uri


def _ask_to_stop(uri: str) -> int | None:
    """Return the process that will end; None if it closed the connection before it sent its id: ask again.

    A process that is being killed still accepts connections until the last of its threads is gone.
    """
    pid = None
    with Handle(uri) as handle, suppress(Disconnected):
        pid = int(handle.rpc("instance.info")["pid"])
        handle.rpc("instance.stop")
    return pid


def _answers(uri: str) -> bool:
    """Return whether a process still listens there: of a process on another machine nothing else is known."""
    try:
        Handle(uri).close()
    except Disconnected:
        return False
    return True


def _is_alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive


# ---- arguments of a start


def check_start(
    fake: str | None, schedulers: tuple[str, ...], config: Path | None = None, engine: str | None = None
) -> None:
    """Raise InvalidValue for a bad `--fake` or `--engine`, and for a `--scheduler` that names no policy, file or
    queue.
    """
    if fake is not None:
        fake_resources(fake)
    if engine is not None:
        parse_engine(engine)
    for specs in schedulers:
        if specs == "none":
            continue
        try:
            _, own = check_policies(specs)
            check_files(specs)
            if own and (queues := _queues(config)) is not None:
                composed(specs, (DEFAULT_GROUP,), queues)
        except InvalidValue as fault:
            raise InvalidValue(f"--scheduler {specs}: {fault}") from None


def _queues(config: Path | None) -> Mapping[str, QueueConfig] | None:
    """Return the configured queues; None if the file has faults, which the start itself reports."""
    try:
        return {} if config is None else load_config(config).queues
    except InvalidValue:
        return None


# ---- the initial program

COMMAND_END_S = 3.0
"""Maximum time until the program must exit when the instance is stopped, before it is killed (seconds)."""
LOOK_S = 0.01
"""Interval of checking whether the program has exited (seconds)."""
NOT_EXECUTABLE, NOT_FOUND = 126, 127
"""Exit statuses of shells when the command cannot be run."""
ASKING = (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
"""Signals that ask a program to end: interactive shells obey SIGHUP, others SIGTERM, and a stopped process neither of
them.
"""


async def run_program(
    words: Sequence[str],
    environment: Mapping[str, str],
    ended: asyncio.Future[Any],
    began: Callable[[int], None],
    *,
    program: int | None = None,
    goes_on: Callable[[], bool] = lambda: False,
) -> int:
    """Run the program until it or the instance (`ended`) ends; its exit status, as shells give it.

    `began` is called with its process id. `program` is that of one that runs already, a child of this process. If it
    `goes_on` when the instance ends, it is left alone.
    """
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    adopt_orphans()
    if program is None:
        try:
            process = subprocess.Popen(words, env=environment)
        except OSError as exc:
            text, status = cannot_run(words, exc)
            sys.stderr.write(f"fluxsched: start: {text}\n")
            return status
        program, process.returncode = process.pid, 0  # it is reaped below
    began(program)
    leaving: asyncio.Future[None] = loop.create_future()
    watch = ExitWatch(loop, program, lambda: leaving.set_result(None))
    both: list[asyncio.Future[Any]] = [leaving, ended]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not leaving.done():
        if goes_on():
            watch.close()
            return 0
        await _end(program)
    await leaving
    return exit_status(os.waitstatus_to_exitcode(os.waitpid(program, 0)[1]))


async def _end(program: int) -> None:
    """Ask all that is the program's to end; kill what does not."""
    asked = _processes(program)
    for pid, start_ticks in asked.items():
        signal_exactly(pid, start_ticks, *ASKING)
    until_s = SystemClock.monotonic_s() + COMMAND_END_S
    while _any_alive(asked):
        if SystemClock.monotonic_s() > until_s:
            break
        await asyncio.sleep(LOOK_S)
    for pid, start_ticks in {**asked, **_processes(program)}.items():
        signal_exactly(pid, start_ticks, signal.SIGKILL)


def exit_status(returncode: int) -> int:
    """Return the exit status of shells for a return code of `subprocess`: 128+n for signal n."""
    return returncode if returncode >= 0 else 128 - returncode


def cannot_run(words: Sequence[str], fault: OSError) -> tuple[str, int]:
    """Return the message about a command that cannot be run, and the exit status that shells have then."""
    status = NOT_FOUND if fault.errno in (errno.ENOENT, errno.ENOTDIR) else NOT_EXECUTABLE
    return f"cannot run {shlex.join(words)}: {os.strerror(fault.errno or 0)}", status


def _processes(program: int) -> dict[int, int]:
    """Return the program's processes with their start times."""
    table = all_living()
    us, session, path = os.getpid(), os.getsid(0), os.environ.get(PATH_VARIABLE)
    orphans = {pid for pid, (stat, of) in table.items() if stat.ppid == us and of in (None, path)}
    found = with_descendants(table, {program, *orphans} & table.keys())
    return {pid: table[pid][0].start_ticks for pid in found if table[pid][0].sid == session}


def _any_alive(processes: Mapping[int, int]) -> bool:
    stats = ((stat_of(pid), start_ticks) for pid, start_ticks in processes.items())
    return any(stat is not None and stat.alive and stat.start_ticks == ticks for stat, ticks in stats)


# ---- `proxy` and `stop`


class _Left(Exception):
    """Exception raised when the command has ended."""


class _Watch:
    """The end of a process, to be waited for beside answers."""

    def __init__(self, pid: int) -> None:
        self.fd: int | None = os.pidfd_open(pid)

    def look(self) -> None:
        """Check the descriptor; called when it can be read, or a response has arrived."""
        assert self.fd is not None, "close ends the watch"
        import select

        if select.select([self.fd], [], [], 0)[0]:
            raise _Left

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
        self.fd = None


def visit(
    uri: str,
    command: Sequence[str],
    base: Mapping[str, str],
    cwd: str,
    ends: Callable[[ReadableFile], None] | None = None,
) -> int:
    """Run a command, else a shell, as inside the instance at `uri`; its exit status, as shells give it.

    `ends` waits until the instance ends, looking at what it is given meanwhile. Raises FluxschedError.
    """
    environment = _environment(uri, base)
    words = list(command) or [environment.get("SHELL", "/bin/sh")]
    before = signal.signal(signal.SIGINT, lambda signum, frame: None)  # Ctrl-C is for the command
    process = None
    try:
        with _deferred(signal.SIGTERM, signal.SIGHUP):  # or the command would run with its process id unknown
            try:
                process = subprocess.Popen(words, env=environment, cwd=cwd)
            except OSError as exc:
                raise CannotRun(*cannot_run(words, exc)) from exc
        if ends is not None:
            _wait_for_either(process, ends)
        status = process.wait()
    except BaseException:
        if process is not None:
            end(process)
        raise
    finally:
        signal.signal(signal.SIGINT, before)
    return exit_status(status)


@contextmanager
def _deferred(*signums: int) -> Iterator[None]:
    """Defer signals within the block to its end, where they are handled as they would have been; ignored ones stay
    ignored.
    """
    came: list[int] = []
    handlers = {each: signal.getsignal(each) for each in signums}
    taken = {each: handler for each, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
    for signum in taken:
        signal.signal(signum, lambda signum, frame: came.append(signum))
    try:
        yield
    finally:
        for signum, handler in taken.items():
            signal.signal(signum, handler)
        for signum in came:
            signal.raise_signal(signum)


class CannotRun(FluxschedError):
    """The command cannot be run; `status` is how shells leave then."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status


def stop_instance(uri: str) -> None:
    """End an instance, and do not wait for it."""
    with Handle(uri) as handle:
        handle.rpc("instance.stop")


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a command to go, and kill it if it does not."""
    for signum in ASKING:
        process.send_signal(signum)
    try:
        process.wait(COMMAND_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _wait_for_either(process: subprocess.Popen[bytes], ends: Callable[[ReadableFile], None]) -> None:
    watch = _Watch(process.pid)
    try:
        ends(watch)
    except _Left:
        return
    finally:
        watch.close()
    end(process)


def _environment(uri: str, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program inside the instance; bind this process to the instance's processors, where
    they are bound.
    """
    with Handle(uri) as handle:
        info = handle.rpc("instance.info")
        local_uri = local_uri_of(handle)
    with suppress(OSError):
        os.sched_setaffinity(0, os.sched_getaffinity(int(info["pid"])))
    outer = info.get("parent")
    parent = None if outer is None else Parent(outer, None, int(info["level"]) - 1)
    return inside(base, {**environment_of(uri, parent), "FLUX_URI": local_uri})


# ---- `agent`

TAKEN_S = 10.0
"""Maximum time until an instance must notice that the previous connection is lost (seconds)."""
AGAIN_S = 0.2
"""Interval of requesting its targets meanwhile (seconds)."""
HOSTS_MAX = 4096
"""Hosts of one agent: one message each."""


def agent(uri: str, *, host: str | None, ranks: str | None, heartbeat_s: float | None) -> int:
    """Stand for this machine's targets, or for those of all hosts in a hostlist, until killed.

    An instance that is lost is looked for as long as it may come back: Disconnected once it does not.
    """
    topology = discover()
    hosts = [*Hostlist.parse(host)] if host is not None else [topology.host]
    if len(hosts) > HOSTS_MAX:
        raise InvalidValue(f"--host {host} names {len(hosts)} hosts, above the limit of {HOSTS_MAX}: start more agents")
    if len(set(hosts)) < len(hosts) or not hosts:
        raise InvalidValue(f"--host {host!r} is to name hosts, each once")
    found = (topology if hosts == [topology.host] else topology.without_memory()).resources()
    hellos = [_hello(name, found, ranks, heartbeat_s) for name in hosts]
    is_new = True
    with Handle(uri) as handle:
        while True:
            try:
                if is_new and len(hellos) > 1:
                    _check_hosts(handle, hellos)
                interval_s = _begin(handle, hellos, patient=not is_new)
                if is_new and hosts != [topology.host]:
                    sys.stderr.write(f"agent of {host}: they are made up: tasks on them run on {topology.host}\n")
                is_new = False
                _beat(handle, heartbeat_s or interval_s)
            except Disconnected as fault:
                sys.stderr.write(f"agent of {host or topology.host}: {fault}: connecting again when it is back\n")
                handle.reconnect(within_s=inf, also_stopped=True)


def _hello(host: str, found: ResourceSet, ranks: str | None, heartbeat_s: float | None) -> dict[str, Any]:
    hello: dict[str, Any] = {"host": host, "R": replace_host(found, host).to_json(), "heartbeat_s": heartbeat_s or 0.0}
    return hello if ranks is None else {**hello, "ranks": ranks}


def _check_hosts(handle: Handle, hellos: Sequence[dict[str, Any]]) -> None:
    """Raise RPCError naming all hosts that cannot be registered: then none is."""
    faults: list[RPCError] = []
    for hello in hellos:
        try:
            handle.rpc("agent.hello", {**hello, "check": True})
        except RPCError as fault:
            faults.append(fault)
    if faults:
        text = f"no host was registered: {len(faults)} of {len(hellos)} cannot be: "
        raise RPCError(text + some_of([str(fault) for fault in faults]), faults[0].errnum)


def _begin(handle: Handle, hellos: Sequence[dict[str, Any]], *, patient: bool) -> float:
    """Register all hosts; return the interval of heartbeats (seconds).

    If `patient`, wait for targets that still belong to the previous connection.
    """
    until_s = SystemClock.monotonic_s() + TAKEN_S
    interval_s = 0.0
    for hello in hellos:
        while True:
            try:
                welcome = handle.rpc("agent.hello", hello)
                break
            except RPCError as fault:
                if fault.errnum != errno.EEXIST or not patient or SystemClock.monotonic_s() > until_s:
                    raise
                SystemClock.sleep(AGAIN_S)
        sys.stderr.write(f"agent of {hello['host']}: reports targets {welcome['targets']}\n")
        interval_s = float(welcome["interval_s"])
    return interval_s


def _beat(handle: Handle, interval_s: float) -> None:
    sequence = 0
    while True:
        handle.rest(interval_s)
        sequence += 1
        handle.tell("agent.heartbeat", {"seq": sequence})


def replace_host(resources: ResourceSet, host: str) -> ResourceSet:
    """Return these resources under another host name (for agents that report for a made-up host)."""
    found = resources.to_json()
    found["execution"]["nodelist"] = [host]
    return ResourceSet.parse(found)
