"""What jobs use of GPUs, as a made-up `nvidia-smi` on PATH says, or a made-up `dcgmi`."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.executor import gpus
from fluxsched.executor.gpus import OUTPUT_BYTES_MAX, GpuMeter, GpuUse, parse
from fluxsched.executor.local import JobProcesses
from fluxsched.executor.usage import merged
from fluxsched.system.processes import ancestor_among, stat_of
from tests.waiting import until

SAMPLE = """0, GPU-a, 90, 1024
1, GPU-b, 10, 512
2, GPU-c, [N/A], 12
3, GPU-d, 50, [N/A]
a line that nobody expects

GPU-a, 71, 1000
GPU-a, 72, [N/A]
GPU-e, 73, 5
"""
DMON = """#Entity   GPUTL     FBUSD
ID
GPU 0     90        1024
GPU 1     N/A       512
GPU 2     50        N/A
GPU-I 3   40        100
Switch 0  1         1
"""
MIB = 1 << 20
SMI = """#!/bin/sh
echo asked >> "$0.log"
case "$1" in
*query-gpu*) printf '0, GPU-a, 80, 300\\n1, GPU-b, 0, 100\\n' ;;
*) for pid in $(cat "$0.pids" 2>/dev/null); do echo "GPU-a, $pid, 200"; done ;;
esac
"""
HANGING_ONCE = SMI.replace(
    "case", """if [ ! -e "$0.hangs" ]; then trap '' TERM; echo $$ > "$0.hangs"; sleep 100; fi\ncase""", 1
)
"""An nvidia-smi of which the first call does not end when it is asked to."""
FOREVER = "sleep 100"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up nvidia-smi: processes whose ids are in a file compute on the first GPU."""
    path = tmp_path / "nvidia-smi"
    path.write_text(SMI)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "SAMPLE_S", 0.05)
    return path


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_what_is_known_of_a_sample_is_read_and_the_rest_left_out() -> None:
    assert parse(SAMPLE) == {
        0: GpuUse(0.9, 1024 * MIB, {71: 1000 * MIB, 72: 0}), 1: GpuUse(0.1, 512 * MIB, {}), 3: GpuUse(0.5, 0, {}),
    }  # fmt: skip
    assert parse("No devices were found\n\n") == {}
    assert len(SAMPLE) * 256 // 4 < OUTPUT_BYTES_MAX


def test_a_table_of_dcgm_is_read_without_what_is_no_gpu_or_not_known() -> None:
    assert parse(DMON) == {0: GpuUse(0.9, 1024 * MIB, {}), 2: GpuUse(0.5, 0, {})}
    assert parse("Error: unable to establish a connection to the specified host: localhost\n") == {}


async def test_without_nvidia_smi_dcgm_is_asked(shop: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "sleep", "timeout", "cat"):
        programs.joinpath(name).symlink_to(str(shutil.which(name)))
    dcgmi = programs / "dcgmi"
    dcgmi.with_suffix(".said").write_text(DMON)
    dcgmi.write_text('#!/bin/sh\necho "$@" > "$0.log"\ncat "$0.said"\n')
    dcgmi.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs))
    monkeypatch.setattr(gpus, "SAMPLE_S", 0.05)
    shop.start(FOREVER, children={"gpu": "0-2"})
    used = (await sampled(shop))["gpus"]
    assert (used["count"], used["max_bytes"]) == (2, 1024 * MIB)
    assert used["busy_s"] == pytest.approx(0.7 * used["held_s"], abs=1e-5)
    assert lines(Path(f"{dcgmi}.log")) == ["dmon --field-id 203,252 --count 1"]


def test_a_gpu_of_several_tasks_counts_for_each_in_part() -> None:
    meter = GpuMeter()
    assert meter.total() is None
    shared, own = GpuUse(0.8, 900, {11: 300, 12: 200, 21: 100, 99: 5}), GpuUse(0.5, 100, {21: 50})
    meter.add([shared, own], {11: 1, 12: 1, 21: 2}, 100.0, 110.0)
    meter.add([GpuUse(0.0, 10, {}), GpuUse(0.0, 10, {})], {}, 100.0, 120.0)
    assert meter.total() == {"count": 2, "held_s": 40.0, "busy_s": 13.0, "max_bytes": 900}
    assert meter.of_task(1) == {"busy_s": 4.0, "max_bytes": 500}
    assert meter.of_task(2) == {"busy_s": 9.0, "max_bytes": 100}
    assert meter.of_task(0) is None


def test_a_sample_without_the_gpus_of_a_job_changes_nothing() -> None:
    meter = GpuMeter()
    meter.add([GpuUse(0.5, 900, {11: 300})], {11: 1}, 100.0, 110.0)
    meter.add([], {}, 100.0, 120.0)
    assert meter.total() == {"count": 1, "held_s": 10.0, "busy_s": 5.0, "max_bytes": 900}
    meter.add([GpuUse(0.5, 900, {})], {}, 100.0, 130.0)
    assert meter.total() == {"count": 1, "held_s": 30.0, "busy_s": 15.0, "max_bytes": 900}


def test_hosts_are_added_up() -> None:
    part = {"wall_s": 9.0, "user_s": 1.0, "system_s": 0.0, "max_rss_bytes": 5}
    on_a, on_b = ({"count": 2, "held_s": 20.0, "busy_s": 5.0, "max_bytes": size} for size in (7, 9))
    total = merged([(Idset(1), {**part, "gpus": on_a}), (Idset(2), {**part, "gpus": on_b}), (Idset(4), part)])
    assert total is not None
    assert total["gpus"] == {"count": 4, "held_s": 40.0, "busy_s": 10.0, "max_bytes": 9}


async def sampled(shop: Any, jobid: int = 1) -> dict[str, Any]:
    """What a running job has used, once its GPUs were sampled."""
    answers: asyncio.Queue[Any] = asyncio.Queue()
    async with asyncio.timeout(60):
        while True:
            shop.executor.measure(jobid, answers.put_nowait)
            used = await answers.get()
            if used and "gpus" in used:
                return dict(used)
            await asyncio.sleep(0.02)


def is_alive(pid: int) -> bool:
    stat = stat_of(pid)
    return stat is not None and stat.alive


async def test_a_job_and_its_tasks_are_sampled_while_they_run(shop: Any, smi: Path, tmp_path: Path) -> None:
    go = tmp_path / "go"
    script = f"[ $FLUX_TASK_RANK = 0 ] || echo $$ > {smi}.pids; while [ ! -e {go} ]; do sleep 0.02; done"
    shop.start(script, ntasks=2, children={"gpu": "0-1"})
    used = await sampled(shop)
    while "gpus" not in used["tasks"][1]:
        used = await sampled(shop)
    assert used["gpus"]["count"] == 2
    assert used["gpus"]["busy_s"] == pytest.approx(0.4 * used["gpus"]["held_s"], abs=1e-5)
    assert used["gpus"]["max_bytes"] == 300 * MIB
    assert "gpus" not in used["tasks"][0]
    go.touch()
    assert await shop.finished() == 0
    end = shop.usage()
    assert end["gpus"]["held_s"] >= used["gpus"]["held_s"] > 0.0
    assert end["tasks"][1]["gpus"]["max_bytes"] == 200 * MIB
    asked = len(lines(Path(f"{smi}.log")))
    shop.start("sleep 0.2", jobid=2)
    assert await shop.finished(2) == 0
    assert len(lines(Path(f"{smi}.log"))) <= asked + 2, "at most the sample that was under way"
    assert "gpus" not in shop.usage(2)


async def test_a_process_that_holds_the_pipe_of_a_sample_delays_nothing(shop: Any, smi: Path) -> None:
    holder = """if [ ! -e "$0.holder" ]; then
    setsid sh -c 'echo $$ > "$0"; exec sleep 100' "$0.holder" &
    until [ -s "$0.holder" ]; do sleep 0.01; done  # else it would be killed with the group of the sample
fi
"""
    smi.write_text(SMI + holder)
    shop.start(FOREVER, children={"gpu": "0"})
    await sampled(shop)
    pid = int(Path(f"{smi}.holder").read_text())
    assert is_alive(pid)
    os.kill(pid, signal.SIGKILL)


async def test_a_sample_that_hangs_is_ended_and_others_follow(
    shop: Any, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "LIMIT_S", 0.5)
    smi.write_text(HANGING_ONCE)
    shop.start(FOREVER, children={"gpu": "0"})
    await sampled(shop)
    await until(lambda: not is_alive(int(Path(f"{smi}.hangs").read_text())))


async def test_no_sample_begins_while_one_is_left_that_cannot_be_killed(
    shop: Any, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.write_text(HANGING_ONCE)
    kill = os.killpg
    with monkeypatch.context() as patch:
        patch.setattr(gpus, "LIMIT_S", 0.5)
        patch.setattr(os, "killpg", lambda pgid, signum: None if signum == signal.SIGKILL else kill(pgid, signum))
        shop.start(FOREVER, children={"gpu": "0"})
        hanging = await until(lambda: lines(Path(f"{smi}.hangs")))
        asked = len(lines(Path(f"{smi}.log")))
        shop.start("sleep 1", jobid=2)
        await until(lambda: any(said[:2] == ("finished", 2) for said in shop.said))
        assert is_alive(int(hanging[0]))
        assert len(lines(Path(f"{smi}.log"))) == asked
    kill(os.getpgid(int(hanging[0])), signal.SIGKILL)
    await sampled(shop)


async def test_a_sample_under_way_ends_with_the_executor(shop: Any, smi: Path) -> None:
    smi.write_text(HANGING_ONCE)
    shop.start(FOREVER, children={"gpu": "0"})
    hanging = await until(lambda: lines(Path(f"{smi}.hangs")))
    shop.executor.close()
    await until(lambda: not is_alive(int(hanging[0])))


async def test_a_sample_that_cannot_be_watched_is_followed_by_others(
    shop: Any, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[int] = []
    pidfd_open = os.pidfd_open

    def refuse_once(pid: int, flags: int = 0) -> int:
        if refused:
            return pidfd_open(pid, flags)
        refused.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    shop.start(FOREVER, children={"gpu": "0"})
    await sampled(shop)
    monkeypatch.setattr(os, "pidfd_open", refuse_once)
    await until(lambda: refused)
    with pytest.raises(ChildProcessError):
        os.waitpid(refused[0], os.WNOHANG)
    asked = len(lines(Path(f"{smi}.log")))
    await until(lambda: len(lines(Path(f"{smi}.log"))) >= asked + 4)


async def test_more_output_than_the_limit_is_cut_at_a_line_and_sampling_goes_on(
    shop: Any, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "LIMIT_S", 0.5)
    begin, cut = "0, GPU-a, 80, 300\n1, GPU-b, 0, 100\n", "\n1, GPU-b, 0, 700"
    text = begin + "x" * (OUTPUT_BYTES_MAX - len(begin + cut)) + cut + "000\n"
    Path(f"{smi}.text").write_text(text)
    smi.write_text('#!/bin/sh\necho asked >> "$0.log"\ncat "$0.text"\n')
    shop.start(FOREVER, children={"gpu": "0-1"})
    assert (await sampled(shop))["gpus"]["max_bytes"] == 300 * MIB
    asked = len(lines(Path(f"{smi}.log")))
    await until(lambda: len(lines(Path(f"{smi}.log"))) > asked)


async def test_processes_are_assigned_to_tasks_without_a_walk_of_their_trees(
    shop: Any, smi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def children_of(pid: int) -> list[int]:
        raise AssertionError("the tree of a task is walked")

    monkeypatch.setattr("fluxsched.executor.usage.children_of", children_of)
    go = tmp_path / "go"
    compute = f"sh -c 'echo $$ >> {smi}.pids; while [ ! -e {go} ]; do sleep 0.02; done; true'; true"
    script = f"[ $FLUX_TASK_RANK = 0 ] && while [ ! -e {go} ]; do sleep 0.02; done || {{ {compute}; }}"
    shop.start(script, ntasks=2, children={"gpu": "0"})
    Path(f"{smi}.pids").write_text(f"1\n{os.getpid()}\n")
    await until(lambda: len(lines(Path(f"{smi}.pids"))) == 3)
    asked = len(lines(Path(f"{smi}.log")))
    await until(lambda: len(lines(Path(f"{smi}.log"))) >= asked + 5)
    go.touch()
    assert await shop.finished() == 0
    first, second = shop.usage()["tasks"]
    assert "gpus" not in first
    assert second["gpus"]["max_bytes"] == 200 * MIB


def test_a_process_that_is_hidden_from_us_is_of_no_task(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(path: str) -> bytes:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    parent = os.getppid()
    assert ancestor_among(os.getpid(), {parent}) == parent
    monkeypatch.setattr("fluxsched.system.processes.read_proc", hidden)
    assert ancestor_among(os.getpid(), {parent}) is None


@pytest.mark.plain_only("replaces a property")
async def test_the_gpus_of_a_job_are_looked_up_only_while_nothing_is_sampled(
    shop: Any, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpus, "SAMPLE_S", 1e6)
    asked: list[int] = []

    def looked_up(run: JobProcesses) -> Idset:
        asked.append(run.jobid)
        return Idset(1)

    monkeypatch.setattr(JobProcesses, "gpus", property(looked_up))
    await shop.run("true", jobid=1)
    shop.start("true", jobid=2)
    assert await shop.finished(2) == 0
    assert asked == [1]


async def test_without_nvidia_smi_nothing_is_known_and_a_shell_has_looked_for_it_once(
    shop: Any, smi: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi.unlink()
    timeout, real = smi.with_name("timeout"), shutil.which("timeout")
    timeout.write_text(f'#!/bin/sh\necho asked >> "$0.log"\nexec {real} "$@"\n')
    timeout.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent))
    monkeypatch.setattr("shutil.which", None)
    shop.start(["/bin/sleep", "100"], children={"gpu": "0"})
    await until(lambda: lines(Path(f"{timeout}.log")))
    shop.start(["/bin/sleep", "1"], jobid=2, children={"gpu": "0"})
    assert await shop.finished(2) == 0
    shop.start(["/bin/true"], jobid=3, children={"gpu": "0"})
    assert await shop.finished(3) == 0
    assert len(lines(Path(f"{timeout}.log"))) == 1
    assert "gpus" not in shop.usage(2)
