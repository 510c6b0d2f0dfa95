"""Checks by trying: directories of instances, instances that run, the clock, an engine, the schedulers' three homes.

The homes are an instance of its own, a real Flux, and the simulator.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from fluxsched import __version__, sim
from fluxsched.client.blocking import Handle
from fluxsched.client.find import read_info
from fluxsched.config.values import NO_ENGINE, SLURM, EngineSettings
from fluxsched.doctor.installed import Check, CheckState
from fluxsched.engine.engines import chosen_engine, found_kind, listening_address
from fluxsched.engine.process import start_engine
from fluxsched.errors import Disconnected, FluxschedError
from fluxsched.executor.cleanup import check_socket_room
from fluxsched.executor.wire import VERSION
from fluxsched.flux.install import examine
from fluxsched.messaging.router import MIB, free_bytes, shortage
from fluxsched.store.repair import fault_of, open_read_only
from fluxsched.store.schema import SCHEMA_VERSION
from fluxsched.system.clock import SystemClock
from fluxsched.system.files import (
    DATABASE_NAME,
    OWNER_NAME,
    PREFIX,
    base_directory,
    last_end,
    logs_directory,
)

DIRECTORIES, INSTANCES, ENGINE = "Directories", "Instances", "Engine"
REACH_S = 20.0
"""Time within which the hosts of an engine have to report (seconds)."""
ANSWER_S = 5.0
"""Time within which an instance has to answer, or to end once it has closed its sockets (seconds)."""
POLL_S = 0.02
"""Time between two looks at an instance that ends (seconds)."""
SKEW_MAX_S = 2.0
"""By how much a file's time may differ from ours (seconds)."""
EPOCH_S = 1735689600.0
"""The beginning of 2025: a clock that is before it was never set."""


def directories(statedir: Path | None) -> Iterator[Check]:
    """Look at the run directory, the state directory (if one is named), the logs and the clock."""
    yield _run_root()
    yield _room("space for run directories", base_directory())
    if statedir is not None:
        yield from _state(statedir)
    yield Check(DIRECTORIES, "logs", "ok", str(logs_directory(statedir)))
    if (said := last_end(statedir)) is not None:
        yield Check(DIRECTORIES, "last end", "warn", said, "read the log")
    yield _clock()


def instances() -> Iterator[Check]:
    """Ask those of this user that run, and name what killed ones have left."""
    stale = []
    for path in sorted(base_directory().glob(f"{PREFIX}{os.getuid()}-*")):
        info = read_info(path)
        if info is not None and "uri" not in info:
            continue  # a keeper of another instance's host has its sockets here
        if info is not None:
            if (found := _running_instance(path, str(info["uri"]), int(info["pid"]))) is not None:
                yield found
        elif _is_stale(path):
            stale.append(str(path))
    if stale:
        text = f"{len(stale)} run directories of killed instances: {', '.join(stale)}"
        yield Check(INSTANCES, "left behind", "warn", text, "the next `fluxsched start` removes them")


def engine(environment: Mapping[str, str]) -> Iterator[Check]:
    """Ask the engine around this process, if there is one, for its hosts, and have a keeper report from each."""
    kind = found_kind(environment)
    if kind == NO_ENGINE:
        return
    settings = EngineSettings(kind, start_timeout_s=REACH_S)
    try:
        around = chosen_engine(settings, environment)
        assert around is not None, "its kind was found"
        hosts = around.allocation().hosts
        yield Check(ENGINE, kind, "ok", f"{around.identity}: {hosts}, {len(hosts)} in all")
        started = start_engine(settings, environment, None, is_kept=False)
    except FluxschedError as fault:
        yield Check(ENGINE, kind, "fail", str(fault), f"`fluxsched start --engine {kind}` needs it; see rfc/engines.md")
        return
    assert started is not None, "its kind was found"
    started.close()
    if kind == SLURM:
        found = "Slurm does not tell whether the allocation goes on without a node that fails"
        yield Check(ENGINE, "failed nodes", "none", found, "allocate with --no-kill (salloc, sbatch)")
    reported = f"{len(started.hosts)} of {len(hosts)} have reported with our version {VERSION}"
    state: CheckState = "ok" if len(started.hosts) == len(hosts) else "warn"
    remedy = "" if state == "ok" else "look at the others, which `fluxsched start` would leave out"
    yield Check(ENGINE, "hosts", state, f"{reported}: {', '.join(started.hosts)}", remedy)
    try:
        address = listening_address(None, around, started.hosts)
        yield Check(ENGINE, "address", "ok", f"hosts reach this machine at {address}")
    except FluxschedError as fault:
        yield Check(ENGINE, "address", "fail", str(fault), "set [engine] address in the configuration")


def _run_root() -> Check:
    base, wanted = base_directory(), os.environ.get("XDG_RUNTIME_DIR")
    name = "run directories"
    try:
        check_socket_room(base, "XDG_RUNTIME_DIR")
    except FluxschedError as fault:
        text, _, remedy = str(fault).partition(": ")
        return Check(DIRECTORIES, name, "fail", text, remedy)
    if not os.access(base, os.W_OK | os.X_OK):
        return Check(
            DIRECTORIES, name, "fail", f"{base} cannot be written", "set XDG_RUNTIME_DIR to a writable directory"
        )
    mode = base.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        text = f"{base} is world-writable without the sticky bit: others can remove files in it"
        return Check(DIRECTORIES, name, "fail", text, f"chmod +t {base}, or set XDG_RUNTIME_DIR")
    if wanted and Path(wanted) != base:
        text = f"{base}, since XDG_RUNTIME_DIR ({wanted}) cannot be written"
        return Check(DIRECTORIES, name, "warn", text, "log in again, or unset it")
    return Check(DIRECTORIES, name, "ok", str(base))


def _room(name: str, path: Path) -> Check:
    if (short := shortage(path)) is not None:
        return Check(DIRECTORIES, name, "fail", short, "make room")
    with suppress(OSError):
        if (free := free_bytes(path)) is not None:
            return Check(DIRECTORIES, name, "ok", f"{free // MIB} MiB free")
    return Check(DIRECTORIES, name, "ok", "not reported by its file system")


def _state(path: Path) -> Iterator[Check]:
    name = "state directory"
    if not path.is_dir():
        yield Check(DIRECTORIES, name, "none", f"{path} is not there", "`fluxsched start --statedir` creates it")
        return
    found = path.stat()
    if found.st_uid != os.getuid():
        yield Check(DIRECTORIES, name, "fail", f"{path} is of user {found.st_uid}", "use a directory of your own")
    elif found.st_mode & 0o077:
        text = f"{path} has mode {stat.S_IMODE(found.st_mode):04o}: others may access jobs and their output"
        yield Check(DIRECTORIES, name, "warn", text, f"chmod 700 {path}")
    elif not os.access(path, os.W_OK | os.X_OK):
        yield Check(DIRECTORIES, name, "fail", f"{path} cannot be written", "mount it writable")
    else:
        yield Check(DIRECTORIES, name, "ok", f"{path}, {'in use' if _is_locked(path / 'lock') else 'not in use'}")
    yield _room("space for the state", path)
    yield _database(path / DATABASE_NAME)


def _database(path: Path) -> Check:
    name = "stored state"
    if not path.exists():
        return Check(DIRECTORIES, name, "none", f"{path} does not exist yet")
    fault = fault_of(path)
    if fault is not None:
        remedy = "restore a backup into a new directory (fluxsched restore), or start with --salvage"
        return Check(DIRECTORIES, name, "fail", f"{path} is damaged: {fault}", remedy)
    try:
        with closing(open_read_only(path)) as connection:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            jobs = connection.execute("SELECT count(DISTINCT jobid) FROM job_log").fetchone()[0]
    except sqlite3.Error as error:
        return Check(DIRECTORIES, name, "fail", f"{path}: {error}", "start with another --statedir, or a backup")
    if version > SCHEMA_VERSION:
        text = f"{path} has format {version}, this fluxsched reads formats up to {SCHEMA_VERSION}"
        return Check(DIRECTORIES, name, "fail", text, "start with the version that wrote it")
    return Check(DIRECTORIES, name, "ok", f"{jobs} jobs, {path.stat().st_size / MIB:.1f} MiB")


def _running_instance(path: Path, uri: str, pid: int) -> Check | None:
    """Ask the instance of the run directory `path`; None if it ended meanwhile."""
    name = f"process {pid}"
    try:
        with Handle(uri) as handle:
            info = handle.rpc("instance.info", timeout_s=ANSWER_S)
            fault = handle.rpc("instance.stats-get", timeout_s=ANSWER_S).get("store_fault")
    except FluxschedError as error:
        if isinstance(error, Disconnected) and _has_ended(path):
            return None
        return Check(INSTANCES, name, "fail", f"{uri} does not answer: {error}", f"look at its log; kill {pid} ends it")
    if fault:
        return Check(INSTANCES, name, "fail", f"{uri}: {fault}", "free disk space; the instance then continues")
    text = f"{uri}, targets: {info['size']}, state in {info.get('statedir') or 'its run directory'}"
    state: CheckState = "ok"
    if info["version"] != __version__:
        state, text = "warn", f"{text}, version {info['version']}"
    return Check(INSTANCES, name, state, text, "" if state == "ok" else "restart it for this version")


def _has_ended(path: Path) -> bool:
    """Return whether the instance of the run directory `path` ends: it closes its sockets before its process ends."""
    end_s = SystemClock.monotonic_s() + ANSWER_S
    while (is_there := read_info(path) is not None) and SystemClock.monotonic_s() < end_s:
        SystemClock.sleep(POLL_S)
    return not is_there


def _is_locked(path: Path) -> bool:
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _is_stale(path: Path) -> bool:
    owner = path / OWNER_NAME
    with suppress(OSError, ValueError):
        return path.stat().st_uid == os.getuid() and bool(json.loads(owner.read_bytes())) and not _is_locked(owner)
    return False


def _clock() -> Check:
    name, now_s = "clock", SystemClock.wall_s()
    if now_s < EPOCH_S:
        return Check(DIRECTORIES, name, "fail", "it was never set; job ids depend on it", "set it (timedatectl)")
    with suppress(OSError), tempfile.TemporaryFile(dir=base_directory()) as file:
        skew_s = os.fstat(file.fileno()).st_mtime - SystemClock.wall_s()
        if abs(skew_s) > SKEW_MAX_S:
            text = f"files in {base_directory()} are {skew_s:+.0f} s from it"
            return Check(DIRECTORIES, name, "warn", text, "synchronize the file server's clock")
    return Check(DIRECTORIES, name, "ok", "set, and consistent with file times")


# ---- checks by home

SECTION = "Where schedulers run"
TRY_S = 60.0
"""Time within which an instance has to start, run a job and end (seconds); it needs one."""
JOBS = 20
"""Number of jobs that are simulated."""
LINES_MAX = 3
"""Of what a failed try has said, its last lines."""


def homes() -> Iterator[Check]:
    """Try all three homes of schedulers."""
    yield _own_instance()
    yield _flux()
    yield _simulator()


def _own_instance() -> Check:
    name, remedy = "an instance", "`fluxsched start -v --fake 1x1 -- fluxsched run true` shows more"
    ours = [sys.executable, "-m", "fluxsched"]
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FLUX", "_FLUXSCHED"))}
    begin_s = SystemClock.monotonic_s()
    try:
        with tempfile.TemporaryDirectory(prefix="fluxsched-doctor-") as place:
            done = subprocess.run(
                [*ours, "start", "--fake", "1x1", "--", *ours, "run", "echo", "ran"],
                stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TRY_S,
                env=clean | {"XDG_STATE_HOME": place}, cwd=place,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as fault:
        return Check(SECTION, name, "fail", f"cannot be started: {fault}", remedy)
    if (done.returncode, done.stdout) != (0, "ran\n"):
        said = "; ".join(done.stderr.strip().splitlines()[-LINES_MAX:]) or f"exit status {done.returncode}"
        return Check(SECTION, name, "fail", f"ran no job: {said}", remedy)
    return Check(SECTION, name, "ok", f"started, ran a job and ended in {SystemClock.monotonic_s() - begin_s:.1f} s")


def _flux() -> Check:
    name = "inside Flux"
    if shutil.which("flux") is None:
        remedy = "put the directory of flux-core's `flux` on PATH (rfc/flux.md); only needed for Flux"
        return Check(SECTION, name, "none", "no flux on PATH", remedy)
    try:
        version, extra = examine()
    except FluxschedError as fault:
        return Check(SECTION, name, "fail", str(fault), "see rfc/flux.md")
    said = f", with python-path={':'.join(extra)}" if extra else ""
    return Check(SECTION, name, "ok", f"flux-core {version} can load fluxsched{said}")


def _simulator() -> Check:
    name = "the simulator"
    try:
        result = sim.run(sim.generate(JOBS, procs=4), "easy")
    except (FluxschedError, ImportError) as fault:
        return Check(SECTION, name, "fail", f"cannot simulate: {fault}", "pip install --force-reinstall fluxsched")
    return Check(SECTION, name, "ok", f"simulated {len(result.jobs)} jobs")
