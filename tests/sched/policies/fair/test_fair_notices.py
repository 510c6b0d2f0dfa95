"""What owners hear of estimates under `fair`, where the first in line is another with almost every event."""

from math import inf

from tests.sched.site import limit

NOTICE_EVERY_S, SETTLE_S = limit("NOTICE_EVERY_S", "SETTLE_S")


def test_an_estimate_is_told_once_it_has_lasted_and_withdrawn_at_once(shared):
    site = shared(4)
    site.submit("z", 4, limit=100.0)
    site.starts(0.0)
    (c,) = site.submit("c", 4, limit=10.0)
    site.starts(0.0)
    (b,) = site.submit("b", 4, limit=10.0)
    site.starts(0.5)
    assert not site.told, "c was first for half a second, and b has just become it"
    assert site.scheduler.next_notice_s == SETTLE_S
    site.starts(SETTLE_S)
    assert site.told[c], "by then it waits like all others"
    assert c not in site.estimates
    site.starts(0.5 + SETTLE_S)
    assert site.estimates == {b: 100.0}
    assert site.scheduler.next_notice_s == inf

    (a,) = site.submit("a", 4, limit=10.0)
    site.starts(20.0)
    assert site.estimates == {b: None}, "what no longer holds is not believed a second longer"
    site.starts(20.0 + SETTLE_S)
    assert site.estimates == {a: 100.0, b: None}

    site.scheduler.cancel(a)
    site.starts(22.0)
    assert site.estimates[b] is None, "it heard of it 2 s ago"
    site.starts(20.0 + NOTICE_EVERY_S)
    assert site.estimates[b] == 100.0
