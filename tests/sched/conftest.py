"""A bench for tests of the scheduler: strict order in one group."""

import pytest

from tests.sched.site import Bench


@pytest.fixture
def bench():
    made = Bench("fifo")
    yield made
    made.scheduler.check()
