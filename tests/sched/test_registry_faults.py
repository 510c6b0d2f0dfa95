"""The line that is named is the policy's, wherever the fault was noticed."""

import pytest

from fluxsched.sched.loading import policy_line, raise_at
from fluxsched.sched.policy import PAUSE, Start
from tests.sched.site import Bench, spec


class Odd:
    """Yields what it was made with, once it has looked at the queue."""

    name = "odd"
    OPTIONS = {}  # noqa: RUF012

    def __init__(self, decide, swallows=False):
        self.decide = decide
        self.swallows = swallows

    def schedule(self, view, now_s):
        for job in view.queue:
            try:
                yield self.decide(view, job)
            except TypeError:
                if not self.swallows:
                    raise


class Eager(Odd):
    """Has no generator at all, so nothing can be raised where it stands."""

    def schedule(self, view, now_s):
        return iter([self.decide(view, job) for job in view.queue])


YIELD = Odd.schedule.__code__.co_firstlineno + 3


@pytest.fixture
def fault_of():
    def run(policy):
        bench = Bench(policy)
        bench.grow("0")
        bench.submit(1, spec())
        with pytest.raises((TypeError, AttributeError)) as caught:
            bench.run()
        return caught.value

    return run


@pytest.mark.parametrize(
    "decide", [lambda view, job: 7, lambda view, job: Start(1, None), lambda view, job: Start([], None)]
)
def test_what_it_yields_is_blamed_on_its_yield(fault_of, decide):
    fault = fault_of(Odd(decide))
    assert policy_line(fault) == f"test_registry_faults.py:{YIELD}"


def test_what_it_asks_for_is_blamed_on_where_it_asks(fault_of):
    def ask(view, job):
        return view.place(job.jobid)

    assert policy_line(fault_of(Odd(ask))) == f"test_registry_faults.py:{ask.__code__.co_firstlineno + 1}"


def test_a_swallowed_fault_still_ends_the_pass(fault_of):
    assert "it yielded 7" in str(fault_of(Odd(lambda view, job: 7, swallows=True)))


def test_where_there_is_no_line_none_is_named(fault_of):
    fault = fault_of(Eager(lambda view, job: 7))
    assert "it yielded 7" in str(fault)
    assert policy_line(ValueError()) is None
    raise_at(None, ValueError())
    raise_at(iter([PAUSE]), ValueError())
