"""What plugins leave a shape of its choice: only that is placed, the better score first, until what exists changes."""

import pytest

from fluxsched.core.idset import Idset
from fluxsched.sched.pool.choice import Narrowed, restricted
from fluxsched.sched.pool.place import find_fit, place_now
from fluxsched.sched.pool.placement import BEST_FIT, FIRST_FIT, PLACEMENTS, WORST_FIT, Infeasible, Insufficient, Shape
from fluxsched.sched.pool.pool import Pool
from tests.sched.site import make_r, request_of


@pytest.fixture
def pool():
    """Ranks 0-3 with 4 cores, 4-7 with 8."""
    made = Pool()
    for resources in (make_r("0-3", 4), make_r("4-7", 8)):
        made.add(resources, resources.ranks)
    return made


def narrow(pool, shape, now, ever="0-7", later="", scores=()):
    choice = pool.choice(shape.request.constraint)
    masks = Idset.parse(now).mask, Idset.parse(ever).mask
    left = restricted(choice, masks[0], scores), restricted(choice, masks[1])
    pool.narrow(shape, Narrowed(*left, masks[0], later, "plugin 'p': never"))


def ranks(pool, shape, placement=BEST_FIT):
    fit = find_fit(pool, shape, placement)
    return "" if fit is None else str(Idset.of([part.rank for part in fit.parts]))


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_only_what_is_left_is_placed(pool, placement):
    shape, other = Shape(request_of(nodes=2)), Shape(request_of(nodes=1))
    narrow(pool, shape, "2,6")
    assert ranks(pool, shape, placement) == "2,6"
    narrow(pool, shape, "6")
    assert ranks(pool, shape, placement) == ""
    assert ranks(pool, other, placement) in ("0", "4")
    pool.narrow(shape, None)
    assert ranks(pool, shape, placement) in ("0-1", "4-5")


def test_a_whole_class_is_found_as_fast_as_without_plugins(pool):
    shape = Shape(request_of())
    narrow(pool, shape, "4-7")
    assert ranks(pool, shape) == "4"
    assert pool.prepared[shape.number].free_index is not None


def test_the_better_score_comes_before_the_placement(pool):
    scores = ((Idset.parse("0,4").mask, 10), (Idset.parse("1,5").mask, 90), (Idset.parse("2-3,6-7").mask, 50))
    for placement, first in ((BEST_FIT, "1"), (WORST_FIT, "5"), (FIRST_FIT, "1")):
        one, three = Shape(request_of(nodes=1)), Shape(request_of(nodes=3))
        narrow(pool, one, "0-7", scores=scores)
        narrow(pool, three, "0-7", scores=scores)
        assert ranks(pool, one, placement) == first
        assert {1, 5} < set(Idset.parse(ranks(pool, three, placement)))
        assert not {0, 4} & set(Idset.parse(ranks(pool, three, placement)))


def test_the_reason_is_the_plugins(pool):
    shape = Shape(request_of(nodes=3))
    narrow(pool, shape, "0-1", later="plugin 'p': later")
    assert place_now(pool, shape, BEST_FIT) == Insufficient("plugin 'p': later")
    narrow(pool, shape, "0-1", ever="0-1")
    assert place_now(pool, shape, BEST_FIT) == Infeasible("plugin 'p': never")


def test_it_holds_until_what_exists_changes(pool):
    shape = Shape(request_of())
    narrow(pool, shape, "2")
    pool.remove(Idset.parse("7"))
    assert ranks(pool, shape) == "0"
