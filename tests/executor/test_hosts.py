"""Jobs over several hosts: their parts at keepers, which are real but for the tasks, and what the instance is told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from signal import SIGCONT, SIGHUP, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2
from typing import Any

import pytest
from msgspec import structs

from fluxsched.core.idset import Idset
from fluxsched.core.jobspec import Jobspec
from fluxsched.core.resources import ResourceSet
from fluxsched.errors import FluxschedError, Refused
from fluxsched.executor.base import JobLaunch, Reports, ResumedJob, StoreOutput, TaskSettings
from fluxsched.executor.cleanup import DISOWNED, clear_orphans
from fluxsched.executor.hosts import HostCommand, HostsExecutor
from fluxsched.executor.keeper import UNANSWERED_MAX, KeeperLease, KeeperOutside, KeeperService, LeaseTerms
from fluxsched.executor.layout import program_of
from fluxsched.executor.relay import HostRelay, RelayServer
from fluxsched.executor.wire import PmiFence, PmiFenceDone
from fluxsched.instance.hosts import RemoteKeeper
from fluxsched.system.clock import SystemClock
from fluxsched.system.loop import TurnGroup, TurnMember, Turns
from fluxsched.transport.local import StreamClient
from tests.r import r_of
from tests.waiting import WAIT_S, until

HOSTS = ("n0", "n1", "n2")


class Tasks:
    """The tasks of one host, which do what the test says."""

    kill_timeout_s = 0.0

    def __init__(self, host: str, reports: Reports) -> None:
        self.host = host
        self.reports = reports
        self.launched: dict[int, JobLaunch] = {}
        self.open: list[int] = []
        self.signals: list[tuple[int, int]] = []
        self.grown: list[tuple[str, int | None]] = []
        self.sent: list[tuple[bytes, str]] = []
        self.fences: list[PmiFenceDone] = []
        self.refuses = False
        self.knows_usage = True
        self.is_closed = False

    def start(self, job: JobLaunch) -> None:
        if self.refuses:
            raise Refused("no such directory")
        self.launched[job.jobid] = job
        record = {"pid": len(self.launched), "host": self.host}
        self.reports.record(job.jobid, record, lambda: self._opened(job.jobid))

    def _opened(self, jobid: int) -> None:
        self.open.append(jobid)
        self.reports.started(jobid)

    def end(self, jobid: int, status: int = 0) -> None:
        usage = {"wall_s": 1.0, "user_s": 0.5, "system_s": 0.25, "max_rss_bytes": 7}
        self.reports.finished(jobid, status, usage)

    def kill(self, jobid: int, signum: int, grace_s: float | None = None) -> None:
        self.signals.append((jobid, signum))
        if signum == SIGKILL:
            self.end(jobid, SIGKILL)

    def fence_done(self, one: PmiFenceDone) -> None:
        self.fences.append(one)

    def input_of(self, jobid: int) -> Any:
        return self

    def measure(self, jobid: int, measured: Any) -> None:
        measured({"wall_s": 1.0, "user_s": 2.0, "system_s": 0.25, "max_rss_bytes": 7} if self.knows_usage else None)

    def send(self, data: bytes, tasks: Idset | None, *, eof: bool, taken: Any, window: Any = None) -> None:
        self.sent.append((data, str(tasks)))
        taken()

    def grow(self, jobid: int, r: Any, ranks: Idset, first: int | None = None) -> None:
        self.grown.append((str(ranks), first))

    def shrink(self, jobid: int, ranks: Idset, grace_s: float | None = None) -> None:
        self.reports.released(jobid, ranks)

    def close(self) -> None:
        self.is_closed = True


class Keeper:
    """The keeper of a host, and the connection to the instance that the test makes and cuts."""

    def __init__(self, host: str, site: Site, terms: LeaseTerms, sockets: Path | None = None) -> None:
        self.turns = Turns(SystemClock())
        self.is_over = False
        self.cleared: list[int] = []
        """Jobs of which it was to end what a keeper before it had left."""
        outside = KeeperOutside(
            lambda reports: self._made(host, reports), self._clear, lambda: None, self._ended, 7, lease=terms,
            sockets=sockets,
        )  # fmt: skip
        self.tasks: Tasks
        self.service = KeeperService(self.turns, outside)
        self.turns.start(asyncio.get_running_loop())

    def _made(self, host: str, reports: Reports) -> Any:
        self.tasks = Tasks(host, reports)
        return self.tasks

    def _clear(self, records: Mapping[int, object], cleared: Callable[[dict[int, str]], None]) -> None:
        self.cleared += records
        cleared(dict.fromkeys(records, "gone"))

    def _ended(self, is_lost: bool) -> None:
        self.is_over = True
        self.service.close()
        self.turns.stop()


LEASE_S = 3.0
"""A lease that ends while a test waits for it, and not before, however busy the machine is (seconds)."""


class Site:
    """An instance's executor over hosts, with what it reports and has on record."""

    def __init__(
        self, orphan_timeout_s: float = 30.0, silent_s: float = 30.0, ping_s: float = 0.02, keeper: Any = None,
        lease_s: float | None = None,
    ) -> None:  # fmt: skip
        """`keeper` makes the keeper of a host, one with tasks that the test plays by default. `lease_s` is what keepers
        take for the orphan timeout, so that no lease ends where that is short.
        """
        self.orphan_timeout_s, self.silent_s = orphan_timeout_s, silent_s
        self.said: list[tuple[Any, ...]] = []
        self.records: dict[int, Any] = {}
        self.present: dict[str, bool] = dict.fromkeys(HOSTS, False)
        self.lost: list[str] = []
        self.is_settled = False
        self.cables: dict[str, StreamClient] = {}
        self.ends: list[StreamClient] = []
        """Both ends of all cables: those of an instance that was killed are closed with the site."""
        terms = LeaseTerms(ping_s, orphan_timeout_s if lease_s is None else lease_s)
        self.keepers = {host: (keeper or Keeper)(host, self, terms) for host in HOSTS}
        self.begin()

    def begin(self) -> None:
        """An instance begins, as after the one before was killed."""
        self.is_settled = False
        self.turns = Turns(SystemClock())
        self.group = TurnGroup(self.turns)
        reports = Reports(
            lambda jobid: self.said.append(("started", jobid)),
            lambda jobid, status, usage: self.said.append(("finished", jobid, status, usage)),
            lambda jobid, note: self.said.append(("failed", jobid, note)),
            self._record,
            lambda jobid, kind, note: self.said.append(("raised", jobid, kind, note)),
            lambda jobid: self.said.append(("opened", jobid)),
            self.turns.post,
            lambda jobid, ranks: self.said.append(("released", jobid, str(ranks))),
            lambda jobid, ranks, note: self.said.append(("lost", jobid, str(ranks), note)),
            node_failed=lambda jobid, note: self.said.append(("node_failed", jobid, note)),
        )
        self.remotes: dict[str, RemoteKeeper] = {}
        self.servers = RelayServer(json=False), RelayServer(json=True)
        self.executor = HostsExecutor(self.turns, reports, HOSTS, self._remote)
        self.turns.start(asyncio.get_running_loop())

    def kill(self) -> None:
        """The instance is killed, which ends its connections."""
        self.turns.stop()
        for cable in self.cables.values():
            cable.close()

    def _remote(self, host: str, reports: Reports, output: StoreOutput) -> RemoteKeeper:
        hooks = TurnMember(self.group)
        self.remotes[host] = RemoteKeeper(
            self.turns, reports, output, host, lambda there: self.present.update({host: there}),
            lambda: self.lost.append(host), 0.1, self.orphan_timeout_s,
            outlives=True, silent_s=self.silent_s, margin_s=0.1, relay=HostRelay(hooks.wake, host, self.servers),
            hooks=hooks,
        )  # fmt: skip
        return self.remotes[host]

    def _record(self, jobid: int, record: Any, then: Any) -> None:
        if record is None:
            self.records.pop(jobid, None)
        else:
            self.records[jobid] = record
        if then is not None:
            self.turns.post(then)

    def resume(self, *jobs: ResumedJob) -> None:
        self.executor.resume(jobs, dict(self.records), lambda: setattr(self, "is_settled", True))

    def connect(self, *hosts: str) -> None:
        for host in hosts or HOSTS:
            ours, theirs = map(StreamClient, socket.socketpair())
            self.cables[host] = theirs
            self.ends += [ours, theirs]
            theirs.start(asyncio.get_running_loop(), self.keepers[host].turns.wake)
            self.keepers[host].service.attend(theirs)
            self.remotes[host].attach(ours)

    async def ready(self) -> Site:
        self.resume()
        self.connect()
        await self.until(lambda: all(self.present.values()))
        return self

    def tasks(self, host: str) -> Tasks:
        return self.keepers[host].tasks

    until = staticmethod(until)

    def reported(self, kind: str) -> list[Any]:
        return [one[1:] for one in self.said if one[0] == kind]

    def launch(self, jobid: int, ranks: str, ntasks: int | None = None, elastic: bool = False) -> JobLaunch:
        nslots = len(Idset.parse(ranks)) * 2 if ntasks is None else ntasks
        jobspec = Jobspec.from_command(["true"], ntasks=nslots)
        if elastic:
            jobspec = Jobspec.from_command(["true"], nodes="1-3", exclusive=True, elastic=True)
        r = r_of(ranks, host="n")
        r["execution"]["nslots"] = nslots
        return JobLaunch(jobid, jobspec, r, TaskSettings({}, Path("/spool")))

    async def close(self) -> None:
        self.executor.close()
        self.turns.stop()
        for keeper in self.keepers.values():
            keeper.service.close()
            keeper.turns.stop()
        for end in self.ends:
            end.close()


@pytest.fixture
async def site():
    site = await Site().ready()
    yield site
    await site.close()


async def test_a_job_of_one_host_is_started_there_alone(site):
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    assert [len(site.tasks(host).launched) for host in HOSTS] == [0, 1, 0]
    assert site.records == {1: {"hosts": {"n1": {"pid": 1, "host": "n1"}}}}
    site.tasks("n1").end(1, 256)
    await site.until(lambda: site.reported("finished"))
    assert site.reported("finished")[0][:2] == (1, 256)
    assert site.records == {}


async def test_no_task_of_several_hosts_runs_before_the_processes_of_all_are_on_record(site):
    held = []
    record = site.tasks("n2").reports.record
    object.__setattr__(site.tasks("n2").reports, "record", lambda *report: held.append(report))
    site.executor.start(site.launch(1, "0-2"))
    await site.until(lambda: held and len(site.records.get(1, {}).get("hosts", ())) == 2)
    assert [site.tasks(host).open for host in HOSTS] == [[], [], []]
    record(*held[0])
    await site.until(lambda: site.reported("started"))
    assert [site.tasks(host).open for host in HOSTS] == [[1], [1], [1]]
    assert [str(site.tasks(host).launched[1].ranks) for host in HOSTS] == ["0", "1", "2"]
    for host, status in zip(HOSTS, (0, 512, 256), strict=True):
        assert not site.reported("finished")
        site.tasks(host).end(1, status)
        await asyncio.sleep(0.01)
    await site.until(lambda: site.reported("finished"))
    jobid, status, usage = site.reported("finished")[0]
    assert (jobid, status, usage["user_s"]) == (1, 512, 1.5)
    assert len(site.reported("started")) == 1
    assert site.records == {}


async def measured(site: Site, jobid: int) -> Any:
    answers: list[Any] = []
    site.executor.measure(jobid, answers.append)
    await site.until(lambda: answers)
    return answers.pop()


async def test_what_a_running_job_has_used_is_the_sum_of_what_its_hosts_measure(site):
    site.executor.start(site.launch(1, "0-2"))
    site.executor.start(site.launch(2, "1"))
    await site.until(lambda: len(site.reported("started")) == 2)
    assert (await measured(site, 1))["user_s"] == 6.0
    assert (await measured(site, 2))["user_s"] == 2.0
    site.tasks("n2").knows_usage = False
    assert (await measured(site, 1))["user_s"] == 4.0
    site.tasks("n0").end(1)
    await site.until(lambda: "ended" in site.records[1]["hosts"]["n0"])
    assert (await measured(site, 1))["user_s"] == 2.5
    assert await measured(site, 9) is None


async def test_hosts_without_tasks_of_a_job_do_not_hear_of_it(site):
    site.executor.start(site.launch(1, "0-2", ntasks=2))
    await site.until(lambda: site.reported("started"))
    assert [len(site.tasks(host).launched) for host in HOSTS] == [1, 1, 0]


async def test_a_part_that_cannot_be_started_ends_the_others_before_they_run(site):
    site.tasks("n1").refuses = True
    site.executor.start(site.launch(1, "0-2"))
    await site.until(lambda: site.reported("failed"))
    assert site.reported("failed") == [(1, "n1: no such directory")]
    assert [site.tasks(host).open for host in HOSTS] == [[], [], []]
    assert site.records == {}


async def test_signals_limits_and_input_reach_all_parts(site):
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: site.reported("opened"))
    answers: list[Any] = []
    place = site.executor.input_of(1)
    assert place is not None
    place.send(b"all", None, eof=False, answered=answers.append)
    place.send(b"one", Idset.parse("2"), eof=True, answered=answers.append)
    await site.until(lambda: len(answers) == 2)
    assert site.tasks("n0").sent == [(b"all", "None")]
    assert site.tasks("n1").sent == [(b"all", "None"), (b"one", "2")]
    with pytest.raises(Refused, match="tasks 9"):
        place.send(b"", Idset.parse("9"), eof=True, answered=answers.append)
    site.executor.kill(1, SIGTERM)
    await site.until(lambda: all(site.tasks(host).signals for host in ("n0", "n1")))
    assert not site.tasks("n2").signals


async def test_a_keeper_that_was_cut_off_comes_back_with_its_tasks(site):
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: site.reported("started"))
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    site.executor.kill(1, SIGTERM)
    site.tasks("n1").end(1, SIGTERM)
    site.tasks("n0").end(1, 0)
    site.connect("n1")
    await site.until(lambda: site.reported("finished"))
    assert site.reported("finished")[0][1] == SIGTERM
    await site.until(lambda: site.present["n1"])
    assert not site.reported("failed")
    assert not site.reported("raised")


async def test_a_job_that_was_to_end_while_its_host_was_away_is_ended_when_that_is_back(site):
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.executor.kill(1, SIGTERM)
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    site.tasks("n1").signals.clear()
    site.connect("n1")
    await site.until(lambda: (1, SIGTERM) in site.tasks("n1").signals)


async def test_signals_that_a_host_has_missed_are_sent_again_and_no_others(site):
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    signals = site.tasks("n1").signals
    site.executor.kill(1, SIGUSR1)
    await site.until(lambda: signals)
    site.cables["n1"].receive = lambda limit: []  # nothing arrives there any more
    site.executor.kill(1, SIGUSR2)
    site.executor.kill(1, SIGTERM)
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    site.executor.kill(1, SIGUSR1)
    for number in (SIGCONT, SIGHUP):
        site.connect("n1")
        await site.until(lambda: site.present["n1"])
        site.executor.kill(1, number)
        await site.until(lambda: (1, number) in signals)  # noqa: B023 (awaited at once)
        site.cables["n1"].close()
        await site.until(lambda: not site.present["n1"])
    assert signals == [(1, number) for number in (SIGUSR1, SIGUSR2, SIGTERM, SIGUSR1, SIGCONT, SIGHUP)]


async def test_the_next_instance_sends_its_own_signals_though_the_keeper_has_had_as_many(site):
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    signals = site.tasks("n1").signals
    site.executor.kill(1, SIGUSR1)
    await site.until(lambda: signals)
    site.kill()
    site.begin()
    site.resume(ResumedJob(site.launch(1, "1"), site.records[1], begun_s=1.0))
    site.executor.kill(1, SIGUSR2)
    site.connect()
    await site.until(lambda: signals[1:])
    assert signals == [(1, SIGUSR1), (1, SIGUSR2)]


async def test_so_many_signals_are_kept_for_a_host_that_is_away(site, monkeypatch):
    monkeypatch.setattr("fluxsched.executor.proxy.SIGNALS_MAX", 2)
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    for number in (SIGCONT, SIGUSR1, SIGUSR2):
        site.executor.kill(1, number)
    site.connect("n1")
    await site.until(lambda: len(site.tasks("n1").signals) == 2)
    assert site.tasks("n1").signals == [(1, SIGUSR1), (1, SIGUSR2)]


async def test_a_job_that_was_to_give_a_host_back_while_that_was_away_is_asked_again(site, monkeypatch):
    shrunk: list[tuple[int, str, float | None]] = []
    monkeypatch.setattr(
        site.tasks("n1"), "shrink", lambda jobid, ranks, grace_s: shrunk.append((jobid, str(ranks), grace_s))
    )
    site.executor.start(site.launch(1, "0-1", elastic=True))
    await site.until(lambda: site.reported("started"))
    site.cables["n1"].send = lambda frames: None  # nothing is heard of it any more
    site.executor.shrink(1, Idset.parse("1"), 7.0)
    await site.until(lambda: shrunk)
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    shrunk.clear()
    site.connect("n1")
    await site.until(lambda: shrunk == [(1, "1", 7.0)])


async def test_a_keeper_learns_of_a_time_limit_that_was_changed_while_it_was_away(site):
    now_s = SystemClock().wall_s()
    site.executor.start(structs.replace(site.launch(1, "1"), expiration_s=now_s + 3600.0))
    await site.until(lambda: site.reported("started"))
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    site.executor.limit(1, now_s)
    site.connect("n1")
    kept = site.keepers["n1"].service._jobs[1]
    await site.until(lambda: site.present["n1"] and kept.expiration_s == now_s)
    site.turns.stop()
    site.cables["n1"].close()
    await site.until(lambda: (1, SIGTERM) in site.tasks("n1").signals)


async def test_a_host_that_stays_away_is_given_up_after_its_lease_has_ended():
    site = await Site(orphan_timeout_s=0.3, silent_s=1.0, lease_s=WAIT_S).ready()
    site.executor.start(site.launch(1, "0-1"))
    site.executor.start(site.launch(2, "1"))
    await site.until(lambda: len(site.reported("started")) == 2)
    site.keepers["n1"].turns.stop()  # nothing is said any more, and no connection ends
    await site.until(lambda: not site.present["n1"])
    assert not site.reported("failed")
    await site.until(lambda: site.reported("node_failed"))
    assert site.reported("node_failed") == [(2, "host n1 was lost")]
    await site.until(lambda: site.reported("raised"))
    assert site.reported("raised") == [(1, "node-failure", "host n1 was lost")]
    site.executor.kill(1, SIGKILL)
    await site.until(lambda: site.reported("finished"))
    assert site.present == {"n0": True, "n1": False, "n2": True}
    assert set(site.lost) == {"n1"}
    with pytest.raises(FluxschedError, match="keeper of host n1"):
        site.executor.start(site.launch(3, "1"))
    await site.close()


async def test_an_elastic_job_goes_on_without_a_host_that_was_lost():
    site = await Site(orphan_timeout_s=0.3, silent_s=1.0, ping_s=0.02, lease_s=WAIT_S).ready()
    site.executor.start(site.launch(1, "0-1", elastic=True))
    await site.until(lambda: site.reported("started"))
    site.keepers["n1"].turns.stop()
    await site.until(lambda: "n1" in site.lost)
    assert site.records[1]["hosts"]["n1"]["ended"][2] == "host n1 was lost"
    await site.until(lambda: site.reported("lost"))
    assert site.reported("lost") == [(1, "1", "host n1 was lost")]
    site.executor.shrink(1, Idset.parse("1"))
    await site.until(lambda: site.reported("released"))
    assert site.reported("released") == [(1, "1")]
    site.tasks("n0").end(1, 256)
    await site.until(lambda: site.reported("finished"))
    assert site.reported("finished")[0][:2] == (1, 256)
    assert not site.reported("raised")
    await site.close()


async def test_the_next_instance_says_again_which_part_of_an_elastic_job_was_lost_and_releases_it(site):
    launch = site.launch(1, "0-1", elastic=True)
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    site.tasks("n1").reports.failed(1, "its keeper was killed")
    await site.until(lambda: site.reported("lost"))
    site.kill()
    site.said.clear()
    site.begin()
    site.resume(ResumedJob(launch, site.records[1], 1.0, going=Idset.parse("1")))
    site.connect()
    await site.until(lambda: site.reported("released"))
    assert site.reported("lost") == [(1, "1", "n1: its keeper was killed")]
    assert site.reported("released") == [(1, "1")]


async def test_an_elastic_job_that_gets_a_host_again_keeps_status_and_usage_of_what_ended_there(site):
    site.executor.start(site.launch(1, "0-1", elastic=True))
    await site.until(lambda: site.reported("started"))
    for status in (512, 256):
        site.tasks("n1").end(1, status)
        await site.until(lambda status=status: site.records[1]["hosts"]["n1"].get("ended", [None])[0] == status)
        begun = len(site.tasks("n1").open)
        site.executor.grow(1, r_of("1", host="n"))
        await site.until(lambda begun=begun: len(site.tasks("n1").open) > begun)
    assert site.records[1]["former"][:2] == ["2-4", 512]
    site.kill()
    site.begin()
    site.resume(ResumedJob(site.launch(1, "0-1", elastic=True), site.records[1], 1.0))
    site.connect()
    site.tasks("n1").end(1)
    site.tasks("n0").end(1)
    await site.until(lambda: site.reported("finished"))
    _, status, usage = site.reported("finished")[0]
    assert status == 512
    assert usage["user_s"] == 4 * 0.5


@pytest.mark.slow
async def test_the_lease_of_a_keeper_ends_though_its_connection_does_not():
    site = await Site(orphan_timeout_s=LEASE_S, ping_s=0.02).ready()
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.turns.stop()
    await site.until(lambda: all(keeper.is_over for keeper in site.keepers.values()))
    assert site.tasks("n1").is_closed
    await site.close()


async def test_the_next_instance_goes_on_with_what_ran_and_has_ended(site):
    launch = site.launch(1, "0-2")
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    site.tasks("n0").end(1, 256)
    await site.until(lambda: "ended" in site.records[1]["hosts"]["n0"])
    site.kill()
    site.tasks("n2").end(1, 0)
    site.begin()
    site.resume(ResumedJob(launch, site.records[1], 1.0))
    assert not site.is_settled
    site.connect()
    await site.until(lambda: site.is_settled)
    site.tasks("n1").reports.fence(PmiFence(1, 1))
    await site.until(lambda: PmiFenceDone(1, 1, left="host n0") in site.tasks("n1").fences)
    site.tasks("n1").end(1, 0)
    await site.until(lambda: site.reported("finished"))
    assert site.reported("finished")[0][:2] == (1, 256)
    assert [len(site.tasks(host).launched) for host in HOSTS] == [1, 1, 1]
    assert len(site.reported("started")) == 1


async def test_a_job_whose_gate_was_closed_when_the_instance_was_killed_is_opened_by_the_next(site):
    launch = site.launch(1, "0-1")
    held = []
    record = site.tasks("n1").reports.record
    object.__setattr__(site.tasks("n1").reports, "record", lambda *report: held.append(report))
    site.executor.start(launch)
    await site.until(lambda: held and site.records.get(1))
    site.kill()
    site.begin()
    site.resume(ResumedJob(launch, site.records[1], None))
    site.connect()
    record(*held[0])
    await site.until(lambda: site.reported("started"))
    assert [site.tasks(host).open for host in HOSTS] == [[1], [1], []]


async def test_a_part_whose_job_failed_before_the_instance_was_killed_does_not_run(site):
    """That its host was away then is the only reason for which it had not been ended."""
    launch = site.launch(1, "0-1")
    site.records[1] = {
        "hosts": {"n0": {"ended": [0, None, "n0: nothing was left", True]}}, "next": 4,
        "ranks": {"n0": "0", "n1": "1"}, "tasks": {"n0": "0-1", "n1": "2-3"},
    }  # fmt: skip
    site.kill()
    site.begin()
    site.resume(ResumedJob(launch, site.records[1], None))
    site.connect()
    await site.until(lambda: site.reported("node_failed"))
    assert site.reported("node_failed") == [(1, "n0: nothing was left")]
    assert not site.tasks("n1").launched
    assert site.records == {}


async def test_a_barrier_of_several_hosts_outlives_their_connections_and_the_instance(site):
    launch = site.launch(1, "0-1")
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    first, second = site.tasks("n0"), site.tasks("n1")
    first.reports.fence(PmiFence(1, 1, {"a": "0"}))
    second.reports.fence(PmiFence(1, 1, {"b": "1"}))
    done = PmiFenceDone(1, 1, {"a": "0", "b": "1"})
    await site.until(lambda: first.fences and second.fences)
    first.reports.fence(PmiFence(1, 2))
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    second.reports.fence(PmiFence(1, 2))
    site.turns.stop()
    site.cables["n0"].close()
    site.begin()
    site.resume(ResumedJob(launch, site.records[1], 1.0))
    site.connect()
    await site.until(lambda: second.fences[-1:] == [PmiFenceDone(1, 2)] == first.fences[-1:])
    assert {one.number: one for one in first.fences} == {1: done, 2: PmiFenceDone(1, 2)}
    second.end(1)
    left = PmiFenceDone(1, 3, left="host n1")
    await site.until(lambda: first.fences[-1] == left)
    first.end(1)
    await site.until(lambda: site.reported("finished"))


async def test_an_elastic_job_grows_over_hosts_and_numbers_no_two_tasks_alike(site):
    site.executor.start(site.launch(1, "0", elastic=True))
    await site.until(lambda: site.reported("started"))
    site.executor.grow(1, r_of("1-2", host="n"))
    await site.until(lambda: all(site.tasks(host).open for host in HOSTS))
    assert [site.tasks(host).launched[1].first for host in HOSTS] == [0, 2, 3]
    assert site.records[1]["ranks"] == {"n0": "0", "n1": "1", "n2": "2"}
    site.executor.shrink(1, Idset.parse("1"))
    await site.until(lambda: site.reported("released"))
    assert site.reported("released") == [(1, "1")]
    site.tasks("n1").end(1)
    await site.until(lambda: "ended" in site.records[1]["hosts"]["n1"])
    site.executor.grow(1, r_of("1", host="n"))
    await site.until(lambda: len(site.tasks("n1").open) == 2)
    assert site.tasks("n1").launched[1].first == 4
    assert len(site.reported("started")) == 1


async def test_the_next_instance_numbers_tasks_behind_those_that_ran_where_a_grow_was_stored_and_not_done(site):
    launch = site.launch(1, "1", elastic=True)
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    site.kill()
    site.begin()
    grown = structs.replace(launch, R=r_of("0-1", host="n"))
    site.resume(ResumedJob(grown, site.records[1], 1.0))
    site.connect()
    await site.until(lambda: site.tasks("n0").open)
    assert site.tasks("n0").launched[1].first == site.records[1]["next"] - 1 == 2
    assert site.records[1]["tasks"] == {"n0": "2", "n1": "0-1"}
    place = site.executor.input_of(1)
    assert place is not None
    place.send(b"first", Idset.parse("0"), eof=False, answered=lambda *_: None)
    await site.until(lambda: site.tasks("n1").sent)
    assert not site.tasks("n0").sent


async def test_what_a_killed_keeper_has_left_is_ended_before_its_host_is_used_again(site):
    site.executor.start(site.launch(1, "1"))
    site.executor.start(site.launch(2, "0-1"))
    await site.until(lambda: len(site.reported("started")) == 2)
    site.cables["n1"].close()
    site.keepers["n1"] = Keeper("n1", site, LeaseTerms(0.02, 30.0))
    await site.until(lambda: not site.present["n1"])
    site.connect("n1")
    await site.until(lambda: site.present["n1"])
    note = "the keeper of its tasks on n1 was killed; gone"
    assert site.reported("failed") == [(1, note)]
    assert site.reported("raised") == [(2, "exec", note)]


async def test_the_next_keeper_looks_for_what_is_left_of_jobs_that_were_given_up_with_a_host():
    """The keeper of before may have been killed together with its guard, before it could end its tasks."""
    site = await Site(orphan_timeout_s=0.3, lease_s=WAIT_S).ready()
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.keepers["n1"].turns.stop()
    site.cables["n1"].close()
    await site.until(lambda: site.reported("node_failed"))
    site.keepers["n1"] = Keeper("n1", site, LeaseTerms(0.02, 30.0))
    site.connect("n1")
    await site.until(lambda: site.present["n1"])
    assert site.keepers["n1"].cleared == [1]
    assert site.reported("node_failed") == [(1, "host n1 was lost")]
    await site.close()


@pytest.mark.parametrize("ranks", ["1", "0-1"])
async def test_the_next_instance_has_the_next_keeper_look_for_what_is_left_of_a_job_that_was_given_up(ranks):
    site = await Site(orphan_timeout_s=0.3, lease_s=WAIT_S).ready()
    site.executor.start(site.launch(1, ranks))
    await site.until(lambda: site.reported("started"))
    site.keepers["n1"].turns.stop()
    site.cables["n1"].close()
    if ranks == "0-1":
        await site.until(lambda: site.reported("raised"))
        site.executor.kill(1, SIGKILL)
    await site.until(lambda: site.reported("finished") or site.reported("node_failed"))
    site.kill()
    site.begin()
    site.resume()
    site.keepers["n1"] = Keeper("n1", site, LeaseTerms(0.02, 30.0))
    site.connect()
    await site.until(lambda: site.present["n1"])
    assert site.keepers["n1"].cleared == [1]
    assert site.keepers["n0"].cleared == []
    assert site.records == {}
    await site.close()


async def test_an_instance_that_does_not_answer_is_asked_so_often_and_no_more():
    turns, asked = Turns(SystemClock()), list[Any]()
    lease = KeeperLease(turns, LeaseTerms(0.0001, 60.0), asked.append, lambda: None)
    turns.start(asyncio.get_running_loop())
    lease.connected()
    async with asyncio.timeout(WAIT_S):
        while lease._number < UNANSWERED_MAX + 10:
            await asyncio.sleep(0.001)
    assert len(asked) == UNANSWERED_MAX
    lease.answered(asked[0].number)
    async with asyncio.timeout(WAIT_S):
        while len(asked) == UNANSWERED_MAX:
            await asyncio.sleep(0.001)
    lease.disconnected()
    turns.stop()


async def test_a_time_limit_is_kept_by_the_clock_of_the_instance_where_that_of_the_host_is_wrong(site, monkeypatch):
    clock = site.keepers["n1"].turns.clock
    late = SystemClock()
    monkeypatch.setattr(late, "wall_s", lambda: clock.wall_s() + 3600.0, raising=False)
    site.keepers["n1"].turns.clock = late
    site.connect("n1")
    await site.until(lambda: site.present["n1"])
    launch = structs.replace(site.launch(1, "1"), expiration_s=SystemClock().wall_s() + 0.5)
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    site.turns.stop()
    site.cables["n1"].close()
    await asyncio.sleep(0.1)
    assert not site.tasks("n1").signals
    await site.until(lambda: (1, SIGTERM) in site.tasks("n1").signals)


async def test_what_mpi_tasks_put_before_a_barrier_reaches_all_hosts_once_all_are_in_it(site):
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: site.reported("started"))
    site.tasks("n0").reports.fence(PmiFence(1, 1, {"a": "0"}))
    await site.until(lambda: site.keepers["n0"].service._jobs[1].fences)
    site.cables["n0"].close()
    await site.until(lambda: not site.present["n0"])
    site.tasks("n1").reports.fence(PmiFence(1, 1, {"b": "1"}))
    site.connect("n0")
    await site.until(lambda: site.tasks("n0").fences and site.tasks("n1").fences)
    assert site.tasks("n0").fences[0] == PmiFenceDone(1, 1, {"a": "0", "b": "1"})
    assert site.tasks("n1").fences[0] == PmiFenceDone(1, 1, {"a": "0", "b": "1"})
    site.tasks("n1").end(1)
    await site.until(lambda: site.tasks("n0").fences[-1].left == "host n1")


async def test_jobs_of_a_backup_are_not_started_again(site):
    site.turns.stop()
    site.begin()
    site.records = {1: DISOWNED, 2: DISOWNED}
    one, two = site.launch(1, "1"), site.launch(2, "0-1")
    site.resume(ResumedJob(one, DISOWNED, 1.0), ResumedJob(two, DISOWNED, 1.0))
    site.connect()
    await site.until(lambda: site.is_settled and site.reported("failed") and site.reported("finished"))
    assert site.reported("failed")[0][0] == 1
    assert site.reported("raised")[0][0] == 2
    assert not any(site.tasks(host).launched for host in HOSTS)


def test_what_runs_on_other_hosts_is_not_searched_for_here():
    notes = clear_orphans({1: {"hosts": {"n1": {"pid": 1}}}}, 0.0)
    assert notes == {1: "its tasks are at the keepers of other hosts, which end them"}


async def test_a_keeper_that_is_asked_to_end_ends_its_jobs_on_all_hosts(site):
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: site.reported("started"))
    site.keepers["n1"].service.end_jobs()
    await site.until(lambda: site.reported("raised"))
    assert site.reported("raised") == [(1, "exec", "n1: the keeper of its tasks was asked to end")]
    assert site.tasks("n1").signals == [(1, SIGTERM)]


# Commands beside the tasks of a job.


class Beside:
    """A command, and what became of it."""

    def __init__(self, site: Site, number: int, job: JobLaunch, host: str) -> None:
        self.site, self.number, self.host = site, number, host
        self.is_open = False
        self.end: tuple[int, str] | None = None
        command = HostCommand(job.jobid, host, self._opened, self._ended)
        site.executor.run_command(number, job, host, "orted", command)

    def _opened(self) -> None:
        self.is_open = True

    def _ended(self, status: int, note: str) -> None:
        self.end = status, note

    async def runs(self) -> JobLaunch:
        await self.site.until(lambda: self.is_open)
        return self.site.tasks(self.host).launched[self.number]


@pytest.mark.parametrize("ranks", ["0", "0-1"])
async def test_a_job_has_not_finished_before_the_commands_beside_its_tasks_have(site, ranks):
    launch = site.launch(1, ranks, ntasks=len(Idset.parse(ranks)))
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    command = Beside(site, 9, launch, "n0")
    other = Beside(site, 10, launch, "n0")
    started = await command.runs()
    await other.runs()
    assert (started.jobspec.command, started.beside) == (("/bin/sh", "-c", "orted"), 1)
    assert site.reported("started") == [(1,)], "a command is no job of the instance"
    for host in HOSTS[: len(Idset.parse(ranks))]:
        site.tasks(host).end(1, 256)
    await site.until(lambda: (9, SIGTERM) in site.tasks("n0").signals and (10, SIGTERM) in site.tasks("n0").signals)
    with pytest.raises(Refused, match=r"have ended|does not run"):
        Beside(site, 11, launch, "n0")
    site.tasks("n0").end(9, 15)
    await site.until(lambda: command.end == (15, ""))
    assert 1 in site.records, "an instance that is restarted now does not start it again"
    assert not site.reported("finished")
    site.tasks("n0").end(10, 0)
    await site.until(lambda: site.reported("finished"))
    assert site.reported("finished")[0][:2] == (1, 256)
    assert site.records == {}


async def test_a_command_runs_where_its_job_has_a_host_though_no_task_of_it_does(site):
    launch = site.launch(1, "0-2", ntasks=1)
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    command = Beside(site, 9, launch, "n2")
    await command.runs()
    with pytest.raises(Refused, match=r"has nothing on host 'n7', but on n"):
        Beside(site, 10, launch, "n7")
    with pytest.raises(Refused, match="does not run"):
        Beside(site, 10, site.launch(2, "0-2"), "n2")
    site.executor.kill(9, SIGTERM)
    await site.until(lambda: site.tasks("n2").signals == [(9, SIGTERM)])
    site.tasks("n2").end(9, 3)
    await site.until(lambda: command.end == (3, ""))
    site.tasks("n2").refuses = True
    command = Beside(site, 10, launch, "n2")
    await site.until(lambda: command.end == (0, "n2: no such directory"))
    site.tasks("n0").end(1)
    await site.until(lambda: site.reported("finished"))


async def test_targets_that_were_to_be_given_back_when_the_instance_was_killed_are_released_by_the_next(site):
    launch = site.launch(1, "0-1", elastic=True)
    site.executor.start(launch)
    await site.until(lambda: site.reported("started"))
    site.kill()
    site.begin()
    left = structs.replace(launch, R=r_of("0", host="n"))  # its R has them no longer
    site.resume(ResumedJob(left, site.records[1], 1.0, going=Idset.parse("1")))
    site.connect()
    await site.until(lambda: site.reported("released"))
    assert site.reported("released") == [(1, "1")]
    assert not site.tasks("n1").signals


async def test_a_part_whose_tasks_end_before_the_others_are_ready_ends_the_job_before_any_task_runs(site):
    held = []
    record = site.tasks("n1").reports.record
    object.__setattr__(site.tasks("n1").reports, "record", lambda *report: held.append(report))
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: held and site.records.get(1))
    site.tasks("n0").end(1, SIGKILL)
    record(*held[0])
    await site.until(lambda: site.reported("failed"))
    assert site.reported("failed") == [(1, "it was ended before its tasks ran")]
    assert site.tasks("n1").open == []


async def test_a_keeper_that_is_back_just_when_its_host_is_given_up_gets_jobs_again():
    site = await Site(orphan_timeout_s=0.3, silent_s=30.0, lease_s=WAIT_S).ready()
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.keepers["n1"].turns.stop()
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    site.keepers["n1"] = Keeper("n1", site, LeaseTerms(0.02, 30.0))
    remote = site.remotes["n1"]
    ours, theirs = map(StreamClient, socket.socketpair())
    remote.attach(ours)  # it says nothing until the host was given up
    await site.until(lambda: site.reported("node_failed"))
    theirs.start(asyncio.get_running_loop(), site.keepers["n1"].turns.wake)
    site.keepers["n1"].service.attend(theirs)
    await site.until(lambda: site.present["n1"])
    site.executor.start(site.launch(2, "1"))
    await site.until(lambda: (2,) in site.reported("started"))
    await site.close()


async def test_a_host_that_stays_away_is_asked_for_again_and_again_also_without_jobs():
    site = Site(orphan_timeout_s=0.01, lease_s=WAIT_S)
    site.resume()
    site.connect("n0", "n2")
    await site.until(lambda: site.lost.count("n1") > 2)
    assert site.is_settled
    site.connect("n1")
    await site.until(lambda: site.present["n1"])
    await site.close()


async def test_a_host_is_lost_once_its_tasks_have_had_the_time_to_end():
    site = await Site(orphan_timeout_s=0.2, lease_s=WAIT_S).ready()
    clock, remote = site.turns.clock, site.remotes["n1"]
    assert remote._fence_s == pytest.approx(0.2 + 0.1 + 0.1)  # lease, kill timeout, margin
    site.lost.clear()
    begun_s = clock.monotonic_s()
    site.cables["n1"].close()
    site.keepers["n1"].turns.stop()
    await site.until(lambda: site.lost)
    assert clock.monotonic_s() - begun_s >= remote._fence_s
    await site.close()


async def test_a_keeper_that_answers_once_its_host_was_given_up_has_its_targets_online():
    site = await Site(orphan_timeout_s=0.1, lease_s=WAIT_S).ready()
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.cables["n1"].close()
    await site.until(lambda: not site.present["n1"])
    ours, theirs = map(StreamClient, socket.socketpair())
    site.remotes["n1"].attach(ours)  # and the keeper does not answer yet
    await site.until(lambda: site.lost)
    assert site.reported("node_failed") == [(1, "host n1 was lost")]
    site.keepers["n1"] = Keeper("n1", site, LeaseTerms(0.02, 30.0))
    theirs.start(asyncio.get_running_loop(), site.keepers["n1"].turns.wake)
    site.keepers["n1"].service.attend(theirs)
    await site.until(lambda: site.present["n1"])
    await site.close()


async def test_a_part_behind_its_gate_has_ended_once_it_is_killed(site, monkeypatch):
    """As `LocalExecutor` has it: what was killed before it ran has ended when its gate opens."""
    site.tasks("n1").refuses = True
    tasks = site.tasks("n0")
    killed = []
    monkeypatch.setattr(tasks, "kill", lambda jobid, signum, grace_s=None: killed.append(signum))
    monkeypatch.setattr(tasks, "_opened", lambda jobid: tasks.end(jobid, killed[0]))
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: site.reported("failed"))
    assert killed == [SIGKILL]


async def test_hosts_that_a_job_grows_by_together_get_a_share_of_its_tasks_each(site):
    site.executor.start(site.launch(1, "0", elastic=True))
    await site.until(lambda: site.reported("started"))
    r = r_of("1-2", host="n")
    r["execution"]["nslots"] = 2
    site.executor.grow(1, r)
    await site.until(lambda: all(site.tasks(host).open for host in HOSTS))
    launches = [site.tasks(host).launched[1] for host in HOSTS]
    given = [program_of(launch, ResourceSet.parse(launch.R)) for launch in launches]
    assert [tasks.own_of(tasks.blocks)[0].ntasks for tasks in given] == [2, 1, 1]


async def test_a_host_is_used_again_once_a_job_that_it_runs_and_that_was_given_up_has_ended(monkeypatch):
    site = await Site(orphan_timeout_s=0.1, lease_s=WAIT_S).ready()
    tasks = site.tasks("n1")
    monkeypatch.setattr(tasks, "kill", lambda jobid, signum, grace_s=None: tasks.signals.append((jobid, signum)))
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.cables["n1"].close()
    await site.until(lambda: site.reported("node_failed"))
    site.connect("n1")
    await site.until(lambda: (1, SIGKILL) in tasks.signals)
    await asyncio.sleep(0.05)
    assert not site.present["n1"]
    tasks.end(1, SIGKILL)
    await site.until(lambda: site.present["n1"])
    assert len(site.reported("node_failed")) == 1
    await site.close()


async def test_a_keeper_that_is_asked_to_end_fails_jobs_that_wait_there_and_starts_none(site):
    held = []
    object.__setattr__(site.tasks("n1").reports, "record", lambda *report: held.append(report))
    site.executor.start(site.launch(1, "0-1"))
    await site.until(lambda: held and site.records.get(1))
    site.keepers["n0"].service.end_jobs()
    await site.until(lambda: site.reported("raised"))
    assert site.reported("raised") == [(1, "exec", "n0: the keeper of its tasks was asked to end")]
    site.executor.start(site.launch(2, "0"))
    await site.until(lambda: site.reported("failed"))
    assert site.reported("failed") == [(2, "n0: the keeper of its tasks was asked to end")]


@pytest.mark.slow
async def test_a_keeper_waits_no_longer_for_an_instance_that_restarts_than_that_counts():
    site = await Site(orphan_timeout_s=LEASE_S).ready()
    site.executor.start(site.launch(1, "1"))
    await site.until(lambda: site.reported("started"))
    site.executor.detach(600.0)
    site.turns.stop()
    await site.until(lambda: all(keeper.is_over for keeper in site.keepers.values()))
    await site.close()
