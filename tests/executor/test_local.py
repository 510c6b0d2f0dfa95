"""The tasks of a job on this host: their start, input, output, temporary directories and PMI."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import resource
import signal
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor import cleanup, io, layout, local, tasks
from fluxsched.executor.base import spool_directory
from fluxsched.executor.io import INPUT_TASKS_MAX, NOTHING, JobInput, source_of
from fluxsched.executor.local import LOOK_S
from fluxsched.executor.tasks import PMI_FD
from fluxsched.system.processes import children_of, identity
from tests.site import alive

# Real processes: a task runs gated, pinned and in its group, and nothing of a job outlives the word `finished`.


Shop = Any
"""That of `conftest.py`."""
GRACE_S = 0.1
"""That of `shop`."""
OWN = ("FLUX_", "OMPI_MCA_")
FOREVER = "exec sleep 300"


# -- what tasks get


async def test_a_task_knows_who_it_is(shop):
    say = 'echo "$FLUX_TASK_RANK $FLUX_TASK_LOCAL_ID $FLUX_JOB_SIZE $FLUX_JOB_NNODES $FLUX_JOB_ID $EXTRA"'
    assert await shop.run(say, ntasks=4, ranks=2, extra={"EXTRA": "x y"}) == 0
    assert shop.lines() == [f"{rank} {rank % 2} 4 2 ƒ2 x y" for rank in range(4)]


async def test_the_environment_is_the_jobs_and_nothing_of_the_instances(tmp_path, make_shop, monkeypatch):
    monkeypatch.setenv("LEAK", "1")
    monkeypatch.setenv("OLDPWD", "/instance")
    monkeypatch.setenv("FLUXSCHED_JOB_PATH", "fOuter")
    shop = make_shop(tmp_path)
    odd = {"BASH_FUNC_module%%": "() { :; }", "a.b": "-n", "IFS": ":", "go": "1"}
    environment = {"GONE": None, "LATIN": "ƒ\udcff", "FLUX_JOB_ID": "lie", **odd}
    assert await shop.run(["env", "-0"], environment=environment) == 0
    data = (spool_directory(shop.spool, 1) / "stdout").read_bytes()
    found = dict(pair.partition(b"=")[::2] for pair in data.split(b"\0") if pair)
    assert (found[b"LATIN"], found[b"FLUX_JOB_ID"]) == (b"\xc6\x92\xff", "ƒ2".encode())
    theirs = {"FLUXSCHED_JOB_PATH", "CUDA_VISIBLE_DEVICES"}
    assert {name for name in map(bytes.decode, found) if not name.startswith(OWN)} == {"LATIN", *odd, *theirs}
    assert found[b"FLUXSCHED_JOB_PATH"] == b"fOuter/f2"
    assert {name: found[name.encode()].decode() for name in odd} == odd
    shop.executor.close()


async def test_a_task_has_default_signals_no_input_its_own_group_and_no_descriptor_of_ours(shop):
    look = 'cat; ls /proc/self/fd; grep -E "SigBlk|SigIgn" /proc/self/status; cut -d" " -f5 /proc/$$/stat; echo $$'
    inherited = os.dup(0)
    os.set_inheritable(inherited, True)
    assert await shop.run(look, input="/dev/null") == 0
    os.close(inherited)
    lines = shop.text().splitlines()
    assert lines[:4] == ["0", "1", "2", "3"]  # 3 is that of ls itself
    ordinary = (1 << 31) - 1  # beyond are the C library's own, which nobody can set
    assert [int(line.split()[1], 16) & ordinary for line in lines[4:6]] == [0, 0]
    assert lines[6] == lines[7]


async def test_gpus_are_the_allocated_ones_or_none(shop):
    say = 'echo "$CUDA_VISIBLE_DEVICES"'
    await shop.run(say, children={"gpu": "1,3"}, gpus_per_task=2)
    shop.start(say, jobid=2)
    await shop.finished(2)
    assert (shop.text(), shop.text(jobid=2)) == ("1,3\n", "-1\n")


CPUS = "grep Cpus_allowed_list /proc/self/status | cut -f2"


async def test_tasks_are_pinned_to_the_cores_of_their_rank(shop):
    unit = max(os.sched_getaffinity(0))
    assert await shop.run(CPUS, cores=[Idset.of([unit])]) == 0
    assert (shop.text(), shop.text("stderr")) == (f"{unit}\n", "")


@pytest.mark.parametrize("cores", [[], [Idset.of([1023])] * 2], ids=["core not here", "refused by the kernel"])
async def test_what_cannot_be_pinned_runs_unpinned_and_says_so_once(shop, cores):
    assert await shop.run(CPUS, ntasks=2, cores=cores) == 0
    mine = Idset.of(os.sched_getaffinity(0))
    assert [Idset.parse(line) for line in shop.lines()] == [mine, mine]
    assert len(shop.lines("stderr")) == 1
    assert "2 of the tasks run unpinned" in shop.text("stderr.0")


@pytest.mark.plain_only("replaces a method")
async def test_the_note_on_a_task_that_runs_already_empties_no_file_of_its(shop, tmp_path, monkeypatch):
    def written_first(streams, text, note=io.Streams.write_note):
        limit_s = time.monotonic() + 20.0
        while not (tmp_path / "out-0").read_text() and time.monotonic() < limit_s:
            time.sleep(0.001)
        note(streams, text)

    monkeypatch.setattr(io.Streams, "write_note", written_first)
    shop.start(["echo", "begun"], cwd=str(tmp_path), output="out-{{taskid}}", cores=[])
    assert await shop.finished() == 0
    begun, note = (tmp_path / "out-0").read_text().splitlines()
    assert begun == "begun"
    assert "1 of the tasks run unpinned" in note


# -- where it runs and prints


async def test_cwd_is_the_jobspecs(shop, tmp_path):
    there = tmp_path / "a dir"
    there.mkdir()
    assert await shop.run(["pwd"], cwd=str(there)) == 0
    assert shop.text() == f"{there}\n"


async def test_a_missing_cwd_fails_the_job_with_nothing_left(shop, tmp_path):
    with pytest.raises(FluxschedError, match=r"working directory .*nowhere"):
        shop.start(["true"], cwd=str(tmp_path / "nowhere"))
    assert shop.said == []


async def test_output_goes_to_files_named_by_template_relative_to_cwd(shop, tmp_path):
    (tmp_path / "my-ƒ2.out").write_text("old and long\n", encoding="utf-8")
    options = {"cwd": str(tmp_path), "output": "{{name}}-{{id}}.out", "error": "{{jobid.dec}}.err", "name": "my"}
    assert await shop.run("echo out; echo err >&2", **options) == 0
    assert (tmp_path / "my-ƒ2.out").read_text(encoding="utf-8") == "out\n"
    assert (tmp_path / "1.err").read_text(encoding="utf-8") == "err\n"
    assert not shop.spool.exists()


async def test_stderr_follows_stdout_into_its_file_unless_it_has_one_of_its_own(shop, tmp_path):
    assert await shop.run("echo out; echo err >&2", output=str(tmp_path / "both")) == 0
    assert (tmp_path / "both").read_text(encoding="utf-8") == "out\nerr\n"


async def test_each_task_of_several_has_files_of_its_own(shop):
    assert await shop.run("echo $FLUX_TASK_RANK; echo $FLUX_TASK_RANK >&2", ntasks=4, ranks=2) == 0
    files = {file.name: file.read_text() for file in spool_directory(shop.spool, 1).iterdir()}
    assert files == {f"{stream}.{task}": f"{task}\n" for stream in ("stdout", "stderr") for task in range(4)}


async def test_tasks_share_a_file_of_the_users_choice_and_only_that(shop, tmp_path):
    assert await shop.run("echo out; echo err >&2", ntasks=3, error=str(tmp_path / "errors")) == 0
    assert (tmp_path / "errors").read_text() == "err\n" * 3
    names = sorted(file.name for file in spool_directory(shop.spool, 1).iterdir())
    assert names == ["stdout.0", "stdout.1", "stdout.2"]


async def test_a_spool_file_that_cannot_be_opened_fails_the_job_with_nothing_left(shop):
    directory = spool_directory(shop.spool, 1)
    (directory / "stderr.20").mkdir(parents=True)
    shop.start(["echo", "ran"], ntasks=40)
    await shop.until(lambda: bool(shop.said))
    assert shop.said == [("failed", 1, f"cannot open '{directory}/stderr.20' for the job's output: Is a directory")]
    assert shop.lines() == []
    (directory / "stdout.0").unlink()
    (directory / "stdout.0").mkdir()
    with pytest.raises(FluxschedError, match=r"cannot open .*stdout.0"):
        shop.start(["true"], ntasks=2)
    assert not shop.records


async def test_a_file_that_cannot_be_opened_fails_the_job_without_blocking(shop, tmp_path):
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(FluxschedError, match=r"cannot open .*fifo"):
        shop.start(["true"], error=str(tmp_path / "fifo"))
    with pytest.raises(FluxschedError, match=r"cannot open .*No such file"):
        shop.start(["true"], output=str(tmp_path / "no" / "file"))


async def test_output_can_be_followed_while_the_job_runs(shop):
    shop.start(f"echo early; {FOREVER}")
    await shop.until(lambda: bool(shop.said) and shop.text() == "early\n")
    shop.executor.kill(1, signal.SIGKILL)
    assert await shop.finished() == signal.SIGKILL


# -- how it ends


@pytest.mark.parametrize(
    ("command", "code"),
    [(["sh", "-c", "exit 3"], 3), (["no-such-program"], 127), (["/etc/passwd"], 126), (["/"], 126)],
)
async def test_exit_codes_are_those_of_a_shell(shop, command, code):
    assert os.waitstatus_to_exitcode(await shop.run(command)) == code
    assert bool(shop.text("stderr")) == (code > 3)


async def test_death_by_signal_is_a_wait_status(shop):
    assert await shop.run("kill -SEGV $$") & 0x7F == signal.SIGSEGV


async def test_the_jobs_status_is_the_highest_and_the_others_go_on(shop):
    assert await shop.run("[ $FLUX_TASK_RANK = 0 ] && exit 7; echo on; exit $FLUX_TASK_RANK", ntasks=3) == 7 << 8
    assert shop.lines() == ["on", "on"]


async def test_many_tasks_start_together(shop):
    assert await shop.run("echo $FLUX_TASK_RANK", ntasks=40, ranks=2) == 0
    assert sorted(map(int, shop.lines())) == list(range(40))


async def test_arguments_that_exec_refuses_fail_the_job_with_nothing_left(shop):
    with pytest.raises(FluxschedError, match="cannot start task 0"):
        shop.start(["true", "x" * (1 << 20)])
    assert not shop.said
    assert not shop.records


async def test_what_is_no_text_fails_the_job_with_nothing_left(shop):
    with pytest.raises(FluxschedError, match="lone surrogate"):
        shop.start(["true", "\ud800"])
    with pytest.raises(FluxschedError, match="lone surrogate"):
        shop.start(["true"], environment={"A": "\ud800"})
    assert not shop.said


# -- nothing outlives it


async def test_what_tasks_leave_in_their_group_is_killed_before_finished(shop):
    assert await shop.run("(trap '' TERM HUP; exec sleep 300) & echo $!") == 0
    assert not alive(int(shop.text()))


async def test_strays_that_left_the_group_are_killed_before_finished(shop, tmp_path):
    leave = (
        f"setsid sh -c 'sleep 300 & echo $! $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pids; wait' & "
        f"until [ -e {tmp_path}/pids ]; do sleep 0.01; done"
    )
    assert await shop.run(leave) == 0
    assert [alive(int(pid)) for pid in (tmp_path / "pids").read_text().split()] == [False, False]


async def test_children_that_others_wait_for_are_left_alone(shop):
    other = await asyncio.create_subprocess_exec("sh", "-c", "read x; exit 5", stdin=asyncio.subprocess.PIPE)
    assert await shop.run(["true"]) == 0
    await other.communicate(b"\n")
    assert other.returncode == 5


async def test_a_task_that_ends_on_sigterm_is_not_killed(shop):
    shop.start("trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done")
    await shop.until(lambda: bool(shop.said) and bool(shop.text()))
    shop.executor.kill(1, signal.SIGTERM)
    assert await shop.finished() == 4 << 8


async def test_a_task_that_ignores_sigterm_is_killed_after_the_grace(shop):
    shop.start("trap '' TERM; echo ready; while :; do sleep 0.01; done")
    await shop.until(lambda: bool(shop.said) and bool(shop.text()))
    begun_s = shop.turns.clock.monotonic_s()
    shop.executor.kill(1, signal.SIGTERM)
    shop.executor.kill(1, signal.SIGTERM)
    assert await shop.finished() == signal.SIGKILL
    assert shop.turns.clock.monotonic_s() - begun_s >= GRACE_S


@pytest.mark.parametrize("graces_s", [(GRACE_S, 600.0), (600.0, GRACE_S), (600.0, None), (600.0, 0.0)])
async def test_of_several_grace_times_the_one_that_is_over_first_counts(shop, graces_s):
    shop.start("trap '' TERM; echo ready; while :; do sleep 0.01; done")
    await shop.until(lambda: bool(shop.said) and bool(shop.text()))
    begun_s = shop.turns.clock.monotonic_s()
    for grace_s in graces_s:
        shop.executor.kill(1, signal.SIGTERM, grace_s)
    assert await shop.finished() == signal.SIGKILL
    soonest_s = min(GRACE_S if grace_s is None else grace_s for grace_s in graces_s)
    assert shop.turns.clock.monotonic_s() - begun_s >= soonest_s


async def test_other_signals_are_only_passed_on(shop):
    shop.start("trap 'echo usr' USR1; echo ready; while :; do sleep 0.01; done")
    await shop.until(lambda: bool(shop.said) and bool(shop.text()))
    shop.executor.kill(1, signal.SIGUSR1)
    shop.executor.kill(99, signal.SIGKILL)
    await shop.until(lambda: "usr" in shop.text())
    await asyncio.sleep(1.5 * GRACE_S)
    assert [said[0] for said in shop.said] == ["started"]


# -- the gate


async def test_nothing_runs_before_the_record_is_on_disk(shop):
    shop.held = []
    shop.start(["echo", "ran"], ntasks=2)
    record = shop.records[1]
    await asyncio.sleep(0.02)
    assert (shop.lines(), shop.said, alive(record["pid"])) == ([], [], True)
    shop.commit()
    assert await shop.finished() == 0
    assert shop.lines() == ["ran", "ran"]


async def test_a_single_task_has_no_process_before_it_is_on_record_who_starts_it(shop):
    shop.held, before = [], children_of(os.getpid())
    shop.start(f"echo ran; {FOREVER}", cwd="/")
    await asyncio.sleep(0.02)
    ahead = shop.records[1]
    assert (ahead["pid"], ahead["ahead"], shop.said, children_of(os.getpid())) == (os.getpid(), True, [], before)
    shop.commit()
    await shop.until(lambda: bool(shop.said) and shop.text() == "ran\n")
    [pid] = set(children_of(os.getpid())) - set(before)
    assert shop.records[1] == identity(pid, ahead["boot_id"], ahead["path"])
    shop.executor.kill(1, signal.SIGKILL)
    assert await shop.finished() == signal.SIGKILL


ALIKE = (
    'pwd; echo "$PWD"; ulimit -Sn; grep Cpus_allowed_list: /proc/self/status; stat -c %F -L /dev/stdin; cat; '
    r"tr '\0' '\n' </proc/$$/environ | grep -c ^odd.name=; cut -d' ' -f5 /proc/$$/stat | grep -c ^$$"
)


@pytest.mark.parametrize(("first", "word"), [("", b"sh"), ("/proc:", tasks.SHELL)], ids=["itself", "by-a-shell"])
async def test_a_task_is_alike_whether_a_shell_becomes_it_or_not(shop, tmp_path, monkeypatch, first, word):
    spawn, words = os.posix_spawn, []
    monkeypatch.setattr(os, "posix_spawn", lambda path, argv, *rest, **options: (
        words.append(argv[0]) or spawn(path, argv, *rest, **options)))  # fmt: skip
    shop.executor._limit, shop.executor._prepared = 321, True
    units = os.sched_getaffinity(0)
    ours = os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE), units
    environment = {"PATH": f"{first}/usr/bin:/bin", "PWD": "/elsewhere", "odd.name": "1"}
    cores = [Idset.of([min(units)])]
    shop.start(ALIKE, cwd=str(tmp_path), environment=environment, cores=cores)
    await shop.until(lambda: bool(shop.said))
    assert (os.getcwd(), resource.getrlimit(resource.RLIMIT_NOFILE), os.sched_getaffinity(0)) == ours
    shop.executor.input_of(1).send(b"input\n", None, eof=True, taken=lambda: None)
    assert await shop.finished() == 0
    on = f"Cpus_allowed_list:\t{min(units)}"
    assert shop.text().splitlines() == [str(tmp_path), str(tmp_path), "321", on, "fifo", "input", "1", "1"]
    assert words == [word]


async def test_what_cannot_be_executed_at_once_is_left_to_a_shell(shop, tmp_path):
    (tmp_path / "script").write_text("cat; echo without an interpreter\n")
    (tmp_path / "script").chmod(0o755)
    shop.start(["script"], cwd="/", environment={"PATH": f"{tmp_path}:/bin"})
    await shop.until(lambda: bool(shop.said))
    shop.executor.input_of(1).send(b"input\n", None, eof=True, taken=lambda: None)
    assert await shop.finished() == 0
    assert shop.text() == "input\nwithout an interpreter\n"
    shop.start(["/bin/."], jobid=2, cwd="/")
    assert await shop.finished(2) == 126 << 8
    assert shop.text("stderr", jobid=2) == "fluxsched: /bin/.: is a directory\n"


async def test_a_single_task_that_cannot_be_spawned_fails_its_job(shop, monkeypatch):
    def none_left(*args, **options):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "posix_spawn", none_left)
    shop.start(["true"], cwd="/")
    await shop.until(lambda: bool(shop.said))
    assert shop.said == [("failed", 1, f"cannot start task 0: {os.strerror(errno.EAGAIN)}")]


async def test_a_task_has_its_files_though_we_have_more_descriptors_than_it_may(shop, monkeypatch):
    spawn, words = os.posix_spawn, []
    monkeypatch.setattr(os, "posix_spawn", lambda path, argv, *rest, **options: (
        words.append(argv[0]) or spawn(path, argv, *rest, **options)))  # fmt: skip
    low = tasks.reserved_descriptors()
    shop.executor._limit, shop.executor._prepared = max(low) + 1, True
    taken = [os.dup(0) for _ in range(max(low) + 1)]
    shop.start("cat; echo done >&2; ulimit -Sn", cwd="/")
    await shop.until(lambda: bool(shop.said))
    for fd in taken:
        os.close(fd)
    shop.executor.input_of(1).send(b"input\n", None, eof=True, taken=lambda: None)
    assert await shop.finished() == 0
    assert (shop.text(), shop.text("stderr"), words) == (f"input\n{max(low) + 1}\n", "done\n", [b"sh"])
    assert {os.readlink(f"/proc/self/fd/{fd}") for fd in low} == {os.devnull}


@pytest.mark.parametrize("cwd", [None, "/"])
async def test_a_job_killed_at_the_gate_never_runs_but_is_reported_in_order(shop, cwd):
    shop.held = []
    shop.start(["echo", "ran"], cwd=cwd)
    shop.executor.kill(1, signal.SIGTERM)
    await shop.until(lambda: "ahead" not in shop.records[1] and not alive(shop.records[1]["pid"]))
    shop.commit()
    assert await shop.finished() == signal.SIGTERM
    assert shop.text() == ""


async def test_a_job_killed_while_its_tasks_are_spawned_never_runs(shop):
    shop.start(["echo", "ran"], ntasks=100)
    shop.executor.kill(1, signal.SIGTERM)
    assert await shop.finished() == signal.SIGTERM
    assert shop.lines() == []


async def test_close_kills_running_gated_and_half_spawned_jobs_without_a_word(shop):
    shop.start(f"trap '' TERM; setsid sleep 300 & echo $!; {FOREVER}", jobid=1)
    await shop.until(lambda: bool(shop.said) and bool(shop.text()))
    shop.held = []
    shop.start(FOREVER, jobid=2)
    shop.start(FOREVER, jobid=3, ntasks=40)
    said = list(shop.said)
    pids = [int(shop.text()), shop.records[1]["pid"], shop.records[2]["pid"]]
    shop.executor.close()
    shop.commit()
    await shop.until(lambda: not any(map(alive, pids)))
    assert shop.said == said


# The named limits of what runs tasks, each reached.


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 4096, 4096),
        (1024, resource.RLIM_INFINITY, tasks.DESCRIPTORS_MAX),
        (tasks.DESCRIPTORS_MAX, resource.RLIM_INFINITY, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_so_many_descriptors_are_asked_for(monkeypatch, soft, hard, wanted):
    found = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: found.append(limits))
    assert tasks.more_descriptors() == (None if wanted is None else soft)
    assert found == ([] if wanted is None else [(wanted, hard)])


def test_the_tasks_of_a_large_job_are_sent_no_input():
    spec = Jobspec.from_command(["true"])
    assert (source_of(spec, None, INPUT_TASKS_MAX), source_of(spec, None, INPUT_TASKS_MAX + 1)) == (None, NOTHING)


async def test_one_task_takes_so_many_writes_in_a_row(shop, monkeypatch):
    monkeypatch.setattr(io, "WRITES_MAX", 2)
    read, write = os.pipe()
    job = JobInput(shop.turns, {0: write})
    taken = []
    monkeypatch.setattr(os, "write", lambda fd, data: taken.append(bytes(data)) or len(data))
    for number in range(5):
        job.send(str(number).encode(), None, eof=False, taken=lambda: None)
    turns = []
    while len(taken) < 5:
        before = len(taken)
        await asyncio.sleep(0)
        turns.append(len(taken) - before)
    assert (taken, max(turns)) == ([b"0", b"1", b"2", b"3", b"4"], 2)
    monkeypatch.undo()
    job.close()
    os.close(read)


async def test_input_is_sent_by_the_numbers_of_tasks_whatever_these_are(shop):
    pipes = {number: os.pipe() for number in (4, 9, 7)}
    job = JobInput(shop.turns, {number: pipes[number][1] for number in (4, 9)})
    job.send(b"nine\n", Idset.parse("9"), eof=True, taken=lambda: None)
    job.add({7: pipes[7][1]})
    with pytest.raises(Refused, match="the input of task 5,9 has ended"):
        job.send(b"x", Idset.parse("4-5,9"), eof=False, taken=lambda: None)
    job.send(b"all\n", None, eof=True, taken=lambda: None)
    read = dict.fromkeys(pipes, b"")
    for number, (fd, _) in pipes.items():
        while data := await asyncio.to_thread(os.read, fd, 100):
            read[number] += data
    assert read == {4: b"all\n", 7: b"all\n", 9: b"nine\n"}
    job.close()
    for fd, _ in pipes.values():
        os.close(fd)


@pytest.mark.plain_only("replaces a method of Turns")
async def test_the_dead_are_looked_for_less_and_less_often(shop, monkeypatch):
    monkeypatch.setattr(local, "LOOK_MAX_S", 2.5 * LOOK_S)
    delays = []
    survives = iter([True] * 4 + [False])
    monkeypatch.setattr(shop.executor, "_survives", lambda run, group: next(survives))
    after = shop.turns.after
    monkeypatch.setattr(shop.turns, "after", lambda delay_s, call: delays.append(delay_s) or after(0.0, call))
    await shop.run("exit 0")
    assert delays == [LOOK_S, 2 * LOOK_S, 2.5 * LOOK_S, 2.5 * LOOK_S]


def test_a_note_names_so_many_processes():
    pids = list(range(1, cleanup.PIDS_NAMED_MAX + 1))
    listed = ", ".join(map(str, pids))
    assert cleanup._named(pids) == f"{len(pids)} processes ({listed})"
    assert cleanup._named([*pids, 99]) == f"{len(pids) + 1} processes ({listed}, ...)"


# A job's temporary directory: its own, of mode 0700, gone with it, and nothing else gone.


@pytest.fixture
def scratch(shop, tmp_path):
    shop.scratch = tmp_path / "scratch"
    shop.scratch.mkdir(mode=0o700)
    return shop.scratch


async def test_a_job_has_a_tmpdir_that_goes_with_it(shop, scratch):
    assert await shop.run("echo $TMPDIR $FLUX_JOB_TMPDIR; stat -c %a $TMPDIR; mktemp; echo x >$TMPDIR/file") == 0
    own, mode, made = shop.text().splitlines()
    assert own == f"{scratch}/f2 {scratch}/f2"
    assert mode == "700"
    assert made.startswith(f"{scratch}/f2/")
    assert os.listdir(scratch) == []


async def test_what_is_linked_from_it_stays(shop, scratch, tmp_path):
    kept = tmp_path / "kept"
    (kept / "inside").mkdir(parents=True)
    script = f"cd $TMPDIR; ln -s {kept} link; mkdir -p a/b; ln -s {kept} a/b/link; touch a/b/c; chmod 0 a/b; chmod 0 a"
    before = os.listdir("/proc/self/fd")
    assert await shop.run(script) == 0
    await shop.until(lambda: os.listdir("/proc/self/fd") == before)
    assert os.listdir(scratch) == []
    assert list(kept.iterdir()) == [kept / "inside"]


@pytest.mark.parametrize("more", [0, 1])
async def test_few_files_are_removed_at_once_and_many_by_a_process(shop, scratch, monkeypatch, more):
    meanwhile = []
    monkeypatch.setattr(layout, "_remove_in_background", meanwhile.append)
    count = layout.INLINE_MAX + more
    assert await shop.run(f"cd $TMPDIR; for n in $(seq {count}); do : > $n; done") == 0
    assert meanwhile == [f"{scratch}/f2"] * more
    assert os.listdir(scratch) == ["f2"] * more


async def test_a_tmpdir_that_is_a_link_by_now_is_only_unlinked(shop, scratch, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").touch()
    before = os.listdir("/proc/self/fd")
    assert await shop.run(f"rmdir $TMPDIR; ln -s {kept} $TMPDIR") == 0
    await shop.until(lambda: os.listdir("/proc/self/fd") == before)
    assert os.listdir(scratch) == []
    assert (kept / "file").exists()


async def test_a_job_that_cannot_start_leaves_none(shop, scratch):
    with pytest.raises(Refused):
        shop.start("true", cwd="/nowhere")
    assert os.listdir(scratch) == []


def test_what_the_job_wants_for_tmpdir_wins_unless_it_is_inherited():
    both = {"FLUX_JOB_TMPDIR": "/own", "TMPDIR": "/own"}
    assert layout.variables("/own", {}) == both
    assert layout.variables("/own", {"TMPDIR": tempfile.gettempdir()}) == both
    assert layout.variables("/own", {"TMPDIR": "/submitter", "FLUX_JOB_TMPDIR": "/submitter"}) == both
    assert layout.variables("/own", {"TMPDIR": "/wanted"}) == {"FLUX_JOB_TMPDIR": "/own"}


def test_a_scratch_directory_inside_a_job_is_not_in_that_of_the_job(tmp_path, monkeypatch):
    """Else it would go with the job, and paths of sockets would be too long after some levels."""
    monkeypatch.setenv("FLUXSCHED_TMPDIR", str(tmp_path))
    path, owner = cleanup.scratch_directory()
    os.close(owner)
    assert path.parent == tmp_path


def test_a_scratch_directory_that_a_cleaner_took_is_made_anew_and_one_of_others_is_not_used(tmp_path):
    scratch = tmp_path / "scratch"
    assert stat.S_IMODE(os.stat(layout.make(scratch, 1)).st_mode) == 0o700
    scratch.chmod(0o777)
    with pytest.raises(Refused, match="cannot make the job's temporary directory"):
        layout.make(scratch, 2)


# Tasks of real jobs and their PMI server: who gets one, what goes over it, and what ends a job.


CLIENT = [sys.executable, "-S", str(Path(__file__).with_name("pmi_client.py"))]
SAY = 'echo "${PMI_FD-none} ${PMI_RANK-none} ${PMI_SIZE-none} $([ -S /proc/self/fd/30 ] && echo socket)"'


async def test_four_ranks_exchange_what_they_put(shop):
    assert await shop.run([*CLIENT, "exchange"], ntasks=4, ranks=2) == 0
    cards = " ".join(f"of={rank}" for rank in range(4))
    assert shop.lines() == [f"{rank} {cards} (vector,(0,2,2))" for rank in range(4)]


async def test_tasks_of_a_job_of_several_have_a_server_and_only_their_own_end(
    shop,
):
    stale = {"PMI_RANK": "7", "PMI_FD": "3", "PMI_PORT": "h:1", "PMIX_NAMESPACE": "n", "PATH": os.environ["PATH"]}
    assert await shop.run(f"{SAY}; echo ${{PMI_PORT-no}} ${{PMIX_NAMESPACE-no}}; ls /proc/self/fd | wc -l",
                          ntasks=2, environment=stale) == 0  # fmt: skip
    assert shop.lines() == sorted([f"{PMI_FD} 0 2 socket", f"{PMI_FD} 1 2 socket", "no no", "no no", "5", "5"])


async def test_a_job_of_one_task_and_one_with_pmi_off_have_none(shop):
    stale = {"PMI_RANK": "7", "PMI_FD": "3", "PATH": os.environ["PATH"]}
    assert await shop.run(SAY, environment=stale) == 0
    assert shop.text() == "none none none \n"
    shop.start(SAY, jobid=2, ntasks=2, pmi=False)
    await shop.finished(2)
    assert set(shop.lines(jobid=2)) == {"none none none "}
    shop.start(SAY, jobid=3, pmi=True)
    await shop.finished(3)
    assert shop.text(jobid=3) == f"{PMI_FD} 0 1 socket\n"


@pytest.mark.parametrize(
    ("what", "note"),
    [
        ("die", "task 1 (killed by SIGSEGV) left the MPI program without MPI_Finalize"),
        ("abort", "task 1 called MPI_Abort with exit code 5"),
        ("flood", "task 1 left the MPI program without MPI_Finalize"),
        ("deaf", "task 1 left the MPI program without MPI_Finalize"),
    ],
)
async def test_a_program_that_cannot_go_on_ends_its_job(shop, what, note):
    shop.start([*CLIENT, what], ntasks=3)
    await shop.until(lambda: len(shop.said) > 1)
    (raised,) = shop.said[1:]
    assert raised[:3] == ("raised", 1, "exec")
    how = re.compile(r" \((exited 1|killed by SIGSEGV)\)")
    assert how.sub("", raised[3]) == how.sub("", note), "how a client has ended may be known before we look, or not"
    shop.executor.kill(1, signal.SIGKILL)
    await shop.until(lambda: shop.said[-1][0] == "finished")


async def test_tasks_that_are_told_to_end_fail_nothing(shop):
    shop.start([*CLIENT, "wait"], ntasks=2)
    await shop.until(lambda: shop.lines() == ["0 is here", "1 is here"])
    shop.executor.kill(1, signal.SIGTERM)
    assert await shop.finished() == signal.SIGTERM
