"""The same trace simulated and on a real instance: the same jobs start in the same order, at about the same times."""

import subprocess
import sys

import pytest

from fluxsched.client.blocking import connect_sync
from fluxsched.instance import launch
from fluxsched.sim import run
from fluxsched.sim.replay import replay
from fluxsched.system.clock import SystemClock

SPEED = 50.0


@pytest.fixture
def uri(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    # a program of its own: this process has threads of other tests' libraries, and a fork of it may hang
    command = [sys.executable, "-m", "fluxsched", "start", "--daemon", "--fake", "4x1", "--scheduler", "fifo"]
    started = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    yield started
    launch.stop(started)


def test_an_instance_schedules_as_its_simulation(uri, trace_of):
    trace = trace_of((0, 20, 40, 4), (5, 30, 60, 2), (6, 90, 40, 2), (6, 5, 40, 9), (30, 0, 10, 1))
    with connect_sync(uri) as handle:
        live = replay(handle, trace, SPEED, SystemClock())
    simulated = run(trace, "fifo", procs=4)
    assert live.jobs.state == simulated.jobs.state
    assert live.jobs.start[3] is live.jobs.end[3] is None
    slack_s = 0.5 * SPEED  # half a second of this machine's time
    for column in ("start", "end"):
        pairs = zip(getattr(live.jobs, column), getattr(simulated.jobs, column), strict=True)
        assert all(abs(real - virtual) < slack_s for real, virtual in pairs if virtual is not None)
    assert (live.targets, live.cores) == (4, 4)
