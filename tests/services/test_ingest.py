"""Submit filters in real instances: what they decide, and what becomes of submits when they fail."""

from __future__ import annotations

import asyncio
import errno
import os

import pytest

from fluxsched.config.submit_filters import FilterAnswer, FilterFault, SubmittedJob
from fluxsched.config.values import IngestSettings
from fluxsched.core.jobspec import Jobspec
from fluxsched.errors import Refused, RPCError
from fluxsched.services.jobs import BATCH_MAX, SubmitFilters

FILTER = """
import os, time
from fluxsched.errors import Refused

class Filter:
    name = "rules"

    def filter(self, job):
        command = job.jobspec["tasks"][0]["command"]
        system = job.jobspec["attributes"]["system"]
        if command[0] == "refused":
            raise Refused("not here")
        if command[0] == "raises":
            return {}["absent"]
        if command[0] == "invalid":
            return {"version": 1}
        if command[0] == "number":
            return 7
        if command[0] == "dies":
            os._exit(3)
        if command[0] == "hangs":
            time.sleep(600)
        if command[0] == "edited":
            system["bank"] = f"of-{job.userid}-{job.urgency}"
            return job.jobspec
        return None
"""


async def site(world, *, without="refuse", timeout="30s", text=FILTER):
    world.write("rules.py", text)
    ingest = f'[ingest]\nfilters = ["rules.py"]\ntimeout = "{timeout}"\nwithout-filters = "{without}"\n'
    return await world.bare(config=ingest, fake="2x4")


def of(word, **options):
    return Jobspec.from_command([word], **options)


async def error_of(handle, word):
    with pytest.raises(RPCError) as caught:
        await handle.submit(of(word))
    return caught.value.errnum, str(caught.value)


async def accepted_again(handle):
    """Until a submit is accepted: the filters have been started again."""
    async with asyncio.timeout(60):
        while True:
            try:
                return await handle.submit(of("plain"))
            except RPCError as fault:
                if fault.errnum != errno.EAGAIN:
                    raise
                await asyncio.sleep(0.05)


async def test_a_filter_edits_refuses_and_passes(world):
    handle = await world.client(await site(world))
    jobid = await handle.submit(of("edited"), urgency=9)
    found = await handle.rpc("job-manager.lookup", {"id": jobid, "keys": ["jobspec"]})
    assert found["jobspec"]["attributes"]["system"]["bank"] == f"of-{os.getuid()}-9"
    plain = await handle.submit(of("plain"))
    found = await handle.rpc("job-manager.lookup", {"id": plain, "keys": ["jobspec"]})
    assert "bank" not in found["jobspec"]["attributes"]["system"]
    assert await error_of(handle, "refused") == (errno.EINVAL, "not here")


async def test_a_fault_of_a_filter_refuses_the_one_job_and_names_the_line(world):
    handle = await world.client(await site(world))
    text = "submit filter 'rules' raised KeyError: 'absent' (rules.py:14); tell the administrator"
    assert await error_of(handle, "raises") == (errno.EINVAL, text)
    text = "submit filter 'rules' raised TypeError: filter returned int, not a jobspec or None"
    number, said = await error_of(handle, "number")
    assert number == errno.EINVAL
    assert said.startswith(text)
    number, said = await error_of(handle, "invalid")
    assert said.startswith("a submit filter has made this jobspec invalid: ")
    assert await handle.submit(of("plain"))


async def test_jobs_that_are_submitted_together_keep_their_order(world):
    handle = await world.client(await site(world))
    words = ["plain", "refused", "edited"] * 300
    found = await asyncio.gather(*[handle.submit(of(word)) for word in words], return_exceptions=True)
    ids = [each for each in found if isinstance(each, int)]
    assert ids == sorted(ids)
    assert [isinstance(each, int) for each in found] == [word != "refused" for word in words]


async def test_filters_judge_each_job_of_an_array(world):
    handle = await world.client(await site(world))
    path = [["tasks", 0, "command", 0]]
    for words in (["refused", "plain"], ["invalid"]):
        with pytest.raises(RPCError, match=r"not here|has made this jobspec invalid"):
            await handle.submit_array(of(words[0]), path, [[word] for word in words])
    words = ["plain", "refused", "edited", "raises"] * 100
    found = await handle.submit_array(of("plain"), path, [[word] for word in words], urgency=9)
    ids = found["ids"]
    assert [bool(jobid) for jobid in ids] == [word in ("plain", "edited") for word in words]
    assert sorted(filter(None, ids)) == list(filter(None, ids))
    assert [(at, text) for at, _, text in found["refused"] if words[at] == "refused"] == [
        (at, "not here") for at in range(1, 400, 4)
    ]
    edited = await handle.rpc("job-manager.lookup", {"id": ids[2], "keys": ["jobspec"]})
    system = edited["jobspec"]["attributes"]["system"]
    assert (system["array"], system["bank"]) == (ids[0], f"of-{os.getuid()}-9")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "timeout", "why"),
    [("dies", "30s", "exit status 3"), ("hangs", "1s", "it did not answer within 1 s")],
)
async def test_without_its_process_submits_are_refused_until_it_is_back(world, word, timeout, why):
    handle = await world.client(await site(world, timeout=timeout))
    await accepted_again(handle)  # on a busy machine the first start may take more than a second
    number, text = await error_of(handle, word)
    assert number == errno.EAGAIN
    assert "the submit filters of this instance are not running, so it accepts no jobs now" in text
    assert why in text
    assert await accepted_again(handle)


async def test_without_its_process_jobs_pass_if_the_site_says_so(world):
    handle = await world.client(await site(world, without="pass"))
    assert await handle.submit(of("dies"))


async def test_a_filter_that_cannot_be_loaded_is_named_in_each_refusal(world):
    handle = await world.client(await site(world, text="class Filter:\n    name = 'a'\n"))
    number, text = await error_of(handle, "plain")
    assert number == errno.EAGAIN
    assert "rules.py should hold one submit filter, a class with `name` and `filter`; it has none" in text


class Process:
    """A process of filters that lets all pass."""

    def __init__(self):
        self.batches = []

    def ask(self, jobs: list[SubmittedJob]) -> list[FilterAnswer]:
        self.batches.append(len(jobs))
        return [FilterAnswer() for _ in jobs]

    def kill(self) -> None: ...

    def close(self) -> None: ...


class Held:
    """A thread that does its calls when it is told to."""

    def __init__(self):
        self.calls = []

    def run(self, transaction, done):
        self.calls.append((transaction, done))

    def go_on(self):
        calls, self.calls = self.calls, []
        for transaction, done in calls:
            transaction()
            done()


IS_A_REQUEST = pytest.mark.plain_only("compiled code takes requests of the router alone")


class Request:
    userid, topic = 7, "job-manager.submit"

    def __init__(self):
        self.faults = []

    def failed(self, fault):
        self.faults.append(fault)


@IS_A_REQUEST
async def test_submits_that_wait_for_the_filters_are_bounded(world):
    turns = (await world.bare()).turns
    thread, accepted = Held(), []
    filters = SubmitFilters(IngestSettings(("a",)), turns, thread, Process, waiting_max=2)
    jobspec = of("plain")
    for _ in range(3):  # the first one is asked about, and two wait
        filters.admit(Request(), jobspec, 16, accepted.append)
    with pytest.raises(Refused, match="2 submits wait for the submit filters, the limit") as caught:
        filters.admit(Request(), jobspec, 16, accepted.append)
    assert caught.value.errnum == errno.EAGAIN
    thread.go_on()
    thread.go_on()
    assert accepted == [jobspec] * 3


@IS_A_REQUEST
async def test_what_arrives_meanwhile_is_the_next_batch_up_to_a_limit(world):
    turns = (await world.bare()).turns
    process, thread, accepted, jobspec = Process(), Held(), [], of("plain")
    filters = SubmitFilters(IngestSettings(("a",)), turns, thread, lambda: process)
    for _ in range(1 + BATCH_MAX + 2):
        filters.admit(Request(), jobspec, 16, accepted.append)
    for _ in range(3):
        thread.go_on()
    assert process.batches == [1, BATCH_MAX, 2]
    assert len(accepted) == 1 + BATCH_MAX + 2


@IS_A_REQUEST
async def test_a_process_that_does_not_start_fails_all_that_wait(world):
    def start():
        raise FilterFault("no")

    turns = (await world.bare()).turns
    thread, requests = Held(), [Request(), Request()]
    filters = SubmitFilters(IngestSettings(("a",)), turns, thread, start)
    for request in requests:
        filters.admit(request, of("plain"), 16, lambda jobspec: None)
    thread.go_on()
    filters.close()
    assert [len(request.faults) for request in requests] == [1, 1]
    assert "are not running, so it accepts no jobs now: no; submit again later" in str(requests[1].faults[0])
