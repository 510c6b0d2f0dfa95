"""A bench for tests of the scheduler, strict order in one group; and limits that are lower for one test."""

from contextlib import ExitStack

import pytest

from tests.sched.site import Bench, lowered


@pytest.fixture
def bench():
    made = Bench("fifo")
    yield made
    made.scheduler.check()


@pytest.fixture
def lower():
    """`lower(WAITING_MAX=1)`"""
    with ExitStack() as stack:
        yield lambda **limits: stack.enter_context(lowered(**limits))
