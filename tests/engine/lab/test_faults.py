"""What fails on hosts and links of real engines, and that nothing runs where it should not afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.lab.hosts import Lab, Process, until
from tests.engine.lab.site import Site

ENGINES = [pytest.param(name, marks=getattr(pytest.mark, name)) for name in ("slurm", "flux", "ssh")]


@pytest.fixture(params=ENGINES)
def site(request: pytest.FixtureRequest, mended: Lab) -> Iterator[Site]:
    with Site(mended, request.param) as site:
        yield site


def guard_and_keeper(site: Site, host: str) -> tuple[Process, Process]:
    found = {one.pid: one for one in site.lab.processes(host) if "-m fluxsched.engine.keeper_main" in one.command}
    (keeper,) = [
        one for one in found.values() if one.parent in found and "python" in found[one.parent].command.split()[0]
    ]
    return found[keeper.parent], keeper


def sleeping_everywhere(site: Site, text: str) -> str:
    """Return a job that sleeps on all hosts, once it does."""
    jobid = site.running("-N4", "-n4", *text.split())
    until(lambda: len(site.everywhere(text)) == 4, "all tasks run")
    return jobid


def exceptions(site: Site, jobid: str) -> list[str]:
    """Return the exceptions of a job, once it has ended."""
    site("wait", jobid, status=None)
    lines = site("job", "eventlog", jobid).splitlines()
    return [line for line in lines if "exception" in line]


@pytest.mark.parametrize("killed", ["guard", "keeper"])
def test_a_killed_guard_or_keeper_takes_its_tasks_and_the_host_returns(site: Site, killed: str) -> None:
    jobid = sleeping_everywhere(site, "sleep 5001")
    guard, keeper = guard_and_keeper(site, "n3")
    site.lab.kill("n3", (guard if killed == "guard" else keeper).pid)
    assert any("n3" in line for line in exceptions(site, jobid))
    until(lambda: not site.everywhere("sleep 5001"), "no task is left")
    until(lambda: site.up() == site.all, "the host is online again")
    if killed == "keeper":
        assert guard_and_keeper(site, "n3")[0] == guard
    assert site("run", "-N4", "-n4", "hostname").split()


def test_a_host_whose_link_is_cut_is_fenced_before_its_job_has_ended(site: Site) -> None:
    jobid = sleeping_everywhere(site, "sleep 5003")
    site.lab.cut("n3")
    until(lambda: site.up() == "n[1-2,4]", "the loss is noticed")
    assert any("n3" in line for line in exceptions(site, jobid))
    assert not site.everywhere("sleep 5003")
    site.lab.mend("n3")
    site.restore_engine()
    until(lambda: site.up() == site.all, "the host is online again", 120)


def test_a_link_that_is_mended_in_time_costs_no_job(site: Site) -> None:
    jobid = sleeping_everywhere(site, "sleep 5004")
    site.lab.cut("n3")
    site.lab.run("n1", "sleep", "4")
    site.lab.mend("n3")
    until(lambda: site.up() == site.all, "the host is online")
    assert site.commands("n3", "sleep 5004")
    site("cancel", jobid)
    site("wait", jobid, status=None)
    until(lambda: not site.everywhere("sleep 5004"), "no task is left")


def test_a_host_that_is_not_heard_is_fenced(site: Site) -> None:
    jobid = sleeping_everywhere(site, "sleep 5005")
    site.lab.mute("n3", "n1")
    until(lambda: site.up() == "n[1-2,4]", "the loss is noticed")
    assert any("n3" in line for line in exceptions(site, jobid))
    assert not site.everywhere("sleep 5005")
    site.lab.unmute("n3", "n1")
    site.restore_engine()
    until(lambda: site.up() == site.all, "the host is online again", 120)


def test_a_host_that_crashes_fails_its_jobs_alone(site: Site) -> None:
    other = site.running("-N1", "-n1", "--requires=host:n2", "sleep", "5006")
    jobid = site.running("-N1", "-n1", "--requires=host:n4", "sleep", "5007")
    site.lab.crash("n4")
    assert any("n4" in line for line in exceptions(site, jobid))
    assert site.up() == "n[1-3]"
    assert site.commands("n2", "sleep 5006")
    site("cancel", other)


def test_nothing_is_left_of_an_instance_that_is_killed(site: Site) -> None:
    sleeping_everywhere(site, "sleep 5008")
    site.kill()
    until(lambda: not site.everywhere("sleep 5008"), "no task is left")
    until(lambda: not site.everywhere("fluxsched.engine.keeper_main"), "no keeper is left")


def test_hosts_return_when_the_engines_process_has_ended(site: Site) -> None:
    jobid = sleeping_everywhere(site, "sleep 5009")
    program = {"slurm": "srun --overlap", "flux": 'exec "$@" >&2', "ssh": "ssh -T"}[site.kind]
    processes = site.commands("n1", program)
    assert processes
    for one in processes:
        site.lab.run("n1", "kill", "-9", one.pid, status=None)
    if site.kind == "ssh":  # which leaves the keepers; the others end them, and are asked to start them again
        assert len(site.everywhere("sleep 5009")) == 4
        site("cancel", jobid)
    site("wait", jobid, status=None)
    until(lambda: not site.everywhere("sleep 5009"), "no task is left")
    until(lambda: site.up() == site.all, "all hosts are up", 120)
    assert len(site("run", "-N4", "-n4", "hostname").split()) == 4
