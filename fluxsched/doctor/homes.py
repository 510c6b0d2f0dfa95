"""The three homes of the schedulers, tried: an instance of its own, a real Flux, the simulator."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from fluxsched import sim
from fluxsched.adapters.flux.install import examine
from fluxsched.doctor.check import Check
from fluxsched.errors import FluxschedError
from fluxsched.runtime.system.clock import SystemClock

SECTION = "Homes"
TRY_S = 60.0
"""How long an instance may take to start, run a job and end (seconds); it needs one."""
JOBS = 20
"""Jobs that are simulated."""
LINES_MAX = 3
"""Of what a failed try has said, its last lines."""


def homes() -> Iterator[Check]:
    """Try all three."""
    yield _instance()
    yield _flux()
    yield _simulator()


def _instance() -> Check:
    name, remedy = "an instance", "`fluxsched start -v --fake 1x1 -- fluxsched run true` says more"
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
