"""One lab for the tests of a file: four hosts with the engines that are there."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.lab.engines import ADD, BEGIN, restore_flux
from tests.engine.lab.hosts import Lab
from tests.engine.lab.packages import unavailable

HOSTS = 4


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this directory: they need hosts of their own."""
    for item in items:
        if item.path.parent.name == "lab":
            item.add_marker("namespaces")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose engine is not there, before fixtures of its module start anything of that engine."""
    reason = unavailable(*(name for name in ADD if item.get_closest_marker(name)))
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """Hosts with all engines that are there."""
    if (reason := unavailable()) is not None:
        pytest.skip(reason)
    with Lab(HOSTS) as lab:
        for name, add in ADD.items():
            if unavailable(name) is None:
                add(lab)
        yield lab


@pytest.fixture
def mended(lab: Lab) -> Iterator[Lab]:
    """The lab for a test that cuts links or ends hosts: all is as it was afterwards."""
    yield lab
    for name in lab.names:
        if not lab.is_up(name):
            lab.boot(name)
            for part, begin in BEGIN.items():
                if unavailable(part) is None:
                    begin(lab, name)
        lab.mend(name)
    if unavailable("flux") is None:
        restore_flux(lab)
