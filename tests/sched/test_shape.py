"""Shapes: equal requests are one, numbers are never given twice, and no more are remembered than the limit."""

from fluxsched.sched.pool import placement as module
from fluxsched.sched.pool.placement import SHAPES_MAX, Shape, Shapes
from tests.sched.site import request_of


def test_equal_requests_have_one_shape():
    shapes = Shapes()
    one = shapes.of(request_of(nodes=2, cores=3))
    assert shapes.of(request_of(nodes=2, cores=3)) is one
    assert one.request == request_of(nodes=2, cores=3)
    assert shapes.of(request_of(nodes=2, cores=4)) is not one


def test_a_number_is_never_given_twice():
    assert len({Shape(request_of()).number for _ in range(100)}) == 100


def test_no_more_than_the_limit_are_remembered(monkeypatch):
    assert SHAPES_MAX > 3
    monkeypatch.setattr(module, "SHAPES_MAX", 3)
    shapes = Shapes()
    first = shapes.of(request_of(cores=1))
    for cores in range(2, 9):
        shapes.of(request_of(cores=cores))
        assert len(shapes._known) <= 3
    again = shapes.of(request_of(cores=1))
    assert again == first
    assert again.number != first.number
