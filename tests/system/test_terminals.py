"""Terminals: `run --pty` and `job attach`, where a task has that of the user, and tables that are drawn anew."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import termios
import time
from typing import Any

import pytest

from fluxsched.cli.attach import PIECE_BYTES
from fluxsched.core.jobfields import WINDOW_MAX
from tests.prepared.caller import PROGRAM, prepared
from tests.prepared.request import COMMAND

DETACH = "\x1c"


class AtTerminal:
    """A command at a terminal of 33 rows and 77 columns, the leader of its session."""

    def __init__(self, user: Any, *words: str) -> None:
        self.fd, its = pty.openpty()
        termios.tcsetwinsize(its, (33, 77))
        self.before = termios.tcgetattr(self.fd)
        with contextlib.chdir(user.directory):
            fds = dict.fromkeys(range(3), its)
            self.pid = prepared().child(COMMAND, [PROGRAM, *words], fds, user.environment, has_session=True)
        os.close(its)
        self.screen = ""

    def read_until(self, text: str) -> str:
        end_s = time.monotonic() + 60
        while text not in self.screen:
            assert time.monotonic() < end_s, self.screen
            if select.select([self.fd], [], [], 0.1)[0]:
                self.screen += os.read(self.fd, 4096).decode()
        before, self.screen = self.screen.split(text, 1)
        return before

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def end(self) -> int:
        """Wait for the end: the status; the terminal is as it was."""
        while select.select([self.fd], [], [], 20)[0]:
            try:
                self.screen += os.read(self.fd, 4096).decode()
            except OSError:
                break
        _, status = os.waitpid(self.pid, 0)
        assert termios.tcgetattr(self.fd) == self.before
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


def shell_environment(site: Any) -> None:
    site.environ |= {"PS1": "$ ", "ENV": "", "TERM": "dumb"}


@pytest.mark.parametrize("option", ["--pty", "-opty.interactive"])
def test_a_shell_on_the_terminal_of_the_user(site: Any, option: str) -> None:
    """Keys go to the job, Ctrl-C too; it has job control and the size of the window; the terminal is restored."""
    shell_environment(site)
    here = AtTerminal(site, "run", option, "bash", "--norc", "--noprofile", "-i")
    here.read_until("$ ")
    here.type("stty size; echo $((40+2))\r")
    assert "33 77\r\n" in here.read_until("42\r\n")
    here.read_until("$ ")
    termios.tcsetwinsize(here.fd, (40, 100))
    here.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo now $(stty size)\r")
    here.read_until("now 40 100\r\n")
    here.type("sh -c 'echo $((50+2)); exec sleep 100'\r")  # what is interrupted says itself that it is there
    here.read_until("52\r\n")
    here.type("\x03")
    here.read_until("$ ")
    background = f"sleep 200.{os.getpid()}"  # no other run of the tests has it
    here.type(f"{background} &\r")
    here.read_until("[1]")
    here.type("exit 7\r")
    assert here.end() == 7
    assert subprocess.run(["pgrep", "-fx", background], capture_output=True).stdout == b""


def test_a_command_that_is_ended_leaves_the_terminal_as_it_was(site: Any) -> None:
    here = AtTerminal(site, "run", "--pty", "sh", "-c", "stty -echo; echo up; exec cat")
    here.read_until("up\r\n")
    assert termios.tcgetattr(here.fd) != here.before
    os.kill(here.pid, signal.SIGTERM)
    assert here.end() == 128 + signal.SIGTERM
    waiting = AtTerminal(site, "run", "--pty", "--urgency=hold", "--job-name=held", "true")
    waiting.read_until("waiting: ")
    assert termios.tcgetattr(waiting.fd) == waiting.before
    waiting.type("\x03")
    assert waiting.end() == 130
    assert "canceled" in site("jobs", "-a", "--name", "held", "-n", "-o", "{result}").out.lower()


def test_attach_takes_the_terminal_until_the_user_detaches(site: Any) -> None:
    """All keys go to the job and the window is followed, as for `run`; the job goes on and can be attached to again."""
    shell_environment(site)
    jobid = site.submit("-opty", "bash", "--norc", "--noprofile", "-i")
    first = AtTerminal(site, "job", "attach", jobid)
    first.read_until("$ ")
    first.type("until [ \"$(stty size)\" = '33 77' ]; do sleep 0.1; done; echo now $(stty size)\r")
    first.read_until("now 33 77\r\n")
    first.type("echo $((50+2)); sleep 100\r")
    first.read_until("52\r\n")
    first.type("\x03")
    first.read_until("$ ")
    termios.tcsetwinsize(first.fd, (40, 100))
    first.type("until [ \"$(stty size)\" = '40 100' ]; do sleep 0.1; done; echo now $(stty size)\r")
    first.read_until("now 40 100\r\n")
    first.type(f"kept=$((20+1)){DETACH}; exit 8\r")
    assert first.end() == 0
    assert first.screen.endswith(f"\r\ndetached: {jobid} continues: fluxsched job attach {jobid}\r\n")
    again = AtTerminal(site, "job", "attach", jobid)
    again.read_until("52\r\n")
    again.type("; exit $((kept - 14))\r")
    assert again.end() == 7


def test_run_can_be_detached_from_its_job(site: Any) -> None:
    here = AtTerminal(site, "run", "--pty", "--job-name=detached", "sh", "-c", "stty -echo; echo up; exec cat")
    here.read_until("up\r\n")
    here.type(DETACH)
    assert here.end() == 0
    [jobid] = site("jobs", "--name", "detached", "-n", "-o", "{id.f58}").out.split()
    assert site.info(jobid)["state"] == "RUN"
    assert f"fluxsched job attach {jobid}" in here.screen
    site("cancel", jobid)


def test_attach_leaves_the_terminal_as_it_was_however_it_ends(site: Any) -> None:
    jobid = site.running("-opty", "sh", "-c", "stty -echo; echo up; exec cat")
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:  # as nohup has it, which commands leave so
            continue
        here = AtTerminal(site, "job", "attach", jobid)
        here.read_until("up\r\n")
        assert termios.tcgetattr(here.fd) != here.before
        os.kill(here.pid, signum)
        assert here.end() == 128 + signum
        assert f"detached: {jobid} continues\r\n" in here.screen
    gone = AtTerminal(site, "job", "attach", jobid)
    gone.read_until("up\r\n")
    os.close(gone.fd)
    _, status = os.waitpid(gone.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (128 + signal.SIGHUP, 1), "1 if it could not say that it detached"
    assert site.info(jobid)["state"] == "RUN"
    reading = AtTerminal(site, "job", "attach", "--read-only", jobid)
    reading.read_until("up\r")
    assert termios.tcgetattr(reading.fd) == reading.before
    reading.type("\x03")
    assert reading.end() == 130
    ended = AtTerminal(site, "job", "attach", jobid)
    ended.read_until("up\r\n")
    site("cancel", jobid)
    assert ended.end() != 0
    plain = AtTerminal(site, "job", "attach", site.running("sh", "-c", "echo up; exec sleep 100"))
    plain.read_until("up\r\n")
    assert termios.tcgetattr(plain.fd) == plain.before
    plain.type("\x03")
    assert plain.end() == 130


def test_a_job_whose_input_has_ended_can_be_left(site: Any) -> None:
    jobid = site.running("-opty", "sh", "-c", "stty -echo; echo up; exec sleep 100")
    with site.connect() as handle:
        handle.rpc("job-manager.input", {"id": int(site("job", "id", jobid).word), "eof": True})
    here = AtTerminal(site, "job", "attach", jobid)
    here.read_until("up\r\n")
    here.type("key")
    here.read_until("input is not forwarded: ")
    here.type(DETACH)
    assert here.end() == 0
    site("cancel", jobid)


def test_in_the_background_attach_leaves_the_terminal_alone(site: Any) -> None:
    """A background process that changes its terminal is stopped by the system."""
    jobid = site.running("-opty", "sh", "-c", "stty -echo; echo up; read line; echo got $line")
    here = AtTerminal(site, "start", "--fake", "1x1", "--", "sh", "-mc",
                      f"fluxsched job attach --uri {site.uri} {jobid} & wait; echo over")  # fmt: skip
    here.read_until("up\r")
    other = AtTerminal(site, "job", "attach", jobid)
    other.read_until("up\r\n")
    other.type("word\r")
    assert other.end() == 0
    here.read_until("got word\r")
    here.read_until("over\r\n")
    assert here.end() == 0


def test_a_silent_instance_can_be_left_and_a_restarted_one_is_found_again(daemon: Any, until: Any) -> None:
    user = daemon("--fake", "1x1")
    jobid = user.running("-opty", "sh", "-c", "stty -echo raw; echo up; exec cat >/dev/null")
    here, full = AtTerminal(user, "job", "attach", jobid), AtTerminal(user, "job", "attach", jobid)
    for each in (here, full):
        each.read_until("up")
    user("restart")
    for each in (here, full):
        each.read_until("connecting again")
        until(lambda each=each: termios.tcgetattr(each.fd) != each.before)
    pid = user.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        here.type("some keys")
        here.type(DETACH)
        assert here.end() == 0
        os.set_blocking(full.fd, False)
        typed_bytes = [0]

        def is_full() -> bool:
            """Nothing more has gone in for a while."""
            before = typed_bytes[0]
            with contextlib.suppress(BlockingIOError):
                while typed_bytes[0] < 16 * PIECE_BYTES:
                    typed_bytes[0] += os.write(full.fd, b"x" * 4096)
            return typed_bytes[0] == before >= PIECE_BYTES

        until(is_full)
        assert typed_bytes[0] < 16 * PIECE_BYTES
        os.kill(full.pid, signal.SIGTERM)
        assert full.end() == 128 + signal.SIGTERM
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_task_has_a_terminal_where_the_user_has_none(site: Any) -> None:
    """It leads its session, its piped input is typed and ends, and all that it prints is kept."""
    script = "tty; stty size; [ $(ps -o sid= -p $$) -eq $$ ] && echo leads; echo own >/dev/tty; echo err >&2; seq 50000"
    done = site.process("run", "--pty", "sh", "-c", script)
    lines = done.out.split("\r\n")
    assert lines[0].startswith("/dev/pts/")
    assert lines[1:5] == ["24 80", "leads", "own", "err"]
    assert lines[5:-1] == [str(number) for number in range(1, 50001)]
    with site.popen("run", "--pty", "cat", stdin=subprocess.PIPE) as process:
        out, err = process.communicate("a\nb", timeout=60)
        assert (sorted(out), err) == (sorted("a\nb" * 2), ""), "echoed by the terminal, and copied by cat"
    jobid = site.submit("-o", "pty", "tty")
    site("wait", jobid)
    assert site("job", "attach", jobid).out.startswith("/dev/pts/")


def test_terminals_that_cannot_be(site: Any) -> None:
    for words in (("-n2",), ("-N2",), ("-N1-2", "--elastic")):
        said = site("run", "--pty", *words, "true", status=1).err
        assert "a pseudo-terminal is for one task, and the job " in said
        assert "use -n1, or no terminal" in said
    assert "is for one task, and the job has 2" in site("run", "--pty", "-N1-2", "true", status=1).err
    for option in ("--output", "--error", "--input"):
        said = "the terminal is the task's input and output: give no files for these"
        assert said in site("run", "--pty", option, "x", "true", status=1).err
    assert "'yes' is neither 1 nor an object" in site("submit", "-o", "pty=yes", "true", status=1).err
    made = json.loads(site("submit", "-o", f"pty.rows={WINDOW_MAX}", "--dry-run", "true").out)
    assert made["attributes"]["system"]["shell"]["options"]["pty"] == {"rows": WINDOW_MAX}
    for number in (0, WINDOW_MAX + 1):
        said = f"pty.rows: {number} is not a number from 1 to {WINDOW_MAX}"
        assert said in site("submit", "-o", f"pty.rows={number}", "true", status=1).err


@pytest.mark.parametrize("words", ["jobs --watch", "resource status --watch"])
def test_a_table_at_a_terminal_is_drawn_on_across_a_restart(daemon: Any, words: str) -> None:
    site = daemon("--fake", "1x8", "--statedir", "state")
    here = AtTerminal(site, *words.split())
    here.read_until("q ends this")
    site("restart")
    here.read_until("connecting again when it is back")
    here.read_until("q ends this")
    here.type("q")
    assert here.end() == 0


def test_a_table_with_more_lines_than_the_terminal_is_scrolled(daemon: Any) -> None:
    site = daemon("--fake", "1x1")
    site("submit", "--cc=1-40", "--urgency=hold", "true")
    here = AtTerminal(site, "jobs", "--watch", "-o", "{id}")
    room = int(here.read_until(" of 40 jobs, arrow and page keys show others, q ends this").rpartition("1-")[2])
    last = min(room, 40 - room) + 1  # the first line of the next screen, or of the last one
    here.type("\x1b[6~")
    here.read_until(f"{last}-{last + room - 1} of 40 jobs")
    here.type("\x1b[A\x1bOA")
    here.read_until(f"{last - 2}-{last + room - 3} of 40 jobs")
    here.type("\x1b[H")
    here.read_until(f"1-{room} of 40 jobs")
    site("cancel", "--all")
    here.read_until("0 jobs, q ends this")
    here.type("q")
    assert here.end() == 0
