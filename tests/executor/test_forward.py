"""Output of tasks on other hosts: sent by keepers, stored by the instance, whatever happens to them."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec import structs

from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.executor import forward
from fluxsched.executor import wire as msg
from fluxsched.executor.base import JobLaunch, TaskSettings, spool_directory
from fluxsched.executor.forward import FORWARD_LIMITS, TASK_NUMBER_MAX, ForwardLimits, OutputForwarder, OutputReceiver
from fluxsched.executor.io import SHARED
from fluxsched.executor.layout import TASKS_JOB_MAX
from fluxsched.services.job_streams import Budget, TaskOutput
from tests.generated.share import first
from tests.r import r_of

LIMITS = ForwardLimits(piece_bytes=16, job_credit_bytes=64, credit_bytes=128, turn_pieces=4, free_bytes=64)


class HeldTimer:
    def __init__(self, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        self.call: Callable[..., None] | None = call
        self.arguments = arguments

    def cancel(self) -> None:
        self.call = None


class HeldTurns:
    """Turns that the test makes: each fires all timers, whatever their time."""

    def __init__(self) -> None:
        self.timers: list[HeldTimer] = []
        self.posted: list[Callable[[], None]] = []
        self.works: list[Iterator[None]] = []
        self.delays: list[float] = []

    def after(self, delay_s: float, call: Callable[..., None], *arguments: Any) -> HeldTimer:
        self.delays.append(delay_s)
        self.timers.append(HeldTimer(call, arguments))
        return self.timers[-1]

    def post(self, call: Callable[[], None]) -> None:
        self.posted.append(call)

    def spread(self, work: Iterator[None]) -> None:
        self.works.append(work)

    def turn(self) -> None:
        timers, self.timers = self.timers, []
        for timer in timers:
            if timer.call is not None:
                timer.call(*timer.arguments)
        self.go_on()

    def go_on(self) -> None:
        while self.posted or self.works:
            posted, self.posted = self.posted, []
            for call in posted:
                call()
            self.works = [work for work in self.works if next(work, self) is not self]


class Host:
    """A keeper's spool and forwarder, and its connection, which keeps messages in order until it is cut."""

    def __init__(self, directory: Path, limits: ForwardLimits = LIMITS) -> None:
        self.spool = directory
        self.limits = limits
        self.turns = HeldTurns()
        self.forwarder = OutputForwarder(self.turns, self._send, limits)  # type: ignore[arg-type]
        self.sent: deque[msg.JobOutput] = deque()
        self.answers: deque[msg.OutputStored] = deque()
        self.ended: list[int] = []

    def _send(self, one: msg.JobOutput) -> None:
        self.sent.append(one)
        flying = [each for each in self.sent if each.jobid == one.jobid]
        assert sum(len(each.data) for each in self.sent) <= self.limits.credit_bytes
        assert sum(len(each.data) for each in flying) <= self.limits.job_credit_bytes
        assert 0 < len(one.data) <= self.limits.piece_bytes

    def begin(self, jobid: int, *names: str) -> None:
        directory = spool_directory(self.spool, jobid)
        directory.mkdir(parents=True)
        self.forwarder.begin(jobid, directory)
        for name in names:
            (directory / name).touch()
        self.forwarder.follow(jobid, names)

    def write(self, jobid: int, name: str, data: bytes) -> None:
        with (spool_directory(self.spool, jobid) / name).open("ab") as file:
            file.write(data)

    def finish(self, jobid: int) -> None:
        self.forwarder.finish(jobid, lambda: self.ended.append(jobid))
        self.turns.go_on()

    def connect(self) -> None:
        self.sent.clear()
        self.answers.clear()
        self.forwarder.connected()

    def deliver(self, receiver: OutputReceiver, job: Callable[[int], JobLaunch]) -> None:
        one = self.sent.popleft()
        stored = receiver.received(job(one.jobid), one.name, one.offset, one.data)
        self.answers.append(msg.OutputStored(one.jobid, one.name, stored))

    def answer(self) -> None:
        self.forwarder.answered(self.answers.popleft())

    def settle(self, receiver: OutputReceiver, job: Callable[[int], JobLaunch]) -> None:
        for _ in range(3):
            self.turns.turn()
            while self.sent or self.answers:
                if self.sent:
                    self.deliver(receiver, job)
                if self.answers:
                    self.answer()
                self.turns.go_on()


class Disk:
    """Has room or not, for the writes of the receiver."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room: int | None = None
        """Bytes that are left; None without end."""
        self.fault = errno.ENOSPC
        self.kills = False
        """The process is killed after the next write."""
        self._write = os.write
        monkeypatch.setattr(forward.os, "write", self.write)

    def write(self, fd: int, data: bytes) -> int:
        if self.room is not None:
            data = data[: self.room]
            if not data:
                raise OSError(self.fault, os.strerror(self.fault))
            self.room -= len(data)
        written = self._write(fd, data)
        if self.kills:
            self.kills = False
            raise Killed
        return written


class Killed(Exception):
    pass


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def launch(tmp_path) -> Callable[..., JobLaunch]:
    def make(jobid: int = 1, **options: Any) -> JobLaunch:
        spec = replace(Jobspec.from_command(["prog"]), **options)
        return JobLaunch(jobid, spec, r_of("0-1"), TaskSettings({}, tmp_path / "instance"), is_shared=True)

    return make


@pytest.fixture
def host(tmp_path):
    host = Host(tmp_path / "host")
    host.connect()
    return host


def files_of(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()} if directory.is_dir() else {}


# -- both together, with everything that can happen in between


@pytest.mark.slow
@pytest.mark.parametrize("seed", first(range(60)))
def test_nothing_is_lost_or_stored_twice_whatever_fails(tmp_path, disk, launch, seed):
    """Hosts with jobs whose tasks write; connections are cut, the disk is full, the instance is killed."""
    chance = Random(seed)
    shared = str(tmp_path / "user's")
    jobs = {jobid: launch(jobid, **({"output": shared} if jobid == 3 else {})) for jobid in (1, 2, 3)}
    names = {1: ("stdout", "stderr"), 2: ("stdout.4", "stderr.4", "stdout.5"), 3: (f"{SHARED}stdout.0",)}
    hosts = [Host(tmp_path / f"host{number}") for number in range(2)]
    receiver = OutputReceiver()
    receiver.begin(jobs[3])
    written: dict[tuple[int, str], bytes] = {}
    lines: list[bytes] = []
    where = [(hosts[0], 1), (hosts[1], 2), (hosts[0], 3), (hosts[1], 3)]
    for host, jobid in where:
        mine = names[jobid] if host is hosts[0] or jobid != 3 else (f"{SHARED}stdout.7",)
        host.begin(jobid, *mine)
        host.connect()

    def restart() -> None:
        nonlocal receiver
        receiver.close()
        receiver = OutputReceiver()
        for host in hosts:
            host.connect()

    def deliver(host: Host) -> None:
        try:
            host.deliver(receiver, jobs.__getitem__)
        except Killed:
            restart()

    def write() -> None:
        host, jobid = chance.choice(where)
        if jobid == 3:
            lines.append(b"%d %s\n" % (len(lines), b"x" * chance.randrange(8)))
            host.write(3, f"{SHARED}stdout.{0 if host is hosts[0] else 7}", lines[-1])
        else:
            name, data = chance.choice(names[jobid]), chance.randbytes(chance.randrange(100))
            host.write(jobid, name, data)
            written[jobid, name] = written.get((jobid, name), b"") + data

    def act() -> None:
        host = chance.choice(hosts)
        match chance.choice(("turn", "deliver", "deliver", "answer", "answer", "cut", "full", "kill")):
            case "turn":
                host.turns.turn()
            case "deliver" if host.sent:
                deliver(host)
            case "answer" if host.answers:
                host.answer()
            case "cut" if not chance.randrange(8):
                host.forwarder.disconnected()
                host.turns.turn()
                host.connect()
            case "full":
                disk.room = chance.choice((None, None, seed % 2 * 5))
            case "kill" if not chance.randrange(8):
                disk.kills = chance.choice((False, True))
                if not disk.kills:
                    restart()

    for _ in range(1000):
        chance.choice((write, act, act))()
    for host, jobid in where:
        host.finish(jobid)
    for _ in range(200):
        act()
    disk.room, disk.kills = None, False
    for host in hosts:
        host.settle(receiver, jobs.__getitem__)
    assert [sorted(host.ended) for host in hosts] == [[1, 3], [2, 3]]
    for (jobid, name), data in written.items():
        assert (spool_directory(tmp_path / "instance", jobid) / name).read_bytes() == data
    text = Path(shared).read_bytes()
    if seed % 2:  # a line may have been cut by the end of the disk
        assert sorted(text) == sorted(b"".join(lines))
    else:
        assert sorted(text.splitlines(keepends=True)) == sorted(lines)
    receiver.close()


# -- the keeper's side


def test_every_job_and_task_gets_its_turn(host):
    host.begin(1, *[f"stdout.{task}" for task in range(8)])
    host.begin(2, "stdout")
    for task in range(8):
        host.write(1, f"stdout.{task}", b"x" * 100)
    host.write(2, "stdout", b"y" * 100)
    host.turns.turn()
    assert [(one.jobid, one.name) for one in host.sent][:6] == [
        (1, "stdout.0"), (2, "stdout"), (1, "stdout.1"), (2, "stdout"), (1, "stdout.2"), (2, "stdout"),
    ]  # fmt: skip


def test_no_more_than_the_credit_is_unanswered(host):
    """`Host` asserts both at each message."""
    for jobid in (1, 2, 3):
        host.begin(jobid, "stdout", "stderr")
        for name in ("stdout", "stderr"):
            host.write(jobid, name, b"x" * 1000)
    host.turns.turn()
    sizes = [sum(len(one.data) for one in host.sent if one.jobid == jobid) for jobid in (1, 2, 3)]
    assert sum(sizes) == LIMITS.credit_bytes
    one = host.sent.popleft()
    host.forwarder.answered(msg.OutputStored(one.jobid, one.name, LIMITS.piece_bytes))
    assert sum(len(each.data) for each in host.sent) == LIMITS.credit_bytes, "an answer makes room for another piece"


def test_one_job_has_a_part_of_the_credit(host):
    host.begin(1, "stdout")
    host.write(1, "stdout", b"x" * 1000)
    host.turns.turn()
    assert sum(len(one.data) for one in host.sent) == LIMITS.job_credit_bytes


def test_so_many_messages_are_sent_in_one_turn(host):
    for jobid in (1, 2):
        host.begin(jobid, "stdout")
        host.write(jobid, "stdout", b"x" * 1000)
    host.forwarder._look()
    assert len(host.sent) == LIMITS.turn_pieces
    host.turns.go_on()
    assert len(host.sent) == LIMITS.credit_bytes // LIMITS.piece_bytes


def test_so_many_files_are_looked_at_in_one_interval_and_the_others_in_the_next(tmp_path):
    host = Host(tmp_path / "host", replace(LIMITS, looks=3))
    host.connect()
    for jobid in (1, 2, 3, 4):
        host.begin(jobid, "stdout")
        host.write(jobid, "stdout", b"x")
    host.turns.turn()
    assert [one.jobid for one in host.sent] == [1, 2, 3]
    host.turns.turn()
    assert [one.jobid for one in host.sent] == [1, 2, 3, 4]
    assert set(host.turns.delays) == {LIMITS.look_s}


def test_nothing_is_looked_for_without_running_jobs_or_connection(host):
    host.turns.turn()
    assert host.turns.timers == []
    host.begin(1, "stdout")
    host.turns.turn()
    assert len(host.turns.timers) == 1
    host.forwarder.disconnected()
    host.turns.turn()
    assert host.turns.timers == []
    host.forwarder.connected()
    host.finish(1)
    host.turns.turn()
    assert (host.turns.timers, host.ended) == ([], [1])


def test_a_job_ends_when_its_output_is_stored_and_then_its_directory_is_removed(host):
    host.begin(1, "stdout", "stderr")
    host.begin(2, "stdout")
    host.write(1, "stdout", b"last")
    host.finish(1)
    host.finish(2)
    assert host.ended == [2], "nothing was written"
    host.forwarder.answered(msg.OutputStored(1, "stdout", 4))
    assert host.ended == [2, 1]
    host.forwarder.remove(1)
    assert os.listdir(host.spool) == ["f3"]


def test_files_of_tasks_that_have_ended_are_followed_until_they_are_stored(host):
    host.begin(1, "stdout.0", "stderr.0")
    host.write(1, "stdout.0", b"last")
    host.forwarder.close_files(1, ["stdout.0", "stderr.0", "stdout.9"])
    host.forwarder.close_files(2, ["stdout"])
    for files in ({"stdout.0"}, {"stdout.0"}):
        host.turns.turn()
        assert set(host.forwarder._jobs[1].files) == files
    host.forwarder.answered(msg.OutputStored(1, "stdout.0", 4))
    for _ in range(2):
        host.turns.turn()
        assert not host.forwarder._jobs[1].files
    host.forwarder.follow(1, ["stdout.1"])
    (spool_directory(host.spool, 1) / "stdout.1").write_bytes(b"more")
    host.turns.turn()
    assert [one.name for one in host.sent] == ["stdout.0", "stdout.1"]


def test_the_files_of_many_tasks_are_looked_at_in_pieces_at_the_end(host):
    names = [f"stdout.{task}" for task in range(200)]
    host.begin(1, *names)
    host.write(1, names[0], b"first")
    host.turns.turn()
    host.write(1, names[-1], b"last")
    host.forwarder.finish(1, lambda: host.ended.append(1))
    assert len(host.turns.works) == 1
    assert host.sent.popleft().name == names[0]
    host.forwarder.answered(msg.OutputStored(1, names[0], 5))
    assert (host.ended, len(host.sent)) == ([], 0), "not all files were looked at"
    host.turns.go_on()
    assert [one.name for one in host.sent] == [names[-1]]
    host.forwarder.answered(msg.OutputStored(1, names[-1], 4))
    assert host.ended == [1]


def test_one_piece_at_a_time_is_sent_to_an_instance_without_room(host):
    host.begin(1, "stdout")
    host.write(1, "stdout", b"x" * 100)
    host.turns.turn()
    assert [one.offset for one in host.sent] == [0, 16, 32, 48]
    for _ in range(3):
        while host.sent:
            host.sent.popleft()
            host.forwarder.answered(msg.OutputStored(1, "stdout", 0))
        host.turns.turn()
        assert [one.offset for one in host.sent] == [0]
    host.forwarder.answered(msg.OutputStored(1, "stdout", 0))
    host.sent.clear()
    assert host.turns.delays.count(LIMITS.retry_s) == 4
    host.turns.turn()
    host.sent.clear()
    host.forwarder.answered(msg.OutputStored(1, "stdout", 16))
    assert [one.offset for one in host.sent] == [16, 32, 48, 64]


def test_the_host_keeps_what_is_not_stored(tmp_path):
    host = Host(tmp_path / "host", replace(FORWARD_LIMITS, free_bytes=1 << 16))
    host.connect()
    host.begin(1, "stdout")
    path = spool_directory(host.spool, 1) / "stdout"
    try:
        path.write_bytes(b"x" * 4096)
        forward.give_back_space(str(path), 0, 4096)
    except OSError as fault:
        pytest.skip(f"the file system gives no space of files back: {fault.strerror}")
    path.write_bytes(b"x" * 200_000)
    host.turns.turn()
    for offset in (1 << 16, 2 << 16):
        host.forwarder.answered(msg.OutputStored(1, "stdout", offset))
    assert path.read_bytes() == bytes(2 << 16) + b"x" * (200_000 - (2 << 16))
    assert path.stat().st_blocks * 512 < 100_000


def test_a_job_that_only_waits_for_room_can_be_ended(host):
    host.begin(1, "stdout")
    host.write(1, "stdout", b"x")
    host.finish(1)
    host.forwarder.give_up(1)
    assert host.ended == [], "it is being stored"
    host.forwarder.answered(msg.OutputStored(1, "stdout", 0))
    host.forwarder.give_up(1)
    host.forwarder.give_up(1)
    assert host.ended == [1]


def test_what_a_task_has_removed_does_not_keep_its_job(host, launch):
    host.begin(1, "stdout", "stderr")
    host.write(1, "stdout", b"x" * 1000)
    host.turns.turn()
    shutil.rmtree(spool_directory(host.spool, 1))
    host.finish(1)
    host.settle(OutputReceiver(), launch)
    assert host.ended == [1]


# -- the instance's side


def test_files_are_made_with_the_modes_of_today_and_found_by_readers_in_order(launch):
    receiver, job = OutputReceiver(), launch()
    assert receiver.received(job, "stdout.2", 0, b"two\n") == 4
    assert receiver.received(job, "stderr.1", 0, b"one\n") == 4
    directory = spool_directory(job.settings.spool, 1)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in directory.iterdir()} == {0o600}
    assert files_of(directory) == {
        "stdout.0": b"", "stdout.1": b"", "stdout.2": b"two\n", "stderr.0": b"", "stderr.1": b"one\n",
    }  # fmt: skip
    pieces = list(TaskOutput(directory).bite(Budget(), ended=True))
    assert [(one.task, one.stream, one.data) for one in pieces] == [(1, "stderr", b"one\n"), (2, "stdout", b"two\n")]


def test_what_is_stored_already_is_not_stored_again_and_a_gap_is_refused(launch):
    receiver, job = OutputReceiver(), launch()
    assert receiver.received(job, "stdout", 0, b"abc") == 3
    assert receiver.received(job, "stdout", 0, b"ab") == 3
    assert receiver.received(job, "stdout", 1, b"bcd") == 4
    assert receiver.received(job, "stdout", 9, b"x") == 4
    assert files_of(spool_directory(job.settings.spool, 1)) == {"stdout": b"abcd"}


@pytest.mark.parametrize("name", ["../stdout", "stdout.01", "stdout.-1", "stdin", "stdout.7/x", "", "shared-stdout.0"])
def test_names_of_no_spool_file_are_refused(launch, name, caplog):
    assert OutputReceiver().received(launch(), name, 5, b"abc") == 8, "or it would be sent for ever"
    assert "job ƒ2: output is lost" in caplog.text
    assert not spool_directory(launch().settings.spool, 1).exists()


def test_the_numbers_of_tasks_have_a_limit(launch, caplog):
    receiver = OutputReceiver(task_number_max=3)
    receiver.received(launch(), "stdout.3", 0, b"x")
    receiver.received(launch(), "stdout.4", 0, b"x")
    assert sorted(files_of(spool_directory(launch().settings.spool, 1))) == [f"stdout.{task}" for task in range(4)]
    assert "'stdout.4' is no name of a spool file" in caplog.text
    assert OutputReceiver().task_number_max == TASK_NUMBER_MAX


@pytest.mark.parametrize("fault", sorted(forward.NO_ROOM))
def test_without_room_nothing_counts_as_stored_and_the_log_says_so_once(launch, disk, caplog, fault):
    receiver, job = OutputReceiver(), launch()
    disk.room, disk.fault = 2, fault
    assert receiver.received(job, "stdout", 0, b"abc") == 2
    assert [receiver.received(job, "stdout", offset, b"abc") for offset in (2, 5, 8)] == [2, 2, 2]
    assert caplog.text.count("waits on its host for room here") == 1
    disk.room = None
    assert receiver.received(job, "stdout", 2, b"cde") == 5
    disk.room = 0
    assert receiver.received(job, "stdout", 5, b"f") == 5
    assert caplog.text.count("waits on its host for room here") == 2


def test_what_can_never_be_written_is_lost_and_the_log_says_so(launch, disk, caplog):
    disk.room, disk.fault = 0, errno.EIO
    assert OutputReceiver().received(launch(), "stdout", 0, b"abc") == 3
    assert "output is lost: cannot write 'stdout' for the job's output: Input/output error" in caplog.text


# -- files that hosts share


def test_a_shared_file_is_emptied_once_and_appended_to_by_the_next_instance(launch, tmp_path):
    path = tmp_path / "out-ƒ2-2"
    path.write_bytes(b"of a run before\n")
    job = launch(output="out-{{id}}-{{nnodes}}", cwd=str(tmp_path))
    first, second = OutputReceiver(), OutputReceiver()
    first.begin(job)
    assert path.read_bytes() == b""
    first.received(job, "shared-stdout.0", 0, b"one\n")
    first.close()
    second.received(job, "shared-stdout.1", 0, b"two\n")
    assert second.received(job, "shared-stdout.0", 0, b"one\nthree\n") == 10
    second.close()
    assert path.read_bytes() == b"one\ntwo\nthree\n"
    assert list(files_of(spool_directory(job.settings.spool, 1))) == ["shared-stdout"]


def test_a_shared_file_keeps_its_name_although_the_job_has_grown(launch, tmp_path):
    job = launch(output=str(tmp_path / "out-{{nnodes}}"))
    first, second = OutputReceiver(), OutputReceiver()
    first.begin(job)
    first.close()
    second.received(JobLaunch(1, job.jobspec, r_of("0-4"), job.settings), "shared-stdout.0", 0, b"x\n")
    second.close()
    assert (tmp_path / "out-2").read_bytes() == b"x\n"
    assert not (tmp_path / "out-5").exists()


def test_a_shared_file_that_cannot_be_opened_now_is_opened_later(launch, tmp_path, monkeypatch):
    job = launch(output=str(tmp_path / "out"))
    receiver = OutputReceiver()
    receiver.begin(job)
    receiver.received(job, "shared-stdout.0", 0, b"one\n")
    receiver.close()
    opened = os.open

    def refuse(path, *options):
        if os.fspath(path) == os.fsencode(tmp_path / "out"):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path, *options)

    monkeypatch.setattr(forward.os, "open", refuse)
    assert receiver.received(job, "shared-stdout.0", 4, b"two\n") == 0
    monkeypatch.undo()
    assert receiver.received(job, "shared-stdout.0", 0, b"one\ntwo\n") == 8
    receiver.close()
    assert (tmp_path / "out").read_bytes() == b"one\ntwo\n"


def test_the_tasks_of_a_host_are_limited_and_not_those_of_a_job_that_shares_a_file(launch, tmp_path):
    job = launch(output=str(tmp_path / "out-{{size}}"))
    ntasks = 2 * TASKS_JOB_MAX
    r = r_of("0-1", "0-127")
    r["execution"]["nslots"] = ntasks
    receiver = OutputReceiver()
    receiver.begin(structs.replace(job, jobspec=with_ntasks(job.jobspec, ntasks), R=r))
    receiver.end(1)
    assert (tmp_path / f"out-{ntasks}").exists()


def with_ntasks(jobspec: Jobspec, ntasks: int) -> Jobspec:
    return replace(Jobspec.from_command(["prog"], ntasks=ntasks), output=jobspec.output)


@pytest.mark.parametrize(
    ("output", "error", "names"),
    [
        ("out", None, ["out"]),
        ("out", "out", ["out"]),
        ("out", "err-{{node.name}}", ["out"]),
        (None, "err", ["err"]),
        ("out", "err", ["err", "out"]),
    ],
)
def test_the_instance_opens_the_files_that_all_tasks_share(launch, tmp_path, output, error, names):
    (tmp_path / "cwd").mkdir()
    receiver = OutputReceiver()
    receiver.begin(launch(output=output, error=error, cwd=str(tmp_path / "cwd")))
    receiver.end(1)
    assert sorted(os.listdir(tmp_path / "cwd")) == names


def test_a_shared_file_that_cannot_be_opened_fails_its_job(launch, tmp_path):
    descriptors = os.listdir("/proc/self/fd")
    with pytest.raises(Refused, match=r"cannot open .*no/file' for the job's output: No such file"):
        OutputReceiver().begin(launch(output=str(tmp_path / "out"), error=str(tmp_path / "no" / "file")))
    assert os.listdir("/proc/self/fd") == descriptors


def test_whole_lines_of_a_shared_file_are_sent_and_the_rest_with_the_end(host):
    host.begin(1, f"{SHARED}stdout.3")
    for data, sent in ((b"one\ntw", b"one\n"), (b"o", b""), (b"\nthree", b"two\n"), (b"x" * 20, b"threexxxxxxxxxxx")):
        host.write(1, f"{SHARED}stdout.3", data)
        host.turns.turn()
        assert b"".join(one.data for one in host.sent) == sent
        host.sent.clear()
    host.finish(1)
    assert b"".join(one.data for one in host.sent) == b"x" * 9
