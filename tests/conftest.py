"""What tests of whole programs share: a way to run them as a person does, apart from any other instance."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis.internal.constants_ast import constants_from_module, is_local_module_file

from fluxsched.core import idset
from fluxsched.core.build import BUILD, COMPILED, PLAIN
from tests.generated.share import examples
from tests.prepared.caller import prepared

EXAMPLES = 100
"""Of each property that says no number of its own, as hypothesis has it; the plain build tries an eighth."""

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job: programs under test would ignore it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy machine", deadline=None, max_examples=examples(EXAMPLES))
settings.load_profile("busy machine")

# Hundreds of programs are started here: compiled once, each starts in a fifth of the time, also where the environment
# says to write no byte code
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

STATE_HOME = tempfile.TemporaryDirectory(prefix="fluxsched-tests-")
os.environ["XDG_STATE_HOME"] = STATE_HOME.name  # the logs of instances under test are nobody's

ROOT = Path(__file__).parents[1]
BROWSER_TESTS = ROOT / "tests/web/browser"
TIMEOUT_S = 60.0
"""Far above what any program here takes, so that a slow machine does not fail; a hang does."""

OF_SOURCES = {
    "test_compiled_sources.py", "test_layers.py", "test_no_code_in_messages.py", "test_rooms.py",
    "test_security_page.py",
}  # fmt: skip
"""Tests that parse every source."""

OF_SHORT_TESTS = {"core", "jobs", "protocol", "resource"}
"""Directories whose tests take milliseconds: at the end, where nothing is left to steal, no worker has a long one."""

SLOW = (
    "chaos/test_exhaustive.py", "chaos/test_world.py", "cli/studies/test_plugin.py", "cli/studies/test_policy.py",
    "clusters/test_clusters.py", "clusters/test_silent.py", "engine/test_instance.py", "engine/test_keeper.py",
    "executor/test_usage.py", "flux/broker/test_install.py", "sched/policies/test_fair_long_run.py",
    "sched/policies/test_judged_preemptions.py", "sched/test_counted_outages.py", "sched/test_drained_parts.py",
    "sched/test_limits.py", "sched/test_outages.py", "sim/conformance", "sim/engine/test_fair_alone.py",
    "sim/engine/test_live.py", "sim/engine/test_reproducible.py",
    "sim/results/test_plots.py", "sim/test_example_policies.py", "sim/test_export.py", "sim/test_judged_outages.py",
    "sim/test_policy.py", "sim/test_rfc_policies.py", "store/test_damage.py",
    "store/test_migrations.py", "system", "test_alone.py", "web/browser",
)  # fmt: skip
"""Whole systems, disasters and judged schedules: `make test-slow` runs these, and single tests with the mark."""

OF_EACH_KIND = (
    "system/test_golden.py", "system/test_jobs.py", "system/test_queues.py", "system/test_run.py",
    "system/test_targets.py", "web/browser/test_page.py",
)  # fmt: skip
"""Exceptions: files that `make test` runs, so that it has some of each kind."""

GARBAGE_MAX = 20_000
"""New objects until garbage is looked for."""

TMP_NAME_CHARS = 16
"""Of the name of a test in that of its directory."""


EXPECTED_BUILD = os.environ.get("FLUXSCHED_EXPECT", PLAIN)
"""Which build is to be tested, `plain` or `compiled`; `.ci/run` says so, since both could be imported."""

ALONE = "FLUXSCHED_ALONE"
"""Set where the tests marked `alone` are run, by tests/test_alone.py."""


def pytest_configure(config: pytest.Config) -> None:
    """Ends the run if the other build is imported than the one that is to be tested."""
    if EXPECTED_BUILD != BUILD:
        raise pytest.UsageError(f"the {EXPECTED_BUILD} build is to be tested, but {idset.__file__} is {BUILD}")
    assert idset.__file__.endswith(".so" if BUILD == COMPILED else ".py")
    worker = getattr(config, "workerinput", None)
    if worker is not None and config.args == config.getini("testpaths"):
        config.args = _from_another_place(int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    gc.disable()  # until all is collected: what is imported stays


def _from_another_place(worker: int, workers: int) -> list[str]:
    """The parts of the tests, in an order of this worker's own: each finds compiled what others began with, for after
    a fresh clone that takes longer than all else of the collection.
    """
    sizes = {
        entry: sum(file.stat().st_size for file in (entry.rglob("*.py") if entry.is_dir() else [entry]))
        for entry in sorted(Path(__file__).parent.iterdir())
        if entry.is_dir() or entry.match("test_*.py")
    }
    begin, before, whole = 0, 0, sum(sizes.values())
    for size in sizes.values():
        if before >= whole * worker / workers:
            break
        begin, before = begin + 1, before + size
    parts = [str(entry) for entry, size in sizes.items() if size]
    return parts[begin:] + parts[:begin]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave files out without an import where none of their tests is wanted; None lets others decide."""
    return (
        collection_path.suffix == ".py" and "not slow" in config.option.markexpr and _is_slow(collection_path)
    ) or None


def pytest_collection_finish() -> None:
    """What is there now stays to the end: looking through it for garbage again and again took a tenth of all time."""
    gc.freeze()
    gc.set_threshold(GARBAGE_MAX)
    gc.enable()


def pytest_xdist_auto_num_workers() -> int:
    """Two more than there are cores, since tests of whole programs and of screens mostly wait."""
    return len(os.sched_getaffinity(0)) + 2


def _find_constants(worker: int, workers: int) -> None:
    """Have hypothesis read our sources for constants, as it would after this; each worker begins with others and finds
    below .hypothesis what the others have read, for after a fresh clone that takes each of them five seconds.
    """
    modules = {file: one for one in [*sys.modules.values()] if (file := getattr(one, "__file__", None))}
    ours = [modules[file] for file in sorted(modules) if is_local_module_file(file)]
    begin = len(ours) * worker // workers
    for one in ours[begin:] + ours[:begin]:
        constants_from_module(one)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skips what tests of the compiled build cannot do; each says why. All workers must have the same order.

    What comes first stays with the first worker, since others steal from the end: so only one ever starts a browser,
    and few parse all sources.
    """
    if worker := getattr(config, "workerinput", None):
        _find_constants(int(worker["workerid"].removeprefix("gw")), worker["workercount"])
    if ALONE not in os.environ:
        items[:] = [item for item in items if item.get_closest_marker("alone") is None]
    items.sort(key=lambda item: _place(item.path))
    for item in items:
        if _is_slow(item.path):
            item.add_marker("slow")
    if EXPECTED_BUILD == PLAIN:
        return
    for item in items:
        for mark in item.iter_markers("plain_only"):
            item.add_marker(pytest.mark.skip(reason=f"plain build only: {mark.args[0]}"))


@cache
def _place(path: Path) -> tuple[bool, bool, bool, str]:
    """That of the tests of a file; the last is the entry of the tests' directory that it is in."""
    part = path.relative_to(Path(__file__).parent).parts[0]
    return not path.is_relative_to(BROWSER_TESTS), part not in OF_SOURCES, part in OF_SHORT_TESTS, part


@cache
def _is_slow(path: Path) -> bool:
    """Return whether all tests of a file are slow."""
    inside = path.relative_to(Path(__file__).parent)
    return inside.as_posix() not in OF_EACH_KIND and any(inside.is_relative_to(entry) for entry in SLOW)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As pytest's own, under a shorter name: a socket's path has 107 bytes, and pytest numbers its runs."""
    return tmp_path_factory.mktemp(re.sub(r"\W", "_", request.node.name)[:TMP_NAME_CHARS])


@pytest.fixture
def expected_build() -> str:
    """What the program should say of its build."""
    return EXPECTED_BUILD


class Done(NamedTuple):
    """How a program ended; `text` is stdout and stderr, in order."""

    status: int
    text: str


def environment(runtime: Path) -> dict[str, str]:
    """Ours without traces of an enclosing instance; `fluxsched` and `python` are those that run the tests."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLUX", "COV_"))}
    path = os.pathsep.join([prepared().programs, str(Path(sys.executable).parent), kept.get("PATH", os.defpath)])
    directories = {"XDG_RUNTIME_DIR": str(runtime), "XDG_STATE_HOME": state_home(runtime)}
    return {**kept, **directories, "PATH": path, "LC_ALL": "C.UTF-8", "PYTHONUTF8": "1"}


def state_home(runtime: Path) -> str:
    """Return where instances of this run directory keep their logs; the next start tells of one that was killed."""
    return f"{runtime}-state"


def forked(words: Sequence[str], environ: dict[str, str], timeout_s: float) -> tuple[int, Done]:
    """The session of `fluxsched WORDS`, and how it ended."""
    found = prepared().run(words[1:], str(ROOT), environ, timeout_s, is_alone=True)
    return found.pid, Done(found.status, found.out)


def executed(words: Sequence[str], environ: dict[str, str], timeout_s: float) -> tuple[int, Done]:
    """The same of any program."""
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        env=environ, start_new_session=True,
    ) as process:  # fmt: skip
        try:
            text, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.pid, Done(process.returncode, text)


@pytest.fixture
def program() -> Iterator[Callable[..., Done]]:
    """Runs a command at the repository's top; no process and no run directory of it may remain."""
    runtime = Path(tempfile.mkdtemp(prefix="fx-"))  # short: a socket's path has 107 bytes

    def run(*words: str, timeout_s: float = TIMEOUT_S) -> Done:
        try:
            pid, done = (forked if words[0] == "fluxsched" else executed)(words, environment(runtime), timeout_s)
        except subprocess.TimeoutExpired as exc:
            pytest.fail(f"{words} was still running after {timeout_s} s; it had printed:\n{exc.stdout}")
        left = sorted(path.name for path in runtime.iterdir())
        assert not left, f"{words} left {left} behind, and printed:\n{done.text}"
        with pytest.raises(ProcessLookupError):
            os.killpg(pid, 0)
        return done

    yield run
    shutil.rmtree(runtime)
    shutil.rmtree(state_home(runtime), ignore_errors=True)
