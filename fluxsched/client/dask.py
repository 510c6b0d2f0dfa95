"""Dask in a job, as by `SLURMRunner` of dask-jobqueue: each task of the job runs the same program, and has one role.

    with FluxRunner() as runner, Client(runner) as client:  # only task 1 comes further than this line
        print(client.submit(sum, [1, 2]).result())

Task 0 is the scheduler, 1 the client, all others are workers. They find each other by the job's PMI-1 (RFC 13), so that
they need no common file system, in an instance and in Flux.
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any, Final

from dask_jobqueue.runner import BaseRunner, Role
from distributed import Scheduler

from fluxsched.errors import InvalidValue, RemoteProtocolError

ADDRESS: Final = "dask-scheduler"
"""The key of the scheduler's address in the job's key-value space."""


class FluxRunner(BaseRunner):  # type: ignore[misc]  # dask-jobqueue has no types
    """A Dask cluster of the tasks of one job; options are those of `BaseRunner`, such as `worker_options`."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Take this task's role; return in the client alone. Raises InvalidValue if the job has too few tasks."""
        self._rank, ntasks = (int(os.environ.get(name, 0)) for name in ("FLUX_TASK_RANK", "FLUX_JOB_SIZE"))
        needed = 1 + bool(options.get("scheduler", True)) + bool(options.get("client", True))
        if ntasks < needed:
            raise InvalidValue(
                f"Dask needs a job of {needed} tasks or more, not {ntasks}: run this program by `fluxsched run -n "
                f"{needed}`; one task is the scheduler, one the client, the others are workers"
            )
        super().__init__(*args, **options)

    async def get_role(self) -> Role:
        """Return the role of this task, by its rank."""
        roles = [Role.scheduler] * self.scheduler + [Role.client] * self.client
        return roles[self._rank] if self._rank < len(roles) else Role.worker

    async def set_scheduler_address(self, scheduler: Scheduler) -> None:
        """Tell the other tasks where the scheduler is, which then all are there."""
        await asyncio.to_thread(_exchange, scheduler.address)

    async def get_scheduler_address(self) -> str:
        """Wait until the scheduler is there; return its address."""
        return await asyncio.to_thread(_exchange)

    async def get_worker_name(self) -> int:
        """Return the task's rank, which logs and the dashboard show."""
        return self._rank


def _exchange(address: str = "") -> str:
    """Put an address if it is given, wait for all tasks, and return what was put. Raises FluxschedError."""
    fd = os.environ.pop("PMI_FD", None)  # which is closed below
    if fd is None:
        raise InvalidValue(
            "the job has no PMI, by which its tasks find each other, or its one FluxRunner was made already: submit it "
            "without `-o pmi=off`, and make one runner"
        )
    with socket.socket(fileno=int(fd)) as pmi, pmi.makefile("rw", newline="\n") as lines:

        def ask(request: str) -> dict[str, str]:
            lines.write(f"cmd={request}\n")
            lines.flush()
            found = dict(word.partition("=")[::2] for word in lines.readline().split())
            if found.get("rc", "0") != "0" or not found:
                raise RemoteProtocolError(f"PMI: no answer to {request}: {found.get('msg', 'the job is ending')}")
            return found

        ask("init pmi_version=1 pmi_subversion=1")
        space = ask("get_my_kvsname")["kvsname"]
        if address:
            ask(f"put kvsname={space} key={ADDRESS} value={address}")
        ask("barrier_in")
        found = ask(f"get kvsname={space} key={ADDRESS}")["value"]
        ask("finalize")
    return found
