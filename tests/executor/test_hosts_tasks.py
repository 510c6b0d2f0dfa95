"""Real tasks of jobs over several hosts: where they print, what they are given, and what they have used."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest

from fluxsched.core.batch import script_file
from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused
from fluxsched.executor.base import JobLaunch, Reports, ResumedJob, TaskSettings, spool_directory
from fluxsched.executor.keeper import KeeperOutside, KeeperService, LeaseTerms
from fluxsched.executor.local import LocalExecutor
from fluxsched.services.job_streams import Budget, TaskOutput
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import Turns
from tests.executor.test_hosts import HOSTS, Site
from tests.r import r_of

GRACE_S = 0.1


class RealKeeper:
    """The keeper of a host, with tasks that are processes and directories of its own."""

    def __init__(self, below: Path, host: str, site: Site, terms: LeaseTerms) -> None:
        self.turns = Turns(SystemClock())
        self.spool, self.scratch = below / host / "spool", below / host / "tmp"
        self.scratch.mkdir(parents=True, mode=0o700)
        self.is_over = False
        outside = KeeperOutside(
            partial(self._made, host), lambda records, cleared: cleared(dict.fromkeys(records, "gone")),
            lambda: self.scratch, lambda is_gone: None, 7, lease=terms, spool=self.spool,
        )  # fmt: skip
        self.service = KeeperService(self.turns, outside)
        self.turns.start(asyncio.get_running_loop())

    def _made(self, host: str, reports: Reports) -> LocalExecutor:
        executor = LocalExecutor(self.turns, reports, GRACE_S)
        executor._enclosing = host  # all are children of one process, which tells them apart by the path of the job
        return executor


class RealSite(Site):
    """Hosts with real tasks."""

    def __init__(self, below: Path) -> None:
        self.spool = below / "instance"
        self.launches: list[JobLaunch] = []
        super().__init__(keeper=partial(RealKeeper, below))

    def run(
        self, command: list[str] | str, jobid: int = 1, ranks: str = "0-2", ntasks: int = 6, files: Any = None,
        templates: Any = None, **options: Any,
    ) -> None:  # fmt: skip
        words = ["sh", "-c", command] if isinstance(command, str) else command
        tree = Jobspec.from_command(words, ntasks=ntasks, **options).raw
        if files is not None:
            tree["attributes"]["system"]["files"] = files
        if templates is not None:
            tree["attributes"]["system"]["shell"] = {"options": {"env-expand": templates}}
        jobspec = Jobspec.parse(tree)
        r = r_of(ranks, host="n")
        r["execution"]["nslots"] = ntasks
        self.launches.append(JobLaunch(jobid, jobspec, r, TaskSettings({}, self.spool)))
        self.executor.start(self.launches[-1])

    async def ended(self, jobid: int = 1) -> int:
        await self.until(lambda: [one for one in self.reported("finished") if one[0] == jobid])
        return int(next(one[1] for one in self.reported("finished") if one[0] == jobid))

    def printed(self, jobid: int = 1, stream: str = "stdout") -> dict[int, bytes]:
        """As `attach` reads it."""
        found: dict[int, bytes] = {}
        output = TaskOutput(spool_directory(self.spool, jobid))
        while not output.is_complete:
            for piece in output.bite(Budget(), ended=True):
                if piece.stream == stream:
                    found[piece.task] = found.get(piece.task, b"") + piece.data
        return found

    def cut(self, host: str) -> None:
        self.cables[host].close()

    def restart(self) -> None:
        """The instance is killed, and the next one begins."""
        for host in HOSTS:
            self.cut(host)
        self.turns.stop()
        self.executor._output.close()
        self.begin()
        self.resume(*[ResumedJob(launch, self.records.get(launch.jobid), 1.0) for launch in self.launches])
        self.connect()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[RealSite]:
    site = RealSite(tmp_path)
    await site.ready()
    yield site
    await site.close()


UNTIL_GO = "while ! [ -e $GO ]; do sleep 0.01; done"
NUMBER = 'echo "$FLUX_TASK_RANK of $FLUX_JOB_SIZE"'


async def test_each_task_is_read_by_its_number_in_the_job(site):
    site.run(f"{NUMBER}; {NUMBER} >&2")
    assert await site.ended() == 0
    lines = {task: b"%d of 6\n" % task for task in range(6)}
    assert (site.printed(), site.printed(stream="stderr")) == (lines, lines)
    keepers = site.keepers.values()
    await site.until(lambda: not any(list(keeper.spool.iterdir()) for keeper in keepers))


async def test_output_can_be_followed_while_the_job_runs(site):
    site.run("echo early; sleep 300")
    await site.until(lambda: len(site.printed()) == 6)
    site.executor.kill(1, SIGKILL)
    assert await site.ended() == SIGKILL


@pytest.mark.slow
async def test_much_output_arrives_whole_over_connections_that_are_cut(site):
    site.run('i=0; while [ $i -lt 40000 ]; do echo "$FLUX_TASK_RANK $i"; i=$((i + 1)); done')
    for _ in range(3):
        for host in HOSTS:
            await asyncio.sleep(0.03)
            site.cut(host)
            await asyncio.sleep(0.01)
            site.connect(host)
    assert await site.ended() == 0
    assert site.printed() == {task: b"".join(b"%d %d\n" % (task, i) for i in range(40000)) for task in range(6)}


async def test_a_job_ends_with_all_its_output_though_it_ended_while_its_host_was_away(site):
    site.run(f"echo ready; {UNTIL_GO}; echo last", environment=go(site))
    await site.until(lambda: len(site.printed()) == 6)
    site.cut("n1")
    (site.spool / "go").touch()
    await asyncio.sleep(0.1)
    assert not site.reported("finished")
    site.connect("n1")
    assert await site.ended() == 0
    assert site.printed() == dict.fromkeys(range(6), b"ready\nlast\n")


def go(site: RealSite) -> dict[str, str]:
    site.spool.mkdir(exist_ok=True)
    return {"GO": str(site.spool / "go"), "PATH": os.environ["PATH"]}


@pytest.mark.slow
async def test_the_next_instance_stores_the_rest(site, tmp_path):
    count = 'i=0; while [ $i -lt 20000 ]; do echo "$FLUX_TASK_RANK $i"; i=$((i + 1)); done; '
    site.run(count + UNTIL_GO, environment=go(site))
    site.run(count + UNTIL_GO, 2, environment=go(site), output=str(tmp_path / "all"))
    await site.until(lambda: len(site.reported("started")) == 2)
    for _ in range(4):
        await asyncio.sleep(0.05)
        site.restart()
        await site.until(lambda: site.is_settled)
    (site.spool / "go").touch()
    assert (await site.ended(1), await site.ended(2)) == (0, 0)
    lines = [[b"%d %d\n" % (task, i) for i in range(20000)] for task in range(6)]
    assert site.printed() == {task: b"".join(own) for task, own in enumerate(lines)}
    found = (tmp_path / "all").read_bytes().splitlines(keepends=True)
    assert [[line for line in found if line.startswith(b"%d " % task)] for task in range(6)] == lines


# -- files of the user's choice


async def test_hosts_share_a_file_that_the_instance_writes(site, tmp_path):
    path = tmp_path / "all"
    path.write_text("of a run before\n")
    site.run("for i in 1 2 3; do echo $FLUX_TASK_RANK $i; echo err >&2; done", output=str(path))
    assert await site.ended() == 0
    lines = path.read_text().splitlines()
    assert sorted(lines) == sorted([f"{task} {i}" for task in range(6) for i in (1, 2, 3)] + ["err"] * 18)
    assert site.printed() == {}


async def test_a_file_of_a_host_or_task_is_written_there(site, tmp_path):
    site.run(f"{NUMBER}; echo err >&2", cwd=str(tmp_path), output="out-{{node.name}}", error="err-{{taskid}}")
    assert await site.ended() == 0
    found = {file.name: sorted(file.read_text().split("\n")[:-1]) for file in tmp_path.iterdir() if file.is_file()}
    assert found == {
        **{f"out-n{rank}": [f"{2 * rank} of 6", f"{2 * rank + 1} of 6"] for rank in range(3)},
        **{f"err-{task}": ["err"] for task in range(6)},
    }
    assert not (site.spool / "f2" / "shared-stdout").exists()


async def test_a_job_of_one_host_writes_its_file_there(site, tmp_path):
    site.run(NUMBER, ranks="1", ntasks=2, output=str(tmp_path / "own"))
    assert await site.ended() == 0
    assert (tmp_path / "own").read_text() in ("0 of 2\n1 of 2\n", "1 of 2\n0 of 2\n")
    assert not (site.spool / "f2").exists()


async def test_a_shared_file_that_cannot_be_opened_fails_the_job_before_any_task_runs(site, tmp_path):
    with pytest.raises(Refused, match="No such file"):
        site.run(["touch", str(tmp_path / "ran")], output=str(tmp_path / "no" / "file"))
    assert site.records == {}
    assert not (tmp_path / "ran").exists()


# -- what tasks are given


async def test_errors_name_the_host(site, tmp_path):
    for jobid, ranks, ntasks in ((1, "0-2", 6), (2, "1", 2)):
        site.run(["true"], jobid, ranks, ntasks, cwd=str(tmp_path / "nowhere"))
        await site.until(lambda jobid=jobid: any(one[0] == jobid for one in site.reported("failed")))
    notes = dict(site.reported("failed"))
    assert all("working directory" in note for note in notes.values())
    assert notes[1].startswith(("n0: ", "n1: ", "n2: "))
    assert notes[2].startswith("n1: ")


async def test_each_host_reads_the_input_file_and_unpacks_the_jobs_own(site, tmp_path):
    (tmp_path / "input").write_text("from a file\n")
    site.run('cat "$FLUX_JOB_TMPDIR/mine" -', input=str(tmp_path / "input"), files={"mine": script_file("bundled\n")})
    assert (await site.ended(), site.printed(stream="stderr")) == (0, {})
    assert site.printed() == dict.fromkeys(range(6), b"bundled\nfrom a file\n")


async def test_each_host_has_a_file_with_the_hosts_of_all_tasks(site):
    site.run('cat "$HOSTS"', templates={"HOSTS": "{{hostfile}}"})
    assert (await site.ended(), site.printed(stream="stderr")) == (0, {})
    assert site.printed() == dict.fromkeys(range(6), b"n0\nn0\nn1\nn1\nn2\nn2\n")


async def test_a_file_of_the_job_may_have_the_name_of_the_hostfile(site):
    templates = {"MINE": "{{tmpdir}}/hostfile", "HOSTS": "{{hostfile}}"}
    site.run('cat "$MINE" "$HOSTS"', templates=templates, files={"hostfile": script_file("mine\n")})
    assert (await site.ended(), site.printed(stream="stderr")) == (0, {})
    assert site.printed() == dict.fromkeys(range(6), b"mine\nmine\n")


async def test_input_reaches_all_tasks_or_one(site):
    site.run(f"cat; {UNTIL_GO}", environment=go(site))
    await site.until(lambda: site.reported("opened"))
    answers: list[Any] = []
    place = site.executor.input_of(1)
    assert place is not None
    place.send(b"one\n", Idset.parse("5"), eof=False, answered=answers.append)
    place.send(b"some\n", Idset.parse("0-2"), eof=True, answered=answers.append)
    place.send(b"all\n", None, eof=True, answered=answers.append)
    await site.until(lambda: len(answers) == 3)
    place.send(b"late\n", None, eof=True, answered=answers.append)
    await site.until(lambda: len(answers) == 4)
    (site.spool / "go").touch()
    assert await site.ended() == 0
    assert [getattr(answer, "errnum", 0) for answer in answers] == [0, 0, 0, errno.EPIPE]
    assert site.printed() == {0: b"some\n", 1: b"some\n", 2: b"some\n", 3: b"all\n", 4: b"all\n", 5: b"one\nall\n"}


async def test_usage_is_that_of_all_tasks_in_their_order(site):
    site.run("exit $FLUX_TASK_RANK")
    assert await site.ended() == 5 << 8
    usage = site.reported("finished")[0][2]
    assert [row["status"] for row in usage["tasks"]] == [task << 8 for task in range(6)]


# -- parts that do not run


async def test_a_part_that_cannot_be_started_ends_tasks_that_wait_for_it_and_none_has_run(site, tmp_path):
    site.keepers["n2"].scratch.rmdir()
    site.keepers["n2"].scratch.write_text("no directory")
    site.run(f"touch {tmp_path}/ran")
    await site.until(lambda: site.reported("failed"))
    assert "n2: cannot make the job's temporary directory" in site.reported("failed")[0][1]
    assert not (tmp_path / "ran").exists()
    assert site.records == {}
    assert not any(site.keepers[host].service._executor._runs for host in HOSTS)


async def test_a_job_that_is_cancelled_before_its_gates_open_ends(site, tmp_path):
    held: list[Any] = []
    site.executor._reports = replace(site.executor._reports, record=lambda *report: held.append(report))
    site.run(f"touch {tmp_path}/ran")
    await site.until(lambda: len(held) == 3)
    site.executor.kill(1, SIGTERM)
    await site.until(lambda: site.reported("failed"))
    assert site.reported("failed") == [(1, "it was ended before its tasks ran")]
    assert not (tmp_path / "ran").exists()
