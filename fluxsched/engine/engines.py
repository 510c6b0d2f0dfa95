"""Engines that hold the hosts of an instance and start a keeper on each: Slurm, Flux, ssh, and processes for tests.

Law: an engine is asked by its own programs, each with a time limit; an error names the program, its exit status and
what it printed. No secret is in a command: keepers read it from their standard input. What an engine says of its hosts
and of the time that is left is looked up anew at each call, for administrators change both.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final, NamedTuple, Protocol

from fluxsched.client.blocking import Handle
from fluxsched.config.values import FLUX, JOB_ENGINE, NO_ENGINE, PROCESSES, SLURM, SSH, EngineSettings
from fluxsched.core.hostlist import Hostlist
from fluxsched.core.jobid import parse_jobid
from fluxsched.core.resources import ResourceSet
from fluxsched.core.text import printable_lines, some_of
from fluxsched.core.topology import EMPTY_TOPOLOGY, Switch, Topology
from fluxsched.errors import FluxschedError, InvalidValue, LimitExceeded, Refused
from fluxsched.system.files import URI_VARIABLE
from fluxsched.system.log import logger

log = logger("engine")

PROGRAM_TIMEOUT_S: Final = 20.0
"""Time limit of an engine's program that looks something up (seconds): a busy controller of Slurm answers within ten.
"""
PRINTED_CHARS_MAX: Final = 600
"""Characters of a program's output in an error."""
HOSTS_MAX = 4096
"""Hosts of an instance: each keeper has a connection of its own."""
PROCESSES_MAX = 128
"""Hosts where each needs a process of this machine, with three descriptors of some thousand."""

KEEPER_WORDS: Final = (sys.executable, "-P", "-m", "fluxsched.engine.keeper_main")
"""Command of a keeper on its host; the engine's name of the host may follow."""

Variables = Mapping[str, str]


class EngineHosts(NamedTuple):
    """Hosts that an engine holds now, in its order, without those that it counts as down, and when it ends them
    (seconds since the epoch; 0: never).
    """

    hosts: Hostlist
    expiration_s: float = 0.0
    down: Hostlist = Hostlist()


class KeeperCommand(NamedTuple):
    """Command that starts a keeper on each of these hosts, to be run with this environment."""

    words: tuple[str, ...]
    hosts: tuple[str, ...]
    environment: Variables


class Engine(Protocol):
    """Something that holds hosts and starts processes there."""

    identity: str
    """Name of the engine with that of its allocation; another allocation has another one."""

    def allocation(self) -> EngineHosts:
        """Return the hosts. Raises FluxschedError if the engine does not say, or holds none."""
        ...

    def switches(self) -> Topology:
        """Return the switches above the hosts, and perhaps above others; none if the engine does not say."""
        ...

    def commands(self, hosts: Hostlist) -> list[KeeperCommand]:
        """Return the commands that start a keeper on each of these hosts, which are of the allocation."""
        ...

    def is_down(self, host: str) -> bool | None:
        """Return whether the engine counts the host as down or no longer ours; None if it does not know.

        Raises FluxschedError if it cannot be asked.
        """
        ...


# ---- choice


def chosen_engine(
    settings: EngineSettings, environment: Variables, keeper: tuple[str, ...] | None = None
) -> Engine | None:
    """Return the engine that these settings name, `auto` being the one around this process; None for none.

    `keeper` replaces the command of a keeper (for tests). Raises FluxschedError if the engine is not there.
    """
    kind = found_kind(environment) if settings.kind == "auto" else settings.kind
    words = KEEPER_WORDS if keeper is None else keeper
    if kind == SLURM:
        return SlurmEngine(environment, words)
    if kind == FLUX:
        return FluxEngine(environment, words)
    if kind == SSH:
        return SshEngine(settings, environment, words)
    if kind == PROCESSES:
        return ProcessesEngine(settings, environment, words)
    if kind == JOB_ENGINE:
        return JobEngine(environment, words)
    return None


def found_kind(environment: Variables) -> str:
    """Return the kind of engine around this process: slurm, flux or none.

    None inside an instance of ours, whose jobs inherit the variables of the engine around it: they have its hosts.
    """
    if environment.get(URI_VARIABLE):
        return NO_ENGINE
    path = environment.get("PATH")
    if environment.get("FLUX_URI") and shutil.which("flux", path=path):
        return FLUX  # first: Flux itself often runs inside Slurm
    return SLURM if environment.get("SLURM_JOB_ID") and shutil.which("srun", path=path) else NO_ENGINE


# ---- Slurm

_DROPPED_BY_SRUN = re.compile(
    r"(SLURM|SRUN)_(CPUS_PER_TASK|EXACT|LABELIO|STD(IN|OUT|ERR)MODE|UNBUFFEREDIO|NTASKS.*|TASKS_PER_NODE|NPROCS"
    r"|DISTRIBUTION|CPU_BIND.*|GPUS_PER_TASK|TRES_PER_TASK|TRES_BIND|GPU_BIND|MULTI_PROG|HINT|THREADS_PER_CORE)"
)
"""Variables of a batch job that srun takes for options: each keeper is to have all of its host and all of its input."""
_DOWN = frozenset(("down", "fail", "future", "inval", "powered_down", "powering_down", "unknown"))
_AWAY = ("*", "~", "%", "^")
"""Signs behind a state of sinfo: not responding, powered off, powering down, rebooting."""
_NO_END = frozenset(("UNLIMITED", "NOT_SET", "INVALID", "N/A", ""))


class SlurmEngine:
    """The allocation of Slurm around this process (SLURM_JOB_ID)."""

    def __init__(self, environment: Variables, keeper: tuple[str, ...]) -> None:
        jobid = environment.get("SLURM_JOB_ID", "")
        if not jobid.isdecimal():
            remedy = "start within `salloc` or `sbatch`, which set SLURM_JOB_ID"
            raise Refused(f"engine slurm: this is no allocation of Slurm: {remedy}", errno.ENOENT)
        self._jobid = jobid
        self._environment = environment
        self._keeper = keeper
        self.identity = f"{SLURM}:{jobid}"

    def allocation(self) -> EngineHosts:
        """See `Engine`. A job that does not run any more has no hosts."""
        words = ("squeue", "-h", "-j", self._jobid, "-o", "%e %L %N %T")
        fields = printed(words, self._environment).split()
        if len(fields) != 4:
            raise FluxschedError(f"{shlex.join(words)}: expected end, time left, nodes and state, not {fields[:6]}")
        end, left, nodes, state = fields
        if state not in ("RUNNING", "COMPLETING", "SUSPENDED"):
            raise Refused(f"engine slurm: job {self._jobid} is {state}, so it has no hosts", errno.ENOENT)
        names = printed(("scontrol", "show", "hostnames", nodes), self._environment).split()
        return _without_down(SLURM, Hostlist.of(names), self._down(nodes), 0.0 if left in _NO_END else _epoch_s(end))

    def _down(self, nodes: str) -> set[str]:
        """Return those of the nodes that are down or do not respond: srun would fail, or wait for them."""
        try:
            lines = printed(("sinfo", "-h", "-N", "-n", nodes, "-o", "%N %T"), self._environment).splitlines()
        except FluxschedError as fault:  # a site may hide its nodes
            log.warning("engine slurm: it is not known whether nodes are down: %s", fault)
            return set()
        states = [line.split() for line in lines]
        return {words[0] for words in states if len(words) == 2 and (words[1].endswith(_AWAY) or words[1] in _DOWN)}

    def switches(self) -> Topology:
        """See `Engine`: those of the plugin topology/tree."""
        try:
            lines = printed(("scontrol", "show", "topology"), self._environment).splitlines()
            return Topology.of([switch for switch in map(_switch, lines) if switch is not None])
        except FluxschedError as fault:  # there is no network to ask for, or one of another kind
            log.debug("engine slurm: switches are not known: %s", fault)
            return EMPTY_TOPOLOGY

    def commands(self, hosts: Hostlist) -> list[KeeperCommand]:
        """See `Engine`. A shell on each host gives the keeper the name that Slurm has for it."""
        number = len(hosts)
        words = [
            "srun", "--overlap", "--no-kill", "-K0", "-W0", f"-N{number}", f"-n{number}", "--ntasks-per-node=1",
            "--mpi=none", "--cpu-bind=none", f"--nodelist={hosts}",
            "sh", "-c", 'exec "$@" "$SLURMD_NODENAME"', "sh", *self._keeper,
        ]  # fmt: skip
        kept = {name: value for name, value in self._environment.items() if not _DROPPED_BY_SRUN.fullmatch(name)}
        return [KeeperCommand(tuple(words), hosts.hosts, kept)]

    def is_down(self, host: str) -> bool | None:
        return host not in self.allocation().hosts


_SWITCH = re.compile(r"SwitchName=(\S+) Level=(\d+) .*?(?:Nodes=(\S+))?(?: Switches=(\S+))?")


def _switch(line: str) -> Switch | None:
    """Return the switch in a line of Slurm's; None for any other line. Raises InvalidValue."""
    found = _SWITCH.fullmatch(line.strip())
    if found is None:
        return None
    name, level, nodes, switches = found.groups()
    return Switch.read(name, nodes if level == "0" else "", switches or "")


def _epoch_s(moment: str) -> float:
    """Return the time in a text of Slurm's, which is in local time; 0 for one that is no time."""
    try:
        return datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return 0.0


# ---- Flux


class FluxEngine:
    """The Flux instance around this process (FLUX_URI), which must be ours: `flux exec` is its owner's alone.

    `flux exec` gathers what it has to print on its standard output in blocks, but for its standard error it does not:
    keepers report there.
    """

    def __init__(self, environment: Variables, keeper: tuple[str, ...]) -> None:
        uri = environment.get("FLUX_URI")
        if not uri:
            remedy = "start within `flux alloc`, `flux batch` or `flux start`, which set FLUX_URI"
            raise Refused(f"engine flux: this is no Flux instance: {remedy}", errno.ENOENT)
        if environment.get(URI_VARIABLE):
            raise Refused(f"engine flux: {uri} is an instance of fluxsched and no Flux: name no engine", errno.EINVAL)
        self._environment = environment
        self._keeper = keeper
        self.identity = f"{FLUX}:{uri}"

    def allocation(self) -> EngineHosts:
        resources = self._resources()
        words = ("flux", "resource", "list", "-s", "down", "-n", "-o", "{nodelist}")
        down = set(Hostlist.parse(printed(words, self._environment).strip()))
        return _without_down(FLUX, resources.nodelist, down, resources.expiration_s)

    def switches(self) -> Topology:
        return EMPTY_TOPOLOGY

    def commands(self, hosts: Hostlist) -> list[KeeperCommand]:
        resources = self._resources()
        ranks = resources.ranks_on(hosts)[0]
        words = ("flux", "exec", "-r", str(ranks), "sh", "-c", 'exec "$@" >&2', "sh", *self._keeper)
        return [KeeperCommand(words, hosts.hosts, self._environment)]

    def is_down(self, host: str) -> bool | None:
        return host not in self.allocation().hosts

    def _resources(self) -> ResourceSet:
        text = printed(("flux", "resource", "R"), self._environment)
        try:
            return ResourceSet.parse(text)
        except InvalidValue as fault:
            raise FluxschedError(f"flux resource R: {fault}") from None


# ---- ssh, and processes of this machine


class NamedHosts:
    """Hosts that the settings name; nothing but us holds them."""

    def __init__(self, kind: str, settings: EngineSettings, environment: Variables, keeper: tuple[str, ...]) -> None:
        self._hosts = _checked(kind, Hostlist.parse(settings.hosts), PROCESSES_MAX)
        self._environment = environment
        self._keeper = keeper
        self.identity = f"{kind}:{self._hosts}"

    def allocation(self) -> EngineHosts:
        return EngineHosts(self._hosts)

    def switches(self) -> Topology:
        return EMPTY_TOPOLOGY


class SshEngine(NamedHosts):
    """Hosts that ssh reaches without a password."""

    def __init__(self, settings: EngineSettings, environment: Variables, keeper: tuple[str, ...]) -> None:
        super().__init__(SSH, settings, environment, keeper)
        if dashed := [host for host in self._hosts if host.startswith("-")]:
            raise InvalidValue(f"engine ssh: {some_of(dashed)} would be options of ssh: name hosts")
        self._timeout_s = settings.start_timeout_s

    def commands(self, hosts: Hostlist) -> list[KeeperCommand]:
        """See `Engine`. A host that asks for a password, or for trust in its key, fails at once."""
        options = ("-T", "-a", "-x", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={max(1, round(self._timeout_s))}")
        return [
            KeeperCommand(("ssh", *options, "--", host, shlex.join((*self._keeper, host))), (host,), self._environment)
            for host in hosts
        ]

    def is_down(self, host: str) -> bool | None:
        """See `Engine`: ssh does not know."""
        return None


class ProcessesEngine(NamedHosts):
    """Processes of this machine under made-up names of hosts, to try what many hosts do."""

    def __init__(self, settings: EngineSettings, environment: Variables, keeper: tuple[str, ...]) -> None:
        super().__init__(PROCESSES, settings, environment, keeper)

    def commands(self, hosts: Hostlist) -> list[KeeperCommand]:
        return [KeeperCommand((*self._keeper, host), (host,), self._environment) for host in hosts]

    def is_down(self, host: str) -> bool | None:
        """See `Engine`: this machine is up."""
        return False


def _without_down(kind: str, hosts: Hostlist, down: set[str], expiration_s: float) -> EngineHosts:
    left = _checked(kind, Hostlist.of([host for host in hosts if host not in down]), HOSTS_MAX)
    return EngineHosts(left, expiration_s, Hostlist.of([host for host in hosts if host in down]))


# ---- a job of an instance that has hosts


class JobEngine:
    """The job around this process (FLUX_JOB_ID), whose instance runs a keeper beside its tasks on each of its hosts."""

    def __init__(self, environment: Variables, keeper: tuple[str, ...]) -> None:
        uri, jobid = environment.get(URI_VARIABLE), environment.get("FLUX_JOB_ID")
        if not uri or not jobid:
            raise Refused("engine job: this is no job of an instance", errno.ENOENT)
        self._uri = uri
        self._jobid = jobid
        self._environment = environment
        self._keeper = keeper
        self.identity = f"{JOB_ENGINE}:{jobid}"

    def allocation(self) -> EngineHosts:
        with Handle(self._uri) as handle:
            wanted = {"id": parse_jobid(self._jobid), "keys": ["R"]}
            found = handle.rpc("job-manager.lookup", wanted, timeout_s=PROGRAM_TIMEOUT_S)
        resources = ResourceSet.parse(found["R"])
        return EngineHosts(_checked(JOB_ENGINE, resources.nodelist.unique(), PROCESSES_MAX), resources.expiration_s)

    def switches(self) -> Topology:
        return EMPTY_TOPOLOGY

    def commands(self, hosts: Hostlist) -> list[KeeperCommand]:
        """See `Engine`. The keepers are bound to what the job has on their host, and end with it."""
        rsh = (sys.executable, "-P", "-m", "fluxsched", "rsh", "--job", self._jobid)
        return [
            KeeperCommand((*rsh, host, shlex.join((*self._keeper, host))), (host,), self._environment) for host in hosts
        ]

    def is_down(self, host: str) -> bool | None:
        """See `Engine`: the job is not told."""
        return None


def _checked(kind: str, hosts: Hostlist, limit: int) -> Hostlist:
    """Return the hosts, each of which must be there once."""
    if not hosts:
        raise InvalidValue(f"engine {kind} has no hosts that are up")
    if len(hosts.unique()) < len(hosts):
        raise InvalidValue(f"engine {kind}: {hosts} names a host twice: there is one keeper a host")
    if len(hosts) > limit:
        raise LimitExceeded(f"engine {kind}: {len(hosts)} hosts are above the limit of {limit}: name fewer")
    return hosts


# ---- programs and addresses


def printed(words: Sequence[str], environment: Variables, timeout_s: float = PROGRAM_TIMEOUT_S) -> str:
    """Return what a program prints. Raises FluxschedError naming the program, its exit status and what it printed."""
    said = shlex.join(words)
    try:
        done = subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
            encoding="utf-8", errors="replace",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise FluxschedError(f"{said}: no answer within {timeout_s:g} s", errno.ETIMEDOUT) from None
    except OSError as fault:
        raise FluxschedError(f"{said}: {words[0]} cannot be run: {fault.strerror}", fault.errno) from None
    if done.returncode:
        raise FluxschedError(f"{said}: exit status {done.returncode}: {shown_output(done.stderr or done.stdout)}")
    return done.stdout


def shown_output(text: str) -> str:
    """Return the end of what a program printed, fit for an error."""
    shown = printable_lines(text.strip())
    return (shown if len(shown) <= PRINTED_CHARS_MAX else f"...{shown[-PRINTED_CHARS_MAX:]}") or "it printed nothing"


def listening_address(given: str | None, engine: Engine, hosts: Sequence[str]) -> str:
    """Return the IPv4 address of this machine at which keepers of these hosts reach it.

    `given` is a configured one, by number or name; else it is that by which this machine reaches the hosts. Raises
    FluxschedError if there is none.
    """
    if given is None:
        return LOOPBACK if isinstance(engine, ProcessesEngine) else address_for(hosts)
    try:
        return str(socket.getaddrinfo(given, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
    except (OSError, UnicodeError):
        text = f"[engine] address: {given!r} is no address of IPv4: give one of this machine's"
        raise InvalidValue(text) from None


# ---- the address of this machine

LOOPBACK: Final = "127.0.0.1"
DISCARD_PORT: Final = 9
"""Any port will do: nothing is sent."""


def address_for(hosts: Iterable[str]) -> str:
    """Return the address of this machine from which it reaches the first of the hosts that is another machine.

    Where all are this machine it is an address of its own. Raises Refused for a host whose name is unknown.
    """
    own = LOOPBACK
    for host in hosts:
        try:
            source, target = _route(host)
        except OSError as fault:
            if host == os.uname().nodename:
                continue
            text = f"host {host} has no address here ({fault.strerror})"
            remedy = "name the address of this machine that hosts reach, by `address` of [engine]"
            raise Refused(f"{text}: {remedy}", errno.EHOSTUNREACH) from fault
        if source not in (target, LOOPBACK):
            return source
        if source == target and not source.startswith("127."):
            own = source
    return own


def _route(host: str) -> tuple[str, str]:
    """Return the addresses from and to which a datagram to the host would go. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, DISCARD_PORT))
        return probe.getsockname()[0], probe.getpeername()[0]
