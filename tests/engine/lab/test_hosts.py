"""Hosts of a lab: apart from each other, cut and mended, gone when the lab is, also when its process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.lab.hosts import HOSTS_MAX, ROOT, Lab, until


def test_each_host_has_a_name_a_boot_id_and_files_of_its_own(lab: Lab) -> None:
    read = "hostname; cat /proc/sys/kernel/random/boot_id; touch /tmp/$(hostname); ls -A /run/user/0 /tmp"
    found = [lab.run(name, "sh", "-c", read).splitlines() for name in lab.names]
    assert [lines[0] for lines in found] == lab.names
    assert len({lines[1] for lines in found}) == len(lab.names)
    shared = {path.parts[2] for path in lab.shared() if path.parts[1] == "tmp"}
    assert [set(lines[2:]) - shared for lines in found] == [{"/run/user/0:", "", "/tmp:", name} for name in lab.names]


def test_what_a_host_runs_is_seen_there_only(lab: Lab) -> None:
    lab.run("n2", "sh", "-c", "setsid -f sleep 777 </dev/null >/dev/null 2>&1")
    (sleeper,) = [one for one in lab.processes("n2") if one.command == "sleep 777"]
    assert "sleep 777" not in [one.command for one in lab.processes("n1")]
    lab.kill("n2", sleeper.pid)
    until(lambda: sleeper not in lab.processes("n2"), "the process is gone")


def reaches(lab: Lab, one: str, other: str) -> bool:
    """Return whether a connection can be made, by what the kernel answers for a port at which nobody listens."""
    script = (
        "import socket, sys\ntry: socket.create_connection((sys.argv[1], 9), 0.3)\nexcept OSError as exc: print(exc)"
    )
    return "refused" in lab.run(one, sys.executable, "-c", script, lab.address(other))


def test_a_link_is_cut_and_mended(mended: Lab) -> None:
    until(lambda: reaches(mended, "n1", "n3"), "hosts reach each other")
    mended.cut("n3")
    assert not reaches(mended, "n1", "n3")
    assert not reaches(mended, "n3", "n1")
    until(lambda: reaches(mended, "n1", "n2"), "others still reach each other")
    mended.mend("n3")
    until(lambda: reaches(mended, "n3", "n1"), "the link is there again")


def test_a_link_is_cut_in_one_direction(mended: Lab) -> None:
    mended.mute("n3", "n1")
    assert not reaches(mended, "n3", "n1")
    until(lambda: reaches(mended, "n3", "n2"), "n3 still reaches others")
    receive = (
        "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 700)); print('on', flush=True)\n"
        "print(s.recv(9))"
    )
    with mended.popen("n3", sys.executable, "-c", receive) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "on\n"
        send = f"import socket; socket.socket(type=socket.SOCK_DGRAM).sendto(b'yes', ('{mended.address('n3')}', 700))"
        mended.run("n1", sys.executable, "-c", send)
        assert process.stdout.readline() == "b'yes'\n"
    mended.unmute("n3", "n1")
    until(lambda: reaches(mended, "n3", "n1"), "the link is there again")


def test_a_host_that_crashed_boots_as_another_one(mended: Lab) -> None:
    boot_id = ("cat", "/proc/sys/kernel/random/boot_id")
    before = mended.run("n4", *boot_id)
    mended.run("n4", "touch", "/tmp/lost")
    mended.crash("n4")
    assert not mended.is_up("n4")
    mended.boot("n4")
    assert mended.run("n4", *boot_id) != before
    assert "lost" not in mended.run("n4", "ls", "/tmp")
    until(lambda: reaches(mended, "n1", "n4"), "the host is reached")


def test_nothing_remains_of_a_lab_whose_process_is_killed(lab: Lab) -> None:
    script = "echo $LAB; for n in n0 n1 n2; do cat $LAB/$n/pid; done; exec sleep 100"
    words = [sys.executable, "-m", "tests.engine.lab", "2", "--", script]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        directory, *pids = [process.stdout.readline().strip() for _ in range(4)]
        process.kill()
        until(lambda: not any(Path("/proc", pid).exists() for pid in pids), "all hosts are gone")
        os.killpg(process.pid, signal.SIGKILL)  # the command of the lab
    shutil.rmtree(directory)


@pytest.mark.parametrize("hosts", [0, HOSTS_MAX + 1])
def test_a_lab_has_a_limit(hosts: int) -> None:
    with pytest.raises(ValueError, match=f"a lab has 1 to {HOSTS_MAX}"):
        Lab(hosts)
