"""`run --pty`: a terminal for a job's task, which is that of the user where there is one."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from fluxsched.core.jobfields import WINDOW_MAX


class AtTerminal:
    """A command at a terminal of 33 rows and 77 columns, the leader of its session."""

    def __init__(self, user: Any, *words: str) -> None:
        program = str(Path(sys.executable).with_name("fluxsched"))
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            termios.tcsetwinsize(0, (33, 77))
            os.chdir(user.directory)
            os.execve(program, ["fluxsched", *words], user.environment)
        self.before = termios.tcgetattr(self.fd)
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
    here.type("echo $((50+2)); sleep 100\r")
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
