"""What is remembered of asks is bounded, as in `tests/sched/test_limits.py`."""

import pytest

from tests.sched.site import lowered, size_of
from tests.sched.test_limits import JOBS, REMEMBERED

from .site import TreeSite, amounts, leaf, parent


@pytest.mark.plain_only("limits are compiled in")
def test_asks_start_as_before_too_and_nothing_grows():
    def run():
        site, sizes = TreeSite(parent("root", leaf("default"))), []
        for rank in range(4):
            site.node(amounts(vcore=4 + rank))
        one = site.application("one")
        for turn in range(1, 9):
            ids = [each for at in range(4) for each in site.ask(one, amounts(vcore=1 + at, memory=turn))]
            site.free(*site.run())
            for id in ids:
                site.do(site.scheduler.cancel(id))
            site.run()
            sizes.append(size_of(site.scheduler))
        return sizes

    with lowered(**REMEMBERED):
        sizes = run()
    assert max(sizes[4:]) < max(sizes[:4]) + JOBS
