"""`fluxsched run` and what a task finds when it runs: output, exit status, environment, cores, files, signals."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("command", "status", "reason"),
    [
        (["true"], 0, ""),
        (["sh", "-c", "exit 3"], 3, "exit code 3"),
        (["no-such-command"], 127, "exit code 127"),
        (["/etc/passwd"], 126, "exit code 126"),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM, "ended by signal 15"),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL, "ended by signal 9"),
    ],
)
def test_the_exit_status_is_the_jobs_as_in_a_shell(site: Any, command: list[str], status: int, reason: str) -> None:
    found = site.process("run", *command, status=status)
    last = found.err.splitlines()[-1] if found.err else ""
    assert last.startswith("fluxsched: run: ƒ") if reason else last == ""
    assert last.endswith(reason)


def test_what_cannot_be_found_is_named_on_stderr(site: Any) -> None:
    assert "no-such-command: command not found" in site("run", "no-such-command", status=127).err
    assert "fluxsched: /etc/passwd: permission denied" in site("run", "/etc/passwd", status=126).err


def test_the_highest_status_of_the_tasks_counts_and_stdout_and_stderr_stay_apart(site: Any) -> None:
    found = site("run", "-n3", "sh", "-c", "echo out; echo err >&2; exit $FLUX_TASK_RANK", status=2)
    assert found.out == "out\n" * 3
    assert found.err.splitlines()[:3] == ["err"] * 3


def test_output_comes_as_it_is_written_byte_for_byte(site: Any) -> None:
    with site.popen("run", "sh", "-c", r"printf 'now\n'; sleep 600; printf later", text=False) as process:
        assert select.select([process.stdout], [], [], 60.0)[0], "it came before the job ended"
        assert process.stdout.readline() == b"now\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    with site.popen("run", "sh", "-c", r"printf '\377\000'; yes x | head -c 1000000", text=False) as process:
        out, _ = process.communicate(timeout=60)
    assert out == b"\377\000" + b"x\n" * 500_000


def test_interrupting_run_cancels_the_job(site: Any) -> None:
    with site.popen("run", "sh", "-c", "echo up; exec sleep 100") as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    newest = site("jobs", "-a", "-c1", "-n", "-o", "{id.f58}").word
    site("wait", newest, status=128 + signal.SIGTERM)
    assert site.info(newest)["exception"] == {
        "type": "cancel", "severity": 0, "note": "interrupted by user", "userid": os.getuid()
    }  # fmt: skip


def test_tasks_know_who_they_are(site: Any) -> None:
    names = "FLUX_TASK_RANK FLUX_TASK_LOCAL_ID FLUX_JOB_SIZE FLUX_JOB_NNODES CUDA_VISIBLE_DEVICES"
    found = site("run", "-N2", "-n4", "sh", "-c", f"echo {' '.join('$' + name for name in names.split())}")
    assert sorted(found.out.splitlines()) == ["0 0 4 2 -1", "1 1 4 2 -1", "2 0 4 2 -1", "3 1 4 2 -1"]


def test_a_job_finds_its_own_instance_and_its_own_id(site: Any) -> None:
    found = site("run", "sh", "-c", "fluxsched jobs -n -o '{id.f58} {state}' $FLUX_JOB_ID; echo $FLUX_JOB_ID")
    line, jobid = found.out.splitlines()
    assert line == f"{jobid} RUN"


def test_environment_and_directory_are_the_submitters(site: Any, tmp_path: Path) -> None:
    site.environ["K2_ONE"] = "1"
    words = ("--env", "K2_TWO=a b", "--env=-K2_ONE", "--cwd", tmp_path)
    found = site("run", *words, "sh", "-c", 'echo "${K2_ONE-none} $K2_TWO"; pwd')
    assert found.out == f"none a b\n{tmp_path}\n"
    assert site("run", "sh", "-c", "echo $K2_ONE; pwd").out == f"1\n{site.directory}\n"
    found = site("run", "--cwd", "/no/such/place", "true", status=1)
    assert found.err.endswith("the job's working directory '/no/such/place' does not exist (or is not a directory)\n")


def test_labels_and_files(site: Any, tmp_path: Path) -> None:
    found = site("run", "-l", "sh", "-c", "printf 'one\ntwo'")
    assert found.out == "0: one\n0: two\n"
    found = site("run", "-l", "-N2", "-n4", "sh", "-c", "echo $FLUX_TASK_RANK; echo oh $FLUX_TASK_RANK >&2")
    assert sorted(found.out.splitlines()) == [f"{task}: {task}" for task in range(4)]
    assert sorted(found.err.splitlines()) == [f"{task}: oh {task}" for task in range(4)]
    newest = site("jobs", "-a", "-c1", "-n", "-o", "{id.f58}").word
    assert sorted(site("job", "attach", "-l", newest).out.splitlines()) == [f"{task}: {task}" for task in range(4)]
    jobid = site.submit("--output", tmp_path / "{{id}}.out", "--error", tmp_path / "err", "-n2", "sh", "-c",
                        "echo task $FLUX_TASK_RANK; echo oh >&2")  # fmt: skip
    site("wait", jobid)
    assert sorted((tmp_path / f"{jobid}.out").read_text().splitlines()) == ["task 0", "task 1"]
    assert (tmp_path / "err").read_text() == "oh\noh\n"
    files = f"{jobid} writes its output to {tmp_path}/{jobid}.out and its errors to {tmp_path}/err"
    for verb in ("attach", "output"):
        assert site("job", verb, jobid).err == f"fluxsched: job {verb}: {files}\n"
    (tmp_path / "{{id}}").mkdir()
    jobid = site.submit("--cwd", tmp_path / "{{id}}", "--output", "out", "true")
    site("wait", jobid)
    assert site("job", "output", jobid).err.endswith(f" writes its output to {tmp_path}/{{{{id}}}}/out\n")
    after = ("--dependency", f"afterany:{jobid}")  # a job that might make the directory: it is not looked for before
    found = site("run", *after, "--output", "/no/such/place/out", "true", status=1)
    assert found.err.endswith("cannot open '/no/such/place/out' for the job's output: No such file or directory\n")


def test_attach_and_output_show_a_job_that_was_submitted(site: Any) -> None:
    jobid = site.submit("sh", "-c", "echo out; echo err >&2; exit 4")
    found = site("job", "attach", jobid, status=4)
    assert (found.out, found.err.splitlines()[0]) == ("out\n", "err")
    assert found.err.splitlines()[1] == f"fluxsched: job attach: {jobid}: exit code 4"
    assert site("job", "output", jobid).out == "out\n"
    running = site.submit("sh", "-c", "echo up; exec sleep 100")
    with site.popen("job", "attach", running) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert err.strip() == f"detached: {running} continues"
    assert site.info(running)["state"] == "RUN"
    site("cancel", running)


@pytest.mark.slow
def test_who_waits_at_a_terminal_is_told_why(daemon: Any) -> None:
    here = daemon("--fake", "1x1", "--scheduler", "none")
    terminal, stderr = pty.openpty()
    begin_s = time.monotonic()
    with here.popen("run", "echo", "done", stderr=stderr) as process, here.popen("run", "echo", "done") as silent:
        os.close(stderr)
        line = os.read(terminal, 4096).decode()
        assert time.monotonic() - begin_s >= 2
        assert line.startswith("fluxsched: run: ƒ")
        assert line.endswith(": waiting: no scheduler serves group default\r\n")
        assert here("jobs", "-n", "-o", "{contextual_info}").out == "no scheduler serves group default\n" * 2
        here("module", "load", "fifo")
        assert (process.communicate(timeout=60)[0], silent.communicate(timeout=60)) == ("done\n", ("done\n", ""))
    with pytest.raises(OSError, match="Input/output error"):  # nobody has said more
        os.read(terminal, 4096)
    os.close(terminal)


def test_nothing_of_a_job_outlives_it(site: Any) -> None:
    site("run", "sh", "-c", "sleep 654 & sleep 654 & exit 0")
    assert subprocess.run(["pgrep", "-fx", "sleep 654"], capture_output=True).stdout == b""


def test_cores_and_gpus_of_a_discovered_machine(user: Any, tmp_path: Path) -> None:
    """Tasks are bound to the cores that they were given: two jobs at a time are never on the same ones."""
    script = tmp_path / "script"
    look = "python3 -c 'import os; print(*os.sched_getaffinity(0))'"
    script.write_text(f"a=$(fluxsched submit sh -c \"{look}; sleep 100\")\nfluxsched run sh -c \"{look}\"\n"
                      "until fluxsched job output $a | grep .; do sleep .1; done; fluxsched resource info")  # fmt: skip
    found = user.process("start", "--", "sh", script).out.splitlines()
    mine = os.sched_getaffinity(0)
    if len(mine) == 1:
        pytest.skip("one core: nothing to keep apart")
    one, other = (set(map(int, line.split())) for line in found[:2])
    assert one
    assert other
    assert one | other <= mine
    assert one.isdisjoint(other)
    assert found[2].startswith(f"1 Node, {len(mine)} Cores") or "Core" in found[2]


def test_gpus_are_shown_to_those_who_were_given_them(user: Any) -> None:
    found = user.shell("fluxsched run -g2 sh -c 'echo $CUDA_VISIBLE_DEVICES'; fluxsched run -n2 -g1 sh -c "
                       "'echo $CUDA_VISIBLE_DEVICES'", "--fake", "1x4+2")  # fmt: skip
    assert found.out.splitlines() == ["0,1", "0,1", "0,1"]


def test_output_has_a_file_a_task_or_a_node_where_its_tags_say_so(site: Any, tmp_path: Path) -> None:
    say = ["sh", "-c", "echo out $FLUX_TASK_RANK; echo err $FLUX_TASK_RANK >&2"]
    files = ("--output", tmp_path / "{{name}}.{{taskid}}", "--error", tmp_path / "{{node.id}}.err")
    found = site("run", "-N2", "-n4", *files, *say)
    assert (found.out, found.err) == ("", "")
    assert [(tmp_path / f"sh.{task}").read_text() for task in range(4)] == [f"out {task}\n" for task in range(4)]
    assert [sorted((tmp_path / f"{node}.err").read_text().split("\n")) for node in range(2)] == [
        ["", "err 0", "err 1"], ["", "err 2", "err 3"]
    ]  # fmt: skip
    site("run", "-n2", "--output", tmp_path / "both.{{task.id}}", *say)
    assert (tmp_path / "both.1").read_text() == "out 1\nerr 1\n"
    found = site("run", "--output", "/no/such/{{taskid}}", "true", status=1)
    assert "--output: there is no directory /no/such: make it first" in found.err
    found = site("submit", "--output", "x.{{jobname}}", "true", status=1)
    assert "output 'x.{{jobname}}': unknown tag {{jobname}}: known are id, jobid, name" in found.err


def test_tags_in_the_environment_are_filled_in_for_each_task(site: Any) -> None:
    rules = ("--env=D={{tmpdir}}/x", "--env=T={{name}}-{{taskid}}-{{nobody}}", "--env=FLUX_JOB_ID={{taskid}}")
    echo = '[ "$D" = "$TMPDIR/x" ] && echo $T $FLUX_JOB_ID >&2'
    done = site.process("run", "-n2", "--job-name=mine", *rules, "sh", "-c", echo)
    first, second = sorted(line.split() for line in done.err.splitlines())
    assert (first[0], second[0]) == ("mine-0-{{nobody}}", "mine-1-{{nobody}}")
    assert first[1] == second[1] != "0"


def test_a_hostfile_has_the_host_of_each_task(site: Any) -> None:
    (host,) = site("run", "--env=H={{node.name}}", "printenv", "H").out.split()
    found = site("run", "-n2", "--env=H={{hostfile}}", "sh", "-c", 'test $FLUX_TASK_RANK = 0 || cat "$H"').out
    assert found.split() == [host, host]


def test_a_name_that_is_too_long_is_refused_by_the_instance(site: Any) -> None:
    done = site.process("submit", f"--job-name={'x' * 100_000}", "true", status=1)
    assert "the job's name has 100000 characters, limit 1024: shorten it" in done.err
