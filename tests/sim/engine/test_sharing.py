"""Jobs of a trace that share the machine by banks, and may be preempted."""

import json

from fluxsched.core.jobfields import Sharing
from fluxsched.core.jobspec import Jobspec
from fluxsched.sim import Ask, Trace, run
from fluxsched.sim.simulation import NAMED_FROM, Users
from fluxsched.sim.site import TraceJobspecs, with_system


def test_a_jobspec_says_how_its_job_shares_the_machine(trace_of):
    (plain,) = trace_of((0, 1, 1, 1)).jobs
    whole = Ask(jobspec=json.dumps(with_system(Jobspec.from_command(["x"]), "bank", "own")))
    specs = TraceJobspecs({}, None)
    wanted = plain._replace(bank="physics", preemptible_after_s=30.0, requeue=2)
    assert _sharing(specs.of(plain)) == Sharing()
    assert _sharing(specs.of(wanted)) == Sharing("physics", 30.0, 2)
    assert _sharing(specs.of(wanted._replace(bank=None, ask=whole))) == Sharing("own", 30.0, 2)
    assert _sharing(specs.of(wanted._replace(ask=whole))) == Sharing("physics", 30.0, 2)


def _sharing(spec):
    assert isinstance(spec, Jobspec)
    assert Jobspec.parse(spec.raw).sharing == spec.sharing
    return spec.sharing


def test_banks_of_a_configuration_are_the_only_ones(trace_of, tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('[fair.banks]\nphysics = 3\n[policy.jobspec.defaults.system]\nbank = "physics"\n')
    (job,) = trace_of((0, 1, 1, 1)).jobs
    jobs = run(Trace.of([job, job._replace(bank="optics")]), "fifo", procs=2, config=config).jobs
    assert jobs.state == ["completed", "denied"]
    assert jobs.notes[1].startswith("bank 'optics' does not exist: use one of physics")


def test_users_keep_their_names():
    users = Users()
    ids = [users.userid(user) for user in (7, "ann", None, "7", "ann")]
    assert [users.name(userid) for userid in ids] == ["7", "ann", "unknown", "7", "ann"]
    assert len(set(ids)) == 4
    assert users.userid("ann") >= NAMED_FROM > ids[0]
