"""What tasks used, measured on real processes: `usage` of the job and of each task."""

from __future__ import annotations

import os
import resource
import sys
from typing import Any

from fluxsched.runtime.exec.usage.meter import TASK_ROWS_MAX, Meter
from fluxsched.runtime.system.clock import SystemClock

MORE_BYTES = 24 << 20


def big() -> tuple[int, str]:
    """A peak above our own, and a command that reaches it and exits 3."""
    peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10) + MORE_BYTES
    return peak, f"{sys.executable} -c 'b = b\"x\" * {peak}; raise SystemExit(3)'"


async def test_cpu_time_and_peak_are_those_of_the_task_and_its_children(shop: Any) -> None:
    peak, command = big()
    assert await shop.run(f"exec {command}") == 3 << 8
    used = shop.usage()
    assert used["max_rss_bytes"] > peak
    assert "max_rss_is_bound" not in used
    assert used["user_s"] + used["system_s"] > 0
    assert used["wall_s"] > 0
    assert "tasks" not in used
    shop.start(f"{command}; exit 0", jobid=2)
    assert await shop.finished(2) == 0
    assert shop.usage(2)["max_rss_bytes"] > peak


async def test_a_peak_below_that_of_the_instance_is_a_bound(shop: Any) -> None:
    await shop.run("true")
    assert shop.usage()["max_rss_is_bound"]


async def test_each_task_has_a_row_with_its_own_status_and_time(shop: Any) -> None:
    await shop.run('if [ $FLUX_TASK_RANK = 1 ]; then kill -SEGV $$; fi; sleep 0.2', ntasks=3)
    tasks = shop.usage()["tasks"]
    assert [task["status"] & 0x7F for task in tasks] == [0, 11, 0]
    assert tasks[1]["wall_s"] < min(tasks[0]["wall_s"], tasks[2]["wall_s"])


async def test_rows_of_tasks_are_bounded() -> None:
    meter = Meter(SystemClock())
    pids = [os.posix_spawn("/bin/true", ["true"], {}) for _ in range(2)]
    meter.opened(pids)
    used = [os.wait4(pid, 0) for pid in pids]
    for task in range(TASK_ROWS_MAX + 2):
        meter.reaped(task, *used[task % 2][1:])
    total = meter.total(TASK_ROWS_MAX + 2)
    meter.close()
    assert total is not None
    assert len(total["tasks"]) == TASK_ROWS_MAX
    assert total["tasks_left_out"] == 2


def test_tasks_that_never_ran_used_nothing() -> None:
    assert Meter(SystemClock()).total(1) is None
