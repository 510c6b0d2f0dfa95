"""Preemption, sizes and wakes through the bridge: what Flux is asked, and what a refusal does."""

from __future__ import annotations

import errno

import pytest

from fluxsched.core.jobspec import Jobspec
from fluxsched.flux.handle import BrokerReply

POLICY = '''
from fluxsched.sched.policies.backfill import Fifo
from fluxsched.sched.policy import Preempt, Wake

class Eager(Fifo):
    """Preempts job 1 for the first that waits, and looks again in 30 s."""
    name = "eager"
    def schedule(self, view, now_s):
        yield from super().schedule(view, now_s)
        if view.first is not None:
            yield Preempt(1, view.first.jobid, "account b uses 0 of its share 4")
            yield Wake(now_s + 30.0)
'''


@pytest.fixture
def full(hand, tmp_path):
    """Job 1 holds the one core and may be preempted at once; job 2 waits."""
    file = tmp_path / "eager.py"
    file.write_text(POLICY)
    hand.begin(f"policy={file}", ranks="0", cores="0")
    hand.alloc(1, **{"preemptible-after": 0})
    hand.turn()
    hand.commits.pop()[1](BrokerReply())
    hand.take("rpc"), hand.take("log")
    hand.alloc(2)
    hand.turn()
    return hand


def test_a_victim_gets_an_exception_that_says_that_flux_does_not_submit_it_again(full):
    ((topic, raised),) = full.take("rpc")
    assert topic == "job-manager.raise"
    note = "preempted so that job f3 can start: account b uses 0 of its share 4; Flux does not submit it again"
    assert {**raised, "note": raised["note"].replace("ƒ", "f")} == {
        "id": 1, "type": "preempt", "severity": 0, "note": note,
    }  # fmt: skip
    full.answer("job-manager.raise", {})
    assert full.take("log") == []
    full.now_s += 30.0
    full.turn()
    assert full.take("rpc") == [], "once"


def test_a_refusal_is_logged_and_the_job_is_not_going(full):
    full.take("rpc")
    full.answer("job-manager.raise", errnum=errno.ENOENT, text="unknown job")
    ((level, text),) = full.take("log")
    assert level == 3
    assert text.endswith("unknown job")
    full.now_s += 30.0
    full.turn()
    assert full.take("rpc") == []


def test_a_turn_comes_when_the_policy_asked_for_it(full):
    assert full.delays[-1] == pytest.approx(30.0)


def elastic(nodes: str) -> dict[str, object]:
    return Jobspec.from_command(["work"], nodes=nodes, exclusive=True, elastic=True, preemptible_after_s=0.0).to_json()


@pytest.mark.parametrize("policy", ["fifo", "easy"])
def test_an_elastic_job_keeps_the_size_of_its_start(hand, policy):
    """Flux's job manager knows no job that changes its size."""
    hand.begin(f"policy={policy}", ranks="0-3")
    hand.alloc(1, jobspec=Jobspec.from_command(["work"], nodes=1, exclusive=True).to_json())
    hand.turn()
    hand.commits.pop()[1](BrokerReply())
    hand.alloc(2, jobspec=elastic("1-4"))
    hand.turn()
    ((stored, done),) = [hand.commits.pop()]
    (resources,) = stored.values()
    assert resources["execution"]["R_lite"][0]["rank"] == "1-3", "the most that fits"
    done(BrokerReply())
    hand.take("rpc")
    hand.ask("sched.free", {"id": 1, "R": {**resources, "execution": {**resources["execution"], "R_lite": [
        {"rank": "0", "children": {"core": "0-1"}}], "nodelist": ["n0"]}}, "final": True})  # fmt: skip
    hand.turn()
    hand.alloc(3, jobspec=Jobspec.from_command(["work"], nodes=2, exclusive=True).to_json())
    for _ in range(5):
        hand.now_s += 100.0
        hand.turn()
    assert {topic for topic, _ in hand.take("rpc")} <= {"job-manager.raise"}
    hand.bridge.scheduler.check()
