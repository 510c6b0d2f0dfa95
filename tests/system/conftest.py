"""A user at a terminal: the installed `fluxsched`, a clean environment, a directory of its own, and instances that
are stopped when the test is over. In-process instances assert when it ends and at each step
that nothing is held twice (`Instance.check`).

A command of a hundred milliseconds is mostly the start of Python. So `user.process(...)` runs the console script, for
what only a process shows (exit statuses, signals, terminals), and `user(...)` runs the same command line against the
same instance inside this process. Processes, and all that they start, are forked from one that is prepared for it
(`tests/prepared`), except below a shell at a terminal and with the fixture `real`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from click.testing import CliRunner

from fluxsched.cli.main import main
from fluxsched.client.blocking import Handle
from fluxsched.system.clock import interrupted
from tests.prepared.caller import PROGRAM, prepared
from tests.prepared.children import Refused
from tests.prepared.request import REAL
from tests.site import alive as is_alive
from tests.site import children_are_forked, timed, world
from tests.users import admin, ann, bob, homes

WAIT_S = 60.0
"""Far above what any step takes, so that a slow machine does not fail; a hang does."""
LOOK_S, LOOK_MAX_S = 0.01, 0.08
"""Pauses between looks at a condition, which get longer: a look by a command takes as much of a core as the first."""
OURS = ("FLUX", "_FLUXSCHED", "XDG_RUNTIME_DIR")


@pytest.fixture(autouse=True, scope="session")
def _a_hangup_ends_commands() -> None:
    """Under nohup they would ignore SIGHUP, as we do."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda signum, frame: None)  # ignored here, and not inherited by what we execute


class Ending(subprocess.Popen[str]):
    """A process that a failed test does not wait for."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def word(self) -> str:
        return self.out.strip()

    @property
    def line(self) -> str:
        """The first one."""
        return self.out.splitlines()[0]


@dataclass
class User:
    """Types commands; `uri` is the instance that they go to."""

    directory: Path
    uri: str | None = None
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        kept |= {"XDG_STATE_HOME": str(self.directory / ".state")}
        kept["PATH"] = os.pathsep.join([prepared().programs, str(Path(PROGRAM).parent), kept["PATH"]])
        kept |= {"XDG_RUNTIME_DIR": str(self.directory), "LANG": "C.UTF-8", "PYTHONIOENCODING": "utf-8"}
        return kept | ({} if self.uri is None else {"FLUXSCHED_URI": self.uri}) | self.environ

    def popen(self, *words: object, **more: Any) -> subprocess.Popen[str]:
        return Ending(
            [f"{prepared().programs}/fluxsched", *map(str, words)], cwd=self.directory, env=self.environment,
            **{"text": True, "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more},
        )  # fmt: skip

    def __call__(self, *words: object, status: int | None = 0) -> Done:
        """`fluxsched WORDS...` in this process; it must end with `status` (None: any)."""
        late = TimeoutError(f"not done within {WAIT_S} s")
        with patch.dict(os.environ, self.environment, clear=True), chdir(self.directory), interrupted(WAIT_S, late):
            result = CliRunner().invoke(main, [str(word) for word in words])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        done = Done(result.exit_code, result.stdout, result.stderr)
        assert status is None or done.status == status, f"{words}: {done}"
        return done

    def process(self, *words: object, status: int | None = 0, **more: Any) -> Done:
        """The same as a process."""
        if not more:
            with suppress(Refused):
                found = prepared().run([str(word) for word in words], str(self.directory), self.environment, WAIT_S)
                done = Done(found.status, found.out, found.err)
                assert status is None or done.status == status, f"{words}: {done}"
                return done
        with self.popen(*words, **more) as process:
            try:
                out, err = process.communicate(timeout=WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        done = Done(process.returncode, out, err)
        assert status is None or done.status == status, f"{words}: {done}"
        return done

    def shell(self, script: str, *options: object, status: int | None = 0) -> Done:
        """`fluxsched start OPTIONS -- sh -c SCRIPT`."""
        return self.process("start", *options, "--", "sh", "-c", script, status=status)

    def at(self, uri: str) -> User:
        return User(self.directory, uri, self.environ)

    def real(self) -> User:
        """What this one starts are the programs themselves, as installed."""
        return User(self.directory, self.uri, self.environ | {REAL: "1"})

    def connect(self) -> Handle:
        return Handle(self.uri)

    def submit(self, *words: object) -> str:
        return self("submit", *words).word

    def running(self, *words: object) -> str:
        """A job that has started."""
        jobid = self.submit(*words)
        self("job", "wait-event", jobid, "start")
        return jobid

    def info(self, jobid: str) -> dict[str, Any]:
        found: dict[str, Any] = self("job", "info", "--json", jobid).json
        return found

    def pid(self) -> int:
        with self.connect() as handle:
            return int(handle.rpc("instance.info")["pid"])


def make_user(directory: Path) -> User:
    return User(directory)


@pytest.fixture
def user(tmp_path: Path) -> User:
    return make_user(tmp_path)


@pytest.fixture
def real(user: User) -> None:
    """What the user of this test starts are the programs themselves, as installed."""
    user.environ[REAL] = "1"


class Daemons:
    """Starts instances in the background and stops what is left of them."""

    def __init__(self, stack: ExitStack, user: User) -> None:
        self._stack = stack
        self._user = user

    def __call__(self, *options: object) -> User:
        uri = self._user.process("start", "--daemon", *options).word
        self._stack.callback(self._stop, uri)
        return self._user.at(uri)

    def _stop(self, uri: str) -> None:
        """One that the test has ended or killed is no fault; one that cannot be stopped is."""
        done = self._user("stop", "--uri", uri, status=None)
        assert done.status == 0 or "nothing listens" in done.err, done


@pytest.fixture
def daemon(user: User) -> Iterator[Daemons]:
    with ExitStack() as stack:
        yield Daemons(stack, user)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    """One instance of 4 nodes of 4 cores for the tests of a file that leave it as they found it."""
    with ExitStack() as stack:
        yield Daemons(stack, make_user(tmp_path_factory.mktemp("site")))("--fake", "4x4")


@pytest.fixture(scope="session")
def users() -> tuple[Callable[[Path], User], type[Daemons]]:
    """What makes users and daemons, for files that share one site among their tests."""
    return make_user, Daemons


Until = Callable[[Callable[[], Any]], Any]


def left_behind(user: User) -> list[str]:
    """Return the run directories that are left of a user."""
    return [path.name for path in user.directory.iterdir() if path.name.startswith("fluxsched-")]


def pid_in(path: Path, until: Until) -> int:
    """Return the process id that a task writes to a file."""
    until(path.exists)
    return int(path.read_text())


@pytest.fixture
def until() -> Until:
    """Wait, bounded, until a condition holds; its value."""

    def wait(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> Any:
        end_s, pause_s = time.monotonic() + timeout_s, LOOK_S
        while not (found := condition()):
            assert time.monotonic() < end_s, "the condition did not come true"
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, LOOK_MAX_S)
        return found

    return wait


@pytest.fixture
def alive() -> Callable[[int], bool]:
    """Whether a process runs (a zombie does not)."""

    return is_alive


@pytest.fixture
def kill_hard(alive: Callable[[int], bool], until: Until) -> Callable[[int], None]:
    """kill -9, and wait until it is dead."""

    def kill(pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        until(lambda: not alive(pid))

    return kill


@pytest.fixture
def keeper_of() -> Callable[[int], int | None]:
    """The keeper of the instance of this process id; None if it has none."""

    def look(instance: int) -> int | None:
        for child in Path(f"/proc/{instance}/task/{instance}/children").read_text().split():
            process = Path(f"/proc/{child}")
            with suppress(FileNotFoundError):  # one that has ended meanwhile
                words = process.joinpath("cmdline").read_bytes() + process.joinpath("comm").read_bytes()
                if b"keeper_main.py" in words:
                    return int(child)
        return None

    return look


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how long commands took to start: a figure that is reported, not asserted."""
    for report in terminalreporter.stats.get("passed", ()):
        for name, value in report.user_properties:
            if name == "start_ms":
                figures = ", ".join(f"{command} {time_ms:.0f}" for command, time_ms in value.items())
                terminalreporter.write_line(f"commands took, in ms (wanted: 150 on a quiet machine): {figures}")
