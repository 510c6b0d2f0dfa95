"""`fair` with one account is its inner policy, start for start: whatever another policy decides stays as it is."""

import pytest

from fluxsched.sim import Trace, generate, run
from tests.generated.share import examples

POLICIES = [
    "fifo", "firstfit", "firstfit:order=sjf", "easy", "easy:order=sjf", "easy:order=lxf", "hybrid:depth=4",
    "conservative", "conservative:compress",
]  # fmt: skip


@pytest.fixture(scope="module")
def trace():
    """A busy machine on which one user submits all jobs."""
    busy = generate(examples(250), 64, seed=3, load=0.95)
    return Trace.of([job._replace(user=1, bank=None) for job in busy.jobs], "busy", busy.machine)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("machine", [{"procs": 64}, {"nodes": 8, "cores": 8}], ids=["counted", "pool"])
def test_fair_with_one_account_is_its_inner_policy(policy, machine, trace):
    name, _, options = policy.partition(":")
    fair = ",".join([f"fair:backfill={name}", *([options] if options else [])])
    alone, under = run(trace, policy, **machine), run(trace, fair, **machine)
    assert alone.summary.queue_max > 1
    assert under.jobs.start == alone.jobs.start
    assert under.jobs.state == alone.jobs.state
