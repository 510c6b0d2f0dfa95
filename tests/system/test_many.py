"""Many jobs by a few words: arrays and templates, and what is done to all that options select."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

QUICK = ("--setattr", "exec.test.run_duration=1ms")


@pytest.fixture(autouse=True)
def _leave_nothing_behind(site: Any) -> Iterator[None]:
    yield
    site("cancel", "--all")
    site("wait", "--all", status=None)


def ids(site: Any, *words: str) -> list[str]:
    """Jobs by `fluxsched jobs`, oldest first."""
    found: list[str] = site("jobs", "-n", "-o", "{id.f58}", "--sort=id", *words).out.split()
    return found


def test_an_array_of_a_thousand_jobs_is_submitted_and_waited_for_as_one(site: Any) -> None:
    done = site.process("submit", "--cc=1-1000", *QUICK, "sh", "-c", "exit {cc}")
    made = done.out.split()
    assert len(set(made)) == 1000
    assert site.process("wait", "--array", made[0]).err == ""
    found = site("jobs", "-a", "--array", made[0], "--json").json["jobs"]
    assert {(job["result"], job["command"][2][:5]) for job in found} == {("COMPLETED", "exit ")}
    assert len({job["command"][2] for job in found}) == 1000
    assert len({job["array"] for job in found}) == 1


def test_each_task_knows_its_copy_and_its_output_is_shown(site: Any) -> None:
    program = ("sh", "-c", "echo $FLUX_JOB_CC; exit {cc}")
    done = site.process("submit", "--cc=3-5", "--watch", "--quiet", *program, status=5)
    assert sorted(done.out.split()) == ["3", "4", "5"]
    assert sorted(line.split(": ")[-1] for line in done.err.splitlines()) == [f"exit code {code}" for code in (3, 4, 5)]


def test_bulksubmit_reads_its_inputs_and_says_what_it_will_do(site: Any) -> None:
    made = ("bulksubmit", "-n{}", "--job-name=width-{}", "--watch", "--quiet", "sh", "-c", "echo {} $FLUX_TASK_RANK")
    done = site.process(*made, ":::", "1", "2")
    assert sorted(done.out.splitlines()) == ["1 0", "2 0", "2 1"]
    done = site.process("bulksubmit", "-n{}", "true", ":::", "1", "x", status=2)
    assert (done.out, "input 2 ('x')" in done.err) == ("", True)


def test_no_more_requests_are_under_way_than_the_window_has_room_for(site: Any) -> None:
    asked = 0

    def requests() -> Iterator[dict[str, Any]]:
        nonlocal asked
        for _ in range(50):
            asked += 1
            yield {"name": "nope"} if asked == 7 else {}

    answers = []
    with site.connect() as handle:
        for answer in handle.rpc_each("job-manager.queue-status", requests(), window=8):
            answers.append(answer)
            assert asked - len(answers) < 8
    assert len(answers) == 50
    assert [at for at, answer in enumerate(answers) if isinstance(answer, Exception)] == [6]


def test_jobs_are_held_signalled_and_canceled_by_what_they_are(site: Any) -> None:
    running = site.running("--job-name=train-1", "sleep", "100")
    site("submit", "--cc=1-3", "--urgency=hold", "--job-name=train-{cc}-held", "true")
    site("submit", "--urgency=hold", "--job-name=other", "true")
    assert site("cancel", "--name", "train-*", "-n").out.splitlines()[-1] == "would cancel 4 jobs"
    assert site("urgency", "--name", "train-?-held", "1").out == "changed the urgency of 3 jobs\n"
    site("wait", "--name", "train-?-held")
    assert site("kill", "--filter", "running", "--name", "train-1", "-s", "KILL").out == "signaled 1 job\n"
    assert site("wait", f"{running}..{running}", status=137).err.endswith("ended by signal 9\n")
    none = site("cancel", "--name", "train-*", status=1)
    assert (none.out, none.err) == ("", "fluxsched: cancel: no active job matches --name\n")
    assert site("cancel", "--user", "root", "--queue", "none", status=1).err.endswith("matches --user, --queue\n")
    [other] = ids(site)
    assert site("cancel", f"{other}..{other}", "-m", "enough").out == "canceled 1 job\n"
    ended = json.loads(site("wait", "--json", "--name", "other", "-f", "canceled", status=1).out)
    assert (ended["exception_type"], ended["exception_note"]) == ("cancel", "enough")


def test_wait_for_many_names_each_failure_and_leaves_with_the_highest_status(site: Any) -> None:
    first = site.process("submit", "--cc=0-2", "sh", "-c", "exit {cc}").line
    done = site.process("wait", "--array", first, status=2)
    assert sorted(line.split(": ")[-1] for line in done.err.splitlines()) == ["exit code 1", "exit code 2"]
    assert site.process("wait", "-v", "--array", first, status=2).out == f"{first}: completed\n"


@contextmanager
def ended_late(process: Any) -> Iterator[None]:
    """A process whose output is waited for is killed if nothing comes."""
    timer = threading.Timer(20, process.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def test_jobs_watch_prints_a_line_for_each_change_and_ends_with_the_jobs_that_were_named(site: Any) -> None:
    jobid = site.submit("--urgency=hold", "--job-name=watched", "true")
    words = ("jobs", "--watch", "-o", "{id.f58} {name} {status} {urgency}")
    with site.popen(*words, jobid) as process, ended_late(process):
        assert [process.stdout.readline() for _ in range(2)] == [
            "JOBID    NAME    STATUS URG\n".replace("JOBID    ", "JOBID".ljust(len(jobid) + 1)),
            f"{jobid} watched SCHED  0\n",
        ]
        site("urgency", jobid, "20")
        rest, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert rest.splitlines()[-1].split() == [jobid, "watched", "COMPLETED", "20"]
    for name in ("other", "w-1"):
        site.submit("--urgency=hold", f"--job-name={name}", "true")
    with site.popen("jobs", "--watch", "--json", "--name", "w-*") as process, ended_late(process):
        seen = [json.loads(process.stdout.readline())]
        site("urgency", "default", "--name", "other")
        site("urgency", "default", "--name", "w-1")
        while seen[-1]["state"] != "INACTIVE":
            seen.append(json.loads(process.stdout.readline()))
        process.terminate()
    assert {job["name"] for job in seen} == {"w-1"}


def test_jobs_watch_draws_at_a_terminal_until_q_and_leaves_it_as_it_was(site: Any) -> None:
    for key, status in ((b"q", 0), (b"\x03", 0)):
        ours, theirs = pty.openpty()
        before = termios.tcgetattr(theirs)
        process = site.popen("jobs", "--watch", stdin=theirs, stdout=theirs, start_new_session=True,
                             preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))  # fmt: skip
        shown = _until(ours, b"q ends this")
        name = f"seen-{key[0]}"
        jobid = site.submit("--urgency=hold", f"--job-name={name}", "true")
        shown += _until(ours, name.encode())
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 40, 0, 0))
        os.write(ours, key)
        assert process.wait(20) == status
        shown += _until(ours, b"\x1b[?1049l")
        assert shown.startswith(b"\x1b[?1049h")
        assert termios.tcgetattr(theirs) == before
        site("cancel", jobid)
        process.communicate()
        os.close(ours)
        os.close(theirs)


def test_jobs_watch_that_is_suspended_gives_the_terminal_back_and_takes_it_again(site: Any) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    process = site.popen("jobs", "--watch", stdin=theirs, stdout=theirs, process_group=0)
    try:
        shown = _until(ours, b"q ends this")
        for _ in range(2):
            process.send_signal(signal.SIGTSTP)
            assert os.WIFSTOPPED(os.waitpid(process.pid, os.WUNTRACED)[1])
            assert _until(ours, b"\x1b[?1049l").endswith(b"\x1b[?1049l")
            assert termios.tcgetattr(theirs) == before
            process.send_signal(signal.SIGCONT)
            shown = _until(ours, b"q ends this")
            assert b"\x1b[?1049h" in shown
        os.write(ours, b"q")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(ours)
        os.close(theirs)


def _until(fd: int, text: bytes) -> bytes:
    """What is written to the terminal, to this text."""
    found = b""
    while text not in found:
        assert select.select([fd], [], [], 20)[0], found
        found += os.read(fd, 65536)
    return found


def test_a_job_set_is_listed_held_and_canceled_by_its_name(site: Any) -> None:
    one, two = (site.submit("--set", "sweep 7", "--urgency", "hold", "true") for _ in range(2))
    other = site.submit("--set", "sweep 8", "--urgency", "hold", "true")
    listed = site("jobs", "-n", "--set", "sweep 7", "-o", "{id.f58} {job_set}").out.splitlines()
    assert [line.split(maxsplit=1) for line in listed] == [[two, "sweep 7"], [one, "sweep 7"]]
    assert site("urgency", "--set", "sweep 8", "expedite").out == "changed the urgency of 1 job\n"
    site("wait", other)
    assert site("cancel", "--set", "sweep 7").out == "canceled 2 jobs\n"
    assert site.info(one)["result"] == "CANCELED"
    done = site("cancel", "--set", "sweep 7", "-u", "root" if os.getuid() else "nobody", status=1)
    assert done.err == "fluxsched: cancel: no active job matches --user, --set\n"
