"""Countable resources by commands: asked for, shown, waited for, freed, found again by a new scheduler."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def here(daemon: Any, tmp_path: Path) -> Any:
    """Two targets of this machine with 16 GiB each, and two licences."""
    entry = {"rank": "0-1", "children": {"core": "0-3"}, "amounts": {"memory": 16 << 30}}
    host = os.uname().nodename
    execution = {"R_lite": [entry], "nodelist": [host, host], "shared": {"matlab": 2}}
    path = tmp_path / "R.json"
    path.write_text(json.dumps({"version": 1, "execution": {"starttime": 0, "expiration": 0, **execution}}))
    return daemon("--R", path)


def amounts(here: Any) -> dict[str, str]:
    """What is free and allocated."""
    lines = here("resource", "list", "-n", "-s", "free,allocated", "-o", "{state} {amounts}").out.splitlines()
    return {line.split()[0]: "".join(line.split()[1:]) for line in lines}


def test_amounts_are_shared_waited_for_and_given_back(here: Any, until: Any) -> None:
    everything = {"free": "matlab=2,memory=32GiB", "allocated": ""}
    assert amounts(here) == everything
    assert here("resource", "info").word.endswith(", 8 Cores, 0 GPUs, 2 matlab, 32 GiB memory")
    assert here("resource", "info", "--json").json["amounts"] == {"matlab": 2, "memory": 32 << 30}
    wide = here.running("--request", "memory=6GiB,matlab=1/job", "-N2", "-n4", "sleep", "100")
    assert amounts(here) == {"free": "matlab=1,memory=8GiB", "allocated": "matlab=1,memory=24GiB"}
    small = here.running("--request", "memory=4GiB/node", "-N1", "--request", "matlab=1/job", "sleep", "100")
    assert amounts(here) == {"free": "memory=4GiB", "allocated": "matlab=2,memory=28GiB"}
    memory = here.submit("--request", "memory=5GiB", "sleep", "100")
    assert "5 GiB memory" in until(lambda: here.info(memory).get("annotations", {}).get("sched"))["reason_pending"]
    here("module", "reload", "sched-fifo")  # hello tells the new one what the running jobs have
    assert amounts(here) == {"free": "memory=4GiB", "allocated": "matlab=2,memory=28GiB"}
    assert here.info(memory)["state"] == "SCHED"
    here("cancel", wide)
    here("job", "wait-event", memory, "start")
    assert amounts(here) == {"free": "matlab=1,memory=23GiB", "allocated": "matlab=1,memory=9GiB"}
    here("cancel", small, memory)
    until(lambda: amounts(here) == everything)


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["--request", "memory=17GiB"], 1, "the largest that matches has 4 cores and 16 GiB memory"),
        (["--request", "matlab=3/job"], 1, "matlab"),
        (["--request", "memory=4G"], 2, "unit 'G' is not known: give B, kB"),
        (["--request", "core=4"], 2, "'core' is not the name of a countable resource"),
        (["--request", "memory=1/socket"], 2, "'memory=1/socket' is not KIND=AMOUNT, KIND=AMOUNT/node or"),
        (["--request", "memory=1/node"], 1, "memory for each node: give the number of nodes"),
        (["--request", "memory=1", "--request", "memory=2"], 1, "memory for each task is given twice"),
        (["--mem", "1G", "--request", "memory=1/node"], 1, "memory for each node is given twice"),
        (["-n2", "--mem", "17G"], 1, "needs 1 node of 17 GiB memory and 2 slots of 1 core"),
        (["--mem", "2000"], 2, "'2000' has no unit: give one, as in 2000M"),
    ],
)
def test_what_cannot_be_had_is_refused(here: Any, words: list[str], status: int, told: str) -> None:
    found = here("run", *words, "true", status=status)
    assert told in found.err, found


@pytest.mark.plain_only("its policy replaces methods of the pool")
def test_a_scheduler_that_grants_more_than_there_is_is_cut_off(here: Any, until: Any) -> None:
    """The job manager trusts nobody: here with a policy that hands out what its pool has not."""
    path = here.directory / "greedy.py"
    path.write_text(GREEDY)
    jobs = [here.submit("--request", "memory=10GiB", "sleep", "100") for _ in range(3)]
    until(lambda: here.info(jobs[1])["state"] == "RUN")
    here("module", "remove", "sched-fifo")
    here("module", "load", "greedy.py")
    until(lambda: "10 GiB memory where 6 GiB memory is free of rank" in here("module", "list").out)
    assert here.info(jobs[2])["state"] == "SCHED"
    assert amounts(here)["allocated"] == "memory=20GiB"


GREEDY = '''
"""Places as if nobody held any memory: it reaches into the pool, which no policy should."""
from fluxsched.sched.policy import Start
from fluxsched.sched.pool.amounts import Countable

class Greedy:
    name = "greedy"

    def schedule(self, view, now_s):
        Countable.left = lambda self, rank: self.total
        Countable.enough = lambda self, at, word, need: word
        for job in view.queue:
            fit = view.find(job)
            if fit is not None:
                yield Start(job.jobid, fit)
'''


def test_a_job_that_uses_more_memory_than_it_asked_for_is_ended_and_told(here: Any) -> None:
    use = "b = b'x' * (200 << 20); import time; time.sleep(60)"
    done = here("run", "--request", "memory=100MiB", "python3", "-S", "-c", use, status=None)
    assert done.status == 128 + 9
    assert "exception memory: used 2" in done.err
    assert f" MiB of the 100 MiB of memory that it asked for, on {os.uname().nodename}" in done.err
    told = here("module", "stats", "instance").out
    assert "watched: sampled every 1 s" in told or "cgroup: " in told


def test_the_memory_of_this_machine_is_counted_without_being_configured(user: Any, daemon: Any) -> None:
    here = daemon()
    found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    total = int(found["MemTotal"].split()[0]) * 1024
    counted = here("resource", "R").json["execution"]["R_lite"][0]["amounts"]["memory"]
    assert total // 64 < counted <= total  # a container may allow less
    job = here.running("-n1", "--mem", "200M", "sleep", "100")
    assert amounts(here)["allocated"] == "memory=200MiB"
    unlimited = here.running("sleep", "100")  # asks for none, so none is counted
    assert amounts(here)["allocated"] == "memory=200MiB"
    here("cancel", job, unlimited)
    refused = here("run", "--mem", f"{(counted >> 20) + 1}M", "true", status=1).err
    assert f"can never run: needs 1 node of {(counted >> 20) + 1} MiB memory" in refused
    assert f" {counted >> 20} MiB memory" in refused


def test_a_machine_whose_memory_was_not_counted_before_a_crash_finds_its_jobs_again(
    user: Any, daemon: Any, until: Any, kill_hard: Any, tmp_path: Path
) -> None:
    """The R of older versions had cores alone."""
    here = daemon()
    resources = here("resource", "R").json
    del resources["execution"]["R_lite"][0]["amounts"]
    here("stop")
    old = tmp_path / "old.json"
    old.write_text(json.dumps(resources))
    before = daemon("--R", old, "--statedir", "state")
    job = before.running("sleep", "100")
    before("resource", "drain", "0", "later")
    kill_hard(before.pid())
    after = daemon("--statedir", "state")
    until(lambda: after.info(job)["state"] == "RUN")
    assert "later" in after("resource", "drain").out
    after("resource", "undrain", "0")
    after("cancel", job)
    assert after("run", "--mem", "100M", "echo", "ran").out == "ran\n"
