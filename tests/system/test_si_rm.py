"""An instance under a scheduler service that is lost and comes back, and under another of us after a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from subprocess import Popen
from typing import Any

import pytest

pytest.importorskip("grpc", reason="the scheduler interface is an extra: fluxsched[si]")

Begin = Callable[..., "Popen[str]"]


@pytest.fixture
def begin(user: Any) -> Iterator[Begin]:
    """begin("serve", ...): a process of `fluxsched si`, ended with the test."""
    with ExitStack() as stack:

        def start(who: Any, *words: str) -> Popen[str]:
            process = stack.enter_context(who.real().popen("si", *words))
            stack.callback(process.kill)
            return process

        yield start


def managers(here: Any, address: str) -> list[dict[str, Any]]:
    """What the service knows; nothing while there is none."""
    done = here("si", "dump", address, status=None)
    return done.json["rms"] if done.status == 0 else []


def allocations(here: Any, address: str) -> int:
    known = [partition for each in managers(here, address) for partition in each["partitions"]]
    return sum(len(node["allocations"]) for partition in known for node in partition["nodes"])


def test_jobs_run_on_without_the_service_and_the_next_one_knows_them(
    user: Any, daemon: Any, begin: Begin, until: Any
) -> None:
    here = daemon("--fake", "1x2", "--scheduler", "none")
    (user.directory / "private").mkdir(0o700)
    address = f"unix:{user.directory}/private/s"
    service = begin(user, "serve", "--bind", address)
    assert service.stdout is not None
    assert service.stdout.readline().strip() == address
    rm = begin(here, "rm", address)
    running = here.running("sleep", "100")
    service.kill()
    service.wait()
    waiting = here.submit("sleep", "100")
    service = begin(user, "serve", "--bind", address)
    here("job", "wait-event", waiting, "start")
    assert here.info(running)["state"] == "RUN"
    assert allocations(here, address) == 2
    rm.kill()
    begin(here, "rm", address)
    here("cancel", waiting)
    until(lambda: allocations(here, address) == 1)
    here("run", "true")
    assert here.info(running)["state"] == "RUN"
