"""Hosts on one machine: each is a set of namespaces of its own (network, names, mounts, processes, IPC), with an own
/tmp, /run, /dev/shm and boot id, joined by a bridge inside a further one, `n0`. Root's own namespaces get no interface
and no mount, and no process but the holders, which the kernel kills with all of their hosts when this process ends,
however it ends.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from tests.engine.lab.packages import PATH

ROOT = Path(__file__).parents[3]
NETWORK = "10.199.7"
HOSTS_MAX = 200
"""Of a lab: an address each in one network."""
WAIT_S = 60.0
"""Far above what any step takes, so that a busy machine does not fail; a hang does."""
LOOK_S = 0.02
SWITCH = "n0"
"""Name of the host that has the bridge, and Slurm's controller."""
HOLDER = Path(__file__).with_name("host.sh")
ON = """#!/bin/sh
# on HOST COMMAND...: runs a command on a host of this lab
host=$1; shift
exec nsenter -t "$(cat {lab}/$host/pid)" -n -u -m -p -i --wd="$PWD" -- env -i {variables} "$@"
"""
VISIBLE = ("LANG", "LC_ALL", "PYTHONUTF8", "TERM")
"""Variables of ours that programs on hosts get, too."""


def until(condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    """Wait until a condition holds; it is an error that it does not."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end_s:
            raise TimeoutError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(LOOK_S)


class Process(NamedTuple):
    """A process on a host, as `ps` there has it."""

    pid: int
    parent: int
    command: str


class Host:
    """A host that runs until it crashes."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        self.address = address
        self.directory = directory
        self._holder: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """The first process of the host, seen from outside."""
        return int(self.directory.joinpath("pid").read_text())

    def start(self, shared: Iterable[Path]) -> None:
        """Boot the host, without a network yet."""
        self.directory.mkdir(exist_ok=True)
        self.directory.joinpath("boot_id").write_text(f"{uuid.uuid4()}\n")
        namespaces = ["--net", "--uts", "--mount", "--pid", "--ipc", "--mount-proc", "--propagation", "private"]
        variables = {
            "PATH": PATH, "NAME": self.name, "LAB": str(self.directory.parent), "SHARED": " ".join(map(str, shared)),
        }  # fmt: skip
        self._holder = subprocess.Popen(
            ["setpriv", "--pdeathsig=KILL", "unshare", *namespaces, "--fork", "--kill-child", "bash", str(HOLDER)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables,
            start_new_session=True,
        )  # fmt: skip
        assert self._holder.stdout is not None
        assert self._holder.stderr is not None
        if self._holder.stdout.readline() != "ready\n":
            raise OSError(f"host {self.name} did not start: {self._holder.stderr.read()}")
        children = Path(f"/proc/{self._holder.pid}/task/{self._holder.pid}/children").read_text().split()
        self.directory.joinpath("pid").write_text(f"{children[0]}\n")

    def end(self) -> None:
        """Kill the first process: the kernel ends all others of the host, and removes its network."""
        if self._holder is None:
            return
        os.kill(self.pid, signal.SIGKILL)
        self._holder.wait(WAIT_S)
        for stream in (self._holder.stdout, self._holder.stderr):
            assert stream is not None
            stream.close()
        self._holder = None

    @property
    def is_up(self) -> bool:
        return self._holder is not None


class Lab:
    """Hosts n1..nN and `n0`, for a `with` statement; `parts` are added by tests.engine.lab.engines."""

    def __init__(self, hosts: int) -> None:
        if not 1 <= hosts <= HOSTS_MAX:
            raise ValueError(f"{hosts} hosts: a lab has 1 to {HOSTS_MAX}")
        self.directory = Path(tempfile.mkdtemp(prefix="lab-"))
        self.home = self.directory / "home"
        self.names = [f"n{number}" for number in range(1, hosts + 1)]
        self._hosts = {
            name: Host(name, f"{NETWORK}.{number + 1}", self.directory / name)
            for number, name in enumerate([SWITCH, *self.names])
        }
        self.variables = {
            **{name: os.environ[name] for name in VISIBLE if name in os.environ},
            "HOME": str(self.home), "PATH": f"{Path(sys.executable).parent}:{PATH}", "XDG_RUNTIME_DIR": "/run/user/0",
            "PYTHONSAFEPATH": "1",
        }  # fmt: skip

    def __enter__(self) -> Lab:
        try:
            self.home.mkdir()
            self.directory.joinpath("ssh").mkdir()
            lines = [f"{host.address} {host.name}\n" for host in self._hosts.values()]
            self.directory.joinpath("hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
            for host in self._hosts.values():
                host.start(self.shared())
            address = self._hosts[SWITCH].address
            self.run(
                SWITCH, "sh", "-ec",
                f"ip link add br0 type bridge; ip addr add {address}/24 dev br0; ip link set br0 up",
            )  # fmt: skip
            for name in self.names:
                self._connect(name)
            self.write_on()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts with all that runs there; nothing of the lab remains."""
        for host in self._hosts.values():
            host.end()
        shutil.rmtree(self.directory)

    def address(self, name: str) -> str:
        return self._hosts[name].address

    def shared(self) -> list[Path]:
        """Directories that must stay visible on hosts, which have their own /tmp and /run: programs on PATH, too."""
        programs = [Path(directory).parent for directory in PATH.split(os.pathsep) if Path(directory).name == "bin"]
        needed = (self.directory, ROOT, Path(sys.prefix), Path(sys.base_prefix), *programs)
        return [path for path in dict.fromkeys(needed) if path.parts[1:2] in (("tmp",), ("run",))]

    def write_on(self) -> Path:
        """Write the script `on`, with which another terminal runs commands on hosts."""
        script = self.directory / "on"
        variables = " ".join(shlex.quote(f"{name}={value}") for name, value in self.variables.items())
        script.write_text(ON.format(lab=self.directory, variables=variables))
        script.chmod(0o755)
        return script

    # ---- programs on hosts

    def command(self, host: str, *words: object) -> list[str]:
        """Return what runs a command on a host, in the lab's environment alone."""
        variables = [f"{name}={value}" for name, value in self.variables.items()]
        enter = ["nsenter", "-t", str(self._hosts[host].pid), "-n", "-u", "-m", "-p", "-i", f"--wd={self.home}"]
        return [*enter, "--", "env", "-i", *variables, *map(str, words)]

    def popen(self, host: str, *words: object, **more: object) -> subprocess.Popen[str]:
        """Start a command on a host; stdout and stderr are pipes."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command(host, *words), **{**pipes, "text": True, **more})  # type: ignore[call-overload,no-any-return]

    def run(self, host: str, *words: object, status: int | None = 0, timeout_s: float = WAIT_S) -> str:
        """Run a command on a host; return what it prints. It must end with `status` (None: any)."""
        with self.popen(host, *words, stderr=subprocess.STDOUT) as process:
            try:
                text, _ = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as exc:
                process.kill()
                raise TimeoutError(f"{words} on {host} still runs after {timeout_s:.0f} s: {exc.stdout!r}") from exc
        if status is not None and process.returncode != status:
            raise AssertionError(f"{words} on {host} ended with {process.returncode} and printed: {text}")
        return text

    def processes(self, host: str) -> list[Process]:
        """Return what runs on a host, without the process that holds it and ourselves."""
        lines = self.run(host, "ps", "-eo", "pid=,ppid=,args=", "ww").splitlines()
        found = [Process(int(row[0]), int(row[1]), row[2]) for row in (line.split(None, 2) for line in lines)]
        return [one for one in found if one.pid != 1 and not one.command.startswith(("sleep 3600", "ps -eo", "env -i"))]

    def kill(self, host: str, pid: int, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to a process of a host, by its number there."""
        self.run(host, "kill", f"-{number.value}", pid)

    # ---- faults

    def cut(self, name: str) -> None:
        """Pull the host's cable: nothing arrives at it, nothing leaves it, and nobody is told."""
        self.run(SWITCH, "ip", "link", "set", f"v-{name}", "down")

    def mend(self, name: str) -> None:
        """Plug the cable in again."""
        self.run(SWITCH, "ip", "link", "set", f"v-{name}", "up")

    def mute(self, name: str, other: str) -> None:
        """Lose all that `name` sends to `other`, and nothing of what it receives."""
        self.run(name, "ip", "neigh", "replace", self.address(other), "lladdr", "02:00:00:00:00:01", "dev", "eth0")

    def unmute(self, name: str, other: str) -> None:
        self.run(name, "ip", "neigh", "del", self.address(other), "dev", "eth0")

    def crash(self, name: str) -> None:
        """End a host with all that runs there, as a loss of power does."""
        self._hosts[name].end()

    def boot(self, name: str) -> None:
        """Start a host that crashed, with a new boot id; daemons are not started."""
        self._hosts[name].start(self.shared())
        self._connect(name)

    def is_up(self, name: str) -> bool:
        return self._hosts[name].is_up

    def _connect(self, name: str) -> None:
        host = self._hosts[name]
        add = f"ip link add v-{name} type veth peer name eth0 netns {host.pid}; ip link set v-{name} master br0 up"
        # made outside of all process namespaces: the number of a host's process means nothing inside of n0
        subprocess.run(["nsenter", "-t", str(self._hosts[SWITCH].pid), "-n", "sh", "-ec", add], check=True)
        self.run(name, "sh", "-ec", f"ip addr add {host.address}/24 dev eth0; ip link set eth0 up")
