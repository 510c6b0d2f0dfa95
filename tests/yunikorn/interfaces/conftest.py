"""A resource manager by either interface; the service is one for all tests of a module."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

pytest.importorskip("grpc")
pytest.importorskip("yaml")

from fluxsched.yunikorn.in_process import InProcessScheduler
from fluxsched.yunikorn.service import make_machine

from .drivers import RM, LocalRM, RemoteRM, ServiceThread

_NUMBERS = count()


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceThread]:
    with tempfile.TemporaryDirectory(prefix="fx-") as directory:
        made = ServiceThread(Path(directory))
        yield made
        made.stop()


@pytest.fixture(params=["in process", "grpc"])
def new_rm(request: pytest.FixtureRequest) -> Iterator[Callable[[], RM]]:
    """Makes resource managers of one scheduler."""
    if request.param == "in process":
        scheduler = InProcessScheduler(make_machine(), now_s=1e9)
        yield lambda: LocalRM(scheduler, f"rm-{next(_NUMBERS)}")
        return
    service: ServiceThread = request.getfixturevalue("service")
    made: list[RemoteRM] = []

    def make() -> RM:
        made.append(RemoteRM(service.address, f"rm-{next(_NUMBERS)}"))
        return made[-1]

    yield make
    for rm in made:
        rm.close()
