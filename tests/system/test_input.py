"""What tasks read: a file, or what is piped into `run` and `job attach`, with real processes at both ends."""

from __future__ import annotations

import os
import pty
import subprocess
from pathlib import Path
from typing import Any

import pytest

PIPE = subprocess.PIPE
BINARY = bytes(range(256)) * 4096
"""1 MiB: more than a pipe takes."""


def feed(user: Any, data: bytes, *words: object, status: int = 0) -> bytes:
    """What `fluxsched WORDS...` prints when `data` is piped into it."""
    with user.popen(*words, text=False, stdin=PIPE) as process:
        out, err = process.communicate(data, timeout=60)
    assert process.returncode == status, (out, err)
    assert not err, err
    return bytes(out)


def test_what_is_piped_into_run_goes_to_its_task_byte_for_byte(site: Any) -> None:
    assert feed(site, BINARY, "run", "cat") == BINARY
    assert feed(site, b"", "run", "cat") == b""


def test_all_tasks_get_all_of_it(site: Any) -> None:
    found = feed(site, b"one\ntwo\n", "run", "-n3", "-l", "cat").decode()
    assert sorted(found.splitlines()) == [f"{task}: {word}" for task in range(3) for word in ("one", "two")]


def test_a_task_that_stops_reading_is_no_fault(site: Any) -> None:
    assert feed(site, BINARY, "run", "head", "-c3") == BINARY[:3]
    assert feed(site, BINARY, "run", "sh", "-c", "exec <&-; echo closed; sleep 0.2") == b"closed\n"


def test_the_job_may_end_while_more_comes(site: Any) -> None:
    with subprocess.Popen(["yes"], stdout=PIPE) as endless:
        with site.popen("run", "head", "-n1", stdin=endless.stdout) as process:
            endless.stdout.close()
            assert process.communicate(timeout=60) == ("y\n", "")
        assert process.returncode == 0


def test_a_task_that_does_not_read_holds_its_sender_back(site: Any, until: Any, tmp_path: Path) -> None:
    """And nobody else: the instance answers, and goes on when the task does."""
    gate = tmp_path / "gate"
    source, sink = os.pipe()
    with site.popen(
        "run", "sh", "-c", f"until [ -e {gate} ]; do sleep 0.02; done; exec wc -c", stdin=source
    ) as process:
        os.close(source)
        os.set_blocking(sink, False)
        sent = [0]

        def is_full() -> bool:
            """Nothing more has gone in for a while."""
            before = sent[0]
            try:
                while True:
                    sent[0] += os.write(sink, bytes(65536))
            except BlockingIOError:
                return sent[0] == before and sent[0] > 1 << 20
            finally:
                assert site("run", "echo", "free").out == "free\n"

        until(is_full)
        assert sent[0] < 8 << 20
        os.close(sink)
        gate.touch()
        assert process.communicate(timeout=60)[0].split() == [str(sent[0])]


def test_attach_forwards_to_a_job_of_submit_unless_it_shall_only_read(site: Any) -> None:
    jobid = site.submit("cat")
    with site.popen("job", "attach", "--read-only", jobid) as watcher:
        assert feed(site, b"sent\n", "job", "attach", jobid) == b"sent\n"
        assert watcher.communicate(timeout=60)[0] == "sent\n"


def test_two_attached_clients_send_until_one_of_them_ends(site: Any) -> None:
    jobid = site.running("sed", "-u", "s/^/got /")
    with site.popen("job", "attach", jobid, stdin=PIPE, bufsize=1) as first:
        first.stdin.write("one\n")
        first.stdin.flush()
        assert first.stdout.readline() == "got one\n"
        assert feed(site, b"two\n", "job", "attach", jobid) == b"got one\ngot two\n"
        assert first.communicate(timeout=60) == ("got two\n", "")


def test_a_killed_client_takes_nothing_along(site: Any, until: Any) -> None:
    with site.real().popen("run", "--job-name", "left", "cat", stdin=PIPE, bufsize=1) as process:
        process.stdin.write("before\n")
        process.stdin.flush()
        assert process.stdout.readline() == "before\n"
        process.kill()
    [jobid] = [line.split()[0] for line in site("jobs", "-n", "-o", "{id} {name}").out.splitlines() if "left" in line]
    assert feed(site, b"after\n", "job", "attach", jobid) == b"before\nafter\n"


def test_input_may_come_before_the_job_starts(daemon: Any) -> None:
    user = daemon("--fake", "1x1")
    blocker = user.running("sleep", "100")
    with user.popen("run", "cat", stdin=PIPE) as process:
        process.stdin.write("early\n")
        process.stdin.close()
        process.stdin = None
        user("cancel", blocker)
        assert process.communicate(timeout=60) == ("early\n", "")
    assert user("cancel", user.submit("--urgency", "hold", "cat")).err == ""


def test_files_are_read_by_all_tasks_from_their_start(site: Any, tmp_path: Path) -> None:
    (tmp_path / "in.0").write_text("zero\n")
    found = feed(site, b"unread", "run", "-n2", "-l", "--cwd", tmp_path, "--input", "in.0", "cat")
    assert sorted(found.split(b"\n")) == [b"", b"0: zero", b"1: zero"]
    assert site("submit", "--quiet", "--wait", "--cc", "0", "--input", tmp_path / "in.{cc}", "grep", "zero").out == ""
    os.mkfifo(tmp_path / "fifo")
    with site.popen("run", "--input", tmp_path / "fifo", "cat") as process:
        (tmp_path / "fifo").write_text("through a fifo")
        assert process.communicate(timeout=60)[0] == "through a fifo"


@pytest.mark.parametrize(("path", "reason"), [("none", "No such file or directory"), (".", "Is a directory")])
def test_a_file_that_cannot_be_read_fails_the_job(site: Any, tmp_path: Path, path: str, reason: str) -> None:
    done = site("run", "--input", tmp_path / path, "cat", status=1)
    assert f"for the job's input: {reason}" in done.err


def test_who_sends_what_is_not_read_is_told(site: Any) -> None:
    jobid = site.submit("--urgency", "hold", "--input", "/dev/null", "true")
    with site.popen("job", "attach", jobid, stdin=PIPE) as process:
        process.stdin.write("words")
        process.stdin.close()
        why = f"input is not forwarded: the tasks of job {jobid} read /dev/null"
        assert process.stderr.readline() == f"fluxsched: job attach: {jobid}: {why}\n"
        site("urgency", jobid, "default")
    assert process.returncode == 0
    jobid = site.running("--input", "/dev/null", "sleep", "0.3")
    assert feed(site, b"", "job", "attach", jobid) == b""


def test_a_terminal_counts_only_where_it_is_asked_for(site: Any) -> None:
    main, terminal = pty.openpty()
    assert site.process("run", "cat", stdin=terminal).out == ""
    with site.popen("run", "--input=-", "cat", stdin=terminal) as process:
        os.write(main, b"typed\n\x04")
        assert process.communicate(timeout=60)[0] == "typed\n"
    os.close(main)
    os.close(terminal)
    assert "use run" in site("submit", "--input=-", "cat", status=2).err


def test_tasks_beyond_the_usual_number_of_descriptors_run_and_keep_their_limit(user: Any) -> None:
    inner = "fluxsched run -n 120 sh -c 'ulimit -Sn' | uniq -c; echo no | fluxsched run -n 257 true"
    script = f'ulimit -Sn 100; exec fluxsched start --fake 1x300 -- sh -c "{inner}"'
    done = subprocess.run(
        ["sh", "-c", script], env=user.environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["120", "100"], done.stderr
    assert "the job has 257 tasks, and at most 256 are sent input: give a file (--input)" in done.stderr
