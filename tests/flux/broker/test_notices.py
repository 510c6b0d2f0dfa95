"""Flux's reactor and what owners of waiting jobs were not told at once: its timer brings the turn in which they are."""

from __future__ import annotations

from fluxsched.sched.engine.group import NOTICE_EVERY_S

EASY_ONCE = """
from fluxsched.sched.policies.backfill import Easy
class Once(Easy):
    name = "once"
    left = 3
    def schedule(self, view, now_s):
        self.left -= 1
        if self.left < 0:
            raise ZeroDivisionError("bad luck")
        yield from super().schedule(view, now_s)
"""


def told(hand):
    """The annotations of jobs that wait, since the last look."""
    answers = [answer for _, answer in hand.take("respond") if answer is not None]
    return [(answer["id"], answer["annotations"]["sched"]) for answer in answers if answer["type"] == 1]


def kept_back(hand, policy):
    """Job 2 was told that it starts at 1600 s; 1 s later it is to start at 1500 s, and was not told yet."""
    hand.begin(f"policy={policy}", ranks="0")
    hand.alloc(1, slots=2, duration=600)
    hand.turn()
    hand.alloc(2, slots=2, duration=60)
    hand.turn()
    assert [sched["t_estimate"] for _, sched in told(hand)] == [1600.0]
    hand.now_s += 1.0
    hand.ask("sched.expiration", {"id": 1, "expiration": 1500.0})
    hand.turn()
    assert told(hand) == []
    assert hand.delays[-1] == NOTICE_EVERY_S - 1.0


def test_a_change_that_was_kept_back_is_told_in_time_though_nothing_happens(hand):
    kept_back(hand, "easy")
    hand.now_s += hand.delays[-1]
    passes, asked = hand.bridge.scheduler.report.stats()["passes"], len(hand.delays)
    hand.turn()
    assert told(hand) == [(2, {"t_estimate": 1500.0})]
    assert hand.bridge.scheduler.report.stats()["passes"] == passes, "no policy was asked for it"
    assert len(hand.delays) == asked, "and then there is silence"


def test_a_policy_that_raises_is_not_asked_again_for_what_was_kept_back(hand, tmp_path):
    file = tmp_path / "once.py"
    file.write_text(EASY_ONCE)
    kept_back(hand, file)
    hand.alloc(3)
    asked = len(hand.delays)
    hand.turn()
    assert hand.bridge.policy_errors == 1
    assert len(hand.delays) == asked, "the next turn is that of the next event"
