"""What is forked from the prepared process is as the program itself: `tests/prepared` decides what other tests see."""

from __future__ import annotations

import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import environment
from tests.prepared.becoming import ABOVE
from tests.prepared.caller import prepared
from tests.prepared.children import Refused
from tests.prepared.request import REAL
from tests.source import ROOT

WAIT_S = 60.0


def start(script: str, environ: dict[str, str], **more: object) -> subprocess.Popen[str]:
    words = [f"{prepared().programs}/fluxsched", "start", "--fake", "1x1", "--", "sh", "-c", script]
    return subprocess.Popen(words, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **more)  # type: ignore[call-overload]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return environment(tmp_path)


def test_it_has_directory_mask_environment_cores_and_descriptors_of_its_caller(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    core = min(os.sched_getaffinity(0))
    script = "pwd; umask; echo $LOOK; taskset -cp $$ | sed 's/.*: //'; cat; ls /proc/self/fd; exit 7"
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        with start(script, environ | {"LOOK": "at this"}, cwd=tmp_path, umask=0o027) as process:
            text, _ = process.communicate("read\n", WAIT_S)
    finally:
        os.sched_setaffinity(0, before)
    assert text.split("\n") == [str(tmp_path), "0027", "at this", str(core), "read", "0", "1", "2", "3", ""]
    assert process.returncode == 7


@pytest.mark.parametrize("killed", ["program", "what is forked"])
def test_neither_outlives_the_other(environ: dict[str, str], killed: str) -> None:
    with start("echo $PPID; exec sleep 300", environ) as process:
        forked = int(process.stdout.readline())
        watch = os.pidfd_open(forked)
        os.kill(process.pid if killed == "program" else forked, signal.SIGKILL)
        assert process.wait(WAIT_S) == -signal.SIGKILL
        assert select.select([watch], [], [], WAIT_S)[0]
        os.close(watch)


def test_it_passes_on_signals(environ: dict[str, str]) -> None:
    with start("echo up; exec sleep 300", environ) as process:
        process.stdout.readline()
        process.terminate()
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_what_it_cannot_be_is_refused(tmp_path: Path, environ: dict[str, str]) -> None:
    def run(**more: str) -> int:
        return prepared().run(["--version"], str(tmp_path), environ | more, WAIT_S).status

    assert run() == 0
    for more in ({REAL: "1"}, {"PYTHONPATH": "/"}):
        with pytest.raises(Refused):
            run(**more)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    try:
        with pytest.raises(Refused):
            run()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


PUT = """
import os
from tests.prepared.becoming import Request
ends = [os.open("/dev/null", os.O_RDONLY), os.open("/dev/zero", os.O_RDONLY)]
wanted = [os.fstat(fd).st_rdev for fd in ends]
Request("command", set(), "/", 0, {targets}, [], {{}}, ends).take_descriptors([])
assert [os.fstat(target).st_rdev for target in {targets}] == wanted
"""


@pytest.mark.parametrize("targets", [[ABOVE, ABOVE + 1], [ABOVE + 1, ABOVE], [ABOVE + 1, 0]])
def test_descriptors_may_belong_where_they_are_put_meanwhile(targets: list[int]) -> None:
    """A caller with some two hundred open ones gave a keeper a listener that was closed as it began."""
    words = [sys.executable, "-c", PUT.format(targets=targets)]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)


def test_its_end_is_said_with_its_status() -> None:
    script = (
        "import os; from tests.prepared.caller import prepared; prepared()._process.kill();"
        "prepared()._process.wait(); prepared().run(['version'], '.', dict(os.environ), 60.0)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "RuntimeError: the prepared process ended with -9" in done.stderr
