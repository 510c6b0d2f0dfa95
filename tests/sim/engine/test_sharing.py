"""Jobs of a trace that share the machine by banks, and may be preempted."""

from __future__ import annotations

import json
from collections.abc import Callable

from fluxsched.core.jobspec import Jobspec
from fluxsched.core.sharing import Sharing
from fluxsched.sim import Ask, Trace
from fluxsched.sim.engine.jobspecs import TraceJobspecs, with_system

Rows = Callable[..., Trace]


def test_a_jobspec_says_how_its_job_shares_the_machine(trace_of: Rows) -> None:
    (plain,) = trace_of((0, 1, 1, 1)).jobs
    whole = Ask(jobspec=json.dumps(with_system(Jobspec.from_command(["x"]), "bank", "own")))
    specs = TraceJobspecs({}, None)
    wanted = plain._replace(bank="physics", preemptible_after_s=30.0, requeue=2)
    assert _sharing(specs.of(plain)) == Sharing()
    assert _sharing(specs.of(wanted)) == Sharing("physics", 30.0, 2)
    assert _sharing(specs.of(wanted._replace(bank=None, ask=whole))) == Sharing("own", 30.0, 2)
    assert _sharing(specs.of(wanted._replace(ask=whole))) == Sharing("physics", 30.0, 2)


def _sharing(spec: Jobspec | str) -> Sharing:
    assert isinstance(spec, Jobspec)
    assert Jobspec.parse(spec.raw).sharing == spec.sharing
    return spec.sharing
